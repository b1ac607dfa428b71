//! The numbers of messages that a shard has received from other nodes, so that one that is sent again has no effect.
//!
//! They are those of a `MessageId`: the sender does not use them again. Each message says below which number nothing will
//! be sent again; numbers below are forgotten. A number that is not known is never taken for one that was received:
//! what is forgotten too early, or was never stored, may arrive twice, but is not lost. Messages may arrive in any order.
//!
//! Numbers are kept in parts of 1024, one bit each. A part is written in the batch of the turn in which a message with one
//! of its numbers was written for a session. Other numbers need not be durable: a session that is restored has not got
//! their messages.
//!
//! A message that is delivered while sessions are being adopted has a *mark*: the number of the next session. A node that has started
//! again, and continues the adoption, sees by it which of the sessions that were adopted before have got the message.

use super::hash_state::RandomState;
use disk::varint;
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;

use super::cross_shard_batch::MessageId;
use super::node_link::RestoredEntry;
use super::records::NodeEntryTarget;
use super::session_filter::FormerReceivers;

const PART_BITS: u64 = 1024;
const PART_WORDS: usize = PART_BITS as usize / 64;
/// Parts of one shard, each of about 200 bytes. The lowest one of the origin that was not used for the longest time
/// is forgotten if there are more.
const MAX_PARTS: usize = 16_384;
/// Time after which an origin is forgotten that is not used any more: its node has started again.
const MAX_UNUSED_MS: u64 = 7 * 24 * 3600 * 1000;
/// First byte of a record, and of one with marks.
const RECORD_VERSION: u8 = 1;
const MARKED_VERSION: u8 = 2;

#[derive(Debug, Default, Clone)]
struct Part {
    words: [u64; PART_WORDS],
    /// The marks of some of the numbers.
    marks: BTreeMap<u16, u64>,
    /// Whether it has to be written in this turn.
    is_changed: bool,
    is_stored: bool,
}

#[derive(Debug, Default, Clone)]
struct OriginNumbers {
    /// No lower number will come again.
    first: u64,
    used_ms: u64,
    parts: BTreeMap<u64, Part>,
}

/// The numbers that one shard has received.
#[derive(Debug, Default, Clone)]
pub(crate) struct ReceivedNumbers {
    origins: HashMap<u64, OriginNumbers, RandomState>,
    parts: usize,
    /// Origins and parts to be written in this turn.
    changed: Vec<(u64, u64)>,
    /// Those to be deleted from the store.
    removed: Vec<(u64, u64)>,
}

fn position(seq: u64) -> (u64, usize, u64) {
    let bit = seq % PART_BITS;
    (seq / PART_BITS, (bit / 64) as usize, 1 << (bit % 64))
}

/// Writes marks as ranges of numbers with the same mark; nothing if there are none.
fn put_marks(record: &mut Vec<u8>, marks: &BTreeMap<u16, u64>) {
    let mut ranges: Vec<(u16, u16, u64)> = Vec::new();
    for (&bit, &mark) in marks {
        match ranges.last_mut() {
            Some((_, end, of_range)) if (*end, *of_range) == (bit, mark) => *end += 1,
            _ => ranges.push((bit, bit + 1, mark)),
        }
    }
    if ranges.is_empty() {
        return;
    }
    varint::put(record, ranges.len() as u64);
    let mut before = 0;
    for (start, end, mark) in ranges {
        varint::put(record, u64::from(start - before));
        varint::put(record, u64::from(end - start));
        varint::put(record, mark);
        before = end;
    }
}

fn take_marks(rest: &mut &[u8]) -> Option<BTreeMap<u16, u64>> {
    let mut marks = BTreeMap::new();
    let mut end = 0;
    for _ in 0..varint::take(rest)?.min(PART_BITS + 1) {
        let start = varint::take(rest)?.checked_add(end)?;
        end = varint::take(rest)?.checked_add(start)?;
        let mark = varint::take(rest)?;
        if end > PART_BITS {
            return None;
        }
        marks.extend((start..end).map(|bit| (bit as u16, mark)));
    }
    Some(marks)
}

/// A part as it is stored.
struct PartRecord<'a> {
    used_ms: u64,
    first: u64,
    marks: BTreeMap<u16, u64>,
    /// Bytes with a bit for each number.
    numbers: &'a [u8],
}

impl<'a> PartRecord<'a> {
    fn read(record: &'a [u8]) -> Option<Self> {
        let (&version, mut rest) = record.split_first()?;
        let used_ms = varint::take(&mut rest)?;
        let first = varint::take(&mut rest)?;
        let marks = match version {
            RECORD_VERSION => BTreeMap::new(),
            MARKED_VERSION => take_marks(&mut rest)?,
            _ => return None,
        };
        (rest.len() <= PART_WORDS * 8).then_some(Self {
            used_ms,
            first,
            marks,
            numbers: rest,
        })
    }
}

/// The highest mark in a record; 0: there is none. Sessions that begin after a start must have higher numbers.
pub(crate) fn highest_mark(record: &[u8]) -> u64 {
    let record = PartRecord::read(record);
    record.map_or(0, |record| record.marks.into_values().max().unwrap_or(0))
}

impl ReceivedNumbers {
    pub(crate) fn contains(&self, id: MessageId) -> bool {
        let (part, word, bit) = position(id.seq);
        let origin = self.origins.get(&id.origin);
        let part = origin.and_then(|origin| origin.parts.get(&part));
        part.is_some_and(|part| part.words[word] & bit != 0)
    }

    /// A message was received. `is_durable`: something was written because of it, so that its number has to be.
    pub(crate) fn insert(&mut self, id: MessageId, is_durable: bool, now_ms: u64) {
        if !self.origins.contains_key(&id.origin) {
            self.forget_unused(now_ms);
        }
        let origin = self.origins.entry(id.origin).or_default();
        // The clock may have been set back.
        origin.used_ms = origin.used_ms.max(now_ms);
        let (at, word, bit) = position(id.seq);
        let part = origin.parts.entry(at).or_insert_with(|| {
            self.parts += 1;
            Part::default()
        });
        part.words[word] |= bit;
        if is_durable && !std::mem::replace(&mut part.is_changed, true) {
            self.changed.push((id.origin, at));
        }
        let first = id.seq.saturating_sub(u64::from(id.behind));
        if first > origin.first {
            origin.first = first;
            while let Some(lowest) = origin.parts.first_entry()
                && *lowest.key() < first / PART_BITS
            {
                let (part, removed) = lowest.remove_entry();
                self.parts -= 1;
                if removed.is_stored {
                    self.removed.push((id.origin, part));
                }
            }
        }
        if self.parts > MAX_PARTS {
            self.forget_one();
        }
    }

    /// A message that was received was delivered to sessions with lower numbers than `mark` only.
    pub(crate) fn mark(&mut self, id: MessageId, mark: u64) {
        let origin = self.origins.get_mut(&id.origin);
        let part = origin.and_then(|origin| origin.parts.get_mut(&(id.seq / PART_BITS)));
        if let Some(part) = part {
            part.marks.insert((id.seq % PART_BITS) as u16, mark);
        }
    }

    /// Origins and numbers of messages, and their marks.
    pub(crate) fn marks(&self) -> impl Iterator<Item = ((u64, u64), u64)> {
        self.origins.iter().flat_map(|(&number, origin)| {
            origin.parts.iter().flat_map(move |(&at, part)| {
                let marks = part.marks.iter();
                marks.map(move |(&bit, &mark)| ((number, at * PART_BITS + u64::from(bit)), mark))
            })
        })
    }

    /// No sessions are being adopted. Records have the marks until they are written again.
    pub(crate) fn forget_marks(&mut self) {
        let parts = self
            .origins
            .values_mut()
            .flat_map(|origin| origin.parts.values_mut());
        for part in parts {
            part.marks = BTreeMap::new();
        }
    }

    /// Forgets the origins that were not used for a long time.
    fn forget_unused(&mut self, now_ms: u64) {
        let (parts, removed) = (&mut self.parts, &mut self.removed);
        self.origins.retain(|&number, origin| {
            let is_used = now_ms < origin.used_ms.saturating_add(MAX_UNUSED_MS);
            if !is_used {
                *parts -= origin.parts.len();
                let stored = origin.parts.iter().filter(|(_, part)| part.is_stored);
                removed.extend(stored.map(|(&part, _)| (number, part)));
            }
            is_used
        });
    }

    fn forget_one(&mut self) {
        let used = self
            .origins
            .iter()
            .filter(|(_, origin)| !origin.parts.is_empty());
        let Some((&number, _)) = used.min_by_key(|(_, origin)| origin.used_ms) else {
            return;
        };
        if let Some(origin) = self.origins.get_mut(&number)
            && let Some((part, removed)) = origin.parts.pop_first()
        {
            self.parts -= 1;
            if removed.is_stored {
                self.removed.push((number, part));
            }
            if origin.parts.is_empty() {
                self.origins.remove(&number);
            }
        }
    }

    /// Whether something has to be written in this turn. What is forgotten is deleted with the next change.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The records to be written in this turn; `None`: to be deleted.
    pub(crate) fn take_changes(&mut self, mut write: impl FnMut(u64, u64, Option<&[u8]>)) {
        for (number, at) in std::mem::take(&mut self.removed) {
            write(number, at, None);
        }
        let mut record = Vec::new();
        for (number, at) in std::mem::take(&mut self.changed) {
            let Some(origin) = self.origins.get_mut(&number) else {
                continue;
            };
            let (used_ms, first) = (origin.used_ms, origin.first);
            let Some(part) = origin.parts.get_mut(&at) else {
                continue;
            };
            (part.is_changed, part.is_stored) = (false, true);
            record.clear();
            record.push(match part.marks.is_empty() {
                true => RECORD_VERSION,
                false => MARKED_VERSION,
            });
            varint::put(&mut record, used_ms);
            varint::put(&mut record, first);
            put_marks(&mut record, &part.marks);
            let words = part.words.iter().flat_map(|word| word.to_le_bytes());
            record.extend(words);
            while record.last() == Some(&0) {
                record.pop();
            }
            write(number, at, Some(&record));
        }
    }

    /// Takes over a record from the store; false if it cannot be decoded.
    pub(crate) fn restore(&mut self, number: u64, at: u64, record: &[u8]) -> bool {
        let Some(PartRecord {
            used_ms,
            first,
            marks,
            numbers,
        }) = PartRecord::read(record)
        else {
            return false;
        };
        let mut part = Part {
            marks,
            is_stored: true,
            ..Part::default()
        };
        for (position, &byte) in numbers.iter().enumerate() {
            part.words[position / 8] |= u64::from(byte) << (position % 8 * 8);
        }
        let origin = self.origins.entry(number).or_default();
        origin.used_ms = origin.used_ms.max(used_ms);
        origin.first = origin.first.max(first);
        if origin.parts.insert(at, part).is_none() {
            self.parts += 1;
        }
        if self.parts > MAX_PARTS {
            self.forget_one();
        }
        true
    }
}

/// The messages that another node had, according to the copy of its store: the numbers that its shards had received, and what it has
/// published.
#[derive(Debug, Default)]
pub(crate) struct CopiedNumbers {
    shards: HashMap<(u16, u16), ReceivedNumbers, RandomState>,
    /// The origins of messages that were published at the node and are in its links. Nobody sends others any more.
    published: HashSet<u64, RandomState>,
}

impl CopiedNumbers {
    /// Takes over a record of a shard: the number of shards that the node had, and which one it is. False if it cannot be
    /// decoded.
    pub(crate) fn restore(
        &mut self,
        shard: (u16, u16),
        (origin, part): (u64, u64),
        record: &[u8],
    ) -> bool {
        let numbers = self.shards.entry(shard).or_default();
        numbers.restore(origin, part, record)
    }

    /// Takes over the messages that were on their way from the node to others.
    pub(crate) fn add_for_nodes(&mut self, entries: &[RestoredEntry]) {
        let all = entries.iter().map(RestoredEntry::entry);
        let published = all.filter(|entry| entry.target == NodeEntryTarget::All);
        self.published.extend(published.map(|entry| entry.origin));
    }

    /// The sessions of the node that had got a message.
    pub(crate) fn receivers_of(&self, id: MessageId) -> FormerReceivers {
        let shards = self.shards.iter();
        let with = shards.filter(|(_, numbers)| numbers.contains(id));
        FormerReceivers {
            shards: with
                .map(|(&(shards, shard), _)| (shards.into(), shard.into()))
                .collect(),
            is_published_there: self.published.contains(&id.origin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(origin: u64, seq: u64, behind: u32) -> MessageId {
        MessageId {
            origin,
            seq,
            behind,
        }
    }

    type Records = BTreeMap<(u64, u64), Vec<u8>>;

    fn write(numbers: &mut ReceivedNumbers, records: &mut Records) {
        numbers.take_changes(|origin, part, record| {
            match record {
                Some(record) => records.insert((origin, part), record.to_vec()),
                None => records.remove(&(origin, part)),
            };
        });
    }

    fn restored(records: &Records) -> ReceivedNumbers {
        let mut numbers = ReceivedNumbers::default();
        for (&(origin, part), record) in records {
            assert!(numbers.restore(origin, part, record));
        }
        numbers
    }

    #[test]
    fn numbers_are_known_in_any_order_and_after_a_start() {
        let mut numbers = ReceivedNumbers::default();
        let mut records = Records::new();
        for seq in [5000, 1, 1023, 1024, 70] {
            assert!(!numbers.contains(id(7, seq, 0)));
            numbers.insert(id(7, seq, seq as u32 - 1), true, 1);
        }
        write(&mut numbers, &mut records);
        numbers.insert(id(7, 71, 70), false, 1);
        assert!(!numbers.has_changes());
        let restored = restored(&records);
        for numbers in [&numbers, &restored] {
            for seq in [5000, 1, 1023, 1024, 70] {
                assert!(numbers.contains(id(7, seq, 0)), "{seq}");
            }
            assert!(!numbers.contains(id(7, 2, 0)) && !numbers.contains(id(8, 1, 0)));
        }
        // It was written for no session.
        assert!(numbers.contains(id(7, 71, 0)) && !restored.contains(id(7, 71, 0)));
    }

    #[test]
    fn numbers_that_do_not_come_again_are_deleted() {
        let mut numbers = ReceivedNumbers::default();
        let mut records = Records::new();
        for seq in 1..=10 * PART_BITS {
            numbers.insert(id(7, seq, (seq - 1).min(100) as u32), true, 1);
            if seq % 50 == 0 {
                write(&mut numbers, &mut records);
            }
        }
        write(&mut numbers, &mut records);
        assert!(numbers.parts <= 2 && records.len() <= 2, "{records:?}");
        assert!(numbers.contains(id(7, 10 * PART_BITS, 0)));
        assert!(restored(&records).contains(id(7, 10 * PART_BITS, 0)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut numbers = ReceivedNumbers::default();
        let mut records = Records::new();
        // Other nodes decide what they send.
        for n in 1..=2 * MAX_PARTS as u64 {
            numbers.insert(id(n % 3, n * PART_BITS, 0), true, n);
            numbers.insert(id(5, n * PART_BITS, u32::MAX), true, n);
            write(&mut numbers, &mut records);
        }
        assert!(numbers.parts <= MAX_PARTS && records.len() <= MAX_PARTS);
        let last = 2 * MAX_PARTS as u64 * PART_BITS;
        assert!(numbers.contains(id(5, last, 0)));
        // Origins that are not used any more.
        let later = 2 * MAX_PARTS as u64 + MAX_UNUSED_MS;
        numbers.insert(id(100, 1, 0), true, later);
        write(&mut numbers, &mut records);
        assert_eq!((numbers.parts, records.len()), (1, 1));
    }

    #[test]
    fn marks_are_in_the_records_until_they_are_forgotten() {
        let mut numbers = ReceivedNumbers::default();
        let mut records = Records::new();
        let marks = [(1, 64), (2, 64), (3, 66), (1023, 66), (1024, u64::MAX)];
        for (seq, mark) in marks {
            numbers.insert(id(7, seq, 1024), true, 1);
            numbers.mark(id(7, seq, 1024), mark);
        }
        numbers.insert(id(7, 5, 0), true, 1);
        numbers.mark(id(7, 9000, 0), 1);
        write(&mut numbers, &mut records);
        let from_store = restored(&records);
        assert!(from_store.contains(id(7, 5, 0)) && !from_store.contains(id(7, 4, 0)));
        let mut found: Vec<_> = from_store.marks().collect();
        found.sort_unstable();
        assert_eq!(found, marks.map(|(seq, mark)| ((7, seq), mark)));
        numbers.forget_marks();
        numbers.insert(id(7, 6, 6), true, 1);
        numbers.insert(id(7, 1030, 1024), true, 1);
        write(&mut numbers, &mut records);
        assert_eq!(restored(&records).marks().count(), 0);
    }

    #[test]
    fn damaged_records_are_rejected() {
        let mut numbers = ReceivedNumbers::default();
        let long = [&[RECORD_VERSION, 1, 1][..], &[1; 129]].concat();
        let marked = |rest: &[u8]| [&[MARKED_VERSION, 1, 1][..], rest].concat();
        let (cut, behind) = (marked(&[1, 0, 1]), marked(&[1, 0xff, 7, 2, 1]));
        let versions = [&[][..], &[3, 1, 1], &[RECORD_VERSION, 1], &long];
        for record in versions.into_iter().chain([&*cut, &*behind]) {
            assert!(!numbers.restore(7, 0, record), "{record:?}");
        }
    }
}
