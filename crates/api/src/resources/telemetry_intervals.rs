//! Telemetry by intervals: of a device, of several devices, of a group.

use std::borrow::Cow;
use std::collections::BTreeSet;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use series::Aggregate;
use wall_clock::now_ms;

use super::device_groups;
use super::devices::check_all_selected;
use super::telemetry_query::{FROM_MS, KEYS, check_times, keys, run_on_all_nodes};
use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::objects::BackendObjectKind;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    MAX_TIME_MS, Parameter, ParameterType, text_parameter, time_parameter,
};
use crate::telemetry_backend::{CalendarUnit, IntervalLength, IntervalQuery, IntervalRow};

/// Maximum number of devices per query.
const MAX_DEVICES: usize = 10_000;
const UNITS: &[&str] = &["day", "week", "month", "quarter", "year"];

const INTERVAL_MS: Parameter = Parameter {
    name: "interval_ms",
    shape: ParameterType::Number(1, MAX_TIME_MS),
    description: "Length of an interval in milliseconds; without it and `interval`, one interval from `from_ms` to `to_ms`.",
};
const TO_MS: Parameter = time_parameter("to_ms", "End of the time range, exclusive; default: now.");
const INTERVAL: Parameter = Parameter {
    name: "interval",
    shape: ParameterType::Words(UNITS),
    description: "Calendar unit in `time_zone`, instead of `interval_ms`: `day`, `week` from Monday on, `month`, `quarter` or `year`.",
};
const TIME_ZONE: Parameter = text_parameter(
    "time_zone",
    "IANA time zone such as `Europe/Berlin`; default UTC. Intervals of `interval_ms` are counted from the local midnight before \
     `from_ms` with it.",
);
const WANTED: Parameter = Parameter {
    name: "functions",
    shape: ParameterType::Words(&Aggregate::NAMES),
    description: "Aggregate functions, separated by commas; default `avg`.",
};

/// The parameters of [`interval_query`].
pub(super) const INTERVAL_PARAMETERS: [Parameter; 6] =
    [FROM_MS, TO_MS, INTERVAL_MS, INTERVAL, TIME_ZONE, WANTED];

const MERGED: Parameter = Parameter {
    name: "merged",
    shape: ParameterType::Flag,
    description: "`true`: merge all devices as if they were one.",
};

/// A query of several devices.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct IntervalsQueryInput {
    /// Device ids; alternatively a `device_group`.
    #[schemars(length(min = 1, max = 10_000))]
    devices: Option<Vec<String>>,
    /// Id of a device group.
    #[schemars(length(min = 1, max = 256))]
    device_group: Option<String>,
    #[schemars(length(min = 1, max = 256))]
    keys: Vec<String>,
    #[schemars(range(min = 0, max = 253_402_300_799_999_i64))]
    from_ms: i64,
    /// End of the time range, exclusive; default: now.
    #[schemars(range(min = 0, max = 253_402_300_799_999_i64))]
    to_ms: Option<i64>,
    /// Length of an interval in milliseconds; without it and `interval`, one interval from
    /// `from_ms` to `to_ms`.
    #[schemars(range(min = 1, max = 253_402_300_799_999_i64))]
    interval_ms: Option<i64>,
    /// Calendar unit in `time_zone`, instead of `interval_ms`.
    interval: Option<CalendarUnit>,
    /// IANA time zone such as `Europe/Berlin`; default UTC.
    #[schemars(length(min = 1, max = 64))]
    time_zone: Option<String>,
    /// Start of an interval of `interval_ms`. With a `time_zone` the default is a local midnight.
    #[schemars(range(min = 0, max = 253_402_300_799_999_i64))]
    origin_ms: Option<i64>,
    /// Aggregate functions; default `avg`.
    #[serde(default)]
    functions: Vec<AggregateName>,
    /// Whether all devices are merged as if they were one.
    #[serde(default)]
    merged: bool,
}

/// An aggregate by its name.
struct AggregateName(Aggregate);

/// List of intervals.
#[derive(Serialize, JsonSchema)]
struct IntervalList {
    data: Vec<KeyInterval>,
    /// Nodes of the cluster that did not answer, whose telemetry is missing; omitted without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BTreeSet<String>")]
    missing_nodes: Option<BTreeSet<String>>,
}

/// One interval of one key.
#[derive(Serialize, JsonSchema)]
pub(super) struct KeyInterval {
    /// Device id; `null`: all devices of the query, merged.
    device: Option<String>,
    key: String,
    /// Start of the interval.
    ts_ms: i64,
    /// Values by function; `null` where there is none. `first` and `last` have any type. `min`,
    /// `max` and `sum` of whole numbers are whole, unless the sum exceeds 64 bits; booleans count
    /// as 0 and 1.
    values: Map<String, Value>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/v1/devices/{id}/telemetry/intervals",
            "aggregateTelemetry",
            intervals,
        )
        .role(Role::Viewer, EndpointScope::device("id"))
        .tag("telemetry")
        .path_parameter("id", "The device's id, percent-encoded.")
        .summary("Aggregate telemetry of a device")
        .parameters(&[
            KEYS,
            FROM_MS,
            TO_MS,
            INTERVAL_MS,
            INTERVAL,
            TIME_ZONE,
            WANTED,
        ])
        .response::<IntervalList>(200, "Intervals with values, ascending per key."),
        get(
            "/api/v1/device-groups/{id}/telemetry/intervals",
            "aggregateTelemetryOfGroup",
            group_intervals,
        )
        .role(
            Role::Viewer,
            EndpointScope::object(BackendObjectKind::DeviceGroup, "id"),
        )
        .tag("telemetry")
        .path_parameter("id", "The group's id, percent-encoded.")
        .summary("Aggregate telemetry of a device group")
        .parameters(&[
            KEYS,
            FROM_MS,
            TO_MS,
            INTERVAL_MS,
            INTERVAL,
            TIME_ZONE,
            WANTED,
            MERGED,
        ])
        .response::<IntervalList>(
            200,
            "Intervals, ascending per device and key; if merged, per key.",
        ),
        post("/api/v1/telemetry/query", "queryTelemetry", query_group)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("telemetry")
            .summary("Aggregate telemetry of several devices")
            .problem_response(404, "One of the devices, or the group, does not exist.")
            .request_body::<IntervalsQueryInput>()
            .response::<IntervalList>(
                200,
                "Intervals, ascending per device and key; if merged, per key.",
            ),
    ]
}

async fn intervals(call: ApiCall) -> ApiResult {
    let devices = vec![call.path("id").to_owned()];
    query_intervals(call, devices, false).await
}

async fn group_intervals(call: ApiCall) -> ApiResult {
    let devices = group_members(&call, call.path("id").to_owned()).await?;
    let is_merged = call.query.flag_value(MERGED).unwrap_or(false);
    query_intervals(call, devices, is_merged).await
}

/// The default end of a query.
fn end_or_now(from_ms: i64, to_ms: Option<i64>) -> i64 {
    to_ms.unwrap_or_else(|| (now_ms() as i64).max(from_ms))
}

fn interval_length(
    interval_ms: Option<i64>,
    unit: Option<CalendarUnit>,
) -> Result<IntervalLength, &'static str> {
    match (interval_ms, unit) {
        (None, None) => Ok(IntervalLength::All),
        (Some(ms), None) => Ok(IntervalLength::Ms(ms)),
        (None, Some(unit)) => Ok(IntervalLength::Calendar(unit)),
        (Some(_), Some(_)) => Err("interval: expected either interval or interval_ms."),
    }
}

async fn query_intervals(call: ApiCall, devices: Vec<String>, is_merged: bool) -> ApiResult {
    let Some(keys) = keys(&call)? else {
        return Err(ProblemDetails::invalid_parameter(
            KEYS.name,
            "keys: expected at least one.",
        ));
    };
    let query = interval_query(&call, devices, keys, is_merged)?;
    interval_response(&call, query).await
}

/// The query of a request with [`INTERVAL_PARAMETERS`].
pub(super) fn interval_query(
    call: &ApiCall,
    devices: Vec<String>,
    keys: Vec<String>,
    is_merged: bool,
) -> Result<IntervalQuery, ProblemDetails> {
    let from_ms = call.query.number_value(FROM_MS).map(|ms| ms as i64);
    let to_ms = call.query.number_value(TO_MS).map(|ms| ms as i64);
    let to_ms = end_or_now(from_ms.unwrap_or(0), to_ms);
    check_times(from_ms.unwrap_or(0), to_ms)?;
    let functions = match call.query.text_value(WANTED.name) {
        None => vec![Aggregate::Avg],
        Some(words) => words.split(',').filter_map(Aggregate::from_name).collect(),
    };
    let interval_ms = call.query.number_value(INTERVAL_MS).map(|ms| ms as i64);
    let unit = call.query.text_value(INTERVAL.name).map(|word| {
        CalendarUnit::from_name(word).ok_or_else(|| {
            let detail = format!(
                "interval is {word:?}; expected one of {}.",
                UNITS.join(", ")
            );
            ProblemDetails::invalid_parameter(INTERVAL.name, detail)
        })
    });
    let length = interval_length(interval_ms, unit.transpose()?);
    Ok(IntervalQuery {
        devices,
        keys,
        from_ms,
        to_ms,
        length: length
            .map_err(|detail| ProblemDetails::invalid_parameter(INTERVAL.name, detail))?,
        origin_ms: None,
        time_zone: call.query.owned_text(TIME_ZONE),
        functions,
        merged: is_merged,
    })
}

async fn query_group(mut call: ApiCall) -> ApiResult {
    let query: IntervalsQueryInput = call.body_json().await?;
    let to_ms = end_or_now(query.from_ms, query.to_ms);
    check_times(query.from_ms, to_ms)?;
    let devices = query.devices.as_ref().map_or(1, Vec::len);
    let group = query.device_group.as_ref().map_or(1, String::len);
    for (field, count, most) in [
        ("devices", devices, MAX_DEVICES),
        ("device_group", group, 256),
        ("keys", query.keys.len(), 256),
    ] {
        if !(1..=most).contains(&count) {
            let detail = format!("{field}: expected 1 to {most}, not {count}.");
            return Err(ProblemDetails::invalid_field(field, detail));
        }
    }
    for (field, number) in [
        ("from_ms", Some(query.from_ms)),
        ("to_ms", Some(to_ms)),
        ("interval_ms", query.interval_ms),
        ("origin_ms", query.origin_ms),
    ] {
        let least = i64::from(field == "interval_ms");
        let is_inside = |number| (least..=MAX_TIME_MS as i64).contains(&number);
        if let Some(number) = number.filter(|number| !is_inside(*number)) {
            let detail = format!("{field} is {number}; expected {least} to {MAX_TIME_MS}.");
            return Err(ProblemDetails::invalid_field(field, detail));
        }
    }
    let functions = match query.functions.as_slice() {
        [] => vec![Aggregate::Avg],
        names => names.iter().map(|name| name.0).collect(),
    };
    let devices = match (query.devices, query.device_group) {
        (Some(devices), None) => check_all_selected(&call, devices).await?,
        (None, Some(group)) => group_members(&call, group).await?,
        (Some(_), Some(_)) | (None, None) => {
            let detail = "devices: expected either devices or a device_group.";
            return Err(ProblemDetails::invalid_field("devices", detail));
        }
    };
    let length = interval_length(query.interval_ms, query.interval);
    let query = IntervalQuery {
        devices,
        keys: query.keys,
        from_ms: Some(query.from_ms),
        to_ms,
        length: length.map_err(|detail| ProblemDetails::invalid_field(INTERVAL.name, detail))?,
        origin_ms: query.origin_ms,
        time_zone: query.time_zone,
        functions,
        merged: query.merged,
    };
    interval_response(&call, query).await
}

/// The devices of a group.
async fn group_members(call: &ApiCall, group: String) -> Result<Vec<String>, ProblemDetails> {
    let selection = call.namespaces();
    device_groups::run_blocking(&call.app, move |groups| groups.members(&group, &selection)).await
}

/// The intervals of devices, separately or merged.
async fn interval_response(call: &ApiCall, query: IntervalQuery) -> ApiResult {
    let mut missing_nodes = BTreeSet::new();
    let data = read_cluster_intervals(call, query, &mut missing_nodes).await?;
    let is_cluster = call.app.program.cluster_backend().is_some();
    call::json_response(IntervalList {
        data,
        missing_nodes: is_cluster.then_some(missing_nodes),
    })
}

/// The intervals of all nodes of the cluster. Adds the names of those that did not answer.
pub(super) async fn read_cluster_intervals(
    call: &ApiCall,
    query: IntervalQuery,
    missing_nodes: &mut BTreeSet<String>,
) -> Result<Vec<KeyInterval>, ProblemDetails> {
    let functions = query.functions.clone();
    let read = run_on_all_nodes(&call.app, move |telemetry| telemetry.intervals(&query));
    let (rows, missing) = read.await?;
    missing_nodes.extend(missing);
    Ok(to_key_intervals(rows, &functions))
}

fn to_key_intervals(rows: Vec<IntervalRow>, functions: &[Aggregate]) -> Vec<KeyInterval> {
    let shown = |row: IntervalRow| {
        let names = functions.iter().map(|function| function.name().to_owned());
        KeyInterval {
            values: names.zip(row.values).collect(),
            device: row.device,
            key: row.key,
            ts_ms: row.ts_ms,
        }
    };
    rows.into_iter().map(shown).collect()
}

impl CalendarUnit {
    fn from_name(name: &str) -> Option<Self> {
        serde_json::from_value(Value::from(name)).ok()
    }
}

impl<'de> Deserialize<'de> for AggregateName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || D::Error::unknown_variant(&name, &Aggregate::NAMES);
        Aggregate::from_name(&name).map(Self).ok_or_else(unknown)
    }
}

impl JsonSchema for AggregateName {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AggregateName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "enum": Aggregate::NAMES})
    }
}
