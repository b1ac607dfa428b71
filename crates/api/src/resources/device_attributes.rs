//! Attributes of devices, by their scopes.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::devices::{ask, fields_of};
use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get, put};

#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
struct Attribute {
    key: String,
    value: Value,
    updated_ms: u64,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let of_scope = |endpoint: Endpoint| {
        endpoint
            .tag("devices")
            .path_parameter("id", "The device's id, percent-encoded.")
            .path_parameter("scope", "`client`, `shared` or `server`.")
    };
    vec![
        of_scope(get(
            "/api/v1/devices/{id}/attributes/{scope}",
            "listDeviceAttributes",
            attributes,
        ))
        .role(Role::Viewer)
        .summary("Attributes of a device")
        .list::<Attribute>(),
        of_scope(put(
            "/api/v1/devices/{id}/attributes/{scope}",
            "setDeviceAttributes",
            set_attributes,
        ))
        .role(Role::Operator)
        .summary("Set attributes of a device")
        .description("An object with the keys to be set; `null` removes one, others stay.")
        .body::<Map<String, Value>>()
        .answers_nothing(204, "Set."),
    ]
}

async fn attributes(call: Call) -> Outcome {
    let (id, scope) = (call.path("id").to_owned(), call.path("scope").to_owned());
    let found = ask(&call.app, move |tools| tools.attributes(&id, &scope)).await?;
    call::whole(found)
}

async fn set_attributes(mut call: Call) -> Outcome {
    let values = fields_of(call.value().await?)?;
    let (id, scope) = (call.path("id").to_owned(), call.path("scope").to_owned());
    let subject = format!("{id} {scope}");
    ask(&call.app, move |tools| {
        tools.set_attributes(&id, &scope, values)
    })
    .await?;
    audit::action(&call, "device.attributes", Some(&subject), None).await;
    call::done()
}
