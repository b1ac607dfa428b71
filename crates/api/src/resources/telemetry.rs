//! Telemetry of devices: latest values, rows, exports and live streams. Intervals are in
//! `telemetry_intervals`.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::telemetry_query::{
    FROM_MS, KEYS, TO_MS, keys, run_blocking, run_on_all_nodes, time_range,
};
use super::{telemetry_export, telemetry_feed};
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get};
use crate::endpoint_place::{EndpointPlace, MergedAnswer};
use crate::objects::BackendObjectKind;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType};
use crate::telemetry_backend::{
    DEFAULT_ROWS, DeviceRejectionList, RowQuery, TelemetryBackendError, TelemetryReader,
};

const MAX_ROWS: u64 = 100_000;
const ROWS: Parameter = Parameter {
    name: "rows",
    shape: ParameterType::Number(1, MAX_ROWS),
    description: "Maximum number of rows; default 1000.",
};
const ORDER: Parameter = Parameter {
    name: "order",
    shape: ParameterType::Words(&["asc", "desc"]),
    description: "`asc`: oldest first (default); `desc`: newest first.",
};
/// Latest values of a device.
#[derive(Serialize, JsonSchema)]
struct LatestValues {
    device: String,
    /// Values by key: `{"ts_ms", "value", "unit"}`. `unit` is that of the thing model; for a device of a relay endpoint also that of the
    /// endpoint, or the usual one for the key. It is omitted if it is unknown.
    values: Map<String, Value>,
    /// Nodes of the cluster that did not answer, whose telemetry is missing; omitted without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>")]
    missing_nodes: Option<Vec<String>>,
}

/// Rows of a device.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes the answer")]
struct TelemetryRows {
    device: String,
    rows: Vec<TelemetryRow>,
    /// Whether there may be more rows than requested.
    is_truncated: bool,
    /// Nodes of the cluster that did not answer, whose telemetry is missing; omitted without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>")]
    missing_nodes: Option<Vec<String>>,
}

/// Values of one time.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes the answer")]
struct TelemetryRow {
    ts_ms: i64,
    /// Values by key.
    values: Map<String, Value>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .role(Role::Viewer, EndpointScope::device("id"))
            .tag("telemetry")
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    vec![
        one(get("/api/v1/devices/{id}/telemetry/latest", "latestTelemetry", latest))
            .summary("Read latest values of a device")
            .parameters(&[KEYS])
            .response::<LatestValues>(200, "By key."),
        one(get("/api/v1/devices/{id}/telemetry", "listTelemetry", rows))
            .summary("Read telemetry of a device")
            .description("One row per time with its values. For the last 10 rows use `order=desc&rows=10`.")
            .parameters(&[KEYS, FROM_MS, TO_MS, ROWS, ORDER])
            .response::<TelemetryRows>(200, "The rows ordered by time."),
        one(delete("/api/v1/devices/{id}/telemetry", "deleteTelemetry", remove))
            .role(Role::Operator, EndpointScope::device("id"))
            .place(EndpointPlace::AllNodes(MergedAnswer::Executed))
            .summary("Delete telemetry of a device")
            .description("Deletes all telemetry, or that of the given keys and times. It disappears at once, and from the disk within an hour.")
            .parameters(&[KEYS, FROM_MS, TO_MS])
            .empty_response(204, "Deleted."),
        one(get("/api/v1/devices/{id}/telemetry/rejections", "listTelemetryRejections", rejections))
            .place(EndpointPlace::Device("id"))
            .summary("List rejected data of a device")
            .description(
                "Unparsable messages, values rejected by the thing model, and rows that were not stored, with the reason; \
                 since the node started, for the 4,096 devices with the most recent rejections.",
            )
            .response::<DeviceRejectionList>(200, "The recent rejections."),
        one(get("/api/v1/devices/{id}/telemetry/export", "exportTelemetry", telemetry_export::export))
            .summary("Export telemetry of a device")
            .description(
                "JSON lines, or CSV with `format=csv`, which needs `keys` as columns. `format=parquet` has a line for each value; \
                 a program built without the feature `parquet` responds 400. In a cluster, the file contains the rows of all nodes.",
            )
            .parameters(&[telemetry_export::FORMAT, KEYS, FROM_MS, TO_MS])
            .raw_response(200, "The rows ordered by time.", &telemetry_export::MEDIA_TYPES),
        get("/api/v1/device-groups/{id}/telemetry/export", "exportTelemetryOfGroup", telemetry_export::export_group)
            .role(Role::Viewer, EndpointScope::object(BackendObjectKind::DeviceGroup, "id"))
            .tag("telemetry")
            .path_parameter("id", "The group's id, percent-encoded.")
            .summary("Export telemetry of a device group")
            .description(
                "The rows of one device after another, in the order of their creation. JSON lines `{\"device\", \"ts_ms\", \"values\"}`, which \
                 `POST /api/v1/imports` accepts; CSV with the columns `device`, `ts_ms` and `keys`; or Parquet with a line for each value. \
                 The response is streamed; an incomplete one ends with a broken connection.",
            )
            .parameters(&[telemetry_export::FORMAT, KEYS, FROM_MS, TO_MS])
            .raw_response(200, "The rows of each device ordered by time.", &telemetry_export::MEDIA_TYPES),
        one(get("/api/v1/devices/{id}/telemetry/live", "watchTelemetry", telemetry_feed::stream_device))
            .summary("Stream telemetry of a device")
            .description(
                "Server-Sent Events named `telemetry`, or with `Upgrade: websocket` a WebSocket: `{\"device\", \"ts_ms\", \"values\"}`. \
                 `lost` is the number of rows skipped because the client was too slow. In a cluster, the rows of all nodes are sent. `missing_nodes` \
                 names those that do not answer, whenever they change; rows that arrive there meanwhile are not sent later.",
            )
            .parameters(&[KEYS])
            .raw_response(200, "The stream.", &["text/event-stream"])
            .empty_response(101, "A WebSocket.")
            .problem_response(429, "Too many streams are open."),
        get("/api/v1/telemetry/live", "watchTelemetryOfDevices", telemetry_feed::stream_devices)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("telemetry")
            .summary("Stream telemetry of several devices")
            .problem_response(404, "One of the devices does not exist.")
            .description("Like the stream of one device; at most 10000 devices.")
            .parameters(&[telemetry_feed::DEVICES, KEYS])
            .raw_response(200, "The stream.", &["text/event-stream"])
            .empty_response(101, "A WebSocket.")
            .problem_response(429, "Too many streams are open."),
    ]
}

/// Runs a query of the telemetry of all nodes of a cluster. Also returns the nodes that did not answer; `None`: the telemetry is that of this
/// node only.
async fn read_everywhere<T: Send + 'static>(
    call: &ApiCall,
    question: impl FnOnce(&dyn TelemetryReader) -> Result<T, TelemetryBackendError> + Send + 'static,
) -> Result<(T, Option<Vec<String>>), ProblemDetails> {
    // A node of an earlier version asks each node by itself.
    if call.app.program.cluster_backend().is_none() || call.is_from_node() {
        let answer = run_blocking(&call.app, move |telemetry| question(telemetry)).await?;
        return Ok((answer, None));
    }
    let (answer, missing_nodes) = run_on_all_nodes(&call.app, question).await?;
    Ok((answer, Some(missing_nodes)))
}

async fn latest(call: ApiCall) -> ApiResult {
    let (device, keys) = (call.path("id").to_owned(), keys(&call)?);
    let name = device.clone();
    let read = read_everywhere(&call, move |tools| tools.latest(&name, keys.as_deref()));
    let (samples, missing_nodes) = read.await?;
    let values: Map<String, Value> = samples
        .into_iter()
        .map(|sample| {
            let mut value = json!({"ts_ms": sample.ts_ms, "value": sample.value});
            if let Some(unit) = sample.unit {
                value["unit"] = unit.into();
            }
            (sample.key, value)
        })
        .collect();
    call::json_response(LatestValues {
        device,
        values,
        missing_nodes,
    })
}

async fn rows(call: ApiCall) -> ApiResult {
    let (from_ms, to_ms) = time_range(&call)?;
    let limit = call.query.number_value(ROWS);
    let limit = limit.map_or(DEFAULT_ROWS, |rows| rows as usize);
    let query = RowQuery {
        device: call.path("id").to_owned(),
        keys: keys(&call)?,
        from_ms,
        to_ms,
        limit,
        newest_first: call.query.text_value(ORDER.name) == Some("desc"),
    };
    let read = read_everywhere(&call, move |tools| {
        let device = Value::from(query.device.as_str());
        let mut text = format!("{{\"device\":{device},\"rows\":[").into_bytes();
        let rows = tools.write_rows(&query, b',', &mut text, &mut |_| true)?;
        if rows > 0 {
            // Each row is followed by a comma.
            text.pop();
        }
        let is_truncated = rows >= limit;
        text.extend_from_slice(format!("],\"is_truncated\":{is_truncated}").as_bytes());
        Ok(text)
    });
    let (mut text, missing_nodes) = read.await?;
    if let Some(missing_nodes) = missing_nodes {
        let names = Value::from(missing_nodes);
        text.extend_from_slice(format!(",\"missing_nodes\":{names}").as_bytes());
    }
    text.push(b'}');
    Ok(call::text_response("application/json", text))
}

async fn remove(call: ApiCall) -> ApiResult {
    let (from_ms, to_ms) = time_range(&call)?;
    let (device, keys) = (call.path("id").to_owned(), keys(&call)?);
    let recorded = json!({"keys": keys, "from_ms": from_ms, "to_ms": to_ms});
    let id = device.clone();
    run_blocking(&call.app, move |tools| {
        tools.delete(&device, keys.as_deref(), from_ms, to_ms)
    })
    .await?;
    audit::record_action(&call, "telemetry.delete", Some(&id), Some(recorded)).await;
    call::no_content()
}

async fn rejections(call: ApiCall) -> ApiResult {
    let device = call.path("id").to_owned();
    call::json_response(run_blocking(&call.app, move |tools| tools.rejections(&device)).await?)
}
