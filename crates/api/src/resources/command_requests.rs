//! Sending commands to devices. A command is stored before the response. If the device is
//! connected, the response waits for the result.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use devices::command::{Command, CommandAction, NewCommand};
use serde_json::{Map, Value, json};

use super::command_options::{CommandOptions, check_options, command_input};
use super::commands::run_blocking;
use crate::access::Role;
use crate::audit;
use crate::call::ApiCall;
use crate::command_service::CommandReceipt;
use crate::endpoint::{Endpoint, EndpointScope, post};
use crate::endpoint_place::EndpointPlace;
use crate::problem_details::{ApiResult, ProblemDetails};

fn default_wait() -> bool {
    true
}

command_input! {
    /// A method call.
    CallInput {
        /// Name of the method. If the product's thing model has a function of this name, its inputs are
        /// checked.
        #[schemars(length(min = 1, max = 255))]
        method: String,
        /// Parameters: any JSON.
        #[serde(default)]
        params: Value,
        /// `false`: the response does not wait for the device.
        #[serde(default = "default_wait")]
        wait: bool,
    }
}

command_input! {
    /// A call of a function of the thing model.
    InvokeInput {
        /// Inputs of the function.
        #[serde(default)]
        params: Option<Map<String, Value>>,
        /// `false`: the response does not wait for the device.
        #[serde(default = "default_wait")]
        wait: bool,
    }
}

command_input! {
    /// Keys of the properties to read.
    ReadInput {
        #[schemars(length(min = 1, max = 256))]
        keys: Vec<String>,
        /// `false`: the response does not wait for the device.
        #[serde(default = "default_wait")]
        wait: bool,
    }
}

command_input! {
    /// Values of the properties to write.
    WriteInput {
        #[schemars(extend("minProperties" = 1, "maxProperties" = 256))]
        values: Map<String, Value>,
        /// `false`: the response does not wait for the device.
        #[serde(default = "default_wait")]
        wait: bool,
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
            .role(Role::Operator, EndpointScope::device("id"))
            .tag("commands")
            .place(EndpointPlace::Device("id"))
            .path_parameter("id", "The device's id, percent-encoded.")
            .response::<Command>(200, "The command has ended with the result in `state`.")
            .response::<Command>(
                202,
                "The command was sent or waits for its device; poll it later.",
            )
            .with_location()
            .problem_response(
                409,
                "Too many commands are open, or too many callers are waiting.",
            )
    };
    vec![
        of_device(post("/api/v1/devices/{id}/commands", "sendCommand", send))
            .summary("Send a command to a device")
            .description(
                "The command is stored before the response, and sent when the device can receive it. If the device \
                 is connected, the response waits until the command has ended, at most for `timeout_ms` and for `http.request_timeout_s`.",
            )
            .request_body::<CallInput>(),
        of_device(post(
            "/api/v1/devices/{id}/functions/{function}",
            "invokeFunction",
            invoke,
        ))
        .path_parameter("function", "Id of a function of the thing model.")
        .summary("Call a function of a device")
        .description("Like `sendCommand`; inputs are checked against the thing model.")
        .optional_request_body::<InvokeInput>(),
        of_device(post(
            "/api/v1/devices/{id}/properties/read",
            "readProperties",
            read_properties,
        ))
        .summary("Read properties of a device")
        .description("Like `sendCommand`; the keys are checked against the thing model.")
        .request_body::<ReadInput>(),
        of_device(post(
            "/api/v1/devices/{id}/properties/write",
            "writeProperties",
            write_properties,
        ))
        .summary("Write properties of a device")
        .description("Like `sendCommand`; keys and values are checked against the thing model.")
        .request_body::<WriteInput>(),
    ]
}

async fn send(mut call: ApiCall) -> ApiResult {
    let input: CallInput = call.body_json().await?;
    let (options, wait) = (input.options(), input.wait);
    let action = CommandAction::Call {
        method: input.method,
        params: input.params,
    };
    send_request(call, action, options, wait).await
}

async fn invoke(mut call: ApiCall) -> ApiResult {
    let input: InvokeInput = call.body_json_or_default().await?;
    let (options, wait) = (input.options(), input.wait);
    let action = CommandAction::Invoke {
        function: call.path("function").to_owned(),
        params: input.params.map_or(Value::Null, Value::Object),
    };
    send_request(call, action, options, wait).await
}

async fn read_properties(mut call: ApiCall) -> ApiResult {
    let input: ReadInput = call.body_json().await?;
    let (options, wait) = (input.options(), input.wait);
    let action = CommandAction::Read { keys: input.keys };
    send_request(call, action, options, wait).await
}

async fn write_properties(mut call: ApiCall) -> ApiResult {
    let input: WriteInput = call.body_json().await?;
    let (options, wait) = (input.options(), input.wait);
    let action = CommandAction::Write {
        values: input.values,
    };
    send_request(call, action, options, wait).await
}

async fn send_request(
    call: ApiCall,
    action: CommandAction,
    options: CommandOptions,
    wait: bool,
) -> ApiResult {
    let command = options.command(action, call.identity.name.clone());
    let SentCommand { command, ended } = send_and_wait(&call, command, wait).await?;
    Ok(match ended {
        Some(ended) => (StatusCode::OK, axum::Json(ended)).into_response(),
        None => {
            let id = command.id.0;
            let now = run_blocking(&call.app, move |commands| commands.get(id)).await?;
            accepted_response(&now.unwrap_or(command))
        }
    })
}

/// A command that was accepted.
pub(super) struct SentCommand {
    /// As it was when it was accepted.
    pub(super) command: Command,
    /// The final state, if the caller waited and the command has ended.
    pub(super) ended: Option<Command>,
}

/// Sends a command to the device in the path and, if requested, waits for its end.
pub(super) async fn send_and_wait(
    call: &ApiCall,
    command: NewCommand,
    waits: bool,
) -> Result<SentCommand, ProblemDetails> {
    check_options(&command)?;
    let id = call.path("id").to_owned();
    let CommandReceipt { command, end } = run_blocking(&call.app, move |commands| {
        commands.send_command(&id, command, waits)
    })
    .await?;
    let after = json!({
        "command": command.id,
        "kind": command.kind,
        "method": command.method,
    });
    audit::record_action(call, "command.send", Some(call.path("id")), Some(after)).await;
    let ended = match end {
        // The wait must end before the request times out.
        Some(end) => {
            let most = call.app.config.request_timeout().mul_f32(0.9);
            tokio::time::timeout(most, end).await.ok().flatten()
        }
        None => None,
    };
    Ok(SentCommand { command, ended })
}

fn accepted_response(command: &Command) -> Response {
    let mut response = (StatusCode::ACCEPTED, axum::Json(command)).into_response();
    let location = format!("/api/v1/commands/{}", command.id.0);
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
