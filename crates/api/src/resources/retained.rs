//! Retained messages: list, read, delete.

use broker::control::{RetainedInfo, RetainedQuery};

use super::broker_problems::publish_problem;
use super::message_json::Message;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{MATCHES_FILTER, PageCursor};

const ABOUT_TOPIC: &str = "The topic, percent-encoded: `plant%2F7%2Ftemperature`.";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/retained-messages", "listRetained", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("messages")
            .summary("List retained messages")
            .description("Sorted by topic, without payloads.")
            .parameters(&[MATCHES_FILTER])
            .paged::<RetainedInfo>(),
        get("/api/v1/retained-messages/{topic}", "getRetained", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("messages")
            .summary("Read a retained message")
            .path_parameter("topic", ABOUT_TOPIC)
            .response::<Message>(200, "The message with its payload."),
        delete(
            "/api/v1/retained-messages/{topic}",
            "deleteRetained",
            remove,
        )
        .role(Role::Operator, EndpointScope::Node)
        .tag("messages")
        .summary("Delete a retained message")
        .path_parameter("topic", ABOUT_TOPIC)
        .empty_response(204, "The retained message was deleted."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let query = RetainedQuery {
        filter: call.query.owned_text(MATCHES_FILTER),
        after: call.query.after().map(|cursor| cursor.first),
        limit: call.query.limit() + 1,
    };
    let rows = call.app.node.retained(query).await;
    call::paged_rows(rows, call.query.limit(), |row| {
        PageCursor::new(&row.topic, "")
    })
}

fn nothing_retained(topic: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no retained message at {topic:?}."))
}

async fn read(call: ApiCall) -> ApiResult {
    let topic = call.path("topic");
    let message = call.app.node.retained_message(topic).await;
    let message = message.ok_or_else(|| nothing_retained(topic))?;
    call::json_response(Message::from(message))
}

async fn remove(call: ApiCall) -> ApiResult {
    let topic = call.path("topic");
    let deleted = call.app.node.delete_retained(topic).await;
    if !deleted.map_err(|rejection| publish_problem(&rejection))? {
        return Err(nothing_retained(topic));
    }
    audit::record_action(&call, "retained.delete", Some(topic), None).await;
    call::no_content()
}
