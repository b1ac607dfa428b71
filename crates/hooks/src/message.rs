//! A message as hooks see it, its origin, and what happens to it.
//!
//! Properties are in wire form without topic alias and subscription identifiers, so that they can be forwarded
//! unchanged. The message expiry in them is the publisher's and is counted down on encoding.

use bytes::Bytes;
use mqtt::{Properties, QoS};

use crate::authorization::ClientDevice;
use crate::client::Client;

/// [`MessageView::expires_ms`] of a message without expiry.
pub const NEVER_MS: u64 = u64::MAX;

/// An application message, borrowed from a read buffer, a batch from another shard, or a stored message.
#[derive(Clone, Copy)]
pub struct MessageView<'a> {
    pub topic: &'a str,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
    /// The payload again, if it is large and already shared.
    pub shared_payload: Option<&'a Bytes>,
    pub qos: QoS,
    pub retain: bool,
    /// Milliseconds since the Unix epoch.
    pub received_ms: u64,
    /// Milliseconds since the Unix epoch; [`NEVER_MS`]: it does not expire.
    pub expires_ms: u64,
    /// Client id of the publisher; empty for messages of the broker itself.
    pub from_client_id: &'a str,
    pub from_username: &'a str,
    /// Whether a hook requested it, see [`Hooks::take_outgoing`](crate::Hooks::take_outgoing).
    pub is_derived: bool,
    /// Distinguishes messages received by this node in the same millisecond: the shard in the low 8 bits, a counter
    /// above.
    pub number: u32,
}

impl<'a> MessageView<'a> {
    /// A message as published by a client, to test hooks without a broker.
    pub fn from_client(
        client_id: &'a str,
        topic: &'a str,
        payload: &'a [u8],
        received_ms: u64,
    ) -> Self {
        Self {
            topic,
            payload,
            qos: QoS::AtMostOnce,
            received_ms,
            from_client_id: client_id,
            ..Self::unknown()
        }
    }
}

impl MessageView<'_> {
    /// Placeholder for a message of which nothing is known.
    #[inline]
    pub fn unknown() -> Self {
        Self {
            topic: "",
            properties: Properties::EMPTY,
            payload: &[],
            shared_payload: None,
            qos: QoS::AtLeastOnce,
            retain: false,
            received_ms: 0,
            expires_ms: NEVER_MS,
            from_client_id: "",
            from_username: "",
            is_derived: false,
            number: 0,
        }
    }

    /// Bytes it counts for in a queue.
    #[inline]
    pub fn size(&self) -> usize {
        self.topic.len()
            + self.from_client_id.len()
            + self.from_username.len()
            + self.properties.as_bytes().len()
            + self.payload.len()
    }
}

/// Whether messages on a topic carry a secret between a device and the node. Such messages reach no rule and no
/// subscriber.
#[inline]
#[must_use]
pub fn carries_secret(topic: &str) -> bool {
    matches!(
        topic,
        "v1/devices/me/claim" | "v1/gateway/claim" | "/provision/request" | "/provision/response"
    )
}

/// The origin of a published message.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageOrigin<'a> {
    /// The client that sent it; `None`: the node itself, such as a delayed message or one from the API.
    pub client: Option<Client<'a>>,
    /// Packet id of its PUBLISH; 0: none.
    pub packet_id: u16,
    pub dup: bool,
    /// Tag of a message requested by hooks, see [`MessageDraft`](crate::MessageDraft); otherwise 0.
    pub tag: u64,
    /// The device that the client is, if it is a registered device.
    pub device: Option<ClientDevice<'a>>,
    /// Names the PUBLISH to be acknowledged; `None`: QoS 0, or not from a client's connection.
    pub ticket: Option<PublishTicket>,
}

/// Names one QoS 1 or 2 PUBLISH of one connection, so that it can be acknowledged later, see
/// [`PublishVerdict::Defer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishTicket {
    pub shard: u16,
    /// Position of the connection on its shard, and the number that distinguishes it from others at this position.
    pub connection: u32,
    pub serial: u32,
    pub packet_id: u16,
    pub qos: QoS,
}

/// Facts about a SUBSCRIBE, an UNSUBSCRIBE or an acknowledgement, as passed to hooks.
#[derive(Debug, Clone, Copy)]
pub struct PacketFacts<'a> {
    /// 0: there was no packet.
    pub packet_id: u16,
    pub properties: Properties<'a>,
}

impl PacketFacts<'_> {
    /// The control plane or the node itself acted; there was no packet.
    pub const NONE: Self = Self {
        packet_id: 0,
        properties: Properties::EMPTY,
    };
}

/// Whether a message goes on to its subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishVerdict {
    Continue,
    /// It is delivered; then [`Hooks::take_outgoing`](crate::Hooks::take_outgoing) and [`Hooks::take_backpressure`](crate::Hooks::take_backpressure) are called.
    ContinueAndCollect,
    /// It is not delivered; its publisher is answered as if it had been.
    Stop,
    /// It is not delivered and not accepted because a queue or store has no room for it. Its publisher gets reason
    /// 0x97; before version 5 its connection is closed.
    Reject,
    /// It is not delivered, and it is acknowledged later: the hook calls
    /// [`BrokerPort::acknowledge`](crate::BrokerPort::acknowledge) with [`MessageOrigin::ticket`]. Without a ticket it
    /// is like [`PublishVerdict::Stop`].
    Defer,
    /// It is not delivered because no client may publish it, see [`Hooks::denies_publish`](crate::Hooks::denies_publish). Its publisher gets reason
    /// 0x87.
    Deny,
}

/// Why a message did not reach a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    NoSubscribers,
    QueueFull,
    Expired,
    TooLarge,
    NoLocal,
    NotAuthorized,
    /// The session ended before the message was acknowledged.
    SessionEnded,
    /// A QoS 0 message for a session without a connection.
    Offline,
}

impl DropReason {
    #[inline]
    pub fn as_str(self) -> &'static str {
        match self {
            DropReason::NoSubscribers => "no_subscribers",
            DropReason::QueueFull => "queue_full",
            DropReason::Expired => "expired",
            DropReason::TooLarge => "too_large",
            DropReason::NoLocal => "no_local",
            DropReason::NotAuthorized => "not_authorized",
            DropReason::SessionEnded => "session_ended",
            DropReason::Offline => "offline",
        }
    }
}

/// The kind of a subscriber's acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckKind {
    PubAck,
    PubRec,
    PubComp,
}

/// Converts bytes that were copied from a `str` back. The conversion is checked: a few nanoseconds for about forty
/// bytes do not justify `unsafe`.
#[inline]
pub fn str_from_utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("these bytes were copied from a str")
}
