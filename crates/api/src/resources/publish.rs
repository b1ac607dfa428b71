//! Publishing, one message or many.

use broker::control::Published;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::message::MessageInput;
use super::refused;
use crate::access::Role;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, post};
use crate::problem::Problem;

const MAX_BATCH: usize = 1000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BatchInput {
    /// Published one after the other.
    #[schemars(length(min = 1, max = 1000))]
    messages: Vec<MessageInput>,
}

/// What became of each message, in order.
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
    /// Why it was not published.
    problem: Option<String>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/publish", "publish", publish)
            .role(Role::Operator)
            .tag("messages")
            .summary("Publish a message")
            .description(
                "In the node's own name. The answer comes when the node has taken the message, as an acknowledgement \
                 to a client would. Messages are not in the audit log.",
            )
            .body::<MessageInput>()
            .answers::<Published>(200, "It is on its way.")
            .problem(409, "A limit of the node is reached."),
        post("/api/v1/publish/batch", "publishBatch", publish_batch)
            .role(Role::Operator)
            .tag("messages")
            .summary("Publish up to 1000 messages")
            .description("Each is taken or refused by itself: look at `results`.")
            .body::<BatchInput>()
            .answers::<BatchOutcome>(200, "What became of each."),
    ]
}

async fn publish(mut call: Call) -> Outcome {
    let message: MessageInput = call.json().await?;
    let publication = message.into_publication()?;
    let published = call.app.node.publish(publication).await;
    call::ok(published.map_err(|refusal| refused(&refusal))?)
}

async fn publish_batch(mut call: Call) -> Outcome {
    let BatchInput { messages } = call.json().await?;
    if !(1..=MAX_BATCH).contains(&messages.len()) {
        let detail = format!("messages: expected 1 to {MAX_BATCH} of them.");
        return Err(Problem::field("messages", detail));
    }
    // What cannot be a message is a mistake in the request; nothing of it is published.
    let mut publications = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let publication = message.into_publication();
        publications
            .push(publication.map_err(|problem| problem.within(&format!("messages[{index}]")))?);
    }
    let mut results = Vec::with_capacity(publications.len());
    for publication in publications {
        let topic = publication.topic.clone();
        results.push(match call.app.node.publish(publication).await {
            Ok(Published { has_subscribers }) => BatchResult {
                topic,
                published: true,
                has_subscribers,
                problem: None,
            },
            Err(refusal) => BatchResult {
                topic,
                published: false,
                has_subscribers: false,
                problem: Some(refused(&refusal).detail),
            },
        });
    }
    call::ok(BatchOutcome {
        published: results.iter().filter(|result| result.published).count(),
        results,
    })
}
