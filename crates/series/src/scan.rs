//! Rows of one device, wherever they are: memory and segment files, in the order of their times and each time once.
//!
//! Groups that overlap in time, and rows in memory among them, are put together; most overlap with none and are read one after
//! the other. So a scan needs memory for as many groups as overlap.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::codec::group;
use crate::deletions::Deletion;
use crate::downsample;
use crate::error::Error;
use crate::memtable::View;
use crate::part::{partition_of, place_of};
use crate::point::{DeviceNo, KeyId};
use crate::segment::{Place, Segment, SegmentReader};
use crate::shared::{Shared, lock};
use crate::table::{Reading, Table};

/// Files kept open during a scan.
const MAX_READERS: usize = 64;

/// Files that are open; scans of many devices use them again.
#[derive(Default)]
pub(crate) struct Readers {
    open: HashMap<u64, SegmentReader, foldhash::fast::RandomState>,
    bytes: Vec<u8>,
}

impl Readers {
    pub(crate) fn of(&mut self, segment: &Arc<Segment>) -> Result<&mut SegmentReader, Error> {
        let id = segment.meta.id;
        if !self.open.contains_key(&id) {
            if self.open.len() == MAX_READERS {
                self.open.clear();
            }
            self.open.insert(id, SegmentReader::open(segment)?);
        }
        Ok(self.open.get_mut(&id).expect("it was just put there"))
    }
}

/// Which rows, and what becomes of those that were downsampled.
pub(crate) struct Scan<'a> {
    pub(crate) device: DeviceNo,
    pub(crate) keys: Option<&'a [KeyId]>,
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
    pub(crate) backwards: bool,
    /// Downsampled rows are given as they are, and may overlap with others, rather than as values.
    pub(crate) keeps_aggregates: bool,
    /// Rows in memory are wanted too.
    pub(crate) with_memory: bool,
}

/// Takes what a scan finds.
pub(crate) trait Sink {
    /// A group that overlaps with nothing; `true` if its rows are not wanted any more.
    fn group(&mut self, _group: &group::Group<'_>, _place: &Place) -> bool {
        false
    }

    /// Sorted rows, some of them perhaps outside the wanted time; downsampled ones if the interval is not 0.
    fn table(&mut self, table: &Table, interval_ms: i64) -> ControlFlow<()>;
}

struct Member {
    /// The file's place among all: younger ones come later.
    age: usize,
    place: Place,
}

/// Groups that overlap.
struct Cluster {
    first_ts: i64,
    last_ts: i64,
    members: Vec<Member>,
}

/// Puts groups that overlap together; given and returned by time.
fn clusters(mut members: Vec<Member>) -> Vec<Cluster> {
    members.sort_by_key(|member| member.place.first_ts);
    let mut clusters: Vec<Cluster> = Vec::new();
    for member in members {
        let Place {
            first_ts, last_ts, ..
        } = member.place;
        match clusters.last_mut() {
            Some(cluster) if first_ts <= cluster.last_ts => {
                cluster.last_ts = cluster.last_ts.max(last_ts);
                cluster.members.push(member);
            }
            _ => clusters.push(Cluster {
                first_ts,
                last_ts,
                members: vec![member],
            }),
        }
    }
    clusters
}

pub(crate) struct Snapshot {
    pub(crate) files: Arc<Vec<Arc<Segment>>>,
    memory: Table,
    deletions: Vec<Deletion>,
}

/// What there is of a device at this moment.
pub(crate) fn snapshot(shared: &Shared, scan: &Scan<'_>) -> Snapshot {
    let device = scan.device;
    let (place, from_ms, to_ms) = (place_of(device), scan.from_ms, scan.to_ms);
    let mut views: Vec<(View, u64)> = Vec::new();
    let (files, deletions) = {
        let part = lock(&shared.parts[partition_of(device)].part);
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
    let mut tables: Vec<Table> = vec![Table::default()];
    let mut reading = Reading::default();
    for (view, last_lsn) in &views {
        let deleted: Vec<_> = deletions
            .iter()
            .filter(|deletion| deletion.lsn >= *last_lsn)
            .collect();
        if !deleted.is_empty() {
            tables.push(Table::default());
        }
        let table = tables.last_mut().expect("there is one from the start");
        table
            .read_rows(&view.rows(), (from_ms, to_ms), scan.keys, &mut reading)
            .expect("what was encoded in this process can be read");
        if !deleted.is_empty() {
            table.sort();
            deleted.iter().for_each(|deletion| deletion.apply(table));
            tables.push(Table::default());
        }
    }
    tables.retain(|table| !table.is_empty());
    let mut memory = match tables.len() {
        0 => Table::default(),
        1 => tables.swap_remove(0),
        _ => {
            tables.iter_mut().for_each(Table::finish);
            Table::merge(&tables)
        }
    };
    memory.sort();
    Snapshot {
        files,
        memory,
        deletions,
    }
}

/// Gives a sink what a device has.
pub(crate) fn scan(
    shared: &Shared,
    readers: &mut Readers,
    scan: &Scan<'_>,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    if scan.from_ms >= scan.to_ms {
        return Ok(());
    }
    let snapshot = snapshot(shared, scan);
    let window_ms = shared.config.window_ms;
    let is_wanted = |segment: &Segment| {
        segment.window_begin < scan.to_ms
            && segment.window_begin.saturating_add(window_ms) > scan.from_ms
    };
    // Files are sorted by window; one window's are a run.
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
    let mut walk = Walk {
        scan,
        snapshot: &snapshot,
        readers,
        sink,
        left: snapshot.memory.within(scan.from_ms, scan.to_ms),
    };
    for window in windows {
        if walk.window(window)?.is_break() {
            return Ok(());
        }
    }
    let rest = walk.left.clone();
    let _ = walk.give_memory(rest);
    Ok(())
}

struct Walk<'a, 'b> {
    scan: &'a Scan<'b>,
    snapshot: &'a Snapshot,
    readers: &'a mut Readers,
    sink: &'a mut dyn Sink,
    /// Rows in memory that were not given yet.
    left: Range<usize>,
}

impl Walk<'_, '_> {
    fn window(&mut self, files: &[(usize, &Arc<Segment>)]) -> Result<ControlFlow<()>, Error> {
        let (from_ms, to_ms) = (self.scan.from_ms, self.scan.to_ms);
        let mut members = Vec::new();
        for (age, segment) in files {
            let each = &mut |place: Place| {
                if place.last_ts >= from_ms && place.first_ts < to_ms {
                    members.push(Member { age: *age, place });
                }
            };
            self.readers.of(segment)?.find(self.scan.device.0, each)?;
        }
        let mut clusters = clusters(members);
        if self.scan.backwards {
            clusters.reverse();
        }
        for cluster in clusters {
            if self.cluster(&cluster)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn give_memory(&mut self, rows: Range<usize>) -> ControlFlow<()> {
        if rows.is_empty() {
            return ControlFlow::Continue(());
        }
        let memory = &self.snapshot.memory;
        if rows.len() == memory.ts.len() {
            return self.sink.table(memory, 0);
        }
        self.sink.table(&memory.slice(rows), 0)
    }

    fn cluster(&mut self, cluster: &Cluster) -> Result<ControlFlow<()>, Error> {
        let ts = &self.snapshot.memory.ts;
        let left = self.left.clone();
        // Rows in memory on this side of the cluster, among it, and beyond.
        let start =
            left.start + ts[left.clone()].partition_point(|&ts_ms| ts_ms < cluster.first_ts);
        let end = left.start + ts[left.clone()].partition_point(|&ts_ms| ts_ms <= cluster.last_ts);
        let (before, rest) = match self.scan.backwards {
            false => (left.start..start, end..left.end),
            true => (end..left.end, left.start..start),
        };
        self.left = rest;
        if self.give_memory(before).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let among = self.snapshot.memory.slice(start..end);
        if let ([member], true) = (&cluster.members[..], among.is_empty()) {
            return self.single(member);
        }
        self.overlapping(cluster, among)
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

    fn single(&mut self, member: &Member) -> Result<ControlFlow<()>, Error> {
        let snapshot = self.snapshot;
        let segment = &snapshot.files[member.age];
        let deletions = self.deletions_of(segment);
        let mut bytes = std::mem::take(&mut self.readers.bytes);
        let reader = self.readers.of(segment)?;
        reader.read(&member.place, &mut bytes)?;
        let group = group::open(&bytes).ok_or_else(|| reader.not_a_group(&member.place))?;
        if deletions.is_empty() && group.interval_ms == 0 && self.sink.group(&group, &member.place)
        {
            self.readers.bytes = bytes;
            return Ok(ControlFlow::Continue(()));
        }
        let table = group.table(self.scan.keys);
        let mut table = table.ok_or_else(|| reader.not_a_group(&member.place))?;
        let interval_ms = group.interval_ms;
        deletions
            .iter()
            .for_each(|deletion| deletion.apply(&mut table));
        self.readers.bytes = bytes;
        if interval_ms > 0 && !self.scan.keeps_aggregates {
            return Ok(self.sink.table(&downsample::as_values(&table), 0));
        }
        Ok(self.sink.table(&table, interval_ms))
    }

    fn overlapping(&mut self, cluster: &Cluster, among: Table) -> Result<ControlFlow<()>, Error> {
        let snapshot = self.snapshot;
        let mut members: Vec<&Member> = cluster.members.iter().collect();
        members.sort_by_key(|member| member.age);
        let mut tables = Vec::with_capacity(members.len() + 1);
        for member in members {
            let segment = &snapshot.files[member.age];
            let deletions = self.deletions_of(segment);
            let mut bytes = std::mem::take(&mut self.readers.bytes);
            let reader = self.readers.of(segment)?;
            let (mut table, interval_ms) =
                reader.table(&member.place, self.scan.keys, &mut bytes)?;
            self.readers.bytes = bytes;
            deletions
                .iter()
                .for_each(|deletion| deletion.apply(&mut table));
            if interval_ms == 0 {
                tables.push(table);
            } else if self.scan.keeps_aggregates {
                if self.sink.table(&table, interval_ms).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            } else {
                tables.push(downsample::as_values(&table));
            }
        }
        if !among.is_empty() {
            tables.push(among);
        }
        let merged = match tables.len() {
            1 => tables.swap_remove(0),
            _ => Table::merge(&tables),
        };
        if merged.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        Ok(self.sink.table(&merged, 0))
    }
}
