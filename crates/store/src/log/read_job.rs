//! What the reader's thread is to read, and what it has read for reclaiming.

use std::sync::Arc;

use super::file_system::LogFile;
use super::session_queue::IndexEntry;

/// Maximum number of pages being read at a time; further requests wait.
pub(super) const MAX_PAGES: usize = 64;

pub(crate) enum ReadJob {
    Page(PageReadJob),
    /// Complete frames of a segment, from an offset on.
    Chunk {
        segment: u32,
        file: Arc<dyn LogFile>,
        seed: u32,
        offset: u64,
        end: u64,
    },
}

/// A piece of a session's queue, requested by its shard.
pub(crate) struct PageReadJob {
    pub(crate) shard: u16,
    pub(crate) session: u64,
    pub(crate) wanted: Vec<EntryToRead>,
    pub(crate) is_last: bool,
}

impl PageReadJob {
    pub(super) fn bytes(&self) -> usize {
        let bodies = self.wanted.iter();
        bodies.map(|wanted| wanted.entry.body_len as usize).sum()
    }
}

/// An entry and the file that contains it.
pub(crate) struct EntryToRead {
    pub(crate) entry: IndexEntry,
    pub(crate) file: Arc<dyn LogFile>,
}

/// Part of a segment.
pub(crate) struct SegmentChunk {
    pub(crate) segment: u32,
    pub(crate) seed: u32,
    /// Offset of the frames.
    pub(crate) offset: u64,
    /// Complete frames; empty at the end of the segment.
    pub(crate) bytes: Vec<u8>,
    /// Why the chunk ends before the segment does.
    pub(crate) error: Option<String>,
}
