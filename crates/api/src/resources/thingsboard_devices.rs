//! Devices on ThingsBoard's paths, as far as programs look there for the id of a device whose name they know.

use schemars::JsonSchema;
use serde::Serialize;

use super::devices::{ask, no_device};
use crate::access::Role;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get};
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;

const NAME: Parameter = Parameter {
    name: "deviceName",
    shape: Shape::Text,
    about: "What ThingsBoard calls the name of a device, which is its id here. Needed.",
};

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EntityId {
    /// `DEVICE`
    entity_type: &'static str,
    /// To be put into paths.
    id: String,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Device {
    id: EntityId,
    created_time: u64,
    /// The device's id.
    name: String,
    /// The id of its product.
    #[serde(rename = "type")]
    product: String,
    /// Its name for people.
    label: String,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/tenant/devices", "thingsboardDeviceByName", by_name)
            .role(Role::Viewer)
            .tag("devices")
            .summary("A device by its name, as ThingsBoard has it")
            .parameters(&[NAME])
            .answers::<Device>(200, "It.")
            .problem(404, "There is no such device."),
        get("/api/device/{id}", "thingsboardDevice", by_id)
            .role(Role::Viewer)
            .tag("devices")
            .path_parameter("id", "The device's id, percent-encoded.")
            .summary("A device by its id, as ThingsBoard has it")
            .answers::<Device>(200, "It."),
    ]
}

async fn by_name(call: Call) -> Outcome {
    let name = call.query.text(NAME.name).ok_or_else(|| {
        let detail = "deviceName: expected the name of a device.";
        Problem::parameter(NAME.name, detail)
    })?;
    look(&call, name.to_owned()).await
}

async fn by_id(call: Call) -> Outcome {
    look(&call, call.path("id").to_owned()).await
}

async fn look(call: &Call, id: String) -> Outcome {
    let wanted = id.clone();
    let device = ask(&call.app, move |tools| tools.get(&wanted)).await?;
    let device = device.ok_or_else(|| no_device(&id))?.value;
    let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
    call::ok(Device {
        id: EntityId {
            entity_type: "DEVICE",
            id: text("id"),
        },
        created_time: device["created_at_ms"].as_u64().unwrap_or_default(),
        name: text("id"),
        product: text("product"),
        label: text("name"),
    })
}
