//! The reader's thread: bodies of messages for those who return, and old segments for reclaiming. The writer never waits
//! for a disk to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use bytes::{Bytes, BytesMut};

use super::files::LogFile;
use super::frame::{FrameReader, Next};
use super::index::Entry;
use super::shared::{Shared, count};
use crate::handle::Owner;
use crate::queue::{Page, Stored};

/// Places this close are read with one call.
const CLOSE_BYTES: u64 = 4096;
const MAX_SPAN_BYTES: u64 = 1 << 20;
/// What is read of a segment at a time.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) enum Job {
    Page {
        shard: u16,
        session: u64,
        wanted: Vec<Wanted>,
        is_last: bool,
    },
    /// Whole frames of a segment, from a place on.
    Chunk {
        segment: u32,
        file: Arc<dyn LogFile>,
        seed: u32,
        offset: u64,
        end: u64,
    },
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
        while let Ok(job) = self.jobs.recv() {
            match job {
                Job::Page {
                    shard,
                    session,
                    wanted,
                    is_last,
                } => {
                    let page = Page {
                        session,
                        entries: self.read(&wanted),
                        is_last,
                    };
                    self.owner.fetched(shard, page);
                    // The writer holds requests back while many are open.
                    if self.open_pages.fetch_sub(1, Ordering::AcqRel) == super::writer::MAX_PAGES {
                        self.shared.wake();
                    }
                }
                Job::Chunk {
                    segment,
                    file,
                    seed,
                    offset,
                    end,
                } => {
                    let chunk = read_chunk(segment, &*file, seed, offset, end);
                    self.shared.push_chunk(chunk);
                }
            }
        }
    }

    /// Reads all into one buffer that the entries share.
    fn read(&self, wanted: &[Wanted]) -> Vec<Stored> {
        let mut spans: Vec<Span<'_>> = Vec::new();
        let mut places = Vec::with_capacity(wanted.len());
        for Wanted { entry, file } in wanted {
            let attributes = add_span(
                &mut spans,
                file,
                entry.attributes_at,
                u32::from(entry.attributes_len),
            );
            let body = add_span(&mut spans, file, entry.body_at, entry.body_len);
            places.push((attributes, body));
        }
        let mut buffer = BytesMut::zeroed(spans.iter().map(Span::len).sum());
        let mut at = 0;
        for span in &mut spans {
            span.buffer_at = at;
            let into = &mut buffer[at..at + span.len()];
            at += into.len();
            match span.file.read_at(into, span.start) {
                Ok(read) if read == into.len() => {}
                Ok(_) => span.fail(&self.shared, &"the file ends before"),
                Err(error) => span.fail(&self.shared, &error),
            }
        }
        let buffer = buffer.freeze();
        let part = |(span, offset): (usize, u64), len: usize| {
            let span = spans.get(span).filter(|span| len > 0 && !span.has_failed);
            let Some(span) = span else {
                return Bytes::new();
            };
            let start = span.buffer_at + (offset - span.start) as usize;
            buffer.slice(start..start + len)
        };
        let stored = wanted.iter().zip(places);
        let stored = stored.map(|(Wanted { entry, .. }, (attributes, body))| Stored {
            seq: entry.seq,
            packet_id: entry.packet_id,
            released: entry.is_released(),
            attributes: part(attributes, usize::from(entry.attributes_len)),
            body: part(body, entry.body_len as usize),
        });
        stored.collect()
    }
}

/// Bytes read with one call.
struct Span<'a> {
    file: &'a Arc<dyn LogFile>,
    start: u64,
    end: u64,
    buffer_at: usize,
    has_failed: bool,
}

impl Span<'_> {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    fn fail(&mut self, shared: &Shared, error: &dyn std::fmt::Display) {
        self.has_failed = true;
        count(&shared.counters.read_errors, 1);
        tracing::error!(
            offset = self.start,
            bytes = self.end - self.start,
            %error,
            "a queued message cannot be read"
        );
    }
}

/// Which span has these bytes, and where they begin in the file.
fn add_span<'a>(
    spans: &mut Vec<Span<'a>>,
    file: &'a Arc<dyn LogFile>,
    at: u32,
    len: u32,
) -> (usize, u64) {
    if len == 0 {
        return (usize::MAX, 0);
    }
    let start = u64::from(at);
    let end = start + u64::from(len);
    // The last two: attributes of one message and bodies of another may lie apart.
    let first = spans.len().saturating_sub(2);
    for (nth, span) in spans.iter_mut().enumerate().skip(first) {
        let is_close = Arc::ptr_eq(span.file, file)
            && start <= span.end + CLOSE_BYTES
            && span.start <= end + CLOSE_BYTES;
        let (wide_start, wide_end) = (span.start.min(start), span.end.max(end));
        if is_close && wide_end - wide_start <= MAX_SPAN_BYTES.max(end - start) {
            span.start = wide_start;
            span.end = wide_end;
            return (nth, start);
        }
    }
    spans.push(Span {
        file,
        start,
        end,
        buffer_at: 0,
        has_failed: false,
    });
    (spans.len() - 1, start)
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
