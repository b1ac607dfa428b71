//! Listeners: look, start, stop.

use broker::control::ListenerRefusal;
use broker::info::ListenerInfo;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get, post};
use crate::problem::Problem;

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct StopInput {
    /// Whether the clients of this listener are sent away too; otherwise they stay.
    disconnect_clients: bool,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let about = "The listener's name.";
    vec![
        get("/api/v1/listeners", "listListeners", list)
            .role(Role::Viewer)
            .tag("configuration")
            .summary("List listeners")
            .description("All of the configuration, on one page, whether they run or not.")
            .list::<ListenerInfo>(),
        get("/api/v1/listeners/{name}", "getListener", read)
            .role(Role::Viewer)
            .tag("configuration")
            .summary("Look at a listener")
            .path_parameter("name", about)
            .answers::<ListenerInfo>(200, "The listener."),
        post("/api/v1/listeners/{name}/start", "startListener", start)
            .role(Role::Admin)
            .tag("configuration")
            .summary("Let a stopped listener listen again")
            .path_parameter("name", about)
            .answers::<ListenerInfo>(200, "It listens.")
            .problem(409, "It listens already, or its address cannot be used."),
        post("/api/v1/listeners/{name}/stop", "stopListener", stop)
            .role(Role::Admin)
            .tag("configuration")
            .summary("Stop a listener")
            .description("Until it is started again, or the node is.")
            .path_parameter("name", about)
            .optional_body::<StopInput>()
            .answers::<ListenerInfo>(200, "It no longer listens.")
            .problem(409, "It is stopped already."),
    ]
}

async fn list(call: Call) -> Outcome {
    call::whole(call.app.node.listeners())
}

fn find(call: &Call) -> Result<ListenerInfo, Problem> {
    let name = call.path("name");
    let mut listeners = call.app.node.listeners().into_iter();
    listeners
        .find(|listener| listener.name == name)
        .ok_or_else(|| Problem::not_found(format!("There is no listener {name:?}.")))
}

async fn read(call: Call) -> Outcome {
    call::ok(find(&call)?)
}

fn refused(refusal: &ListenerRefusal) -> Problem {
    match refusal {
        ListenerRefusal::Unknown(_) => Problem::not_found(format!("{refusal}.")),
        ListenerRefusal::Already(_) | ListenerRefusal::Failed(_) => {
            Problem::conflict(format!("The listener was left as it is: {refusal}."))
        }
    }
}

async fn start(call: Call) -> Outcome {
    let name = find(&call)?.name;
    let started = call.app.node.start_listener(&name).await;
    started.map_err(|refusal| refused(&refusal))?;
    audit::action(&call, "listener.start", Some(&name), None).await;
    call::ok(find(&call)?)
}

async fn stop(mut call: Call) -> Outcome {
    let StopInput { disconnect_clients } = call.json_or_default().await?;
    let name = find(&call)?.name;
    let stopped = call.app.node.stop_listener(&name, disconnect_clients).await;
    stopped.map_err(|refusal| refused(&refusal))?;
    let after = serde_json::json!({"disconnect_clients": disconnect_clients});
    audit::action(&call, "listener.stop", Some(&name), Some(after)).await;
    call::ok(find(&call)?)
}
