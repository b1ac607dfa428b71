//! The event under evaluation: one plain struct over borrowed data, made for each thing that happens.

use std::net::SocketAddr;

use mqtt::Properties;

use crate::rule_source::EventKind;
use crate::value::Value;

/// What happened. Fields that an event of its kind does not have stay at their defaults and read as null.
#[derive(Clone, Copy)]
pub struct RuleEvent<'m> {
    pub kind: EventKind,
    /// When it happened, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The node's name.
    pub node: &'m str,
    /// The node's address.
    pub node_ip: &'m str,
    /// `MQTT`, or what the client speaks.
    pub protocol: &'m str,
    /// The message's identity, the same in all events about it; written as 32 hexadecimal digits.
    pub id: Option<u128>,
    pub client_id: &'m str,
    pub username: Option<&'m str>,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The listener's address.
    pub socket: Option<SocketAddr>,
    /// The topic, or the filter of a subscription.
    pub topic: Option<&'m str>,
    pub qos: Option<u8>,
    pub retain: bool,
    pub dup: bool,
    pub payload: Option<&'m [u8]>,
    /// The packet identifier.
    pub message_id: Option<u16>,
    /// When the message came in, in milliseconds since 1970.
    pub received_at_ms: Option<u64>,
    /// Who published the message that is delivered, acknowledged or dropped.
    pub from_client_id: Option<&'m str>,
    pub from_username: Option<&'m str>,
    /// Properties of the packet: those of the message, the connection, or the subscription.
    pub properties: Properties<'m>,
    /// Properties of the packet that acknowledges the message.
    pub ack_properties: Properties<'m>,
    /// Why: of a drop, a disconnection, a refusal, a failed rule; which acknowledgement.
    pub reason: Option<&'m str>,
    /// EMQX's word for it, where that is another.
    pub emqx_reason: Option<&'m str>,
    /// `allow` or `deny`.
    pub result: Option<&'m str>,
    /// `publish` or `subscribe`.
    pub action: Option<&'m str>,
    /// Who decided about an authorisation.
    pub authz_source: Option<&'m str>,
    /// The rule that failed.
    pub rule_name: Option<&'m str>,
    pub connection: Option<&'m ConnectionDetails<'m>>,
    /// The fields of `$rule/NAME`, `$bridges/..` and `$EVENT.DEVICE`, by name: a map or the text of a JSON object.
    /// Of the other events, fields besides those above; null if there are none.
    pub extra: Value<'m>,
}

/// What a connection said of itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectionDetails<'m> {
    /// The protocol level: 3, 4 or 5.
    pub version: u8,
    pub keep_alive_s: u16,
    pub clean_start: bool,
    pub session_expiry_s: u32,
    pub receive_maximum: u16,
    pub connected_at_ms: u64,
    pub disconnected_at_ms: Option<u64>,
    pub is_superuser: bool,
    pub is_anonymous: bool,
    pub will: Option<WillDetails<'m>>,
}

#[derive(Debug, Clone, Copy)]
pub struct WillDetails<'m> {
    pub topic: &'m str,
    pub payload: &'m [u8],
    pub qos: u8,
    pub retain: bool,
}

impl<'m> RuleEvent<'m> {
    /// An event of which only the kind and the time are known yet.
    #[inline]
    pub fn new(kind: EventKind, timestamp_ms: u64) -> Self {
        Self {
            kind,
            timestamp_ms,
            node: "",
            node_ip: "",
            protocol: "MQTT",
            id: None,
            client_id: "",
            username: None,
            peer: None,
            socket: None,
            topic: None,
            qos: None,
            retain: false,
            dup: false,
            payload: None,
            message_id: None,
            received_at_ms: None,
            from_client_id: None,
            from_username: None,
            properties: Properties::EMPTY,
            ack_properties: Properties::EMPTY,
            reason: None,
            emqx_reason: None,
            result: None,
            action: None,
            authz_source: None,
            rule_name: None,
            connection: None,
            extra: Value::Null,
        }
    }
}
