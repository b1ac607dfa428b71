//! Events reported by devices.

use devices::{DeviceEvent, DeviceEventFilter};
use schemars::JsonSchema;
use serde::Serialize;

use super::devices::run_blocking;
use super::telemetry_query::{FROM_MS, TO_MS};
use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::endpoint_place::EndpointPlace;
use crate::problem_details::ApiResult;
use crate::query_parameters::{Parameter, ParameterType};

const DEFAULT_EVENTS: u64 = 100;
const EVENT: Parameter = Parameter {
    name: "event",
    description: "Event id.",
    shape: ParameterType::Text,
};
const BEFORE: Parameter = Parameter {
    name: "before",
    description: "Upper bound of `number`, exclusive: the last `number` of the previous response.",
    shape: ParameterType::Number(0, (1 << 53) - 1),
};
const COUNT: Parameter = Parameter {
    name: "count",
    description: "Maximum number of events; default 100.",
    shape: ParameterType::Number(1, 1000),
};

/// Events of a device.
#[derive(Serialize, JsonSchema)]
struct DeviceEvents {
    device: String,
    events: Vec<DeviceEvent>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/devices/{id}/events", "listDeviceEvents", list)
            .role(Role::Viewer, EndpointScope::device("id"))
            .tag("devices")
            .path_parameter("id", "The device's id, percent-encoded.")
            .place(EndpointPlace::Device("id"))
            .summary("List events of a device")
            .description("Events reported by the device, newest first. The node keeps the last `devices.max_events_per_device`.")
            .parameters(&[EVENT, FROM_MS, TO_MS, BEFORE, COUNT])
            .response::<DeviceEvents>(200, "The events, newest first.")
            .problem_response(404, "The device does not exist."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let time = |parameter: Parameter| {
        let ms = call.query.number_value(parameter);
        ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX))
    };
    let query = DeviceEventFilter {
        event: call.query.owned_text(EVENT),
        from_ms: time(FROM_MS),
        to_ms: time(TO_MS),
        before: call.query.number_value(BEFORE),
        limit: call.query.number_value(COUNT).unwrap_or(DEFAULT_EVENTS) as usize,
    };
    let id = call.path("id").to_owned();
    let device = id.clone();
    let events = run_blocking(&call.app, move |tools| tools.events(&id, &query)).await?;
    call::json_response(DeviceEvents { device, events })
}
