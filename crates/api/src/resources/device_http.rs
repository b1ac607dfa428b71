//! The HTTP API for devices on ThingsBoard's paths. The access token in the path identifies the
//! device.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use serde_json::{Map, Value};

use crate::access::EndpointAccess;
use crate::blocking;
use crate::call::{self, ApiCall};
use crate::connection_tracker::LongRequestKind;
use crate::device_http_backend::{
    DeviceCaller, DeviceHttpBackend, DeviceHttpError, DevicePostKind, NextCommand,
    PendingDeviceCommand, RequestedAttributes,
};
use crate::endpoint::{Endpoint, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType};

const CLIENT_KEYS: Parameter = Parameter {
    name: "clientKeys",
    shape: ParameterType::Text,
    description: "Keys of client attributes, separated by commas.",
};
const SHARED_KEYS: Parameter = Parameter {
    name: "sharedKeys",
    shape: ParameterType::Text,
    description: "Keys of shared attributes, separated by commas.",
};

const TIMEOUT: Parameter = Parameter {
    name: "timeout",
    description: "Maximum wait in milliseconds, at most 600,000; default 20,000.",
    shape: ParameterType::Number(0, 3_600_000),
};
const TIMEOUT_MS: u64 = 20_000;
/// Maximum wait of a long poll, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 600_000;

fn bounded_timeout(asked_ms: Option<u64>) -> Duration {
    Duration::from_millis(asked_ms.unwrap_or(TIMEOUT_MS).min(MAX_TIMEOUT_MS))
}

/// Additional time that a long poll may take beyond `http.request_timeout_s`.
pub(crate) fn long_poll_timeout(request: &axum::extract::Request) -> Option<Duration> {
    let uri = request.uri();
    let path = uri.path().strip_prefix("/api/v1/")?;
    let token = path
        .strip_suffix("/rpc")
        .or_else(|| path.strip_suffix("/attributes/updates"))?;
    if request.method() != axum::http::Method::GET || token.contains('/') {
        return None;
    }
    let mut fields = uri.query().unwrap_or_default().split('&');
    let answer = fields.find_map(|field| field.strip_prefix("timeout="));
    Some(bounded_timeout(answer.and_then(|text| text.parse().ok())))
}

/// What all routes of devices with a token in the path have in common.
pub(super) fn of_device(endpoint: Endpoint) -> Endpoint {
    endpoint
            .access(EndpointAccess::Device)
            .tag("devices")
            .path_parameter("token", "Access token of the device.")
            .problem_response(401, "No device has this token, or the device may not connect.")
            .problem_response(
                429,
                "Too many requests of this device or from this address at once, or too many with tokens that no device has.",
            )
            .problem_response(
                503,
                "The node is overloaded; retry after the time in Retry-After.",
            )
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        of_device(post("/api/v1/{token}/telemetry", "postTelemetry", telemetry))
            .summary("Post telemetry of a device")
            .description("`{\"key\": value}`, `{\"ts\": ms, \"values\": {..}}`, or an array of both. The response has no body.")
            .raw_request_body(&["application/json"])
            .empty_response(200, "The data was accepted.")
            .problem_response(507, "The telemetry store is full. The data was not stored, or only in part."),
        of_device(post("/api/v1/{token}/attributes", "postAttributes", attributes))
            .summary("Post client attributes (device)")
            .raw_request_body(&["application/json"])
            .empty_response(200, "The attributes were accepted."),
        of_device(get("/api/v1/{token}/attributes", "getAttributes", requested_attributes))
            .summary("Read attributes (device)")
            .description("Without keys, all.")
            .parameters(&[CLIENT_KEYS, SHARED_KEYS])
            .response::<RequestedAttributes>(200, "Attributes by scope and key."),
        of_device(get(
            "/api/v1/{token}/attributes/updates",
            "awaitAttributes",
            attribute_update,
        ))
        .summary("Wait for a change of shared attributes")
        .description(
            "The first change from now on: values by key, and the keys of removed attributes as `deleted`. Changes between two requests are not returned; read the attributes to detect them.",
        )
        .parameters(&[TIMEOUT])
        .response::<Map<String, Value>>(200, "The change.")
        .problem_response(408, "There was no change within the wait."),
        of_device(get("/api/v1/{token}/rpc", "takeCommand", next_command))
            .summary("Get the next command (device)")
            .description("Waits for a command. It counts as sent with the response.")
            .parameters(&[TIMEOUT])
            .response::<PendingDeviceCommand>(200, "The command; post the result under its `id`.")
            .problem_response(408, "There was no command within the wait."),
        of_device(post("/api/v1/{token}/rpc/{id}", "answerCommand", answer))
            .path_parameter("id", "Id of the command.")
            .summary("Post the result of a command (device)")
            .description("JSON or text.")
            .raw_request_body(&["application/json"])
            .empty_response(200, "The result was accepted."),
        of_device(post("/api/v1/{token}/rpc", "callPlatform", call_platform))
            .summary("Call the platform (device)")
            .description("`{\"method\": \"getCurrentTime\", \"params\": {}}`")
            .raw_request_body(&["application/json"])
            .response::<Value>(200, "The result of the method."),
        of_device(post("/api/v1/{token}/claim", "offerClaim", offer))
            .summary("Allow claiming of the device (device)")
            .description("`{\"secretKey\": \"..\", \"durationMs\": 60000}`; both are optional.")
            .raw_request_body(&["application/json"])
            .empty_response(200, "The device can be claimed."),
        post("/api/v1/provision", "provisionDevice", provision)
            .access(EndpointAccess::Device)
            .tag("devices")
            .summary("Register a device (device)")
            .description(
                "`{\"provisionDeviceKey\", \"provisionDeviceSecret\", \"deviceName\", ..}`; `status` contains the result.",
            )
            .raw_request_body(&["application/json"])
            .response::<Map<String, Value>>(200, "`status` is `SUCCESS` or `FAILURE`.")
            .problem_response(429, "Too many concurrent requests of devices, or too many failures."),
    ]
}

pub(super) fn to_problem(problem: DeviceHttpError) -> ProblemDetails {
    match problem {
        DeviceHttpError::UnknownDevice => {
            ProblemDetails::unauthorized("No enabled device has this token.")
        }
        DeviceHttpError::Malformed(detail) => ProblemDetails::bad_request(format!("{detail}.")),
        DeviceHttpError::Busy => ProblemDetails::busy(1, "The node is overloaded."),
        DeviceHttpError::StorageFull => ProblemDetails::storage_full(
            "The telemetry store is full; the disk is full, or below telemetry.min_free_bytes.",
        ),
        DeviceHttpError::QuotaReached => ProblemDetails::storage_full(
            "The quota telemetry_megabytes of the namespace is reached; delete telemetry, or have a node-wide admin raise \
             the quota.",
        ),
        DeviceHttpError::Unavailable(detail) => ProblemDetails::unavailable(format!("{detail}.")),
    }
}

/// Runs a request on a thread that may block, within the limit on concurrent device requests.
pub(super) async fn run_blocking<T: Send + 'static>(
    call: &ApiCall,
    question: impl FnOnce(&dyn DeviceHttpBackend, &DeviceCaller) -> Result<T, DeviceHttpError>
    + Send
    + 'static,
) -> Result<T, ProblemDetails> {
    let app = &call.app;
    let caller = DeviceCaller {
        token: call.path("token").to_owned(),
    };
    let hooks = app.device_http_backend.clone();
    let ask = move || question(&*hooks, &caller);
    let answer = blocking::run_blocking(ask, "The request cannot be processed now.").await?;
    if let Err(DeviceHttpError::UnknownDevice) = &answer {
        // A device that exists is served regardless of the failures of others at its address.
        let attempts = &app.access.attempts;
        if let Some(left) = attempts.record_token_failure(call.client_ip, Instant::now()) {
            return Err(ProblemDetails::too_many_requests(
                left.as_secs() + 1,
                "No device has this token, and too many requests from this address had unknown tokens.",
            ));
        }
    }
    answer.map_err(to_problem)
}

async fn post_data(mut call: ApiCall, what: DevicePostKind) -> ApiResult {
    let max_bytes = call.app.config.get().max_body_bytes;
    let body = call.body_bytes(max_bytes).await?;
    run_blocking(&call, move |hooks, caller| {
        hooks.post_data(caller, what, &body)
    })
    .await?;
    Ok(StatusCode::OK.into_response())
}

async fn telemetry(call: ApiCall) -> ApiResult {
    post_data(call, DevicePostKind::Telemetry).await
}

async fn attributes(call: ApiCall) -> ApiResult {
    post_data(call, DevicePostKind::Attributes).await
}

async fn requested_attributes(call: ApiCall) -> ApiResult {
    let keys = |parameter: Parameter| call.query.owned_text(parameter);
    let (client, shared) = (keys(CLIENT_KEYS), keys(SHARED_KEYS));
    let values = run_blocking(&call, move |hooks, caller| {
        hooks.attributes(caller, client.as_deref(), shared.as_deref())
    });
    call::json_response(values.await?)
}

/// The end of the device's long poll.
fn deadline(call: &ApiCall) -> Instant {
    let asked_ms = call
        .query
        .text_value(TIMEOUT.name)
        .and_then(|text| text.parse().ok());
    Instant::now() + bounded_timeout(asked_ms)
}

async fn attribute_update(call: ApiCall) -> ApiResult {
    let until = deadline(&call);
    let mut stopping = call.app.stopping.clone();
    let mut place = None;
    loop {
        let update = run_blocking(&call, |hooks, caller| hooks.attribute_update(caller)).await?;
        if place.is_none() {
            let device = call.path("token").to_owned();
            place = Some(call.begin_long_request(LongRequestKind::LongPoll, device)?);
        }
        tokio::select! {
            change = update => if let Some(change) = change {
                return call::json_response(change);
            },
            () = tokio::time::sleep_until(until.into()) => {
                let detail = "No shared attribute of the device has changed.";
                return Err(ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, detail));
            }
            _ = stopping.wait_for(|stopping| *stopping) => {
                return Err(ProblemDetails::unavailable("The node is stopping."));
            }
        }
    }
}

async fn next_command(call: ApiCall) -> ApiResult {
    let until = deadline(&call);
    let mut place = None;
    loop {
        match run_blocking(&call, |hooks, caller| hooks.next_command(caller)).await? {
            NextCommand::Command(command) => return call::json_response(command),
            NextCommand::None(woken) => {
                if place.is_none() {
                    let device = call.path("token").to_owned();
                    place = Some(call.begin_long_request(LongRequestKind::LongPoll, device)?);
                }
                if tokio::time::timeout_at(until.into(), woken).await.is_err() {
                    let detail = "There is no command for the device.";
                    return Err(ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, detail));
                }
            }
        }
    }
}

async fn read_body(call: &mut ApiCall) -> Result<Bytes, ProblemDetails> {
    let max_bytes = call.app.config.get().max_body_bytes;
    call.body_bytes(max_bytes).await
}

async fn answer(mut call: ApiCall) -> ApiResult {
    let body = read_body(&mut call).await?;
    let id = call.path("id").to_owned();
    run_blocking(&call, move |hooks, caller| {
        hooks.answer_command(caller, &id, &body)
    })
    .await?;
    Ok(StatusCode::OK.into_response())
}

async fn call_platform(mut call: ApiCall) -> ApiResult {
    let body = read_body(&mut call).await?;
    call::json_response(
        run_blocking(&call, move |hooks, caller| {
            hooks.call_platform(caller, &body)
        })
        .await?,
    )
}

async fn offer(mut call: ApiCall) -> ApiResult {
    let body = read_body(&mut call).await?;
    run_blocking(&call, move |hooks, caller| hooks.offer_claim(caller, &body)).await?;
    Ok(StatusCode::OK.into_response())
}

async fn provision(mut call: ApiCall) -> ApiResult {
    let body = read_body(&mut call).await?;
    let request = serde_json::from_slice::<Map<String, Value>>(&body).map_err(|error| {
        let detail = format!("The body must be a JSON object: {error}.");
        ProblemDetails::bad_request(detail)
    })?;
    // Failed secrets are counted per address and key, so that one key does not block devices with
    // another.
    let key = request.get("provisionDeviceKey").and_then(Value::as_str);
    let key = key.unwrap_or_default().to_owned();
    let attempts = &call.app.access.attempts;
    if let Some(left) = attempts.secret_blocked_for(call.client_ip, &key, Instant::now()) {
        let detail =
            "Too many requests with this provisionDeviceKey from this address were rejected.";
        return Err(ProblemDetails::too_many_requests(
            left.as_secs() + 1,
            detail,
        ));
    }
    let from = call.client_ip;
    let answered = run_blocking(&call, move |hooks, _| {
        Ok(hooks.provision_device(from, &body))
    })
    .await?;
    if answered.is_err() {
        attempts.record_secret_failure(call.client_ip, &key, Instant::now());
    }
    let (Ok(answer) | Err(answer)) = answered;
    call::json_response(answer)
}
