//! Telemetry and attributes on ThingsBoard's paths, for programs that read them there. Ids are the devices' own.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::devices;
use super::telemetry::{KEYS, MAX_MS, ask};
use crate::access::{Role, now_ms};
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get};
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;
use crate::telemetry_tools::{IntervalQuery, IntervalRow, RowQuery};

const DEFAULT_ROWS: u64 = 100;
const MAX_ROWS: u64 = 100_000;

const START: Parameter = Parameter {
    name: "startTs",
    shape: Shape::Number(0, MAX_MS),
    about: "The first time, in milliseconds since 1970. Without it and `endTs`, the latest values are told.",
};
const END: Parameter = Parameter {
    name: "endTs",
    shape: Shape::Number(0, MAX_MS),
    about: "The time behind the last one.",
};
const INTERVAL: Parameter = Parameter {
    name: "interval",
    shape: Shape::Number(0, MAX_MS),
    about: "The length of an interval in milliseconds, with `agg`; 0 or nothing: one interval.",
};
const AGG: Parameter = Parameter {
    name: "agg",
    shape: Shape::Words(&["NONE", "AVG", "MIN", "MAX", "SUM", "COUNT"]),
    about: "What to tell of an interval. `NONE`, which is the default: values as they came.",
};
const LIMIT: Parameter = Parameter {
    name: "limit",
    shape: Shape::Number(1, MAX_ROWS),
    about: "Values of each key at most, where there is no `agg`; 100 without it.",
};
const ORDER: Parameter = Parameter {
    name: "orderBy",
    shape: Shape::Words(&["ASC", "DESC"]),
    about: "`DESC`: the newest first, which is the default.",
};
const STRICT: Parameter = Parameter {
    name: "useStrictDataTypes",
    shape: Shape::Flag,
    about: "`true`: numbers and bools as they are; otherwise every value is a text.",
};

/// A value of a key.
#[derive(Serialize, JsonSchema)]
struct Timed {
    ts: i64,
    value: Value,
}

type ByKey = Map<String, Value>;

/// An attribute.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Attribute {
    last_update_ts: u64,
    key: String,
    value: Value,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    const BASE: &str = "/api/plugins/telemetry/DEVICE/{id}";
    let one = |path: &str, id: &str, handler: fn(Call) -> Answering| {
        get(format!("{BASE}/{path}"), id, handler)
            .role(Role::Viewer)
            .tag("telemetry")
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    let scope = "`CLIENT_SCOPE`, `SHARED_SCOPE` or `SERVER_SCOPE`.";
    vec![
        one("keys/timeseries", "thingsboardKeys", |call| Box::pin(keys_of(call)))
            .summary("Keys of a device's telemetry, as ThingsBoard has it")
            .answers::<Vec<String>>(200, "Those that have a value."),
        one("values/timeseries", "thingsboardValues", |call| Box::pin(values(call)))
            .summary("A device's telemetry, as ThingsBoard has it")
            .description("Latest values without `startTs` and `endTs`. Intervals begin at `startTs` and are told with their middle.")
            .parameters(&[KEYS, START, END, INTERVAL, AGG, LIMIT, ORDER, STRICT])
            .answers::<std::collections::BTreeMap<String, Vec<Timed>>>(200, "By key."),
        one("keys/attributes", "thingsboardAttributeKeys", |call| Box::pin(attribute_keys(call)))
            .summary("Keys of a device's attributes, as ThingsBoard has it")
            .answers::<Vec<String>>(200, "Of all scopes."),
        one("keys/attributes/{scope}", "thingsboardScopedAttributeKeys", |call| {
            Box::pin(attribute_keys(call))
        })
        .path_parameter("scope", scope)
        .summary("Keys of a device's attributes of a scope, as ThingsBoard has it")
        .answers::<Vec<String>>(200, "Of this scope."),
        one("values/attributes", "thingsboardAttributes", |call| Box::pin(attributes(call)))
            .summary("A device's attributes, as ThingsBoard has it")
            .parameters(&[KEYS])
            .answers::<Vec<Attribute>>(200, "Of all scopes."),
        one("values/attributes/{scope}", "thingsboardScopedAttributes", |call| {
            Box::pin(attributes(call))
        })
        .path_parameter("scope", scope)
        .summary("A device's attributes of a scope, as ThingsBoard has it")
        .parameters(&[KEYS])
        .answers::<Vec<Attribute>>(200, "Of this scope."),
    ]
}

type Answering = std::pin::Pin<Box<dyn Future<Output = Outcome> + Send>>;

fn keys(call: &Call) -> Option<Vec<String>> {
    let keys = call.query.text(KEYS.name)?;
    let keys = keys.split(',').filter(|key| !key.is_empty());
    Some(keys.map(str::to_owned).collect())
}

async fn keys_of(call: Call) -> Outcome {
    let device = call.path("id").to_owned();
    let samples = ask(&call.app, move |tools| tools.latest(&device, None)).await?;
    let keys: Vec<_> = samples.into_iter().map(|sample| sample.key).collect();
    call::ok(keys)
}

fn shown(value: Value, is_strict: bool) -> Value {
    match value {
        value if is_strict => value,
        Value::Null | Value::String(_) => value,
        other => Value::String(other.to_string()),
    }
}

async fn values(call: Call) -> Outcome {
    let is_strict = call.query.flag(STRICT).unwrap_or(false);
    let (start, end) = (call.query.number(START), call.query.number(END));
    let (device, keys) = (call.path("id").to_owned(), keys(&call));
    let mut found = ByKey::new();
    let mut put = |key: String, ts: i64, value: Value| {
        let value = json!({"ts": ts, "value": shown(value, is_strict)});
        if let Value::Array(values) = found.entry(key).or_insert_with(|| Value::Array(Vec::new())) {
            values.push(value);
        }
    };
    if start.is_none() && end.is_none() {
        let wanted = keys.clone();
        let samples = ask(&call.app, move |tools| {
            tools.latest(&device, wanted.as_deref())
        });
        for sample in samples.await? {
            put(sample.key, sample.ts_ms, sample.value);
        }
        // A key without a value is told to have none.
        for key in keys.into_iter().flatten() {
            let none = json!([{"ts": now_ms(), "value": null}]);
            found.entry(key).or_insert(none);
        }
        return call::ok(found);
    }
    let (from_ms, to_ms) = (start.unwrap_or(0) as i64, end.unwrap_or(MAX_MS) as i64);
    if from_ms > to_ms {
        let detail = format!("endTs is {to_ms}; expected {from_ms} or more, which is startTs.");
        return Err(Problem::parameter(END.name, detail));
    }
    let is_ascending = call.query.text(ORDER.name) == Some("ASC");
    let function = match call.query.text(AGG.name) {
        None | Some("NONE") => None,
        Some("AVG") => Some(average as fn(&IntervalRow) -> Value),
        Some("MIN") => {
            Some((|row| number(row, |numbers| numbers.min)) as fn(&IntervalRow) -> Value)
        }
        Some("MAX") => {
            Some((|row| number(row, |numbers| numbers.max)) as fn(&IntervalRow) -> Value)
        }
        Some("SUM") => {
            Some((|row| number(row, |numbers| numbers.sum)) as fn(&IntervalRow) -> Value)
        }
        Some("COUNT") => Some((|row| row.count.into()) as fn(&IntervalRow) -> Value),
        Some(_) => {
            let detail = "agg: expected one of NONE, AVG, MIN, MAX, SUM, COUNT.";
            return Err(Problem::parameter(AGG.name, detail));
        }
    };
    let Some(function) = function else {
        let limit = call.query.number(LIMIT).unwrap_or(DEFAULT_ROWS) as usize;
        let rows = ask(&call.app, move |tools| {
            let keys = match keys {
                Some(keys) => keys,
                None => {
                    let samples = tools.latest(&device, None)?;
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
                    newest_first: !is_ascending,
                };
                tools.rows(&query, &mut |ts_ms, values| {
                    rows.extend(values.into_iter().map(|(key, value)| (key, ts_ms, value)));
                    true
                })?;
            }
            Ok(rows)
        });
        for (key, ts_ms, value) in rows.await? {
            put(key, ts_ms, value);
        }
        return call::ok(found);
    };
    let Some(keys) = keys else {
        let detail = "keys: expected at least one, where agg is given.";
        return Err(Problem::parameter(KEYS.name, detail));
    };
    let whole = (to_ms - from_ms).max(1);
    let interval = call.query.number(INTERVAL).filter(|ms| *ms > 0);
    let interval_ms = interval.map_or(whole, |ms| ms as i64);
    let query = IntervalQuery {
        devices: vec![device],
        keys,
        from_ms,
        to_ms,
        interval_ms,
        origin_ms: from_ms,
    };
    let mut rows = ask(&call.app, move |tools| tools.intervals(&query)).await?;
    if !is_ascending {
        rows.reverse();
    }
    for row in rows {
        let value = function(&row);
        if !value.is_null() {
            put(row.key, row.ts_ms + interval_ms / 2, value);
        }
    }
    call::ok(found)
}

fn number(row: &IntervalRow, of: fn(&crate::telemetry_tools::Numbers) -> f64) -> Value {
    row.numbers
        .as_ref()
        .map_or(Value::Null, |numbers| of(numbers).into())
}

fn average(row: &IntervalRow) -> Value {
    number(row, |numbers| numbers.sum / numbers.count.max(1) as f64)
}

/// Attributes of the scope in the path, or of all.
async fn attributes_of(call: &Call) -> Result<Vec<Attribute>, Problem> {
    let scopes = match call.path("scope") {
        "" => &["client", "shared", "server"][..],
        "CLIENT_SCOPE" => &["client"],
        "SHARED_SCOPE" => &["shared"],
        "SERVER_SCOPE" => &["server"],
        _ => {
            return Err(Problem::not_found(
                "The scopes are CLIENT_SCOPE, SHARED_SCOPE and SERVER_SCOPE.",
            ));
        }
    };
    let device = call.path("id").to_owned();
    let found = devices::ask(&call.app, move |tools| {
        let mut found = Vec::new();
        for scope in scopes {
            found.extend(tools.attributes(&device, scope)?);
        }
        Ok(found)
    });
    let found = found.await?.into_iter().map(|mut attribute| Attribute {
        last_update_ts: attribute["updated_ms"].as_u64().unwrap_or(0),
        key: attribute["key"].as_str().unwrap_or_default().to_owned(),
        value: attribute["value"].take(),
    });
    Ok(found.collect())
}

async fn attribute_keys(call: Call) -> Outcome {
    let found = attributes_of(&call).await?;
    call::ok(found.into_iter().map(|found| found.key).collect::<Vec<_>>())
}

async fn attributes(call: Call) -> Outcome {
    let keys = keys(&call);
    let mut found = attributes_of(&call).await?;
    if let Some(keys) = keys {
        found.retain(|attribute| keys.contains(&attribute.key));
    }
    call::ok(found)
}
