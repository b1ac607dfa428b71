//! MQTT 3.1.1 (and the basics of 3.1): one test per normative statement that a server can break, named after it.
//!
//! Not here, in most cases because only a client can break them, or because nothing a client sees would tell:
//! - 3.1.2-10, 4.3.2-1 and most of 3.1.2-24: what happens when time passes is tested with a simulated clock, in
//!   `crates/broker/src/core/tests/deadlines.rs`.
//! - 2.3.1-2, 2.3.1-3: the client's own packet identifiers (the server's are under 2.3.1-4).
//! - 3.1.2-23, 3.1.3-7: what a client must send; the server's answers to a breach are under 3.1.2-24 and 3.1.3-8.
//! - 3.2.2-6: a rejection for which no return code fits; 3.8.3-2: wildcards are supported.
//! - 3.14.4-1, 4.5.0-2, 4.6.0-2 to 4.6.0-4: the client's duties. That the server, too, acknowledges in order is under
//!   4.6.0-6.
//! - 4.7.3-3: a topic of more than 65,535 bytes cannot be written down in a packet.
//! - 4.8.0-2: a transient error inside the server cannot be brought about from outside.
//! - 6.0.0-3: the client's offer. 7.x: about implementations as a whole.

mod acknowledge;
mod connack;
mod connect;
mod connect_flags;
mod format;
mod keep_alive;
mod order;
mod publish;
mod qos;
mod retain;
mod session;
mod subscribe;
mod topics;
mod unsubscribe;
mod v31;
mod violations;
mod websocket;
mod will;

use crate::support::{Connect, Node, Raw, unique};

const V311: u8 = 4;

/// A clean 3.1.1 session with a fresh client id at the shared node.
fn client() -> Raw {
    Raw::client(Node::shared(), V311)
}

/// A clean session that subscribes to `filter`.
fn subscriber(filter: &str, qos: u8) -> Raw {
    let mut raw = client();
    raw.subscribe(filter, qos);
    raw
}

/// A fresh topic of one level.
fn topic() -> String {
    unique("t")
}

/// CONNECT with CleanSession 0.
fn persistent(client_id: &str) -> Connect {
    Connect::new(V311, client_id).persistent()
}

/// Connects with CleanSession 0; the server must know a session exactly if `present`.
fn resume(client_id: &str, present: bool) -> Raw {
    let (raw, connack) = Raw::connect_for_connack(Node::shared(), &persistent(client_id));
    assert_eq!(connack.session_present, present, "{connack:?}");
    raw
}

/// A connected client sends `bytes`: the server must close the connection without another word.
fn expect_violation(what: &str, bytes: &[u8]) {
    let mut raw = client();
    raw.send(bytes);
    let packets = raw.packets_until_closed();
    assert!(packets.is_empty(), "{what}: answered by {packets:?}");
}

/// `bytes` come first on a fresh connection: the server must close it without a CONNACK.
fn expect_no_connack(what: &str, bytes: &[u8]) {
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(bytes);
    let packets = raw.packets_until_closed();
    assert!(packets.is_empty(), "{what}: answered by {packets:?}");
}

/// UTF-8 as the specification forbids it (1.5.3-1 and 1.5.3-2), each with a name.
const BAD_STRINGS: [(&str, &[u8]); 9] = [
    ("the null character", b"a\0b"),
    ("a lone continuation byte", b"a\x80b"),
    ("an overlong slash", b"a\xc0\xafb"),
    ("an overlong null", b"a\xc0\x80b"),
    ("the surrogate U+D800", b"a\xed\xa0\x80b"),
    ("the surrogate U+DFFF", b"a\xed\xbf\xbfb"),
    ("a code point above U+10FFFF", b"a\xf4\x90\x80\x80b"),
    ("a truncated sequence", b"ab\xe2\x82"),
    ("the byte 0xFF", b"a\xffb"),
];
