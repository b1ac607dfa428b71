//! What of a durable session's messages is only in the store, and how they come from there a piece at a time.

use mqtt::QoS;

use super::{InflightMessage, InflightStage, OutboundMessages, PACKET_IDS, SessionMessage};
use crate::core::subscriber_list::NO_GROUP;

/// Messages of a durable session that are only in the store, behind all that are in memory. A session without a
/// connection keeps nothing in memory; one that comes back reads a piece at a time.
#[derive(Default)]
pub(super) struct StoredTail {
    /// Numbers from here on are stored and not here.
    pub(super) from_seq: u64,
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// When the oldest came, roughly.
    pub(super) since_ms: u64,
    /// Where the piece that is being read begins.
    pub(super) fetching: Option<u64>,
    /// Stored since then: messages and bytes.
    pub(super) since_fetch: (usize, usize),
}

/// Messages a queue keeps in memory when it may leave the rest to the store.
const MAX_LOADED_MESSAGES: usize = 256;
/// Below so many, more are read from the store.
const LOAD_LOW_WATER: usize = 64;

impl OutboundMessages {
    /// Nothing is in the store that is not here.
    pub(super) fn is_fully_loaded(&self) -> bool {
        self.stored_tail.messages == 0 && self.stored_tail.fetching.is_none()
    }

    /// Whether one more message may wait in memory, when it might also be left to the store.
    pub(crate) fn has_memory_room(&self) -> bool {
        self.is_fully_loaded() && self.queue.len() < MAX_LOADED_MESSAGES
    }

    /// A message was left to the store.
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

    /// A session that was read back from the store: all it has is there.
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

    /// Leaves everything to the store, where it is anyway.
    pub(crate) fn unload(&mut self) {
        let in_flight = self
            .ring
            .iter()
            .filter(|entry| entry.stage != InflightStage::Done)
            .map(|entry| entry.seq);
        let first = in_flight
            .chain(self.queue.iter().map(|parcel| parcel.seq))
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
            // What it is about may not have been read yet.
            queue_filter: self.queue_filter.take(),
            ..Self::default()
        };
    }

    /// Whether all of it may be left to the store: nothing came by a shared subscription, which the store does not know,
    /// or not all of it is here.
    pub(crate) fn can_unload(&self) -> bool {
        let in_flight = self.ring.iter().filter_map(|entry| entry.parcel.as_ref());
        let mut here = in_flight.chain(&self.queue);
        here.all(|parcel| parcel.group == NO_GROUP)
            || self.ring.iter().any(InflightMessage::is_only_stored)
    }

    /// Messages that are only in the store, in flight or not.
    pub(crate) fn count_only_stored(&self) -> usize {
        let in_flight = self.ring.iter().filter(|entry| entry.is_only_stored());
        in_flight.count() + self.stored_tail.messages
    }

    /// Where to read on in the store, if it is time to.
    pub(crate) fn should_load(&self) -> bool {
        self.stored_tail.messages > 0
            && self.stored_tail.fetching.is_none()
            && self.queue.len() < LOAD_LOW_WATER
    }

    /// Whether something is being read from the store, or about to be.
    pub(crate) fn is_loading(&self) -> bool {
        !self.is_fully_loaded()
    }

    pub(crate) fn start_load(&mut self) -> u64 {
        self.stored_tail.fetching = Some(self.stored_tail.from_seq);
        self.stored_tail.since_fetch = (0, 0);
        self.stored_tail.from_seq
    }

    /// A piece was read, or is not wanted any more. False if it is not what belongs next.
    pub(crate) fn accept_load(&mut self) -> bool {
        let began = self.stored_tail.fetching.take();
        began.is_some_and(|began| began <= self.stored_tail.from_seq)
    }

    /// Whether a stored message is still to be read.
    pub(crate) fn is_stored(&self, seq: u64) -> bool {
        seq >= self.stored_tail.from_seq
    }

    /// A message from the store, in the order of their numbers. `packet_id` is that of an earlier attempt to send it;
    /// a released one has no parcel any more.
    pub(crate) fn load_message(
        &mut self,
        seq: u64,
        packet_id: u16,
        parcel: Option<SessionMessage>,
    ) {
        let size = parcel.as_ref().map_or(0, SessionMessage::size);
        self.stored_tail.from_seq = seq + 1;
        self.stored_tail.messages = self.stored_tail.messages.saturating_sub(1);
        self.stored_tail.bytes = self.stored_tail.bytes.saturating_sub(size);
        if packet_id == 0 || self.ring.len() >= PACKET_IDS / 2 {
            if let Some(parcel) = parcel {
                self.push(parcel);
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
                parcel: None,
                released: None,
            });
        }
        self.inflight_bytes += size;
        self.unacknowledged += 1;
        self.ring.push_back(InflightMessage {
            stage: match parcel {
                Some(_) => InflightStage::Published,
                None => InflightStage::Released,
            },
            occupies_window: false,
            qos: parcel
                .as_ref()
                .map_or(QoS::ExactlyOnce, |parcel| parcel.qos),
            size: size as u32,
            seq,
            parcel,
            released: None,
        });
    }

    /// The end of a piece; `is_retry`: nothing was behind it when it was read.
    pub(crate) fn finish_load_piece(&mut self, is_last: bool) {
        if is_last {
            (self.stored_tail.messages, self.stored_tail.bytes) = self.stored_tail.since_fetch;
        } else {
            // What is counted and what is there may differ by what was acknowledged before a restart.
            self.stored_tail.messages = self.stored_tail.messages.max(1);
        }
    }
}
