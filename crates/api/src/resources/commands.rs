//! Commands: what became of what devices were told to do. They are sent in `command_requests`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::devices::to_problem;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::command_backend::{CommandBackend, CommandQuery};
use crate::device_backend::DeviceBackendError;
use crate::endpoint::{ApiResult, Endpoint, get, post};
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{Parameter, ParameterType};
use crate::state::ApiState;

const STATE: Parameter = Parameter {
    name: "state",
    description: "Commands in these states.",
    shape: ParameterType::Words(&[
        "pending",
        "sent",
        "acknowledged",
        "success",
        "failed",
        "timeout",
        "expired",
        "cancelled",
    ]),
};
/// A command, and what came of it. Times are in milliseconds since 1970.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the commands answer")]
pub(super) struct Command {
    /// Later ones have larger numbers; the device gets it as the id of the call.
    id: u64,
    device: String,
    product: String,
    /// `call`, `read` or `write`.
    kind: String,
    method: String,
    params: Value,
    one_way: bool,
    /// `pending`, `sent`, `acknowledged`; at its end `success`, `failed`, `timeout`, `expired` or `cancelled`.
    state: String,
    timeout_ms: u64,
    retries: u32,
    /// How often it was sent.
    attempts: u32,
    created_at_ms: u64,
    /// How long it waits for its device.
    expires_at_ms: u64,
    /// When it was sent last.
    sent_at_ms: Option<u64>,
    /// When the device's client said that it has it.
    acknowledged_at_ms: Option<u64>,
    finished_at_ms: Option<u64>,
    /// What the device answered.
    result: Value,
    /// The word or number that the device gave with its answer.
    code: Option<String>,
    /// Why it is in its state, for people.
    message: Option<String>,
    /// Who asked for it.
    by: String,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("commands")
            .path_parameter("id", "The command's number.")
    };
    vec![
        get(
            "/api/v1/devices/{id}/commands",
            "listDeviceCommands",
            list_for_device,
        )
        .role(Role::Viewer)
        .tag("commands")
        .path_parameter("id", "The device's id, percent-encoded.")
        .summary("Commands of a device")
        .description(LIST_DESCRIPTION)
        .parameters(&[STATE])
        .paged::<Command>(),
        get("/api/v1/commands", "listCommands", list)
            .role(Role::Viewer)
            .tag("commands")
            .summary("Commands of all devices")
            .description(LIST_DESCRIPTION)
            .parameters(&[STATE])
            .paged::<Command>(),
        one(get("/api/v1/commands/{id}", "getCommand", read))
            .role(Role::Viewer)
            .summary("Look at a command")
            .response::<Command>(200, "It, as it is now."),
        one(post(
            "/api/v1/commands/{id}/cancel",
            "cancelCommand",
            cancel,
        ))
        .role(Role::Operator)
        .summary("Cancel a command")
        .description("What was sent already the device may do nevertheless.")
        .response::<Command>(200, "It, as it is now.")
        .problem_response(409, "It has ended already."),
    ]
}

const LIST_DESCRIPTION: &str = "The newest first. A page may be short or empty and still have a next one: the node looks at a bounded number \
                        of commands for each. How long commands are kept after their end say the settings `commands.finished_retention_d` \
                        and `commands.max_finished`.";

/// Asks the commands on a thread that may read the disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &ApiState,
    question: impl FnOnce(&dyn CommandBackend) -> Result<T, DeviceBackendError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let tools = Arc::clone(&app.command_backend);
    let asked = call::run_blocking(
        move || question(&*tools),
        "The commands cannot be read now.",
    )
    .await?;
    asked.map_err(to_problem)
}

/// The number of the command in the path.
pub(super) fn command_id(call: &ApiCall) -> Result<u64, ProblemDetails> {
    let id = call.path("id");
    id.parse()
        .map_err(|_| ProblemDetails::not_found(format!("There is no command {id:?}.")))
}

async fn list_for_device(call: ApiCall) -> ApiResult {
    let device = call.path("id").to_owned();
    command_page(call, Some(device)).await
}

async fn list(call: ApiCall) -> ApiResult {
    command_page(call, None).await
}

async fn command_page(call: ApiCall, device: Option<String>) -> ApiResult {
    let query = CommandQuery {
        device,
        states: call.query.comma_separated(STATE),
        before: call.query.after_number("commands")?,
        limit: call.query.limit(),
    };
    let page = run_blocking(&call.app, move |tools| tools.list(&query)).await?;
    call::page_of(page.rows, page.next)
}

async fn read(call: ApiCall) -> ApiResult {
    let id = command_id(&call)?;
    let command = run_blocking(&call.app, move |tools| tools.get(id)).await?;
    call::json_response(
        command.ok_or_else(|| ProblemDetails::not_found(format!("There is no command {id}.")))?,
    )
}

async fn cancel(call: ApiCall) -> ApiResult {
    let (id, who) = (command_id(&call)?, call.identity.name.clone());
    let command = run_blocking(&call.app, move |tools| tools.cancel(id, &who)).await?;
    let device = command["device"].as_str().map(str::to_owned);
    let after = json!({"command": id});
    audit::record_action(&call, "command.cancel", device.as_deref(), Some(after)).await;
    call::json_response(command)
}
