//! Commands: what devices are told to do, and what came of it.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::devices::problem;
use crate::access::Role;
use crate::app::App;
use crate::audit;
use crate::call::{self, Call, Page};
use crate::command_tools::{CommandQuery, CommandRequest, CommandTools, CommandWish, TakenCommand};
use crate::device_tools::DeviceProblem;
use crate::endpoint::{Endpoint, Outcome, get, post};
use crate::parameters::{Cursor, Parameter, Shape};
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
/// Tries of one command beyond the first.
const MAX_RETRIES: u32 = 10;

/// How a command goes to its device.
struct Manner {
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
            fn manner(&self) -> Manner {
                Manner {
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

/// A command, and what came of it. Times are in milliseconds since 1970.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the commands answer")]
struct Command {
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
    let of_device = |endpoint: Endpoint| {
        endpoint
            .role(Role::Operator)
            .tag("commands")
            .path_parameter("id", "The device's id, percent-encoded.")
            .answers::<Command>(200, "It has ended; `state` says how.")
            .answers::<Command>(
                202,
                "It is on its way or waits for its device; look at it later.",
            )
            .with_location()
            .problem(409, "Too many commands are open, or too many callers wait.")
    };
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("commands")
            .path_parameter("id", "The command's number.")
    };
    vec![
        of_device(post("/api/v1/devices/{id}/commands", "sendCommand", send))
            .summary("Tell a device to do something")
            .description(
                "The command is in the store when it is answered, and goes out when the device is where it hears it. Where the device \
                 is here, the answer waits until the command has ended, at most for `timeout_ms` and for `http.request_timeout_s`.",
            )
            .body::<CallInput>(),
        of_device(post(
            "/api/v1/devices/{id}/functions/{function}",
            "invokeFunction",
            invoke,
        ))
        .path_parameter("function", "The id of a function of its thing model.")
        .summary("Call a function of a device")
        .description("As `sendCommand`; inputs are checked against the thing model.")
        .optional_body::<InvokeInput>(),
        of_device(post(
            "/api/v1/devices/{id}/properties/read",
            "readProperties",
            read_properties,
        ))
        .summary("Ask a device for properties")
        .description("As `sendCommand`; the keys are checked against the thing model.")
        .body::<ReadInput>(),
        of_device(post(
            "/api/v1/devices/{id}/properties/write",
            "writeProperties",
            write_properties,
        ))
        .summary("Set properties of a device")
        .description("As `sendCommand`; keys and values are checked against the thing model.")
        .body::<WriteInput>(),
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
        one(post("/api/v1/commands/{id}/cancel", "cancelCommand", cancel))
            .role(Role::Operator)
            .summary("Cancel a command")
            .description("What was sent already the device may do nevertheless.")
            .answers::<Command>(200, "It, as it is now.")
            .problem(409, "It has ended already."),
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

const OF_LISTS: &str = "The newest first. A page may be short or empty and still have a next one: the node looks at a bounded number \
                        of commands for each. How long commands are kept after their end say the settings `commands.finished_retention_d` \
                        and `commands.max_finished`.";

/// Asks the commands on a thread that may read the disk.
pub(super) async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn CommandTools) -> Result<T, DeviceProblem> + Send + 'static,
) -> Result<T, Problem> {
    let tools = Arc::clone(&app.command_tools);
    let asked = tokio::task::spawn_blocking(move || question(&*tools)).await;
    asked
        .map_err(|_| Problem::unavailable("The commands cannot be read now."))?
        .map_err(problem)
}

fn number(call: &Call) -> Result<u64, Problem> {
    let id = call.path("id");
    id.parse()
        .map_err(|_| Problem::not_found(format!("There is no command {id:?}.")))
}

async fn send(mut call: Call) -> Outcome {
    let input: CallInput = call.json().await?;
    let manner = input.manner();
    let wish = CommandWish::Call {
        method: input.method,
        params: input.params,
    };
    request(call, wish, manner).await
}

async fn invoke(mut call: Call) -> Outcome {
    let input: InvokeInput = call.json_or_default().await?;
    let manner = input.manner();
    let wish = CommandWish::Invoke {
        function: call.path("function").to_owned(),
        params: input.params.map_or(Value::Null, Value::Object),
    };
    request(call, wish, manner).await
}

async fn read_properties(mut call: Call) -> Outcome {
    let input: ReadInput = call.json().await?;
    let manner = input.manner();
    request(call, CommandWish::Read(input.keys), manner).await
}

async fn write_properties(mut call: Call) -> Outcome {
    let input: WriteInput = call.json().await?;
    let manner = input.manner();
    request(call, CommandWish::Write(input.values), manner).await
}

async fn request(call: Call, wish: CommandWish, manner: Manner) -> Outcome {
    check_retries(manner.retries)?;
    if manner.timeout_ms == Some(0) {
        return Err(Problem::field(
            "timeout_ms",
            "timeout_ms: expected at least 1.",
        ));
    }
    let request = CommandRequest {
        device: call.path("id").to_owned(),
        wish,
        one_way: manner.one_way,
        timeout_ms: manner.timeout_ms,
        expires_in_s: manner.expires_in_s,
        retries: manner.retries,
        by: call.who.name.clone(),
        waits: manner.wait,
    };
    let device = request.device.clone();
    let TakenCommand { id, value, end } =
        ask(&call.app, move |tools| tools.request(request)).await?;
    let after = json!({
        "command": id,
        "kind": value["kind"],
        "method": value["method"],
    });
    audit::action(&call, "command.send", Some(&device), Some(after)).await;
    let ended = match end {
        // Before the request itself has taken too long.
        Some(end) => {
            let most = call.app.config.request_timeout().mul_f32(0.9);
            tokio::time::timeout(most, end).await.ok().flatten()
        }
        None => None,
    };
    Ok(match ended {
        Some(ended) => (StatusCode::OK, axum::Json(ended)).into_response(),
        None => {
            let now = ask(&call.app, move |tools| tools.get(id)).await?;
            accepted(id, now.unwrap_or(value))
        }
    })
}

fn accepted(id: u64, value: Value) -> Response {
    let mut response = (StatusCode::ACCEPTED, axum::Json(value)).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/api/v1/commands/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

async fn list_of_device(call: Call) -> Outcome {
    let device = call.path("id").to_owned();
    page(call, Some(device)).await
}

async fn list(call: Call) -> Outcome {
    page(call, None).await
}

async fn page(call: Call, device: Option<String>) -> Outcome {
    let before = match call.query.after() {
        None => None,
        Some(cursor) => Some(
            cursor
                .first
                .parse()
                .map_err(|_| Problem::parameter("after", "after is not of a list of commands."))?,
        ),
    };
    let states = call.query.text(STATE.name).into_iter();
    let query = CommandQuery {
        device,
        states: states
            .flat_map(|states| states.split(','))
            .map(str::to_owned)
            .collect(),
        before,
        limit: call.query.limit(),
    };
    let page = ask(&call.app, move |tools| tools.list(&query)).await?;
    call::ok(Page {
        data: page.rows,
        next: page
            .next
            .map(|id| Cursor::new(&id.to_string(), "").encode()),
    })
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

async fn one_way_rpc(call: Call) -> Outcome {
    rpc(call, true).await
}

async fn two_way_rpc(call: Call) -> Outcome {
    rpc(call, false).await
}

async fn rpc(mut call: Call, one_way: bool) -> Outcome {
    let input: RpcInput = call.json().await?;
    let now_ms = crate::access::now_ms();
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
    check_retries(request.retries)?;
    let device = request.device.clone();
    let TakenCommand { id, value, end } =
        ask(&call.app, move |tools| tools.request(request)).await?;
    let after = json!({"command": id, "kind": "call", "method": value["method"]});
    audit::action(&call, "command.send", Some(&device), Some(after)).await;
    if input.persistent {
        return call::ok(RpcTaken { rpc_id: Some(id) });
    }
    let ended = match end {
        Some(end) => {
            let most = call.app.config.request_timeout().mul_f32(0.9);
            tokio::time::timeout(most, end).await.ok().flatten()
        }
        None => None,
    };
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

fn check_retries(retries: u32) -> Result<(), Problem> {
    match retries <= MAX_RETRIES {
        true => Ok(()),
        false => Err(Problem::field(
            "retries",
            format!("retries: expected at most {MAX_RETRIES}."),
        )),
    }
}
