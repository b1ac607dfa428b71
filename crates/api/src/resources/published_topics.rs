//! The tree of the topics on which messages are published.

use observe::{MessageCopy, TopicNode, TopicQuery};
use schemars::JsonSchema;
use serde::Serialize;

use super::message_json::{PayloadEncoding, text_or_base64};
use crate::access::Role;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::ApiResult;
use crate::query_parameters::{AFTER, LIMIT, PageCursor, Parameter, text_parameter};

const PARENT: Parameter = text_parameter(
    "parent",
    "Topic whose direct children are listed: `plant/7`; default: the first levels.",
);
const CONTAINS: Parameter = text_parameter(
    "contains",
    "Part of a topic below the parent, without regard to case. Then whole topics are listed instead of children.",
);

/// Published topics, and how complete they are.
#[derive(Serialize, JsonSchema)]
struct PublishedTopics {
    data: Vec<PublishedTopic>,
    /// Value of `after` for the next page; `null` on the last page.
    next: Option<String>,
    /// Time since which messages are recorded.
    since_ms: u64,
    /// Number of recorded topics.
    topics: u64,
    /// Messages recorded.
    recorded: u64,
    /// Messages left out because there were too many per second, or too many topics.
    skipped: u64,
    /// Whether new topics are left out because the maximum number is reached.
    is_full: bool,
}

/// A topic, or a part of topics.
#[derive(Serialize, JsonSchema)]
struct PublishedTopic {
    /// Its last level, or with `contains` the part below the parent.
    name: String,
    /// The whole topic up to this level.
    topic: String,
    /// Number of topics at and below it.
    topics: u64,
    has_children: bool,
    /// Messages at and below it.
    messages: u64,
    /// Bytes of their payloads.
    bytes: u64,
    /// Messages per second during the last ten seconds.
    messages_per_s: f64,
    /// Time of the last message at or below it.
    last_at_ms: u64,
    /// Last message on the topic itself.
    last: Option<LastMessage>,
}

/// The last message on a topic.
#[derive(Serialize, JsonSchema)]
struct LastMessage {
    /// The first 256 bytes.
    payload: String,
    payload_encoding: PayloadEncoding,
    payload_bytes: usize,
    is_truncated: bool,
    qos: u8,
    retain: bool,
    at_ms: u64,
    /// Client id of the publisher; `null`: the node itself.
    publisher: Option<Box<str>>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/published-topics", "listPublishedTopics", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("messages")
            .summary("List published topics")
            .description(
                "Topics on which messages are published, as a tree, with the last message, rate and count. The node records them \
                 only while clients read this list: the first request begins, and five minutes after the last one the tree is \
                 emptied. It contains at most 50000 topics of at most 512 bytes, and 5000 messages per second and shard; \
                 `skipped` counts the others.",
            )
            .parameters(&[PARENT, CONTAINS, LIMIT, AFTER])
            .response::<PublishedTopics>(200, "A page, ordered by name."),
    ]
}

impl From<MessageCopy> for LastMessage {
    fn from(message: MessageCopy) -> Self {
        let is_truncated = message.payload.len() < message.payload_bytes;
        let (payload, payload_encoding) = text_or_base64(&message.payload, is_truncated);
        Self {
            payload,
            payload_encoding,
            payload_bytes: message.payload_bytes,
            is_truncated,
            qos: message.qos,
            retain: message.retain,
            at_ms: message.received_ms,
            publisher: message.publisher,
        }
    }
}

impl From<TopicNode> for PublishedTopic {
    fn from(node: TopicNode) -> Self {
        Self {
            name: node.name,
            topic: node.path,
            topics: node.topics,
            has_children: node.has_children,
            messages: node.messages,
            bytes: node.bytes,
            messages_per_s: (node.messages_per_s * 100.0).round() / 100.0,
            last_at_ms: node.last_ms,
            last: node.last.map(LastMessage::from),
        }
    }
}

async fn list(call: ApiCall) -> ApiResult {
    let query = TopicQuery {
        parent: call.query.owned_text(PARENT),
        after: call.query.after().map(|cursor| cursor.first),
        contains: call.query.owned_text(CONTAINS),
        limit: call.query.limit(),
    };
    let observer = call.app.observer.clone();
    let read = move || observer.topics(&query);
    let page = run_blocking(read, "The topics cannot be read now.").await?;
    let last = page.nodes.last().filter(|_| page.has_more);
    call::json_response(PublishedTopics {
        next: last.map(|node| PageCursor::new(&node.name, "").encode()),
        data: page.nodes.into_iter().map(PublishedTopic::from).collect(),
        since_ms: page.status.since_ms,
        topics: page.status.topics,
        recorded: page.status.recorded,
        skipped: page.status.skipped,
        is_full: page.status.is_full,
    })
}
