//! Listeners: list, read, start, stop.

use broker::control::ListenerError;
use broker::info::ListenerInfo;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct StopInput {
    /// Whether the listener's clients are disconnected too; otherwise they stay connected.
    disconnect_clients: bool,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let about = "The listener's name.";
    vec![
        get("/api/v1/listeners", "listListeners", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("List listeners")
            .description("All configured listeners on one page, running or not.")
            .unpaged::<ListenerInfo>(),
        get("/api/v1/listeners/{name}", "getListener", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("Read a listener")
            .path_parameter("name", about)
            .response::<ListenerInfo>(200, "The listener."),
        post("/api/v1/listeners/{name}/start", "startListener", start)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Start a stopped listener")
            .path_parameter("name", about)
            .response::<ListenerInfo>(200, "It listens.")
            .problem_response(
                409,
                "The listener is already running, or its address cannot be used.",
            ),
        post("/api/v1/listeners/{name}/stop", "stopListener", stop)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Stop a listener")
            .description("It stays stopped until it or the node is started again.")
            .path_parameter("name", about)
            .optional_request_body::<StopInput>()
            .response::<ListenerInfo>(200, "The listener has stopped.")
            .problem_response(409, "The listener is already stopped."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    call::unpaged_list(call.app.node.listeners())
}

fn find(call: &ApiCall) -> Result<ListenerInfo, ProblemDetails> {
    let name = call.path("name");
    let mut listeners = call.app.node.listeners().into_iter();
    listeners
        .find(|listener| listener.name == name)
        .ok_or_else(|| ProblemDetails::not_found(format!("There is no listener {name:?}.")))
}

async fn read(call: ApiCall) -> ApiResult {
    call::json_response(find(&call)?)
}

fn listener_problem(refusal: &ListenerError) -> ProblemDetails {
    match refusal {
        ListenerError::UnknownListener(_) => ProblemDetails::not_found(format!("{refusal}.")),
        ListenerError::AlreadyInState(_) | ListenerError::Failed(_) => {
            ProblemDetails::conflict(format!("The listener was not changed: {refusal}."))
        }
    }
}

async fn start(call: ApiCall) -> ApiResult {
    let name = find(&call)?.name;
    let started = call.app.node.start_listener(&name).await;
    started.map_err(|refusal| listener_problem(&refusal))?;
    audit::record_action(&call, "listener.start", Some(&name), None).await;
    call::json_response(find(&call)?)
}

async fn stop(mut call: ApiCall) -> ApiResult {
    let StopInput { disconnect_clients } = call.body_json_or_default().await?;
    let name = find(&call)?.name;
    let stopped = call.app.node.stop_listener(&name, disconnect_clients).await;
    stopped.map_err(|refusal| listener_problem(&refusal))?;
    let after = serde_json::json!({"disconnect_clients": disconnect_clients});
    audit::record_action(&call, "listener.stop", Some(&name), Some(after)).await;
    call::json_response(find(&call)?)
}
