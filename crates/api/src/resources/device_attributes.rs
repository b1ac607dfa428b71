//! Attributes of devices by scope.

use devices::{AttributeScope, DeviceAttribute};
use serde_json::{Map, Value};

use super::devices::{fields_of, run_blocking};
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall, ListPage};
use crate::endpoint::{Endpoint, EndpointScope, get, put};
use crate::endpoint_place::EndpointPlace;
use crate::objects::{Preconditions, content_response, content_version};
use crate::problem_details::{ApiResult, ProblemDetails};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let of_scope = |endpoint: Endpoint| {
        endpoint
            .tag("devices")
            .path_parameter("id", "The device's id, percent-encoded.")
            .path_parameter("scope", "`client`, `shared` or `server`.")
            .place(EndpointPlace::Device("id"))
    };
    vec![
        of_scope(get(
            "/api/v1/devices/{id}/attributes/{scope}",
            "listDeviceAttributes",
            attributes,
        ))
        .role(Role::Viewer, EndpointScope::device("id"))
        .summary("Read attributes of a device")
        .unpaged::<DeviceAttribute>()
        .with_etag(),
        of_scope(put(
            "/api/v1/devices/{id}/attributes/{scope}",
            "setDeviceAttributes",
            set_attributes,
        ))
        .role(Role::Operator, EndpointScope::device("id"))
        .summary("Set attributes of a device")
        .description(
            "An object with the keys to set; `null` removes a key, others are kept. The version is that of all attributes of the scope.",
        )
        .request_body::<Map<String, Value>>()
        .empty_response(204, "Set.")
        .with_etag(),
    ]
}

/// The scope in the path.
fn scope(call: &ApiCall) -> Result<AttributeScope, ProblemDetails> {
    let mut scopes = AttributeScope::ALL.into_iter();
    let scope = scopes.find(|scope| scope.as_str() == call.path("scope"));
    scope.ok_or_else(|| ProblemDetails::not_found("Attributes are client, shared or server ones."))
}

async fn attributes(call: ApiCall) -> ApiResult {
    let (id, scope) = (call.path("id").to_owned(), scope(&call)?);
    let found = run_blocking(&call.app, move |devices| devices.attributes(&id, scope)).await?;
    content_response(
        call.headers(),
        &ListPage {
            data: found,
            next: None,
        },
    )
}

async fn set_attributes(mut call: ApiCall) -> ApiResult {
    let values = fields_of(call.body_value().await?)?;
    let (id, scope) = (call.path("id").to_owned(), scope(&call)?);
    let preconditions = Preconditions::read(call.headers())?;
    let subject = format!("{id} {}", call.path("scope"));
    run_blocking(&call.app, move |devices| {
        let check = |data: Vec<DeviceAttribute>| {
            let version = content_version(&ListPage { data, next: None });
            preconditions.check(Some(version))
        };
        devices.set_attributes_if(&id, scope, values, check)
    })
    .await??;
    audit::record_action(&call, "device.attributes", Some(&subject), None).await;
    call::no_content()
}
