//! Recovery: reads the whole log when a store is opened, and distinguishes a torn end from damage.
//!
//! Frames are numbered without gaps, and every frame records up to which number the log was known to be on disk when it was
//! written. Where the sequence breaks, the data behind decides. If a frame there records that the missing one was on disk, the
//! log was damaged since and is refused. Otherwise a crash tore the end, none of which was guaranteed to survive; it is cut
//! off and reported.
//!
//! A segment may end in garbage when writing to it failed. The following segment then continues with the next number, or
//! repeats frames whose fsync failed. Applying a frame twice in order has no further effect.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file_system::{FileSystem, LogFile};
use super::frame::{
    FLAG_GAP, FLAG_KEYED, Frame, FrameReader, LAYOUT_VERSION, NextFrame, SEGMENT_HEAD, SegmentHead,
    SegmentHeadError, find_later_frames,
};
use super::index::QueueIndex;
use super::log_mark::LogMark;
use super::segments::{self, Segment, UNKNOWN_LSN, segment_path};
use crate::error::{StoreError, StoreOpenError, io_error};

/// The content of a log.
pub(crate) struct RecoveredLog {
    pub(crate) index: QueueIndex,
    pub(crate) segments: VecDeque<Segment>,
    /// The number of the next segment.
    pub(crate) next_id: u32,
    pub(crate) last_lsn: u64,
    /// The last frame known to be on disk.
    pub(crate) synced_lsn: u64,
    /// Segments that were never written to, or whose first write failed.
    pub(crate) unused_segments: Vec<u32>,
    pub(crate) truncation: Option<LogTruncation>,
}

impl RecoveredLog {
    /// The mark of this log, once all of it is on disk.
    pub(crate) fn log_mark(&self) -> LogMark {
        match self.segments.front() {
            Some(first) => LogMark {
                first_segment: Some(first.id),
                last_lsn: self.last_lsn,
            },
            None => LogMark::default(),
        }
    }
}

/// An end to be cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogTruncation {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Complete frames within it.
    pub(crate) frames: u64,
    pub(crate) detail: String,
    /// Segments to be removed entirely.
    pub(crate) segments: Vec<u32>,
}

impl fmt::Display for LogTruncation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes with {} whole batches were cut off from byte {} of {} on: {}",
            self.bytes,
            self.frames,
            self.offset,
            self.path.display(),
            self.detail
        )
    }
}

/// A segment found in the directory.
pub(crate) struct SegmentFile {
    pub(crate) id: u32,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn LogFile>,
    pub(crate) len: u64,
    /// `Ok(None)`: prepared and never written to.
    pub(crate) head: Result<Option<SegmentHead>, SegmentHeadError>,
}

/// Opens all segments of a directory, oldest first.
pub(crate) fn open_segment_files(
    dir: &Path,
    files: &dyn FileSystem,
) -> Result<Vec<SegmentFile>, StoreError> {
    let ids = segments::list_segment_ids(dir).map_err(io_error("list the segments in", dir))?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let path = segment_path(dir, id);
        let file = files.open(&path).map_err(io_error("open", &path))?;
        let len = file.len().map_err(io_error("open", &path))?;
        let mut head = [0; SEGMENT_HEAD];
        let read = file
            .read_at(&mut head, 0)
            .map_err(io_error("read", &path))?;
        let mut head = SegmentHead::decode(&head[..read]);
        if let Ok(Some(decoded)) = &head
            && decoded.id != id
        {
            head = Err(SegmentHeadError::Torn(
                "its head is that of another segment",
            ));
        }
        found.push(SegmentFile {
            id,
            path,
            file,
            len,
            head,
        });
    }
    Ok(found)
}

/// A break in the sequence of frame numbers.
struct SequenceBreak {
    /// Index of the segment among those found.
    at: usize,
    offset: u64,
    detail: String,
}

/// Receives the number and the records of a frame.
pub(crate) type KeyedRecordsHandler<'a> = dyn FnMut(u64, &[u8]) -> Result<(), StoreError> + 'a;

/// Reads all segments. `keyed` receives the records of frames with keyed state. Changes no file.
///
/// Missing content that `mark` demands is damage.
pub(crate) fn recover_log(
    dir: &Path,
    files: &dyn FileSystem,
    mark: &LogMark,
    keyed: &mut KeyedRecordsHandler<'_>,
) -> Result<RecoveredLog, StoreOpenError> {
    let found = open_segment_files(dir, files)?;
    check_beginning(dir, &found, mark)?;
    let mut index = QueueIndex::for_recovery(found.first().map_or(0, |first| first.id));
    let mut kept = VecDeque::new();
    // The number of the next frame.
    let mut expected = None;
    // Where reading ended last; examined if the next segment does not continue there.
    let mut end: Option<SequenceBreak> = None;
    let mut broken = false;
    let mut synced_lsn = 0;
    for (at, segment) in found.iter().enumerate() {
        let head = match &segment.head {
            Ok(Some(head)) => Ok(head),
            Ok(None) if !has_any_frames(&found[at + 1..]) => continue,
            // Nothing is written to a segment before its predecessor has a head.
            Ok(None) => Err("its head is missing"),
            Err(SegmentHeadError::Torn(detail)) => Err(*detail),
            Err(SegmentHeadError::Version(version)) => {
                return Err(StoreOpenError::Version {
                    path: segment.path.clone(),
                    found: version.to_string(),
                    expected: LAYOUT_VERSION,
                });
            }
        };
        let head = match head {
            Ok(head) => head,
            Err(detail) => {
                // The head of the oldest segment is on disk before anything else: treat it as if the very first frame were missing.
                expected.get_or_insert(1);
                end.get_or_insert_with(|| SequenceBreak {
                    at,
                    offset: 0,
                    detail: detail.to_owned(),
                });
                continue;
            }
        };
        if let Some(expected) = expected.filter(|&expected| head.follows_lsn >= expected) {
            // When an fsync failed over several segments, all of them are repeated later.
            if is_repeated(&found[at + 1..], expected) {
                continue;
            }
            broken = true;
            break;
        }
        // Frames may be repeated here, and only some of them if the repetition was interrupted.
        let known = expected.replace(head.first_lsn);
        let mut into = Segment {
            id: segment.id,
            seed: head.seed(),
            head: *head,
            head_lsn: UNKNOWN_LSN,
            file: Arc::clone(&segment.file),
            capacity: segment.len,
            used: SEGMENT_HEAD as u64,
            last_lsn: head.follows_lsn,
            keyed_lsn: 0,
        };
        synced_lsn = synced_lsn.max(head.synced_lsn);
        let detail = read_segment(segment, head, &mut expected, &mut |frame| {
            if frame.flags & FLAG_KEYED != 0 {
                into.keyed_lsn = frame.lsn;
                keyed(frame.lsn, frame.records)?;
            }
            let applied = index.apply(frame.records, segment.id, frame.records_at());
            into.used = frame.end();
            into.last_lsn = frame.lsn;
            synced_lsn = synced_lsn.max(frame.synced_lsn);
            applied.map_err(|_| StoreError::Damaged {
                what: format!("{} at byte {}", segment.path.display(), frame.offset),
                detail: "a frame contains an invalid record".to_owned(),
            })
        })?;
        expected = expected.max(known);
        end = Some(SequenceBreak {
            at,
            offset: into.used,
            detail: detail
                .unwrap_or("frames are missing from there on")
                .to_owned(),
        });
        kept.push_back(into);
    }
    let last_lsn = expected.map_or(0, |expected| expected - 1);
    let cut = match end {
        Some(end) => classify_break(&found, end, (last_lsn + 1, mark.last_lsn), broken)?,
        None => None,
    };
    index.finish();
    let cut_off = cut.as_ref().map_or(&[][..], |cut| &cut.segments);
    let is_kept = |id: u32| kept.iter().any(|segment: &Segment| segment.id == id);
    let unused = found.iter().map(|segment| segment.id);
    let unused = unused.filter(|&id| !is_kept(id) && !cut_off.contains(&id));
    Ok(RecoveredLog {
        unused_segments: unused.collect(),
        next_id: match (kept.back(), found.first()) {
            (Some(last), _) => last.id + 1,
            (None, Some(first)) => first.id,
            (None, None) => 1,
        },
        index,
        segments: kept,
        last_lsn,
        synced_lsn,
        truncation: cut,
    })
}

/// Refuses a log whose beginning is missing or unreadable.
fn check_beginning(
    dir: &Path,
    found: &[SegmentFile],
    mark: &LogMark,
) -> Result<(), StoreOpenError> {
    let damaged = |path: PathBuf, detail: String| StoreOpenError::Damaged {
        path,
        offset: 0,
        detail,
    };
    if let Some(first) = mark.first_segment
        && found.first().is_none_or(|found| found.id > first)
    {
        let detail = "the segment is missing, with which the message log begins";
        return Err(damaged(segment_path(dir, first), detail.to_owned()));
    }
    let Some(oldest) = found.first() else {
        return Ok(());
    };
    let bad = match oldest.head {
        Ok(Some(_)) | Err(SegmentHeadError::Version(_)) => None,
        Ok(None) => Some("its head is missing"),
        Err(SegmentHeadError::Torn(detail)) => Some(detail),
    };
    if let Some(detail) = bad {
        let head = SEGMENT_HEAD as u64;
        let last = last_written(&*oldest.file, head.min(oldest.len), oldest.len);
        // The head of the oldest segment is on disk before anything is written behind it.
        let is_lost =
            mark.first_segment.is_some() || last.map_err(io_error("read", &oldest.path))? > head;
        if is_lost {
            let detail = format!("{detail}, and batches were behind it");
            return Err(damaged(oldest.path.clone(), detail));
        }
    }
    Ok(())
}

/// Whether anything was ever written to one of these segments.
pub(crate) fn has_any_frames(behind: &[SegmentFile]) -> bool {
    behind.iter().any(|found| !matches!(found.head, Ok(None)))
}

/// Whether one of these segments begins no later than the expected frame.
fn is_repeated(behind: &[SegmentFile], expected: u64) -> bool {
    let mut heads = behind
        .iter()
        .filter_map(|found| found.head.as_ref().ok()?.as_ref());
    heads.any(|head| head.follows_lsn < expected)
}

/// Passes each frame that follows its predecessor to the callback; returns why it stopped, `None` at a regular end.
pub(crate) fn read_segment(
    segment: &SegmentFile,
    head: &SegmentHead,
    expected: &mut Option<u64>,
    each: &mut dyn FnMut(Frame<'_>) -> Result<(), StoreError>,
) -> Result<Option<&'static str>, StoreError> {
    let mut reader = FrameReader::new(
        &*segment.file,
        head.seed(),
        SEGMENT_HEAD as u64,
        segment.len,
    );
    loop {
        match reader.next().map_err(io_error("read", &segment.path))? {
            NextFrame::End => return Ok(None),
            NextFrame::Damaged(detail) => return Ok(Some(detail)),
            NextFrame::Frame(frame) => {
                let due = expected.unwrap_or(frame.lsn);
                let is_gap = frame.flags & FLAG_GAP != 0 && frame.lsn >= due;
                if frame.lsn != due && !is_gap {
                    return Ok(Some("the number of the frame is out of order"));
                }
                *expected = Some(frame.lsn + 1);
                each(frame)?;
            }
        }
    }
}

/// Returns a torn end to be cut off, or an error if the data behind the break shows damage.
fn classify_break(
    found: &[SegmentFile],
    end: SequenceBreak,
    (missing_lsn, marked_lsn): (u64, u64),
    broken: bool,
) -> Result<Option<LogTruncation>, StoreOpenError> {
    let segment = &found[end.at];
    let mut synced_lsn = 0;
    let mut frames = 0;
    let mut bytes = 0;
    for behind in &found[end.at..] {
        let Ok(Some(head)) = &behind.head else {
            let read = io_error("read", &behind.path);
            bytes += last_written(&*behind.file, 0, behind.len).map_err(read)?;
            continue;
        };
        let from = if behind.id == segment.id {
            end.offset
        } else {
            synced_lsn = synced_lsn.max(head.synced_lsn);
            0
        };
        let read = io_error("read", &behind.path);
        let last = last_written(&*behind.file, from, behind.len).map_err(read)?;
        bytes += last - from;
        if last == from {
            continue;
        }
        let read = io_error("read", &behind.path);
        find_later_frames(&*behind.file, head.seed(), from, &mut |frame| {
            frames += 1;
            synced_lsn = synced_lsn.max(frame.synced_lsn);
        })
        .map_err(read)?;
    }
    if marked_lsn >= missing_lsn {
        let missing = marked_lsn - missing_lsn + 1;
        return Err(StoreOpenError::Damaged {
            path: segment.path.clone(),
            offset: end.offset,
            detail: format!(
                "{}; {missing} batches that were stored, {missing_lsn} to {marked_lsn}, are not in the log",
                end.detail
            ),
        });
    }
    if synced_lsn >= missing_lsn {
        return Err(StoreOpenError::Damaged {
            path: segment.path.clone(),
            offset: end.offset,
            detail: format!("{}; what follows shows that it was whole once", end.detail),
        });
    }
    if bytes == 0 && !broken {
        return Ok(None);
    }
    // Nothing is kept of a segment whose head is torn.
    let keep = usize::from(end.offset > 0);
    Ok(Some(LogTruncation {
        path: segment.path.clone(),
        offset: end.offset,
        bytes,
        frames,
        detail: end.detail,
        segments: found[end.at + keep..]
            .iter()
            .map(|found| found.id)
            .collect(),
    }))
}

/// The end of the last non-zero byte, `from` if there is none behind it.
fn last_written(file: &dyn LogFile, from: u64, len: u64) -> io::Result<u64> {
    let mut chunk = vec![0; 1 << 20];
    let mut last = from;
    let mut at = from;
    while at < len {
        let read = file.read_at(&mut chunk, at)?;
        if read == 0 {
            break;
        }
        if let Some(place) = chunk[..read].iter().rposition(|&byte| byte != 0) {
            last = at + place as u64 + 1;
        }
        at += read as u64;
    }
    Ok(last)
}
