//! Publishing one message or many.

use broker::control::PublishResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::broker_problems::publish_problem;
use super::message_json::MessageInput;
use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, post};
use crate::problem_details::{ApiResult, ProblemDetails};

const MAX_BATCH: usize = 1000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BatchInput {
    /// Messages, published in order.
    #[schemars(length(min = 1, max = 1000))]
    messages: Vec<MessageInput>,
}

/// Results of the messages, in order.
#[derive(Serialize, JsonSchema)]
struct BatchOutcome {
    published: usize,
    results: Vec<BatchResult>,
}

#[derive(Serialize, JsonSchema)]
struct BatchResult {
    topic: String,
    published: bool,
    has_subscribers: bool,
    /// Reason why it was not published.
    problem: Option<String>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/publish", "publish", publish)
            .role(Role::Operator, EndpointScope::Node)
            .tag("messages")
            .summary("Publish a message")
            .description(
                "Publishes on behalf of the node. The response is sent when the node has accepted the message, as an acknowledgement \
                 to a client would. Messages are not in the audit log.",
            )
            .request_body::<MessageInput>()
            .response::<PublishResult>(200, "The message was published.")
            .problem_response(409, "A limit of the node is reached."),
        post("/api/v1/publish/batch", "publishBatch", publish_batch)
            .role(Role::Operator, EndpointScope::Node)
            .tag("messages")
            .summary("Publish up to 1000 messages")
            .description("Each message is accepted or rejected separately; see `results`.")
            .request_body::<BatchInput>()
            .response::<BatchOutcome>(200, "The result of each message."),
    ]
}

async fn publish(mut call: ApiCall) -> ApiResult {
    let message: MessageInput = call.body_json().await?;
    let publication = message.into_publication()?;
    let published = call.app.node.publish(publication).await;
    call::json_response(published.map_err(|rejection| publish_problem(&rejection))?)
}

async fn publish_batch(mut call: ApiCall) -> ApiResult {
    let BatchInput { messages } = call.body_json().await?;
    if !(1..=MAX_BATCH).contains(&messages.len()) {
        let detail = format!("messages: expected 1 to {MAX_BATCH} messages.");
        return Err(ProblemDetails::invalid_field("messages", detail));
    }
    // An invalid message is an error of the request: nothing is published.
    let mut publications = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let publication = message.into_publication();
        publications.push(
            publication.map_err(|problem| problem.within_part(&format!("messages[{index}]")))?,
        );
    }
    let mut results = Vec::with_capacity(publications.len());
    for publication in publications {
        let topic = publication.topic.clone();
        results.push(match call.app.node.publish(publication).await {
            Ok(PublishResult { has_subscribers }) => BatchResult {
                topic,
                published: true,
                has_subscribers,
                problem: None,
            },
            Err(rejection) => BatchResult {
                topic,
                published: false,
                has_subscribers: false,
                problem: Some(publish_problem(&rejection).detail),
            },
        });
    }
    call::json_response(BatchOutcome {
        published: results.iter().filter(|result| result.published).count(),
        results,
    })
}
