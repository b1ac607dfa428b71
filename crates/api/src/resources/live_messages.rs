//! The stream of the messages of a topic filter or of a client.

use std::future::Future;
use std::time::Duration;

use mqtt::TopicLimits;
use observe::{LiveMessage, LiveMessageItem, LiveMessages, MessageDirection, MessageSelection};
use serde_json::{Value, json};
use tokio::time::Interval;
use wall_clock::now_ms;

use super::events;
use super::message_json::text_or_base64;
use super::stream_connection::{ItemStream, StreamConnection, StreamItem, delayed_interval};
use crate::access::Role;
use crate::call::ApiCall;
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{CLIENT_ID, Parameter, ParameterType, text_parameter};

const DEFAULT_MAX_PER_S: u64 = 50;
const DEFAULT_PAYLOAD_BYTES: u64 = 4096;
/// How often a stream reports the messages that it left out.
const SKIPPED_INTERVAL: Duration = Duration::from_secs(1);

const TOPIC_FILTER: Parameter = text_parameter(
    "topic_filter",
    "Topic filter of the messages; alternatively a `client_id`.",
);
const MAX_PER_S: Parameter = Parameter {
    name: "max_per_s",
    description: "Maximum number of messages per second; default 50. Others are counted in events named `skipped`.",
    shape: ParameterType::Number(1, 500),
};
const PAYLOAD_BYTES: Parameter = Parameter {
    name: "payload_bytes",
    description: "Maximum number of bytes of a payload; default 4096. A longer one is shortened.",
    shape: ParameterType::Number(0, 16 * 1024),
};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/messages/live", "watchMessages", stream)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("messages")
            .summary("Stream live messages")
            .description(
                "Messages published on topics that match `topic_filter`, or those that the client `client_id` publishes \
                 (`direction` is `published`) and receives (`delivered`). Server-Sent Events; with `Upgrade: websocket` a WebSocket \
                 whose text messages are the same JSON objects. Each `message` has `at_ms`, `direction`, `topic`, `payload`, \
                 `payload_encoding` (`text` or `base64`), `payload_bytes`, `is_truncated`, `qos`, `retain`, `publisher` and \
                 `content_type`. `skipped` has the `count` of messages left out because there were more than `max_per_s`, or \
                 because this client was too slow. Credentials that devices send are never shown. The stream ends when the credentials do.",
            )
            .parameters(&[TOPIC_FILTER, CLIENT_ID, MAX_PER_S, PAYLOAD_BYTES])
            .raw_response(200, "The stream.", &["text/event-stream"])
            .empty_response(101, "A WebSocket.")
            .problem_response(429, "Too many streams are open."),
    ]
}

struct MessageFeed {
    listener: StreamConnection,
    messages: LiveMessages,
    skipped: Interval,
}

impl ItemStream for MessageFeed {
    fn next(&mut self) -> impl Future<Output = Option<StreamItem>> + Send {
        self.next_item()
    }
}

impl MessageFeed {
    async fn next_item(&mut self) -> Option<StreamItem> {
        enum FeedInput {
            Message(LiveMessageItem),
            Tick,
            KeepAliveDue,
        }
        loop {
            let input = tokio::select! {
                biased;
                silence = self.listener.wait_for_keep_alive() => {
                    silence?;
                    FeedInput::KeepAliveDue
                }
                _ = self.skipped.tick() => FeedInput::Tick,
                message = self.messages.next() => FeedInput::Message(message?),
            };
            let item = match input {
                FeedInput::KeepAliveDue => return self.listener.check_and_keep_alive().await,
                FeedInput::Message(item) => Some(item),
                FeedInput::Tick => self.messages.take_skipped(),
            };
            match item {
                Some(LiveMessageItem::Message(message)) => return Some(message_item(&message)),
                Some(LiveMessageItem::Skipped(count)) => {
                    let skipped = json!({"event": "skipped", "at_ms": now_ms(), "count": count});
                    return Some(StreamItem::Event("skipped".into(), skipped.to_string()));
                }
                None => {}
            }
        }
    }
}

fn message_item(live: &LiveMessage) -> StreamItem {
    let mut json = message_json(live);
    json["event"] = "message".into();
    StreamItem::Event("message".into(), json.to_string())
}

fn message_json(live: &LiveMessage) -> Value {
    let message = &live.message;
    let is_truncated = message.payload.len() < message.payload_bytes;
    let (payload, encoding) = text_or_base64(&message.payload, is_truncated);
    json!({
        "at_ms": live.at_ms,
        "direction": match live.direction {
            MessageDirection::Published => "published",
            MessageDirection::Delivered => "delivered",
        },
        "topic": message.topic,
        "payload": payload,
        "payload_encoding": encoding,
        "payload_bytes": message.payload_bytes,
        "is_truncated": is_truncated,
        "qos": message.qos,
        "retain": message.retain,
        "publisher": message.publisher,
        "content_type": message.content_type,
    })
}

fn selection(call: &ApiCall) -> Result<MessageSelection, ProblemDetails> {
    let filter = call.query.owned_text(TOPIC_FILTER);
    match (filter, call.query.owned_text(CLIENT_ID)) {
        (Some(filter), None) => {
            let valid = mqtt::validate_topic_filter(&filter, &TopicLimits::NONE);
            valid.map_err(|error| {
                let detail = format!("topic_filter is {filter:?}: {error}.");
                ProblemDetails::invalid_parameter(TOPIC_FILTER.name, detail)
            })?;
            Ok(MessageSelection::TopicFilter(filter))
        }
        (None, Some(client_id)) => Ok(MessageSelection::Client(client_id)),
        (None, None) | (Some(_), Some(_)) => {
            let detail = "topic_filter: expected either topic_filter or client_id.";
            Err(ProblemDetails::invalid_parameter(TOPIC_FILTER.name, detail))
        }
    }
}

async fn stream(mut call: ApiCall) -> ApiResult {
    let selection = selection(&call)?;
    let max_per_s = call
        .query
        .number_value(MAX_PER_S)
        .unwrap_or(DEFAULT_MAX_PER_S);
    let payload_bytes = call.query.number_value(PAYLOAD_BYTES);
    let payload_bytes = payload_bytes.unwrap_or(DEFAULT_PAYLOAD_BYTES) as usize;
    let place = events::begin_stream(&call)?;
    let observer = &call.app.observer;
    let messages = observer.watch_messages(selection, max_per_s as u32, payload_bytes);
    let feed = MessageFeed {
        listener: StreamConnection::new(&call, place),
        messages: messages
            .map_err(|error| ProblemDetails::too_many_requests(10, format!("{error}.")))?,
        skipped: delayed_interval(SKIPPED_INTERVAL),
    };
    events::stream_response(&mut call, feed)
}
