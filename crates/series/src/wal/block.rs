//! A block of the write-ahead log: its head, its records, and the writer of the partition that fills it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::varint::{self, VarintReader};
use memmap2::MmapMut;

use super::files::WalFile;
use crate::point::KeyId;

pub(crate) const BLOCK_BYTES: usize = 256 << 10;
pub(crate) const BLOCK_HEAD: usize = 64;
/// Precedes each record: CRC32C of the rest, length of the body (3 bytes), kind.
pub(crate) const RECORD_HEAD: usize = 8;
const MAGIC: &[u8; 8] = b"TGSWAL2\0";

/// A row: device, shape, time difference to the previous row, values.
pub(crate) const ROW: u8 = 1;
/// A shape: number, count, keys.
pub(crate) const SHAPE: u8 = 2;
/// The number of the last row known to be on disk.
pub(crate) const SYNCED: u8 = 3;
/// A text that the values of later rows refer to: number, bytes.
pub(crate) const WORD: u8 = 4;
/// Maximum bytes of a word record apart from its text.
pub(crate) const WORD_HEAD: usize = RECORD_HEAD + 5;

/// The head of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHead {
    pub(crate) partition: u16,
    pub(crate) salt: u64,
    /// Number of the block among those of its partition, ascending.
    pub(crate) number: u64,
    pub(crate) first_lsn: u64,
    /// The partition's last row before this block: the number before the first one, unless a start skipped
    /// numbers.
    pub(crate) follows_lsn: u64,
    /// The last row known to be on disk when the block was begun.
    pub(crate) synced_lsn: u64,
}

impl BlockHead {
    pub(crate) fn encode(&self) -> [u8; BLOCK_HEAD] {
        let mut bytes = [0; BLOCK_HEAD];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[12..14].copy_from_slice(&self.partition.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first_lsn.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.synced_lsn.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.follows_lsn.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns `None` if the bytes are not a valid head.
    pub(crate) fn decode(bytes: &[u8; BLOCK_HEAD]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let crc = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
        let partition = u16::from_le_bytes([bytes[12], bytes[13]]);
        let is_whole = bytes.starts_with(MAGIC) && crc32c::crc32c(&bytes[12..]) == crc;
        (is_whole && usize::from(partition) < super::PARTITIONS).then(|| Self {
            partition,
            salt: word(16),
            number: word(24),
            first_lsn: word(32),
            synced_lsn: word(40),
            follows_lsn: word(48),
        })
    }

    /// Seed of the record checksums, so that no record is mistaken for one of another block.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.encode()[8..])
    }
}

/// The block a partition writes to.
pub(crate) struct BlockWriter {
    pub(crate) segment: Arc<WalFile>,
    pub(crate) number: u64,
    map: MmapMut,
    at: usize,
    seed: u32,
    /// The time of the last row in this block.
    pub(crate) last_ts: i64,
    pub(crate) noted_synced_lsn: u64,
}

impl BlockWriter {
    pub(crate) fn new(segment: Arc<WalFile>, mut map: MmapMut, head: &BlockHead) -> Self {
        map[..BLOCK_HEAD].copy_from_slice(&head.encode());
        Self {
            segment,
            number: head.number,
            map,
            at: BLOCK_HEAD,
            seed: head.seed(),
            last_ts: 0,
            noted_synced_lsn: head.synced_lsn,
        }
    }

    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.map.len() - self.at
    }

    /// Writes a record and fills in its head; the caller ensures that there is room.
    #[inline]
    pub(crate) fn put_record(&mut self, kind: u8, record: &mut [u8]) {
        let body = (record.len() - RECORD_HEAD) as u32;
        record[4..8].copy_from_slice(&(body | u32::from(kind) << 24).to_le_bytes());
        let crc = crc32c::crc32c_append(self.seed, &record[4..]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
        self.map[self.at..self.at + record.len()].copy_from_slice(record);
        self.at += record.len();
        // After the bytes: a thread that sees the mark and syncs also covers them.
        if !self.segment.is_dirty.load(Ordering::Relaxed) {
            self.segment.is_dirty.store(true, Ordering::Release);
        }
    }

    pub(crate) fn put_shape(&mut self, shape: u32, keys: &[KeyId]) {
        let mut record = vec![0; RECORD_HEAD];
        varint::put(&mut record, u64::from(shape));
        varint::put(&mut record, keys.len() as u64);
        keys.iter()
            .for_each(|key| varint::put(&mut record, u64::from(key.0)));
        self.put_record(SHAPE, &mut record);
    }

    #[cold]
    pub(crate) fn put_word(&mut self, number: u32, word: &str) {
        let mut record = vec![0; RECORD_HEAD];
        varint::put(&mut record, u64::from(number));
        record.extend_from_slice(word.as_bytes());
        self.put_record(WORD, &mut record);
    }

    pub(crate) fn put_synced(&mut self, lsn: u64) {
        let mut record = [0; RECORD_HEAD + 10];
        let end = varint::write(&mut record, RECORD_HEAD, lsn);
        self.put_record(SYNCED, &mut record[..end]);
        self.noted_synced_lsn = lsn;
    }
}

/// Maximum bytes of a shape in a block.
pub(crate) fn max_shape_bytes(keys: usize) -> usize {
    RECORD_HEAD + 15 + 5 * keys
}

/// The next record, or why there is none.
pub(crate) enum NextRecord<'a> {
    Record {
        kind: u8,
        body: &'a [u8],
    },
    /// Nothing was written there.
    End,
    Damaged,
}

/// Reads the record at `at` of a block and advances behind it.
pub(crate) fn next_record<'a>(block: &'a [u8], seed: u32, at: &mut usize) -> NextRecord<'a> {
    let Some(head) = block.get(*at..*at + RECORD_HEAD) else {
        return NextRecord::End;
    };
    if head == [0; RECORD_HEAD] {
        return NextRecord::End;
    }
    let crc = u32::from_le_bytes(head[..4].try_into().expect("4 bytes"));
    let len = u32::from_le_bytes(head[4..].try_into().expect("4 bytes"));
    let (kind, len) = ((len >> 24) as u8, (len & 0xff_ffff) as usize);
    let body = *at + RECORD_HEAD;
    let Some(rest) = block.get(*at + 4..body + len) else {
        return NextRecord::Damaged;
    };
    if len == 0 || crc32c::crc32c_append(seed, rest) != crc {
        return NextRecord::Damaged;
    }
    *at = body + len;
    NextRecord::Record {
        kind,
        body: &rest[4..],
    }
}

/// The highest row number that later records of this block report to be on disk; 0 if none does.
pub(crate) fn later_synced_lsn(block: &[u8], seed: u32, from: usize) -> u64 {
    let mut synced_lsn = 0;
    for at in from..block.len().saturating_sub(RECORD_HEAD) {
        let mut end = at;
        // A sync mark is its kind and at most ten bytes.
        if block[at + 7] == SYNCED
            && block[at + 4] <= 10
            && block[at + 5] == 0
            && let NextRecord::Record { body, .. } = next_record(block, seed, &mut end)
        {
            synced_lsn = synced_lsn.max(VarintReader::new(body).number().unwrap_or(0));
        }
    }
    synced_lsn
}
