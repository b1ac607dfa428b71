//! Events that devices have reported.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::devices::ask;
use super::telemetry_question::{FROM_MS, TO_MS};
use crate::access::Role;
use crate::call::{self, Call};
use crate::device_tools::DeviceEventQuery;
use crate::endpoint::{Endpoint, Outcome, get};
use crate::parameters::{Parameter, Shape};

const DEFAULT_EVENTS: u64 = 100;
const EVENT: Parameter = Parameter {
    name: "event",
    about: "Only events of this id.",
    shape: Shape::Text,
};
const BEFORE: Parameter = Parameter {
    name: "before",
    about: "Only events with a smaller number: the last `number` of the answer before.",
    shape: Shape::Number(0, (1 << 53) - 1),
};
const COUNT: Parameter = Parameter {
    name: "count",
    about: "Events at most; 100 without it.",
    shape: Shape::Number(1, 1000),
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
            .answers::<DeviceEvents>(200, "The newest first.")
            .problem(404, "There is no such device."),
    ]
}

async fn list(call: Call) -> Outcome {
    let time = |parameter: Parameter| {
        let ms = call.query.number(parameter);
        ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX))
    };
    let query = DeviceEventQuery {
        event: call.query.owned(EVENT),
        from_ms: time(FROM_MS),
        to_ms: time(TO_MS),
        before: call.query.number(BEFORE),
        limit: call.query.number(COUNT).unwrap_or(DEFAULT_EVENTS) as usize,
    };
    let id = call.path("id").to_owned();
    let device = id.clone();
    let events = ask(&call.app, move |tools| tools.events(&id, &query)).await?;
    call::ok(json!({"device": device, "events": events}))
}
