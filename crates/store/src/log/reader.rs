//! The reader's thread: reads bodies of messages for resumed sessions, and old segments for reclaiming. The writer never waits
//! for disk reads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use super::file_system::LogFile;
use super::frame::{FrameReader, NextFrame};
use super::range_reads::{SegmentRange, read_ranges};
use super::read_job::{EntryToRead, MAX_PAGES, PageReadJob, ReadJob, SegmentChunk};
use super::shared::{StoreShared, increment};
use crate::observer::StoreObserver;
use crate::queue::{QueueEntry, QueuePage};

/// Waiting pages are read together up to this size of their messages.
const MAX_COMBINED_READ_BYTES: usize = 4 << 20;
/// Size of the pieces in which a segment is read.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) struct LogReader {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) observer: Arc<dyn StoreObserver>,
    pub(crate) jobs: Receiver<ReadJob>,
    /// Pages requested and not answered.
    pub(crate) open_pages: Arc<AtomicUsize>,
}

impl LogReader {
    pub(crate) fn run(self) {
        let mut pages = Vec::new();
        while let Ok(job) = self.jobs.recv() {
            // Clients often reconnect together, and their messages are interleaved: everything queued is read at once.
            let mut next = Some(job);
            let mut bytes = 0;
            while let Some(ReadJob::Page(page)) = next {
                bytes += page.bytes();
                pages.push(page);
                let has_room = bytes < MAX_COMBINED_READ_BYTES && pages.len() < MAX_PAGES;
                next = has_room.then(|| self.jobs.try_recv().ok()).flatten();
            }
            self.answer_pages(&mut pages);
            if let Some(ReadJob::Chunk {
                segment,
                file,
                seed,
                offset,
                end,
            }) = next
            {
                let chunk = read_chunk(segment, &*file, seed, offset, end);
                self.shared.push_chunk(chunk);
            }
        }
    }

    fn answer_pages(&self, pages: &mut Vec<PageReadJob>) {
        let mut read = self.read_pages(pages).into_iter();
        for page in pages.drain(..) {
            let answer = QueuePage {
                session: page.session,
                entries: read.by_ref().take(page.wanted.len()).collect(),
                is_last: page.is_last,
            };
            self.observer.on_fetched(page.shard, answer);
            // The writer holds requests back at the limit of open pages.
            if self.open_pages.fetch_sub(1, Ordering::AcqRel) == MAX_PAGES {
                self.shared.wake();
            }
        }
    }

    /// Reads the entries of all pages, in their order.
    fn read_pages(&self, pages: &[PageReadJob]) -> Vec<QueueEntry> {
        let wanted = pages.iter().flat_map(|page| &page.wanted);
        read_entries(wanted, &mut |offset, bytes, error| {
            increment(&self.shared.counters.read_errors, 1);
            tracing::error!(offset, bytes, %error, "queued messages could not be read");
        })
    }
}

/// Reads entries, in their order. Attributes and bodies that cannot be read are empty and reported to `failed` with offset and
/// length.
pub(crate) fn read_entries<'a>(
    wanted: impl Iterator<Item = &'a EntryToRead> + Clone,
    failed: &mut dyn FnMut(u64, usize, &io::Error),
) -> Vec<QueueEntry> {
    let mut places = Vec::new();
    for EntryToRead { entry, file } in wanted.clone() {
        let attributes = (entry.attributes_at, u32::from(entry.attributes_len));
        for (start, len) in [attributes, (entry.body_at, entry.body_len)] {
            let segment = entry.segment;
            places.push(SegmentRange {
                file,
                segment,
                start,
                len,
            });
        }
    }
    let read = read_ranges(&places, failed);
    let stored = wanted.zip(read.chunks_exact(2));
    let stored = stored.map(|(EntryToRead { entry, .. }, parts)| QueueEntry {
        seq: entry.seq,
        packet_id: entry.packet_id,
        released: entry.is_released(),
        attributes: parts[0].clone(),
        body: parts[1].clone(),
    });
    stored.collect()
}

fn read_chunk(segment: u32, file: &dyn LogFile, seed: u32, offset: u64, end: u64) -> SegmentChunk {
    let mut chunk = SegmentChunk {
        segment,
        seed,
        offset,
        bytes: Vec::new(),
        error: None,
    };
    let mut reader = FrameReader::new(file, seed, offset, end);
    while chunk.bytes.len() < CHUNK_BYTES && reader.offset < end {
        match reader.next() {
            Ok(NextFrame::Frame(frame)) => {
                // The checksum was right: head and records are copied unchanged.
                chunk.bytes.extend_from_slice(frame.whole);
            }
            Ok(NextFrame::End) => break,
            Ok(NextFrame::Damaged(detail)) => {
                chunk.error = Some(detail.to_owned());
                break;
            }
            Err(error) => {
                chunk.error = Some(error.to_string());
                break;
            }
        }
    }
    chunk
}
