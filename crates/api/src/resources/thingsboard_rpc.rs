//! Remote procedure calls to devices on ThingsBoard's paths.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use devices::command::{Command, CommandAction, NewCommand};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wall_clock::now_ms;

use super::command_requests::{SentCommand, send_and_wait};
use super::commands::{command_id, run_blocking};
use super::thingsboard_devices::EntityId;
use super::thingsboard_paging::{PAGING, PageData, PageNumber};
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::cluster_lists;
use crate::device_service::DeviceServiceError;
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::endpoint_place::EndpointPlace;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{NODE, Parameter, ParameterType};

/// A call in ThingsBoard's form. Other fields are ignored.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RpcInput {
    #[schemars(length(min = 1, max = 255))]
    method: String,
    #[serde(default)]
    params: Value,
    /// Time limit of the response, in milliseconds.
    #[serde(default)]
    #[schemars(range(min = 1))]
    timeout: Option<u64>,
    /// Whether the call is stored for a disconnected device.
    #[serde(default)]
    persistent: bool,
    /// Time until which it is stored, in milliseconds since 1970.
    #[serde(default)]
    expiration_time: Option<u64>,
    #[serde(default)]
    #[schemars(range(max = 10))]
    retries: Option<u32>,
}

/// Receipt of a persistent call.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PersistentRpcReceipt {
    /// Number of the command.
    rpc_id: String,
}

/// A persistent call in ThingsBoard's form.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PersistentRpc {
    id: EntityId,
    device_id: EntityId,
    /// Time of creation, in milliseconds since 1970 like all times here.
    created_time: u64,
    expiration_time: u64,
    /// Request with `method` and `params`.
    request: Value,
    response: Value,
    /// `QUEUED`, `SENT`, `DELIVERED`, `SUCCESSFUL`, `FAILED`, `TIMEOUT`, `EXPIRED` or `DELETED`.
    status: &'static str,
}

/// HTTP statuses for a device that has not responded, and for one that is not connected.
#[derive(Clone, Copy)]
struct RpcStatuses {
    timed_out: StatusCode,
    not_connected: StatusCode,
}

const V1_STATUSES: RpcStatuses = RpcStatuses {
    timed_out: StatusCode::REQUEST_TIMEOUT,
    not_connected: StatusCode::CONFLICT,
};
const V2_STATUSES: RpcStatuses = RpcStatuses {
    timed_out: StatusCode::GATEWAY_TIMEOUT,
    not_connected: StatusCode::GATEWAY_TIMEOUT,
};

const RPC_STATUS: Parameter = Parameter {
    name: "rpcStatus",
    shape: ParameterType::Words(&[
        "QUEUED",
        "SENT",
        "DELIVERED",
        "SUCCESSFUL",
        "FAILED",
        "TIMEOUT",
        "EXPIRED",
        "DELETED",
    ]),
    description: "State of the calls.",
};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let first = |endpoint: Endpoint| {
        with_call_documentation(endpoint)
            .problem_response(408, "The device did not respond in time.")
            .problem_response(
                409,
                "The device is not connected, or too many commands are open.",
            )
    };
    let second = |endpoint: Endpoint| {
        with_call_documentation(endpoint)
            .problem_response(
                409,
                "Too many commands are open, or too many callers are waiting.",
            )
            .problem_response(
                504,
                "The device is not connected, or did not respond in time.",
            )
    };
    let persistent = |endpoint: Endpoint| {
        endpoint
            .tag("commands")
            .path_parameter("id", "Number of the command.")
            .place(EndpointPlace::Object {
                path: "/api/v1/commands/{id}",
            })
            .parameters(&[NODE])
    };
    vec![
        one_way_endpoint(first(post(
            "/api/plugins/rpc/oneway/{id}",
            "sendOneWayRpc",
            |call| send_rpc(call, true, V1_STATUSES),
        ))),
        two_way_endpoint(first(post(
            "/api/plugins/rpc/twoway/{id}",
            "sendTwoWayRpc",
            |call| send_rpc(call, false, V1_STATUSES),
        ))),
        one_way_endpoint(second(post(
            "/api/rpc/oneway/{id}",
            "sendOneWayRpcV2",
            |call| send_rpc(call, true, V2_STATUSES),
        ))),
        two_way_endpoint(second(post(
            "/api/rpc/twoway/{id}",
            "sendTwoWayRpcV2",
            |call| send_rpc(call, false, V2_STATUSES),
        ))),
        persistent(get("/api/rpc/persistent/{id}", "getPersistentRpc", read))
            .role(Role::Viewer, EndpointScope::command("id"))
            .summary("Read a persistent call (ThingsBoard)")
            .response::<PersistentRpc>(200, "The call."),
        persistent(delete(
            "/api/rpc/persistent/{id}",
            "deletePersistentRpc",
            cancel,
        ))
        .role(Role::Operator, EndpointScope::command("id"))
        .summary("Cancel a persistent call (ThingsBoard)")
        .empty_response(200, "The call was cancelled, or had already ended."),
        get("/api/rpc/persistent/device/{id}", "listPersistentRpc", list)
            .role(Role::Viewer, EndpointScope::device("id"))
            .tag("commands")
            .path_parameter("id", "The device's id, percent-encoded.")
            .summary("List persistent calls of a device (ThingsBoard)")
            .parameters(&[RPC_STATUS])
            .parameters(&PAGING)
            .response::<PageData<PersistentRpc>>(200, "A page, newest first."),
    ]
}

fn one_way_endpoint(endpoint: Endpoint) -> Endpoint {
    endpoint
        .summary("Send a one-way call (ThingsBoard)")
        .description(
            "The response is sent when the device has received the call. With `persistent` it is sent at once with `rpcId`, and the call is stored.",
        )
        .response::<PersistentRpcReceipt>(200, "The device received it (no body), or `persistent`: it is stored.")
}

fn two_way_endpoint(endpoint: Endpoint) -> Endpoint {
    endpoint
        .summary("Send a two-way call (ThingsBoard)")
        .description(
            "The response is that of the device. With `persistent`, it is sent at once with `rpcId`, and the call is stored.",
        )
        .response::<Value>(200, "The response of the device, or `persistent`: `rpcId`.")
}

fn with_call_documentation(endpoint: Endpoint) -> Endpoint {
    endpoint
        .role(Role::Operator, EndpointScope::device("id"))
        .place(EndpointPlace::Device("id"))
        .tag("commands")
        .path_parameter("id", "The device's id, percent-encoded.")
        .request_body::<RpcInput>()
}

async fn send_rpc(mut call: ApiCall, one_way: bool, statuses: RpcStatuses) -> ApiResult {
    let input: RpcInput = call.body_json_of_any_type().await?;
    if input.timeout == Some(0) {
        return Err(ProblemDetails::invalid_field(
            "timeout",
            "timeout: expected at least 1.",
        ));
    }
    let now_ms = now_ms();
    let kept_ms = input
        .expiration_time
        .map(|at_ms| at_ms.saturating_sub(now_ms));
    let command = NewCommand {
        action: CommandAction::Call {
            method: input.method,
            params: input.params,
        },
        one_way,
        timeout_ms: input.timeout,
        expires_in_s: match input.persistent {
            true => kept_ms.map(|ms| ms.div_ceil(1000)),
            false => Some(0),
        },
        retries: input.retries.unwrap_or_default(),
        created_by: call.identity.name.clone(),
        batch: None,
    };
    let SentCommand { command, ended } = send_and_wait(&call, command, !input.persistent).await?;
    if input.persistent {
        return call::json_response(PersistentRpcReceipt {
            rpc_id: command.id.0.to_string(),
        });
    }
    let state = ended.as_ref().map(|ended| ended.state.as_str());
    match (state, ended.as_ref()) {
        (Some("success"), Some(_)) if one_way => Ok(StatusCode::OK.into_response()),
        (Some("success" | "failed"), Some(ended)) => call::json_response(&ended.result),
        (state, _) => {
            let who = call.identity.name.clone();
            let id = command.id.0;
            // The command may have ended meanwhile.
            let _ = run_blocking(&call.app, move |commands| commands.cancel(id, &who)).await;
            Err(match state {
                Some("expired") => {
                    ProblemDetails::new(statuses.not_connected, "The device is not connected.")
                }
                _ => {
                    ProblemDetails::new(statuses.timed_out, "The device has not answered in time.")
                }
            })
        }
    }
}

/// ThingsBoard's names of command states.
const STATES: [(&str, &str); 8] = [
    ("pending", "QUEUED"),
    ("sent", "SENT"),
    ("acknowledged", "DELIVERED"),
    ("success", "SUCCESSFUL"),
    ("failed", "FAILED"),
    ("timeout", "TIMEOUT"),
    ("expired", "EXPIRED"),
    ("cancelled", "DELETED"),
];

fn to_thingsboard(command: &Command) -> PersistentRpc {
    PersistentRpc {
        id: EntityId::new("RPC", command.id.0.to_string()),
        device_id: EntityId::new("DEVICE", &*command.device),
        created_time: command.created_at_ms,
        expiration_time: command.expires_at_ms,
        request: json!({"method": command.method, "params": command.params}),
        response: command.result.clone().unwrap_or_default(),
        status: STATES
            .iter()
            .find(|(own, _)| *own == command.state.as_str())
            .map_or("QUEUED", |(_, theirs)| theirs),
    }
}

async fn read(call: ApiCall) -> ApiResult {
    let id = command_id(&call)?;
    let command = run_blocking(&call.app, move |tools| tools.get(id)).await?;
    let command =
        command.ok_or_else(|| ProblemDetails::not_found(format!("There is no command {id}.")));
    call::json_response(to_thingsboard(&command?))
}

async fn cancel(call: ApiCall) -> ApiResult {
    let (id, who) = (command_id(&call)?, call.identity.name.clone());
    let cancelled = run_blocking(&call.app, move |tools| match tools.cancel(id, &who) {
        // The command has ended.
        Err(DeviceServiceError::Conflict(_)) => Ok(None),
        outcome => outcome.map(Some),
    });
    if let Some(command) = cancelled.await? {
        let after = json!({"command": id});
        audit::record_action(&call, "command.cancel", Some(&command.device), Some(after)).await;
    }
    Ok(StatusCode::OK.into_response())
}

async fn list(call: ApiCall) -> ApiResult {
    let states = call.query.comma_separated(RPC_STATUS);
    let states: Vec<_> = STATES
        .iter()
        .filter(|(_, theirs)| states.iter().any(|state| state == theirs))
        .map(|(own, _)| (*own).to_owned())
        .collect();
    let device = call.path("id").to_owned();
    let page = PageNumber::from_call(&call);
    let newest = cluster_lists::newest_commands(&call.app, device, states, page.range()).await?;
    let shown = page.to_page_data(newest.rows, newest.has_more, to_thingsboard);
    call::with_missing_nodes(call::json_response(shown), &newest.missing_nodes)
}
