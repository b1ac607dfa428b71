//! Telemetry and attributes on ThingsBoard's paths, for programs that read them there. Ids are the devices' own.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::devices;
use super::telemetry_question::{KEYS, ask, interval_ms, times_of};
use crate::access::{Role, now_ms};
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get};
use crate::parameters::{MAX_TIME_MS, Parameter, Shape, time_ms};
use crate::problem::Problem;
use crate::telemetry_tools::{CalendarUnit, Function, IntervalLength, IntervalQuery, RowQuery};

const DEFAULT_ROWS: u64 = 100;
const MAX_ROWS: u64 = 100_000;

const START: Parameter = time_ms(
    "startTs",
    "The first time, in milliseconds since 1970. Without it and `endTs`, the latest values are told.",
);
const END: Parameter = time_ms("endTs", "The time behind the last one.");
const INTERVAL: Parameter = Parameter {
    name: "interval",
    shape: Shape::Number(0, MAX_TIME_MS),
    about: "The length of an interval in milliseconds, with `agg`; 0 or nothing: one interval.",
};
const INTERVAL_TYPE: Parameter = Parameter {
    name: "intervalType",
    shape: Shape::Words(&["MILLISECONDS", "WEEK", "WEEK_ISO", "MONTH", "QUARTER"]),
    about: "A unit of the calendar in place of `interval`. A `WEEK` begins on Sunday, a `WEEK_ISO` on Monday.",
};
const TIME_ZONE: Parameter = Parameter {
    name: "timeZone",
    shape: Shape::Text,
    about: "The IANA time zone of the calendar, such as `Europe/Kyiv`; UTC without it.",
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
    about: "`DESC`: the newest first, which is the default. Intervals are always ascending.",
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
            .description("Latest values without `startTs` and `endTs`. Intervals of a fixed length begin at `startTs` and have the time of their middle, those of the calendar the time of their beginning.")
            .parameters(&[KEYS, START, END, INTERVAL, INTERVAL_TYPE, TIME_ZONE, AGG, LIMIT, ORDER, STRICT])
            .answers::<std::collections::BTreeMap<String, Vec<Timed>>>(200, "By key."),
        one("values/timeseries/history", "thingsboardHistory", |call| Box::pin(values(call)))
            .summary("A device's telemetry of a time range, as ThingsBoard has it")
            .parameters(&[KEYS, START, END, INTERVAL, INTERVAL_TYPE, TIME_ZONE, AGG, LIMIT, ORDER, STRICT])
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
    let is_given = call.query.text(KEYS.name).is_some();
    is_given.then(|| call.query.words(KEYS))
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

/// Values by their keys, as they are told.
struct Told {
    is_strict: bool,
    by_key: ByKey,
}

impl Told {
    fn put(&mut self, key: String, ts: i64, value: Value) {
        let value = json!({"ts": ts, "value": shown(value, self.is_strict)});
        let values = self.by_key.entry(key);
        if let Value::Array(values) = values.or_insert_with(|| Value::Array(Vec::new())) {
            values.push(value);
        }
    }
}

async fn values(call: Call) -> Outcome {
    let mut told = Told {
        is_strict: call.query.flag(STRICT).unwrap_or(false),
        by_key: ByKey::new(),
    };
    if call.query.number(START).is_none() && call.query.number(END).is_none() {
        put_latest(&call, &mut told).await?;
        return call::ok(told.by_key);
    }
    let times = times_of(&call, START, END)?;
    match call.query.text(AGG.name) {
        None | Some("NONE") => put_rows(&call, times, &mut told).await?,
        Some(name) => match Function::named(&name.to_ascii_lowercase()) {
            Some(function) => put_intervals(&call, times, function, &mut told).await?,
            None => {
                let detail = "agg: expected one of NONE, AVG, MIN, MAX, SUM, COUNT.";
                return Err(Problem::parameter(AGG.name, detail));
            }
        },
    }
    call::ok(told.by_key)
}

async fn put_latest(call: &Call, told: &mut Told) -> Result<(), Problem> {
    let (device, keys) = (call.path("id").to_owned(), keys(call));
    let wanted = keys.clone();
    let samples = ask(&call.app, move |tools| {
        tools.latest(&device, wanted.as_deref())
    });
    for sample in samples.await? {
        told.put(sample.key, sample.ts_ms, sample.value);
    }
    // A key without a value is told to have none.
    for key in keys.into_iter().flatten() {
        let none = json!([{"ts": now_ms(), "value": null}]);
        told.by_key.entry(key).or_insert(none);
    }
    Ok(())
}

fn is_ascending(call: &Call) -> bool {
    call.query.text(ORDER.name) == Some("ASC")
}

/// Of each key so many, where [`telemetry`](super::telemetry) has so many times.
async fn put_rows(
    call: &Call,
    (from_ms, to_ms): (i64, i64),
    told: &mut Told,
) -> Result<(), Problem> {
    let (device, keys) = (call.path("id").to_owned(), keys(call));
    let limit = call.query.number(LIMIT).unwrap_or(DEFAULT_ROWS) as usize;
    let newest_first = !is_ascending(call);
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
                newest_first,
            };
            tools.rows(&query, &mut |ts_ms, values| {
                rows.extend(values.into_iter().map(|(key, value)| (key, ts_ms, value)));
                true
            })?;
        }
        Ok(rows)
    });
    for (key, ts_ms, value) in rows.await? {
        told.put(key, ts_ms, value);
    }
    Ok(())
}

async fn put_intervals(
    call: &Call,
    times: (i64, i64),
    function: Function,
    told: &mut Told,
) -> Result<(), Problem> {
    let Some(keys) = keys(call) else {
        let detail = "keys: expected at least one, where agg is given.";
        return Err(Problem::parameter(KEYS.name, detail));
    };
    let (from_ms, to_ms) = times;
    let interval_ms = interval_ms(call, INTERVAL, times);
    let unit = match call.query.text(INTERVAL_TYPE.name) {
        Some("WEEK") => Some(CalendarUnit::WeekFromSunday),
        Some("WEEK_ISO") => Some(CalendarUnit::Week),
        Some("MONTH") => Some(CalendarUnit::Month),
        Some("QUARTER") => Some(CalendarUnit::Quarter),
        _ => None,
    };
    // Intervals of a fixed length have the time of their middle, as ThingsBoard's have.
    let middle_ms = match unit {
        Some(_) => 0,
        None => interval_ms / 2,
    };
    let query = IntervalQuery {
        devices: vec![call.path("id").to_owned()],
        keys,
        from_ms,
        to_ms,
        length: unit.map_or(IntervalLength::Ms(interval_ms), IntervalLength::Calendar),
        origin_ms: Some(from_ms),
        time_zone: call.query.owned(TIME_ZONE),
        functions: vec![function],
        merged: false,
    };
    // Ascending whatever `orderBy` says, as ThingsBoard answers them.
    for row in ask(&call.app, move |tools| tools.intervals(&query)).await? {
        let value = row.values.into_iter().next();
        if let Some(value) = value.filter(|value| !value.is_null()) {
            told.put(row.key, row.ts_ms + middle_ms, value);
        }
    }
    Ok(())
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
