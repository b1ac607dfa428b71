//! The queue of one session in the index: its entries, and where they are in the log.
//!
//! Invariants: the entries increase in `seq`; an entry that is done stays as a tombstone only while an earlier one is queued.

use std::collections::VecDeque;

pub(super) const RELEASED: u8 = 1;
/// The body's bytes are counted with this entry, not with other entries of the same message.
pub(super) const CARRIES_BODY: u8 = 2;
pub(super) const DONE: u8 = 4;

/// A message queued for a session: 32 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexEntry {
    pub(crate) seq: u64,
    pub(crate) segment: u32,
    pub(crate) body_at: u32,
    /// 0 once released.
    pub(crate) body_len: u32,
    pub(crate) attributes_at: u32,
    pub(crate) attributes_len: u16,
    pub(crate) packet_id: u16,
    pub(super) flags: u8,
}

const _: () = assert!(size_of::<IndexEntry>() <= 32);

impl IndexEntry {
    pub(crate) fn is_released(&self) -> bool {
        self.flags & RELEASED != 0
    }

    pub(super) fn is_done(&self) -> bool {
        self.flags & DONE != 0
    }

    /// Live bytes of its segment.
    #[inline]
    pub(super) fn live_bytes(&self, session: u64) -> u64 {
        let body = if self.flags & CARRIES_BODY != 0 {
            2 + u64::from(self.body_len)
        } else {
            0
        };
        let packet_id = if self.packet_id == 0 { 0 } else { 2 };
        body + packet_id
            + 2
            + u64::from(self.attributes_len)
            + number_len(session)
            + number_len(self.seq)
    }
}

pub(super) fn number_len(number: u64) -> u64 {
    u64::from((63 - (number | 1).leading_zeros()) / 7 + 1)
}

#[derive(Debug, Default)]
pub(crate) struct SessionQueue {
    pub(super) entries: VecDeque<IndexEntry>,
    /// Number of tombstones among the entries.
    pub(super) tombstones: u32,
    /// Whether there are further runs in `QueueIndex::further_runs`.
    pub(super) has_further_runs: bool,
    /// Bytes of bodies.
    pub(super) bytes: u64,
    /// QoS 2 packet ids received from the client, ascending, each with the segment that records it.
    pub(super) received: Vec<(u16, u32)>,
}

impl SessionQueue {
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.received.is_empty() && !self.has_further_runs
    }

    /// The position of the entry with this number, or where it would be inserted.
    #[inline]
    pub(super) fn position(entries: &VecDeque<IndexEntry>, seq: u64) -> Result<usize, usize> {
        let Some(front) = entries.front() else {
            return Err(0);
        };
        if seq <= front.seq {
            return if seq == front.seq { Ok(0) } else { Err(0) };
        }
        // Without gaps it is at exactly this position.
        let guess = (seq - front.seq) as usize;
        if entries.get(guess).is_some_and(|entry| entry.seq == seq) {
            return Ok(guess);
        }
        entries.binary_search_by_key(&seq, |entry| entry.seq)
    }

    /// Queued entries from a sequence number on.
    pub(crate) fn entries_from(&self, seq: u64) -> impl Iterator<Item = &IndexEntry> {
        let start = match Self::position(&self.entries, seq) {
            Ok(start) | Err(start) => start,
        };
        let entries = self.entries.range(start..);
        entries.filter(|entry| !entry.is_done())
    }

    pub(super) fn drop_tombstones(&mut self) {
        while self.entries.front().is_some_and(IndexEntry::is_done) {
            self.entries.pop_front();
            self.tombstones -= 1;
        }
        if self.tombstones > 32 && self.tombstones as usize > self.entries.len() / 2 {
            self.entries.retain(|entry| !entry.is_done());
            self.tombstones = 0;
        }
    }
}
