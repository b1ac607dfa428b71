//! Commands and their results. Sending is in `command_requests`.

use devices::command::Command;
use serde_json::json;

use super::devices::to_problem;
use crate::access::Role;
use crate::audit;
use crate::blocking;
use crate::call::{self, ApiCall};
use crate::command_service::{CommandQuery, CommandService};
use crate::device_service::DeviceServiceError;
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::endpoint_place::{EndpointPlace, MergedAnswer, MergedRows};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{NAMESPACE, NODE, Parameter, ParameterType, text_parameter};
use crate::sorted_list::SortValue;
use crate::state::ApiState;

const STATE: Parameter = Parameter {
    name: "state",
    description: "States, separated by commas.",
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
const BATCH: Parameter = text_parameter(
    "batch",
    "Only commands of this request to a device group: the id of its job.",
);

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("commands")
            .path_parameter("id", "The command's number.")
            .place(EndpointPlace::Object {
                path: "/api/v1/commands/{id}",
            })
            .parameters(&[NODE])
    };
    vec![
        get(
            "/api/v1/devices/{id}/commands",
            "listDeviceCommands",
            list_for_device,
        )
        .role(Role::Viewer, EndpointScope::device("id"))
        .tag("commands")
        .path_parameter("id", "The device's id, percent-encoded.")
        .summary("List commands of a device")
        .description(LIST_DESCRIPTION)
        .parameters(&[STATE])
        .place(NEWEST_OF_ALL_NODES)
        .node_paged::<Command>(),
        get("/api/v1/commands", "listCommands", list)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("commands")
            .summary("List commands of all devices")
            .description(LIST_DESCRIPTION)
            .parameters(&[STATE, BATCH, NAMESPACE])
            .place(NEWEST_OF_ALL_NODES)
            .node_paged::<Command>(),
        one(get("/api/v1/commands/{id}", "getCommand", read))
            .role(Role::Viewer, EndpointScope::command("id"))
            .summary("Read a command")
            .response::<Command>(200, "The command."),
        one(post(
            "/api/v1/commands/{id}/cancel",
            "cancelCommand",
            cancel,
        ))
        .role(Role::Operator, EndpointScope::command("id"))
        .summary("Cancel a command")
        .description("If the command has been sent, the device may still execute it.")
        .response::<Command>(200, "The command after the change.")
        .problem_response(409, "The command has already ended."),
    ]
}

const NEWEST_OF_ALL_NODES: EndpointPlace =
    EndpointPlace::AllNodes(MergedAnswer::Rows(MergedRows {
        time_field: "created_at_ms",
        sort_value: |row, field| SortValue::json(&row[field]),
    }));

const LIST_DESCRIPTION: &str = "Newest first. A page may be short or empty and still have a next one: the node reads a bounded number \
                        of commands for each. The retention of ended commands is set by `commands.finished_retention_days` \
                        and `commands.max_finished`.";

/// Runs a query on a thread that may read the disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &ApiState,
    question: impl FnOnce(&CommandService) -> Result<T, DeviceServiceError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let commands = app.commands.clone();
    let result = blocking::run_blocking(
        move || question(&commands),
        "The commands cannot be read now.",
    )
    .await?;
    result.map_err(to_problem)
}

/// The command number in the path.
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
        batch: call.query.owned_text(BATCH),
        before: call.query.after_number("commands")?,
        limit: call.query.limit(),
        namespaces: call.namespaces(),
    };
    let page = run_blocking(&call.app, move |tools| tools.list(&query)).await?;
    call::page_of(page.commands, page.next.map(|id| id.0))
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
    let after = json!({"command": id});
    audit::record_action(&call, "command.cancel", Some(&command.device), Some(after)).await;
    call::json_response(command)
}
