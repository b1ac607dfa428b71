//! Sessions, also of clients that are away: look, discard.

use broker::info::ClientInfo;

use super::clients::{self, ABOUT_CLIENT_ID};
use super::no_session;
use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, delete, get};
use crate::parameters::{CLIENT_ID, CLIENT_ID_CONTAINS, CONNECTED, USERNAME};
use crate::problem::Problem;

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/sessions", "listSessions", list)
            .role(Role::Viewer)
            .tag("clients")
            .summary("List sessions")
            .description("Also those of clients that are away.")
            .parameters(&[CLIENT_ID, CLIENT_ID_CONTAINS, USERNAME, CONNECTED])
            .pages::<ClientInfo>(),
        get("/api/v1/sessions/{client_id}", "getSession", read)
            .role(Role::Viewer)
            .tag("clients")
            .summary("Look at a session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .answers::<ClientInfo>(200, "The session."),
        delete("/api/v1/sessions/{client_id}", "discardSession", discard)
            .role(Role::Operator)
            .tag("clients")
            .summary("End the session of a client that is away")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .answers_nothing(
                204,
                "It is gone, with its subscriptions and what waited in it.",
            )
            .problem(409, "The client is connected."),
    ]
}

async fn list(call: Call) -> Outcome {
    clients::page(&call, clients::query(&call)).await
}

async fn session(call: &Call) -> Result<ClientInfo, Problem> {
    let client_id = call.path("client_id");
    let session = call.app.node.client(client_id).await;
    session.ok_or_else(|| no_session(client_id))
}

async fn read(call: Call) -> Outcome {
    call::ok(session(&call).await?)
}

async fn discard(call: Call) -> Outcome {
    let session = session(&call).await?;
    let client_id = &session.client_id;
    if session.connected {
        return Err(Problem::conflict(format!(
            "Client {client_id:?} is connected. DELETE it under /api/v1/clients to end both connection and session."
        )));
    }
    if !call.app.node.discard_session(client_id).await {
        return Err(no_session(client_id));
    }
    audit::action(&call, "session.discard", Some(client_id), None).await;
    call::done()
}
