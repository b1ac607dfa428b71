//! A journal in a directory; the format is described in `docs/internals/link.md`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use content::RangeSet;
use disk::varint::{self, VarintReader};

use crate::core::LinkStateRecord;
use crate::durable::journal::{Journal, JournalContent};
use crate::message::MessageId;
use crate::priority::{LANES, Priority};
use crate::wire::handshake::LinkId;

const FILE_NAME: &str = "journal";
const MAGIC: &[u8; 8] = b"TGLINKJ1";
/// Magic, link id, CRC32C of both.
const HEADER_BYTES: usize = 8 + 16 + 4;
/// Length and CRC32C of a record.
const RECORD_HEADER_BYTES: usize = 8;
const MAX_RECORD_BYTES: usize = 1 << 30;
/// The file is rewritten when it is this much longer than twice its live content.
const COMPACTION_SLACK_BYTES: u64 = 16 * 1024 * 1024;

const SENT: u8 = 1;
const ACKNOWLEDGED: u8 = 2;
const RECEIVED: u8 = 3;
const PROCESSED: u8 = 4;
/// The numbers of a lane, without contents; written when the file is rewritten, and when the peer has lost its state.
const LANE: u8 = 5;

/// A stream was opened.
const OPENED: u8 = 6;

/// The link has ended; there is no further one.
const ENDED: u8 = 7;

/// The numbers of one lane.
#[derive(Debug, Clone, Default)]
struct LaneNumbers {
    last_sent: u64,
    acknowledged: RangeSet,
    received: RangeSet,
}

impl LaneNumbers {
    fn record(&self, priority: Priority) -> Vec<u8> {
        let mut record = vec![LANE, priority as u8];
        varint::put(&mut record, self.last_sent);
        put_all_ranges(&self.acknowledged, &mut record);
        put_all_ranges(&self.received, &mut record);
        record
    }
}

#[derive(Debug, Clone, Default)]
struct JournalState {
    lanes: [LaneNumbers; LANES],
    /// Sent and not acknowledged.
    sent: BTreeMap<MessageId, Bytes>,
    /// Received and not processed, by the order of arrival.
    unprocessed: BTreeMap<u64, (MessageId, Bytes)>,
    arrivals: u64,
    live_bytes: u64,
    is_ended: bool,
}

/// A [`Journal`] that appends records to one file, and rewrites the file when most of it is obsolete.
#[derive(Debug)]
pub struct FileJournal {
    dir: PathBuf,
    file: File,
    /// Held while the journal is open.
    _lock: File,
    link_id: LinkId,
    state: JournalState,
    /// Records that are not written.
    buffer: Vec<u8>,
    /// Length of the records that are synced.
    file_bytes: u64,
    /// A write or sync failed, so that the file may be longer.
    has_failed_write: bool,
    discarded_bytes: u64,
}

impl FileJournal {
    /// Opens the journal of a directory, and creates both if they are missing. `new_link_id` identifies a new link. The journal of a
    /// link that has ended, and whose messages are processed, is replaced by that of a new one.
    ///
    /// A record that is incomplete or damaged, and all after it, are discarded: after a crash these are records that
    /// were not synced. [`discarded_bytes`](Self::discarded_bytes) tells their length.
    ///
    /// # Errors
    /// If the directory is in use, a file operation fails, or the file is no journal.
    pub fn open(dir: &Path, new_link_id: LinkId) -> io::Result<Self> {
        if Self::exists(dir) {
            let journal = Self::open_existing(dir)?;
            if !journal.is_finished() {
                return Ok(journal);
            }
            journal.remove()?;
        }
        let lock = disk::lock_directory(dir).map_err(io::Error::other)?;
        disk::replace_file(dir, FILE_NAME, &encode_header(new_link_id))?;
        Self::load(dir, lock)
    }

    /// As [`open`](Self::open), for a journal that [exists](Self::exists).
    pub(crate) fn open_existing(dir: &Path) -> io::Result<Self> {
        let lock = disk::lock_directory(dir).map_err(io::Error::other)?;
        Self::load(dir, lock)
    }

    fn load(dir: &Path, lock: File) -> io::Result<Self> {
        let path = dir.join(FILE_NAME);
        let bytes = Bytes::from(fs::read(&path)?);
        let link_id = parse_header(&bytes).ok_or_else(|| {
            let text = format!(
                "{} is not a journal of a link, or its begin is damaged; move it away to begin with an empty one",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        let mut state = JournalState::default();
        let mut end = HEADER_BYTES;
        while let Some((record, next)) = next_record(&bytes, end) {
            if state.apply(&record).is_none() {
                break;
            }
            end = next;
        }
        let file = OpenOptions::new().append(true).mode(0o600).open(&path)?;
        let discarded_bytes = (bytes.len() - end) as u64;
        if discarded_bytes > 0 {
            file.set_len(end as u64)?;
            file.sync_all()?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            file,
            _lock: lock,
            link_id,
            state,
            buffer: Vec::new(),
            file_bytes: end as u64,
            has_failed_write: false,
            discarded_bytes,
        })
    }

    /// Whether a directory contains a journal.
    pub(crate) fn exists(dir: &Path) -> bool {
        dir.join(FILE_NAME).exists()
    }

    pub fn link_id(&self) -> LinkId {
        self.link_id
    }

    /// Bytes at the end of the file that were not a complete record.
    pub fn discarded_bytes(&self) -> u64 {
        self.discarded_bytes
    }

    pub fn content(&self) -> JournalContent {
        let mut record = LinkStateRecord::default();
        for (lane, numbers) in record.lanes.iter_mut().zip(&self.state.lanes) {
            lane.last_sent = numbers.last_sent;
            lane.sent_acknowledged = numbers.acknowledged.clone();
            lane.received = numbers.received.clone();
        }
        for (id, payload) in &self.state.sent {
            let lane = &mut record.lanes[id.priority.index()];
            lane.unacknowledged.push((id.number, payload.clone()));
        }
        JournalContent {
            link_id: self.link_id,
            state: record,
            unprocessed: self.state.unprocessed.values().cloned().collect(),
        }
    }

    /// Whether there are received messages that the application has not processed.
    pub fn has_unprocessed_messages(&self) -> bool {
        !self.state.unprocessed.is_empty()
    }

    /// Records that the link has ended, which needs no further records but of messages that are processed.
    pub(crate) fn record_ended(&mut self) -> io::Result<()> {
        self.append(&[ENDED, Priority::Urgent as u8])
    }

    /// Whether the link has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.state.is_ended
    }

    /// Whether the link has ended, and all its messages are processed.
    pub(crate) fn is_finished(&self) -> bool {
        self.state.is_ended && !self.has_unprocessed_messages()
    }

    /// Replaces the received numbers of a lane, after the peer has lost its state.
    pub fn reset_received(&mut self, priority: Priority, received: &RangeSet) {
        let lane = &mut self.state.lanes[priority.index()];
        lane.received = received.clone();
        put_record(&lane.record(priority), &mut self.buffer);
    }

    /// Removes the file, because the link has ended.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn remove(&self) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.dir.join(FILE_NAME)))?;
        ignore_missing(disk::sync_dir(&self.dir))
    }

    /// Removes the directory.
    pub(crate) fn remove_directory(&self) -> io::Result<()> {
        // Without this file, the rest is no journal.
        self.remove()?;
        ignore_missing(fs::remove_dir_all(&self.dir))
    }

    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a message of more than 1 GiB cannot be recorded; send it as a stream",
            ));
        }
        put_record(record, &mut self.buffer);
        // The bytes of the caller are copied, so that they do not pin the buffer of a carrier.
        let applied = self.state.apply(&Bytes::copy_from_slice(record));
        debug_assert!(applied.is_some(), "a record that was just encoded is valid");
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        #[cfg(test)]
        if tests::FAIL_SYNC.with(|fail| fail.take()) {
            return Err(io::ErrorKind::Other.into());
        }
        self.file.sync_data()
    }

    fn compact(&mut self) -> io::Result<()> {
        let mut bytes = encode_header(self.link_id);
        self.state.encode(&mut bytes);
        disk::replace_file(&self.dir, FILE_NAME, &bytes)?;
        let mut options = OpenOptions::new();
        self.file = options.append(true).open(self.dir.join(FILE_NAME))?;
        self.file_bytes = bytes.len() as u64;
        self.has_failed_write = false;
        Ok(())
    }
}

impl Journal for FileJournal {
    fn record_sent(&mut self, id: MessageId, payload: &Bytes) -> io::Result<()> {
        self.append(&message_record(SENT, id, payload))
    }

    fn record_opened(&mut self, id: MessageId) -> io::Result<()> {
        self.append(&message_record(OPENED, id, &[]))
    }

    fn record_acknowledged(&mut self, priority: Priority, numbers: &RangeSet) -> io::Result<()> {
        let mut record = vec![ACKNOWLEDGED, priority as u8];
        put_all_ranges(numbers, &mut record);
        self.append(&record)
    }

    fn record_received(&mut self, id: MessageId, payload: &Bytes) -> io::Result<()> {
        self.append(&message_record(RECEIVED, id, payload))
    }

    fn record_processed(&mut self, id: MessageId) -> io::Result<()> {
        self.append(&message_record(PROCESSED, id, &[]))
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let len = self.file_bytes + self.buffer.len() as u64;
        if len > 2 * self.state.live_bytes + COMPACTION_SLACK_BYTES {
            // The state contains what the buffer would add.
            self.compact()?;
        } else {
            if self.has_failed_write {
                // What was written must not precede the next record, nor be written twice.
                self.file.set_len(self.file_bytes)?;
            }
            self.has_failed_write = true;
            self.file.write_all(&self.buffer)?;
            self.sync_data()?;
            self.has_failed_write = false;
            self.file_bytes = len;
        }
        self.buffer.clear();
        Ok(())
    }
}

impl JournalState {
    /// Applies a record; `None`: it is not valid.
    fn apply(&mut self, record: &Bytes) -> Option<()> {
        let mut reader = VarintReader::new(record);
        let kind = reader.byte()?;
        let priority = *Priority::ALL.get(usize::from(reader.byte()?))?;
        let lane = &mut self.lanes[priority.index()];
        match kind {
            SENT => {
                let number = reader.number()?;
                lane.last_sent = lane.last_sent.max(number);
                let payload = record.slice(reader.at..);
                self.live_bytes += payload.len() as u64;
                self.sent.insert(MessageId { priority, number }, payload);
            }
            OPENED => lane.last_sent = lane.last_sent.max(reader.number()?),
            ACKNOWLEDGED => {
                let numbers = read_all_ranges(&mut reader)?;
                lane.acknowledged.insert_all(&numbers);
                for range in numbers.iter() {
                    let ids = MessageId {
                        priority,
                        number: range.start,
                    }..MessageId {
                        priority,
                        number: range.end,
                    };
                    let settled: Vec<MessageId> = self.sent.range(ids).map(|(id, _)| *id).collect();
                    for id in settled {
                        let payload = self.sent.remove(&id)?;
                        self.live_bytes -= payload.len() as u64;
                    }
                }
            }
            RECEIVED => {
                let number = reader.number()?;
                lane.received.insert(number..number.checked_add(1)?);
                let payload = record.slice(reader.at..);
                self.live_bytes += payload.len() as u64;
                self.arrivals += 1;
                let id = MessageId { priority, number };
                self.unprocessed.insert(self.arrivals, (id, payload));
            }
            PROCESSED => {
                let id = MessageId {
                    priority,
                    number: reader.number()?,
                };
                let arrival = self.unprocessed.iter().find(|(_, (other, _))| *other == id);
                if let Some((&arrival, _)) = arrival {
                    let (_, payload) = self.unprocessed.remove(&arrival)?;
                    self.live_bytes -= payload.len() as u64;
                }
            }
            ENDED => self.is_ended = true,
            LANE => {
                lane.last_sent = reader.number()?;
                lane.acknowledged = read_all_ranges(&mut reader)?;
                lane.received = read_all_ranges(&mut reader)?;
            }
            _ => return None,
        }
        Some(())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for (priority, lane) in Priority::ALL.into_iter().zip(&self.lanes) {
            put_record(&lane.record(priority), out);
        }
        if self.is_ended {
            put_record(&[ENDED, Priority::Urgent as u8], out);
        }
        for (id, payload) in &self.sent {
            put_record(&message_record(SENT, *id, payload), out);
        }
        for (id, payload) in self.unprocessed.values() {
            put_record(&message_record(RECEIVED, *id, payload), out);
        }
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn encode_header(link_id: LinkId) -> Vec<u8> {
    let mut header = [&MAGIC[..], &link_id.0].concat();
    let crc = crc32c::crc32c(&header);
    header.extend_from_slice(&crc.to_le_bytes());
    header
}

fn parse_header(bytes: &[u8]) -> Option<LinkId> {
    let header = bytes.get(..HEADER_BYTES)?;
    let id = header[8..24].try_into().ok()?;
    (header == encode_header(LinkId(id))).then_some(LinkId(id))
}

fn message_record(kind: u8, id: MessageId, payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(payload.len() + 12);
    record.extend_from_slice(&[kind, id.priority as u8]);
    varint::put(&mut record, id.number);
    record.extend_from_slice(payload);
    record
}

fn put_record(record: &[u8], out: &mut Vec<u8>) {
    let len = (record.len() as u32).to_le_bytes();
    let crc = crc32c::crc32c_append(crc32c::crc32c(&len), record);
    out.extend_from_slice(&len);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(record);
}

/// The record at `at`, and the position after it.
fn next_record(bytes: &Bytes, at: usize) -> Option<(Bytes, usize)> {
    let header = bytes.get(at..at + RECORD_HEADER_BYTES)?;
    let (len, crc) = header.split_first_chunk::<4>()?;
    let start = at + RECORD_HEADER_BYTES;
    let end = start.checked_add(u32::from_le_bytes(*len) as usize)?;
    let record = bytes.get(start..end)?;
    let expected = crc32c::crc32c_append(crc32c::crc32c(len), record);
    (crc == expected.to_le_bytes()).then(|| (bytes.slice(start..end), end))
}

/// Unlike lists in frames, these are not limited in number.
fn put_all_ranges(ranges: &RangeSet, out: &mut Vec<u8>) {
    varint::put(out, ranges.range_count() as u64);
    for range in ranges.iter() {
        varint::put(out, range.start);
        varint::put(out, range.end - range.start);
    }
}

fn read_all_ranges(reader: &mut VarintReader<'_>) -> Option<RangeSet> {
    let count = reader.number()?;
    let mut ranges = RangeSet::new();
    for _ in 0..count {
        let (start, len) = (reader.number()?, reader.number()?);
        ranges.insert(start..start.checked_add(len)?);
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LinkId = LinkId([3; 16]);

    thread_local! {
        /// Whether the next sync of this thread fails.
        pub(super) static FAIL_SYNC: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    fn id(number: u64) -> MessageId {
        MessageId {
            priority: Priority::High,
            number,
        }
    }

    #[test]
    fn a_sync_that_is_repeated_writes_each_record_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = FileJournal::open(dir.path(), ID).unwrap();
        let payload = Bytes::from_static(b"message");
        journal.record_received(id(1), &payload).unwrap();
        FAIL_SYNC.with(|fail| fail.set(true));
        journal.sync().unwrap_err();
        journal.sync().unwrap();
        journal.record_processed(id(1)).unwrap();
        journal.sync().unwrap();
        drop(journal);
        let journal = FileJournal::open(dir.path(), ID).unwrap();
        assert!(journal.content().unprocessed.is_empty());
        assert_eq!(journal.discarded_bytes(), 0);
    }

    #[test]
    fn every_prefix_of_the_file_is_a_state_of_the_past() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let mut states = Vec::new();
        let mut journal = FileJournal::open(dir.path(), ID).unwrap();
        states.push((journal.file_bytes, journal.content()));
        for number in 1..6 {
            let payload = Bytes::from(vec![number as u8; number as usize * 3]);
            journal.record_sent(id(number), &payload).unwrap();
            journal.record_received(id(number), &payload).unwrap();
            journal.sync().unwrap();
            if number > 2 {
                let numbers = RangeSet::from(0..number - 1);
                journal
                    .record_acknowledged(Priority::High, &numbers)
                    .unwrap();
                journal.record_processed(id(number - 1)).unwrap();
                journal.sync().unwrap();
            }
            states.push((journal.file_bytes, journal.content()));
        }
        drop(journal);
        let bytes = fs::read(&path).unwrap();
        for len in HEADER_BYTES..=bytes.len() {
            fs::write(&path, &bytes[..len]).unwrap();
            let journal = FileJournal::open(dir.path(), LinkId([0; 16])).unwrap();
            let synced = states.iter().rfind(|(end, _)| *end <= len as u64).unwrap();
            let content = journal.content();
            assert_eq!(content.link_id, ID);
            for (lane, before) in content.state.lanes.iter().zip(&synced.1.state.lanes) {
                assert!(lane.last_sent >= before.last_sent);
                assert!(
                    before
                        .received
                        .iter()
                        .all(|range| lane.received.covers(range))
                );
            }
            if synced.0 == len as u64 {
                assert_eq!(content, synced.1);
                assert_eq!(journal.discarded_bytes(), 0);
            }
        }
        for at in HEADER_BYTES..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let journal = FileJournal::open(dir.path(), ID).unwrap();
            assert!(journal.discarded_bytes() > 0, "byte {at}");
        }
        fs::write(&path, &bytes[..HEADER_BYTES - 1]).unwrap();
        let error = FileJournal::open(dir.path(), ID).unwrap_err().to_string();
        assert!(error.contains("move it away"), "{error}");
    }

    #[test]
    fn the_file_stays_short_and_keeps_its_state() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = FileJournal::open(dir.path(), ID).unwrap();
        let payload = Bytes::from(vec![1; 1_000_000]);
        for number in 1..60 {
            journal.record_sent(id(number), &payload).unwrap();
            let numbers = RangeSet::from(0..number);
            journal
                .record_acknowledged(Priority::High, &numbers)
                .unwrap();
            journal.sync().unwrap();
            let len = fs::metadata(dir.path().join(FILE_NAME)).unwrap().len();
            assert_eq!(len, journal.file_bytes);
            assert!(len < COMPACTION_SLACK_BYTES + 3_000_000, "{len}");
        }
        let content = journal.content();
        assert_eq!(content.state.lanes[1].last_sent, 59);
        assert_eq!(content.state.lanes[1].unacknowledged.len(), 1);
        drop(journal);
        let journal = FileJournal::open(dir.path(), ID).unwrap();
        assert_eq!(journal.content(), content);
    }

    #[test]
    fn a_journal_is_opened_once() {
        let dir = tempfile::tempdir().unwrap();
        let _journal = FileJournal::open(dir.path(), ID).unwrap();
        let error = FileJournal::open(dir.path(), ID).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
    }
}
