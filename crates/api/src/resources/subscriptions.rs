//! Subscriptions: listing, and subscribing and unsubscribing on behalf of a client.

use broker::control::SubscriptionRequest;
use broker::info::{ListQuery, SubscriptionInfo, TopicInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::broker_problems::publish_problem;
use super::clients::ABOUT_CLIENT_ID;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::cluster_clients::{self, absent_session_problem};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::node_requests::SubscriptionListRequest;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    CLIENT_ID, CLIENT_ID_CONTAINS, MATCHES_TOPIC, PageCursor, TOPIC_FILTER,
};

/// A subscription to create.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SubscriptionInput {
    /// Topic filter as a client would send it, including `$share/...`.
    #[schemars(length(min = 1))]
    topic_filter: String,
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    #[serde(default)]
    no_local: bool,
    #[serde(default)]
    retain_as_published: bool,
    /// 0: send retained messages; 1: only if the subscription is new; 2: do not.
    #[serde(default)]
    #[schemars(range(max = 2))]
    retain_handling: u8,
}

#[derive(Serialize, JsonSchema)]
struct SubscriptionResult {
    granted_qos: u8,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let of_session = "/api/v1/sessions/{client_id}/subscriptions";
    vec![
        get("/api/v1/subscriptions", "listSubscriptions", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("List subscriptions")
            .description("Subscriptions of the sessions at all nodes of a cluster.")
            .parameters(&[CLIENT_ID, CLIENT_ID_CONTAINS, TOPIC_FILTER, MATCHES_TOPIC])
            .cluster_paged::<SubscriptionInfo>(),
        get("/api/v1/topics", "listTopics", topics)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("List topic filters in use")
            .description("Filters and numbers of subscribers of this node.")
            .parameters(&[TOPIC_FILTER, MATCHES_TOPIC])
            .paged::<TopicInfo>(),
        post(of_session, "subscribe", subscribe)
            .role(Role::Operator, EndpointScope::Node)
            .tag("clients")
            .summary("Subscribe on behalf of a client")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .request_body::<SubscriptionInput>()
            .response::<SubscriptionResult>(200, "The session has the subscription.")
            .problem_response(409, "A limit of the session or of the node is reached, or the session is at another node of the cluster."),
        delete(
            format!("{of_session}/{{topic_filter}}"),
            "unsubscribe",
            unsubscribe,
        )
        .role(Role::Operator, EndpointScope::Node)
        .tag("clients")
        .summary("Unsubscribe on behalf of a client")
        .path_parameter("client_id", ABOUT_CLIENT_ID)
        .path_parameter(
            "topic_filter",
            "As subscribed, percent-encoded: `plant%2F%23`.",
        )
        .empty_response(204, "The session no longer has the subscription.")
        .problem_response(409, "The session is at another node of the cluster."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let limit = call.query.limit();
    let request = SubscriptionListRequest {
        query: ListQuery {
            client_id: call.query.owned_text(CLIENT_ID),
            client_id_contains: call.query.owned_text(CLIENT_ID_CONTAINS),
            topic_filter: call.query.owned_text(TOPIC_FILTER),
            matches_topic: call.query.owned_text(MATCHES_TOPIC),
            limit: limit + 1,
            ..ListQuery::default()
        },
        after: call
            .query
            .after()
            .map(|cursor| (cursor.first, cursor.second)),
    };
    let page = cluster_clients::subscriptions(&call.app, request, limit).await;
    cluster_clients::cluster_page(page, |row| {
        PageCursor::new(&row.client_id, &row.topic_filter)
    })
}

async fn topics(call: ApiCall) -> ApiResult {
    let query = ListQuery {
        topic_filter: call.query.owned_text(TOPIC_FILTER),
        matches_topic: call.query.owned_text(MATCHES_TOPIC),
        after: call.query.after().map(|cursor| cursor.first),
        limit: call.query.limit() + 1,
        ..ListQuery::default()
    };
    let rows = call.app.node.topics(query).await;
    call::paged_rows(rows, call.query.limit(), |row| {
        PageCursor::new(&row.topic_filter, "")
    })
}

async fn subscribe(mut call: ApiCall) -> ApiResult {
    let input: SubscriptionInput = call.body_json().await?;
    for (field, value) in [
        ("qos", input.qos),
        ("retain_handling", input.retain_handling),
    ] {
        if value > 2 {
            return Err(ProblemDetails::invalid_field(
                field,
                format!("{field}: expected 0, 1 or 2."),
            ));
        }
    }
    let after = serde_json::to_value(&input).ok();
    let subscription = SubscriptionRequest {
        topic_filter: input.topic_filter,
        qos: input.qos,
        no_local: input.no_local,
        retain_as_published: input.retain_as_published,
        retain_handling: input.retain_handling,
    };
    let client_id = call.path("client_id");
    let Some(granted) = call.app.node.subscribe(client_id, subscription).await else {
        return Err(absent_session_problem(&call.app, client_id).await);
    };
    let granted_qos = granted.map_err(|rejection| publish_problem(&rejection))?;
    audit::record_action(&call, "session.subscribe", Some(client_id), after).await;
    call::json_response(SubscriptionResult { granted_qos })
}

async fn unsubscribe(call: ApiCall) -> ApiResult {
    let (client_id, topic_filter) = (call.path("client_id"), call.path("topic_filter"));
    if !call.app.node.unsubscribe(client_id, topic_filter).await {
        if call.app.node.client(client_id).await.is_none() {
            return Err(absent_session_problem(&call.app, client_id).await);
        }
        let detail = format!("There is no subscription of {client_id:?} to {topic_filter:?}.");
        return Err(ProblemDetails::not_found(detail));
    }
    let after = serde_json::json!({"topic_filter": topic_filter});
    audit::record_action(&call, "session.unsubscribe", Some(client_id), Some(after)).await;
    call::no_content()
}
