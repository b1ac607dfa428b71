//! Measures the speed of appends and queries, and the disk space of rows: `cargo run --release -p
//! tidegate-series --example series_speed`.
//!
//! `SERIES_DIR` sets the directory (default: a temporary one), `SERIES_ROWS` the number of rows appended per
//! part. `SERIES_LARGE` adds a day of 1,000 devices that report every second.

#![allow(clippy::unwrap_used, reason = "a measurement that fails may panic")]

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use series::{
    DeviceNo, Intervals, KeyId, Point, PointValue, RangeQuery, RetentionPolicy, Series,
    SeriesConfig,
};

const KEYS: [&str; 10] = [
    "temperature",
    "humidity",
    "pressure",
    "voltage",
    "current",
    "power",
    "rpm",
    "state",
    "on",
    "battery",
];

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

/// The ten fields of a message: short decimals, integers, a bool, a word.
fn points<'a>(keys: &[KeyId], step: u64) -> [Point<'a>; 10] {
    let wave = |period: u64, low: f64, places: f64| {
        let phase = (step % period).abs_diff(period / 2) as f64 / period as f64;
        ((low + phase * 20.0) * places).round() / places
    };
    let values = [
        PointValue::Float(wave(1000, 18.0, 10.0)),
        PointValue::Float(wave(3000, 40.0, 10.0)),
        PointValue::Float(wave(9000, 1000.0, 100.0)),
        PointValue::Float(wave(700, 220.0, 10.0)),
        PointValue::Float(wave(500, 1.0, 1000.0)),
        PointValue::Float(wave(400, 300.0, 10.0)),
        PointValue::Int(1500 + (step % 40) as i64),
        PointValue::Text(if step % 500 < 480 { "running" } else { "idle" }),
        PointValue::Bool(step % 1000 < 900),
        PointValue::Int(100 - (step / 5000 % 100) as i64),
    ];
    std::array::from_fn(|at| Point {
        key: keys[at],
        value: values[at],
    })
}

/// CPU time of this process, including its ended threads.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = behind_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

fn resident_mb() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0.0);
    pages * 4096.0 / 1e6
}

fn append(dir: &Path, devices: u32, threads: u32, rows: u64) {
    let dir = dir.join(format!("append-{devices}-{threads}"));
    let (series, _) = Series::open(&dir, config()).unwrap();
    let keys: Vec<KeyId> = KEYS
        .iter()
        .map(|name| series.get_or_create_key(name).unwrap())
        .collect();
    let (cpu_before, started) = (cpu(), Instant::now());
    let work = |thread: u32| {
        let (series, keys) = (series.clone(), keys.clone());
        std::thread::spawn(move || {
            let own: Vec<u32> = (0..devices)
                .filter(|device| device % threads == thread || devices < threads)
                .collect();
            let mut slow: Vec<u32> = Vec::with_capacity(rows as usize / 16);
            for row in 0..rows / u64::from(threads) {
                let device = own[row as usize % own.len()];
                let step = row / own.len() as u64;
                let points = points(&keys, step + u64::from(device));
                let ts_ms = 1_760_000_000_000 + step as i64 * 1000;
                if row % 16 == 0 {
                    let began = Instant::now();
                    series.append(DeviceNo(device), ts_ms, &points).unwrap();
                    slow.push(began.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
                } else {
                    series.append(DeviceNo(device), ts_ms, &points).unwrap();
                }
            }
            slow
        })
    };
    let running: Vec<_> = (0..threads).map(work).collect();
    let mut latencies: Vec<u32> = running
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    let took = started.elapsed();
    latencies.sort_unstable();
    let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
    let resident = resident_mb();
    let appending = cpu() - cpu_before;
    series.flush().unwrap();
    let in_all = cpu() - cpu_before;
    let stats = series.stats();
    let per_row = |used: Duration| used.as_nanos() as f64 / rows as f64;
    println!(
        "{devices:>6} devices, {threads} threads: {:>5.0} k rows/s; CPU per row {:.0} ns, until flushed {:.0} ns; p50 {} ns, p99 {} ns, \
         p99.9 {} us; {resident:.0} MB resident; {:.2} bytes per point on disk, {} files, {} merges, {} stalls",
        rows as f64 / took.as_secs_f64() / 1e3,
        per_row(appending),
        per_row(in_all),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999) / 1000,
        stats.segment_bytes as f64 / stats.segment_points as f64,
        stats.segments,
        stats.merges,
        stats.stalls,
    );
}

const DAY_BEGIN_MS: i64 = 1_760_054_400_000;

/// Disk space of a day with one value per second, for several kinds of values.
fn sizes(dir: &Path) {
    let mut walk = 500_000_i64;
    let mut state = 1_u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    type Make<'a> = Box<dyn FnMut(i64) -> PointValue<'static> + 'a>;
    let kinds: Vec<(&str, Make<'_>)> = vec![
        ("temperature, 1 decimal, changes by 0.1 now and then", {
            let mut tenths = 215_i64;
            let mut random = random;
            Box::new(move |_| {
                tenths += match random() % 20 {
                    0 => 1,
                    1 => -1,
                    _ => 0,
                };
                PointValue::Float(tenths as f64 / 10.0)
            })
        }),
        ("random walk, 2 decimals", {
            let mut random = random;
            Box::new(move |_| {
                walk += (random() % 21) as i64 - 10;
                PointValue::Float(walk as f64 / 100.0)
            })
        }),
        ("noise of 1,000 steps, 1 decimal", {
            let mut random = random;
            Box::new(move |_| PointValue::Float((random() % 1000) as f64 / 10.0))
        }),
        (
            "sine, all digits",
            Box::new(|second| PointValue::Float((second as f64 / 600.0).sin())),
        ),
        ("counter", Box::new(|second| PointValue::Int(second * 7))),
        (
            "switch",
            Box::new(|second| PointValue::Bool(second % 3000 < 1200)),
        ),
        (
            "state, a word of three",
            Box::new(move |second| {
                let _ = random();
                PointValue::Text(["idle", "running", "fault"][(second / 900 % 3) as usize])
            }),
        ),
    ];
    for (at, (name, mut make)) in kinds.into_iter().enumerate() {
        let dir = dir.join(format!("size-{at}"));
        let (series, _) = Series::open(&dir, config()).unwrap();
        let key = series.get_or_create_key("value").unwrap();
        for second in 0..86_400 {
            let points = [Point {
                key,
                value: make(second),
            }];
            series
                .append(DeviceNo(0), DAY_BEGIN_MS + second * 1000, &points)
                .unwrap();
        }
        series.flush().unwrap();
        series.compact().unwrap();
        let stats = series.stats();
        println!(
            "{:>6.3} bytes per point: {name}",
            stats.segment_bytes as f64 / stats.segment_points as f64
        );
    }
}

fn timed(name: &str, mut run: impl FnMut() -> u64) {
    run();
    let started = Instant::now();
    let found = run();
    println!(
        "{:>8.2} ms: {name} ({found} found)",
        started.elapsed().as_secs_f64() * 1e3
    );
}

/// Queries over a day of some devices, with a row of ten points per interval.
fn queries(dir: &Path, devices: u32, every_ms: i64) {
    let dir = dir.join(format!("query-{devices}-{every_ms}"));
    let (series, _) = Series::open(&dir, config()).unwrap();
    let keys: Vec<KeyId> = KEYS
        .iter()
        .map(|name| series.get_or_create_key(name).unwrap())
        .collect();
    for step in 0..86_400_000 / every_ms {
        for device in 0..devices {
            let points = points(&keys, step as u64 + u64::from(device));
            series
                .append(DeviceNo(device), DAY_BEGIN_MS + step * every_ms, &points)
                .unwrap();
        }
    }
    series.flush().unwrap();
    series.compact().unwrap();
    let (from_ms, to_ms) = (DAY_BEGIN_MS, DAY_BEGIN_MS + 86_400_000);
    let all: Vec<DeviceNo> = (0..devices).map(DeviceNo).collect();
    println!(
        "{devices} devices, a row of 10 points every {every_ms} ms for a day, one file per partition:"
    );
    timed("a day of one key of one device", || {
        let mut rows = 0;
        let range = RangeQuery {
            from_ms,
            to_ms,
            ..RangeQuery::default()
        };
        let each = &mut |row: series::SeriesRow<'_>| {
            rows += row.points.len() as u64;
            ControlFlow::Continue(())
        };
        series
            .range(all[0], Some(&keys[..1]), &range, each)
            .unwrap();
        rows
    });
    let intervals = Intervals {
        from_ms,
        to_ms,
        interval_ms: 3_600_000,
        ..Intervals::default()
    };
    timed("one key of all devices by hour", || {
        let mut found = 0;
        series
            .aggregate(&all, &keys[..1], &intervals, &mut |_, _, _, _| found += 1)
            .unwrap();
        found
    });
    timed("the last 100 values of a key", || {
        let mut found = 0;
        series
            .last(all[0], keys[0], 100, &mut |_, _| found += 1)
            .unwrap();
        found
    });
    timed("the latest values of all devices", || {
        let mut found = 0;
        for device in &all {
            series
                .latest(*device, None, &mut |_, _| found += 1)
                .unwrap();
        }
        found
    });
}

fn main() {
    let rows: u64 = std::env::var("SERIES_ROWS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(4_000_000);
    let temporary = tempfile::tempdir().unwrap();
    let dir =
        std::env::var_os("SERIES_DIR").map_or_else(|| temporary.path().to_owned(), Into::into);
    for (devices, threads) in [(1, 1), (10, 2), (100, 2), (10_000, 2)] {
        append(&dir, devices, threads, rows);
    }
    sizes(&dir);
    queries(&dir, 1, 1000);
    queries(&dir, 1000, 60_000);
    if std::env::var_os("SERIES_LARGE").is_some() {
        queries(&dir, 1000, 1000);
    }
}
