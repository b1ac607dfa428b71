//! What others ask: ranges, latest values, aggregates.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::codec::group::Group;
use crate::downsample;
use crate::error::Error;
use crate::latest::List;
use crate::part::{partition_of, place_of};
use crate::point::{DeviceNo, KeyId, Point, Row};
use crate::scan::{Readers, Scan, Sink, scan};
use crate::segment::Place;
use crate::shared::{MAX_TS, Shared, lock};
use crate::summary::{Intervals, Summary};
use crate::table::{Facet, Table};
use crate::wal::PARTITIONS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// Which rows are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// The first time.
    pub from_ms: i64,
    /// The time behind the last one.
    pub to_ms: i64,
    /// Rows at most.
    pub limit: usize,
    pub order: Order,
}

impl Default for Range {
    fn default() -> Self {
        Self {
            from_ms: -MAX_TS,
            to_ms: MAX_TS,
            limit: usize::MAX,
            order: Order::OldestFirst,
        }
    }
}

struct Rows<'a> {
    range: &'a Range,
    left: usize,
    each: &'a mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
}

impl Sink for Rows<'_> {
    fn table(&mut self, table: &Table, _interval_ms: i64) -> ControlFlow<()> {
        let rows = table.within(self.range.from_ms, self.range.to_ms);
        let backwards = self.range.order == Order::NewestFirst;
        table.each_row(rows, backwards, &mut |ts_ms, points| {
            (self.each)(Row { ts_ms, points })?;
            self.left -= 1;
            match self.left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })
    }
}

pub(crate) fn range(
    shared: &Shared,
    device: DeviceNo,
    keys: Option<&[KeyId]>,
    range: &Range,
    each: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
) -> Result<(), Error> {
    if range.limit == 0 {
        return Ok(());
    }
    let wanted = Scan {
        device,
        keys,
        from_ms: range.from_ms,
        to_ms: range.to_ms,
        backwards: range.order == Order::NewestFirst,
        keeps_aggregates: false,
        with_memory: true,
    };
    let mut rows = Rows {
        range,
        left: range.limit,
        each,
    };
    scan(shared, &mut Readers::default(), &wanted, &mut rows)
}

/// Devices that have rows, ascending; some may have none any more.
pub(crate) fn devices(shared: &Shared) -> Result<Vec<DeviceNo>, Error> {
    let mut devices = Vec::new();
    for partition in 0..PARTITIONS {
        let files = {
            let part = lock(&shared.parts[partition].part);
            let memtables = part
                .frozen
                .iter()
                .map(|frozen| &**frozen)
                .chain([&part.active]);
            memtables.for_each(|memtable| devices.extend(memtable.devices()));
            Arc::clone(&part.files)
        };
        let mut readers = Readers::default();
        for segment in files.iter() {
            readers.of(segment)?.each_place(&mut |place| {
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
struct Newest {
    list: List,
}

impl Sink for Newest {
    fn group(&mut self, group: &Group<'_>, _place: &Place) -> bool {
        // Nothing older matters for keys that were found already.
        group
            .entries
            .iter()
            .all(|entry| self.list.get(entry.key).is_some())
    }

    fn table(&mut self, table: &Table, interval_ms: i64) -> ControlFlow<()> {
        let mut older = List::default();
        match interval_ms {
            0 => older.put_table(table),
            _ => older.put_table(&downsample::last_values(table)),
        }
        for (ts_ms, point) in older.points() {
            self.list.put(point.key, ts_ms, point.value);
        }
        ControlFlow::Continue(())
    }
}

pub(crate) fn latest(
    shared: &Shared,
    device: DeviceNo,
    keys: Option<&[KeyId]>,
    each: &mut dyn FnMut(i64, Point<'_>),
) -> Result<(), Error> {
    let cell = &shared.parts[partition_of(device)];
    let mut newest = Vec::new();
    let (cached, has_files, is_deleted) = {
        let part = lock(&cell.part);
        let memtables = part
            .frozen
            .iter()
            .map(|frozen| &**frozen)
            .chain([&part.active]);
        newest.extend(memtables.filter_map(|memtable| memtable.newest(place_of(device))));
        let has_files = !part.files.is_empty();
        (
            part.latest.get(device.0),
            has_files,
            part.deletions.contains_key(&device.0),
        )
    };
    let mut list = List::default();
    if is_deleted {
        // Rare enough to be looked for among all.
        list = scan_latest(shared, device, true)?.0;
    } else {
        if has_files {
            let known = match cached {
                Some(known) => known,
                None => cold_latest(shared, device)?,
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

/// What all of a device's rows have, or those in segment files alone; and which files these were.
fn scan_latest(shared: &Shared, device: DeviceNo, with_memory: bool) -> Result<(List, u64), Error> {
    let generation = lock(&shared.parts[partition_of(device)].part).generation;
    let wanted = Scan {
        device,
        keys: None,
        from_ms: i64::MIN,
        to_ms: i64::MAX,
        backwards: true,
        keeps_aggregates: true,
        with_memory,
    };
    let mut newest = Newest::default();
    scan(shared, &mut Readers::default(), &wanted, &mut newest)?;
    Ok((newest.list, generation))
}

fn cold_latest(shared: &Shared, device: DeviceNo) -> Result<Arc<List>, Error> {
    let (list, generation) = scan_latest(shared, device, false)?;
    let list = Arc::new(list);
    let mut part = lock(&shared.parts[partition_of(device)].part);
    if part.generation == generation {
        let max_bytes = shared.config.latest_cache_bytes / PARTITIONS;
        part.latest.put(device.0, Arc::clone(&list), max_bytes);
    }
    Ok(list)
}

struct Sums<'a> {
    keys: &'a [KeyId],
    intervals: &'a Intervals,
    /// Per key what its intervals have, ascending.
    of_keys: Vec<Vec<(i64, Summary)>>,
    /// Where intervals begin among the rows of a table.
    bounds: Vec<(i64, std::ops::Range<usize>)>,
}

fn summary_of(of_key: &mut Vec<(i64, Summary)>, start: i64) -> &mut Summary {
    let at = match of_key.last() {
        Some(last) if last.0 == start => of_key.len() - 1,
        Some(last) if last.0 > start => match of_key.binary_search_by_key(&start, |of| of.0) {
            Ok(at) => at,
            Err(at) => {
                of_key.insert(at, (start, Summary::default()));
                at
            }
        },
        _ => {
            of_key.push((start, Summary::default()));
            of_key.len() - 1
        }
    };
    &mut of_key[at].1
}

impl Sums<'_> {
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

impl Sink for Sums<'_> {
    fn group(&mut self, group: &Group<'_>, place: &Place) -> bool {
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
                let summary = summary_of(&mut self.of_keys[at], start);
                let (sum, min, max) = (statistics.sum, statistics.min, statistics.max);
                summary.count += group.rows as u64;
                summary.add_numbers(group.rows as u64, sum, min, max);
                summary.add_first(place.first_ts, statistics.first);
                summary.add_last(place.last_ts, statistics.last);
            }
        }
        true
    }

    fn table(&mut self, table: &Table, interval_ms: i64) -> ControlFlow<()> {
        if interval_ms > 0 {
            downsample::each_summary(table, &mut |key, ts_ms, summary| {
                if let Some(at) = self.keys.iter().position(|of| *of == key)
                    && (self.intervals.from_ms..self.intervals.to_ms).contains(&ts_ms)
                {
                    summary_of(&mut self.of_keys[at], self.intervals.start_of(ts_ms))
                        .merge(summary);
                }
            });
            return ControlFlow::Continue(());
        }
        self.find_bounds(&table.ts);
        for column in table
            .columns
            .iter()
            .filter(|column| column.facet == Facet::Value)
        {
            let Some(at) = self.keys.iter().position(|key| *key == column.key) else {
                continue;
            };
            let values = &column.values;
            for (start, rows) in &self.bounds {
                // Where the column has gaps, the places of these rows.
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
                let summary = summary_of(&mut self.of_keys[at], *start);
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

/// Gives what each interval of each device and key has, devices and keys in the order they are asked for.
pub(crate) fn aggregate(
    shared: &Shared,
    devices: &[DeviceNo],
    keys: &[KeyId],
    intervals: &Intervals,
    each: &mut dyn FnMut(DeviceNo, KeyId, i64, &Summary),
) -> Result<(), Error> {
    intervals.check()?;
    let mut readers = Readers::default();
    let mut sums = Sums {
        keys,
        intervals,
        of_keys: vec![Vec::new(); keys.len()],
        bounds: Vec::new(),
    };
    for &device in devices {
        let wanted = Scan {
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
