//! Writing and deleting telemetry and attributes of devices on ThingsBoard's paths.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::devices::{ask, fields_of};
use super::telemetry_question::{self, KEYS};
use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::device_door::DoorProblem;
use crate::endpoint::{Endpoint, Outcome, delete, post};
use crate::parameters::{MAX_TIME_MS, Parameter, Shape, time_ms};
use crate::problem::Problem;

const ALL_DATA: Parameter = Parameter {
    name: "deleteAllDataForKeys",
    shape: Shape::Flag,
    about: "`true`: all values of the keys, whatever their time.",
};
const START: Parameter = time_ms("startTs", "The time of the first value that is deleted.");
const END: Parameter = time_ms("endTs", "The time behind the last value that is deleted.");
const REWRITE_LATEST: Parameter = Parameter {
    name: "rewriteLatestIfDeleted",
    shape: Shape::Flag,
    about: "Ignored: the latest value is always one that is stored.",
};
const DELETE_LATEST: Parameter = Parameter {
    name: "deleteLatest",
    shape: Shape::Flag,
    about: "Ignored, as `rewriteLatestIfDeleted`.",
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
            .role(Role::Operator)
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    let attributes = |path: &str, id: &str| {
        of_device(post(format!("{BASE}/{path}"), id, set_attributes))
            .tag("devices")
            .path_parameter("scope", "`SERVER_SCOPE` or `SHARED_SCOPE`.")
            .summary("Set attributes of a device, as ThingsBoard does")
            .body::<Map<String, Value>>()
            .answers_nothing(200, "Set.")
    };
    let removal = |path: &str, id: &str| {
        of_device(delete(format!("{BASE}/{path}"), id, delete_attributes))
            .tag("devices")
            .path_parameter("scope", "`SERVER_SCOPE`, `SHARED_SCOPE` or `CLIENT_SCOPE`.")
            .summary("Delete attributes of a device, as ThingsBoard does")
            .parameters(&[KEYS])
            .answers_nothing(200, "Deleted.")
    };
    let telemetry = |path: &str, id: &str| {
        of_device(post(format!("{BASE}/{path}"), id, store_telemetry))
            .tag("telemetry")
            .path_parameter("scope", "Any word; ThingsBoard's documentation says `ANY`.")
            .summary("Store telemetry of a device, as ThingsBoard does")
            .description("As if the device had reported it: it is checked against the thing model and may raise alarms.")
            .body::<TelemetryInput>()
            .answers_nothing(200, "Stored.")
            .problem(507, "The telemetry store has no room.")
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
        .path_parameter(
            "ttl",
            "Ignored: how long values are kept is said by the product.",
        ),
        of_device(delete(
            format!("{BASE}/DEVICE/{{id}}/timeseries/delete"),
            "thingsboardDeleteTelemetry",
            delete_telemetry,
        ))
        .tag("telemetry")
        .summary("Delete telemetry of a device, as ThingsBoard does")
        .parameters(&[KEYS, ALL_DATA, START, END, REWRITE_LATEST, DELETE_LATEST])
        .answers_nothing(200, "Deleted."),
    ]
}

fn done() -> Outcome {
    Ok(StatusCode::OK.into_response())
}

/// The scope in the path, as it is called here.
fn scope_of(call: &Call) -> Result<&'static str, Problem> {
    match call.path("scope") {
        "SERVER_SCOPE" => Ok("server"),
        "SHARED_SCOPE" => Ok("shared"),
        "CLIENT_SCOPE" => Ok("client"),
        other => {
            let detail = format!(
                "There is no scope {other:?}; expected SERVER_SCOPE, SHARED_SCOPE or CLIENT_SCOPE."
            );
            Err(Problem::bad_request(detail))
        }
    }
}

async fn set_attributes(mut call: Call) -> Outcome {
    let scope = scope_of(&call)?;
    if scope == "client" {
        let detail =
            "Only the device sets its client attributes; expected SERVER_SCOPE or SHARED_SCOPE.";
        return Err(Problem::bad_request(detail));
    }
    let values = fields_of(call.json_of_any_type().await?)?;
    write_attributes(&call, scope, values).await
}

async fn delete_attributes(call: Call) -> Outcome {
    let scope = scope_of(&call)?;
    let keys = call.query.words(KEYS);
    if keys.is_empty() {
        return Err(Problem::parameter(
            KEYS.name,
            "keys: expected at least one key.",
        ));
    }
    let values = keys.into_iter().map(|key| (key, Value::Null)).collect();
    write_attributes(&call, scope, values).await
}

async fn write_attributes(call: &Call, scope: &'static str, values: Map<String, Value>) -> Outcome {
    let id = call.path("id").to_owned();
    let subject = format!("{id} {scope}");
    ask(&call.app, move |tools| {
        tools.set_attributes(&id, scope, values)
    })
    .await?;
    audit::action(call, "device.attributes", Some(&subject), None).await;
    done()
}

async fn store_telemetry(mut call: Call) -> Outcome {
    let max_bytes = call.app.config.get().max_body_bytes;
    let body = call.bytes(max_bytes).await?;
    let (door, id) = (call.app.device_door.clone(), call.path("id").to_owned());
    let stored = call::blocking(
        move || door.report(&id, &body),
        "The telemetry cannot be stored now.",
    );
    stored.await?.map_err(|error| match error {
        DoorProblem::Nobody => super::devices::no_device(call.path("id")),
        other => super::device_api::problem(other),
    })?;
    audit::action(&call, "telemetry.store", Some(call.path("id")), None).await;
    done()
}

async fn delete_telemetry(call: Call) -> Outcome {
    let keys = call.query.words(KEYS);
    if keys.is_empty() {
        return Err(Problem::parameter(
            KEYS.name,
            "keys: expected at least one key.",
        ));
    }
    let (from_ms, to_ms) = match call.query.flag(ALL_DATA) {
        Some(true) => (0, MAX_TIME_MS as i64),
        _ => telemetry_question::times_of(&call, START, END)?,
    };
    let device = call.path("id").to_owned();
    telemetry_question::ask(&call.app, move |tools| {
        tools.delete(&device, Some(&keys), from_ms, to_ms)
    })
    .await?;
    audit::action(&call, "telemetry.delete", Some(call.path("id")), None).await;
    done()
}
