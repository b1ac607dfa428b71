//! Connected clients: look, send away.

use broker::info::{ClientInfo, Query};

use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, delete, get};
use crate::parameters::{CLIENT_ID, CLIENT_ID_CONTAINS, CONNECTED, Cursor, USERNAME};
use crate::problem::Problem;

pub(super) const ABOUT_CLIENT_ID: &str = "The client id, percent-encoded.";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/clients", "listClients", list)
            .role(Role::Viewer)
            .tag("clients")
            .summary("List connected clients")
            .description("A client is a connection that has said who it is; when it leaves, its session may stay.")
            .parameters(&[CLIENT_ID, CLIENT_ID_CONTAINS, USERNAME])
            .pages::<ClientInfo>(),
        get("/api/v1/clients/{client_id}", "getClient", read)
            .role(Role::Viewer)
            .tag("clients")
            .summary("Look at a connected client")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .answers::<ClientInfo>(200, "The client."),
        delete("/api/v1/clients/{client_id}", "kickClient", kick)
            .role(Role::Operator)
            .tag("clients")
            .summary("End a client's connection and session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .answers_nothing(204, "It is gone."),
    ]
}

async fn list(call: Call) -> Outcome {
    let query = Query {
        connected: Some(true),
        ..query(&call)
    };
    page(&call, query).await
}

/// The conditions of a request for clients or sessions.
pub(super) fn query(call: &Call) -> Query {
    Query {
        client_id: call.query.owned(CLIENT_ID),
        client_id_contains: call.query.owned(CLIENT_ID_CONTAINS),
        username: call.query.owned(USERNAME),
        connected: call.query.flag(CONNECTED),
        after: call.query.after().map(|cursor| cursor.first),
        limit: call.query.limit() + 1,
        ..Query::default()
    }
}

pub(super) async fn page(call: &Call, query: Query) -> Outcome {
    let rows = call.app.node.clients(query).await;
    call::page(rows, call.query.limit(), |row| {
        Cursor::new(&row.client_id, "")
    })
}

async fn connected(call: &Call) -> Result<ClientInfo, Problem> {
    let client_id = call.path("client_id");
    let known = call.app.node.client(client_id).await;
    let hint = match known {
        Some(_) => " Its session is under /api/v1/sessions.",
        None => "",
    };
    known
        .filter(|client| client.connected)
        .ok_or_else(|| Problem::not_found(format!("No client {client_id:?} is connected.{hint}")))
}

async fn read(call: Call) -> Outcome {
    call::ok(connected(&call).await?)
}

async fn kick(call: Call) -> Outcome {
    let client = connected(&call).await?;
    if !call.app.node.kick(&client.client_id).await {
        let detail = format!("Client {:?} has just left.", client.client_id);
        return Err(Problem::not_found(detail));
    }
    audit::action(&call, "client.kick", Some(&client.client_id), None).await;
    call::done()
}
