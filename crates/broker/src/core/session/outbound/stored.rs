//! What of a durable session's messages is only in the store, and how they come from there a piece at a time.

use mqtt::QoS;

use super::{IDS, Inflight, Outbound, Parcel, Stage};
use crate::core::sublist::NO_GROUP;

/// Messages of a durable session that are only in the store, behind all that are in memory. A session without a
/// connection keeps nothing in memory; one that comes back reads a piece at a time.
#[derive(Default)]
pub(super) struct Stored {
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
const LOADED_MESSAGES: usize = 256;
/// Below so many, more are read from the store.
const LOAD_BELOW: usize = 64;

impl Outbound {
    /// Nothing is in the store that is not here.
    pub(super) fn has_all(&self) -> bool {
        self.stored.messages == 0 && self.stored.fetching.is_none()
    }

    /// Whether one more message may wait in memory, when it might also be left to the store.
    pub(crate) fn has_room_here(&self) -> bool {
        self.has_all() && self.queue.len() < LOADED_MESSAGES
    }

    /// A message was left to the store.
    pub(crate) fn push_stored(&mut self, seq: u64, size: usize, now_ms: u64) {
        let stored = &mut self.stored;
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
            stored: Stored {
                from_seq,
                messages,
                bytes,
                since_ms: now_ms,
                ..Stored::default()
            },
            ..Self::default()
        }
    }

    /// Leaves everything to the store, where it is anyway.
    pub(crate) fn unload(&mut self) {
        let in_flight = self
            .ring
            .iter()
            .filter(|entry| entry.stage != Stage::Done)
            .map(|entry| entry.seq);
        let first = in_flight
            .chain(self.queue.iter().map(|parcel| parcel.seq))
            .next();
        if let Some(first) = first {
            self.stored.since_ms = self.oldest_queued_ms().unwrap_or(self.stored.since_ms);
            self.stored.from_seq = first;
            self.stored.messages += usize::from(self.unacknowledged) + self.queue.len();
            self.stored.bytes += self.inflight_bytes + self.queued_bytes;
        }
        *self = Self {
            stored: std::mem::take(&mut self.stored),
            // What it is about may not have been read yet.
            narrowing: self.narrowing.take(),
            ..Self::default()
        };
    }

    /// Whether all of it may be left to the store: nothing came by a shared subscription, which the store does not know,
    /// or not all of it is here.
    pub(crate) fn may_unload(&self) -> bool {
        let in_flight = self.ring.iter().filter_map(|entry| entry.parcel.as_ref());
        let mut here = in_flight.chain(&self.queue);
        here.all(|parcel| parcel.group == NO_GROUP)
            || self.ring.iter().any(Inflight::is_only_stored)
    }

    /// Messages that are only in the store, in flight or not.
    pub(crate) fn only_stored(&self) -> usize {
        let in_flight = self.ring.iter().filter(|entry| entry.is_only_stored());
        in_flight.count() + self.stored.messages
    }

    /// Where to read on in the store, if it is time to.
    pub(crate) fn wants_load(&self) -> bool {
        self.stored.messages > 0 && self.stored.fetching.is_none() && self.queue.len() < LOAD_BELOW
    }

    /// Whether something is being read from the store, or about to be.
    pub(crate) fn is_loading(&self) -> bool {
        !self.has_all()
    }

    pub(crate) fn start_load(&mut self) -> u64 {
        self.stored.fetching = Some(self.stored.from_seq);
        self.stored.since_fetch = (0, 0);
        self.stored.from_seq
    }

    /// A piece was read, or is not wanted any more. False if it is not what belongs next.
    pub(crate) fn end_load(&mut self) -> bool {
        let began = self.stored.fetching.take();
        began.is_some_and(|began| began <= self.stored.from_seq)
    }

    /// Whether a stored message is still to be read.
    pub(crate) fn is_stored(&self, seq: u64) -> bool {
        seq >= self.stored.from_seq
    }

    /// A message from the store, in the order of their numbers. `packet_id` is that of an earlier attempt to send it;
    /// a released one has no parcel any more.
    pub(crate) fn load(&mut self, seq: u64, packet_id: u16, parcel: Option<Parcel>) {
        let size = parcel.as_ref().map_or(0, Parcel::size);
        self.stored.from_seq = seq + 1;
        self.stored.messages = self.stored.messages.saturating_sub(1);
        self.stored.bytes = self.stored.bytes.saturating_sub(size);
        if packet_id == 0 || self.ring.len() >= IDS / 2 {
            if let Some(parcel) = parcel {
                self.push(parcel);
            }
            return;
        }
        if self.ring.is_empty() {
            self.first_id = packet_id;
        }
        // Those between have been acknowledged.
        while self.id_at(self.ring.len()) != packet_id && self.ring.len() < IDS / 2 {
            self.ring.push_back(Inflight {
                stage: Stage::Done,
                counts: false,
                qos: QoS::AtMostOnce,
                size: 0,
                seq: 0,
                parcel: None,
                released: None,
            });
        }
        self.inflight_bytes += size;
        self.unacknowledged += 1;
        self.ring.push_back(Inflight {
            stage: match parcel {
                Some(_) => Stage::Published,
                None => Stage::Released,
            },
            counts: false,
            qos: parcel
                .as_ref()
                .map_or(QoS::ExactlyOnce, |parcel| parcel.qos),
            size: size as u32,
            seq,
            parcel,
            released: None,
        });
    }

    /// The end of a piece; `is_last`: nothing was behind it when it was read.
    pub(crate) fn loaded(&mut self, is_last: bool) {
        if is_last {
            (self.stored.messages, self.stored.bytes) = self.stored.since_fetch;
        } else {
            // What is counted and what is there may differ by what was acknowledged before a restart.
            self.stored.messages = self.stored.messages.max(1);
        }
    }
}
