//! Requests of the control plane to a running broker other than inspection (see [`crate::info`]), and the events it
//! receives. Plain data; [`crate::BrokerHandle`] executes the requests.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

/// A shard that has not answered within this time counts as stalled.
pub(crate) const SHARD_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A message published in the broker's own name. It is routed like any other; no authorization applies.
#[derive(Debug, Clone, Default)]
pub struct PublishRequest {
    pub topic: String,
    pub payload: Bytes,
    /// 0, 1 or 2.
    pub qos: u8,
    pub retain: bool,
    /// Payload Format Indicator: the payload is UTF-8.
    pub is_utf8: bool,
    pub message_expiry_s: Option<u32>,
    pub content_type: Option<String>,
    pub response_topic: Option<String>,
    pub correlation_data: Option<Bytes>,
    pub user_properties: Vec<(String, String)>,
}

/// A message that was sent to one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectDelivery {
    /// QoS of the delivery according to the client's subscription.
    pub qos: u8,
    /// Whether its acknowledgement will be reported. With QoS 1 it is, unless earlier messages have to be sent first.
    pub is_ack_tracked: bool,
}

/// Why the broker rejected a publish or subscribe request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// A field with an invalid value: its name and what was expected.
    #[error("{field}: {expected}")]
    InvalidField {
        field: &'static str,
        expected: String,
    },
    /// A limit of the node is reached; names the limit.
    #[error("limit reached: {0}")]
    LimitReached(String),
    /// Only the node itself may publish on this topic.
    #[error(
        "the topic is reserved for messages of the platform to devices; send a command or write attributes instead, or see devices.downlink_topic_publishers"
    )]
    ReservedTopic,
    /// The store accepts no writes: the disk is full or fails.
    #[error("the store accepts no messages now")]
    StoreUnavailable,
    #[error("the node is stopping, or a shard or another node does not answer")]
    Unavailable,
}

/// The outcome of publishing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PublishResult {
    /// Whether the topic has subscribers at present.
    pub has_subscribers: bool,
}

/// The outcome of publishing messages that derive from accepted ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AcceptedOutcome {
    /// Topics of the messages that can never be published, or were not retained, and the reasons.
    pub rejected: Vec<(String, ControlError)>,
    /// Whether a shard's buffers are full, so that the next messages should come later.
    pub is_saturated: bool,
}

/// A subscription on behalf of a client.
#[derive(Debug, Clone, Default)]
pub struct SubscriptionRequest {
    /// As a client would write it, `$share/...` included.
    pub topic_filter: String,
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: u8,
}

/// One retained message without its payload.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetainedInfo {
    pub topic: String,
    pub qos: u8,
    pub payload_bytes: usize,
    /// Time of publication, in milliseconds since the Unix epoch.
    pub published_at_ms: u64,
    /// Time at which it expires.
    pub expires_at_ms: Option<u64>,
    /// Client id of its publisher, if it is still known.
    pub publisher: Option<String>,
}

/// One message with its payload: retained, or waiting in a queue.
#[derive(Debug, Clone, Default)]
pub struct StoredMessage {
    pub topic: String,
    /// For a message in a queue, only the beginning of a long payload.
    pub payload: Bytes,
    /// Length of the whole payload in bytes.
    pub payload_bytes: usize,
    pub qos: u8,
    pub retain: bool,
    pub published_at_ms: u64,
    pub expires_at_ms: Option<u64>,
    pub publisher: Option<String>,
    pub is_utf8: bool,
    pub content_type: Option<String>,
    pub response_topic: Option<String>,
    pub correlation_data: Option<Bytes>,
    pub user_properties: Vec<(String, String)>,
}

/// Selects retained messages: sorted by topic, after the topic `after`, at most `limit`.
#[derive(Debug, Clone, Default)]
pub struct RetainedQuery {
    /// Only topics that this filter matches.
    pub filter: Option<String>,
    pub after: Option<String>,
    pub limit: usize,
}

/// One message that waits for a session. `position` grows along the queue. In a durable session a position always
/// identifies the same message; otherwise only until a message in front of it is deleted.
#[derive(Debug, Clone)]
pub struct QueuedMessage {
    pub position: u64,
    /// Packet id of a message that is sent and not acknowledged yet.
    pub packet_id: Option<u16>,
    pub message: StoredMessage,
}

/// Why a listener was not started or stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenerError {
    #[error("there is no listener {0:?}")]
    UnknownListener(String),
    #[error("the listener is already {0}")]
    AlreadyInState(&'static str),
    #[error("there is already a listener {0:?}")]
    NameInUse(String),
    /// The listener cannot be added or removed; contains the reason.
    #[error("{0}")]
    Unsupported(String),
    /// The system refused to listen; contains the reason.
    #[error("{0}")]
    Failed(String),
}

/// An event at the node, sent to subscribers ([`crate::BrokerHandle::subscribe_events`]). The broker does not wait for
/// a slow subscriber: it loses events and receives their number.
#[derive(Debug, Clone, Serialize)]
pub struct BrokerEvent {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    #[serde(flatten)]
    pub kind: BrokerEventKind,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BrokerEventKind {
    Connected {
        client_id: Box<str>,
        username: Option<Box<str>>,
        /// `ip:port`, or `unix`.
        peer_address: String,
        listener: Option<Box<str>>,
        /// `3.1`, `3.1.1` or `5.0`.
        protocol_version: &'static str,
        session_present: bool,
    },
    Disconnected {
        client_id: Box<str>,
        username: Option<Box<str>>,
        /// A short word such as `normal`, `keep_alive_timeout`, `taken_over`.
        reason: &'static str,
    },
    /// A client was rejected.
    AuthenticationFailed {
        /// The client id it sent, if it could be read.
        client_id: Option<Box<str>>,
        username: Option<Box<str>>,
        peer_address: String,
        listener: Box<str>,
        /// MQTT 5 reason code, such as 134 (bad user name or password).
        reason_code: u8,
    },
    SessionCreated {
        client_id: Box<str>,
    },
    SessionEnded {
        client_id: Box<str>,
    },
    Subscribed {
        client_id: Box<str>,
        topic_filter: Box<str>,
        qos: u8,
    },
    Unsubscribed {
        client_id: Box<str>,
        topic_filter: Box<str>,
    },
    /// Messages lost to one client, or to all, for one reason; several drops may be reported as one event.
    Dropped {
        client_id: Option<Box<str>>,
        topic: Box<str>,
        /// Named as in the metric: `queue_full`, `expired`.
        reason: &'static str,
        count: u64,
    },
    /// A condition the operator should examine: `store_full`, `store_failed`.
    AlarmRaised {
        alarm: &'static str,
        detail: String,
    },
    AlarmCleared {
        alarm: &'static str,
    },
}

impl BrokerEventKind {
    /// The client that the event concerns, if there is one.
    pub fn client_id(&self) -> Option<&str> {
        match self {
            BrokerEventKind::Connected { client_id, .. }
            | BrokerEventKind::Disconnected { client_id, .. }
            | BrokerEventKind::SessionCreated { client_id }
            | BrokerEventKind::SessionEnded { client_id }
            | BrokerEventKind::Subscribed { client_id, .. }
            | BrokerEventKind::Unsubscribed { client_id, .. } => Some(client_id),
            BrokerEventKind::AuthenticationFailed { client_id, .. }
            | BrokerEventKind::Dropped { client_id, .. } => client_id.as_deref(),
            BrokerEventKind::AlarmRaised { .. } | BrokerEventKind::AlarmCleared { .. } => None,
        }
    }
}
