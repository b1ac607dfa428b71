//! Tests on a full file system: a small tmpfs, which only root may mount.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::config;
use series::{
    DeviceNo, KeyId, Point, PointValue, RangeQuery, Series, SeriesConfig, SeriesError, SeriesHealth,
};

/// Unmounted when dropped.
struct MountedDirectory<'a>(&'a Path);

impl Drop for MountedDirectory<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn mount(dir: &Path) -> Option<MountedDirectory<'_>> {
    let mut command = Command::new("mount");
    command
        .args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"])
        .arg(dir);
    let output = command.output();
    output
        .is_ok_and(|output| output.status.success())
        .then_some(MountedDirectory(dir))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

/// Appends rows until one is rejected or `most` are appended. Returns the next row number and the error.
fn append(series: &Series, from: i64, most: i64) -> (i64, Option<SeriesError>) {
    for number in from..from + most {
        // Hard to compress, so that a small disk is full soon.
        let noise = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let points = [0, 1, 2].map(|key| Point {
            key: KeyId(key),
            value: PointValue::Int(noise.rotate_left(key * 20) as i64),
        });
        if let Err(error) = series.append(DeviceNo((number % 50) as u32), number, &points) {
            return (number, Some(error));
        }
    }
    (from + most, None)
}

fn count(series: &Series) -> i64 {
    let mut rows = 0;
    for device in 0..50 {
        let each = &mut |_: series::SeriesRow<'_>| {
            rows += 1;
            ControlFlow::Continue(())
        };
        series
            .range(DeviceNo(device), None, &RangeQuery::default(), each)
            .unwrap();
    }
    rows
}

#[test]
fn a_full_disk_is_reported_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = mount(dir.path()) else {
        eprintln!("skipped: a tmpfs cannot be mounted here (that needs root)");
        return;
    };
    let series_dir = dir.path().join("series");
    let (series, _) = Series::open(&series_dir, config()).unwrap();
    for name in ["a", "b", "c"] {
        series.get_or_create_key(name).unwrap();
    }
    let (appended, error) = append(&series, 0, 10_000);
    assert!(error.is_none());

    // A file that takes nearly all of the space.
    let filler = dir.path().join("filler");
    let _ = fs::write(&filler, vec![1; 21 << 20]);
    let mut next = appended;
    let until = Instant::now() + Duration::from_secs(60);
    let error = loop {
        let (appended, error) = append(&series, next, 10_000);
        next = appended;
        if let Some(error) = error {
            break error;
        }
        assert!(Instant::now() < until, "it takes more than the disk has");
    };
    assert!(
        matches!(
            error,
            SeriesError::Io { .. } | SeriesError::Full(_) | SeriesError::Busy
        ),
        "{error}"
    );
    // Accepted rows are there, wherever they are stored.
    assert_eq!(count(&series), next);

    fs::remove_file(&filler).unwrap();
    wait_until("it accepts rows again", || {
        let (appended, error) = append(&series, next, 100);
        next = appended;
        error.is_none()
    });
    wait_until("it is well", || series.health() == SeriesHealth::Ok);
    series.flush().unwrap();
    assert_eq!(count(&series), next);
    drop(series);
    let (series, _) = Series::open(
        &series_dir,
        SeriesConfig {
            min_free_bytes: 1 << 40,
            ..config()
        },
    )
    .unwrap();
    assert_eq!(count(&series), next);
    // The limit on free space is respected too.
    wait_until("it is full by its bound", || {
        series.health() == SeriesHealth::Full
    });
    assert!(matches!(
        append(&series, next, 1).1,
        Some(SeriesError::Full(_))
    ));
}
