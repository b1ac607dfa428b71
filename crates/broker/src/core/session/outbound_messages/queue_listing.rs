//! Lists and deletes a session's messages for the control plane.

use super::{InflightStage, OutboundMessages, SessionMessage, drain_matching};
use crate::control::QueuedMessage;
use crate::core::message_info::{MAX_SHOWN_PAYLOAD_BYTES, stored_message};

impl OutboundMessages {
    /// The position of a message of a session that is not stored: the count of all messages sent or queued before it.
    fn position(&self, session_message: &SessionMessage, place: usize) -> u64 {
        match session_message.seq {
            0 => (self.taken_count + place as u64 + 1).saturating_sub(self.ring.len() as u64),
            seq => seq,
        }
    }

    /// At most `limit` messages after a position, in order, including only messages that are in memory.
    pub(crate) fn list_messages(&self, after: Option<u64>, limit: usize) -> Vec<QueuedMessage> {
        let until = self.listing_store_start().unwrap_or(u64::MAX);
        let in_flight = self.ring.iter().enumerate().filter_map(|(place, entry)| {
            let session_message = entry.session_message.as_ref()?;
            debug_assert_eq!(entry.stage, InflightStage::Published);
            Some((place, Some(self.id_at(place)), session_message))
        });
        let queued = self.queue.iter().enumerate();
        let queued =
            queued.map(|(place, session_message)| (self.ring.len() + place, None, session_message));
        let all = in_flight.chain(queued);
        all.map(|(place, packet_id, session_message)| {
            (
                self.position(session_message, place),
                packet_id,
                session_message,
            )
        })
        .filter(|(position, ..)| after.is_none_or(|after| *position > after))
        .take_while(|(position, ..)| *position < until)
        .take(limit)
        .map(|(position, packet_id, session_message)| QueuedMessage {
            position,
            packet_id,
            message: stored_message(
                &session_message.message.view(),
                session_message.qos,
                session_message.retain,
                MAX_SHOWN_PAYLOAD_BYTES,
            ),
        })
        .collect()
    }

    /// The number from which on not all messages are in memory, though all are in the store.
    pub(crate) fn listing_store_start(&self) -> Option<u64> {
        let in_flight = self.ring.iter().find(|entry| entry.is_only_stored());
        in_flight.map(|entry| entry.seq).or(self.first_stored_seq())
    }

    /// The number from which on unsent messages are only in the store.
    pub(crate) fn first_stored_seq(&self) -> Option<u64> {
        (self.stored_tail.messages > 0).then_some(self.stored_tail.from_seq)
    }

    /// Deletes queued messages in memory: all of them, or the one of a durable session with this number. Messages that
    /// were sent stay.
    pub(crate) fn discard_queued(&mut self, only: Option<u64>) -> Vec<SessionMessage> {
        let goes = |session_message: &mut SessionMessage| {
            only.is_none_or(|seq| seq != 0 && session_message.seq == seq)
        };
        let discarded = drain_matching(&mut self.queue, goes);
        self.queued_bytes -= discarded.iter().map(SessionMessage::size).sum::<usize>();
        self.taken_count += discarded.len() as u64;
        discarded
    }

    /// Discounts a message that is only in the store; false if it is not, or is being read from there.
    pub(crate) fn discard_stored(&mut self, seq: u64, size: usize) -> bool {
        let stored = &mut self.stored_tail;
        if stored.messages == 0 || stored.fetching.is_some() || seq < stored.from_seq {
            return false;
        }
        stored.messages -= 1;
        stored.bytes = stored.bytes.saturating_sub(size);
        if stored.messages == 0 {
            stored.bytes = 0;
        }
        true
    }
}
