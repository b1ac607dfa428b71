//! The event under evaluation: one plain struct over borrowed data, created for each occurrence.

use std::net::SocketAddr;

use mqtt::Properties;

use crate::rule_source::EventKind;
use crate::value::Value;

/// An event. Fields that its kind does not have keep their defaults and read as null.
#[derive(Clone, Copy)]
pub struct RuleEvent<'m> {
    pub kind: EventKind,
    /// Time of the event in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// Name of the node.
    pub node: &'m str,
    /// Address of the node.
    pub node_ip: &'m str,
    /// `MQTT`, or another protocol of the client.
    pub protocol: &'m str,
    /// Id of the message, the same in all events about it; written as 32 hexadecimal digits.
    pub id: Option<u128>,
    pub client_id: &'m str,
    pub username: Option<&'m str>,
    /// Address of the client.
    pub peer: Option<SocketAddr>,
    /// Address of the listener.
    pub socket: Option<SocketAddr>,
    /// The topic, or the topic filter of a subscription.
    pub topic: Option<&'m str>,
    pub qos: Option<u8>,
    pub retain: bool,
    pub dup: bool,
    pub payload: Option<&'m [u8]>,
    /// The packet identifier.
    pub message_id: Option<u16>,
    /// Time at which the message was received, in milliseconds since 1970.
    pub received_at_ms: Option<u64>,
    /// Publisher of the message that is delivered, acknowledged or dropped.
    pub from_client_id: Option<&'m str>,
    pub from_username: Option<&'m str>,
    /// Properties of the packet: of the message, the connection, or the subscription.
    pub properties: Properties<'m>,
    /// Properties of the packet that acknowledges the message.
    pub ack_properties: Properties<'m>,
    /// Reason of a drop, a disconnection, a rejection or a failed rule; or the kind of acknowledgement.
    pub reason: Option<&'m str>,
    /// EMQX's term for the reason, if it differs.
    pub emqx_reason: Option<&'m str>,
    /// `allow` or `deny`.
    pub result: Option<&'m str>,
    /// `publish` or `subscribe`.
    pub action: Option<&'m str>,
    /// The authorizer that decided.
    pub authz_source: Option<&'m str>,
    /// The rule that failed.
    pub rule_name: Option<&'m str>,
    pub connection: Option<&'m ConnectionDetails<'m>>,
    /// The fields of `$rule/NAME`, `$bridges/..`, `$EVENT.DEVICE`, `$events/relay/..` and `$events/file/received` by name: a map, or the text of a JSON
    /// object. For other events: fields in addition to those above; null if there are none.
    pub extra: Value<'m>,
}

/// Parameters of a connection from its CONNECT packet.
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
    /// An event with only the kind and the time set.
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
