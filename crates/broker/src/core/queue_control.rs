//! Lists the queue of a session for the control plane, and deletes messages that have not been sent.
//!
//! It orchestrates: the queue is in `OutboundMessages`.

use super::session::OutboundMessages;
use super::shard::Shard;
use super::tables::SessionIx;
use crate::control::QueuedMessage;

/// The messages of a session in memory, and those in the store behind them.
pub(crate) struct QueueListing {
    pub(crate) rows: Vec<QueuedMessage>,
    pub(crate) stored: Option<StoredQueueRange>,
}

/// Messages that are in the store only.
pub(crate) struct StoredQueueRange {
    /// The number under which the session is stored.
    pub(crate) session: u64,
    pub(crate) from_seq: u64,
    /// Number of the last message stored for the session.
    pub(crate) last_seq: u64,
}

impl Shard {
    fn stored_queue_range(
        &self,
        at: SessionIx,
        from: impl FnOnce(&OutboundMessages) -> Option<u64>,
    ) -> Option<StoredQueueRange> {
        let session = &self.delivery.sessions[at];
        let from_seq = from(session.outbound.as_deref()?)?;
        Some(StoredQueueRange {
            session: session.store_number,
            from_seq,
            last_seq: session.last_seq,
        })
    }

    pub(crate) fn list_queue(
        &self,
        client_id: &str,
        after: Option<u64>,
        limit: usize,
    ) -> Option<QueueListing> {
        let &at = self.by_client_id.get(client_id)?;
        let outbound = self.delivery.sessions[at].outbound.as_ref();
        Some(QueueListing {
            rows: outbound.map_or(Vec::new(), |outbound| outbound.list_messages(after, limit)),
            stored: self.stored_queue_range(at, OutboundMessages::listing_store_start),
        })
    }

    /// Deletes the messages in memory; returns their number, and the range that is left in the store.
    pub(crate) fn clear_queue(
        &mut self,
        client_id: &str,
    ) -> Option<(u64, Option<StoredQueueRange>)> {
        let &at = self.by_client_id.get(client_id)?;
        let count = self.discard_queued_messages(at, None);
        Some((
            count,
            self.stored_queue_range(at, OutboundMessages::first_stored_seq),
        ))
    }

    /// Deletes one message of a durable session if it is in memory; otherwise it may be in the store.
    pub(crate) fn delete_queued_message(
        &mut self,
        client_id: &str,
        seq: u64,
    ) -> Option<(bool, Option<StoredQueueRange>)> {
        let &at = self.by_client_id.get(client_id)?;
        let is_done = self.discard_queued_messages(at, Some(seq)) > 0;
        Some((
            is_done,
            self.stored_queue_range(at, OutboundMessages::first_stored_seq),
        ))
    }

    fn discard_queued_messages(&mut self, at: SessionIx, only: Option<u64>) -> u64 {
        let Some(outbound) = &mut self.delivery.sessions[at].outbound else {
            return 0;
        };
        let before = outbound.size();
        let discarded = outbound.discard_queued(only);
        let after = outbound.size();
        self.delivery.update_queue_counters(before, after);
        for session_message in &discarded {
            self.delivery.mark_stored_done(at, session_message.seq);
        }
        self.release_idle_outbound(at);
        discarded.len() as u64
    }

    /// Removes messages that are in the store only from the queue's accounts, with the size of each; returns their
    /// number. `number` is the session's store number when they were listed.
    pub(crate) fn discard_stored_messages(
        &mut self,
        client_id: &str,
        number: u64,
        messages: &[(u64, usize)],
    ) -> u64 {
        let Some(&at) = self.by_client_id.get(client_id) else {
            return 0;
        };
        let session = &mut self.delivery.sessions[at];
        let is_same_session = |_: &&mut Box<OutboundMessages>| session.store_number == number;
        let Some(outbound) = session.outbound.as_mut().filter(is_same_session) else {
            return 0;
        };
        let before = outbound.size();
        let mut discarded = Vec::new();
        for &(seq, size) in messages {
            if outbound.discard_stored(seq, size) {
                discarded.push(seq);
            }
        }
        let after = outbound.size();
        self.delivery.update_queue_counters(before, after);
        for &seq in &discarded {
            self.delivery.mark_stored_done(at, seq);
        }
        self.release_idle_outbound(at);
        discarded.len() as u64
    }

    /// A session without a connection and messages has no queue.
    fn release_idle_outbound(&mut self, at: SessionIx) {
        let session = &mut self.delivery.sessions[at];
        let is_idle = |outbound: &mut Box<OutboundMessages>| outbound.is_idle();
        if session.connection.is_none() {
            session.outbound.take_if(is_idle);
        }
    }
}
