//! Operator tools for the directory of a closed store: check and repair.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::row_group;
use crate::config::SeriesConfig;
use crate::directory;
use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::file_operations::sync_dir;
use crate::inspection::{Inspection, InspectionMode};
use crate::segment::{GroupLocation, Segment, SegmentMeta, SegmentReader, SegmentWriter};
use crate::series_marks::{self, Manifest, ManifestFile, SeriesMarks};
use crate::{deletions, key_dictionary, replay};

/// Content of a store, and its damage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeriesCheckReport {
    pub keys: u64,
    pub segments: u64,
    pub segment_bytes: u64,
    /// Rows in segment files.
    pub rows: u64,
    /// Rows that are only in the write-ahead log.
    pub log_rows: u64,
    /// Whether deletions are lost, so that deleted rows may reappear.
    pub are_deletions_damaged: bool,
    /// Damaged or missing files, with the data that is lost.
    pub problems: Vec<String>,
}

/// Result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeriesRepairReport {
    /// Data that could not be read.
    pub lost: Vec<String>,
    /// Copies of the damaged files.
    pub damaged_copies: Vec<PathBuf>,
}

/// Reads a closed store completely and changes nothing.
///
/// # Errors
/// If the store is open, has another layout, or a file cannot be read at all.
pub fn check(dir: &Path, config: &SeriesConfig) -> Result<SeriesCheckReport, SeriesOpenError> {
    let mut inspection = Inspection::new(InspectionMode::Check);
    let mut checked = inspect(dir, config, &mut inspection)?;
    checked.problems.append(&mut inspection.problems);
    Ok(checked)
}

/// Removes unreadable data from a closed store. Copies of damaged files remain beside the others until an
/// operator removes them.
///
/// # Errors
/// Like [`check`], and if a file cannot be written.
pub fn repair(dir: &Path, config: &SeriesConfig) -> Result<SeriesRepairReport, SeriesOpenError> {
    let mut inspection = Inspection::new(InspectionMode::Repair);
    inspect(dir, config, &mut inspection)?;
    Ok(SeriesRepairReport {
        lost: inspection.problems,
        damaged_copies: inspection.damaged_copies,
    })
}

fn inspect(
    dir: &Path,
    config: &SeriesConfig,
    inspection: &mut Inspection,
) -> Result<SeriesCheckReport, SeriesOpenError> {
    let _lock = directory::lock_existing(dir, config.window_ms)?;
    let expected = series_marks::read_expected(dir)?;
    let mut checked = SeriesCheckReport {
        problems: expected.problems(),
        ..SeriesCheckReport::default()
    };
    let keys = key_dictionary::inspect_keys(dir, expected.keys, inspection)?;
    let problems = inspection.problems.len();
    let (of_parts, next_deletion) =
        deletions::inspect_deletions(dir, expected.next_deletion, inspection)?;
    checked.are_deletions_damaged = inspection.problems.len() > problems;
    let segments_dir = dir.join(directory::SEGMENTS);
    let (mut found, mut next_id) = directory::open_segments(&segments_dir, &expected, inspection)?;
    for segment in &mut found {
        checked.segments += 1;
        checked.segment_bytes += segment.bytes;
        let damaged = check_segment(segment, &mut checked.rows, inspection)?;
        if damaged && inspection.is_repairing() {
            let readable =
                write_readable_groups(&segments_dir, segment, next_id, config.window_ms)?;
            let damaged = std::mem::replace(segment, readable);
            // A copy of it exists.
            fs::remove_file(&damaged.path).map_err(io_error("remove", &damaged.path))?;
            next_id += 1;
        }
    }
    let replayed =
        replay::replay_wal(dir, config, &found, of_parts, (&expected, keys), inspection)?;
    checked.keys = keys.into();
    checked.log_rows = replayed.rows;
    if inspection.is_repairing() {
        let manifest = Manifest {
            flushed: replayed.flushed,
            keys,
            deletions: next_deletion,
            next_file_id: next_id,
            files: found.iter().map(manifest_file).collect(),
        };
        manifest.write(dir)?;
        SeriesMarks::create(dir, replayed.last_lsn, keys, next_deletion)?;
    }
    Ok(checked)
}

fn manifest_file(segment: &Segment) -> ManifestFile {
    ManifestFile {
        partition: segment.meta.partition,
        window: segment.meta.window,
        id: segment.meta.id,
    }
}

/// Reads all groups of a file. Returns whether any part is damaged.
fn check_segment(
    segment: &Segment,
    rows: &mut u64,
    inspection: &mut Inspection,
) -> Result<bool, SeriesOpenError> {
    let segment = Arc::new(Segment::open(segment.path.clone())?);
    let problems = inspection.problems.len();
    let mut found = 0;
    let complete = for_each_group(&segment, &mut |place, group| {
        match group {
            Ok(_) => found += u64::from(place.rows),
            Err(error) => inspection.report_open_error(error.into())?,
        }
        Ok(())
    })?;
    for error in complete {
        inspection.report_open_error(error.into())?;
    }
    *rows += found;
    let lost = segment.meta.rows.saturating_sub(found);
    if lost > 0 {
        let detail = format!("{lost} of its {} rows cannot be read", segment.meta.rows);
        inspection.report_damage(&segment.path, 0, detail)?;
    }
    Ok(inspection.problems.len() > problems)
}

/// Receives a group, or a description of its damage.
type GroupVisitor<'a> =
    dyn FnMut(&GroupLocation, Result<&[u8], SeriesError>) -> Result<(), SeriesOpenError> + 'a;

/// Passes each group of a file, or its damage, to the visitor. Returns the damage of the index.
fn for_each_group(
    segment: &Arc<Segment>,
    each: &mut GroupVisitor<'_>,
) -> Result<Vec<SeriesError>, SeriesOpenError> {
    let mut reader = SegmentReader::open(segment)?;
    let (mut problems, mut bytes) = (Vec::new(), Vec::new());
    let mut block = 0;
    loop {
        let places = match reader.index_block(block) {
            Ok(Some(places)) => places.to_vec(),
            Ok(None) => return Ok(problems),
            Err(error) => {
                problems.push(error);
                Vec::new()
            }
        };
        for place in &places {
            let read = reader.read(place, &mut bytes).and_then(|()| {
                let table =
                    row_group::parse_group(&bytes).and_then(|group| group.decode_table(None));
                match table {
                    Some(_) => Ok(&bytes[..]),
                    None => Err(reader.group_error(place)),
                }
            });
            each(place, read)?;
        }
        block += 1;
    }
}

/// Copies the readable groups of a damaged file to another file.
fn write_readable_groups(
    dir: &Path,
    damaged: &Segment,
    id: u64,
    window_ms: i64,
) -> Result<Segment, SeriesOpenError> {
    let damaged = Arc::new(Segment::open(damaged.path.clone())?);
    let meta = SegmentMeta {
        id,
        rows: 0,
        points: 0,
        ..damaged.meta.clone()
    };
    let mut writer = SegmentWriter::create(dir, meta, window_ms)?;
    for_each_group(&damaged, &mut |place, read| {
        let Ok(bytes) = read else { return Ok(()) };
        let points = row_group::parse_group(bytes).map_or(0, |group| group.points());
        writer.put_group(place, points, bytes)?;
        Ok(())
    })?;
    let written = writer.finish()?;
    written.sync()?;
    written.assign_final_name()?;
    sync_dir(dir)?;
    Ok(written)
}
