//! Files with changed bits, truncated files and missing files: the damage is reported or harmless, and never
//! causes wrong values.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::{Random, config};
use series::{
    DeviceNo, Fsync, KeyId, Point, PointValue, RangeQuery, Series, SeriesConfig, SeriesError,
    SeriesOpenError,
};

const ROWS: i64 = 3000;

fn always() -> SeriesConfig {
    SeriesConfig {
        fsync: Fsync::Never,
        ..config()
    }
}

fn value(row: i64) -> f64 {
    (row * row % 1000) as f64 / 10.0
}

/// Devices of one partition, whose rows follow each other in one log.
fn devices() -> [DeviceNo; 3] {
    let mut of_part = (0..)
        .map(DeviceNo)
        .filter(|device| series::partition_of(*device) == 0);
    [(); 3].map(|()| of_part.next().expect("there are more"))
}

fn fill(dir: &Path, is_flushed: bool) {
    let (series, _) = Series::open(dir, always()).unwrap();
    let key = series.get_or_create_key("value").unwrap();
    let devices = devices();
    for row in 0..ROWS {
        let points = [Point {
            key,
            value: PointValue::Float(value(row)),
        }];
        series
            .append(devices[(row % 3) as usize], row, &points)
            .unwrap();
        if row % 100 == 0 {
            // Later rows record that the earlier ones are on disk.
            series.sync().unwrap();
        }
    }
    if is_flushed {
        series.flush().unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target)
        } else {
            let _ = fs::copy(&path, &target).unwrap();
        }
    }
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|of| of == extension));
    files.sort();
    files
}

/// The number of rows read; `None` if a read reports damage. Values read must be right.
fn read(series: &Series) -> Option<i64> {
    let mut rows = 0;
    for device in devices() {
        let each = &mut |row: series::SeriesRow<'_>| {
            assert_eq!(
                row.points,
                [Point {
                    key: KeyId(0),
                    value: PointValue::Float(value(row.ts_ms))
                }]
            );
            rows += 1;
            ControlFlow::Continue(())
        };
        match series.range(device, None, &RangeQuery::default(), each) {
            Ok(()) => {}
            Err(SeriesError::Damaged { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
    }
    Some(rows)
}

#[test]
fn changed_bits_in_the_log_are_reported_or_truncated() {
    let origin = tempfile::tempdir().unwrap();
    fill(origin.path(), false);
    let mut random = Random::new(5);
    let (mut reported, mut cut) = (0, 0);
    for _ in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        copy(origin.path(), dir.path());
        let path = files(&dir.path().join("wal"), "wal").swap_remove(0);
        let mut bytes = fs::read(&path).unwrap();
        let used = bytes.iter().rposition(|&byte| byte != 0).unwrap() as u64;
        bytes[random.below(used) as usize] ^= 1 << random.below(8);
        fs::write(&path, &bytes).unwrap();
        match Series::open(dir.path(), always()) {
            Err(SeriesOpenError::Damaged { .. }) => {
                reported += 1;
                assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is changed");
            }
            Err(error) => panic!("{error}"),
            Ok((series, report)) => {
                cut += report.truncations.len();
                let rows = read(&series).unwrap();
                // Only rows that no later record proves to have been on disk may be lost.
                assert!(rows >= ROWS - 210, "{rows}");
                drop(series);
                // A truncation is not reported as damage the next time.
                let (series, report) = Series::open(dir.path(), always()).unwrap();
                assert!(report.truncations.is_empty());
                assert_eq!(read(&series), Some(rows));
            }
        }
    }
    assert!(reported > 20, "{reported} reported, {cut} cut");
}

#[test]
fn a_truncated_log_keeps_complete_rows() {
    let origin = tempfile::tempdir().unwrap();
    fill(origin.path(), false);
    let path = files(&origin.path().join("wal"), "wal").swap_remove(0);
    let bytes = fs::read(&path).unwrap();
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    for missing in [1, 10, 100, used / 2] {
        let mut torn = bytes.clone();
        torn[used + 1 - missing..].fill(0);
        fs::write(&path, &torn).unwrap();
        let dir = tempfile::tempdir().unwrap();
        copy(origin.path(), dir.path());
        assert!(matches!(
            Series::open(dir.path(), always()),
            Err(SeriesOpenError::Damaged { .. })
        ));
        // Nothing records that the rows existed, as after a power failure.
        fs::remove_file(dir.path().join("marks")).unwrap();
        let (series, report) = Series::open(dir.path(), always()).unwrap();
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        let rows = read(&series).unwrap();
        assert!(rows < ROWS && rows > ROWS / 3, "{rows}");
        // Appends continue behind the truncation.
        let points = [Point {
            key: KeyId(0),
            value: PointValue::Float(value(ROWS)),
        }];
        series.append(devices()[0], ROWS, &points).unwrap();
        drop(series);
        let (series, _) = Series::open(dir.path(), always()).unwrap();
        assert_eq!(read(&series), Some(rows + 1));
    }
}

#[test]
fn damaged_segment_files_are_reported() {
    let origin = tempfile::tempdir().unwrap();
    fill(origin.path(), true);
    let mut random = Random::new(6);
    for round in 0..80 {
        let dir = tempfile::tempdir().unwrap();
        copy(origin.path(), dir.path());
        let path = files(&dir.path().join("segments"), "seg").swap_remove(0);
        let mut bytes = fs::read(&path).unwrap();
        let at = random.below(bytes.len() as u64) as usize;
        match round % 4 {
            0 => bytes.truncate(at),
            _ => bytes[at] ^= 1 << random.below(8),
        }
        fs::write(&path, &bytes).unwrap();
        match Series::open(dir.path(), always()) {
            Err(SeriesOpenError::Damaged { .. }) => {}
            Err(error) => panic!("{error}"),
            // The magic number of the first bytes is only for people who examine files.
            Ok((series, _)) => assert!(read(&series).is_none_or(|rows| rows == ROWS)),
        }
    }
}
