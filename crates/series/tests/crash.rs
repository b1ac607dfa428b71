//! Kills an appending process at random moments. Every row that it reported as appended must be there, and
//! rows of a partition must have no gaps. `TIDEGATE_SERIES_ROUNDS` sets the number of rounds,
//! `TIDEGATE_SERIES_SEED` the random seed.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Random, config, number_from};
use series::{DeviceNo, Fsync, KeyId, Point, PointValue, RangeQuery, Series, SeriesConfig};

const CHILD_DIR: &str = "TIDEGATE_SERIES_CHILD_DIR";
const CHILD_SEED: &str = "TIDEGATE_SERIES_CHILD_SEED";
const DEVICES: i64 = 40;
/// The child reports its progress at this interval of rows.
const REPORT_INTERVAL: i64 = 50;

fn small(seed: u64) -> SeriesConfig {
    SeriesConfig {
        fsync: [
            Fsync::Every(Duration::from_millis(2)),
            Fsync::Never,
            Fsync::Always,
        ][(seed % 3) as usize],
        ..config()
    }
}

fn points(number: i64) -> [Point<'static>; 3] {
    let value = |key, value| Point {
        key: KeyId(key),
        value,
    };
    let text = if number % 7 == 0 { "a text" } else { "" };
    [
        value(0, PointValue::Int(number)),
        value(1, PointValue::Float(number as f64 / 10.0)),
        value(2, PointValue::Text(text)),
    ]
}

fn device_of(number: i64) -> DeviceNo {
    DeviceNo((number % DEVICES) as u32)
}

/// The numbers of a device's rows; each is checked against what was appended.
fn numbers(series: &Series, device: DeviceNo) -> Vec<i64> {
    let mut numbers = Vec::new();
    let each = &mut |row: series::SeriesRow<'_>| {
        assert_eq!(row.points, points(row.ts_ms));
        numbers.push(row.ts_ms);
        ControlFlow::Continue(())
    };
    series
        .range(device, None, &RangeQuery::default(), each)
        .unwrap();
    numbers
}

/// The number of rows. The rows must be all up to some number, because one thread appended them.
fn check(series: &Series, reported: i64) -> i64 {
    let mut all = Vec::new();
    for device in 0..DEVICES {
        let numbers = numbers(series, DeviceNo(device as u32));
        // The rows of each device have no gap.
        assert!(
            numbers
                .iter()
                .enumerate()
                .all(|(at, number)| *number == device + at as i64 * DEVICES)
        );
        all.extend(numbers);
    }
    all.sort_unstable();
    let len = all.len() as i64;
    // The process was killed, not the machine: no row is missing in between.
    assert_eq!(all.last().map_or(0, |last| last + 1), len);
    assert!(len >= reported, "{len} rows found, {reported} reported");
    len
}

#[test]
#[ignore = "the child process that another test kills"]
fn child() {
    let dir = std::env::var(CHILD_DIR).expect("started by run_and_kill");
    let seed = number_from(CHILD_SEED).unwrap();
    let (series, _) = Series::open(Path::new(&dir), small(seed)).unwrap();
    for name in ["number", "float", "text"] {
        series.get_or_create_key(name).unwrap();
    }
    let mut number: i64 = (0..DEVICES)
        .map(|device| numbers(&series, DeviceNo(device as u32)).len() as i64)
        .sum();
    let mut out = std::io::stdout().lock();
    writeln!(out, "started").unwrap();
    let compacting = series.clone();
    std::thread::spawn(move || {
        loop {
            if compacting.compact().is_err() {
                return;
            }
        }
    });
    loop {
        // Waiting for each sync would leave few rows.
        let ticket = series
            .submit(device_of(number), number, &points(number))
            .unwrap();
        number += 1;
        if number % REPORT_INTERVAL == 0 {
            series.wait_until_durable(ticket).unwrap();
            writeln!(out, "appended {number}").unwrap();
            out.flush().unwrap();
        }
    }
}

/// Runs the child for a while and kills it; returns the number of rows that it reported.
fn run_and_kill(dir: &Path, seed: u64, random: &mut Random) -> i64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // Some children are killed while they open the store.
    let waits_for_start = random.below(4) > 0;
    while waits_for_start && !line.ends_with("started\n") {
        line.clear();
        assert!(
            out.read_line(&mut line).unwrap() > 0,
            "the child did not start"
        );
    }
    // The child writes more than a pipe holds: reading continues until the kill.
    let lines = random.below(400);
    let mut reported = 0;
    for _ in 0..lines {
        line.clear();
        if !waits_for_start || out.read_line(&mut line).unwrap() == 0 {
            break;
        }
        reported = line
            .trim()
            .strip_prefix("appended ")
            .and_then(|text| text.parse().ok())
            .unwrap_or(reported);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for line in out.lines().map_while(Result::ok) {
        reported = line
            .strip_prefix("appended ")
            .and_then(|text| text.parse().ok())
            .unwrap_or(reported);
    }
    reported
}

#[test]
fn appended_rows_survive_kill_9() {
    let rounds = number_from("TIDEGATE_SERIES_ROUNDS").unwrap_or(18);
    let first_seed = number_from("TIDEGATE_SERIES_SEED").unwrap_or(1);
    let mut rows = 0;
    for round in 0..rounds.div_ceil(6) {
        let seed = first_seed + round;
        eprintln!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let mut before = 0;
        for _ in 0..6 {
            let reported = run_and_kill(dir.path(), seed, &mut random);
            let (series, report) = Series::open(dir.path(), small(seed)).unwrap();
            let found = check(&series, reported.max(before));
            assert!(report.recovered_rows as i64 <= found);
            before = found;
        }
        rows += before;
    }
    eprintln!("{rounds} kills, {rows} rows");
}
