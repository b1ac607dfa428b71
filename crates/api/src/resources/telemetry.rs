//! Telemetry of devices: latest values, rows, intervals, exports, live.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::access::Role;
use crate::app::App;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, delete, get, post};
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;
use crate::telemetry_tools::{
    IntervalQuery, IntervalRow, Numbers, Refusals, RowQuery, TelemetryProblem, TelemetryTools,
};

use super::device_groups;
use super::telemetry_export;
use super::telemetry_feed;

/// The end of the year 9999.
pub(super) const MAX_MS: u64 = 253_402_300_799_999;
const MAX_ROWS: u64 = 100_000;
const DEFAULT_ROWS: u64 = 1000;
/// Devices of one question.
const MAX_DEVICES: usize = 10_000;
const FUNCTIONS: &[&str] = &["avg", "min", "max", "sum", "count", "first", "last"];

pub(super) const KEYS: Parameter = Parameter {
    name: "keys",
    shape: Shape::Text,
    about: "Keys, separated by commas; without it all.",
};
pub(super) const FROM_MS: Parameter = Parameter {
    name: "from_ms",
    shape: Shape::Number(0, MAX_MS),
    about: "The first time, in milliseconds since 1970; without it, the beginning.",
};
pub(super) const TO_MS: Parameter = Parameter {
    name: "to_ms",
    shape: Shape::Number(0, MAX_MS),
    about: "The time behind the last one; without it, the end.",
};
const ROWS: Parameter = Parameter {
    name: "rows",
    shape: Shape::Number(1, MAX_ROWS),
    about: "Rows at most; 1000 without it.",
};
const ORDER: Parameter = Parameter {
    name: "order",
    shape: Shape::Words(&["asc", "desc"]),
    about: "`asc`: the oldest first, which is the default; `desc`: the newest first, for the last so many.",
};
const INTERVAL_MS: Parameter = Parameter {
    name: "interval_ms",
    shape: Shape::Number(1, MAX_MS),
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

/// The latest values of a device.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes the answer")]
struct Latest {
    device: String,
    /// By key: `{"ts_ms", "value"}`.
    values: Map<String, Value>,
}

/// Rows of a device.
#[derive(Serialize, JsonSchema)]
struct Rows {
    device: String,
    rows: Vec<Row>,
    /// Whether there may be more than were asked for.
    is_cut: bool,
}

/// Values of one time.
#[derive(Serialize, JsonSchema)]
struct Row {
    ts_ms: i64,
    /// By key.
    values: Map<String, Value>,
}

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
enum Function {
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
    let one = |endpoint: Endpoint| {
        endpoint
            .role(Role::Viewer)
            .tag("telemetry")
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    vec![
        one(get("/api/v1/devices/{id}/telemetry/latest", "latestTelemetry", latest))
            .summary("Latest values of a device")
            .parameters(&[KEYS])
            .answers::<Latest>(200, "By key."),
        one(get("/api/v1/devices/{id}/telemetry", "listTelemetry", rows))
            .summary("Telemetry of a device")
            .description("Each time once, with the values it has. The last 10 rows: `order=desc&rows=10`.")
            .parameters(&[KEYS, FROM_MS, TO_MS, ROWS, ORDER])
            .answers::<Rows>(200, "In the order of their times."),
        one(delete("/api/v1/devices/{id}/telemetry", "deleteTelemetry", remove))
            .role(Role::Operator)
            .summary("Delete telemetry of a device")
            .description("All of it, or that of these keys and times. It is gone at once, and from the disk an hour later at the latest.")
            .parameters(&[KEYS, FROM_MS, TO_MS])
            .answers_nothing(204, "Deleted."),
        one(get("/api/v1/devices/{id}/telemetry/refusals", "listTelemetryRefusals", refusals))
            .summary("What of a device was not taken")
            .description(
                "Messages that could not be read, values that did not fit the thing model, rows that were not stored, with the reason; \
                 since the node started, and of some thousand devices.",
            )
            .answers::<Refusals>(200, "As it is known."),
        one(get("/api/v1/devices/{id}/telemetry/intervals", "aggregateTelemetry", intervals))
            .summary("Telemetry of a device by intervals")
            .parameters(&[KEYS, FROM_MS, TO_MS, INTERVAL_MS, WANTED])
            .answers::<Intervals>(200, "Those that have values, of each key ascending."),
        one(get("/api/v1/devices/{id}/telemetry/export", "exportTelemetry", telemetry_export::export))
            .summary("Telemetry of a device as a file")
            .description(
                "JSON lines, or CSV with `format=csv`, which needs `keys`: they are the columns. `format=parquet` has a line for each value; \
                 a program that was built without the feature `parquet` answers 400.",
            )
            .parameters(&[telemetry_export::FORMAT, KEYS, FROM_MS, TO_MS])
            .answers_raw(200, "In the order of their times.", "application/octet-stream"),
        one(get("/api/v1/devices/{id}/telemetry/live", "watchTelemetry", telemetry_feed::of_device))
            .summary("Telemetry of a device as it comes")
            .description(
                "Server-Sent Events named `telemetry`, or with `Upgrade: websocket` a WebSocket: `{\"device\", \"ts_ms\", \"values\"}`. \
                 `lost` says that this listener was too slow for so many rows.",
            )
            .parameters(&[KEYS])
            .answers_raw(200, "The stream.", "text/event-stream")
            .answers_nothing(101, "A WebSocket.")
            .problem(429, "Too many streams are open."),
        get("/api/v1/telemetry/live", "watchTelemetryOfDevices", telemetry_feed::of_devices)
            .role(Role::Viewer)
            .tag("telemetry")
            .summary("Telemetry of some devices as it comes")
            .problem(404, "One of the devices is not there.")
            .description("As of one device; at most 10000 devices.")
            .parameters(&[telemetry_feed::DEVICES, KEYS])
            .answers_raw(200, "The stream.", "text/event-stream")
            .answers_nothing(101, "A WebSocket.")
            .problem(429, "Too many streams are open."),
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
        .answers::<Intervals>(200, "Of each device and key ascending; merged, of each key."),
        post("/api/v1/telemetry/query", "queryTelemetry", group)
            .role(Role::Viewer)
            .tag("telemetry")
            .summary("Telemetry of some devices, or of a group, by intervals")
            .problem(404, "One of the devices, or the group, is not there.")
            .body::<GroupQuery>()
            .answers::<Intervals>(200, "Of each device and key ascending; merged, of each key."),
    ]
}

pub(super) fn problem(problem: TelemetryProblem) -> Problem {
    match problem {
        TelemetryProblem::NoDevice(device) => {
            Problem::not_found(format!("There is no device {device:?}."))
        }
        TelemetryProblem::Parameter { name, detail } => {
            Problem::parameter(name, format!("{name}: {detail}."))
        }
        TelemetryProblem::Unavailable(detail) => Problem::unavailable(format!("{detail}.")),
    }
}

/// Asks on a thread that may block.
pub(super) async fn ask<T: Send + 'static>(
    app: &Arc<App>,
    question: impl FnOnce(&dyn TelemetryTools) -> Result<T, TelemetryProblem> + Send + 'static,
) -> Result<T, Problem> {
    let tools = app.telemetry_tools.clone();
    let asked = tokio::task::spawn_blocking(move || question(&*tools)).await;
    let asked = asked.map_err(|_| Problem::unavailable("The telemetry cannot be read now."))?;
    asked.map_err(problem)
}

pub(super) fn keys(call: &Call) -> Option<Vec<String>> {
    let keys = call.query.text(KEYS.name)?;
    Some(keys.split(',').map(str::to_owned).collect())
}

pub(super) fn times(call: &Call) -> Result<(i64, i64), Problem> {
    let from_ms = call.query.number(FROM_MS).unwrap_or(0) as i64;
    let to_ms = call.query.number(TO_MS).unwrap_or(MAX_MS) as i64;
    check_times(from_ms, to_ms)?;
    Ok((from_ms, to_ms))
}

fn check_times(from_ms: i64, to_ms: i64) -> Result<(), Problem> {
    if from_ms > to_ms {
        let detail = format!("to_ms is {to_ms}; expected {from_ms} or more, which is from_ms.");
        return Err(Problem::parameter(TO_MS.name, detail));
    }
    Ok(())
}

async fn latest(call: Call) -> Outcome {
    let (device, keys) = (call.path("id").to_owned(), keys(&call));
    let name = device.clone();
    let samples = ask(&call.app, move |tools| tools.latest(&name, keys.as_deref())).await?;
    let values: Map<String, Value> = samples
        .into_iter()
        .map(|sample| {
            let value = json!({"ts_ms": sample.ts_ms, "value": sample.value});
            (sample.key, value)
        })
        .collect();
    call::ok(Latest { device, values })
}

async fn rows(call: Call) -> Outcome {
    let (from_ms, to_ms) = times(&call)?;
    let limit = call.query.number(ROWS).unwrap_or(DEFAULT_ROWS) as usize;
    let query = RowQuery {
        device: call.path("id").to_owned(),
        keys: keys(&call),
        from_ms,
        to_ms,
        limit,
        newest_first: call.query.text(ORDER.name) == Some("desc"),
    };
    let device = query.device.clone();
    let rows = ask(&call.app, move |tools| {
        let mut rows = Vec::new();
        tools.rows(&query, &mut |ts_ms, values| {
            rows.push(Row {
                ts_ms,
                values: values.into_iter().collect(),
            });
            true
        })?;
        Ok(rows)
    })
    .await?;
    call::ok(Rows {
        device,
        is_cut: rows.len() >= limit,
        rows,
    })
}

async fn remove(call: Call) -> Outcome {
    let (from_ms, to_ms) = times(&call)?;
    let (device, keys) = (call.path("id").to_owned(), keys(&call));
    let told = json!({"keys": keys, "from_ms": from_ms, "to_ms": to_ms});
    let id = device.clone();
    ask(&call.app, move |tools| {
        tools.delete(&device, keys.as_deref(), from_ms, to_ms)
    })
    .await?;
    audit::action(&call, "telemetry.delete", Some(&id), Some(told)).await;
    call::done()
}

async fn refusals(call: Call) -> Outcome {
    let device = call.path("id").to_owned();
    call::ok(ask(&call.app, move |tools| tools.refusals(&device)).await?)
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
    let whole = (to_ms - from_ms).max(1) as u64;
    let functions = match call.query.text(WANTED.name) {
        None => vec![Function::Avg],
        Some(words) => words.split(',').filter_map(Function::named).collect(),
    };
    let query = IntervalQuery {
        devices,
        keys,
        from_ms,
        to_ms,
        interval_ms: call.query.number(INTERVAL_MS).unwrap_or(whole) as i64,
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
        if !(0..=MAX_MS as i64).contains(&number) {
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
    fn named(name: &str) -> Option<Self> {
        serde_json::from_value(Value::from(name)).ok()
    }

    fn name(self) -> &'static str {
        FUNCTIONS[self as usize]
    }

    fn of(self, row: &IntervalRow) -> Value {
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
