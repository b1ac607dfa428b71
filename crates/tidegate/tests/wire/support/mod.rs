//! What every wire test needs: a running node, a raw connection, packets built and read by hand.
// Each module of this binary uses a part of it, and "reachable" has no meaning in a test binary.
#![allow(dead_code, unused_imports, unreachable_pub)]

mod build;
mod node;
mod parse;
mod random;
mod raw;
mod small_disk;
mod websocket;

pub use build::{
    Connect, Props, Publish, Subscribe, Unsubscribe, Will, ack, ack_reason, frame, string,
};
pub use node::{Node, external, temporary_directory};
pub use parse::{Packet, Value};
pub use random::Random;
pub use raw::{DEADLINE, Raw, Stream, whole_packet};
pub use small_disk::SmallDisk;
pub use websocket::{WsStream, masked_frame, upgrade, upgrade_over};

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Packet types, as in the upper half of the first byte.
pub mod kind {
    pub const CONNECT: u8 = 1;
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const PUBACK: u8 = 4;
    pub const PUBREC: u8 = 5;
    pub const PUBREL: u8 = 6;
    pub const PUBCOMP: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const SUBACK: u8 = 9;
    pub const UNSUBSCRIBE: u8 = 10;
    pub const UNSUBACK: u8 = 11;
    pub const PINGREQ: u8 = 12;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
    pub const AUTH: u8 = 15;
}

/// A name for client ids and topics that no other test and no earlier run uses. It has at most 23 letters and digits if
/// `prefix` has at most 10.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:06x}x{number}", salt() & 0xff_ffff)
}

/// Differs between runs, so that what an earlier run left in an external broker does no harm.
fn salt() -> u32 {
    use std::sync::OnceLock;
    static SALT: OnceLock<u32> = OnceLock::new();
    *SALT.get_or_init(|| {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        (now.as_millis() as u32) ^ (std::process::id() << 8)
    })
}

/// Time for a state that many steps lead to, some of them periodic, on a busy machine.
const STATE_DEADLINE: Duration = Duration::from_secs(30);

/// Asks again and again until `check` holds; panics with `what` after [`STATE_DEADLINE`].
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + STATE_DEADLINE;
    while !check() {
        assert!(
            Instant::now() < deadline,
            "not within {STATE_DEADLINE:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
