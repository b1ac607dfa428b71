//! Telemetry and attributes on ThingsBoard's paths, for programs that read them there. Ids are the
//! devices' own ids.

use ::devices::AttributeScope;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use series::Aggregate;
use wall_clock::now_ms;

use super::devices;
use super::telemetry_query::{KEYS, interval_ms, run_on_all_nodes, time_range_from};
use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::endpoint_place::EndpointPlace;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{MAX_TIME_MS, Parameter, ParameterType, time_parameter};
use crate::telemetry_backend::{CalendarUnit, IntervalLength, IntervalQuery, RowQuery};

/// ThingsBoard's names of aggregate functions; it has no first and last.
const AGGREGATIONS: &[&str] = &["NONE", "AVG", "MIN", "MAX", "SUM", "COUNT"];

const DEFAULT_ROWS: u64 = 100;
const MAX_ROWS: u64 = 100_000;

const START: Parameter = time_parameter(
    "startTs",
    "Start of the time range, in milliseconds since 1970. Without it and `endTs`, the latest values are returned.",
);
const END: Parameter = time_parameter("endTs", "End of the time range, exclusive.");
const INTERVAL: Parameter = Parameter {
    name: "interval",
    shape: ParameterType::Number(0, MAX_TIME_MS),
    description: "Length of an interval in milliseconds, with `agg`; 0 or absent: one interval.",
};
const INTERVAL_TYPE: Parameter = Parameter {
    name: "intervalType",
    shape: ParameterType::Words(&["MILLISECONDS", "WEEK", "WEEK_ISO", "MONTH", "QUARTER"]),
    description: "Calendar unit instead of `interval`. A `WEEK` begins on Sunday, a `WEEK_ISO` on Monday.",
};
const TIME_ZONE: Parameter = Parameter {
    name: "timeZone",
    shape: ParameterType::Text,
    description: "IANA time zone of the calendar, such as `Europe/Kyiv`; default UTC.",
};
const AGG: Parameter = Parameter {
    name: "agg",
    shape: ParameterType::Words(AGGREGATIONS),
    description: "Aggregate function. `NONE` (default): stored values.",
};
const LIMIT: Parameter = Parameter {
    name: "limit",
    shape: ParameterType::Number(1, MAX_ROWS),
    description: "Maximum number of values per key without `agg`; default 100.",
};
const ORDER: Parameter = Parameter {
    name: "orderBy",
    shape: ParameterType::Words(&["ASC", "DESC"]),
    description: "`DESC`: newest first (default). Intervals are always ascending.",
};
const STRICT: Parameter = Parameter {
    name: "useStrictDataTypes",
    shape: ParameterType::Flag,
    description: "`true`: numbers and booleans keep their type; otherwise every value is a string.",
};

/// Value of a key with its time.
#[derive(Serialize, JsonSchema)]
struct TimedValue {
    ts: i64,
    value: Value,
}

type MapByKey = Map<String, Value>;

/// An attribute.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ThingsboardAttribute {
    last_update_ts: u64,
    key: String,
    value: Value,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    const BASE: &str = "/api/plugins/telemetry/DEVICE/{id}";
    let one = |path: &str, id: &str, handler: fn(ApiCall) -> ResponseFuture| {
        get(format!("{BASE}/{path}"), id, handler)
            .role(Role::Viewer, EndpointScope::device("id"))
            .tag("telemetry")
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    let scope = "`CLIENT_SCOPE`, `SHARED_SCOPE` or `SERVER_SCOPE`.";
    vec![
        one("keys/timeseries", "thingsboardKeys", |call| Box::pin(keys_of(call)))
            .summary("List telemetry keys (ThingsBoard)")
            .response::<Vec<String>>(200, "Keys that have a value."),
        one("values/timeseries", "thingsboardValues", |call| Box::pin(values(call)))
            .summary("Read telemetry (ThingsBoard)")
            .description("Latest values without `startTs` and `endTs`. Intervals of fixed length begin at `startTs` and are dated at their middle, calendar intervals at their start.")
            .parameters(&[KEYS, START, END, INTERVAL, INTERVAL_TYPE, TIME_ZONE, AGG, LIMIT, ORDER, STRICT])
            .response::<std::collections::BTreeMap<String, Vec<TimedValue>>>(200, "By key."),
        one("values/timeseries/history", "thingsboardHistory", |call| Box::pin(values(call)))
            .summary("Read telemetry of a time range (ThingsBoard)")
            .parameters(&[KEYS, START, END, INTERVAL, INTERVAL_TYPE, TIME_ZONE, AGG, LIMIT, ORDER, STRICT])
            .response::<std::collections::BTreeMap<String, Vec<TimedValue>>>(200, "By key."),
        one("keys/attributes", "thingsboardAttributeKeys", |call| Box::pin(attribute_keys(call)))
            .place(EndpointPlace::Device("id"))
            .summary("List attribute keys (ThingsBoard)")
            .response::<Vec<String>>(200, "Keys of all scopes."),
        one("keys/attributes/{scope}", "thingsboardScopedAttributeKeys", |call| {
            Box::pin(attribute_keys(call))
        })
        .place(EndpointPlace::Device("id"))
        .path_parameter("scope", scope)
        .summary("List attribute keys of a scope (ThingsBoard)")
        .response::<Vec<String>>(200, "Keys of this scope."),
        one("values/attributes", "thingsboardAttributes", |call| Box::pin(attributes(call)))
            .place(EndpointPlace::Device("id"))
            .summary("Read attributes (ThingsBoard)")
            .parameters(&[KEYS])
            .response::<Vec<ThingsboardAttribute>>(200, "Attributes of all scopes."),
        one("values/attributes/{scope}", "thingsboardScopedAttributes", |call| {
            Box::pin(attributes(call))
        })
        .place(EndpointPlace::Device("id"))
        .path_parameter("scope", scope)
        .summary("Read attributes of a scope (ThingsBoard)")
        .parameters(&[KEYS])
        .response::<Vec<ThingsboardAttribute>>(200, "Attributes of this scope."),
    ]
}

type ResponseFuture = std::pin::Pin<Box<dyn Future<Output = ApiResult> + Send>>;

fn keys(call: &ApiCall) -> Option<Vec<String>> {
    let is_given = call.query.text_value(KEYS.name).is_some();
    is_given.then(|| call.query.comma_separated(KEYS))
}

async fn keys_of(call: ApiCall) -> ApiResult {
    let device = call.path("id").to_owned();
    let read = run_on_all_nodes(&call.app, move |telemetry| telemetry.latest(&device, None));
    let (samples, missing_nodes) = read.await?;
    let keys: Vec<_> = samples.into_iter().map(|sample| sample.key).collect();
    call::with_missing_nodes(call::json_response(keys), &missing_nodes)
}

fn thingsboard_value(value: Value, is_strict: bool) -> Value {
    match value {
        value if is_strict => value,
        Value::Null | Value::String(_) => value,
        other => Value::String(other.to_string()),
    }
}

/// Values by key.
struct ValuesByKey {
    is_strict: bool,
    by_key: MapByKey,
}

impl ValuesByKey {
    fn append_value(&mut self, key: String, ts: i64, value: Value) {
        let value = json!({"ts": ts, "value": thingsboard_value(value, self.is_strict)});
        let values = self.by_key.entry(key);
        if let Value::Array(values) = values.or_insert_with(|| Value::Array(Vec::new())) {
            values.push(value);
        }
    }
}

async fn values(call: ApiCall) -> ApiResult {
    let mut values = ValuesByKey {
        is_strict: call.query.flag_value(STRICT).unwrap_or(false),
        by_key: MapByKey::new(),
    };
    if call.query.number_value(START).is_none() && call.query.number_value(END).is_none() {
        let missing_nodes = append_latest(&call, &mut values).await?;
        return call::with_missing_nodes(call::json_response(values.by_key), &missing_nodes);
    }
    let times = time_range_from(&call, START, END)?;
    let aggregate = parse_aggregation(call.query.text_value(AGG.name))
        .map_err(|detail| ProblemDetails::invalid_parameter(AGG.name, detail))?;
    let missing_nodes = match aggregate {
        None => append_rows(&call, times, &mut values).await?,
        Some(aggregate) => append_intervals(&call, times, aggregate, &mut values).await?,
    };
    call::with_missing_nodes(call::json_response(values.by_key), &missing_nodes)
}

/// The aggregate with ThingsBoard's name; `None` stands for stored values.
pub(super) fn parse_aggregation(name: Option<&str>) -> Result<Option<Aggregate>, String> {
    let name = match name {
        None | Some("" | "NONE") => return Ok(None),
        Some(name) => name,
    };
    let known = AGGREGATIONS
        .contains(&name)
        .then(|| name.to_ascii_lowercase());
    match known.and_then(|name| Aggregate::from_name(&name)) {
        Some(aggregate) => Ok(Some(aggregate)),
        None => Err(format!(
            "agg: {name:?} is unknown; expected one of {}.",
            AGGREGATIONS.join(", ")
        )),
    }
}

/// Returns the nodes that did not answer, as the other functions do that append values.
async fn append_latest(
    call: &ApiCall,
    values: &mut ValuesByKey,
) -> Result<Vec<String>, ProblemDetails> {
    let (device, keys) = (call.path("id").to_owned(), keys(call));
    let wanted = keys.clone();
    let read = run_on_all_nodes(&call.app, move |telemetry| {
        telemetry.latest(&device, wanted.as_deref())
    });
    let (samples, missing_nodes) = read.await?;
    for sample in samples {
        values.append_value(sample.key, sample.ts_ms, sample.value);
    }
    // A key without a value is returned without values.
    for key in keys.into_iter().flatten() {
        let none = json!([{"ts": now_ms(), "value": null}]);
        values.by_key.entry(key).or_insert(none);
    }
    Ok(missing_nodes)
}

fn is_ascending(call: &ApiCall) -> bool {
    call.query.text_value(ORDER.name) == Some("ASC")
}

/// Appends up to the limit of values per key; [`telemetry`](super::telemetry) limits the number of
/// times instead.
async fn append_rows(
    call: &ApiCall,
    (from_ms, to_ms): (i64, i64),
    values: &mut ValuesByKey,
) -> Result<Vec<String>, ProblemDetails> {
    let (device, keys) = (call.path("id").to_owned(), keys(call));
    let limit = call.query.number_value(LIMIT).unwrap_or(DEFAULT_ROWS) as usize;
    let newest_first = !is_ascending(call);
    let read = run_on_all_nodes(&call.app, move |telemetry| {
        let keys = match keys {
            Some(keys) => keys,
            None => {
                let samples = telemetry.latest(&device, None)?;
                samples.into_iter().map(|sample| sample.key).collect()
            }
        };
        let mut rows = Vec::new();
        for key in keys {
            let query = RowQuery {
                device: device.clone(),
                keys: Some(vec![key]),
                from_ms,
                to_ms,
                limit,
                newest_first,
            };
            telemetry.rows(&query, &mut |ts_ms, values| {
                rows.extend(values.into_iter().map(|(key, value)| (key, ts_ms, value)));
                true
            })?;
        }
        Ok(rows)
    });
    let (rows, missing_nodes) = read.await?;
    for (key, ts_ms, value) in rows {
        values.append_value(key, ts_ms, value);
    }
    Ok(missing_nodes)
}

async fn append_intervals(
    call: &ApiCall,
    times: (i64, i64),
    aggregate: Aggregate,
    values: &mut ValuesByKey,
) -> Result<Vec<String>, ProblemDetails> {
    let Some(keys) = keys(call) else {
        let detail = "keys: expected at least one, where agg is given.";
        return Err(ProblemDetails::invalid_parameter(KEYS.name, detail));
    };
    let (from_ms, to_ms) = times;
    let interval_ms = interval_ms(call, INTERVAL, times);
    let unit = match call.query.text_value(INTERVAL_TYPE.name) {
        Some("WEEK") => Some(CalendarUnit::WeekFromSunday),
        Some("WEEK_ISO") => Some(CalendarUnit::Week),
        Some("MONTH") => Some(CalendarUnit::Month),
        Some("QUARTER") => Some(CalendarUnit::Quarter),
        _ => None,
    };
    // Intervals of fixed length are dated at their middle, as in ThingsBoard.
    let middle_ms = match unit {
        Some(_) => 0,
        None => interval_ms / 2,
    };
    let query = IntervalQuery {
        devices: vec![call.path("id").to_owned()],
        keys,
        from_ms: Some(from_ms),
        to_ms,
        length: unit.map_or(IntervalLength::Ms(interval_ms), IntervalLength::Calendar),
        origin_ms: Some(from_ms),
        time_zone: call.query.owned_text(TIME_ZONE),
        functions: vec![aggregate],
        merged: false,
    };
    // Ascending regardless of `orderBy`, as in ThingsBoard.
    let read = run_on_all_nodes(&call.app, move |telemetry| telemetry.intervals(&query));
    let (rows, missing_nodes) = read.await?;
    for row in rows {
        let value = row.values.into_iter().next();
        if let Some(value) = value.filter(|value| !value.is_null()) {
            values.append_value(row.key, row.ts_ms + middle_ms, value);
        }
    }
    Ok(missing_nodes)
}

/// Reads the attributes of the scope in the path, or of all scopes.
async fn read_attributes(call: &ApiCall) -> Result<Vec<ThingsboardAttribute>, ProblemDetails> {
    let scopes = match call.path("scope") {
        "" => &AttributeScope::ALL[..],
        "CLIENT_SCOPE" => &[AttributeScope::Client],
        "SHARED_SCOPE" => &[AttributeScope::Shared],
        "SERVER_SCOPE" => &[AttributeScope::Server],
        _ => {
            return Err(ProblemDetails::not_found(
                "The scopes are CLIENT_SCOPE, SHARED_SCOPE and SERVER_SCOPE.",
            ));
        }
    };
    let device = call.path("id").to_owned();
    let found = devices::run_blocking(&call.app, move |tools| {
        let mut found = Vec::new();
        for scope in scopes {
            found.extend(tools.attributes(&device, *scope)?);
        }
        Ok(found)
    });
    let found = found
        .await?
        .into_iter()
        .map(|attribute| ThingsboardAttribute {
            last_update_ts: attribute.updated_at_ms,
            key: attribute.key,
            value: attribute.value,
        });
    Ok(found.collect())
}

async fn attribute_keys(call: ApiCall) -> ApiResult {
    let found = read_attributes(&call).await?;
    call::json_response(found.into_iter().map(|found| found.key).collect::<Vec<_>>())
}

async fn attributes(call: ApiCall) -> ApiResult {
    let keys = keys(&call);
    let mut found = read_attributes(&call).await?;
    if let Some(keys) = keys {
        found.retain(|attribute| keys.contains(&attribute.key));
    }
    call::json_response(found)
}
