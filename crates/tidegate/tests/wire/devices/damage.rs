//! Damage of every file of a data directory: `tidegate store check` tells of it, and a node does not start on it without a
//! word. Which damages of the keyed state there are in detail is tested in the crate of the store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{api, connect, get, with_token};
use crate::support::{
    Connect, Node, Publish, Raw, Subscribe, eventually, external, temporary_directory,
};

/// One sink keeps its rows in its disk queue, the other makes dead letters of them.
const CONFIG: &str = r#"
[store]
segment_bytes = "1MiB"

[telemetry]
mailboxes = 1
mailbox_bytes = "64KiB"

[[connector]]
name = "nowhere"
type = "http"
url = "http://127.0.0.1:9/"

[[sink]]
name = "waiting"
connector = "nowhere"
queue = { disk = {} }

[[sink]]
name = "failing"
connector = "nowhere"
retry = { max_attempts = 1 }

[[rule]]
name = "rows"
sql = 'SELECT payload FROM "row/#"'
actions = [{ kind = "sink", sink = "waiting" }, { kind = "sink", sink = "failing" }]
"#;
const QUEUED: u16 = 1_500;
const WAL_BLOCK_BYTES: usize = 256 << 10;

/// A part of a data directory.
struct DataPart {
    /// Files below this directory belong to it.
    directory: &'static str,
    /// Files whose damage changes nothing.
    is_skipped: fn(&Path) -> bool,
    /// How many files it has at least, so that the test does not pass without any.
    min_files: usize,
}

const PARTS: [DataPart; 4] = [
    DataPart {
        directory: "store",
        is_skipped: |path| is_lock(path) || is_old_version(path) || is_one_of_many(path),
        min_files: 10,
    },
    DataPart {
        directory: "telemetry",
        is_skipped: is_lock,
        min_files: 5,
    },
    DataPart {
        directory: "mailboxes",
        is_skipped: is_empty_half,
        min_files: 1,
    },
    DataPart {
        directory: "sinks",
        is_skipped: is_lock,
        min_files: 6,
    },
];

/// A half of a mailbox in which nothing waits, as after a stop: there is nothing to lose in it. Those in which messages wait are
/// damaged in a test of the crate of the devices.
fn is_empty_half(path: &Path) -> bool {
    let used = fs::read(path).unwrap();
    !path.ends_with("marks") && used[16..24] == [0; 8]
}

fn is_lock(path: &Path) -> bool {
    path.ends_with("lock")
}

/// A list of tables that another has replaced.
fn is_old_version(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix('v')?.parse::<u64>().ok());
    let Some(number) = number else {
        return false;
    };
    let current = fs::read(path.with_file_name("current")).unwrap();
    u64::from_le_bytes(*current.first_chunk().unwrap()) != number
}

/// A keyspace like others.
fn is_one_of_many(path: &Path) -> bool {
    let mut names = path.components().map(|name| name.as_os_str());
    names.by_ref().any(|name| name == "keyspaces")
        && !["0", "1"].iter().any(|id| {
            path.to_string_lossy()
                .contains(&format!("/keyspaces/{id}/"))
        })
}

type Damage = (&'static str, fn(&[u8]) -> Option<Vec<u8>>);

fn flipped(bytes: &[u8], at: usize) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    *bytes.get_mut(at)? ^= 0x10;
    Some(bytes)
}

fn zeroed(bytes: &[u8], at: usize) -> Option<Vec<u8>> {
    let mut zeroed = bytes.to_vec();
    let end = bytes.len().min(at + 512);
    zeroed.get_mut(at..end)?.fill(0);
    Some(zeroed)
}

const DAMAGES: [Damage; 9] = [
    ("a bit of the head", |bytes| {
        flipped(bytes, bytes.len().min(20) / 2)
    }),
    ("a bit in the middle", |bytes| {
        flipped(bytes, bytes.len() / 2)
    }),
    ("a bit of the last byte", |bytes| {
        flipped(bytes, bytes.len().saturating_sub(1))
    }),
    ("zeros at the head", |bytes| zeroed(bytes, 0)),
    ("zeros in the middle", |bytes| {
        zeroed(bytes, bytes.len() / 2)
    }),
    ("zeros at the end", |bytes| {
        zeroed(bytes, bytes.len().saturating_sub(512))
    }),
    ("half of it", |bytes| {
        Some(bytes[..bytes.len() / 2].to_vec())
    }),
    ("without three bytes", |bytes| {
        Some(bytes[..bytes.len().saturating_sub(3)].to_vec())
    }),
    ("removed", |_| None),
];

/// What a file contains after a damage, `None` if it is gone; nothing if the damage changes nothing.
fn after(damage: &Damage, path: &Path, bytes: &[u8]) -> Option<Option<Vec<u8>>> {
    // The log of the telemetry is allocated in blocks, one for each of its parts: what is behind the last record of a block belongs
    // to nobody. The first block is damaged.
    let is_allocated = path.extension().is_some_and(|end| end == "wal");
    let end = match is_allocated {
        true => {
            let block = &bytes[..bytes.len().min(WAL_BLOCK_BYTES)];
            block.iter().rposition(|&byte| byte != 0)? + 1
        }
        false => bytes.len(),
    };
    let (written, behind) = bytes.split_at(end);
    let mut changed = damage.1(written);
    if let Some(changed) = &mut changed
        && changed.len() == written.len()
    {
        changed.extend_from_slice(behind);
    }
    (changed.as_deref() != Some(bytes)).then_some(changed)
}

fn apply(path: &Path, changed: Option<&[u8]>) {
    match changed {
        Some(changed) => fs::write(path, changed).unwrap(),
        None => fs::remove_file(path).unwrap(),
    }
}

/// A data directory of a node that has stopped.
fn prepare() -> PathBuf {
    let node = Node::start_with_config(&["--shards", "2"], CONFIG);
    let user = json!({"password": "correct horse battery"});
    let (status, answer) = api(&node, "PUT", "users/ada", &user);
    assert!(status < 300, "{answer}");
    product(&node, "plain");
    for nth in 0..20 {
        with_token(&node, &format!("device-{nth}"), "plain", json!({}));
    }
    let session = Connect::new(4, "away").persistent();
    let mut away = Raw::connect(&node, &session);
    away.subscribe_for_codes(&Subscribe::new(1).filter("to/away", 1));
    away.disconnect();
    let mut publisher = Raw::client(&node, 4);
    for id in 1..=QUEUED {
        publisher.publish_qos1("to/away", vec![id as u8; 1000], id);
    }
    publisher.send_publish(&Publish::new("kept", "retained").retain());
    for nth in 0..20 {
        publisher.publish_qos1("row/1", format!("row {nth}"), 1);
    }
    publisher.ping();
    publisher.disconnect();
    let mut device = connect(&node, "device-1");
    for nth in 0..200 {
        let row = format!("{{\"value\": {nth}, \"text\": \"row {nth}\"}}");
        device.publish_qos1("v1/devices/me/telemetry", row, 1);
    }
    device.disconnect();
    // Its telemetry is deleted with it, so that the list of deletions has an entry.
    let mut removed = connect(&node, "device-2");
    removed.publish_qos1("v1/devices/me/telemetry", "{\"value\": 1}", 1);
    removed.disconnect();
    let (status, answer) = api(&node, "DELETE", "devices/device-2", &json!(null));
    assert_eq!(status, 204, "{answer}");
    eventually("rows become dead letters", || {
        let letters = get(&node, "sinks/failing/dead-letters?limit=50");
        letters["data"].as_array().map(Vec::len) == Some(20)
    });
    assert!(node.terminate(Duration::from_secs(30)).success());
    let kept = temporary_directory();
    copy(node.data_dir(), &kept);
    kept
}

fn product(node: &Node, id: &str) {
    let (status, answer) = api(node, "POST", "products", &json!({"id": id}));
    assert_eq!(status, 201, "{answer}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
    found.sort();
}

/// Without the zeros that a new journal has behind its last batch.
fn trim_journals(all: &[PathBuf]) {
    for path in all
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "jnl"))
    {
        let bytes = fs::read(path).unwrap();
        let end = bytes
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        fs::write(path, &bytes[..end]).unwrap();
    }
}

/// Whether all is well, and what was said.
fn check(data_dir: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command
        .args(["store", "check", "--data-dir"])
        .arg(data_dir)
        .output()
        .unwrap();
    let output_text = [output.stdout, output.stderr].concat();
    let output_text = String::from_utf8(output_text).unwrap();
    assert!(!output_text.contains("panicked"), "{output_text}");
    (output.status.success(), output_text)
}

#[test]
fn damage_of_every_file_is_found() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let data_dir = prepare();
    let (is_sound, output_text) = check(&data_dir);
    assert!(is_sound, "{output_text}");
    for part in &PARTS {
        let mut all = Vec::new();
        files(&data_dir.join(part.directory), &mut all);
        trim_journals(&all);
        all.retain(|path| !(part.is_skipped)(path));
        assert!(all.len() >= part.min_files, "{}: {all:?}", part.directory);
        for path in &all {
            let bytes = fs::read(path).unwrap();
            for damage in DAMAGES {
                let Some(changed) = after(&damage, path, &bytes) else {
                    continue;
                };
                let what = damage.0;
                apply(path, changed.as_deref());
                let (is_sound, output_text) = check(&data_dir);
                assert!(!is_sound, "{}: {what}: {output_text}", path.display());
                let is_reported = output_text.contains("problem: ");
                assert!(
                    is_reported || output_text.starts_with("error: "),
                    "{}: {what}: {output_text}",
                    path.display()
                );
                fs::write(path, &bytes).unwrap();
            }
        }
        let (is_sound, output_text) = check(&data_dir);
        assert!(is_sound, "{}: {output_text}", part.directory);
    }
    refused_by_a_node(&data_dir);
    reported_by_a_start(&data_dir);
    survived_with_quarantine(&data_dir);
    fs::remove_dir_all(data_dir).unwrap();
}

/// Directories within an area whose loss is noticed.
const DIRECTORIES: [&str; 3] = ["sinks/queues/waiting", "sinks/queues", "sinks/dead-letters"];

/// Damages of files of the data directory that a start is tried with, all but zeros: one half with the default settings, which
/// are the even ones, and the other half with a quarantine. Each file is damaged in three ways for either, and neighbouring
/// files, which are often of the same kind, in different ways.
fn damages_at_start(data_dir: &Path, is_even: bool) -> Vec<(PathBuf, &'static Damage)> {
    let mut cases = Vec::new();
    let damages = DAMAGES.iter().filter(|(what, _)| !what.contains("zeros"));
    let damages: Vec<_> = damages.collect();
    for part in &PARTS {
        let mut all = Vec::new();
        files(&data_dir.join(part.directory), &mut all);
        all.retain(|path| !(part.is_skipped)(path));
        for (nth, path) in all.into_iter().enumerate() {
            let name = path.strip_prefix(data_dir).unwrap().to_owned();
            let chosen = damages.iter().enumerate();
            let chosen = chosen.filter(|(at, _)| ((nth + at) % 2 == 0) == is_even);
            cases.extend(chosen.map(|(_, damage)| (name.clone(), *damage)));
        }
    }
    cases
}

/// Calls a function for all cases, several at a time.
fn for_each_case<T: Send>(cases: Vec<T>, try_case: impl Fn(T) + Sync) {
    let cases = Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let case = cases.lock().unwrap().pop();
                    let Some(case) = case else { break };
                    try_case(case);
                }
            });
        }
    });
}

/// A start refuses damaged files and the loss of every whole area or directory, or logs an error.
fn reported_by_a_start(data_dir: &Path) {
    let mut cases: Vec<(PathBuf, Option<&Damage>)> = Vec::new();
    let damages = damages_at_start(data_dir, true);
    cases.extend(
        damages
            .into_iter()
            .map(|(name, damage)| (name, Some(damage))),
    );
    let directories = PARTS.iter().map(|part| part.directory).chain(DIRECTORIES);
    cases.extend(directories.map(|name| (name.into(), None)));
    for_each_case(cases, |(name, damage)| reported(data_dir, &name, damage));
}

/// Damaged files with `store.on_damage = "quarantine"`.
fn survived_with_quarantine(data_dir: &Path) {
    let cases = damages_at_start(data_dir, false);
    for_each_case(cases, |(name, damage)| quarantined(data_dir, &name, damage));
}

/// Whether a node with a quarantine starts whatever has happened to this file.
fn is_never_refused(name: &str) -> bool {
    let is_state = name.starts_with("store/state/");
    let is_refused = (is_state && !name.ends_with(".jnl"))
        || name.ends_with("/version")
        || name == "store/queues"
        || name == "telemetry/deletions";
    !is_refused
}

fn quarantined(data_dir: &Path, name: &Path, damage: &Damage) {
    let copied = temporary_directory();
    copy(data_dir, &copied);
    let path = copied.join(name);
    let what = format!("{}: {}", name.display(), damage.0);
    let bytes = fs::read(&path).unwrap();
    let Some(changed) = after(damage, &path, &bytes) else {
        return;
    };
    apply(&path, changed.as_deref());
    let (is_sound, output_text) = check(&copied);
    let on_damage = ["--shards", "2", "--set", "store.on_damage=quarantine"];
    let mut node = Node::spawn(copied.clone(), &on_damage, CONFIG);
    let started = node.wait_until_it_listens();
    let name = name.to_str().unwrap();
    let log = match started {
        Ok(()) => node.log(),
        Err(log) => {
            assert!(!is_never_refused(name), "{what}: {output_text}: {log}");
            assert!(!log.contains("panicked"), "{what}: {log}");
            return assert!(!copied.join("quarantine").exists(), "{what}: {log}");
        }
    };
    assert!(!log.contains("panicked"), "{what}: {log}");
    let parts = get(&node, "quarantine")["data"].clone();
    let parts = parts.as_array().unwrap();
    assert_eq!(
        get(&node, "node")["quarantined"],
        json!(parts.len()),
        "{what}"
    );
    for part in parts {
        assert!(
            log.contains(part["id"].as_str().unwrap()),
            "{what}: {part}: {log}"
        );
        for file in part["files"].as_array().unwrap() {
            let id = part["id"].as_str().unwrap();
            let kept = copied.join("quarantine").join(id);
            assert!(
                kept.join(file["name"].as_str().unwrap()).exists(),
                "{what}: {part}"
            );
        }
    }
    assert!(node.terminate(Duration::from_secs(30)).success());
    // What the start has accepted is sound from now on.
    let (is_sound_now, log_now) = check(&copied);
    if !parts.is_empty() {
        // A disk queue lacks the rows until it is empty.
        let is_sound_now = is_sound_now || name.starts_with("sinks/");
        assert!(
            !is_sound && is_sound_now,
            "{what}: {output_text} then {log_now}: {log}"
        );
        assert!(log_now.contains("quarantine: "), "{what}: {log_now}");
    }
    fs::remove_dir_all(copied).unwrap();
}

#[test]
fn a_node_reports_damaged_files_in_quarantine_until_they_are_deleted() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let data_dir = temporary_directory();
    let mut node = Node::spawn(data_dir.clone(), &["--shards", "2"], CONFIG);
    node.wait_until_it_listens().unwrap();
    let (status, answer) = api(
        &node,
        "POST",
        "products",
        &json!({"id": "plain", "mode": "sync"}),
    );
    assert_eq!(status, 201, "{answer}");
    with_token(&node, "device-1", "plain", json!({}));
    let mut device = connect(&node, "device-1");
    for nth in 0..100 {
        device.publish_qos1(
            "v1/devices/me/telemetry",
            format!("{{\"value\": {nth}}}"),
            1,
        );
    }
    device.disconnect();
    node.signal(libc::SIGKILL);
    assert!(node.wait(Duration::from_secs(30)).is_some());
    let copied = temporary_directory();
    copy(&data_dir, &copied);
    let keys = copied.join("telemetry/keys");
    let bytes = fs::read(&keys).unwrap();
    fs::write(&keys, &bytes[..bytes.len() - 5]).unwrap();
    let arguments = [
        "--shards",
        "2",
        "--set",
        "store.on_damage=quarantine",
        "--set",
        "alarms.node_alarm_interval_s=1",
    ];
    let mut node = Node::spawn(copied, &arguments, CONFIG);
    node.wait_until_it_listens().unwrap();
    let parts = get(&node, "quarantine")["data"].clone();
    assert_eq!(parts[0]["part"], "telemetry", "{parts}");
    assert!(
        !parts[0]["lost"].as_array().unwrap().is_empty() && parts[0]["at_ms"].as_u64() > Some(0),
        "{parts}"
    );
    let open_alarms = || {
        let alarms = get(
            &node,
            "alarms?device=$node&type=damaged_files&state=ACTIVE_UNACK",
        );
        let alarms = alarms["data"].as_array().unwrap().clone();
        alarms.len()
    };
    eventually("an alarm", || open_alarms() == 1);
    let path = format!("quarantine/{}", parts[0]["id"].as_str().unwrap());
    let (status, answer) = api(&node, "DELETE", &path, &json!(null));
    assert_eq!(status, 204, "{answer}");
    assert_eq!(get(&node, "node")["quarantined"], 0);
    eventually("the end of the alarm", || open_alarms() == 0);
    let (status, _) = api(&node, "DELETE", &path, &json!(null));
    assert_eq!(status, 404);
}

#[test]
fn telemetry_that_is_found_damaged_while_the_node_runs_raises_an_alarm() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let arguments = ["--shards", "2", "--set", "alarms.node_alarm_interval_s=1"];
    let mut node = Node::start_with_config(&arguments, CONFIG);
    let product = json!({"id": "plain", "mode": "sync"});
    assert_eq!(api(&node, "POST", "products", &product).0, 201);
    with_token(&node, "device-1", "plain", json!({}));
    let mut device = connect(&node, "device-1");
    for nth in 0..2000 {
        let row = format!("{{\"value\": {}}}", nth * 7919 % 1013);
        device.publish_qos1("v1/devices/me/telemetry", row, 1);
    }
    device.disconnect();
    // A backup writes the rows in memory to a segment file.
    assert_eq!(api(&node, "POST", "backups", &json!(null)).0, 202);
    let folder = node.data_dir().join("telemetry/segments");
    let segment = || {
        let found = fs::read_dir(&folder).ok()?.next()?;
        Some(found.ok()?.path())
    };
    eventually("a segment file", || segment().is_some());
    node.terminate(Duration::from_secs(30));
    let segment = segment().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    // In the columns, which a start does not read.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&segment, bytes).unwrap();
    node.start_again();
    eventually("an alarm", || {
        let path = "alarms?device=$node&type=damaged_telemetry&state=ACTIVE_UNACK";
        get(&node, path)["data"].as_array().unwrap().len() == 1
    });
}

fn reported(data_dir: &Path, name: &Path, damage: Option<&Damage>) {
    let copied = temporary_directory();
    copy(data_dir, &copied);
    let path = copied.join(name);
    let what = format!(
        "{}: {}",
        name.display(),
        damage.map_or("the directory is gone", |d| d.0)
    );
    match damage {
        Some(damage) => {
            let bytes = fs::read(&path).unwrap();
            let Some(changed) = after(damage, &path, &bytes) else {
                return;
            };
            apply(&path, changed.as_deref());
        }
        None => {
            fs::remove_dir_all(&path).unwrap();
            if name != Path::new("store") {
                let (is_sound, output_text) = check(&copied);
                assert!(
                    !is_sound && output_text.contains("problem: "),
                    "{what}: {output_text}"
                );
            }
        }
    }
    let node = Node::spawn(copied, &["--shards", "2"], CONFIG);
    let is_reported = || node.log().contains("ERROR") || !node.is_running();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_reported() {
        assert!(Instant::now() < deadline, "{what}: {}", node.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    let log = node.log();
    assert!(!log.contains("panicked"), "{what}: {log}");
}

/// A few of these are started upon.
fn refused_by_a_node(data_dir: &Path) {
    let mut segments = Vec::new();
    files(&data_dir.join("store/log"), &mut segments);
    let oldest = segments[0]
        .strip_prefix(data_dir)
        .unwrap()
        .to_str()
        .unwrap();
    let cases: [(&str, usize); 5] = [
        (oldest, 3),
        (oldest, 4),
        ("store/state/0.jnl", 3),
        ("store/state/0.jnl", 6),
        ("store/state/keyspaces/0/current", 1),
    ];
    for (name, nth) in cases {
        let (what, damage) = DAMAGES[nth];
        let copied = temporary_directory();
        copy(data_dir, &copied);
        let path = copied.join(name);
        let changed = damage(&fs::read(&path).unwrap());
        apply(&path, changed.as_deref());
        let node = Node::spawn(copied, &["--shards", "2"], CONFIG);
        let ended = node.wait(Duration::from_secs(30));
        let log = node.log();
        assert!(
            ended.is_some_and(|status| !status.success()),
            "{name}: {what}: {log}"
        );
        assert!(
            log.contains("is damaged") && !log.contains("panicked"),
            "{name}: {what}: {log}"
        );
        assert!(log.contains("Restore a backup"), "{name}: {what}: {log}");
    }
}

#[test]
fn what_a_node_stores_is_private_whatever_its_directory_was() {
    use std::os::unix::fs::PermissionsExt as _;
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let data_dir = temporary_directory();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for name in ["", "store", "telemetry", "mailboxes", "sinks"] {
        let dir = data_dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut node = Node::spawn(data_dir.clone(), &["--shards", "2"], "");
    node.wait_until_it_listens().unwrap();
    product(&node, "plain");
    with_token(&node, "d", "plain", json!({}));
    let mut publisher = Raw::client(&node, 4);
    publisher.send_publish(&Publish::new("kept", "retained").retain());
    publisher.ping();
    for name in ["store", "telemetry", "mailboxes", "sinks"] {
        assert_eq!(mode(&data_dir.join(name)), 0o700, "{name}");
        let mut all = Vec::new();
        files(&data_dir.join(name), &mut all);
        for path in all {
            assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
        }
    }
    let log = node.log();
    assert!(
        log.contains("other users of this machine can enter the data directory"),
        "{log}"
    );
    assert!(log.contains("was accessible to other users"), "{log}");
}
