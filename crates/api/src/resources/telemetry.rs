//! Telemetry of devices: latest values and rows, files, live. Intervals are in `telemetry_intervals`.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::telemetry_export;
use super::telemetry_feed;
use super::telemetry_question::{FROM_MS, KEYS, TO_MS, ask, keys, times};
use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, delete, get};
use crate::parameters::{Parameter, Shape};
use crate::telemetry_tools::{Refusals, RowQuery};

const MAX_ROWS: u64 = 100_000;
const DEFAULT_ROWS: u64 = 1000;
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
#[allow(dead_code, reason = "it only describes the answer")]
struct Rows {
    device: String,
    rows: Vec<Row>,
    /// Whether there may be more than were asked for.
    is_cut: bool,
}

/// Values of one time.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes the answer")]
struct Row {
    ts_ms: i64,
    /// By key.
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
        one(get("/api/v1/devices/{id}/telemetry/export", "exportTelemetry", telemetry_export::export))
            .summary("Telemetry of a device as a file")
            .description(
                "JSON lines, or CSV with `format=csv`, which needs `keys`: they are the columns. `format=parquet` has a line for each value; \
                 a program that was built without the feature `parquet` answers 400.",
            )
            .parameters(&[telemetry_export::FORMAT, KEYS, FROM_MS, TO_MS])
            .answers_raw(200, "In the order of their times.", &telemetry_export::MEDIA_TYPES),
        one(get("/api/v1/devices/{id}/telemetry/live", "watchTelemetry", telemetry_feed::of_device))
            .summary("Telemetry of a device as it comes")
            .description(
                "Server-Sent Events named `telemetry`, or with `Upgrade: websocket` a WebSocket: `{\"device\", \"ts_ms\", \"values\"}`. \
                 `lost` says that this listener was too slow for so many rows.",
            )
            .parameters(&[KEYS])
            .answers_raw(200, "The stream.", &["text/event-stream"])
            .answers_nothing(101, "A WebSocket.")
            .problem(429, "Too many streams are open."),
        get("/api/v1/telemetry/live", "watchTelemetryOfDevices", telemetry_feed::of_devices)
            .role(Role::Viewer)
            .tag("telemetry")
            .summary("Telemetry of some devices as it comes")
            .problem(404, "One of the devices is not there.")
            .description("As of one device; at most 10000 devices.")
            .parameters(&[telemetry_feed::DEVICES, KEYS])
            .answers_raw(200, "The stream.", &["text/event-stream"])
            .answers_nothing(101, "A WebSocket.")
            .problem(429, "Too many streams are open."),
    ]
}

async fn latest(call: Call) -> Outcome {
    let (device, keys) = (call.path("id").to_owned(), keys(&call)?);
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
        keys: keys(&call)?,
        from_ms,
        to_ms,
        limit,
        newest_first: call.query.text(ORDER.name) == Some("desc"),
    };
    let text = ask(&call.app, move |tools| {
        let device = Value::from(query.device.as_str());
        let mut text = format!("{{\"device\":{device},\"rows\":[").into_bytes();
        let rows = tools.write_rows(&query, b',', &mut text, &mut |_| true)?;
        if rows > 0 {
            // There is a comma behind each.
            text.pop();
        }
        let is_cut = rows >= limit;
        text.extend_from_slice(format!("],\"is_cut\":{is_cut}}}").as_bytes());
        Ok(text)
    });
    Ok(call::text("application/json", text.await?))
}

async fn remove(call: Call) -> Outcome {
    let (from_ms, to_ms) = times(&call)?;
    let (device, keys) = (call.path("id").to_owned(), keys(&call)?);
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
