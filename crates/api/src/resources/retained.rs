//! Retained messages: list, look, delete.

use broker::control::{RetainedInfo, RetainedQuery};

use super::message::Message;
use super::refused;
use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, delete, get};
use crate::parameters::{Cursor, MATCHES_FILTER};
use crate::problem::Problem;

const ABOUT_TOPIC: &str = "The topic, percent-encoded: `plant%2F7%2Ftemperature`.";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/retained", "listRetained", list)
            .role(Role::Viewer)
            .tag("messages")
            .summary("List retained messages")
            .description("Sorted by topic, without payloads.")
            .parameters(&[MATCHES_FILTER])
            .pages::<RetainedInfo>(),
        get("/api/v1/retained/{topic}", "getRetained", read)
            .role(Role::Viewer)
            .tag("messages")
            .summary("Look at a retained message")
            .path_parameter("topic", ABOUT_TOPIC)
            .answers::<Message>(200, "The message with its payload."),
        delete("/api/v1/retained/{topic}", "deleteRetained", remove)
            .role(Role::Operator)
            .tag("messages")
            .summary("Delete a retained message")
            .path_parameter("topic", ABOUT_TOPIC)
            .answers_nothing(204, "Nothing is retained there any more."),
    ]
}

async fn list(call: Call) -> Outcome {
    let query = RetainedQuery {
        filter: call.query.owned(MATCHES_FILTER),
        after: call.query.after().map(|cursor| cursor.first),
        limit: call.query.limit() + 1,
    };
    let rows = call.app.node.retained(query).await;
    call::page(rows, call.query.limit(), |row| Cursor::new(&row.topic, ""))
}

fn nothing_retained(topic: &str) -> Problem {
    Problem::not_found(format!("Nothing is retained at {topic:?}."))
}

async fn read(call: Call) -> Outcome {
    let topic = call.path("topic");
    let message = call.app.node.retained_message(topic).await;
    let message = message.ok_or_else(|| nothing_retained(topic))?;
    call::ok(Message::from(message))
}

async fn remove(call: Call) -> Outcome {
    let topic = call.path("topic");
    let deleted = call.app.node.delete_retained(topic).await;
    if !deleted.map_err(|refusal| refused(&refusal))? {
        return Err(nothing_retained(topic));
    }
    audit::action(&call, "retained.delete", Some(topic), None).await;
    call::done()
}
