//! Old rows are removed or downsampled according to the policy of their device.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::ops::ControlFlow;
use std::time::{SystemTime, UNIX_EPOCH};

use common::{StoredValue, config, stored_value};
use series::{
    Aggregate, DeviceNo, DownsamplingTier, IntervalSummary, Intervals, KeyId, Point, PointValue,
    PolicyAssignment, PolicyResolver, RangeQuery, RetentionPolicy, RowOrder, Series, SeriesConfig,
};

const HOUR_MS: i64 = 3_600_000;
const EXPIRES: DeviceNo = DeviceNo(8);
const STAYS: DeviceNo = DeviceNo(16);
const SHRINKS: DeviceNo = DeviceNo(24);
const NUMBER: KeyId = KeyId(0);
const WORD: KeyId = KeyId(1);

fn open(dir: &std::path::Path) -> Series {
    let tier = |after_ms, interval_ms| DownsamplingTier {
        after_ms,
        interval_ms,
    };
    let keep = |retention_ms, tiers| RetentionPolicy {
        retention_ms,
        tiers,
    };
    let policies = vec![
        (0, keep(None, Vec::new())),
        (1, keep(Some(5 * HOUR_MS), Vec::new())),
        (
            2,
            keep(
                None,
                vec![tier(2 * HOUR_MS, 600_000), tier(20 * HOUR_MS, HOUR_MS)],
            ),
        ),
    ];
    let (series, _) = Series::open(
        dir,
        SeriesConfig {
            assignment: PolicyAssignment {
                policies,
                policy_of: Some(PolicyResolver::new(|device| match device {
                    EXPIRES => 1,
                    SHRINKS => 2,
                    _ => 0,
                })),
                revision: 0,
            },
            ..config()
        },
    )
    .unwrap();
    for name in ["number", "word"] {
        series.get_or_create_key(name).unwrap();
    }
    series
}

fn rows(series: &Series, device: DeviceNo) -> Vec<(i64, Vec<StoredValue>)> {
    let mut rows = Vec::new();
    let each = &mut |row: series::SeriesRow<'_>| {
        rows.push((
            row.ts_ms,
            row.points
                .iter()
                .map(|point| stored_value(point.value))
                .collect(),
        ));
        ControlFlow::Continue(())
    };
    series
        .range(device, None, &RangeQuery::default(), each)
        .unwrap();
    rows
}

fn sums(series: &Series, device: DeviceNo, begin: i64) -> Vec<(i64, IntervalSummary)> {
    let intervals = Intervals {
        from_ms: begin,
        to_ms: begin + HOUR_MS,
        interval_ms: HOUR_MS / 2,
        ..Intervals::default()
    };
    let mut sums = Vec::new();
    series
        .aggregate(
            &[device],
            &[NUMBER],
            &intervals,
            &mut |_, _, start, summary| sums.push((start, summary.clone())),
        )
        .unwrap();
    sums
}

#[test]
fn old_rows_are_removed_or_downsampled() {
    let dir = tempfile::tempdir().unwrap();
    let series = open(dir.path());
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64;
    let begin = now_ms / HOUR_MS * HOUR_MS - 10 * HOUR_MS;
    let append = |device, ts_ms, number| {
        let points = [
            Point {
                key: NUMBER,
                value: PointValue::Float(number),
            },
            Point {
                key: WORD,
                value: PointValue::Text(if number < 30.0 { "low" } else { "high" }),
            },
        ];
        series.append(device, ts_ms, &points).unwrap();
    };
    for minute in 0..60 {
        for device in [EXPIRES, STAYS, SHRINKS] {
            append(device, begin + minute * 60_000, minute as f64);
        }
    }
    // Young rows stay, whatever the policy.
    append(EXPIRES, now_ms, 7.0);
    let before = sums(&series, SHRINKS, begin);
    series.flush().unwrap();
    series.compact().unwrap();

    assert_eq!(rows(&series, EXPIRES).len(), 1);
    assert_eq!(rows(&series, STAYS).len(), 60);
    let shrunk = rows(&series, SHRINKS);
    assert_eq!(shrunk.len(), 6);
    assert_eq!(
        shrunk[0],
        (
            begin,
            vec![
                StoredValue::Float(4.5_f64.to_bits()),
                StoredValue::Text("low".to_owned())
            ]
        )
    );
    assert_eq!(
        shrunk[5],
        (
            begin + 3_000_000,
            vec![
                StoredValue::Float(54.5_f64.to_bits()),
                StoredValue::Text("high".to_owned())
            ]
        )
    );
    let check_sums = |series: &Series, late: u64| {
        let after = sums(series, SHRINKS, begin);
        assert_eq!(after.len(), before.len());
        for ((start, before), (of, after)) in before.iter().zip(&after) {
            let more = if *start == begin { late } else { 0 };
            assert_eq!((start, before.count + more), (of, after.count));
            assert_eq!((before.min, before.max), (after.min, after.max));
            for aggregate in [Aggregate::First, Aggregate::Last] {
                assert_eq!(before.get(aggregate), after.get(aggregate));
            }
            assert_eq!(before.sum.float() + more as f64 * 7.0, after.sum.float());
        }
    };
    check_sums(&series, 0);
    let mut latest = Vec::new();
    series
        .latest(SHRINKS, Some(&[NUMBER]), &mut |_, point| {
            latest.push(point.value.number())
        })
        .unwrap();
    assert_eq!(latest, [Some(59.0)]);

    // A late row counts, before it is merged and after.
    append(SHRINKS, begin + 61_500, 7.0);
    check_sums(&series, 1);
    series.flush().unwrap();
    check_sums(&series, 1);
    series.compact().unwrap();
    check_sums(&series, 1);
    assert_eq!(rows(&series, SHRINKS).len(), 6);
    drop(series);

    let series = open(dir.path());
    series.compact().unwrap();
    check_sums(&series, 1);
    let newest = RangeQuery {
        limit: 1,
        order: RowOrder::NewestFirst,
        ..RangeQuery::default()
    };
    let mut found = Vec::new();
    let each = &mut |row: series::SeriesRow<'_>| {
        found.push(row.ts_ms);
        ControlFlow::Continue(())
    };
    series.range(SHRINKS, None, &newest, each).unwrap();
    assert_eq!(found, [begin + 3_000_000]);

    // When no policy keeps a window, its files are removed without being read.
    let day = RetentionPolicy {
        retention_ms: Some(HOUR_MS),
        tiers: Vec::new(),
    };
    series
        .set_policies(PolicyAssignment {
            policies: vec![(0, day)],
            ..PolicyAssignment::default()
        })
        .unwrap();
    series.compact().unwrap();
    assert!(rows(&series, STAYS).is_empty() && rows(&series, SHRINKS).is_empty());
    assert!(series.stats().expired_files > 0);
}

#[test]
fn a_changed_policy_assignment_applies_to_existing_files() {
    let dir = tempfile::tempdir().unwrap();
    let series = open(dir.path());
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64;
    let point = Point {
        key: NUMBER,
        value: PointValue::Int(1),
    };
    for device in [EXPIRES, STAYS, SHRINKS] {
        series
            .append(device, now_ms - 10 * HOUR_MS, &[point])
            .unwrap();
    }
    series.flush().unwrap();
    series.compact().unwrap();
    assert_eq!(rows(&series, EXPIRES).len(), 0);
    assert_eq!(rows(&series, STAYS).len(), 1);

    let keep = |retention_ms| RetentionPolicy {
        retention_ms,
        tiers: Vec::new(),
    };
    // The same policies with the short one assigned to another device.
    let assignment = |short: DeviceNo, mark| PolicyAssignment {
        policies: vec![(0, keep(None)), (1, keep(Some(5 * HOUR_MS)))],
        policy_of: Some(PolicyResolver::new(move |device| u8::from(device == short))),
        revision: mark,
    };
    series.set_policies(assignment(EXPIRES, 1)).unwrap();
    series.compact().unwrap();
    assert_eq!(rows(&series, STAYS).len(), 1);
    series.set_policies(assignment(STAYS, 2)).unwrap();
    series.compact().unwrap();
    assert_eq!(rows(&series, STAYS).len(), 0);
    assert_eq!(rows(&series, SHRINKS).len(), 1);
}
