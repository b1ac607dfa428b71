//! Loading of the part of a queue that is only in the store, page by page.

use mqtt::QoS;

use super::stored_tail::StoredTail;
use super::{InflightMessage, InflightStage, OutboundMessages, PACKET_IDS, SessionMessage};
use crate::core::tables::NO_GROUP;

/// Messages a queue keeps in memory when the rest may stay in the store.
const MAX_LOADED_MESSAGES: usize = 256;
/// With fewer messages in memory, more are read from the store.
const LOAD_LOW_WATER: usize = 64;

impl OutboundMessages {
    /// Whether all stored messages are in memory.
    pub(super) fn is_fully_loaded(&self) -> bool {
        self.stored_tail.messages == 0 && self.stored_tail.fetching.is_none()
    }

    /// Whether another message may wait in memory, if it could also stay in the store only.
    pub(crate) fn has_memory_room(&self) -> bool {
        self.is_fully_loaded() && self.queue.len() < MAX_LOADED_MESSAGES
    }

    /// Records a message that is in the store only.
    pub(crate) fn push_stored(&mut self, seq: u64, size: usize, now_ms: u64) {
        let stored = &mut self.stored_tail;
        if stored.messages == 0 && stored.fetching.is_none() {
            (stored.from_seq, stored.since_ms) = (seq, now_ms);
        }
        stored.messages += 1;
        stored.bytes += size;
        stored.since_fetch.0 += 1;
        stored.since_fetch.1 += size;
    }

    /// A session recovered from the store: all its messages are there.
    pub(crate) fn restored(from_seq: u64, messages: usize, bytes: usize, now_ms: u64) -> Self {
        Self {
            stored_tail: StoredTail {
                from_seq,
                messages,
                bytes,
                since_ms: now_ms,
                ..StoredTail::default()
            },
            ..Self::default()
        }
    }

    /// Removes the messages from memory; they remain in the store.
    pub(crate) fn unload(&mut self) {
        let in_flight = self
            .ring
            .iter()
            .filter(|entry| entry.stage != InflightStage::Done)
            .map(|entry| entry.seq);
        let first = in_flight
            .chain(self.queue.iter().map(|session_message| session_message.seq))
            .next();
        if let Some(first) = first {
            self.stored_tail.since_ms =
                self.oldest_queued_ms().unwrap_or(self.stored_tail.since_ms);
            self.stored_tail.from_seq = first;
            self.stored_tail.messages += usize::from(self.unacknowledged) + self.queue.len();
            self.stored_tail.bytes += self.inflight_bytes + self.queued_bytes;
        }
        *self = Self {
            stored_tail: std::mem::take(&mut self.stored_tail),
            // Messages to which the filter applies may not have been read yet.
            queue_filter: self.queue_filter.take(),
            ..Self::default()
        };
    }

    /// Whether all messages may be left to the store. That is so if none came by a shared subscription, which the store
    /// does not record, or if not all of them are in memory.
    pub(crate) fn can_unload(&self) -> bool {
        let in_flight = self
            .ring
            .iter()
            .filter_map(|entry| entry.session_message.as_ref());
        let mut here = in_flight.chain(&self.queue);
        here.all(|session_message| session_message.group == NO_GROUP)
            || self.ring.iter().any(InflightMessage::is_only_stored)
    }

    /// Messages that are only in the store, in flight or not.
    pub(crate) fn count_only_stored(&self) -> usize {
        let in_flight = self.ring.iter().filter(|entry| entry.is_only_stored());
        in_flight.count() + self.stored_tail.messages
    }

    /// Whether to read more from the store now.
    pub(crate) fn should_load(&self) -> bool {
        self.stored_tail.messages > 0
            && self.stored_tail.fetching.is_none()
            && self.queue.len() < LOAD_LOW_WATER
    }

    /// Whether a read from the store is in progress or pending.
    pub(crate) fn is_loading(&self) -> bool {
        !self.is_fully_loaded()
    }

    pub(crate) fn start_load(&mut self) -> u64 {
        self.stored_tail.fetching = Some(self.stored_tail.from_seq);
        self.stored_tail.since_fetch = (0, 0);
        self.stored_tail.from_seq
    }

    /// A page was read, or is no longer needed. Returns false if it is not the next page.
    pub(crate) fn accept_load(&mut self) -> bool {
        let began = self.stored_tail.fetching.take();
        began.is_some_and(|began| began <= self.stored_tail.from_seq)
    }

    /// Whether a stored message has not been read yet.
    pub(crate) fn is_stored(&self, seq: u64) -> bool {
        seq >= self.stored_tail.from_seq
    }

    /// Adds a message from the store, in the order of their numbers. `packet_id` is that of an earlier attempt to send
    /// it; a released message has no content any more.
    pub(crate) fn load_message(
        &mut self,
        seq: u64,
        packet_id: u16,
        session_message: Option<SessionMessage>,
    ) {
        let size = session_message.as_ref().map_or(0, SessionMessage::size);
        self.stored_tail.from_seq = seq + 1;
        self.stored_tail.messages = self.stored_tail.messages.saturating_sub(1);
        self.stored_tail.bytes = self.stored_tail.bytes.saturating_sub(size);
        if packet_id == 0 || self.ring.len() >= PACKET_IDS / 2 {
            if let Some(session_message) = session_message {
                self.push(session_message);
            }
            return;
        }
        if self.ring.is_empty() {
            self.first_id = packet_id;
        }
        // Those between have been acknowledged.
        while self.id_at(self.ring.len()) != packet_id && self.ring.len() < PACKET_IDS / 2 {
            self.ring.push_back(InflightMessage {
                stage: InflightStage::Done,
                occupies_window: false,
                qos: QoS::AtMostOnce,
                size: 0,
                seq: 0,
                session_message: None,
                released: None,
            });
        }
        self.inflight_bytes += size;
        self.unacknowledged += 1;
        self.ring.push_back(InflightMessage {
            stage: match session_message {
                Some(_) => InflightStage::Published,
                None => InflightStage::Released,
            },
            occupies_window: false,
            qos: session_message
                .as_ref()
                .map_or(QoS::ExactlyOnce, |session_message| session_message.qos),
            size: size as u32,
            seq,
            session_message,
            released: None,
        });
    }

    /// Ends a page; `is_last`: the store had nothing after it when it was read.
    pub(crate) fn finish_load_piece(&mut self, is_last: bool) {
        if is_last {
            (self.stored_tail.messages, self.stored_tail.bytes) = self.stored_tail.since_fetch;
        } else {
            // The count and the actual messages may differ by those acknowledged before a restart.
            self.stored_tail.messages = self.stored_tail.messages.max(1);
        }
    }
}
