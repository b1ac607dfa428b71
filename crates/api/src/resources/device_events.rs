//! Events that devices have reported.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::devices::run_blocking;
use super::telemetry_query::{FROM_MS, TO_MS};
use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::device_backend::DeviceEventQuery;
use crate::endpoint::{ApiResult, Endpoint, get};
use crate::query_parameters::{Parameter, ParameterType};

const DEFAULT_EVENTS: u64 = 100;
const EVENT: Parameter = Parameter {
    name: "event",
    description: "Only events of this id.",
    shape: ParameterType::Text,
};
const BEFORE: Parameter = Parameter {
    name: "before",
    description: "Only events with a smaller number: the last `number` of the answer before.",
    shape: ParameterType::Number(0, (1 << 53) - 1),
};
const COUNT: Parameter = Parameter {
    name: "count",
    description: "Events at most; 100 without it.",
    shape: ParameterType::Number(1, 1000),
};

/// Events of a device.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes the answer")]
struct DeviceEvents {
    device: String,
    events: Vec<ReportedEvent>,
}

#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes the answer")]
struct ReportedEvent {
    /// Grows with each event of the device.
    number: u64,
    ts_ms: i64,
    /// The id of the event.
    event: String,
    data: Value,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/devices/{id}/events", "listDeviceEvents", list)
            .role(Role::Viewer)
            .tag("devices")
            .path_parameter("id", "The device's id, percent-encoded.")
            .summary("List events of a device")
            .description("Events the device has reported, the newest first. `devices.max_events_per_device` of them are kept.")
            .parameters(&[EVENT, FROM_MS, TO_MS, BEFORE, COUNT])
            .response::<DeviceEvents>(200, "The newest first.")
            .problem_response(404, "There is no such device."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let time = |parameter: Parameter| {
        let ms = call.query.number_value(parameter);
        ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX))
    };
    let query = DeviceEventQuery {
        event: call.query.owned_text(EVENT),
        from_ms: time(FROM_MS),
        to_ms: time(TO_MS),
        before: call.query.number_value(BEFORE),
        limit: call.query.number_value(COUNT).unwrap_or(DEFAULT_EVENTS) as usize,
    };
    let id = call.path("id").to_owned();
    let device = id.clone();
    let events = run_blocking(&call.app, move |tools| tools.events(&id, &query)).await?;
    call::json_response(json!({"device": device, "events": events}))
}
