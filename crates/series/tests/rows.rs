//! Appended rows are returned by queries.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::ops::ControlFlow;

use common::{StoredValue, append_rows, stored_value};
use series::{
    Aggregate, DeviceNo, Intervals, KeyId, Point, PointValue, RangeQuery, RetentionPolicy,
    RowOrder, Series, SeriesConfig, SeriesError,
};

/// Keeps all rows, so that their times do not depend on the clock.
fn config() -> SeriesConfig {
    SeriesConfig {
        assignment: series::PolicyAssignment {
            policies: vec![(
                0,
                RetentionPolicy {
                    retention_ms: None,
                    tiers: Vec::new(),
                },
            )],
            ..series::PolicyAssignment::default()
        },
        ..SeriesConfig::default()
    }
}

fn point(key: KeyId, value: PointValue<'_>) -> Point<'_> {
    Point { key, value }
}

fn times(series: &Series, device: DeviceNo, range: &RangeQuery) -> Vec<i64> {
    let mut times = Vec::new();
    let each = &mut |row: series::SeriesRow<'_>| {
        times.push(row.ts_ms);
        ControlFlow::Continue(())
    };
    series.range(device, None, range, each).unwrap();
    times
}

#[test]
fn rows_are_found_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let device = DeviceNo(11);
    {
        let (series, _) = Series::open(dir.path(), config()).unwrap();
        let keys = ["temperature", "open", "name", "place"]
            .map(|name| series.get_or_create_key(name).unwrap());
        assert_eq!(series.find_key("open"), Some(keys[1]));
        assert_eq!(series.key_name(keys[2]), Some("name"));
        for second in 0..100_i64 {
            let points = [
                point(keys[0], PointValue::Float(20.0 + second as f64 / 10.0)),
                point(keys[1], PointValue::Bool(second % 2 == 0)),
                point(keys[2], PointValue::Text("a sensor")),
                point(keys[3], PointValue::Json("[1,2]")),
            ];
            series.append(device, second * 1000, &points).unwrap();
        }
        // Late rows, and a second value for the same time and one of its keys.
        series
            .append(device, 500, &[point(keys[0], PointValue::Int(7))])
            .unwrap();
        series
            .append(device, 99_000, &[point(keys[0], PointValue::Float(-1.5))])
            .unwrap();
        assert_eq!(series.stats().rows, 102);
    }
    let (series, report) = Series::open(dir.path(), config()).unwrap();
    assert_eq!(report.keys, 4);
    let keys = ["temperature", "open", "name", "place"]
        .map(|name| series.get_or_create_key(name).unwrap());
    let all = times(&series, device, &RangeQuery::default());
    assert_eq!(all.len(), 101);
    assert_eq!(all[..3], [0, 500, 1000]);
    let newest = RangeQuery {
        from_ms: 0,
        to_ms: 98_500,
        limit: 2,
        order: RowOrder::NewestFirst,
    };
    assert_eq!(times(&series, device, &newest), [98_000, 97_000]);
    let mut latest = Vec::new();
    series
        .latest(device, None, &mut |ts_ms, point| {
            latest.push((ts_ms, point.key, format!("{:?}", point.value)))
        })
        .unwrap();
    latest.sort_by_key(|(_, key, _)| *key);
    assert_eq!(latest.len(), 4);
    assert_eq!(latest[0], (99_000, keys[0], "Float(-1.5)".to_owned()));
    assert_eq!(latest[3], (99_000, keys[3], "Json(\"[1,2]\")".to_owned()));
    let mut last = Vec::new();
    series
        .last(device, keys[0], 2, &mut |ts_ms, point| {
            last.push((ts_ms, point.value.number()))
        })
        .unwrap();
    assert_eq!(last, [(99_000, Some(-1.5)), (98_000, Some(29.8))]);
}

#[test]
fn intervals_are_aggregated() {
    let dir = tempfile::tempdir().unwrap();
    let (series, _) = Series::open(dir.path(), config()).unwrap();
    let key = series.get_or_create_key("power").unwrap();
    let mut rows = Vec::new();
    for device in 0..20_u32 {
        for minute in 0..120_i64 {
            let value = PointValue::Int(minute + i64::from(device));
            rows.push((DeviceNo(device), minute * 60_000, vec![point(key, value)]));
        }
    }
    append_rows(&series, &rows);
    let intervals = Intervals {
        from_ms: 0,
        to_ms: 7_200_000,
        interval_ms: 3_600_000,
        ..Intervals::default()
    };
    let mut found = Vec::new();
    series
        .aggregate(
            &[DeviceNo(3), DeviceNo(9)],
            &[key],
            &intervals,
            &mut |device, _, start, summary| {
                let of = |aggregate| summary.get(aggregate).unwrap().number().unwrap();
                let all = [
                    Aggregate::Count,
                    Aggregate::Min,
                    Aggregate::Max,
                    Aggregate::Avg,
                    Aggregate::First,
                    Aggregate::Last,
                ];
                found.push((device.0, start, all.map(of)));
            },
        )
        .unwrap();
    assert_eq!(
        found,
        [
            (3, 0, [60.0, 3.0, 62.0, 32.5, 3.0, 62.0]),
            (3, 3_600_000, [60.0, 63.0, 122.0, 92.5, 63.0, 122.0]),
            (9, 0, [60.0, 9.0, 68.0, 38.5, 9.0, 68.0]),
            (9, 3_600_000, [60.0, 69.0, 128.0, 98.5, 69.0, 128.0]),
        ]
    );
    let too_many = Intervals {
        interval_ms: 1,
        ..intervals
    };
    assert!(
        series
            .aggregate(&[DeviceNo(3)], &[key], &too_many, &mut |_, _, _, _| {})
            .is_err()
    );
}

/// From memory, from a segment file and with the statistics of its groups.
#[test]
fn aggregates_keep_the_types_of_values() {
    const LARGE: i64 = 9_007_199_254_740_993;
    let dir = tempfile::tempdir().unwrap();
    let (series, _) = Series::open(dir.path(), config()).unwrap();
    let [whole, flag, word, mixed] =
        ["whole", "flag", "word", "mixed"].map(|name| series.get_or_create_key(name).unwrap());
    for row in 0..1000_i64 {
        let points = [
            point(whole, PointValue::Int(LARGE + row)),
            point(flag, PointValue::Bool(row % 2 == 0)),
            point(
                word,
                PointValue::Text(if row == 0 { "begin" } else { "end" }),
            ),
            point(
                mixed,
                match row {
                    0 => PointValue::Json("{\"a\":1}"),
                    999 => PointValue::Text("off"),
                    row => PointValue::Int(row),
                },
            ),
        ];
        series.append(DeviceNo(1), row * 1000, &points).unwrap();
    }
    let get = |key, interval_ms, aggregate: Aggregate| {
        let intervals = Intervals {
            from_ms: 0,
            to_ms: 1_000_000,
            interval_ms,
            ..Intervals::default()
        };
        let mut found = Vec::new();
        let each = &mut |_, _, _, summary: &series::IntervalSummary| {
            found.push(summary.get(aggregate).map(stored_value));
        };
        let read = series.aggregate(&[DeviceNo(1)], &[key], &intervals, each);
        read.unwrap();
        found
    };
    let check = || {
        let all = |key, aggregate| get(key, 1_000_000, aggregate).pop().unwrap();
        use Aggregate::{Avg, First, Last, Max, Min, Sum};
        for (aggregate, expected) in [
            (Min, LARGE),
            (First, LARGE),
            (Max, LARGE + 999),
            (Last, LARGE + 999),
            (Sum, 1000 * LARGE + 499_500),
        ] {
            assert_eq!(all(whole, aggregate), Some(StoredValue::Int(expected)));
        }
        assert_eq!(all(flag, First), Some(StoredValue::Bool(true)));
        assert_eq!(all(flag, Last), Some(StoredValue::Bool(false)));
        assert_eq!(all(flag, Sum), Some(StoredValue::Int(500)));
        assert_eq!(all(flag, Avg), Some(StoredValue::Float(0.5_f64.to_bits())));
        assert_eq!(all(word, First), Some(StoredValue::Text("begin".into())));
        assert_eq!(all(word, Last), Some(StoredValue::Text("end".into())));
        assert_eq!(all(word, Max), None);
        assert_eq!(
            all(mixed, First),
            Some(StoredValue::Json("{\"a\":1}".into()))
        );
        assert_eq!(all(mixed, Last), Some(StoredValue::Text("off".into())));
        assert_eq!(all(mixed, Max), Some(StoredValue::Int(998)));
        // Intervals that divide a group.
        let halves = get(whole, 500_000, Sum);
        let sum = |from: i64, to: i64| (from..to).map(|row| LARGE + row).sum();
        let expected = [sum(0, 500), sum(500, 1000)].map(|sum| Some(StoredValue::Int(sum)));
        assert_eq!(halves, expected);
    };
    check();
    series.flush().unwrap();
    check();
}

#[test]
fn intervals_can_have_any_lengths() {
    let dir = tempfile::tempdir().unwrap();
    let (series, _) = Series::open(dir.path(), config()).unwrap();
    let key = series.get_or_create_key("power").unwrap();
    for hour in 0..72 {
        let points = [point(key, PointValue::Int(1))];
        series
            .append(DeviceNo(1), hour * 3_600_000, &points)
            .unwrap();
    }
    series.flush().unwrap();
    // A day of 23 hours, one of 25 hours and the remainder.
    let hours = [0, 23, 48];
    let intervals = Intervals {
        from_ms: 0,
        to_ms: 72 * 3_600_000,
        starts: hours.map(|hour| hour * 3_600_000).to_vec(),
        ..Intervals::default()
    };
    let mut found = Vec::new();
    let each = &mut |_, _, start, summary: &series::IntervalSummary| {
        found.push((start / 3_600_000, summary.count));
    };
    let read = series.aggregate(&[DeviceNo(1)], &[key], &intervals, each);
    read.unwrap();
    assert_eq!(found, [(0, 23), (23, 25), (48, 24)]);
}

#[test]
fn invalid_rows_are_rejected_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (series, _) = Series::open(dir.path(), SeriesConfig::default()).unwrap();
    let key = series.get_or_create_key("a").unwrap();
    let one = [point(key, PointValue::Int(1))];
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64;
    let append = |ts_ms, points: &[Point<'_>]| series.append(DeviceNo(1), ts_ms, points);
    assert!(matches!(
        append(now_ms + 200_000_000, &one),
        Err(SeriesError::Future { .. })
    ));
    assert!(matches!(
        append(now_ms - 91 * 86_400_000, &one),
        Err(SeriesError::TooOld { .. })
    ));
    assert!(matches!(append(now_ms, &[]), Err(SeriesError::EmptyRow)));
    assert!(matches!(
        append(now_ms, &[point(KeyId(77), PointValue::Int(1))]),
        Err(SeriesError::UnknownKey(77))
    ));
    assert!(matches!(
        append(now_ms, &[one[0]; 1025]),
        Err(SeriesError::RowTooLarge { .. })
    ));
    let text = "x".repeat(130 << 10);
    assert!(matches!(
        append(now_ms, &[point(key, PointValue::Text(&text))]),
        Err(SeriesError::RowTooLarge { .. })
    ));
    // Of a duplicate key, the last value counts.
    append(now_ms, &[one[0], point(key, PointValue::Int(2))]).unwrap();
    let mut found = Vec::new();
    series
        .last(DeviceNo(1), key, 9, &mut |_, point| {
            found.push(point.value.number())
        })
        .unwrap();
    assert_eq!(found, [Some(2.0)]);
    series.close();
    assert!(matches!(append(now_ms, &one), Err(SeriesError::Closed)));
}
