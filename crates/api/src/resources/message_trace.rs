//! The trace of recorded messages: the steps that each took, and the reasons.

use hooks::AckKind;
use mqtt::TopicLimits;
use observe::{
    MAX_RECORDING_S, MessageStep, MessageTraceEntry, MessageTraceQuery, RecordingSelection,
    RecordingStatus,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, put};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    CLIENT_ID, MATCHES_FILTER, Parameter, text_parameter, time_parameter,
};

const DEFAULT_DURATION_S: u64 = 300;
const LOG_CLIENT_ID: Parameter = text_parameter(
    CLIENT_ID.name,
    "Client id of the publisher or of the subscriber.",
);
const FROM_MS: Parameter = time_parameter("from_ms", "Earliest time, in milliseconds since 1970.");
const TO_MS: Parameter = time_parameter("to_ms", "Latest time, exclusive.");

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RecordingInput {
    /// Only messages on topics that this filter matches; default: all topics.
    #[serde(default)]
    topic_filter: Option<String>,
    /// Only messages that this client publishes or that are for it; default: all clients.
    #[serde(default)]
    client_id: Option<String>,
    /// Seconds until the recording ends by itself.
    #[serde(default = "default_duration_s")]
    #[schemars(range(min = 1, max = 3600))]
    duration_s: u64,
}

fn default_duration_s() -> u64 {
    DEFAULT_DURATION_S
}

/// The recording of messages.
#[derive(Serialize, JsonSchema)]
struct MessageRecording {
    running: bool,
    topic_filter: Option<String>,
    client_id: Option<String>,
    /// `null`: nothing has been recorded since the node started.
    since_ms: Option<u64>,
    /// End, also of a recording that is running.
    until_ms: Option<u64>,
    /// Number of entries; at most 20000, the newest.
    entries: u64,
    /// Entries left out because there were more than 2000 per second.
    skipped: u64,
}

/// One step of a message.
#[derive(Serialize, JsonSchema)]
struct MessageTraceRow {
    number: u64,
    at_ms: u64,
    /// The same for all steps of one message.
    message_id: String,
    topic: String,
    qos: u8,
    /// Client id; `null`: the node itself.
    publisher: Option<String>,
    /// Client id of the subscriber that the step is about.
    subscriber: Option<String>,
    /// `received`: accepted from the publisher; `denied` to the publisher; `rules`: evaluated by the rules in `rules`; `queued`:
    /// waits for a client without a connection; `sent`; `acknowledged`; `dropped` for the subscriber, or for all.
    step: &'static str,
    /// Why it was dropped: `no_subscribers`, `queue_full`, `expired`, `too_large`, `no_local`, `not_authorized`, `session_ended`
    /// or `offline` (QoS 0, and the client has no connection).
    reason: Option<&'static str>,
    rules: Vec<String>,
    payload_bytes: Option<usize>,
    packet_id: Option<u16>,
    /// The packet that acknowledged it: `puback`, `pubrec` or `pubcomp`.
    acknowledgement: Option<&'static str>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/message-recording", "getMessageRecording", status)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("messages")
            .summary("Read the state of the message recording")
            .response::<MessageRecording>(200, "The recording that is running, or the last one."),
        put("/api/v1/message-recording", "startMessageRecording", start)
            .role(Role::Operator, EndpointScope::Node)
            .tag("messages")
            .summary("Begin a message recording")
            .description(
                "Begins to log each step of the selected messages, and discards the previous recording. It ends automatically after `duration_s`. The node \
                 records one selection at a time. Without a recording, messages have no additional cost.",
            )
            .request_body::<RecordingInput>()
            .response::<MessageRecording>(200, "It is running."),
        delete("/api/v1/message-recording", "stopMessageRecording", stop)
            .role(Role::Operator, EndpointScope::Node)
            .tag("messages")
            .summary("End the message recording")
            .description("Its entries stay until the next one begins.")
            .empty_response(204, "No recording is running."),
        get("/api/v1/message-trace", "listMessageTrace", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("messages")
            .summary("List the steps of recorded messages")
            .description("The steps of recorded messages in order; see `PUT /api/v1/message-recording`.")
            .parameters(&[MATCHES_FILTER, LOG_CLIENT_ID, FROM_MS, TO_MS])
            .paged::<MessageTraceRow>(),
    ]
}

impl From<RecordingStatus> for MessageRecording {
    fn from(status: RecordingStatus) -> Self {
        Self {
            running: status.is_running,
            topic_filter: status.selection.topic_filter,
            client_id: status.selection.client_id,
            since_ms: status.since_ms,
            until_ms: status.until_ms,
            entries: status.entries,
            skipped: status.skipped,
        }
    }
}

impl From<MessageTraceEntry> for MessageTraceRow {
    fn from(entry: MessageTraceEntry) -> Self {
        let owned = |text: Option<std::sync::Arc<str>>| text.map(|text| (*text).to_owned());
        let mut row = Self {
            number: entry.number,
            at_ms: entry.at_ms,
            message_id: format!(
                "{:x}-{:x}",
                entry.message_id.received_ms, entry.message_id.number
            ),
            topic: (*entry.topic).to_owned(),
            qos: entry.qos,
            publisher: owned(entry.publisher),
            subscriber: owned(entry.subscriber),
            step: "",
            reason: None,
            rules: Vec::new(),
            payload_bytes: None,
            packet_id: None,
            acknowledgement: None,
        };
        row.step = match entry.step {
            MessageStep::Received { payload_bytes, .. } => {
                row.payload_bytes = Some(payload_bytes);
                "received"
            }
            MessageStep::Denied => "denied",
            MessageStep::Rules(rules) => {
                row.rules = rules.into_iter().map(String::from).collect();
                "rules"
            }
            MessageStep::Queued => "queued",
            MessageStep::Sent { packet_id } => {
                row.packet_id = (packet_id > 0).then_some(packet_id);
                "sent"
            }
            MessageStep::Acknowledged(kind) => {
                row.acknowledgement = Some(match kind {
                    AckKind::PubAck => "puback",
                    AckKind::PubRec => "pubrec",
                    AckKind::PubComp => "pubcomp",
                });
                "acknowledged"
            }
            MessageStep::Dropped(reason) => {
                row.reason = Some(reason.as_str());
                "dropped"
            }
        };
        row
    }
}

async fn status(call: ApiCall) -> ApiResult {
    call::json_response(MessageRecording::from(call.app.observer.recording_status()))
}

async fn start(mut call: ApiCall) -> ApiResult {
    // A structure alone would also accept an array with the values of its fields.
    let fields: Map<String, Value> = call.body_json().await?;
    let input: RecordingInput = call::parse(Value::Object(fields))?;
    if let Some(filter) = &input.topic_filter {
        let valid = mqtt::validate_topic_filter(filter, &TopicLimits::NONE);
        valid.map_err(|error| {
            let detail = format!("topic_filter is {filter:?}: {error}.");
            ProblemDetails::invalid_field("topic_filter", detail)
        })?;
    }
    if !(1..=MAX_RECORDING_S).contains(&input.duration_s) {
        let detail = format!("duration_s: expected 1 to {MAX_RECORDING_S}.");
        return Err(ProblemDetails::invalid_field("duration_s", detail));
    }
    let shown = serde_json::json!({
        "topic_filter": input.topic_filter, "client_id": input.client_id, "duration_s": input.duration_s,
    });
    let selection = RecordingSelection {
        topic_filter: input.topic_filter,
        client_id: input.client_id,
    };
    (call.app.observer).start_recording(selection, input.duration_s);
    audit::record_action(&call, "message_recording.start", None, Some(shown)).await;
    status(call).await
}

async fn stop(call: ApiCall) -> ApiResult {
    call.app.observer.stop_recording();
    audit::record_action(&call, "message_recording.stop", None, None).await;
    call::no_content()
}

async fn list(call: ApiCall) -> ApiResult {
    let query = MessageTraceQuery {
        topic_filter: call.query.owned_text(MATCHES_FILTER),
        client_id: call.query.owned_text(LOG_CLIENT_ID),
        from_ms: call.query.number_value(FROM_MS),
        to_ms: call.query.number_value(TO_MS),
        after: call.query.after_number("messages")?.unwrap_or(0),
        limit: call.query.limit(),
    };
    let (entries, has_more) = call.app.observer.recorded_entries(&query);
    let next = entries.last().map(|entry| entry.number);
    let next = next.filter(|_| has_more);
    call::page_of(
        entries.into_iter().map(MessageTraceRow::from).collect(),
        next,
    )
}
