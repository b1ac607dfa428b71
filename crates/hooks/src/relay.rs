//! The interface between the broker and relay endpoints.
//!
//! A relay endpoint is a topic, `$relay/{endpoint}`, whose clients speak plain WebSocket: every message of one connection
//! goes to all others. The broker treats such a connection as a client with one subscription and "no local". Order,
//! delivery between shards, limits and hooks are thus those of MQTT. What the messages mean is the business of a
//! [`RelayService`]: which endpoints exist, in which form receivers get messages, and which messages are requests to
//! the service itself.

use std::borrow::Cow;
use std::sync::Arc;

use crate::authorization::ClientAction;
use crate::client::PeerAddress;
use crate::message::MessageView;

/// Prefix of the topics of relay endpoints; the rest is the endpoint's id.
pub const RELAY_TOPIC_PREFIX: &str = "$relay/";

/// The sub-protocol that a client may offer beside others that carry an access key, since browsers require that the
/// server chooses one of those offered.
pub const RELAY_SUBPROTOCOL: &str = "tidegate-relay";

/// A WebSocket client that asks for an endpoint.
pub struct RelayRequest<'a> {
    /// What follows the prefix of relay endpoints in the request target: the rest of the path, and the query string.
    pub target: &'a str,
    /// The origin of the web page, if a browser sent one.
    pub origin: Option<&'a str>,
    /// The sub-protocols that the client offers.
    pub subprotocols: &'a [String],
    pub peer: PeerAddress,
    pub listener: &'a str,
    /// The shard that serves the connection from now on.
    pub shard: u16,
    /// Milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// A client that was admitted to an endpoint.
pub struct RelayAdmission {
    pub endpoint: Arc<dyn RelayEndpoint>,
    pub client: Box<dyn RelayClient>,
    /// Identifies the connection within the endpoint. It cannot be guessed.
    pub connection_id: String,
}

/// Why a relay connection is closed: an optional text message, then a close frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayClose {
    /// A close code of RFC 6455 section 7.4.
    pub code: u16,
    /// At most 123 bytes.
    pub reason: Cow<'static, str>,
    /// Sent as a text message before the close frame.
    pub message: Option<String>,
}

/// All relay endpoints of a node. Called on the shards' threads; it must not block.
pub trait RelayService: Send + Sync {
    /// Decides about a client whose WebSocket handshake is complete. `connection` stays valid, without effect, after the
    /// connection has closed.
    fn admit(
        &self,
        request: &RelayRequest<'_>,
        connection: Arc<dyn RelayConnection>,
    ) -> Result<RelayAdmission, RelayClose>;

    /// Called for each message that something other than a relay connection publishes to an endpoint, whether the
    /// endpoint exists or not.
    fn published(&self, endpoint: &str, message: &MessageView<'_>);
}

/// One endpoint, shared by its connections on all shards.
pub trait RelayEndpoint: Send + Sync {
    /// `$relay/` and the id.
    fn topic(&self) -> &str;

    fn limits(&self) -> RelayLimits;

    /// Whether receivers get the payload of each message unchanged, so that [`Self::encode`] would only copy it.
    fn is_direct(&self) -> bool {
        false
    }

    /// Appends what receivers get for a message on the endpoint's topic. Called at most once per message and shard.
    fn encode(&self, message: &MessageView<'_>, payload: &mut Vec<u8>) -> RelayPayloadKind;

    /// Called when messages were dropped for a receiver that is too slow.
    fn record_dropped(&self, messages: u64);
}

/// What an endpoint allows each of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayLimits {
    /// Length of a message over all its fragments.
    pub max_message_bytes: u32,
    /// Bytes that may wait for a slow receiver, beyond those already passed to its socket.
    pub max_backlog_bytes: u32,
    pub slow_receiver: SlowReceiverPolicy,
    /// Messages received per second; 0: no limit. A client over it is not read for a while.
    pub max_messages_per_s: u32,
    /// Bytes received per second; 0: no limit.
    pub max_bytes_per_s: u32,
    /// Interval of pings; a client that has not answered two of them is closed with the next.
    pub ping_interval_s: u16,
}

/// What happens when more waits for a receiver than [`RelayLimits::max_backlog_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlowReceiverPolicy {
    /// Its oldest waiting messages are dropped.
    DropOldest,
    /// It is disconnected with close code 1013.
    Disconnect,
}

/// The kind of a WebSocket message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayPayloadKind {
    /// Valid UTF-8.
    Text,
    Binary,
}

/// Something that happened to a connection of an endpoint, as rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayEvent {
    pub kind: RelayEventKind,
    pub endpoint_id: String,
    /// Namespace of the endpoint.
    pub namespace: String,
    /// `$relay/` and the endpoint's id.
    pub topic: String,
    pub connection_id: String,
    /// The broker's client id of the connection.
    pub client_id: String,
    pub peer: PeerAddress,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub connected_ms: u64,
    /// The device that the connection is.
    pub device: Option<Arc<RelayDeviceIdentity>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayEventKind {
    Connected,
    /// The connection is a device from now on.
    Identified,
    Disconnected {
        /// A short word such as `normal`.
        reason: &'static str,
        traffic: RelayTraffic,
    },
}

/// The device that a connection has identified itself as.
#[derive(Debug, PartialEq, Eq)]
pub struct RelayDeviceIdentity {
    /// As the client sent it.
    pub device_id: String,
    /// The id in the registry.
    pub registry_id: String,
}

/// Messages of a connection, without those of the service itself, and the bytes of their payloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelayTraffic {
    pub messages_in: u64,
    pub bytes_in: u64,
    /// Passed to the socket.
    pub messages_out: u64,
    pub bytes_out: u64,
}

/// The service's state for one connection, on the connection's shard.
pub trait RelayClient: Send {
    /// The connection is admitted and receives messages. Called once, before all others.
    fn opened(&mut self);

    /// A complete message of the client. Text is valid UTF-8. Text messages appended to `replies` are sent to this
    /// client. Statistics of the message may wait for [`finish_input`](Self::finish_input).
    fn received(
        &mut self,
        kind: RelayPayloadKind,
        payload: &[u8],
        now_ms: u64,
        replies: &mut Vec<String>,
    ) -> RelayVerdict;

    /// All messages of one read have been passed to [`received`](Self::received). Nothing of this turn reaches a socket before.
    fn finish_input(&mut self);

    /// For how many milliseconds the client is not to be read, because of the message received last. 0: no limit applies.
    fn take_pause_ms(&mut self) -> u64;

    /// The receiver has caught up after `dropped` messages to it were dropped; returns a text message for it.
    fn caught_up(&mut self, dropped: u64, now_ms: u64) -> Option<String>;

    /// What the client is told when the broker closes its connection because of an error in the broker or the service.
    fn internal_error(&self, now_ms: u64) -> RelayClose;

    /// The connection has closed, or could not be opened. `reason` is a short word such as `normal`.
    fn closed(&mut self, reason: &'static str, traffic: RelayTraffic);
}

/// What the broker does with a client's message.
#[derive(Debug, PartialEq, Eq)]
pub enum RelayVerdict {
    /// Publish it to the endpoint.
    Publish,
    /// The service has taken it.
    Consume,
    Close(RelayClose),
}

/// A handle to one connection, for any thread.
pub trait RelayConnection: Send + Sync {
    /// Sends a text message. It is dropped if too much waits for the client.
    fn send_text(&self, message: String);

    fn close(&self, close: RelayClose);
}

/// Whether an MQTT client wants to publish to relay endpoints, or to subscribe to them. That needs a rule that allows
/// it: who knows an endpoint's address may use the endpoint, but a wildcard must not reveal all of them.
#[must_use]
#[inline]
pub fn targets_relay_endpoint(action: &ClientAction<'_>) -> bool {
    match action {
        ClientAction::Publish { topic, .. } => topic.starts_with(RELAY_TOPIC_PREFIX),
        ClientAction::Subscribe { filter, .. } => {
            filter.starts_with('$') && is_relay_filter(filter)
        }
    }
}

fn is_relay_filter(filter: &str) -> bool {
    use mqtt::SubscriptionFilter::{Exclusive, Plain, Queue, Shared};
    let inner = match mqtt::parse_filter(filter, &mqtt::TopicLimits::NONE) {
        Ok(Plain(inner) | Shared { filter: inner, .. } | Queue { filter: inner }) => inner,
        Ok(Exclusive { topic }) => topic,
        Err(_) => filter,
    };
    inner.starts_with(RELAY_TOPIC_PREFIX)
}

/// Whether receivers get the payload of a message as text. Publishers other than relay connections need not say which
/// it is.
pub fn payload_kind(message: &MessageView<'_>) -> RelayPayloadKind {
    let is_marked_binary = message.properties.payload_format_indicator() == Some(0);
    if !is_marked_binary && std::str::from_utf8(message.payload).is_ok() {
        RelayPayloadKind::Text
    } else {
        RelayPayloadKind::Binary
    }
}
