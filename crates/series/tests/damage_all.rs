//! Damages every file of a directory in several ways. A start and a check must report the damage, or it must
//! be harmless: all rows are there under their own keys, and no deleted rows. A repair makes a directory that
//! can be opened again.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{StoredValue, config, stored_value};
use series::{
    DeviceNo, Fsync, Point, PointValue, RangeQuery, Series, SeriesConfig, SeriesOpenError,
};

/// Two devices of one partition, one of another.
const DEVICES: u32 = 3;
const ROWS: i64 = 600;

fn settings() -> SeriesConfig {
    SeriesConfig {
        fsync: Fsync::Never,
        wal_segment_bytes: 256 << 10,
        ..config()
    }
}

fn append(series: &Series, rows: std::ops::Range<i64>) {
    let keys =
        ["temperature", "state", "count"].map(|name| series.get_or_create_key(name).unwrap());
    for row in rows {
        for at in 0..DEVICES {
            let points = [
                Point {
                    key: keys[0],
                    value: PointValue::Float(row as f64 / 10.0),
                },
                Point {
                    key: keys[1],
                    value: PointValue::Text(if row % 2 == 0 { "on" } else { "off" }),
                },
                Point {
                    key: keys[2],
                    value: PointValue::Int(row * i64::from(at)),
                },
            ];
            series.append(device(at), row * 1000, &points).unwrap();
        }
    }
}

/// Creates segment files, rows in the log alone, and deletions that apply to both.
fn fill(dir: &Path) {
    let (series, _) = Series::open(dir, settings()).unwrap();
    append(&series, 0..ROWS);
    series.flush().unwrap();
    append(&series, ROWS..2 * ROWS);
    series.delete_device(device(0)).unwrap();
    series.delete_range(device(1), None, 0, 10_000).unwrap();
}

fn device(at: u32) -> DeviceNo {
    let part = usize::from(at == DEVICES - 1);
    let mut of_part = (0..)
        .map(DeviceNo)
        .filter(|device| series::partition_of(*device) == part);
    of_part.nth(at as usize).expect("there are more")
}

type SeriesContents = BTreeMap<(u32, i64), Vec<(String, StoredValue)>>;

/// All rows with the names of their keys; `None` if a read reports damage.
fn contents(series: &Series) -> Option<SeriesContents> {
    let mut contents = SeriesContents::new();
    for at in 0..DEVICES {
        let each = &mut |row: series::SeriesRow<'_>| {
            let points = row.points.iter().map(|point| {
                let name = series.key_name(point.key).unwrap_or("none").to_owned();
                (name, stored_value(point.value))
            });
            contents.insert((at, row.ts_ms), points.collect());
            ControlFlow::Continue(())
        };
        let read = series.range(device(at), None, &RangeQuery::default(), each);
        read.ok()?;
    }
    Some(contents)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => {
                fs::copy(&path, &target).unwrap();
            }
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => files.push(path),
        }
    }
    files.retain(|path| !path.ends_with("lock"));
    files.sort();
    files
}

/// Damaged versions of a file with their descriptions; `None`: the file is removed.
fn damages(bytes: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    // A log file is larger than its content.
    let used = bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |at| at + 1);
    let mut damages = vec![
        ("deleted".to_owned(), None),
        ("emptied".to_owned(), Some(Vec::new())),
        ("cut in half".to_owned(), Some(bytes[..used / 2].to_vec())),
        (
            "cut by 3".to_owned(),
            Some(bytes[..used.saturating_sub(3)].to_vec()),
        ),
    ];
    for at in [0, 9, used / 2, used.saturating_sub(1)] {
        if at < used {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 0x20;
            damages.push((format!("flipped at {at}"), Some(flipped)));
            let mut zeroed = bytes.to_vec();
            zeroed[at..used.min(at + 512)].fill(0);
            damages.push((format!("zeroed at {at}"), Some(zeroed)));
        }
    }
    damages.retain(|(_, damaged)| damaged.as_deref() != Some(bytes));
    damages
}

#[test]
fn damage_is_reported_by_start_and_check_and_can_be_repaired() {
    let origin = tempfile::tempdir().unwrap();
    fill(origin.path());
    let checked = series::check(origin.path(), &settings()).unwrap();
    assert_eq!(checked.problems, [] as [String; 0]);
    assert!(checked.segments > 0 && checked.rows > 0 && checked.log_rows > 0);
    let dir = tempfile::tempdir().unwrap();
    copy(origin.path(), &dir.path().join("sound"));
    let (series, report) = Series::open(&dir.path().join("sound"), settings()).unwrap();
    assert_eq!(report.problems, [] as [String; 0]);
    let expected = contents(&series).unwrap();
    drop(series);
    let (mut reported, mut harmless) = (0, Vec::new());
    for file in files(origin.path()) {
        let bytes = fs::read(&file).unwrap();
        let name = file.strip_prefix(origin.path()).unwrap();
        for (damage, damaged) in damages(&bytes) {
            let what = format!("{} {damage}", name.display());
            let dir = tempfile::tempdir().unwrap();
            copy(origin.path(), dir.path());
            match damaged {
                Some(bytes) => fs::write(dir.path().join(name), bytes).unwrap(),
                None => fs::remove_file(dir.path().join(name)).unwrap(),
            }
            let checked = series::check(dir.path(), &settings());
            let is_seen = checked
                .as_ref()
                .map_or(true, |checked| !checked.problems.is_empty());
            match Series::open(dir.path(), settings()) {
                Err(SeriesOpenError::Version { .. }) => reported += 1,
                Err(error @ SeriesOpenError::Damaged { .. }) => {
                    reported += 1;
                    assert!(is_seen, "{what}: a start says {error}, and a check nothing");
                    repair(dir.path(), &what);
                }
                Err(error) => panic!("{what}: {error}"),
                Ok((series, report)) => match contents(&series) {
                    // A damaged group of a segment file is reported by reads.
                    None => {
                        reported += 1;
                        let deadline = Instant::now() + Duration::from_secs(20);
                        while series.stats().damaged_files == 0 {
                            assert!(
                                Instant::now() < deadline,
                                "{what}: a start does not tell it"
                            );
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        drop(series);
                        assert!(is_seen, "{what}: a query tells it, and a check does not");
                        repair(dir.path(), &what);
                    }
                    Some(found) => {
                        assert!(
                            found == expected,
                            "{what}: other contents and no word of it"
                        );
                        if report.problems.is_empty() {
                            harmless.push(what);
                        } else {
                            reported += 1;
                            assert!(is_seen, "{what}: a check says nothing");
                        }
                    }
                },
            }
        }
    }
    assert!(
        reported > 5 * harmless.len(),
        "{reported} reported, harmless: {harmless:#?}"
    );
}

/// After a repair, the remaining rows are there, and none that never existed.
fn repair(dir: &Path, what: &str) {
    let repaired = series::repair(dir, &settings()).unwrap();
    assert!(!repaired.lost.is_empty(), "{what}: a repair tells nothing");
    let checked = series::check(dir, &settings()).unwrap();
    assert_eq!(checked.problems, [] as [String; 0], "{what}, repaired");
    let (series, _) =
        Series::open(dir, settings()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = contents(&series).unwrap_or_else(|| panic!("{what}: damaged after a repair"));
    for ((device, ts_ms), points) in &found {
        for (name, value) in points {
            let row = ts_ms / 1000;
            let expected = match name.as_str() {
                "temperature" => StoredValue::Float((row as f64 / 10.0).to_bits()),
                "state" => StoredValue::Text(if row % 2 == 0 { "on" } else { "off" }.to_owned()),
                "count" => StoredValue::Int(row * i64::from(*device)),
                lost => {
                    assert!(lost.starts_with("lost-key-"), "{what}: {lost}");
                    continue;
                }
            };
            assert_eq!(*value, expected, "{what}: {name} of device {device}");
        }
    }
    // The store remains usable, and gives new keys unused numbers.
    append(&series, 2 * ROWS..2 * ROWS + 5);
    drop(series);
    let (series, report) = Series::open(dir, settings()).unwrap();
    assert_eq!(report.problems, [] as [String; 0], "{what}");
    assert!(contents(&series).is_some(), "{what}");
}

/// A lost dictionary must not give the numbers of old keys to new ones.
#[test]
fn numbers_of_keys_are_never_given_again() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    let path = dir.path().join("keys");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let rejected = Series::open(dir.path(), settings())
        .map(|_| ())
        .unwrap_err();
    let text = rejected.to_string();
    assert!(
        text.contains("keys") && text.contains("store repair"),
        "{text}"
    );
    series::repair(dir.path(), &settings()).unwrap();
    let (series, _) = Series::open(dir.path(), settings()).unwrap();
    assert!(series.get_or_create_key("new").unwrap().0 >= 3);
    assert_eq!(series.key_name(series::KeyId(2)), Some("lost-key-2"));
}

/// A deletion keeps the number of its last row, although a repair has found that the row is lost.
#[test]
fn a_deletion_of_a_lost_row_is_no_further_loss() {
    let dir = tempfile::tempdir().unwrap();
    let (series, _) = Series::open(dir.path(), settings()).unwrap();
    append(&series, 0..1);
    series.delete_device(device(DEVICES - 1)).unwrap();
    drop(series);
    for log in files(&dir.path().join("wal")) {
        fs::remove_file(log).unwrap();
    }
    series::repair(dir.path(), &settings()).unwrap();
    let (series, _) = Series::open(dir.path(), settings()).unwrap();
    series.sync().unwrap();
    drop(series);
    let checked = series::check(dir.path(), &settings()).unwrap();
    assert_eq!(checked.problems, [] as [String; 0]);
}

/// After a power failure, marks of data that was not synced prove nothing.
#[test]
fn another_boot_causes_no_false_alarm() {
    let dir = tempfile::tempdir().unwrap();
    let (series, _) = Series::open(dir.path(), settings()).unwrap();
    append(&series, 0..50);
    series.sync().unwrap();
    append(&series, 50..100);
    drop(series);
    let path = dir.path().join("marks");
    let mut bytes = fs::read(&path).unwrap();
    bytes[16..52].fill(b'9');
    let crc = crc32c::crc32c(&bytes[12..64]).to_le_bytes();
    bytes[8..12].copy_from_slice(&crc);
    fs::write(&path, &bytes).unwrap();
    // Simulates that the pages of the last rows were not written.
    let log = files(&dir.path().join("wal")).remove(0);
    let bytes = fs::read(&log).unwrap();
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    let mut torn = bytes.clone();
    torn[used - 40..].fill(0);
    fs::write(&log, &torn).unwrap();
    let (series, report) = Series::open(dir.path(), settings()).unwrap();
    assert_eq!(report.problems, [] as [String; 0]);
    assert!(contents(&series).unwrap().len() > 50 * DEVICES as usize);
    drop(series);
    // Synced rows must be there.
    fs::remove_file(&log).unwrap();
    assert!(matches!(
        Series::open(dir.path(), settings()),
        Err(SeriesOpenError::Damaged { .. })
    ));
}
