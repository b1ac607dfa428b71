//! Attributes of devices by scope.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::devices::{fields_of, run_blocking};
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, get, put};
use crate::problem_details::ApiResult;

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
        .summary("Read attributes of a device")
        .unpaged::<Attribute>(),
        of_scope(put(
            "/api/v1/devices/{id}/attributes/{scope}",
            "setDeviceAttributes",
            set_attributes,
        ))
        .role(Role::Operator)
        .summary("Set attributes of a device")
        .description("An object with the keys to set; `null` removes a key, others are kept.")
        .request_body::<Map<String, Value>>()
        .empty_response(204, "Set."),
    ]
}

async fn attributes(call: ApiCall) -> ApiResult {
    let (id, scope) = (call.path("id").to_owned(), call.path("scope").to_owned());
    let found = run_blocking(&call.app, move |tools| tools.attributes(&id, &scope)).await?;
    call::unpaged_list(found)
}

async fn set_attributes(mut call: ApiCall) -> ApiResult {
    let values = fields_of(call.body_value().await?)?;
    let (id, scope) = (call.path("id").to_owned(), call.path("scope").to_owned());
    let subject = format!("{id} {scope}");
    run_blocking(&call.app, move |tools| {
        tools.set_attributes(&id, &scope, values)
    })
    .await?;
    audit::record_action(&call, "device.attributes", Some(&subject), None).await;
    call::no_content()
}
