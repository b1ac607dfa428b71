//! Session queues: list, clear, and delete single messages.

use schemars::JsonSchema;
use serde::Serialize;

use super::clients::ABOUT_CLIENT_ID;
use super::message_json::Message;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::cluster_clients::absent_session_problem;
use crate::endpoint::{Endpoint, EndpointScope, delete, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::PageCursor;

/// A message in a session queue.
#[derive(Serialize, JsonSchema)]
struct QueuedMessageView {
    /// Position, which grows along the queue.
    position: u64,
    /// Packet id of a message that was sent and is not acknowledged yet.
    packet_id: Option<u16>,
    message: Message,
}

#[derive(Serialize, JsonSchema)]
struct ClearedQueue {
    /// Number of messages deleted. Messages sent and not yet acknowledged are kept.
    removed: u64,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let path = "/api/v1/sessions/{client_id}/queue";
    vec![
        get(path, "listQueue", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("List queued messages of a session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .paged::<QueuedMessageView>()
            .problem_response(409, "The session is at another node of the cluster."),
        delete(path, "clearQueue", clear)
            .role(Role::Operator, EndpointScope::Node)
            .tag("clients")
            .summary("Clear the queue of a session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .response::<ClearedQueue>(200, "The number of messages deleted.")
            .problem_response(409, "The session is at another node of the cluster."),
        delete(format!("{path}/{{position}}"), "deleteQueued", remove)
            .role(Role::Operator, EndpointScope::Node)
            .tag("clients")
            .summary("Delete a queued message of a session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .path_parameter("position", "Position of the message, as in the list.")
            .empty_response(204, "The message was deleted.")
            .problem_response(409, "The session is at another node of the cluster."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let client_id = call.path("client_id");
    let after = call.query.after_number("waiting messages")?;
    let limit = call.query.limit();
    let app = &call.app;
    let Some(waiting) = app.node.queued_messages(client_id, after, limit + 1).await else {
        return Err(absent_session_problem(app, client_id).await);
    };
    let rows = waiting.into_iter().map(|queued| QueuedMessageView {
        position: queued.position,
        packet_id: queued.packet_id,
        message: queued.message.into(),
    });
    call::paged_rows(rows.collect(), limit, |row| {
        PageCursor::new(&row.position.to_string(), "")
    })
}

async fn clear(call: ApiCall) -> ApiResult {
    let client_id = call.path("client_id");
    let Some(removed) = call.app.node.clear_queue(client_id).await else {
        return Err(absent_session_problem(&call.app, client_id).await);
    };
    let after = serde_json::json!({"removed": removed});
    audit::record_action(&call, "queue.clear", Some(client_id), Some(after)).await;
    call::json_response(ClearedQueue { removed })
}

async fn remove(call: ApiCall) -> ApiResult {
    let (client_id, position) = (call.path("client_id"), call.path("position"));
    let number = position.parse::<u64>().map_err(|_| {
        let detail = format!("position is {position:?}; expected a whole number.");
        ProblemDetails::invalid_parameter("position", detail)
    })?;
    let Some(was_removed) = call.app.node.delete_queued(client_id, number).await else {
        return Err(absent_session_problem(&call.app, client_id).await);
    };
    if !was_removed {
        let detail = format!("There is no unsent message at position {number}.");
        return Err(ProblemDetails::not_found(detail));
    }
    let after = serde_json::json!({"position": number});
    audit::record_action(&call, "queue.delete", Some(client_id), Some(after)).await;
    call::no_content()
}
