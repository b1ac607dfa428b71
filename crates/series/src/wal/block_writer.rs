//! Writes records to a block of the write-ahead log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::varint;
use memmap2::MmapMut;

use super::block::{BLOCK_HEAD, BlockHead, RECORD_HEAD, SHAPE, SYNCED, WORD};
use super::wal_file::WalFile;
use crate::point::KeyId;

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
