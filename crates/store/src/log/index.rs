//! In-memory index of the log: the entries queued for each session, and where they are.
//!
//! Invariant: the counts of a segment are the sums over the entries and packet ids that point into it.
//!
//! During recovery, entries copied by reclaiming come after younger ones. Inserting each in its place would cost the square
//! of the queue's length. They are therefore kept as further ascending runs and merged at the end.

use std::collections::{HashMap, VecDeque};

use super::record::{LogRecord, LogRecords};
use super::session_queue::{CARRIES_BODY, DONE, IndexEntry, RELEASED, SessionQueue, number_len};
use super::session_queues::SessionQueues;
use crate::queue::QueueSummary;

/// The records of a frame are invalid although its checksum is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordsError;

/// Counts of what points into a segment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveTotals {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// Counts of all segments; the first element belongs to segment `first`.
#[derive(Debug, Default)]
struct SegmentLiveTotals {
    first: u32,
    live: VecDeque<LiveTotals>,
    total: LiveTotals,
}

impl SegmentLiveTotals {
    #[inline]
    fn add(&mut self, segment: u32, bytes: u64) {
        let live = self.of(segment);
        live.count += 1;
        live.bytes += bytes;
        self.total.count += 1;
        self.total.bytes += bytes;
    }

    #[inline]
    fn subtract(&mut self, segment: u32, bytes: u64) {
        let live = self.of(segment);
        live.count -= 1;
        live.bytes -= bytes;
        self.total.count -= 1;
        self.total.bytes -= bytes;
    }

    #[inline]
    fn of(&mut self, segment: u32) -> &mut LiveTotals {
        let at = segment.wrapping_sub(self.first) as usize;
        if at >= self.live.len() {
            self.live.resize(at + 1, LiveTotals::default());
        }
        &mut self.live[at]
    }
}

/// The queues of all sessions.
#[derive(Debug, Default)]
pub(crate) struct QueueIndex {
    queues: SessionQueues,
    /// Empty queues, kept because they will probably be used again soon.
    idle_queues: usize,
    counts: SegmentLiveTotals,
    messages: u64,
    /// Further runs of queues, during recovery only.
    further_runs: HashMap<u64, Vec<VecDeque<IndexEntry>>, foldhash::fast::RandomState>,
    is_recovering: bool,
}

/// Number of idle queues that are always kept.
const MAX_IDLE_QUEUES: usize = 65_536;

impl QueueIndex {
    /// An index to be filled from a log whose first segment has this number; [`finish`](Self::finish) completes it.
    pub(crate) fn for_recovery(first_segment: u32) -> Self {
        let mut index = QueueIndex {
            is_recovering: true,
            ..QueueIndex::default()
        };
        index.counts.first = first_segment;
        index
    }

    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn sessions(&self) -> usize {
        self.queues.len() - self.idle_queues
    }

    pub(crate) fn live(&self) -> LiveTotals {
        self.counts.total
    }

    pub(crate) fn live_in(&self, segment: u32) -> LiveTotals {
        let at = segment.wrapping_sub(self.counts.first) as usize;
        self.counts.live.get(at).copied().unwrap_or_default()
    }

    /// Forgets a removed segment, into which nothing points.
    pub(crate) fn forget_segment(&mut self, segment: u32) {
        while self.counts.first <= segment && self.counts.live.pop_front().is_some() {
            self.counts.first += 1;
        }
        if self.counts.live.is_empty() {
            self.counts.first = self.counts.first.max(segment + 1);
        }
    }

    pub(crate) fn queue(&self, session: u64) -> Option<&SessionQueue> {
        self.queues.get(session)
    }

    /// Sessions with queued messages.
    pub(crate) fn queued_sessions(&self) -> Vec<u64> {
        let queues = self.queues.iter();
        queues
            .filter(|(_, queue)| !queue.is_idle())
            .map(|(session, _)| session)
            .collect()
    }

    pub(crate) fn summary(&self, session: u64) -> Option<QueueSummary> {
        let queue = self.queues.get(session)?;
        if queue.is_idle() {
            return None;
        }
        let waits = |entry: &&IndexEntry| !entry.is_done();
        Some(QueueSummary {
            messages: queue.entries.len() as u64 - u64::from(queue.tombstones),
            bytes: queue.bytes,
            first_seq: queue.entries.front().map_or(0, |entry| entry.seq),
            last_seq: queue
                .entries
                .iter()
                .rev()
                .find(waits)
                .map_or(0, |entry| entry.seq),
            received: queue.received.iter().map(|&(id, _)| id).collect(),
        })
    }

    /// The entry of a session whose attributes are at exactly this position, if it is still queued.
    pub(crate) fn entry_at(
        &self,
        session: u64,
        seq: u64,
        segment: u32,
        attributes_at: u32,
    ) -> Option<&IndexEntry> {
        let queue = self.queues.get(session)?;
        let at = SessionQueue::position(&queue.entries, seq).ok()?;
        let entry = &queue.entries[at];
        let is_it = entry.segment == segment && entry.attributes_at == attributes_at;
        (is_it && !entry.is_done()).then_some(entry)
    }

    /// Whether the reception of the packet id is recorded in this segment.
    pub(crate) fn is_received_in(&self, session: u64, packet_id: u16, segment: u32) -> bool {
        self.queues
            .get(session)
            .is_some_and(|queue| queue.received.binary_search(&(packet_id, segment)).is_ok())
    }

    /// Applies the records of a frame. `base` is the offset of the first one in the segment.
    pub(crate) fn apply(
        &mut self,
        records: &[u8],
        segment: u32,
        base: u32,
    ) -> Result<(), RecordsError> {
        let mut message = None;
        let mut is_first = false;
        for record in LogRecords::new(records) {
            match record.ok_or(RecordsError)? {
                LogRecord::Message { body_at, body } => {
                    message = Some((base + body_at, body.len() as u32));
                    is_first = true;
                }
                LogRecord::Entry {
                    session,
                    seq,
                    packet_id,
                    released,
                    attributes_at,
                    attributes,
                } => {
                    let (body_at, body_len) = match message {
                        _ if released => (0, 0),
                        Some(message) => message,
                        None => return Err(RecordsError),
                    };
                    let mut flags = if released { RELEASED } else { 0 };
                    if is_first && !released {
                        flags |= CARRIES_BODY;
                        is_first = false;
                    }
                    let entry = IndexEntry {
                        seq,
                        segment,
                        body_at,
                        body_len,
                        attributes_at: base + attributes_at,
                        attributes_len: u16::try_from(attributes.len())
                            .map_err(|_| RecordsError)?,
                        packet_id,
                        flags,
                    };
                    self.insert(session, entry);
                }
                LogRecord::Sent {
                    session,
                    seq,
                    packet_id,
                } => self.change_entry(session, seq, |entry| entry.packet_id = packet_id),
                LogRecord::Released { session, seq } => self.change_entry(session, seq, |entry| {
                    entry.flags = (entry.flags | RELEASED) & !CARRIES_BODY;
                    entry.body_len = 0;
                }),
                LogRecord::Done { session, seq } => self.complete_entry(session, seq),
                LogRecord::Received { session, packet_id } => {
                    self.add_received_id(session, packet_id, segment);
                }
                LogRecord::Forgotten { session, packet_id } => {
                    self.remove_received_id(session, packet_id)
                }
                LogRecord::End { session } => self.end_session(session),
                LogRecord::Put { .. } | LogRecord::Delete { .. } => {}
            }
        }
        if self.idle_queues > MAX_IDLE_QUEUES && self.idle_queues > self.queues.len() / 2 {
            self.queues.retain(|queue| !queue.is_idle());
            self.idle_queues = 0;
        }
        Ok(())
    }

    /// The queue of a session, created if needed.
    #[inline]
    fn queue_for(&mut self, session: u64) -> &mut SessionQueue {
        let (queue, is_new) = self.queues.get_or_insert(session);
        if !is_new && queue.is_idle() {
            self.idle_queues -= 1;
        }
        queue
    }

    #[inline]
    fn insert(&mut self, session: u64, entry: IndexEntry) {
        let queue = self.queue_for(session);
        if !queue.has_further_runs && queue.entries.back().is_none_or(|last| last.seq < entry.seq) {
            queue.bytes += u64::from(entry.body_len);
            queue.entries.push_back(entry);
            self.messages += 1;
            self.counts.add(entry.segment, entry.live_bytes(session));
        } else {
            self.insert_out_of_order(session, entry);
        }
    }

    /// Inserts an entry that is not the last of its session: it was copied, or written again after an error.
    #[cold]
    fn insert_out_of_order(&mut self, session: u64, entry: IndexEntry) {
        if let Some(found) = self.find(session, entry.seq) {
            let old = *found;
            *found = entry;
            self.counts.subtract(old.segment, old.live_bytes(session));
            self.counts.add(entry.segment, entry.live_bytes(session));
            let queue = self.queues.get_mut(session).expect("it was found in it");
            queue.bytes = queue.bytes + u64::from(entry.body_len) - u64::from(old.body_len);
            return;
        }
        self.messages += 1;
        self.counts.add(entry.segment, entry.live_bytes(session));
        let is_reading = self.is_recovering;
        let queue = self.queue_for(session);
        queue.bytes += u64::from(entry.body_len);
        if !is_reading {
            match SessionQueue::position(&queue.entries, entry.seq) {
                // A tombstone; otherwise `find` would have returned it.
                Ok(at) => {
                    queue.entries[at] = entry;
                    queue.tombstones -= 1;
                }
                Err(at) => queue.entries.insert(at, entry),
            }
            return;
        }
        queue.has_further_runs = true;
        let queue = self.queues.get_mut(session).expect("it was just looked up");
        let late = self.further_runs.entry(session).or_default();
        // The run with the highest end below it, as in patience sorting, which gives the fewest runs. The queue itself is one.
        let ends_below = |run: &VecDeque<IndexEntry>| {
            let end = run.back().map_or(0, |last| last.seq + 1);
            (end <= entry.seq).then_some(end)
        };
        let main_end = ends_below(&queue.entries);
        let best = late
            .iter_mut()
            .filter_map(|run| Some((ends_below(run)?, run)))
            .max_by_key(|(end, _)| *end);
        match best {
            Some((end, run)) if main_end.is_none_or(|main_end| main_end < end) => {
                run.push_back(entry);
            }
            _ if main_end.is_some() => queue.entries.push_back(entry),
            _ => late.push(VecDeque::from([entry])),
        }
    }

    /// The queued entry of a session with this number.
    fn find(&mut self, session: u64, seq: u64) -> Option<&mut IndexEntry> {
        let queue = self.queues.get_mut(session)?;
        if queue.has_further_runs {
            let runs = self.further_runs.get_mut(&session)?;
            let found = runs.iter_mut().find_map(|run| {
                let at = SessionQueue::position(run, seq).ok()?;
                (!run[at].is_done()).then(|| &mut run[at])
            });
            if found.is_some() {
                return found;
            }
        }
        let at = SessionQueue::position(&queue.entries, seq).ok()?;
        let entry = &mut queue.entries[at];
        (!entry.is_done()).then_some(entry)
    }

    fn change_entry(&mut self, session: u64, seq: u64, change: impl FnOnce(&mut IndexEntry)) {
        let Some(entry) = self.find(session, seq) else {
            return;
        };
        let old = *entry;
        change(entry);
        let new = *entry;
        self.counts.subtract(old.segment, old.live_bytes(session));
        self.counts.add(new.segment, new.live_bytes(session));
        let queue = self.queues.get_mut(session).expect("it was found in it");
        queue.bytes = queue.bytes + u64::from(new.body_len) - u64::from(old.body_len);
    }

    #[inline]
    fn complete_entry(&mut self, session: u64, seq: u64) {
        let Some(queue) = self.queues.get_mut(session) else {
            return;
        };
        let is_front = queue.entries.front().is_some_and(|entry| entry.seq == seq);
        if !is_front || queue.has_further_runs {
            return self.complete_later_entry(session, seq);
        }
        let entry = queue.entries.pop_front().expect("it was just looked at");
        if queue.tombstones > 0 {
            queue.drop_tombstones();
        }
        queue.bytes -= u64::from(entry.body_len);
        if queue.is_idle() {
            self.idle_queues += 1;
        }
        self.messages -= 1;
        self.counts
            .subtract(entry.segment, entry.live_bytes(session));
    }

    fn complete_later_entry(&mut self, session: u64, seq: u64) {
        let Some(entry) = self.find(session, seq) else {
            return;
        };
        let old = *entry;
        entry.flags |= DONE;
        self.subtract_entry(session, &old);
        let queue = self.queues.get_mut(session).expect("it was found in it");
        // Otherwise merging removes it.
        if !queue.has_further_runs {
            queue.tombstones += 1;
            queue.drop_tombstones();
            if queue.is_idle() {
                self.idle_queues += 1;
            }
        }
    }

    /// Subtracts an entry from the sums.
    fn subtract_entry(&mut self, session: u64, entry: &IndexEntry) {
        self.messages -= 1;
        self.counts
            .subtract(entry.segment, entry.live_bytes(session));
        if let Some(queue) = self.queues.get_mut(session) {
            queue.bytes -= u64::from(entry.body_len);
        }
    }

    fn add_received_id(&mut self, session: u64, packet_id: u16, segment: u32) {
        let cost = 3 + number_len(session);
        let queue = self.queue_for(session);
        let known = queue
            .received
            .binary_search_by_key(&packet_id, |&(id, _)| id);
        match known {
            Ok(at) => {
                let old = std::mem::replace(&mut queue.received[at].1, segment);
                self.counts.subtract(old, cost);
            }
            Err(at) => queue.received.insert(at, (packet_id, segment)),
        }
        self.counts.add(segment, cost);
    }

    fn remove_received_id(&mut self, session: u64, packet_id: u16) {
        let cost = 3 + number_len(session);
        let Some(queue) = self.queues.get_mut(session) else {
            return;
        };
        let known = queue
            .received
            .binary_search_by_key(&packet_id, |&(id, _)| id);
        if let Ok(at) = known {
            let (_, segment) = queue.received.remove(at);
            if queue.is_idle() {
                self.idle_queues += 1;
            }
            self.counts.subtract(segment, cost);
        }
    }

    fn end_session(&mut self, session: u64) {
        let Some(queue) = self.queues.remove(session) else {
            return;
        };
        if queue.is_idle() {
            self.idle_queues -= 1;
        }
        let late = self.further_runs.remove(&session).unwrap_or_default();
        let all = late.iter().flatten().chain(&queue.entries);
        for entry in all.filter(|entry| !entry.is_done()) {
            self.messages -= 1;
            self.counts
                .subtract(entry.segment, entry.live_bytes(session));
        }
        for (_, segment) in queue.received {
            self.counts.subtract(segment, 3 + number_len(session));
        }
    }

    /// Completes recovery: merges runs and frees excess capacity.
    pub(crate) fn finish(&mut self) {
        self.is_recovering = false;
        for (session, runs) in std::mem::take(&mut self.further_runs) {
            let Some(queue) = self.queues.get_mut(session) else {
                continue;
            };
            queue.has_further_runs = false;
            let main = std::mem::take(&mut queue.entries);
            let all = main.into_iter().chain(runs.into_iter().flatten());
            let mut all: Vec<IndexEntry> = all.filter(|entry| !entry.is_done()).collect();
            all.sort_by_key(|entry| entry.seq);
            queue.entries = all.into();
            queue.tombstones = 0;
        }
        self.queues.retain(|queue| {
            queue.entries.shrink_to(queue.entries.len() + 4);
            !queue.is_idle()
        });
        self.queues.shrink_to_fit();
        self.idle_queues = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::StoreBatch;

    fn apply(index: &mut QueueIndex, segment: u32, write: impl FnOnce(&mut StoreBatch)) {
        let mut batch = StoreBatch::default();
        write(&mut batch);
        let records = &batch.bytes[crate::batch::FRAME_HEAD..];
        index.apply(records, segment, 96).unwrap();
    }

    fn waiting(index: &QueueIndex, session: u64) -> Vec<u64> {
        let queue = index.queue(session);
        queue.map_or(Vec::new(), |queue| {
            queue.entries_from(0).map(|entry| entry.seq).collect()
        })
    }

    #[test]
    fn counts_fall_to_zero_when_all_is_done() {
        let mut index = QueueIndex::default();
        apply(&mut index, 0, |batch| {
            for seq in 1..=100 {
                batch.begin_message(&[b"hello"]);
                batch.add_entry(7, seq, 0, b"a");
                batch.add_entry(8, seq * 10, 0, b"");
            }
            batch.add_received_id(7, 4);
        });
        assert_eq!(index.messages(), 200);
        assert_eq!(index.live_in(0).count, 201);
        apply(&mut index, 1, |batch| {
            for seq in (1..=100).rev() {
                batch.mark_sent(7, seq, 9);
                batch.mark_released(7, seq);
                batch.complete_entry(7, seq);
                batch.complete_entry(8, seq * 10);
            }
            batch.remove_received_id(7, 4);
        });
        assert_eq!((index.messages(), index.live()), (0, LiveTotals::default()));
        assert_eq!(index.live_in(0), LiveTotals::default());
        assert_eq!((index.sessions(), index.summary(7)), (0, None));
    }

    #[test]
    fn tombstones_go_when_they_are_many() {
        let mut index = QueueIndex::default();
        apply(&mut index, 0, |batch| {
            for seq in 1..=1000 {
                batch.begin_message(&[b"hello"]);
                batch.add_entry(7, seq, 0, b"");
            }
            (2..=990).for_each(|seq| batch.complete_entry(7, seq));
        });
        assert!(index.queue(7).unwrap().entries.len() < 80);
        let rest: Vec<u64> = [1].into_iter().chain(991..=1000).collect();
        assert_eq!(waiting(&index, 7), rest);
        let summary = index.summary(7).unwrap();
        assert_eq!((summary.messages, summary.bytes), (11, 55));
        assert_eq!((summary.first_seq, summary.last_seq), (1, 1000));
    }

    #[test]
    fn copies_read_behind_younger_entries_are_put_in_order() {
        let mut index = QueueIndex::for_recovery(0);
        let write = |batch: &mut StoreBatch, seq| {
            batch.begin_message(&[b"hello"]);
            batch.add_entry(7, seq, 0, b"");
        };
        apply(&mut index, 0, |batch| {
            (1..=4).for_each(|seq| write(batch, seq))
        });
        apply(&mut index, 1, |batch| {
            (501..=1000).for_each(|seq| write(batch, seq))
        });
        for step in 0..250 {
            apply(&mut index, 2, |batch| {
                write(batch, 1001 + step);
                // Copies; the first ones are still in segment 0 as well.
                write(batch, step * 2 + 1);
                write(batch, step * 2 + 2);
            });
        }
        assert!(index.further_runs[&7].len() < 4);
        apply(&mut index, 3, |batch| {
            batch.complete_entry(7, 3);
            batch.complete_entry(7, 600);
            batch.mark_sent(7, 4, 5);
        });
        index.finish();
        let expected: Vec<u64> = (1..=1250).filter(|seq| ![3, 600].contains(seq)).collect();
        assert_eq!(waiting(&index, 7), expected);
        assert_eq!(index.messages(), 1248);
        assert_eq!(index.live_in(0).count, 0, "the copies count");
        assert_eq!(
            index
                .queue(7)
                .unwrap()
                .entries_from(4)
                .next()
                .unwrap()
                .packet_id,
            5
        );
    }
}
