//! Compares random operations with a expected store, with restarts, flushes and merges in between.
//! `TIDEGATE_SERIES_ROUNDS` sets the number of stores, `TIDEGATE_SERIES_SEED` the random seed.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use common::{Random, StoredValue, append_rows, config, number_from, stored_value};
use series::{
    Aggregate, DeviceNo, Intervals, KeyId, Point, PointValue, RangeQuery, RowOrder, Series,
};

const KEYS: u32 = 6;
const DEVICES: u64 = 12;
const HOUR_MS: i64 = 3_600_000;
const BEGIN_MS: i64 = 1_700_000_000_000;

/// Values by device, time and key.
type ExpectedPoints = BTreeMap<(u32, i64, u32), StoredValue>;

fn open(dir: &Path) -> Series {
    let (series, report) = Series::open(dir, config()).unwrap();
    assert!(report.truncations.is_empty());
    for key in 0..KEYS {
        assert_eq!(
            series.get_or_create_key(&format!("key{key}")).unwrap(),
            KeyId(key)
        );
    }
    series
}

fn value(random: &mut Random, key: u32) -> PointValue<'static> {
    let number = random.below(1000) as i64;
    match (key, random.below(20)) {
        // The kind of value changes occasionally.
        (_, 0) => PointValue::Int(number),
        (_, 1) => PointValue::Text("odd"),
        (0 | 1, _) => PointValue::Float(number as f64 / 10.0),
        (2, _) => PointValue::Int(number),
        (3, _) => PointValue::Bool(number & 1 == 0),
        (4, _) => PointValue::Text(["one", "two", "three"][number as usize % 3]),
        _ => PointValue::Float((number as f64).sqrt()),
    }
}

struct Script {
    random: Random,
    expected: ExpectedPoints,
    clock: [i64; DEVICES as usize],
}

impl Script {
    fn row(&mut self) -> (DeviceNo, i64, Vec<Point<'static>>) {
        let random = &mut self.random;
        let device = random.below(DEVICES) as u32;
        let clock = &mut self.clock[device as usize];
        *clock += random.below(90_000) as i64;
        let ts_ms = match random.below(10) {
            0 => BEGIN_MS + random.below(9 * HOUR_MS as u64) as i64,
            1 => *clock / 1000 * 1000,
            _ => *clock,
        };
        let first = random.below(3) as u32;
        let keys = if random.below(8) == 0 {
            first..first + 2
        } else {
            0..KEYS
        };
        let points: Vec<_> = keys
            .map(|key| Point {
                key: KeyId(key),
                value: value(random, key),
            })
            .collect();
        for point in &points {
            self.expected
                .insert((device, ts_ms, point.key.0), stored_value(point.value));
        }
        (DeviceNo(device), ts_ms, points)
    }

    fn step(&mut self, series: &Series) {
        match self.random.below(1000) {
            0 => {
                let device = self.random.below(DEVICES) as u32;
                series.delete_device(DeviceNo(device)).unwrap();
                self.expected.retain(|(of, _, _), _| *of != device);
            }
            1 | 2 => {
                let device = self.random.below(DEVICES) as u32;
                let from = BEGIN_MS + self.random.below(9 * HOUR_MS as u64) as i64;
                let to = from + self.random.below(HOUR_MS as u64) as i64;
                let keys = [KeyId(self.random.below(u64::from(KEYS)) as u32)];
                let keys = if self.random.below(2) == 0 {
                    None
                } else {
                    Some(&keys[..])
                };
                series
                    .delete_range(DeviceNo(device), keys, from, to)
                    .unwrap();
                self.expected.retain(|(of, ts_ms, key), _| {
                    let is_key = keys.is_none_or(|keys| keys[0].0 == *key);
                    *of != device || !is_key || !(from..to).contains(ts_ms)
                });
            }
            3..6 => series.flush().unwrap(),
            6 | 7 => series.compact().unwrap(),
            8..200 => {
                let count = self.random.below(20);
                let rows: Vec<_> = (0..count).map(|_| self.row()).collect();
                append_rows(series, &rows);
            }
            _ => {
                let (device, ts_ms, points) = self.row();
                series.append(device, ts_ms, &points).unwrap();
            }
        }
    }

    fn expected(
        &self,
        device: u32,
        from: i64,
        to: i64,
        keys: Option<&[KeyId]>,
    ) -> Vec<(i64, Vec<(u32, StoredValue)>)> {
        let mut rows: BTreeMap<i64, Vec<(u32, StoredValue)>> = BTreeMap::new();
        for ((_, ts_ms, key), value) in self.expected.range((device, from, 0)..(device, to, 0)) {
            if keys.is_none_or(|keys| keys.contains(&KeyId(*key))) {
                rows.entry(*ts_ms).or_default().push((*key, value.clone()));
            }
        }
        rows.into_iter().collect()
    }

    fn check(&mut self, series: &Series) {
        for device in 0..DEVICES as u32 {
            self.check_range(
                series,
                device,
                None,
                i64::MIN,
                i64::MAX,
                usize::MAX,
                RowOrder::OldestFirst,
            );
            let from = BEGIN_MS + self.random.below(9 * HOUR_MS as u64) as i64;
            let to = from + self.random.below(3 * HOUR_MS as u64) as i64;
            let limit = 1 + self.random.below(50) as usize;
            let keys = [KeyId(self.random.below(u64::from(KEYS)) as u32), KeyId(1)];
            self.check_range(
                series,
                device,
                Some(&keys),
                from,
                to,
                limit,
                RowOrder::NewestFirst,
            );
            self.check_range(
                series,
                device,
                Some(&keys),
                from,
                to,
                limit,
                RowOrder::OldestFirst,
            );
            self.check_latest(series, device);
            self.check_sums(series, device, from, to);
        }
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one call of the thing under test"
    )]
    fn check_range(
        &self,
        series: &Series,
        device: u32,
        keys: Option<&[KeyId]>,
        from_ms: i64,
        to_ms: i64,
        limit: usize,
        order: RowOrder,
    ) {
        let mut found = Vec::new();
        let range = RangeQuery {
            from_ms,
            to_ms,
            limit,
            order,
        };
        let each = &mut |row: series::SeriesRow<'_>| {
            let mut points: Vec<_> = row
                .points
                .iter()
                .map(|point| (point.key.0, stored_value(point.value)))
                .collect();
            points.sort_by_key(|(key, _)| *key);
            found.push((row.ts_ms, points));
            ControlFlow::Continue(())
        };
        series.range(DeviceNo(device), keys, &range, each).unwrap();
        let mut expected = self.expected(device, from_ms, to_ms, keys);
        if order == RowOrder::NewestFirst {
            expected.reverse();
        }
        expected.truncate(limit);
        assert_eq!(found.len(), expected.len(), "device {device}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "device {device}");
        }
    }

    fn check_latest(&self, series: &Series, device: u32) {
        let mut expected: BTreeMap<u32, (i64, StoredValue)> = BTreeMap::new();
        for ((_, ts_ms, key), value) in self
            .expected
            .range((device, i64::MIN, 0)..(device, i64::MAX, 0))
        {
            expected.insert(*key, (*ts_ms, value.clone()));
        }
        let mut found = BTreeMap::new();
        series
            .latest(DeviceNo(device), None, &mut |ts_ms, point| {
                found.insert(point.key.0, (ts_ms, stored_value(point.value)));
            })
            .unwrap();
        assert_eq!(found, expected, "device {device}");
    }

    fn check_sums(&self, series: &Series, device: u32, from_ms: i64, to_ms: i64) {
        let intervals = Intervals {
            from_ms,
            to_ms,
            interval_ms: 17 * 60_000,
            origin_ms: BEGIN_MS,
            starts: Vec::new(),
        };
        let keys: Vec<KeyId> = (0..KEYS).map(KeyId).collect();
        let mut expected: BTreeMap<(u32, i64), Vec<StoredValue>> = BTreeMap::new();
        for ((_, ts_ms, key), value) in self
            .expected
            .range((device, from_ms, 0)..(device, to_ms, 0))
        {
            let start = ts_ms - (ts_ms - BEGIN_MS).rem_euclid(intervals.interval_ms);
            expected
                .entry((*key, start))
                .or_default()
                .push(value.clone());
        }
        let mut seen = 0;
        series
            .aggregate(
                &[DeviceNo(device)],
                &keys,
                &intervals,
                &mut |of, key, start, summary| {
                    assert_eq!(of, DeviceNo(device));
                    seen += 1;
                    let values = &expected[&(key.0, start)];
                    let numbers: Vec<f64> = values.iter().filter_map(StoredValue::number).collect();
                    assert_eq!(
                        (summary.count, summary.numbers),
                        (values.len() as u64, numbers.len() as u64)
                    );
                    let get = |aggregate| summary.get(aggregate);
                    assert_eq!(
                        get(Aggregate::First).map(stored_value).as_ref(),
                        values.first()
                    );
                    assert_eq!(
                        get(Aggregate::Last).map(stored_value).as_ref(),
                        values.last()
                    );
                    let number = |aggregate| get(aggregate).and_then(|value| value.number());
                    let reduce = |by: fn(f64, f64) -> f64| numbers.iter().copied().reduce(by);
                    assert_eq!(number(Aggregate::Min), reduce(f64::min));
                    assert_eq!(number(Aggregate::Max), reduce(f64::max));
                    if !numbers.is_empty() {
                        let sum = number(Aggregate::Sum).unwrap();
                        assert!((sum - numbers.iter().sum::<f64>()).abs() < 1e-6);
                    }
                },
            )
            .unwrap();
        assert_eq!(seen, expected.len());
    }
}

#[test]
fn results_equal_those_of_a_naive_store() {
    let first = number_from("TIDEGATE_SERIES_SEED").unwrap_or(1);
    for seed in first..first + number_from("TIDEGATE_SERIES_ROUNDS").unwrap_or(3) {
        eprintln!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let mut series = open(dir.path());
        let mut script = Script {
            random: Random::new(seed),
            expected: ExpectedPoints::new(),
            clock: [BEGIN_MS; DEVICES as usize],
        };
        for step in 1..=4000 {
            script.step(&series);
            if step % 500 == 0 {
                script.check(&series);
                if script.random.below(3) > 0 {
                    drop(series);
                    series = open(dir.path());
                    script.check(&series);
                }
            }
        }
        series.flush().unwrap();
        series.compact().unwrap();
        script.check(&series);
        assert!(series.stats().segments > 0);
    }
}
