//! What devices post and ask by HTTP, on ThingsBoard's paths: the access token in the path says who speaks.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::call::{self, Call};
use crate::connections::LastingKind;
use crate::device_door::{DeviceDoor, DevicePost, DoorProblem, Knock, NextCommand};
use crate::endpoint::{Access, Endpoint, Outcome, get, post};
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;

const CLIENT_KEYS: Parameter = Parameter {
    name: "clientKeys",
    shape: Shape::Text,
    about: "Client attributes, separated by commas.",
};
const SHARED_KEYS: Parameter = Parameter {
    name: "sharedKeys",
    shape: Shape::Text,
    about: "Shared attributes, separated by commas.",
};

const TIMEOUT: Parameter = Parameter {
    name: "timeout",
    about: "How long to wait, in milliseconds, at most 600,000; 20,000 if it is left out.",
    shape: Shape::Number(0, 3_600_000),
};
const TIMEOUT_MS: u64 = 20_000;
/// However long a device wants to wait.
const MAX_TIMEOUT_MS: u64 = 600_000;

fn bounded(asked_ms: Option<u64>) -> Duration {
    Duration::from_millis(asked_ms.unwrap_or(TIMEOUT_MS).min(MAX_TIMEOUT_MS))
}

/// How long a request may take besides `http.request_timeout_s`, because its device waits for something.
pub(crate) fn long_poll(request: &axum::extract::Request) -> Option<Duration> {
    let uri = request.uri();
    let path = uri.path().strip_prefix("/api/v1/")?;
    let token = path
        .strip_suffix("/rpc")
        .or_else(|| path.strip_suffix("/attributes/updates"))?;
    if request.method() != axum::http::Method::GET || token.contains('/') {
        return None;
    }
    let mut fields = uri.query().unwrap_or_default().split('&');
    let asked = fields.find_map(|field| field.strip_prefix("timeout="));
    Some(bounded(asked.and_then(|text| text.parse().ok())))
}

/// A command of the device.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes the answer")]
struct CommandOfDevice {
    id: u64,
    method: String,
    params: Value,
}

/// Attributes of the device, of the scopes that were asked for.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes the answer")]
struct Attributes {
    client: Option<Map<String, Value>>,
    shared: Option<Map<String, Value>>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let of_device = |endpoint: Endpoint| {
        endpoint
            .access(Access::Device)
            .tag("devices")
            .path_parameter("token", "The device's access token.")
            .problem(401, "No device has this token, or it is not let in.")
            .problem(
                429,
                "Too many requests of this device or from this address at once, or too many with tokens that no device has.",
            )
            .problem(
                503,
                "Nothing is taken now; Retry-After says when to come again.",
            )
    };
    vec![
        of_device(post("/api/v1/{token}/telemetry", "postTelemetry", telemetry))
            .summary("A device's telemetry")
            .description("`{\"key\": value}`, `{\"ts\": ms, \"values\": {..}}`, or an array of both. The answer has no body.")
            .raw_body(&["application/json"])
            .answers_nothing(200, "It is taken.")
            .problem(507, "The telemetry store has no room. Nothing, or not all of it, was stored."),
        of_device(post("/api/v1/{token}/attributes", "postAttributes", attributes))
            .summary("A device's client attributes")
            .raw_body(&["application/json"])
            .answers_nothing(200, "They are taken."),
        of_device(get("/api/v1/{token}/attributes", "getAttributes", asked))
            .summary("Attributes of a device, for the device")
            .description("Without keys, all.")
            .parameters(&[CLIENT_KEYS, SHARED_KEYS])
            .answers::<Attributes>(200, "By scope and key."),
        of_device(get(
            "/api/v1/{token}/attributes/updates",
            "awaitAttributes",
            attribute_update,
        ))
        .summary("Wait for a change of shared attributes")
        .description(
            "The first change from now on: values by key, and the keys of removed attributes as `deleted`. What changes between two \
             requests is not answered; read the attributes for it.",
        )
        .parameters(&[TIMEOUT])
        .answers::<Map<String, Value>>(200, "The change.")
        .problem(408, "There was none in this time."),
        of_device(get("/api/v1/{token}/rpc", "takeCommand", next_command))
            .summary("The next command of a device, for the device")
            .description("Waits for one. It counts as sent when it is answered.")
            .parameters(&[TIMEOUT])
            .answers::<CommandOfDevice>(200, "A command; what comes of it is posted under its `id`.")
            .problem(408, "There was none in this time."),
        of_device(post("/api/v1/{token}/rpc/{id}", "answerCommand", answer))
            .path_parameter("id", "The `id` of the command.")
            .summary("What came of a device's command")
            .description("JSON or text.")
            .raw_body(&["application/json"])
            .answers_nothing(200, "It is taken."),
        of_device(post("/api/v1/{token}/rpc", "callPlatform", call_platform))
            .summary("A device calls the platform")
            .description("`{\"method\": \"getCurrentTime\", \"params\": {}}`")
            .raw_body(&["application/json"])
            .answers::<Value>(200, "What the method answers."),
        of_device(post("/api/v1/{token}/claim", "offerClaim", offer))
            .summary("A device offers to be claimed")
            .description("`{\"secretKey\": \"..\", \"durationMs\": 60000}`; both may be left out.")
            .raw_body(&["application/json"])
            .answers_nothing(200, "It is offered."),
        post("/api/v1/provision", "provisionDevice", provision)
            .access(Access::Device)
            .tag("devices")
            .summary("A device registers itself")
            .description(
                "`{\"provisionDeviceKey\", \"provisionDeviceSecret\", \"deviceName\", ..}`; `status` says what became of it.",
            )
            .raw_body(&["application/json"])
            .answers::<Map<String, Value>>(200, "`status` is `SUCCESS` or `FAILURE`.")
            .problem(429, "Too many requests of devices at once, or too many that were refused."),
    ]
}

pub(super) fn problem(problem: DoorProblem) -> Problem {
    match problem {
        DoorProblem::Nobody => Problem::unauthorized("No device that is let in has this token."),
        DoorProblem::Malformed(detail) => Problem::bad_request(format!("{detail}.")),
        DoorProblem::Busy => Problem::busy(1, "Nothing is taken now, there is too much to do."),
        DoorProblem::NoRoom => Problem::no_room(
            "The telemetry store has no room; the disk is full, or below telemetry.min_free_bytes.",
        ),
        DoorProblem::Unavailable(detail) => Problem::unavailable(format!("{detail}.")),
    }
}

/// Asks on a thread that may block, for as many devices at once as there is room for.
async fn ask<T: Send + 'static>(
    call: &Call,
    question: impl FnOnce(&dyn DeviceDoor, &Knock) -> Result<T, DoorProblem> + Send + 'static,
) -> Result<T, Problem> {
    let app = &call.app;
    let knock = Knock {
        token: call.path("token").to_owned(),
    };
    let door = app.device_door.clone();
    let ask = move || question(&*door, &knock);
    let asked = call::blocking(ask, "The device is not served now.").await?;
    if let Err(DoorProblem::Nobody) = &asked {
        // A device that exists is served whatever others at its address do.
        let attempts = &app.gatekeeper.attempts;
        if let Some(left) = attempts.token_failed(call.from, Instant::now()) {
            return Err(Problem::too_many_requests(
                left.as_secs() + 1,
                "No device has this token, and too many requests from this address had such tokens.",
            ));
        }
    }
    asked.map_err(problem)
}

async fn take(mut call: Call, what: DevicePost) -> Outcome {
    let max_bytes = call.app.config.get().max_body_bytes;
    let body = call.bytes(max_bytes).await?;
    ask(&call, move |door, knock| door.post(knock, what, &body)).await?;
    Ok(StatusCode::OK.into_response())
}

async fn telemetry(call: Call) -> Outcome {
    take(call, DevicePost::Telemetry).await
}

async fn attributes(call: Call) -> Outcome {
    take(call, DevicePost::Attributes).await
}

async fn asked(call: Call) -> Outcome {
    let keys = |parameter: Parameter| call.query.owned(parameter);
    let (client, shared) = (keys(CLIENT_KEYS), keys(SHARED_KEYS));
    let values = ask(&call, move |door, knock| {
        door.attributes(knock, client.as_deref(), shared.as_deref())
    });
    call::ok(values.await?)
}

/// Until when the device wants to wait.
fn deadline(call: &Call) -> Instant {
    let asked_ms = call
        .query
        .text(TIMEOUT.name)
        .and_then(|text| text.parse().ok());
    Instant::now() + bounded(asked_ms)
}

async fn attribute_update(call: Call) -> Outcome {
    let until = deadline(&call);
    let update = ask(&call, |door, knock| door.attribute_update(knock)).await?;
    let device = call.path("token").to_owned();
    let _place = call.last(LastingKind::LongPoll, device)?;
    let mut stopping = call.app.stopping.clone();
    tokio::select! {
        change = update => call::ok(change),
        () = tokio::time::sleep_until(until.into()) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "No shared attribute of the device has changed.",
        )),
        _ = stopping.wait_for(|stopping| *stopping) => {
            Err(Problem::unavailable("The node is stopping."))
        }
    }
}

async fn next_command(call: Call) -> Outcome {
    let until = deadline(&call);
    let mut place = None;
    loop {
        match ask(&call, |door, knock| door.next_command(knock)).await? {
            NextCommand::Command(command) => return call::ok(command),
            NextCommand::None(woken) => {
                if place.is_none() {
                    let device = call.path("token").to_owned();
                    place = Some(call.last(LastingKind::LongPoll, device)?);
                }
                if tokio::time::timeout_at(until.into(), woken).await.is_err() {
                    let detail = "There is no command for the device.";
                    return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail));
                }
            }
        }
    }
}

async fn body_of(call: &mut Call) -> Result<Bytes, Problem> {
    let max_bytes = call.app.config.get().max_body_bytes;
    call.bytes(max_bytes).await
}

async fn answer(mut call: Call) -> Outcome {
    let body = body_of(&mut call).await?;
    let id = call.path("id").to_owned();
    ask(&call, move |door, knock| door.answer(knock, &id, &body)).await?;
    Ok(StatusCode::OK.into_response())
}

async fn call_platform(mut call: Call) -> Outcome {
    let body = body_of(&mut call).await?;
    call::ok(ask(&call, move |door, knock| door.call(knock, &body)).await?)
}

async fn offer(mut call: Call) -> Outcome {
    let body = body_of(&mut call).await?;
    ask(&call, move |door, knock| door.offer(knock, &body)).await?;
    Ok(StatusCode::OK.into_response())
}

async fn provision(mut call: Call) -> Outcome {
    let body = body_of(&mut call).await?;
    let request = serde_json::from_slice::<Map<String, Value>>(&body).map_err(|error| {
        let detail = format!("The body has to be a JSON object: {error}.");
        Problem::bad_request(detail)
    })?;
    // Secrets are guessed by address and key, so that one key does not keep out devices of another.
    let key = request.get("provisionDeviceKey").and_then(Value::as_str);
    let key = key.unwrap_or_default().to_owned();
    let attempts = &call.app.gatekeeper.attempts;
    if let Some(left) = attempts.secret_blocked_for(call.from, &key, Instant::now()) {
        let detail =
            "Too many requests with this provisionDeviceKey from this address were refused.";
        return Err(Problem::too_many_requests(left.as_secs() + 1, detail));
    }
    let from = call.from;
    let answered = ask(&call, move |door, _| Ok(door.provision(from, &body))).await?;
    if answered.is_err() {
        attempts.secret_failed(call.from, &key, Instant::now());
    }
    let (Ok(answer) | Err(answer)) = answered;
    call::ok(answer)
}
