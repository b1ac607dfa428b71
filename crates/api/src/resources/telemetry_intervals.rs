//! Telemetry by intervals: of a device, of some devices, of a group.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::device_groups;
use super::telemetry_question::{FROM_MS, KEYS, TO_MS, ask, check_times, interval_ms, keys, times};
use crate::access::Role;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get, post};
use crate::parameters::{MAX_TIME_MS, Parameter, Shape};
use crate::problem::Problem;
use crate::telemetry_tools::{IntervalQuery, IntervalRow, Numbers};

/// Devices of one question.
const MAX_DEVICES: usize = 10_000;
const FUNCTIONS: &[&str] = &["avg", "min", "max", "sum", "count", "first", "last"];

const INTERVAL_MS: Parameter = Parameter {
    name: "interval_ms",
    shape: Shape::Number(1, MAX_TIME_MS),
    about: "The length of an interval; without it one interval from `from_ms` to `to_ms`.",
};
const WANTED: Parameter = Parameter {
    name: "functions",
    shape: Shape::Words(FUNCTIONS),
    about: "What to tell of an interval: `avg`, `min`, `max`, `sum`, `count`, `first`, `last`, separated by commas; `avg` without it.",
};

const MERGED: Parameter = Parameter {
    name: "merged",
    shape: Shape::Flag,
    about: "`true`: all devices together, as if they were one.",
};

/// What is to be told of some devices.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GroupQuery {
    /// Their ids; or a `group`.
    #[schemars(length(min = 1, max = 10_000))]
    devices: Option<Vec<String>>,
    /// The id of a group of devices.
    #[schemars(length(min = 1, max = 256))]
    group: Option<String>,
    #[schemars(length(min = 1, max = 256))]
    keys: Vec<String>,
    #[schemars(range(min = 0, max = 253_402_300_799_999_i64))]
    from_ms: i64,
    #[schemars(range(min = 0, max = 253_402_300_799_999_i64))]
    to_ms: i64,
    #[schemars(range(min = 1, max = 253_402_300_799_999_i64))]
    interval_ms: i64,
    /// Where an interval begins, such as a local midnight.
    #[serde(default)]
    #[schemars(range(min = 0, max = 253_402_300_799_999_i64))]
    origin_ms: i64,
    /// `avg` if there is none.
    #[serde(default)]
    functions: Vec<Function>,
    /// All devices together, as if they were one.
    #[serde(default)]
    merged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Function {
    Avg,
    Min,
    Max,
    Sum,
    Count,
    First,
    Last,
}

/// Intervals.
#[derive(Serialize, JsonSchema)]
struct Intervals {
    data: Vec<Interval>,
}

/// One interval of one key.
#[derive(Serialize, JsonSchema)]
struct Interval {
    /// `null`: all that were asked for.
    device: Option<String>,
    key: String,
    /// Its beginning.
    ts_ms: i64,
    /// By function; `null` where there is no number.
    values: Map<String, Value>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/v1/devices/{id}/telemetry/intervals",
            "aggregateTelemetry",
            intervals,
        )
        .role(Role::Viewer)
        .tag("telemetry")
        .path_parameter("id", "The device's id, percent-encoded.")
        .summary("Telemetry of a device by intervals")
        .parameters(&[KEYS, FROM_MS, TO_MS, INTERVAL_MS, WANTED])
        .answers::<Intervals>(200, "Those that have values, of each key ascending."),
        get(
            "/api/v1/device-groups/{id}/telemetry/intervals",
            "aggregateTelemetryOfGroup",
            group_intervals,
        )
        .role(Role::Viewer)
        .tag("telemetry")
        .path_parameter("id", "The group's id, percent-encoded.")
        .summary("Telemetry of a group of devices by intervals")
        .parameters(&[KEYS, FROM_MS, TO_MS, INTERVAL_MS, WANTED, MERGED])
        .answers::<Intervals>(
            200,
            "Of each device and key ascending; merged, of each key.",
        ),
        post("/api/v1/telemetry/query", "queryTelemetry", group)
            .role(Role::Viewer)
            .tag("telemetry")
            .summary("Telemetry of some devices, or of a group, by intervals")
            .problem(404, "One of the devices, or the group, is not there.")
            .body::<GroupQuery>()
            .answers::<Intervals>(
                200,
                "Of each device and key ascending; merged, of each key.",
            ),
    ]
}

async fn intervals(call: Call) -> Outcome {
    let devices = vec![call.path("id").to_owned()];
    intervals_of(call, devices, false).await
}

async fn group_intervals(call: Call) -> Outcome {
    let devices = members(&call, call.path("id").to_owned()).await?;
    let is_merged = call.query.flag(MERGED).unwrap_or(false);
    intervals_of(call, devices, is_merged).await
}

async fn intervals_of(call: Call, devices: Vec<String>, is_merged: bool) -> Outcome {
    let (from_ms, to_ms) = times(&call)?;
    let Some(keys) = keys(&call) else {
        return Err(Problem::parameter(
            KEYS.name,
            "keys: expected at least one.",
        ));
    };
    let functions = match call.query.text(WANTED.name) {
        None => vec![Function::Avg],
        Some(words) => words.split(',').filter_map(Function::named).collect(),
    };
    let query = IntervalQuery {
        devices,
        keys,
        from_ms,
        to_ms,
        interval_ms: interval_ms(&call, INTERVAL_MS, (from_ms, to_ms)),
        origin_ms: 0,
    };
    answer(&call, query, &functions, is_merged).await
}

async fn group(mut call: Call) -> Outcome {
    let mut query: GroupQuery = call.json().await?;
    check_times(query.from_ms, query.to_ms)?;
    let devices = query.devices.as_ref().map_or(1, Vec::len);
    let group = query.group.as_ref().map_or(1, String::len);
    for (field, count, most) in [
        ("devices", devices, MAX_DEVICES),
        ("group", group, 256),
        ("keys", query.keys.len(), 256),
    ] {
        if !(1..=most).contains(&count) {
            let detail = format!("{field}: expected 1 to {most}, not {count}.");
            return Err(Problem::field(field, detail));
        }
    }
    for (field, number) in [
        ("from_ms", query.from_ms),
        ("to_ms", query.to_ms),
        ("interval_ms", query.interval_ms.saturating_sub(1)),
        ("origin_ms", query.origin_ms),
    ] {
        if !(0..=MAX_TIME_MS as i64).contains(&number) {
            return Err(Problem::field(field, format!("{field} is out of bounds.")));
        }
    }
    if query.functions.is_empty() {
        query.functions.push(Function::Avg);
    }
    let devices = match (query.devices, query.group) {
        (Some(devices), None) => devices,
        (None, Some(group)) => members(&call, group).await?,
        (Some(_), Some(_)) | (None, None) => {
            let detail = "devices: expected either devices or a group.";
            return Err(Problem::field("devices", detail));
        }
    };
    let (functions, is_merged) = (query.functions, query.merged);
    let query = IntervalQuery {
        devices,
        keys: query.keys,
        from_ms: query.from_ms,
        to_ms: query.to_ms,
        interval_ms: query.interval_ms,
        origin_ms: query.origin_ms,
    };
    answer(&call, query, &functions, is_merged).await
}

/// The devices of a group.
async fn members(call: &Call, group: String) -> Result<Vec<String>, Problem> {
    device_groups::ask(&call.app, move |tools| tools.group_members(&group)).await
}

/// Intervals of devices, each for itself or all as one.
async fn answer(
    call: &Call,
    query: IntervalQuery,
    functions: &[Function],
    is_merged: bool,
) -> Outcome {
    let rows = ask(&call.app, move |tools| tools.intervals(&query)).await?;
    let data = match is_merged {
        false => rows.into_iter().map(|row| shown(row, functions)).collect(),
        true => merge(rows)
            .into_iter()
            .map(|row| Interval {
                device: None,
                ..shown(row, functions)
            })
            .collect(),
    };
    call::ok(Intervals { data })
}

/// Intervals of the same key and time as one.
fn merge(rows: Vec<IntervalRow>) -> Vec<IntervalRow> {
    let mut merged = BTreeMap::<(String, i64), IntervalRow>::new();
    for row in rows {
        match merged.entry((row.key.clone(), row.ts_ms)) {
            Entry::Vacant(place) => {
                place.insert(row);
            }
            Entry::Occupied(mut place) => {
                let known = place.get_mut();
                known.count += row.count;
                known.numbers = match (known.numbers, row.numbers) {
                    (Some(known), Some(more)) => Some(together(known, more)),
                    (known, more) => known.or(more),
                };
            }
        }
    }
    merged.into_values().collect()
}

fn together(one: Numbers, other: Numbers) -> Numbers {
    Numbers {
        count: one.count + other.count,
        min: one.min.min(other.min),
        max: one.max.max(other.max),
        sum: one.sum + other.sum,
        first: if other.first.0 < one.first.0 {
            other.first
        } else {
            one.first
        },
        last: if other.last.0 > one.last.0 {
            other.last
        } else {
            one.last
        },
    }
}

impl Function {
    pub(super) fn named(name: &str) -> Option<Self> {
        serde_json::from_value(Value::from(name)).ok()
    }

    fn name(self) -> &'static str {
        FUNCTIONS[self as usize]
    }

    pub(super) fn of(self, row: &IntervalRow) -> Value {
        let number = row.numbers.map(|numbers| match self {
            Function::Avg => numbers.sum / numbers.count.max(1) as f64,
            Function::Min => numbers.min,
            Function::Max => numbers.max,
            Function::Sum => numbers.sum,
            Function::First => numbers.first.1,
            Function::Last => numbers.last.1,
            Function::Count => 0.0,
        });
        match self {
            Function::Count => Value::from(row.count),
            _ => number.map_or(Value::Null, Value::from),
        }
    }
}

fn shown(row: IntervalRow, functions: &[Function]) -> Interval {
    let values = functions
        .iter()
        .map(|function| (function.name().to_owned(), function.of(&row)));
    Interval {
        values: values.collect(),
        device: Some(row.device),
        key: row.key,
        ts_ms: row.ts_ms,
    }
}
