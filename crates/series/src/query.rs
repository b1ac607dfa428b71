//! Queries: ranges, latest values, aggregates.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::codec::row_group::RowGroup;
use crate::column_table::{ColumnFacet, ColumnTable};
use crate::downsample;
use crate::error::SeriesError;
use crate::latest::LatestValues;
use crate::lock::lock;
use crate::partitioning::PARTITION_COUNT;
use crate::partitioning::{index_in_partition, partition_of};
use crate::point::{DeviceNo, KeyId, Point, SeriesRow};
use crate::scan::{ReaderCache, ScanRequest, ScanVisitor, scan};
use crate::segment::GroupLocation;
use crate::shared::{MAX_TS, SeriesShared};
use crate::summary::{IntervalSummary, Intervals};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowOrder {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// Selects rows.
#[derive(Debug, Clone, Copy)]
pub struct RangeQuery {
    /// The first time.
    pub from_ms: i64,
    /// The end of the range, exclusive.
    pub to_ms: i64,
    /// Maximum number of rows.
    pub limit: usize,
    pub order: RowOrder,
}

impl Default for RangeQuery {
    fn default() -> Self {
        Self {
            from_ms: -MAX_TS,
            to_ms: MAX_TS,
            limit: usize::MAX,
            order: RowOrder::OldestFirst,
        }
    }
}

struct RangeCollector<'a> {
    range: &'a RangeQuery,
    remaining: usize,
    each: &'a mut dyn FnMut(SeriesRow<'_>) -> ControlFlow<()>,
}

impl ScanVisitor for RangeCollector<'_> {
    fn visit_table(&mut self, table: &ColumnTable, _interval_ms: i64) -> ControlFlow<()> {
        let rows = table.rows_between(self.range.from_ms, self.range.to_ms);
        let backwards = self.range.order == RowOrder::NewestFirst;
        table.for_each_row(rows, backwards, &mut |ts_ms, points| {
            (self.each)(SeriesRow { ts_ms, points })?;
            self.remaining -= 1;
            match self.remaining {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })
    }
}

pub(crate) fn range(
    shared: &SeriesShared,
    device: DeviceNo,
    keys: Option<&[KeyId]>,
    range: &RangeQuery,
    each: &mut dyn FnMut(SeriesRow<'_>) -> ControlFlow<()>,
) -> Result<(), SeriesError> {
    if range.limit == 0 {
        return Ok(());
    }
    let wanted = ScanRequest {
        device,
        keys,
        from_ms: range.from_ms,
        to_ms: range.to_ms,
        backwards: range.order == RowOrder::NewestFirst,
        keeps_aggregates: false,
        with_memory: true,
    };
    let mut rows = RangeCollector {
        range,
        remaining: range.limit,
        each,
    };
    scan(shared, &mut ReaderCache::default(), &wanted, &mut rows)
}

/// Devices that have rows, ascending; some of them may have none left.
pub(crate) fn devices(shared: &SeriesShared) -> Result<Vec<DeviceNo>, SeriesError> {
    let mut devices = Vec::new();
    for partition in 0..PARTITION_COUNT {
        let files = {
            let part = lock(&shared.partitions[partition].partition);
            let memtables = part
                .frozen
                .iter()
                .map(|frozen| &**frozen)
                .chain([&part.active]);
            memtables.for_each(|memtable| devices.extend(memtable.devices()));
            Arc::clone(&part.files)
        };
        let mut readers = ReaderCache::default();
        for segment in files.iter() {
            readers.get_or_open(segment)?.for_each_group(&mut |place| {
                if devices.last() != Some(&place.device) {
                    devices.push(place.device);
                }
                Ok(())
            })?;
            devices.sort_unstable();
            devices.dedup();
        }
    }
    devices.sort_unstable();
    devices.dedup();
    Ok(devices.into_iter().map(DeviceNo).collect())
}

/// Collects the latest value of each key from segment files, newest first.
#[derive(Default)]
struct LatestCollector {
    list: LatestValues,
}

impl ScanVisitor for LatestCollector {
    fn visit_group(&mut self, group: &RowGroup<'_>, _place: &GroupLocation) -> bool {
        // For keys with a value, nothing older matters.
        group
            .entries
            .iter()
            .all(|entry| self.list.get(entry.key).is_some())
    }

    fn visit_table(&mut self, table: &ColumnTable, interval_ms: i64) -> ControlFlow<()> {
        let mut older = LatestValues::default();
        match interval_ms {
            0 => older.put_table(table),
            _ => older.put_table(&downsample::to_last_values(table)),
        }
        for (ts_ms, point) in older.points() {
            self.list.put(point.key, ts_ms, point.value);
        }
        ControlFlow::Continue(())
    }
}

pub(crate) fn latest(
    shared: &SeriesShared,
    device: DeviceNo,
    keys: Option<&[KeyId]>,
    each: &mut dyn FnMut(i64, Point<'_>),
) -> Result<(), SeriesError> {
    let cell = &shared.partitions[partition_of(device)];
    let mut newest = Vec::new();
    let (cached, has_files, is_deleted) = {
        let part = lock(&cell.partition);
        let memtables = part
            .frozen
            .iter()
            .map(|frozen| &**frozen)
            .chain([&part.active]);
        newest.extend(memtables.filter_map(|memtable| memtable.newest(index_in_partition(device))));
        let has_files = !part.files.is_empty();
        (
            part.latest.get(device.0),
            has_files,
            part.deletions.contains_key(&device.0),
        )
    };
    let mut list = LatestValues::default();
    if is_deleted {
        // Rare enough for a scan of all rows.
        list = scan_latest(shared, device, true)?.0;
    } else {
        if has_files {
            let known = match cached {
                Some(known) => known,
                None => latest_from_segments(shared, device)?,
            };
            list = (*known).clone();
        }
        newest.iter().for_each(|newest| list.put_newest(newest));
    }
    for (ts_ms, point) in list.points() {
        if keys.is_none_or(|keys| keys.contains(&point.key)) {
            each(ts_ms, point);
        }
    }
    Ok(())
}

/// The latest values of all of a device's rows, or of those in segment files only; and the generation of these files.
fn scan_latest(
    shared: &SeriesShared,
    device: DeviceNo,
    with_memory: bool,
) -> Result<(LatestValues, u64), SeriesError> {
    let generation = lock(&shared.partitions[partition_of(device)].partition).generation;
    let wanted = ScanRequest {
        device,
        keys: None,
        from_ms: i64::MIN,
        to_ms: i64::MAX,
        backwards: true,
        keeps_aggregates: true,
        with_memory,
    };
    let mut newest = LatestCollector::default();
    scan(shared, &mut ReaderCache::default(), &wanted, &mut newest)?;
    Ok((newest.list, generation))
}

fn latest_from_segments(
    shared: &SeriesShared,
    device: DeviceNo,
) -> Result<Arc<LatestValues>, SeriesError> {
    let (list, generation) = scan_latest(shared, device, false)?;
    let list = Arc::new(list);
    let mut part = lock(&shared.partitions[partition_of(device)].partition);
    if part.generation == generation {
        let max_bytes = shared.config.latest_cache_bytes / PARTITION_COUNT;
        part.latest.put(device.0, Arc::clone(&list), max_bytes);
    }
    Ok(list)
}

struct AggregateCollector<'a> {
    keys: &'a [KeyId],
    intervals: &'a Intervals,
    /// For each key its intervals, ascending.
    of_keys: Vec<Vec<(i64, IntervalSummary)>>,
    /// The begin of each interval among the rows of a table.
    bounds: Vec<(i64, std::ops::Range<usize>)>,
}

fn summary_or_insert(of_key: &mut Vec<(i64, IntervalSummary)>, start: i64) -> &mut IntervalSummary {
    let at = match of_key.last() {
        Some(last) if last.0 == start => of_key.len() - 1,
        Some(last) if last.0 > start => match of_key.binary_search_by_key(&start, |of| of.0) {
            Ok(at) => at,
            Err(at) => {
                of_key.insert(at, (start, IntervalSummary::default()));
                at
            }
        },
        _ => {
            of_key.push((start, IntervalSummary::default()));
            of_key.len() - 1
        }
    };
    &mut of_key[at].1
}

impl AggregateCollector<'_> {
    fn find_bounds(&mut self, ts: &[i64]) {
        self.bounds.clear();
        let begin = ts.partition_point(|&ts_ms| ts_ms < self.intervals.from_ms);
        let end = ts.partition_point(|&ts_ms| ts_ms < self.intervals.to_ms);
        let mut at = begin;
        while at < end {
            let (start, next) = self.intervals.interval_of(ts[at]);
            let len = ts[at..end].partition_point(|&ts_ms| ts_ms < next);
            self.bounds.push((start, at..at + len));
            at += len;
        }
    }
}

impl ScanVisitor for AggregateCollector<'_> {
    fn visit_group(&mut self, group: &RowGroup<'_>, place: &GroupLocation) -> bool {
        let start = self.intervals.start_of(place.first_ts);
        let is_inside = place.first_ts >= self.intervals.from_ms
            && place.last_ts < self.intervals.to_ms
            && self.intervals.start_of(place.last_ts) == start;
        let keys = self.keys;
        let mut wanted = group
            .entries
            .iter()
            .filter(|entry| keys.contains(&entry.key));
        if !is_inside || wanted.any(|entry| entry.statistics.is_none()) {
            return false;
        }
        for (at, key) in self.keys.iter().enumerate() {
            let entry = group.entries.iter().find(|entry| entry.key == *key);
            if let Some(statistics) = entry.and_then(|entry| entry.statistics) {
                let summary = summary_or_insert(&mut self.of_keys[at], start);
                let (sum, min, max) = (statistics.sum, statistics.min, statistics.max);
                summary.count += group.rows as u64;
                summary.add_numbers(group.rows as u64, sum, min, max);
                summary.add_first(place.first_ts, statistics.first);
                summary.add_last(place.last_ts, statistics.last);
            }
        }
        true
    }

    fn visit_table(&mut self, table: &ColumnTable, interval_ms: i64) -> ControlFlow<()> {
        if interval_ms > 0 {
            downsample::for_each_summary(table, &mut |key, ts_ms, summary| {
                if let Some(at) = self.keys.iter().position(|of| *of == key)
                    && (self.intervals.from_ms..self.intervals.to_ms).contains(&ts_ms)
                {
                    summary_or_insert(&mut self.of_keys[at], self.intervals.start_of(ts_ms))
                        .merge(summary);
                }
            });
            return ControlFlow::Continue(());
        }
        self.find_bounds(&table.ts);
        for column in table
            .columns
            .iter()
            .filter(|column| column.facet == ColumnFacet::Value)
        {
            let Some(at) = self.keys.iter().position(|key| *key == column.key) else {
                continue;
            };
            let values = &column.values;
            for (start, rows) in &self.bounds {
                // If the column has gaps, the indexes of these rows.
                let places = match &column.rows {
                    None => rows.clone(),
                    Some(of) => {
                        of.partition_point(|&row| (row as usize) < rows.start)
                            ..of.partition_point(|&row| (row as usize) < rows.end)
                    }
                };
                if places.is_empty() {
                    continue;
                }
                let summary = summary_or_insert(&mut self.of_keys[at], *start);
                let ts_of = |place: usize| {
                    table.ts[column.rows.as_ref().map_or(place, |of| of[place] as usize)]
                };
                let times = (ts_of(places.start), ts_of(places.end - 1));
                summary.add_values(values, places, times);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Passes the summary of each interval to the caller, devices and keys in the order of the query.
pub(crate) fn aggregate(
    shared: &SeriesShared,
    devices: &[DeviceNo],
    keys: &[KeyId],
    intervals: &Intervals,
    each: &mut dyn FnMut(DeviceNo, KeyId, i64, &IntervalSummary),
) -> Result<(), SeriesError> {
    intervals.check()?;
    let mut readers = ReaderCache::default();
    let mut sums = AggregateCollector {
        keys,
        intervals,
        of_keys: vec![Vec::new(); keys.len()],
        bounds: Vec::new(),
    };
    for &device in devices {
        let wanted = ScanRequest {
            device,
            keys: Some(keys),
            from_ms: intervals.from_ms,
            to_ms: intervals.to_ms,
            backwards: false,
            keeps_aggregates: true,
            with_memory: true,
        };
        sums.of_keys.iter_mut().for_each(Vec::clear);
        scan(shared, &mut readers, &wanted, &mut sums)?;
        for (key, of_key) in keys.iter().zip(&sums.of_keys) {
            of_key
                .iter()
                .for_each(|(start, summary)| each(device, *key, *start, summary));
        }
    }
    Ok(())
}
