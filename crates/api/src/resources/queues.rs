//! What waits for a session: look, throw away.

use schemars::JsonSchema;
use serde::Serialize;

use super::clients::ABOUT_CLIENT_ID;
use super::message::Message;
use super::no_session;
use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, delete, get};
use crate::parameters::Cursor;
use crate::problem::Problem;

/// A message that waits for a session.
#[derive(Serialize, JsonSchema)]
struct Queued {
    /// Grows along the queue.
    position: u64,
    /// Of a message that was sent and is not acknowledged yet.
    packet_id: Option<u16>,
    message: Message,
}

#[derive(Serialize, JsonSchema)]
struct Cleared {
    /// Messages thrown away. Those sent and not acknowledged yet stay.
    removed: u64,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let path = "/api/v1/sessions/{client_id}/queue";
    vec![
        get(path, "listQueue", list)
            .role(Role::Viewer)
            .tag("clients")
            .summary("List what waits for a session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .pages::<Queued>(),
        delete(path, "clearQueue", clear)
            .role(Role::Operator)
            .tag("clients")
            .summary("Throw away what waits for a session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .answers::<Cleared>(200, "How many it were."),
        delete(format!("{path}/{{position}}"), "deleteQueued", remove)
            .role(Role::Operator)
            .tag("clients")
            .summary("Throw away one message that waits for a session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .path_parameter("position", "Its position, as the list tells it.")
            .answers_nothing(204, "It is gone."),
    ]
}

async fn list(call: Call) -> Outcome {
    let client_id = call.path("client_id");
    let after = call.query.after_number("waiting messages")?;
    let limit = call.query.limit();
    let waiting = call.app.node.queue(client_id, after, limit + 1).await;
    let waiting = waiting.ok_or_else(|| no_session(client_id))?;
    let rows = waiting.into_iter().map(|queued| Queued {
        position: queued.position,
        packet_id: queued.packet_id,
        message: queued.message.into(),
    });
    call::page(rows.collect(), limit, |row| {
        Cursor::new(&row.position.to_string(), "")
    })
}

async fn clear(call: Call) -> Outcome {
    let client_id = call.path("client_id");
    let removed = call.app.node.clear_queue(client_id).await;
    let removed = removed.ok_or_else(|| no_session(client_id))?;
    let after = serde_json::json!({"removed": removed});
    audit::action(&call, "queue.clear", Some(client_id), Some(after)).await;
    call::ok(Cleared { removed })
}

async fn remove(call: Call) -> Outcome {
    let (client_id, position) = (call.path("client_id"), call.path("position"));
    let number = position.parse::<u64>().map_err(|_| {
        let detail = format!("position is {position:?}; expected a whole number.");
        Problem::parameter("position", detail)
    })?;
    let removed = call.app.node.delete_queued(client_id, number).await;
    if !removed.ok_or_else(|| no_session(client_id))? {
        let detail = format!("No message that was not sent yet waits at position {number}.");
        return Err(Problem::not_found(detail));
    }
    let after = serde_json::json!({"position": number});
    audit::action(&call, "queue.delete", Some(client_id), Some(after)).await;
    call::done()
}
