//! The committer's thread: forces written segment files to disk, many at once, and gives them their final
//! names.
//!
//! The flusher does not wait for the disk: rows it has written can be read from the file and leave memory. A
//! start finds only named files, so the write-ahead log keeps the rows until then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::codec::row_group;
use crate::error::SeriesError;
use crate::file_operations::sync_dir;
use crate::lock::lock;
use crate::partitioning::PARTITION_COUNT;
use crate::segment::{Segment, SegmentMeta, SegmentReader, SegmentWriter};
use crate::series_marks::{Manifest, ManifestFile};
use crate::shared::{HealthFlag, SeriesShared, increment};

const IDLE: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Maximum number of uncommitted files; the flusher waits if there are more.
pub(crate) const MAX_UNCOMMITTED_FILES: usize = 128;

pub(crate) fn run(shared: &Arc<SeriesShared>) {
    while !shared.is_closing.load(Ordering::Acquire) {
        let pause = match commit_segments(shared) {
            Ok(()) => IDLE,
            Err(_) => RETRY_PAUSE,
        };
        std::thread::park_timeout(pause);
    }
}

/// Uncommitted files of one partition.
struct PendingSegments {
    files: Vec<Arc<Segment>>,
    /// Up to this row, all rows are in files.
    written_lsn: u64,
}

/// Forces the files written so far to disk.
pub(crate) fn commit_segments(shared: &SeriesShared) -> Result<(), SeriesError> {
    // One commit at a time, so that no file is named before those that precede it.
    let _turn = lock(&shared.commit_lock);
    let result = commit_all(shared);
    match &result {
        Ok(()) => {
            if shared.set_flag(HealthFlag::Settle, false) {
                tracing::info!("telemetry segment sync recovered");
            }
        }
        Err(error) => {
            increment(&shared.counters.errors, 1);
            if shared.set_flag(HealthFlag::Settle, true) {
                tracing::error!(%error, "telemetry segment sync failed; the write-ahead log keeps the rows");
            }
        }
    }
    result
}

fn commit_all(shared: &SeriesShared) -> Result<(), SeriesError> {
    let mut all: [PendingSegments; PARTITION_COUNT] = std::array::from_fn(|partition| {
        let part = lock(&shared.partitions[partition].partition);
        PendingSegments {
            files: part.uncommitted.clone(),
            written_lsn: part.written_lsn,
        }
    });
    for (partition, due) in all.iter_mut().enumerate() {
        for at in 0..due.files.len() {
            if due.files[at].has_failed.load(Ordering::Acquire) {
                due.files[at] = rewrite_failed_segment(shared, partition, &due.files[at])?;
            }
            due.files[at].sync()?;
        }
    }
    let dir = shared.segments_dir();
    // Files that declare up to which row all are flushed are named after the others, one after the other.
    let (mut lasts, mut others) = (vec![Vec::new(); PARTITION_COUNT], Vec::new());
    for (due, lasts) in all.iter().zip(&mut lasts) {
        for file in &due.files {
            match file.meta.flushed_lsn == file.meta.last_lsn {
                true => lasts.push(file),
                false => others.push(file),
            }
        }
    }
    let rounds = lasts.iter().map(Vec::len).max().unwrap_or(0);
    let round = |round: usize| {
        lasts
            .iter()
            .filter_map(move |lasts| lasts.get(round).copied())
    };
    for files in std::iter::once(others).chain((0..rounds).map(|at| round(at).collect())) {
        for file in &files {
            file.assign_final_name()?;
        }
        if !files.is_empty() {
            sync_dir(&dir)?;
        }
    }
    // Must happen before the log removes the rows of these files.
    let written = std::array::from_fn(|partition| all[partition].written_lsn);
    write_manifest(shared, written)?;
    let mut settled = 0;
    for (cell, due) in shared.partitions.iter().zip(&all) {
        lock(&cell.partition).uncommitted.drain(..due.files.len());
        cell.flushed_lsn.store(due.written_lsn, Ordering::Release);
        settled += due.files.len();
    }
    if settled > 0 {
        shared.uncommitted.fetch_sub(settled, Ordering::AcqRel);
        drop(lock(&shared.room_lock));
        shared.room.notify_all();
        SeriesShared::wake(&shared.flusher);
        SeriesShared::wake(&shared.merger);
    }
    shared.wal.remove_flushed_files(&shared.flushed_lsns())
}

/// Writes the manifest if the list of files has changed; up to these row numbers, all rows are in files.
pub(crate) fn write_manifest(
    shared: &SeriesShared,
    flushed: [u64; PARTITION_COUNT],
) -> Result<(), SeriesError> {
    let mut last = lock(&shared.manifest);
    let mut manifest = Manifest {
        flushed: std::array::from_fn(|at| flushed[at].max(last.flushed[at])),
        ..Manifest::default()
    };
    for cell in &shared.partitions {
        let part = lock(&cell.partition);
        let settled = part.files.iter().filter(|file| file.is_committed());
        manifest.files.extend(settled.map(|file| ManifestFile {
            partition: file.meta.partition,
            window: file.meta.window,
            id: file.meta.id,
        }));
    }
    if manifest.files == last.files && manifest.flushed == last.flushed {
        return Ok(());
    }
    // The key names in these files and their deletions must be on disk first.
    manifest.keys = shared.keys.sync()?;
    manifest.deletions = lock(&shared.deletions).sync()?;
    manifest.next_file_id = shared.file_ids.load(Ordering::Relaxed);
    manifest.write(&shared.dir)?;
    *last = manifest;
    Ok(())
}

/// After a failed sync the content of a file is unknown: its groups, which have checksums, are copied to
/// another file.
fn rewrite_failed_segment(
    shared: &SeriesShared,
    partition: usize,
    failed: &Arc<Segment>,
) -> Result<Arc<Segment>, SeriesError> {
    let meta = SegmentMeta {
        id: shared.next_file_id(),
        rows: 0,
        points: 0,
        ..failed.meta.clone()
    };
    let mut writer = SegmentWriter::create(&shared.segments_dir(), meta, shared.config.window_ms)?;
    let copied = copy_groups(failed, &mut writer);
    if let Err(error) = copied {
        writer.discard();
        return Err(error);
    }
    let written = writer.finish()?;
    let mut part = lock(&shared.partitions[partition].partition);
    let written = part.replace_file(failed, written);
    failed.is_gone.store(true, Ordering::Release);
    Ok(written)
}

fn copy_groups(from: &Arc<Segment>, to: &mut SegmentWriter) -> Result<(), SeriesError> {
    let mut reader = SegmentReader::open(from)?;
    let mut places = Vec::new();
    reader.for_each_group(&mut |place| {
        places.push(place);
        Ok(())
    })?;
    let mut bytes = Vec::new();
    for place in places {
        reader.read(&place, &mut bytes)?;
        let group = row_group::parse_group(&bytes).ok_or_else(|| reader.group_error(&place))?;
        to.put_group(&place, group.points(), &bytes)?;
    }
    Ok(())
}
