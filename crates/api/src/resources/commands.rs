//! Commands: what became of what devices were told to do. They are sent in `command_sending`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::devices::problem;
use crate::access::Role;
use crate::app::App;
use crate::audit;
use crate::call::{self, Call};
use crate::command_tools::{CommandQuery, CommandTools};
use crate::device_tools::DeviceProblem;
use crate::endpoint::{Endpoint, Outcome, get, post};
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;

const STATE: Parameter = Parameter {
    name: "state",
    about: "Commands in these states.",
    shape: Shape::Words(&[
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
            list_of_device,
        )
        .role(Role::Viewer)
        .tag("commands")
        .path_parameter("id", "The device's id, percent-encoded.")
        .summary("Commands of a device")
        .description(OF_LISTS)
        .parameters(&[STATE])
        .pages::<Command>(),
        get("/api/v1/commands", "listCommands", list)
            .role(Role::Viewer)
            .tag("commands")
            .summary("Commands of all devices")
            .description(OF_LISTS)
            .parameters(&[STATE])
            .pages::<Command>(),
        one(get("/api/v1/commands/{id}", "getCommand", read))
            .role(Role::Viewer)
            .summary("Look at a command")
            .answers::<Command>(200, "It, as it is now."),
        one(post(
            "/api/v1/commands/{id}/cancel",
            "cancelCommand",
            cancel,
        ))
        .role(Role::Operator)
        .summary("Cancel a command")
        .description("What was sent already the device may do nevertheless.")
        .answers::<Command>(200, "It, as it is now.")
        .problem(409, "It has ended already."),
    ]
}

const OF_LISTS: &str = "The newest first. A page may be short or empty and still have a next one: the node looks at a bounded number \
                        of commands for each. How long commands are kept after their end say the settings `commands.finished_retention_d` \
                        and `commands.max_finished`.";

/// Asks the commands on a thread that may read the disk.
pub(super) async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn CommandTools) -> Result<T, DeviceProblem> + Send + 'static,
) -> Result<T, Problem> {
    let tools = Arc::clone(&app.command_tools);
    let asked = call::blocking(
        move || question(&*tools),
        "The commands cannot be read now.",
    )
    .await?;
    asked.map_err(problem)
}

/// The number of the command in the path.
pub(super) fn number(call: &Call) -> Result<u64, Problem> {
    let id = call.path("id");
    id.parse()
        .map_err(|_| Problem::not_found(format!("There is no command {id:?}.")))
}

async fn list_of_device(call: Call) -> Outcome {
    let device = call.path("id").to_owned();
    page(call, Some(device)).await
}

async fn list(call: Call) -> Outcome {
    page(call, None).await
}

async fn page(call: Call, device: Option<String>) -> Outcome {
    let query = CommandQuery {
        device,
        states: call.query.words(STATE),
        before: call.query.after_number("commands")?,
        limit: call.query.limit(),
    };
    let page = ask(&call.app, move |tools| tools.list(&query)).await?;
    call::page_from(page.rows, page.next)
}

async fn read(call: Call) -> Outcome {
    let id = number(&call)?;
    let command = ask(&call.app, move |tools| tools.get(id)).await?;
    call::ok(command.ok_or_else(|| Problem::not_found(format!("There is no command {id}.")))?)
}

async fn cancel(call: Call) -> Outcome {
    let (id, who) = (number(&call)?, call.who.name.clone());
    let command = ask(&call.app, move |tools| tools.cancel(id, &who)).await?;
    let device = command["device"].as_str().map(str::to_owned);
    let after = json!({"command": id});
    audit::action(&call, "command.cancel", device.as_deref(), Some(after)).await;
    call::ok(command)
}
