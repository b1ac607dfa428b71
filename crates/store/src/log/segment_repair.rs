//! Rewrites damaged segments from the complete frames that are left in them.
//!
//! Lost numbers are skipped by a frame with `FLAG_GAP`, so the repaired log reads like any other.

use std::fs;
use std::io;
use std::path::Path;

use wall_clock::now_ms;

use super::file_system::LogFile;
use super::file_system::{FileSystem as _, OsFileSystem};
use super::frame::{
    FLAG_GAP, Frame, FrameReader, NextFrame, SEGMENT_HEAD, SegmentHead, find_later_frames,
    find_magic, seal, solve_seed,
};
use super::recovery::{SegmentFile, has_any_frames, open_segment_files, read_segment};
use super::segments::random_u64;
use crate::batch::FRAME_HEAD;
use crate::error::{StoreError, io_error};
use crate::repair_report::StoreRepairReport;

/// Repairs every segment that does not continue where its predecessor ended.
pub(crate) fn repair_segments(log: &Path) -> Result<StoreRepairReport, StoreError> {
    let mut repaired = StoreRepairReport::default();
    let found = open_segment_files(log, &OsFileSystem)?;
    // The number of the next frame.
    let mut expected: Option<u64> = None;
    let last = found.last().map(|last| last.id);
    for (at, segment) in found.iter().enumerate() {
        if let Ok(None) = segment.head
            && !has_any_frames(&found[at + 1..])
        {
            continue;
        }
        if let Some(next) = next_lsn_if_intact(segment, expected, Some(segment.id) == last)? {
            expected = Some(next);
            continue;
        }
        expected = rewrite_segment(log, segment, expected, &mut repaired)?;
    }
    Ok(repaired)
}

/// The number behind its last frame, if the segment is intact.
fn next_lsn_if_intact(
    segment: &SegmentFile,
    expected: Option<u64>,
    is_last: bool,
) -> Result<Option<u64>, StoreError> {
    let Ok(Some(head)) = &segment.head else {
        return Ok(None);
    };
    if expected.is_some_and(|expected| head.follows_lsn >= expected) {
        return Ok(None);
    }
    let mut next = Some(head.first_lsn);
    let mut end = SEGMENT_HEAD as u64;
    let bad = read_segment(segment, head, &mut next, &mut |frame| {
        end = frame.end();
        Ok(())
    })?;
    let mut behind = 0;
    find_later_frames(&*segment.file, head.seed(), end, &mut |_| behind += 1)
        .map_err(io_error("read", &segment.path))?;
    // The next start cuts off a torn end of the last segment.
    let is_whole = behind == 0 && (bad.is_none() || is_last);
    Ok(next.max(expected).filter(|_| is_whole))
}

/// Writes the complete frames of a segment to a new file that replaces it.
fn rewrite_segment(
    log: &Path,
    segment: &SegmentFile,
    expected: Option<u64>,
    repaired: &mut StoreRepairReport,
) -> Result<Option<u64>, StoreError> {
    let name = format!("segment {}", segment.id);
    let old_seed = match &segment.head {
        Ok(Some(head)) => head.seed(),
        _ => find_seed(&*segment.file)
            .map_err(io_error("read", &segment.path))?
            .unwrap_or(0),
    };
    let mut bytes = vec![0; SEGMENT_HEAD];
    let mut head: Option<SegmentHead> = None;
    let mut next = expected;
    find_later_frames(
        &*segment.file,
        old_seed,
        SEGMENT_HEAD as u64,
        &mut |frame| {
            let is_first = head.is_none();
            let head = head.get_or_insert_with(|| SegmentHead {
                salt: random_u64(),
                id: segment.id,
                first_lsn: frame.lsn,
                follows_lsn: expected.map_or(frame.lsn, |expected| expected.min(frame.lsn)) - 1,
                synced_lsn: 0,
                created_ms: now_ms(),
            });
            let due = if is_first {
                frame.lsn
            } else {
                next.unwrap_or(frame.lsn)
            };
            if frame.lsn < due {
                return;
            }
            let missing_from = next.unwrap_or(frame.lsn);
            if frame.lsn > missing_from {
                let count = frame.lsn - missing_from;
                let missing_to = frame.lsn - 1;
                repaired.lost.push(format!(
                    "{name}: {count} batches, {missing_from} to {missing_to}, before byte {}",
                    frame.offset
                ));
            }
            if frame.lsn > due {
                let mut gap = vec![0; FRAME_HEAD];
                seal(&mut gap, head.seed(), frame.lsn - 1, 0, u16::MAX, FLAG_GAP);
                bytes.extend_from_slice(&gap);
            }
            let start = bytes.len();
            bytes.extend_from_slice(frame.whole);
            let seed = head.seed();
            seal(
                &mut bytes[start..],
                seed,
                frame.lsn,
                frame.synced_lsn,
                frame.shard,
                frame.flags,
            );
            next = Some(frame.lsn + 1);
        },
    )
    .map_err(io_error("read", &segment.path))?;
    let damaged = segment.path.with_extension("log.damaged");
    repaired.damaged_copies.push(damaged.clone());
    let Some(head) = head else {
        repaired
            .lost
            .push(format!("{name}: all of it, nothing in it can be read"));
        fs::rename(&segment.path, &damaged).map_err(io_error("rename", &segment.path))?;
        return Ok(expected);
    };
    bytes[..SEGMENT_HEAD].copy_from_slice(&head.encode());
    let new_path = segment.path.with_extension("log.new");
    let file = OsFileSystem.create(&new_path, bytes.len() as u64);
    let file = file.map_err(io_error("make", &new_path))?;
    let written = file.write_at(&bytes, 0).and_then(|()| file.sync());
    written.map_err(io_error("write", &new_path))?;
    fs::rename(&segment.path, &damaged).map_err(io_error("rename", &segment.path))?;
    fs::rename(&new_path, &segment.path).map_err(io_error("rename", &new_path))?;
    OsFileSystem
        .sync_dir(log)
        .map_err(io_error("force to disk", log))?;
    if repaired.lost.is_empty() {
        let last = next.unwrap_or(1) - 1;
        repaired.lost.push(match &segment.head {
            Ok(Some(_)) => format!("{name}: what was behind batch {last}"),
            _ => format!(
                "{name}: only its head, which was written anew; its batches go on to {last}"
            ),
        });
    }
    Ok(next.max(expected))
}

/// Number of frames tried to find the seed of their segment.
const MAX_SEED_ATTEMPTS: usize = 64;

/// The checksum seed of a segment without a head: a frame and its successor must have the same.
fn find_seed(file: &dyn LogFile) -> io::Result<Option<u32>> {
    let len = file.len()?;
    let mut at = SEGMENT_HEAD as u64;
    for _ in 0..MAX_SEED_ATTEMPTS {
        let Some(start) = find_magic(file, at)? else {
            break;
        };
        at = start + 1;
        let mut head = [0; FRAME_HEAD];
        if file.read_at(&mut head, start)? < FRAME_HEAD {
            break;
        }
        let records = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as u64;
        let frame_len = FRAME_HEAD as u64 + records;
        if start + frame_len > len {
            continue;
        }
        let mut frame = vec![0; frame_len as usize];
        file.read_at(&mut frame, start)?;
        let Some(seed) = solve_seed(&frame) else {
            continue;
        };
        let mut reader = FrameReader::new(file, seed, start + frame_len, len);
        let is_right = Frame::parse(&frame, start, seed).is_ok()
            && matches!(reader.next()?, NextFrame::Frame(_));
        if is_right {
            return Ok(Some(seed));
        }
    }
    Ok(None)
}
