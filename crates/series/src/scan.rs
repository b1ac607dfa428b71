//! Scans the rows of one device in memory and segment files, in order of their times, each time once.
//!
//! Groups that overlap in time, and rows in memory among them, are merged; most overlap with none and are
//! read one after the other. A scan therefore needs memory only for the groups that overlap.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::codec::row_group;
use crate::column_table::{ColumnTable, RowReadBuffers};
use crate::deletions::Deletion;
use crate::downsample;
use crate::error::SeriesError;
use crate::lock::lock;
use crate::memtable::DeviceView;
use crate::partitioning::{index_in_partition, partition_of};
use crate::point::{DeviceNo, KeyId};
use crate::segment::{GroupLocation, Segment, SegmentReader};
use crate::shared::SeriesShared;

/// Files kept open during a scan.
const MAX_READERS: usize = 64;

/// Open files; scans of several devices reuse them.
#[derive(Default)]
pub(crate) struct ReaderCache {
    open: HashMap<u64, SegmentReader, foldhash::fast::RandomState>,
    bytes: Vec<u8>,
}

impl ReaderCache {
    pub(crate) fn get_or_open(
        &mut self,
        segment: &Arc<Segment>,
    ) -> Result<&mut SegmentReader, SeriesError> {
        let id = segment.meta.id;
        if !self.open.contains_key(&id) {
            if self.open.len() == MAX_READERS {
                self.open.clear();
            }
            self.open.insert(id, SegmentReader::open(segment)?);
        }
        Ok(self
            .open
            .get_mut(&id)
            .expect("the reader was just inserted"))
    }
}

/// Selects rows, and how downsampled ones are returned.
pub(crate) struct ScanRequest<'a> {
    pub(crate) device: DeviceNo,
    pub(crate) keys: Option<&'a [KeyId]>,
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
    pub(crate) backwards: bool,
    /// Returns downsampled rows as aggregates, which may overlap with others, instead of values.
    pub(crate) keeps_aggregates: bool,
    /// Includes rows in memory.
    pub(crate) with_memory: bool,
}

/// Receives the results of a scan.
pub(crate) trait ScanVisitor {
    /// A group that overlaps with nothing. Return `true` if its rows are not needed.
    fn visit_group(&mut self, _group: &row_group::RowGroup<'_>, _place: &GroupLocation) -> bool {
        false
    }

    /// Sorted rows, some of them possibly outside the requested time; downsampled ones if the interval is not
    /// 0.
    fn visit_table(&mut self, table: &ColumnTable, interval_ms: i64) -> ControlFlow<()>;
}

struct LocatedGroup {
    /// The file's position by age: younger ones come later.
    age: usize,
    place: GroupLocation,
}

/// Groups that overlap.
struct GroupCluster {
    first_ts: i64,
    last_ts: i64,
    members: Vec<LocatedGroup>,
}

/// Combines overlapping groups; input and output are ordered by time.
fn cluster_groups(mut members: Vec<LocatedGroup>) -> Vec<GroupCluster> {
    members.sort_by_key(|member| member.place.first_ts);
    let mut clusters: Vec<GroupCluster> = Vec::new();
    for member in members {
        let GroupLocation {
            first_ts, last_ts, ..
        } = member.place;
        match clusters.last_mut() {
            Some(cluster) if first_ts <= cluster.last_ts => {
                cluster.last_ts = cluster.last_ts.max(last_ts);
                cluster.members.push(member);
            }
            _ => clusters.push(GroupCluster {
                first_ts,
                last_ts,
                members: vec![member],
            }),
        }
    }
    clusters
}

pub(crate) struct DeviceSnapshot {
    pub(crate) files: Arc<Vec<Arc<Segment>>>,
    memory: ColumnTable,
    deletions: Vec<Deletion>,
}

/// Captures the present rows of a device.
pub(crate) fn snapshot(shared: &SeriesShared, scan: &ScanRequest<'_>) -> DeviceSnapshot {
    let device = scan.device;
    let (place, from_ms, to_ms) = (index_in_partition(device), scan.from_ms, scan.to_ms);
    let mut views: Vec<(DeviceView, u64)> = Vec::new();
    let (files, deletions) = {
        let part = lock(&shared.partitions[partition_of(device)].partition);
        if scan.with_memory {
            for frozen in &part.frozen {
                let view = frozen.frozen_view(place, from_ms, to_ms);
                views.extend(view.map(|view| (view, frozen.next_lsn - 1)));
            }
            let view = part.active.view(place, from_ms, to_ms);
            views.extend(view.map(|view| (view, u64::MAX)));
        }
        let deletions = part.deletions.get(&device.0).cloned().unwrap_or_default();
        (Arc::clone(&part.files), deletions)
    };
    let mut tables: Vec<ColumnTable> = vec![ColumnTable::default()];
    let mut reading = RowReadBuffers::default();
    for (view, last_lsn) in &views {
        let deleted: Vec<_> = deletions
            .iter()
            .filter(|deletion| deletion.lsn >= *last_lsn)
            .collect();
        if !deleted.is_empty() {
            tables.push(ColumnTable::default());
        }
        let table = tables.last_mut().expect("the list begins with one table");
        table
            .read_rows(&view.rows(), (from_ms, to_ms), scan.keys, &mut reading)
            .expect("values encoded by this process are readable");
        if !deleted.is_empty() {
            table.sort();
            deleted.iter().for_each(|deletion| deletion.apply(table));
            tables.push(ColumnTable::default());
        }
    }
    tables.retain(|table| !table.is_empty());
    let mut memory = match tables.len() {
        0 => ColumnTable::default(),
        1 => tables.swap_remove(0),
        _ => {
            tables.iter_mut().for_each(ColumnTable::finish);
            ColumnTable::merge(&tables)
        }
    };
    memory.sort();
    DeviceSnapshot {
        files,
        memory,
        deletions,
    }
}

/// Passes the rows of a device to a visitor.
pub(crate) fn scan(
    shared: &SeriesShared,
    readers: &mut ReaderCache,
    scan: &ScanRequest<'_>,
    sink: &mut dyn ScanVisitor,
) -> Result<(), SeriesError> {
    if scan.from_ms >= scan.to_ms {
        return Ok(());
    }
    let snapshot = snapshot(shared, scan);
    let window_ms = shared.config.window_ms;
    let is_wanted = |segment: &Segment| {
        segment.window_begin < scan.to_ms
            && segment.window_begin.saturating_add(window_ms) > scan.from_ms
    };
    // Files are sorted by window; those of one window are adjacent.
    let wanted: Vec<(usize, &Arc<Segment>)> = snapshot
        .files
        .iter()
        .enumerate()
        .filter(|(_, segment)| is_wanted(segment))
        .collect();
    let mut windows: Vec<&[(usize, &Arc<Segment>)]> = wanted
        .chunk_by(|left, right| left.1.meta.window == right.1.meta.window)
        .collect();
    if scan.backwards {
        windows.reverse();
    }
    let mut walk = Scanner {
        scan,
        snapshot: &snapshot,
        readers,
        sink,
        remaining: snapshot.memory.rows_between(scan.from_ms, scan.to_ms),
    };
    for window in windows {
        if walk.scan_window(window)?.is_break() {
            return Ok(());
        }
    }
    let rest = walk.remaining.clone();
    let _ = walk.visit_memory(rest);
    Ok(())
}

struct Scanner<'a, 'b> {
    scan: &'a ScanRequest<'b>,
    snapshot: &'a DeviceSnapshot,
    readers: &'a mut ReaderCache,
    sink: &'a mut dyn ScanVisitor,
    /// Rows in memory that were not visited yet.
    remaining: Range<usize>,
}

impl Scanner<'_, '_> {
    fn scan_window(
        &mut self,
        files: &[(usize, &Arc<Segment>)],
    ) -> Result<ControlFlow<()>, SeriesError> {
        let (from_ms, to_ms) = (self.scan.from_ms, self.scan.to_ms);
        let mut members = Vec::new();
        for (age, segment) in files {
            let each = &mut |place: GroupLocation| {
                if place.last_ts >= from_ms && place.first_ts < to_ms {
                    members.push(LocatedGroup { age: *age, place });
                }
            };
            self.readers
                .get_or_open(segment)?
                .find_groups(self.scan.device.0, each)?;
        }
        let mut clusters = cluster_groups(members);
        if self.scan.backwards {
            clusters.reverse();
        }
        for cluster in clusters {
            if self.scan_cluster(&cluster)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn visit_memory(&mut self, rows: Range<usize>) -> ControlFlow<()> {
        if rows.is_empty() {
            return ControlFlow::Continue(());
        }
        let memory = &self.snapshot.memory;
        if rows.len() == memory.ts.len() {
            return self.sink.visit_table(memory, 0);
        }
        self.sink.visit_table(&memory.slice(rows), 0)
    }

    fn scan_cluster(&mut self, cluster: &GroupCluster) -> Result<ControlFlow<()>, SeriesError> {
        let ts = &self.snapshot.memory.ts;
        let left = self.remaining.clone();
        // Rows in memory before, within and after the cluster.
        let start =
            left.start + ts[left.clone()].partition_point(|&ts_ms| ts_ms < cluster.first_ts);
        let end = left.start + ts[left.clone()].partition_point(|&ts_ms| ts_ms <= cluster.last_ts);
        let (before, rest) = match self.scan.backwards {
            false => (left.start..start, end..left.end),
            true => (end..left.end, left.start..start),
        };
        self.remaining = rest;
        if self.visit_memory(before).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let among = self.snapshot.memory.slice(start..end);
        if let ([member], true) = (&cluster.members[..], among.is_empty()) {
            return self.scan_single(member);
        }
        self.scan_overlapping(cluster, among)
    }

    fn deletions_of(&self, segment: &Segment) -> Vec<Deletion> {
        let meta = &segment.meta;
        let holds = |deletion: &&Deletion| {
            deletion.lsn >= meta.last_lsn && deletion.number > meta.deletions
        };
        self.snapshot
            .deletions
            .iter()
            .filter(holds)
            .copied()
            .collect()
    }

    fn scan_single(&mut self, member: &LocatedGroup) -> Result<ControlFlow<()>, SeriesError> {
        let snapshot = self.snapshot;
        let segment = &snapshot.files[member.age];
        let deletions = self.deletions_of(segment);
        let mut bytes = std::mem::take(&mut self.readers.bytes);
        let reader = self.readers.get_or_open(segment)?;
        reader.read(&member.place, &mut bytes)?;
        let group =
            row_group::parse_group(&bytes).ok_or_else(|| reader.group_error(&member.place))?;
        if deletions.is_empty()
            && group.interval_ms == 0
            && self.sink.visit_group(&group, &member.place)
        {
            self.readers.bytes = bytes;
            return Ok(ControlFlow::Continue(()));
        }
        let table = group.decode_table(self.scan.keys);
        let mut table = table.ok_or_else(|| reader.group_error(&member.place))?;
        let interval_ms = group.interval_ms;
        deletions
            .iter()
            .for_each(|deletion| deletion.apply(&mut table));
        self.readers.bytes = bytes;
        if interval_ms > 0 && !self.scan.keeps_aggregates {
            return Ok(self
                .sink
                .visit_table(&downsample::to_range_values(&table), 0));
        }
        Ok(self.sink.visit_table(&table, interval_ms))
    }

    fn scan_overlapping(
        &mut self,
        cluster: &GroupCluster,
        among: ColumnTable,
    ) -> Result<ControlFlow<()>, SeriesError> {
        let snapshot = self.snapshot;
        let mut members: Vec<&LocatedGroup> = cluster.members.iter().collect();
        members.sort_by_key(|member| member.age);
        let mut tables = Vec::with_capacity(members.len() + 1);
        for member in members {
            let segment = &snapshot.files[member.age];
            let deletions = self.deletions_of(segment);
            let mut bytes = std::mem::take(&mut self.readers.bytes);
            let reader = self.readers.get_or_open(segment)?;
            let (mut table, interval_ms) =
                reader.read_table(&member.place, self.scan.keys, &mut bytes)?;
            self.readers.bytes = bytes;
            deletions
                .iter()
                .for_each(|deletion| deletion.apply(&mut table));
            if interval_ms == 0 {
                tables.push(table);
            } else if self.scan.keeps_aggregates {
                if self.sink.visit_table(&table, interval_ms).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            } else {
                tables.push(downsample::to_range_values(&table));
            }
        }
        if !among.is_empty() {
            tables.push(among);
        }
        let merged = match tables.len() {
            1 => tables.swap_remove(0),
            _ => ColumnTable::merge(&tables),
        };
        if merged.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        Ok(self.sink.visit_table(&merged, 0))
    }
}
