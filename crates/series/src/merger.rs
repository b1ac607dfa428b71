//! The merger's thread: merges the files of a window, so that a device's rows of a day are contiguous, and
//! applies policies.
//!
//! A window's files are ordered by age. Only adjacent files are merged, so that the order remains. Small
//! young files are merged when there are eight of similar size, so that each row is rewritten a few times at
//! most. Once a window is over, its files become one file. Groups that are large enough are copied unchanged.
//!
//! When a window reaches an age at which a policy changes, its files are checked: expired rows are removed,
//! others are downsampled. A file whose devices have all expired is removed without being read.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::committer;
use crate::deletions::Deletion;
use crate::device_merge::{DeviceMerge, GroupCursor};
use crate::error::SeriesError;
use crate::file_operations::sync_dir;
use crate::lock::lock;
use crate::partitioning::PARTITION_COUNT;
use crate::point::DeviceNo;
use crate::policy_table::PolicyTable;
use crate::segment::{Segment, SegmentMeta, SegmentReader, SegmentWriter};
use crate::shared::{SeriesShared, increment};

/// Number of files of similar size that are merged.
const MERGE_FAN_IN: usize = 8;
/// After its end, a window waits this long for late rows before its files become one.
const QUIET_MS: i64 = 3_600_000;
const TICK: Duration = Duration::from_secs(1);
/// Interval between policy checks, and between rewrites of files for deletions alone.
const POLICY_INTERVAL: Duration = Duration::from_secs(60);
const PURGE_INTERVAL: Duration = Duration::from_secs(3600);
const RETRY_PAUSE: Duration = Duration::from_secs(30);

pub(crate) fn run(shared: &Arc<SeriesShared>) {
    let mut looked_at: Option<Instant> = None;
    let mut purged_at = Instant::now();
    while !shared.is_closing.load(Ordering::Acquire) {
        let at_once = shared.is_merge_requested.swap(false, Ordering::AcqRel);
        let pass = MergePass {
            is_immediate: at_once,
            applies_policies: at_once || looked_at.is_none_or(|at| at.elapsed() >= POLICY_INTERVAL),
            purges_deletions: at_once || purged_at.elapsed() >= PURGE_INTERVAL,
        };
        if pass.applies_policies {
            looked_at = Some(Instant::now());
        }
        if pass.purges_deletions {
            purged_at = Instant::now();
        }
        let result = pass.run(shared);
        if at_once {
            *lock(&shared.merges_done) += 1;
            shared.merged.notify_all();
        }
        let mut pause = TICK;
        match result {
            Ok(()) | Err(SeriesError::Closed) => {}
            Err(error) => {
                increment(&shared.counters.errors, 1);
                tracing::error!(%error, "telemetry segment merge failed; retrying");
                pause = RETRY_PAUSE;
            }
        }
        std::thread::park_timeout(pause);
    }
}

/// Mode of one pass.
#[derive(Clone, Copy)]
struct MergePass {
    /// Merges without waiting for windows to be quiet or for the usual number of files.
    is_immediate: bool,
    applies_policies: bool,
    purges_deletions: bool,
}

impl MergePass {
    fn run(self, shared: &SeriesShared) -> Result<(), SeriesError> {
        for partition in 0..PARTITION_COUNT {
            while !shared.is_closing.load(Ordering::Acquire) {
                let mut merger = Merger::new(shared, partition, self);
                let is_done = !merger.merge_due_window()?
                    && (!self.applies_policies || !merger.apply_policies()?);
                if is_done {
                    break;
                }
            }
        }
        if self.applies_policies {
            remove_applied_deletions(shared)?;
        }
        Ok(())
    }
}

struct Merger<'a> {
    shared: &'a SeriesShared,
    partition: usize,
    files: Arc<[Arc<Segment>]>,
    policies: PolicyTable,
    deletions: HashMap<u32, Vec<Deletion>, foldhash::fast::RandomState>,
    now_ms: i64,
    pass: MergePass,
}

impl<'a> Merger<'a> {
    fn new(shared: &'a SeriesShared, partition: usize, pass: MergePass) -> Self {
        let part = lock(&shared.partitions[partition].partition);
        // In each window, all other files are younger than these.
        let settled = part
            .files
            .iter()
            .filter(|file| file.is_committed())
            .cloned();
        Self {
            shared,
            partition,
            files: settled.collect(),
            policies: PolicyTable::new(&Arc::clone(&lock(&shared.assignment))),
            deletions: part.deletions.clone(),
            now_ms: shared.clock_ms.load(Ordering::Relaxed),
            pass,
        }
    }

    fn age_ms(&self, window: i64) -> i64 {
        let window_ms = self.shared.config.window_ms;
        self.now_ms
            .saturating_sub(window.saturating_add(1).saturating_mul(window_ms))
    }

    /// Merges files of one window, if a merge is due.
    fn merge_due_window(&mut self) -> Result<bool, SeriesError> {
        let files = Arc::clone(&self.files);
        for of_window in files.chunk_by(|left, right| left.meta.window == right.meta.window) {
            let age_ms = self.age_ms(of_window[0].meta.window);
            let is_over = age_ms >= if self.pass.is_immediate { 0 } else { QUIET_MS };
            if let Some(due) = due_files(of_window, is_over, self.pass.is_immediate) {
                self.merge(due)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Applies policies and deletions to one file, if they change it.
    fn apply_policies(&mut self) -> Result<bool, SeriesError> {
        let files = Arc::clone(&self.files);
        let newest = self
            .deletions
            .values()
            .flatten()
            .map(|deletion| deletion.number)
            .max()
            .unwrap_or(0);
        for segment in files.iter() {
            let age_ms = self.age_ms(segment.meta.window);
            if age_ms >= 0 && self.policies.all_expired(age_ms) {
                self.replace(std::slice::from_ref(segment), None)?;
                increment(&self.shared.counters.expired_files, 1);
                return Ok(true);
            }
            let (treated_age_ms, treated_by) = *lock(&segment.checked_policies);
            let before_ms = if treated_by == self.policies.revision {
                treated_age_ms as i64
            } else {
                -1
            };
            let is_due = age_ms >= 0 && self.policies.changes_between(before_ms, age_ms);
            let is_unclear = self.pass.purges_deletions
                && segment.checked_deletions.load(Ordering::Acquire) < newest;
            if !is_due && !is_unclear {
                continue;
            }
            if self.needs_rewrite(segment, before_ms, age_ms)? {
                self.merge(std::slice::from_ref(segment))?;
                return Ok(true);
            }
            if is_due {
                *lock(&segment.checked_policies) = (age_ms as u64, self.policies.revision);
            }
            if is_unclear {
                segment.checked_deletions.store(newest, Ordering::Release);
            }
        }
        Ok(false)
    }

    fn interval_of(&self, device: u32, age_ms: i64) -> Option<i64> {
        if age_ms < 0 {
            return Some(0);
        }
        self.policies
            .policy_of(DeviceNo(device))
            .interval_at(age_ms)
    }

    fn needs_rewrite(
        &self,
        segment: &Arc<Segment>,
        before_ms: i64,
        age_ms: i64,
    ) -> Result<bool, SeriesError> {
        let mut reader = SegmentReader::open(segment)?;
        let mut found = false;
        let mut last = None;
        reader.for_each_group(&mut |place| {
            if last != Some(place.device) {
                last = Some(place.device);
                let is_other = self.interval_of(place.device, before_ms)
                    != self.interval_of(place.device, age_ms);
                found |= is_other || !self.deletions_of(segment, place.device).is_empty();
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn deletions_of(&self, segment: &Segment, device: u32) -> Vec<Deletion> {
        let meta = &segment.meta;
        let holds = |deletion: &&Deletion| {
            deletion.lsn >= meta.last_lsn && deletion.number > meta.deletions
        };
        self.deletions
            .get(&device)
            .into_iter()
            .flatten()
            .filter(holds)
            .copied()
            .collect()
    }

    /// Merges adjacent files of one window into one.
    fn merge(&mut self, inputs: &[Arc<Segment>]) -> Result<(), SeriesError> {
        let shared = self.shared;
        let first = &inputs[0].meta;
        let age_ms = self.age_ms(first.window);
        let meta = SegmentMeta {
            partition: self.partition,
            window: first.window,
            id: shared.next_file_id(),
            last_lsn: inputs
                .iter()
                .map(|input| input.meta.last_lsn)
                .max()
                .unwrap_or(0),
            flushed_lsn: inputs
                .iter()
                .map(|input| input.meta.flushed_lsn)
                .max()
                .unwrap_or(0),
            deletions: self
                .deletions
                .values()
                .flatten()
                .map(|deletion| deletion.number)
                .max()
                .unwrap_or(0),
            policy_age_ms: age_ms.max(0) as u64,
            policy_revision: if age_ms >= 0 {
                self.policies.revision
            } else {
                0
            },
            ..SegmentMeta::default()
        };
        let mut writer =
            SegmentWriter::create(&shared.segments_dir(), meta, shared.config.window_ms)?;
        if let Err(error) = self.write(inputs, age_ms, &mut writer) {
            writer.discard();
            return Err(error);
        }
        if writer.is_empty() {
            writer.discard();
            return self.replace(inputs, None);
        }
        let mut replaces: Vec<u64> = inputs.iter().map(|input| input.meta.id).collect();
        for input in inputs {
            // Files that a reader still holds would reappear after a crash once the file that replaced them
            // is removed.
            let is_there = |id: &&u64| {
                shared
                    .segments_dir()
                    .join(input.meta.file_name_for_id(**id))
                    .exists()
            };
            replaces.extend(input.meta.replaces.iter().filter(is_there));
        }
        writer.meta.replaces = replaces;
        let written = writer.finish()?;
        if let Err(error) = written.sync().and_then(|()| written.assign_final_name()) {
            written.is_gone.store(true, Ordering::Release);
            return Err(error);
        }
        sync_dir(&shared.segments_dir())?;
        increment(&shared.counters.merges, 1);
        increment(&shared.counters.merged_bytes, written.bytes);
        self.replace(inputs, Some(written))
    }

    fn replace(
        &mut self,
        inputs: &[Arc<Segment>],
        written: Option<Segment>,
    ) -> Result<(), SeriesError> {
        let ids: Vec<u64> = inputs.iter().map(|input| input.meta.id).collect();
        let mut part = lock(&self.shared.partitions[self.partition].partition);
        if written.is_none() {
            part.latest.clear();
        }
        part.replace_files(&ids, written.map(Arc::new));
        drop(part);
        // Files in the manifest must not be missing.
        committer::write_manifest(self.shared, self.shared.flushed_lsns())?;
        for input in inputs {
            input.is_gone.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn write(
        &self,
        inputs: &[Arc<Segment>],
        age_ms: i64,
        writer: &mut SegmentWriter,
    ) -> Result<(), SeriesError> {
        let mut cursors = inputs
            .iter()
            .map(GroupCursor::open)
            .collect::<Result<Vec<_>, _>>()?;
        let mut bytes = Vec::new();
        while let Some(device) = cursors
            .iter()
            .filter_map(|cursor| cursor.head.map(|place| place.device))
            .min()
        {
            if self.shared.is_closing.load(Ordering::Acquire) {
                return Err(SeriesError::Closed);
            }
            let mut places = Vec::new();
            for (age, cursor) in cursors.iter_mut().enumerate() {
                while let Some(place) = cursor.head.filter(|place| place.device == device) {
                    places.push((age, place));
                    cursor.advance()?;
                }
            }
            let mut of_device = DeviceMerge {
                cursors: &mut cursors,
                deletions: inputs
                    .iter()
                    .map(|input| self.deletions_of(input, device))
                    .collect(),
                device,
            };
            match self.interval_of(device, age_ms) {
                None => {}
                Some(0) => of_device.write_merged(places, writer, &mut bytes)?,
                Some(interval_ms) => {
                    of_device.write_downsampled(&places, interval_ms, writer, &mut bytes)?
                }
            }
        }
        Ok(())
    }
}

/// The files of a window to merge now, adjacent in age.
fn due_files(files: &[Arc<Segment>], is_over: bool, at_once: bool) -> Option<&[Arc<Segment>]> {
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    if is_over && files.len() > 1 {
        // A few late rows wait, so that a large file is not rewritten for each of them.
        let largest = files.iter().map(|file| file.bytes).max().unwrap_or(0);
        if at_once || total - largest >= largest / 4 || files.len() >= MERGE_FAN_IN {
            return Some(files);
        }
    }
    if files.len() < MERGE_FAN_IN {
        return None;
    }
    // The longest run of young files in which none is much larger than all younger ones together.
    let mut start = files.len() - 1;
    let mut younger = files[start].bytes;
    while start > 0 && files[start - 1].bytes <= younger * 2 {
        start -= 1;
        younger += files[start].bytes;
    }
    if files.len() - start >= MERGE_FAN_IN {
        return Some(&files[start..]);
    }
    (files.len() >= 3 * MERGE_FAN_IN).then(|| &files[files.len() - MERGE_FAN_IN..])
}

/// Removes deletions that no file needs any more.
fn remove_applied_deletions(shared: &SeriesShared) -> Result<(), SeriesError> {
    let mut deletions = lock(&shared.deletions);
    if deletions.len() == 0 {
        return Ok(());
    }
    let mut needed = Vec::new();
    let mut dropped = Vec::new();
    for (partition, cell) in shared.partitions.iter().enumerate() {
        let part = lock(&cell.partition);
        let flushed_lsn = cell.flushed_lsn.load(Ordering::Acquire);
        for deletion in part.deletions.values().flatten() {
            let is_unclear = |segment: &Arc<Segment>| {
                segment.meta.last_lsn <= deletion.lsn
                    && segment.checked_deletions.load(Ordering::Acquire) < deletion.number
            };
            // A start reads rows of the write-ahead log again.
            if deletion.lsn > flushed_lsn || part.files.iter().any(is_unclear) {
                needed.push(*deletion);
            } else {
                dropped.push((partition, *deletion));
            }
        }
    }
    // The deletion with the highest number stays, to preserve the number.
    let highest = dropped
        .iter()
        .map(|(_, deletion)| deletion.number)
        .max()
        .unwrap_or(0);
    if let Some(at) = dropped
        .iter()
        .position(|(_, deletion)| deletion.number == highest)
        && needed.iter().all(|deletion| deletion.number < highest)
    {
        needed.push(dropped.swap_remove(at).1);
    }
    if dropped.len() < 64 {
        return Ok(());
    }
    needed.sort_unstable_by_key(|deletion| deletion.number);
    deletions.rewrite(&needed)?;
    for (partition, deletion) in dropped {
        let mut part = lock(&shared.partitions[partition].partition);
        if let Some(of_device) = part.deletions.get_mut(&deletion.device) {
            of_device.retain(|known| known.number != deletion.number);
            if of_device.is_empty() {
                part.deletions.remove(&deletion.device);
            }
        }
    }
    Ok(())
}
