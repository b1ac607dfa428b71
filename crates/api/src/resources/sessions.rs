//! Sessions, including those of disconnected clients: list, read, discard.

use broker::info::ClientInfo;

use super::broker_problems::session_not_found;
use super::clients::{self, ABOUT_CLIENT_ID};
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::cluster_clients;
use crate::endpoint::{Endpoint, EndpointScope, delete, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{CLIENT_ID, CLIENT_ID_CONTAINS, CONNECTED, USERNAME};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/sessions", "listSessions", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("List sessions")
            .description("Includes sessions of disconnected clients, at all nodes of a cluster.")
            .parameters(&[
                CLIENT_ID,
                CLIENT_ID_CONTAINS,
                USERNAME,
                CONNECTED,
                clients::CLIENT_SORT,
            ])
            .cluster_paged::<ClientInfo>(),
        get("/api/v1/sessions/{client_id}", "getSession", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("Read a session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .response::<ClientInfo>(200, "The session.")
            .problem_response(
                503,
                "A node of the cluster that may have the session does not answer.",
            ),
        delete("/api/v1/sessions/{client_id}", "discardSession", discard)
            .role(Role::Operator, EndpointScope::Node)
            .tag("clients")
            .summary("Discard the session of a disconnected client")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .empty_response(
                204,
                "The session was deleted with its subscriptions and its queue.",
            )
            .problem_response(409, "The client is connected.")
            .problem_response(
                503,
                "A node of the cluster that may have the session does not answer.",
            ),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    clients::client_page(&call, clients::client_query(&call)).await
}

async fn session(call: &ApiCall) -> Result<ClientInfo, ProblemDetails> {
    let client_id = call.path("client_id");
    let session = cluster_clients::find_client(&call.app, client_id).await?;
    session.ok_or_else(|| session_not_found(client_id))
}

async fn read(call: ApiCall) -> ApiResult {
    call::json_response(session(&call).await?)
}

async fn discard(call: ApiCall) -> ApiResult {
    let session = session(&call).await?;
    let client_id = &session.client_id;
    if session.connected {
        return Err(ProblemDetails::conflict(format!(
            "Client {client_id:?} is connected. DELETE it under /api/v1/clients to end both connection and session."
        )));
    }
    if !cluster_clients::discard_session(&call.app, &session).await? {
        return Err(session_not_found(client_id));
    }
    audit::record_action(&call, "session.discard", Some(client_id), None).await;
    call::no_content()
}
