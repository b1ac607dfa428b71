//! The format of a block of the write-ahead log: its head and its records.

use disk::varint::VarintReader;

use crate::partitioning::PARTITION_COUNT;

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
        (is_whole && usize::from(partition) < PARTITION_COUNT).then(|| Self {
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
