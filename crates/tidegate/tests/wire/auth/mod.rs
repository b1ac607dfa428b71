//! Who comes in and what they may do, by each authenticator: against the real servers, with them down, slow and back
//! again.

mod certificate;
mod databases;
mod failures;
mod http;
mod jwt;
mod limits;
mod objects;
mod rules;
mod secrets;
mod unknown_users;
mod users;
pub(crate) mod web_server;

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::pbkdf2;

use crate::support::{Connect, Node, Packet, Raw, unique};

const SUCCESS: u8 = 0;
const WRONG: u8 = 0x86;
const NOT_AUTHORIZED: u8 = 0x87;
const UNAVAILABLE: u8 = 0x88;
const BANNED: u8 = 0x8A;
const TRY_LATER: u8 = 0x9F;

/// A hash as mosquitto_passwd writes it.
fn hashed(password: &str) -> String {
    let mut key = [0; 64];
    let rounds = NonZeroU32::new(101).unwrap();
    let salt = b"0123456789ab";
    pbkdf2::derive(
        pbkdf2::PBKDF2_HMAC_SHA512,
        rounds,
        salt,
        password.as_bytes(),
        &mut key,
    );
    format!("$7$101${}${}", STANDARD.encode(salt), STANDARD.encode(key))
}

fn as_user(username: &str, password: &str) -> Connect {
    Connect::new(5, unique("c"))
        .username(username)
        .password(password)
}

/// Tries to log in and says what CONNACK says.
fn login(node: &Node, username: &str, password: &str) -> u8 {
    log_in_as(node, &as_user(username, password)).1.reason
}

fn log_in_as(node: &Node, connect: &Connect) -> (Raw, Packet) {
    let mut raw = Raw::open(node, connect.version);
    let connack = raw.hand_shake(connect);
    (raw, connack)
}

/// Whether the node takes a message to this topic (QoS 1, so that it says so).
fn may_publish(raw: &mut Raw, topic: &str) -> bool {
    use crate::support::{Publish, kind};
    raw.send_publish(&Publish::new(topic, "x").qos(1, 1));
    match raw.recv(kind::PUBACK).reason {
        // Nobody subscribes.
        0 | 0x10 => true,
        NOT_AUTHORIZED => false,
        other => panic!("PUBACK {other:#x}"),
    }
}

fn may_subscribe(raw: &mut Raw, filter: &str) -> bool {
    use crate::support::Subscribe;
    let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
    match codes[..] {
        [0] => true,
        [NOT_AUTHORIZED] => false,
        _ => panic!("SUBACK {codes:?}"),
    }
}
