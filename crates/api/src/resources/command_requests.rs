//! Telling devices to do something: what is asked for is in the store when it is answered, and where the device is here the answer
//! waits for what comes of it.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::commands::{Command, run_blocking};
use crate::access::Role;
use crate::audit;
use crate::call::ApiCall;
use crate::command_backend::{CommandOperation, CommandReceipt, CommandRequest};
use crate::endpoint::{ApiResult, Endpoint, post};
use crate::problem_details::ProblemDetails;

/// Tries of one command beyond the first.
const MAX_RETRIES: u32 = 10;

/// How a command goes to its device.
struct CommandOptions {
    one_way: bool,
    timeout_ms: Option<u64>,
    expires_in_s: Option<u64>,
    retries: u32,
    wait: bool,
}

fn yes() -> bool {
    true
}

/// A body with fields of its own, and those of its manner.
macro_rules! input {
    ($(#[$about:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($(#[$of_field])* $field: $type,)*
            /// No answer is expected: it succeeds when the device has it.
            #[serde(default)]
            one_way: bool,
            /// How long an answer may take from when it was sent; left out: the setting `commands.timeout_ms`.
            #[serde(default)]
            #[schemars(range(min = 1))]
            timeout_ms: Option<u64>,
            /// How long it waits for a device that is not here; 0: it goes now or never; left out: the setting
            /// `commands.expiry_s`.
            #[serde(default)]
            expires_in_s: Option<u64>,
            /// How often it is sent again when nothing was heard of it: the device may do it twice.
            #[serde(default)]
            #[schemars(range(max = 10))]
            retries: u32,
            /// `false`: the answer does not wait for the device.
            #[serde(default = "yes")]
            wait: bool,
        }

        impl $name {
            fn manner(&self) -> CommandOptions {
                CommandOptions {
                    one_way: self.one_way,
                    timeout_ms: self.timeout_ms,
                    expires_in_s: self.expires_in_s,
                    retries: self.retries,
                    wait: self.wait,
                }
            }
        }
    };
}

input! {
    /// A call of a method.
    CallInput {
        /// If the product's thing model has a function of this name, its inputs are checked.
        #[schemars(length(min = 1, max = 255))]
        method: String,
        /// What goes with it: any JSON.
        #[serde(default)]
        params: Value,
    }
}

input! {
    /// A call of a function of the thing model.
    InvokeInput {
        /// Its inputs.
        #[serde(default)]
        params: Option<Map<String, Value>>,
    }
}

input! {
    /// Properties to be told.
    ReadInput {
        #[schemars(length(min = 1, max = 256))]
        keys: Vec<String>,
    }
}

input! {
    /// Properties to be set.
    WriteInput {
        #[schemars(extend("minProperties" = 1, "maxProperties" = 256))]
        values: Map<String, Value>,
    }
}

impl Default for InvokeInput {
    fn default() -> Self {
        Self {
            params: None,
            one_way: false,
            timeout_ms: None,
            expires_in_s: None,
            retries: 0,
            wait: true,
        }
    }
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let of_device = |endpoint: Endpoint| {
        endpoint
            .role(Role::Operator)
            .tag("commands")
            .path_parameter("id", "The device's id, percent-encoded.")
            .response::<Command>(200, "It has ended; `state` says how.")
            .response::<Command>(
                202,
                "It is on its way or waits for its device; look at it later.",
            )
            .with_location()
            .problem_response(409, "Too many commands are open, or too many callers wait.")
    };
    vec![
        of_device(post("/api/v1/devices/{id}/commands", "sendCommand", send))
            .summary("Tell a device to do something")
            .description(
                "The command is in the store when it is answered, and goes out when the device is where it hears it. Where the device \
                 is here, the answer waits until the command has ended, at most for `timeout_ms` and for `http.request_timeout_s`.",
            )
            .request_body::<CallInput>(),
        of_device(post(
            "/api/v1/devices/{id}/functions/{function}",
            "invokeFunction",
            invoke,
        ))
        .path_parameter("function", "The id of a function of its thing model.")
        .summary("Call a function of a device")
        .description("As `sendCommand`; inputs are checked against the thing model.")
        .optional_request_body::<InvokeInput>(),
        of_device(post(
            "/api/v1/devices/{id}/properties/read",
            "readProperties",
            read_properties,
        ))
        .summary("Ask a device for properties")
        .description("As `sendCommand`; the keys are checked against the thing model.")
        .request_body::<ReadInput>(),
        of_device(post(
            "/api/v1/devices/{id}/properties/write",
            "writeProperties",
            write_properties,
        ))
        .summary("Set properties of a device")
        .description("As `sendCommand`; keys and values are checked against the thing model.")
        .request_body::<WriteInput>(),
    ]
}

async fn send(mut call: ApiCall) -> ApiResult {
    let input: CallInput = call.body_json().await?;
    let manner = input.manner();
    let wish = CommandOperation::Call {
        method: input.method,
        params: input.params,
    };
    send_request(call, wish, manner).await
}

async fn invoke(mut call: ApiCall) -> ApiResult {
    let input: InvokeInput = call.body_json_or_default().await?;
    let manner = input.manner();
    let wish = CommandOperation::Invoke {
        function: call.path("function").to_owned(),
        params: input.params.map_or(Value::Null, Value::Object),
    };
    send_request(call, wish, manner).await
}

async fn read_properties(mut call: ApiCall) -> ApiResult {
    let input: ReadInput = call.body_json().await?;
    let manner = input.manner();
    send_request(call, CommandOperation::Read(input.keys), manner).await
}

async fn write_properties(mut call: ApiCall) -> ApiResult {
    let input: WriteInput = call.body_json().await?;
    let manner = input.manner();
    send_request(call, CommandOperation::Write(input.values), manner).await
}

async fn send_request(call: ApiCall, wish: CommandOperation, manner: CommandOptions) -> ApiResult {
    if manner.timeout_ms == Some(0) {
        return Err(ProblemDetails::invalid_field(
            "timeout_ms",
            "timeout_ms: expected at least 1.",
        ));
    }
    let request = CommandRequest {
        device: call.path("id").to_owned(),
        operation: wish,
        one_way: manner.one_way,
        timeout_ms: manner.timeout_ms,
        expires_in_s: manner.expires_in_s,
        retries: manner.retries,
        requested_by: call.identity.name.clone(),
        waits: manner.wait,
    };
    let SentCommand { id, value, ended } = send_and_wait(&call, request).await?;
    Ok(match ended {
        Some(ended) => (StatusCode::OK, axum::Json(ended)).into_response(),
        None => {
            let now = run_blocking(&call.app, move |tools| tools.get(id)).await?;
            accepted_response(id, now.unwrap_or(value))
        }
    })
}

/// A command that was taken.
pub(super) struct SentCommand {
    pub(super) id: u64,
    value: Value,
    /// As it ended, if it was waited for and has.
    pub(super) ended: Option<Value>,
}

/// Takes a command, and waits for its end if the request wants that.
pub(super) async fn send_and_wait(
    call: &ApiCall,
    request: CommandRequest,
) -> Result<SentCommand, ProblemDetails> {
    if request.retries > MAX_RETRIES {
        let detail = format!("retries: expected at most {MAX_RETRIES}.");
        return Err(ProblemDetails::invalid_field("retries", detail));
    }
    let device = request.device.clone();
    let CommandReceipt { id, value, end } =
        run_blocking(&call.app, move |tools| tools.send_command(request)).await?;
    let after = json!({
        "command": id,
        "kind": value["kind"],
        "method": value["method"],
    });
    audit::record_action(call, "command.send", Some(&device), Some(after)).await;
    let ended = match end {
        // Before the request itself has taken too long.
        Some(end) => {
            let most = call.app.config.request_timeout().mul_f32(0.9);
            tokio::time::timeout(most, end).await.ok().flatten()
        }
        None => None,
    };
    Ok(SentCommand { id, value, ended })
}

fn accepted_response(id: u64, value: Value) -> Response {
    let mut response = (StatusCode::ACCEPTED, axum::Json(value)).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/api/v1/commands/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
