//! MQTT 5.0: one test per normative statement that a server can break, named after it: `mqtt5_3_3_2_8_...` is
//! [MQTT-3.3.2-8]. Rules without a number are named after their section: `mqtt5_section_2_2_2_2_...`.
//!
//! One file per chapter; its head lists the statements that bind clients alone. Where a chapter leaves the choice of
//! the reason code to the server, the test names every code that fits.
//!
//! What happens when time passes is tested with a simulated clock, in `crates/broker/src/core/tests/deadlines.rs`; here is
//! one test of each subject: keep-alive, expiry of sessions and messages, will delay.

mod acknowledgements;
mod auth;
mod connack;
mod connect;
mod connect_actions;
mod connect_payload;
mod connect_properties;
mod data_representation;
mod delivery_retry;
mod disconnect;
mod enhanced_authentication;
mod errors;
mod flow_control;
mod ordering;
mod packet_format;
mod pingreq;
mod publish;
mod publish_actions;
mod publish_properties;
mod qos;
mod request_response;
pub(crate) mod scram;
mod server_redirection;
mod session_state;
mod shared_subscriptions;
mod subscribe;
mod topic_alias;
mod topics;
mod unsubscribe;
mod websocket;
mod will;

use std::time::{Duration, Instant};

use crate::support::{
    Connect, DEADLINE, Node, Packet, Props, Publish, Raw, Subscribe, Unsubscribe, Value, Will, ack,
    ack_reason, eventually, external, frame, kind, string, unique,
};

/// Property identifiers, section 2.2.2.2.
pub(crate) mod property {
    pub(crate) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(crate) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
    pub(crate) const CORRELATION_DATA: u8 = 0x09;
    pub(crate) const SUBSCRIPTION_ID: u8 = 0x0b;
    pub(crate) const SESSION_EXPIRY: u8 = 0x11;
    pub(crate) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(crate) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(crate) const AUTH_METHOD: u8 = 0x15;
    pub(crate) const AUTH_DATA: u8 = 0x16;
    pub(crate) const REQUEST_PROBLEM_INFO: u8 = 0x17;
    pub(crate) const WILL_DELAY: u8 = 0x18;
    pub(crate) const REQUEST_RESPONSE_INFO: u8 = 0x19;
    pub(crate) const RESPONSE_INFO: u8 = 0x1a;
    pub(crate) const SERVER_REFERENCE: u8 = 0x1c;
    pub(crate) const REASON_STRING: u8 = 0x1f;
    pub(crate) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(crate) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(crate) const TOPIC_ALIAS: u8 = 0x23;
    pub(crate) const MAXIMUM_QOS: u8 = 0x24;
    pub(crate) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(crate) const USER: u8 = 0x26;
    pub(crate) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub(crate) const WILDCARD_AVAILABLE: u8 = 0x28;
    pub(crate) const SUBSCRIPTION_ID_AVAILABLE: u8 = 0x29;
    pub(crate) const SHARED_AVAILABLE: u8 = 0x2a;
}

/// The reason codes of errors that these tests name.
pub(crate) mod reason {
    pub(crate) const MALFORMED: u8 = 0x81;
    pub(crate) const PROTOCOL_ERROR: u8 = 0x82;
    pub(crate) const UNSUPPORTED_VERSION: u8 = 0x84;
    pub(crate) const CLIENT_ID_INVALID: u8 = 0x85;
    pub(crate) const BAD_CREDENTIALS: u8 = 0x86;
    pub(crate) const NOT_AUTHORISED: u8 = 0x87;
    pub(crate) const SHUTTING_DOWN: u8 = 0x8b;
    pub(crate) const BAD_AUTH_METHOD: u8 = 0x8c;
    pub(crate) const KEEP_ALIVE_TIMEOUT: u8 = 0x8d;
    pub(crate) const TAKEN_OVER: u8 = 0x8e;
    pub(crate) const FILTER_INVALID: u8 = 0x8f;
    pub(crate) const TOPIC_INVALID: u8 = 0x90;
    pub(crate) const PACKET_ID_NOT_FOUND: u8 = 0x92;
    pub(crate) const RECEIVE_MAXIMUM_EXCEEDED: u8 = 0x93;
    pub(crate) const TOPIC_ALIAS_INVALID: u8 = 0x94;
    pub(crate) const PACKET_TOO_LARGE: u8 = 0x95;
    pub(crate) const QUOTA_EXCEEDED: u8 = 0x97;
    pub(crate) const PAYLOAD_FORMAT_INVALID: u8 = 0x99;
    pub(crate) const RETAIN_NOT_SUPPORTED: u8 = 0x9a;
    pub(crate) const QOS_NOT_SUPPORTED: u8 = 0x9b;
    pub(crate) const SHARED_NOT_SUPPORTED: u8 = 0x9e;
    pub(crate) const WILDCARD_NOT_SUPPORTED: u8 = 0xa2;
    /// For packets that are wrong in a way the specification calls neither malformed nor a protocol error.
    pub(crate) const MALFORMED_OR_PROTOCOL_ERROR: &[u8] = &[MALFORMED, PROTOCOL_ERROR];
}

/// Subscription options, section 3.8.3.1.
pub(crate) mod option {
    pub(crate) const NO_LOCAL: u8 = 0x04;
    pub(crate) const RETAIN_AS_PUBLISHED: u8 = 0x08;
    pub(crate) const RETAIN_IF_NEW: u8 = 0x10;
    pub(crate) const RETAIN_NEVER: u8 = 0x20;
}

/// The node with the default configuration, and two shards wherever it runs. Nobody subscribes to `#` on it: messages
/// go to shards where someone does, and may arrive there after a later subscription.
pub(crate) fn node() -> &'static Node {
    Node::shared_with(&["--shards", "2"])
}

/// A clean session on the shared node.
pub(crate) fn client() -> Raw {
    Raw::client(node(), 5)
}

/// CONNECT with clean start; without a session expiry interval the session ends with the connection.
pub(crate) fn connect(client_id: &str) -> Connect {
    Connect::new(5, client_id)
}

/// CONNECT without clean start for a session that outlives its connection.
pub(crate) fn session(client_id: &str, expiry_s: u32) -> Connect {
    connect(client_id)
        .persistent()
        .properties(Props::new().u32(property::SESSION_EXPIRY, expiry_s))
}

/// Connects with these properties and a fresh client id.
pub(crate) fn client_with(properties: Props) -> Raw {
    Raw::connect(node(), &connect(&unique("p")).properties(properties))
}

/// The server must answer with a CONNACK that has one of these codes and no session present, and close.
pub(crate) fn expect_rejected(raw: &mut Raw, reasons: &[u8]) -> Packet {
    expect_last(raw, kind::CONNACK, reasons)
}

/// The server must send one packet of this kind with one of these codes and close. The specification lets a server close
/// without a word; another broker may do so, ours may not.
fn expect_last(raw: &mut Raw, kind: u8, reasons: &[u8]) -> Packet {
    let mut packets = raw.packets_until_closed();
    if packets.is_empty() && external().is_some() {
        return Packet {
            kind,
            reason: reasons[0],
            ..Packet::default()
        };
    }
    assert_eq!(
        packets.len(),
        1,
        "one packet of kind {kind} and the end: {packets:?}"
    );
    let packet = packets.remove(0);
    assert_eq!(packet.kind, kind, "{packet:?}");
    assert!(
        reasons.contains(&packet.reason),
        "reason {:#04x}, not one of {reasons:02x?}: {packet:?}",
        packet.reason
    );
    assert!(!packet.session_present, "{packet:?}");
    packet
}

/// Sends these bytes first on a connection to the shared node and requires [`expect_rejected`].
pub(crate) fn rejected(bytes: &[u8], reasons: &[u8]) -> Packet {
    let mut raw = Raw::open(node(), 5);
    raw.send(bytes);
    expect_rejected(&mut raw, reasons)
}

/// The server must send a DISCONNECT with one of these codes as its next packet and close.
pub(crate) fn expect_disconnect_for(raw: &mut Raw, reasons: &[u8]) -> Packet {
    expect_last(raw, kind::DISCONNECT, reasons)
}

/// A connected client sends these bytes; the server must disconnect it for one of these reasons.
pub(crate) fn breaks(bytes: &[u8], reasons: &[u8]) -> Packet {
    let mut raw = client();
    raw.send(bytes);
    expect_disconnect_for(&mut raw, reasons)
}

/// The server must close the connection, with or without a DISCONNECT that has this reason.
pub(crate) fn expect_end(raw: &mut Raw, reason: u8) {
    for packet in raw.packets_until_closed() {
        assert_eq!(
            (packet.kind, packet.reason),
            (kind::DISCONNECT, reason),
            "{packet:?}"
        );
    }
}

/// Nothing comes for a while. For what no barrier can prove; the wait makes the check sharp, not the test slow to pass.
pub(crate) fn expect_silence(raw: &mut Raw) {
    if let Some(packet) = raw.try_recv(Duration::from_millis(150)) {
        panic!("nothing was to come: {packet:?}");
    }
    raw.ping();
}

/// This many milliseconds have passed since `start`, but for the rounding of the server's clock.
pub(crate) fn expect_waited(start: Instant, milliseconds: u64) {
    let waited = start.elapsed();
    assert!(
        waited + Duration::from_millis(5) >= Duration::from_millis(milliseconds),
        "already after {waited:?} instead of {milliseconds} ms"
    );
}

/// What this publisher sent before is not coming: its next message is the next packet.
pub(crate) fn expect_fence(subscriber: &mut Raw, publisher: &mut Raw, topic: &str) {
    publisher.publish(topic, "fence");
    subscriber.recv_message(topic, "fence");
}

/// A subscriber and a publisher on the shared node, the former with `filter` at QoS 2.
pub(crate) fn pair(filter: &str) -> (Raw, Raw) {
    let mut subscriber = client();
    subscriber.subscribe(filter, 2);
    (subscriber, client())
}

/// Publishes a retained message and waits for the PUBACK, so that it is stored.
pub(crate) fn retain(publisher: &mut Raw, topic: &str, payload: &str) {
    publisher.send_publish(&Publish::new(topic, payload).qos(1, 9).retain());
    let puback = publisher.recv(kind::PUBACK);
    assert!(puback.reason < 0x80, "not accepted: {puback:?}");
}

/// What a new subscriber finds retained for this filter.
pub(crate) fn retained(filter: &str) -> Vec<Packet> {
    let mut subscriber = client();
    subscriber.subscribe(filter, 0);
    subscriber.ping_for_packets()
}
