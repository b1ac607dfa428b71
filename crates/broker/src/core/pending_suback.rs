//! A SUBACK that waits until every shard has the filter.

use std::rc::Rc;

use super::subscriber_list::Subscriber;
use super::tables::ConnectionIx;

/// A SUBACK that waits for the other shards.
pub(crate) struct PendingSubAck {
    pub(super) sequence: u64,
    pub(super) connection: ConnectionIx,
    pub(super) serial: u32,
    pub(super) packet: Vec<u8>,
    /// Subscriptions that receive retained messages, with their filter.
    pub(super) retained: Vec<(Rc<str>, Subscriber)>,
    /// Whether the SUBACK also waits for the turn to be in the log.
    pub(super) is_durable: bool,
}

impl PendingSubAck {
    pub(super) fn is_for_connection(&self, connection: ConnectionIx) -> bool {
        self.connection == connection
    }
}
