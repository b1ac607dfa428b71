//! Requests for queued messages of a session, and the pages that answer them.

use bytes::Bytes;

/// A request for the messages of a session in the order of their sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFetch {
    pub session: u64,
    /// The first sequence number to return.
    pub from_seq: u64,
    pub max_messages: u32,
    /// Limit on the bytes of bodies and attributes; one message is returned even if it is larger.
    pub max_bytes: u32,
}

/// The answer to a [`QueueFetch`].
#[derive(Debug, Clone)]
pub struct QueuePage {
    pub session: u64,
    /// In order of sequence number; not empty unless the queue is.
    pub entries: Vec<QueueEntry>,
    /// Whether nothing was queued behind these entries when the page was made.
    pub is_last: bool,
}

/// One message queued for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    pub seq: u64,
    /// 0: not sent yet.
    pub packet_id: u16,
    /// QoS 2: PUBREC was received, PUBCOMP was not.
    pub released: bool,
    pub attributes: Bytes,
    /// Empty once released.
    pub body: Bytes,
}

/// Summary of a session's queue, without its messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueSummary {
    pub messages: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// The lowest sequence number, 0 if there is no message.
    pub first_seq: u64,
    /// The highest sequence number, 0 if there is no message.
    pub last_seq: u64,
    /// QoS 2 packet ids received from the client and not released yet, ascending.
    pub received: Vec<u16>,
}
