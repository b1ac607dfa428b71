//! Positions of rows in memory, and access to the rows of one device.

use std::sync::{Arc, Mutex};

use disk::varint::VarintReader;

use crate::lock::lock;
use crate::point::KeyId;

/// No row.
pub(super) const NONE: u32 = u32::MAX;

const CACHE_LINE: usize = 64;

/// The position of a row in a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPosition {
    pub(super) ts_ms: i64,
    /// Offset of the row in the chunk.
    pub(super) at: u32,
    /// The number of the device's previous row, or [`NONE`].
    pub(super) before: u32,
}

#[derive(Clone, Default)]
pub(crate) struct RowChunk {
    pub(super) bytes: Vec<u8>,
    pub(super) rows: Vec<RowPosition>,
}

/// Memory of released chunks, for reuse.
pub(crate) struct ChunkPool {
    pub(super) chunks: Mutex<Vec<RowChunk>>,
    pub(super) chunk_bytes: usize,
    max_chunks: usize,
}

impl ChunkPool {
    /// A pool of at most this many bytes, in chunks of this size.
    pub(crate) fn new(bytes: usize, chunk_bytes: usize) -> Self {
        Self {
            chunks: Mutex::default(),
            chunk_bytes,
            max_chunks: bytes / chunk_bytes,
        }
    }

    pub(super) fn take_chunk(&self) -> Option<RowChunk> {
        lock(&self.chunks).pop()
    }

    /// Takes over the memory of chunks, as far as there is room.
    pub(super) fn recycle(&self, chunks: impl Iterator<Item = RowChunk>) {
        let mut kept = lock(&self.chunks);
        for mut chunk in chunks {
            if kept.len() >= self.max_chunks {
                break;
            }
            if chunk.bytes.capacity() == self.chunk_bytes {
                chunk.bytes.clear();
                chunk.rows.clear();
                kept.push(chunk);
            }
        }
    }

    /// Releases part of the memory.
    pub(crate) fn shrink(&self) {
        let mut chunks = lock(&self.chunks);
        let half = chunks.len() / 2;
        chunks.truncate(half);
    }
}

/// Rows of one device.
#[derive(Clone, Copy)]
pub(crate) struct DeviceRows<'a> {
    pub(super) full: &'a [Arc<RowChunk>],
    pub(super) open: &'a RowChunk,
    pub(super) keys: &'a [Arc<[KeyId]>],
    pub(super) words: &'a [Arc<str>],
    pub(super) last: u32,
}

impl<'a> DeviceRows<'a> {
    #[inline]
    pub(super) fn row_at(&self, number: u32) -> (&'a RowChunk, RowPosition) {
        let chunk = self.full.get(number as usize >> 16);
        let chunk = chunk.map_or(self.open, |chunk| &**chunk);
        (chunk, chunk.rows[number as usize & 0xffff])
    }

    /// The numbers of the rows in [from, to), oldest first.
    pub(crate) fn numbers(&self, from_ms: i64, to_ms: i64, numbers: &mut Vec<u32>) {
        numbers.clear();
        let mut next = self.last;
        while next != NONE {
            let (_, row) = self.row_at(next);
            if row.ts_ms >= from_ms && row.ts_ms < to_ms {
                numbers.push(next);
            }
            next = row.before;
        }
        numbers.reverse();
    }

    /// The time and shape of a row, and a reader positioned at its values.
    #[inline]
    pub(crate) fn row(&self, number: u32) -> Option<(i64, u32, VarintReader<'a>)> {
        let (chunk, row) = self.row_at(number);
        let mut reader = VarintReader::new(&chunk.bytes);
        reader.at = row.at as usize;
        let shape = reader.number()? as u32;
        Some((row.ts_ms, shape, reader))
    }

    /// Prefetches rows that are read next. They are far apart: the processor fetches all of them at once,
    /// instead of one after the other.
    #[inline]
    pub(crate) fn prefetch(&self, numbers: &[u32]) {
        let mut seen = 0_u8;
        for &number in numbers {
            let (chunk, row) = self.row_at(number);
            let at = row.at as usize;
            // Rows of usual size span two cache lines.
            for at in [at, at + CACHE_LINE] {
                seen ^= chunk.bytes.get(at).copied().unwrap_or_default();
            }
        }
        std::hint::black_box(seen);
    }

    #[inline]
    pub(crate) fn word(&self, number: u32) -> Option<&'a str> {
        self.words.get(number as usize).map(|word| &**word)
    }

    pub(crate) fn keys(&self, shape: u32) -> Option<&'a Arc<[KeyId]>> {
        self.keys.get(shape as usize)
    }
}
