//! What an operator does to the directory of a store that is not open: look at it, and keep what can be read.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::group;
use crate::config::Config;
use crate::directory;
use crate::error::{Error, OpenError, io_error};
use crate::guard::{self, Guard, Listed, Manifest};
use crate::inspect::{Inspection, Mode};
use crate::segment::{Meta, Place, Segment, SegmentReader, Writer};
use crate::wal::log::sync_dir;
use crate::{deletions, keys, replay};

/// What is in a store, and what is wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    pub keys: u64,
    pub segments: u64,
    pub segment_bytes: u64,
    /// Rows in segment files.
    pub rows: u64,
    /// Rows that are only in the write-ahead log.
    pub log_rows: u64,
    /// What is damaged or missing, with what is lost.
    pub problems: Vec<String>,
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What could not be read.
    pub lost: Vec<String>,
    /// Copies of the damaged files.
    pub kept: Vec<PathBuf>,
}

/// Reads everything of a store that is not open, and changes nothing.
///
/// # Errors
/// If it is open, has another layout, or a file cannot be read at all.
pub fn check(dir: &Path, config: &Config) -> Result<Checked, OpenError> {
    let mut inspection = Inspection::new(Mode::Check);
    let mut checked = inspect(dir, config, &mut inspection)?;
    checked.problems.append(&mut inspection.problems);
    Ok(checked)
}

/// Goes on without what cannot be read. Copies of damaged files stay beside the others until somebody removes them.
///
/// # Errors
/// As of [`check`], and if something cannot be written.
pub fn repair(dir: &Path, config: &Config) -> Result<Repaired, OpenError> {
    let mut inspection = Inspection::new(Mode::Repair);
    inspect(dir, config, &mut inspection)?;
    Ok(Repaired {
        lost: inspection.problems,
        kept: inspection.kept,
    })
}

fn inspect(dir: &Path, config: &Config, inspection: &mut Inspection) -> Result<Checked, OpenError> {
    let _lock = directory::take_existing(dir, config.window_ms)?;
    let expected = guard::read(dir)?;
    let mut checked = Checked {
        problems: expected.problems(),
        ..Checked::default()
    };
    let keys = keys::inspect(dir, expected.keys, inspection)?;
    let (of_parts, next_deletion) = deletions::inspect(dir, expected.next_deletion, inspection)?;
    let segments_dir = dir.join(directory::SEGMENTS);
    let (mut found, mut next_id) = directory::segments(&segments_dir, &expected, inspection)?;
    for segment in &mut found {
        checked.segments += 1;
        checked.segment_bytes += segment.bytes;
        let damaged = check_segment(segment, &mut checked.rows, inspection)?;
        if damaged && inspection.repairs() {
            let readable = write_readable(&segments_dir, segment, next_id, config.window_ms)?;
            let damaged = std::mem::replace(segment, readable);
            // There is a copy of it.
            fs::remove_file(&damaged.path).map_err(io_error("remove", &damaged.path))?;
            next_id += 1;
        }
    }
    let replayed = replay::replay(dir, config, &found, of_parts, (&expected, keys), inspection)?;
    checked.keys = keys.into();
    checked.log_rows = replayed.rows;
    if inspection.repairs() {
        let manifest = Manifest {
            flushed: replayed.flushed,
            keys,
            deletions: next_deletion,
            next_file_id: next_id,
            files: found.iter().map(listed).collect(),
        };
        manifest.write(dir)?;
        Guard::create(dir, replayed.last_lsn, keys, next_deletion)?;
    }
    Ok(checked)
}

fn listed(segment: &Segment) -> Listed {
    Listed {
        partition: segment.meta.partition,
        window: segment.meta.window,
        id: segment.meta.id,
    }
}

/// Reads all groups of a file; whether something of it is damaged.
fn check_segment(
    segment: &Segment,
    rows: &mut u64,
    inspection: &mut Inspection,
) -> Result<bool, OpenError> {
    let segment = Arc::new(Segment::open(segment.path.clone())?);
    let problems = inspection.problems.len();
    let mut found = 0;
    let complete = each_group(&segment, &mut |place, group| {
        match group {
            Ok(_) => found += u64::from(place.rows),
            Err(error) => inspection.take(error.into())?,
        }
        Ok(())
    })?;
    for error in complete {
        inspection.take(error.into())?;
    }
    *rows += found;
    let lost = segment.meta.rows.saturating_sub(found);
    if lost > 0 {
        let detail = format!("{lost} of its {} rows cannot be read", segment.meta.rows);
        inspection.damaged(&segment.path, 0, detail)?;
    }
    Ok(inspection.problems.len() > problems)
}

/// Takes a group, or what is wrong with it.
type EachGroup<'a> = dyn FnMut(&Place, Result<&[u8], Error>) -> Result<(), OpenError> + 'a;

/// Gives each group of a file, or what is wrong with it; returns what is wrong with its index.
fn each_group(segment: &Arc<Segment>, each: &mut EachGroup<'_>) -> Result<Vec<Error>, OpenError> {
    let mut reader = SegmentReader::open(segment)?;
    let (mut problems, mut bytes) = (Vec::new(), Vec::new());
    let mut block = 0;
    loop {
        let places = match reader.places(block) {
            Ok(Some(places)) => places.to_vec(),
            Ok(None) => return Ok(problems),
            Err(error) => {
                problems.push(error);
                Vec::new()
            }
        };
        for place in &places {
            let read = reader.read(place, &mut bytes).and_then(|()| {
                let table = group::open(&bytes).and_then(|group| group.table(None));
                match table {
                    Some(_) => Ok(&bytes[..]),
                    None => Err(reader.not_a_group(place)),
                }
            });
            each(place, read)?;
        }
        block += 1;
    }
}

/// Writes the groups of a damaged file that can be read to another one.
fn write_readable(
    dir: &Path,
    damaged: &Segment,
    id: u64,
    window_ms: i64,
) -> Result<Segment, OpenError> {
    let damaged = Arc::new(Segment::open(damaged.path.clone())?);
    let meta = Meta {
        id,
        rows: 0,
        points: 0,
        ..damaged.meta.clone()
    };
    let mut writer = Writer::create(dir, meta, window_ms)?;
    each_group(&damaged, &mut |place, read| {
        let Ok(bytes) = read else { return Ok(()) };
        let points = group::open(bytes).map_or(0, |group| group.points());
        writer.put_group(place, points, bytes)?;
        Ok(())
    })?;
    let written = writer.finish()?;
    written.sync()?;
    written.name()?;
    sync_dir(dir)?;
    Ok(written)
}
