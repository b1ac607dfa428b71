//! Calls of devices on ThingsBoard's paths.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::command_sending::{Sent, sent};
use super::commands::ask;
use crate::access::{Role, now_ms};
use crate::call::{self, Call};
use crate::command_tools::{CommandRequest, CommandWish};
use crate::endpoint::{Endpoint, Outcome, post};
use crate::problem::Problem;
use axum::http::StatusCode;

/// A call as ThingsBoard has it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RpcInput {
    #[schemars(length(min = 1, max = 255))]
    method: String,
    #[serde(default)]
    params: Value,
    /// How long the answer may take, in milliseconds.
    #[serde(default)]
    #[schemars(range(min = 1))]
    timeout: Option<u64>,
    /// It is kept for a device that is not here.
    #[serde(default)]
    persistent: bool,
    /// How long it is kept then, in milliseconds since 1970.
    #[serde(default)]
    expiration_time: Option<u64>,
    #[serde(default)]
    #[schemars(range(max = 10))]
    retries: Option<u32>,
    /// Left aside.
    #[serde(default, rename = "additionalInfo")]
    _additional_info: Value,
}

/// A call that is kept.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RpcTaken {
    /// The number of the command; left out, if it is not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    rpc_id: Option<u64>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        of_thingsboard(post("/api/plugins/rpc/oneway/{id}", "sendOneWayRpc", one_way_rpc))
            .summary("Tell a device to do something, as ThingsBoard has it")
            .description(
                "Answered when the device has it. With `persistent` it is answered at once, and waits for the device.",
            )
            .answers::<RpcTaken>(200, "The device has it, or `persistent`: it was taken."),
        of_thingsboard(post("/api/plugins/rpc/twoway/{id}", "sendTwoWayRpc", two_way_rpc))
            .summary("Call a device, as ThingsBoard has it")
            .description(
                "Answered with what the device answers. With `persistent` it is answered at once, and waits for the device.",
            )
            .answers::<Value>(200, "What the device answered, or `persistent`: `rpcId`."),
    ]
}

fn of_thingsboard(endpoint: Endpoint) -> Endpoint {
    endpoint
        .role(Role::Operator)
        .tag("commands")
        .path_parameter("id", "The device's id, percent-encoded.")
        .body::<RpcInput>()
        .problem(409, "Too many commands are open, or too many callers wait.")
        .problem(504, "The device is not here, or has not answered in time.")
}

async fn one_way_rpc(call: Call) -> Outcome {
    rpc(call, true).await
}

async fn two_way_rpc(call: Call) -> Outcome {
    rpc(call, false).await
}

async fn rpc(mut call: Call, one_way: bool) -> Outcome {
    let input: RpcInput = call.json().await?;
    let now_ms = now_ms();
    let kept_ms = input
        .expiration_time
        .map(|at_ms| at_ms.saturating_sub(now_ms));
    let request = CommandRequest {
        device: call.path("id").to_owned(),
        wish: CommandWish::Call {
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
        by: call.who.name.clone(),
        waits: !input.persistent,
    };
    let Sent { id, ended, .. } = sent(&call, request).await?;
    if input.persistent {
        return call::ok(RpcTaken { rpc_id: Some(id) });
    }
    let state = ended.as_ref().and_then(|ended| ended["state"].as_str());
    match (state, ended.as_ref()) {
        (Some("success"), Some(_)) if one_way => call::ok(RpcTaken { rpc_id: None }),
        (Some("success" | "failed"), Some(ended)) => call::ok(&ended["result"]),
        _ => {
            let who = call.who.name.clone();
            // It may have ended by itself.
            let _ = ask(&call.app, move |tools| tools.cancel(id, &who)).await;
            let detail = "The device is not here, or has not answered in time.";
            Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, detail))
        }
    }
}
