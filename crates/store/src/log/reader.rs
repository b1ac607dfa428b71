//! The reader's thread: bodies of messages for those who return, and old segments for reclaiming. The writer never waits
//! for a disk to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use super::files::LogFile;
use super::frame::{FrameReader, Next};
use super::index::Entry;
use super::shared::{Shared, count};
use super::spans::{Place, read_places};
use super::writer::MAX_PAGES;
use crate::handle::Owner;
use crate::queue::{Page, Stored};

/// Pages that wait are read together up to so many bytes of messages.
const TOGETHER_BYTES: usize = 4 << 20;
/// What is read of a segment at a time.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) enum Job {
    Page(PageJob),
    /// Whole frames of a segment, from a place on.
    Chunk {
        segment: u32,
        file: Arc<dyn LogFile>,
        seed: u32,
        offset: u64,
        end: u64,
    },
}

/// A piece of a session's queue that its shard asked for.
pub(crate) struct PageJob {
    pub(crate) shard: u16,
    pub(crate) session: u64,
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) is_last: bool,
}

impl PageJob {
    fn bytes(&self) -> usize {
        let bodies = self.wanted.iter();
        bodies.map(|wanted| wanted.entry.body_len as usize).sum()
    }
}

/// An entry and the file it is in.
pub(crate) struct Wanted {
    pub(crate) entry: Entry,
    pub(crate) file: Arc<dyn LogFile>,
}

/// Part of a segment.
pub(crate) struct Chunk {
    pub(crate) segment: u32,
    pub(crate) seed: u32,
    /// Where the frames begin.
    pub(crate) offset: u64,
    /// Whole frames; empty at the end of the segment.
    pub(crate) bytes: Vec<u8>,
    /// Why it ends before the segment does.
    pub(crate) error: Option<String>,
}

pub(crate) struct Reader {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Arc<dyn Owner>,
    pub(crate) jobs: Receiver<Job>,
    /// Pages asked for and not answered.
    pub(crate) open_pages: Arc<AtomicUsize>,
}

impl Reader {
    pub(crate) fn run(self) {
        let mut pages = Vec::new();
        while let Ok(job) = self.jobs.recv() {
            // Clients come back together, and their messages lie among each other's: what waits is read in one go.
            let mut next = Some(job);
            let mut bytes = 0;
            while let Some(Job::Page(page)) = next {
                bytes += page.bytes();
                pages.push(page);
                let has_room = bytes < TOGETHER_BYTES && pages.len() < MAX_PAGES;
                next = has_room.then(|| self.jobs.try_recv().ok()).flatten();
            }
            self.answer(&mut pages);
            if let Some(Job::Chunk {
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

    fn answer(&self, pages: &mut Vec<PageJob>) {
        let mut read = self.read(pages).into_iter();
        for page in pages.drain(..) {
            let answer = Page {
                session: page.session,
                entries: read.by_ref().take(page.wanted.len()).collect(),
                is_last: page.is_last,
            };
            self.owner.fetched(page.shard, answer);
            // The writer holds requests back while many are open.
            if self.open_pages.fetch_sub(1, Ordering::AcqRel) == MAX_PAGES {
                self.shared.wake();
            }
        }
    }

    /// The entries of all pages, one after the other.
    fn read(&self, pages: &[PageJob]) -> Vec<Stored> {
        let all = || pages.iter().flat_map(|page| &page.wanted);
        let mut places = Vec::new();
        for Wanted { entry, file } in all() {
            let attributes = (entry.attributes_at, u32::from(entry.attributes_len));
            for (start, len) in [attributes, (entry.body_at, entry.body_len)] {
                let segment = entry.segment;
                places.push(Place {
                    file,
                    segment,
                    start,
                    len,
                });
            }
        }
        let read = read_places(&places, &mut |offset, bytes, error| {
            count(&self.shared.counters.read_errors, 1);
            tracing::error!(offset, bytes, %error, "queued messages cannot be read");
        });
        let stored = all().zip(read.chunks_exact(2));
        let stored = stored.map(|(Wanted { entry, .. }, parts)| Stored {
            seq: entry.seq,
            packet_id: entry.packet_id,
            released: entry.is_released(),
            attributes: parts[0].clone(),
            body: parts[1].clone(),
        });
        stored.collect()
    }
}

fn read_chunk(segment: u32, file: &dyn LogFile, seed: u32, offset: u64, end: u64) -> Chunk {
    let mut chunk = Chunk {
        segment,
        seed,
        offset,
        bytes: Vec::new(),
        error: None,
    };
    let mut reader = FrameReader::new(file, seed, offset, end);
    while chunk.bytes.len() < CHUNK_BYTES && reader.offset < end {
        match reader.next() {
            Ok(Next::Frame(frame)) => {
                // The checksum was right: head and records are written back as they stood.
                chunk.bytes.extend_from_slice(frame.whole);
            }
            Ok(Next::End) => break,
            Ok(Next::Bad(detail)) => {
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
