//! Writing and deleting telemetry and attributes of devices on ThingsBoard's paths.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use devices::AttributeScope;
use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::devices::{fields_of, run_blocking};
use super::telemetry_query::{self, KEYS};
use crate::access::Role;
use crate::audit;
use crate::blocking;
use crate::call::ApiCall;
use crate::device_http_backend::DeviceHttpError;
use crate::endpoint::{Endpoint, EndpointScope, delete, post};
use crate::endpoint_place::{EndpointPlace, MergedAnswer};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{MAX_TIME_MS, Parameter, ParameterType, time_parameter};

const ALL_DATA: Parameter = Parameter {
    name: "deleteAllDataForKeys",
    shape: ParameterType::Flag,
    description: "`true`: all values of the keys, regardless of time.",
};
const START: Parameter = time_parameter("startTs", "Start of the time range to delete.");
const END: Parameter = time_parameter("endTs", "End of the time range to delete, exclusive.");
const REWRITE_LATEST: Parameter = Parameter {
    name: "rewriteLatestIfDeleted",
    shape: ParameterType::Flag,
    description: "Ignored: the latest value is always a stored one.",
};
const DELETE_LATEST: Parameter = Parameter {
    name: "deleteLatest",
    shape: ParameterType::Flag,
    description: "Ignored, as `rewriteLatestIfDeleted`.",
};

/// `{"key": value}`, `{"ts": ms, "values": {..}}`, or an array of both.
#[derive(JsonSchema)]
#[serde(transparent)]
#[allow(dead_code, reason = "it only describes the body")]
struct TelemetryInput(Value);

pub(crate) fn endpoints() -> Vec<Endpoint> {
    const BASE: &str = "/api/plugins/telemetry";
    let of_device = |endpoint: Endpoint| {
        endpoint
            .role(Role::Operator, EndpointScope::device("id"))
            .place(EndpointPlace::Device("id"))
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    let attributes = |path: &str, id: &str| {
        of_device(post(format!("{BASE}/{path}"), id, set_attributes))
            .tag("devices")
            .path_parameter("scope", "`SERVER_SCOPE` or `SHARED_SCOPE`.")
            .summary("Set attributes (ThingsBoard)")
            .request_body::<Map<String, Value>>()
            .empty_response(200, "Set.")
    };
    let removal = |path: &str, id: &str| {
        of_device(delete(format!("{BASE}/{path}"), id, delete_attributes))
            .tag("devices")
            .path_parameter("scope", "`SERVER_SCOPE`, `SHARED_SCOPE` or `CLIENT_SCOPE`.")
            .summary("Delete attributes (ThingsBoard)")
            .parameters(&[KEYS])
            .empty_response(200, "Deleted.")
    };
    let telemetry = |path: &str, id: &str| {
        of_device(post(format!("{BASE}/{path}"), id, store_telemetry))
            .tag("telemetry")
            .path_parameter("scope", "Any word; ThingsBoard documents `ANY`.")
            .summary("Store telemetry (ThingsBoard)")
            .description("Processed like telemetry of the device: checked against the thing model, and may raise alarms.")
            .request_body::<TelemetryInput>()
            .empty_response(200, "Stored.")
            .problem_response(507, "The telemetry store is full.")
    };
    vec![
        attributes("{id}/{scope}", "thingsboardSetAttributes"),
        attributes("DEVICE/{id}/{scope}", "thingsboardSetDeviceAttributes"),
        attributes(
            "DEVICE/{id}/attributes/{scope}",
            "thingsboardSetDeviceAttributesV2",
        ),
        removal("{id}/{scope}", "thingsboardDeleteAttributes"),
        removal("DEVICE/{id}/{scope}", "thingsboardDeleteDeviceAttributes"),
        telemetry(
            "DEVICE/{id}/timeseries/{scope}",
            "thingsboardStoreTelemetry",
        ),
        telemetry(
            "DEVICE/{id}/timeseries/{scope}/{ttl}",
            "thingsboardStoreTelemetryWithTtl",
        )
        .path_parameter("ttl", "Ignored: the product defines the retention."),
        of_device(delete(
            format!("{BASE}/DEVICE/{{id}}/timeseries/delete"),
            "thingsboardDeleteTelemetry",
            delete_telemetry,
        ))
        .place(EndpointPlace::AllNodes(MergedAnswer::Executed))
        .tag("telemetry")
        .summary("Delete telemetry (ThingsBoard)")
        .parameters(&[KEYS, ALL_DATA, START, END, REWRITE_LATEST, DELETE_LATEST])
        .empty_response(200, "Deleted."),
    ]
}

fn empty_response() -> ApiResult {
    Ok(StatusCode::OK.into_response())
}

/// The scope in the path.
fn attribute_scope(call: &ApiCall) -> Result<AttributeScope, ProblemDetails> {
    match call.path("scope") {
        "SERVER_SCOPE" => Ok(AttributeScope::Server),
        "SHARED_SCOPE" => Ok(AttributeScope::Shared),
        "CLIENT_SCOPE" => Ok(AttributeScope::Client),
        other => {
            let detail = format!(
                "There is no scope {other:?}; expected SERVER_SCOPE, SHARED_SCOPE or CLIENT_SCOPE."
            );
            Err(ProblemDetails::bad_request(detail))
        }
    }
}

async fn set_attributes(mut call: ApiCall) -> ApiResult {
    let scope = attribute_scope(&call)?;
    if scope == AttributeScope::Client {
        let detail =
            "Only the device sets its client attributes; expected SERVER_SCOPE or SHARED_SCOPE.";
        return Err(ProblemDetails::bad_request(detail));
    }
    let values = fields_of(call.body_json_of_any_type().await?)?;
    write_attributes(&call, scope, values).await
}

async fn delete_attributes(call: ApiCall) -> ApiResult {
    let scope = attribute_scope(&call)?;
    let keys = call.query.comma_separated(KEYS);
    if keys.is_empty() {
        return Err(ProblemDetails::invalid_parameter(
            KEYS.name,
            "keys: expected at least one key.",
        ));
    }
    let values = keys.into_iter().map(|key| (key, Value::Null)).collect();
    write_attributes(&call, scope, values).await
}

async fn write_attributes(
    call: &ApiCall,
    scope: AttributeScope,
    values: Map<String, Value>,
) -> ApiResult {
    let id = call.path("id").to_owned();
    let subject = format!("{id} {}", scope.as_str());
    run_blocking(&call.app, move |tools| {
        tools.set_attributes(&id, scope, values)
    })
    .await?;
    audit::record_action(call, "device.attributes", Some(&subject), None).await;
    empty_response()
}

async fn store_telemetry(mut call: ApiCall) -> ApiResult {
    let max_bytes = call.app.config.get().max_body_bytes;
    let body = call.body_bytes(max_bytes).await?;
    let (hooks, id) = (
        call.app.device_http_backend.clone(),
        call.path("id").to_owned(),
    );
    let stored = blocking::run_blocking(
        move || hooks.store_telemetry(&id, &body),
        "The telemetry cannot be stored now.",
    );
    stored.await?.map_err(|error| match error {
        DeviceHttpError::UnknownDevice => super::devices::device_not_found(call.path("id")),
        other => super::device_http::to_problem(other),
    })?;
    audit::record_action(&call, "telemetry.store", Some(call.path("id")), None).await;
    empty_response()
}

async fn delete_telemetry(call: ApiCall) -> ApiResult {
    let keys = call.query.comma_separated(KEYS);
    if keys.is_empty() {
        return Err(ProblemDetails::invalid_parameter(
            KEYS.name,
            "keys: expected at least one key.",
        ));
    }
    let (from_ms, to_ms) = match call.query.flag_value(ALL_DATA) {
        Some(true) => (0, MAX_TIME_MS as i64),
        _ => telemetry_query::time_range_from(&call, START, END)?,
    };
    let device = call.path("id").to_owned();
    telemetry_query::run_blocking(&call.app, move |tools| {
        tools.delete(&device, Some(&keys), from_ms, to_ms)
    })
    .await?;
    audit::record_action(&call, "telemetry.delete", Some(call.path("id")), None).await;
    empty_response()
}
