//! SUBACKs that wait until every shard has their filters.

use std::collections::VecDeque;
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

/// The SUBACKs of a shard that wait for the other shards, in the order of their SUBSCRIBE packets.
///
/// The caller holds the input of a connection from [`push`](Self::push) until it has sent the SUBACK, so that a
/// connection has at most one here. After another shard has confirmed announcements, it calls
/// [`pop_confirmed`](Self::pop_confirmed) until that returns `None`, and sends what it returns, unless the connection has
/// closed meanwhile.
#[derive(Default)]
pub(crate) struct PendingSubAcks(VecDeque<PendingSubAck>);

impl PendingSubAcks {
    pub(super) fn push(&mut self, suback: PendingSubAck) {
        self.0.push_back(suback);
    }

    /// Takes the first SUBACK if all shards have confirmed its announcements, as `is_confirmed` tells by their number.
    pub(super) fn pop_confirmed(
        &mut self,
        is_confirmed: impl FnOnce(u64) -> bool,
    ) -> Option<PendingSubAck> {
        self.0.pop_front_if(|first| is_confirmed(first.sequence))
    }

    /// Whether a SUBACK of this connection waits. Those of earlier connections with its index may wait, too.
    pub(super) fn has_suback_of(&self, connection: ConnectionIx, serial: u32) -> bool {
        let is_of_connection =
            |suback: &PendingSubAck| (suback.connection, suback.serial) == (connection, serial);
        self.0.iter().any(is_of_connection)
    }
}
