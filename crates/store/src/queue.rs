//! What the store says about the messages that wait for a session.

use bytes::Bytes;

/// Asks for the messages of a session in the order of their sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFetch {
    pub session: u64,
    /// The first sequence number wanted.
    pub from_seq: u64,
    pub max_messages: u32,
    /// Bytes of bodies and attributes; one message is given even if it is larger.
    pub max_bytes: u32,
}

/// The answer to a [`QueueFetch`].
#[derive(Debug, Clone)]
pub struct QueuePage {
    pub session: u64,
    /// In order of sequence number; at least one if there is one.
    pub entries: Vec<QueueEntry>,
    /// Nothing waited behind these when the page was made.
    pub is_last: bool,
}

/// One message that waits for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    pub seq: u64,
    /// 0: not sent yet.
    pub packet_id: u16,
    /// QoS 2: PUBREC came, PUBCOMP did not.
    pub released: bool,
    pub attributes: Bytes,
    /// Empty once released.
    pub body: Bytes,
}

/// What waits for a session, without reading it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueSummary {
    pub messages: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// The lowest sequence number, 0 if there is no message.
    pub first_seq: u64,
    /// The highest, 0 if there is no message.
    pub last_seq: u64,
    /// QoS 2 packet ids taken from the client and not released yet, ascending.
    pub received: Vec<u16>,
}
