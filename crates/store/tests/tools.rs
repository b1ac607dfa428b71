//! Check, repair and compaction of the store of a stopped node.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::{StoreFixture, small, wait_until};
use store::{
    BackendError, ExpectedVersion, QueueBackend, QueueFetch, QueueGroup, QueuePage, QueueSummary,
    StateKind, Store, StoreOpenError, tools,
};

const MESSAGES: u64 = 400;

/// A log of several segments, one message of 1000 bytes per batch for one session.
fn make(dir: &Path) {
    let mut bench = StoreFixture::open(dir, small());
    for seq in 1..=MESSAGES {
        bench.write(|batch| {
            batch.begin_message(&[&[seq as u8; 1000]]);
            batch.add_entry(1, seq, 0, b"");
            batch.put(StateKind::Sessions, &seq.to_be_bytes(), b"s");
        });
    }
    let objects = bench.store.objects();
    objects
        .put("user", "ada", 1.into(), ExpectedVersion::Any)
        .unwrap();
    drop(bench);
    // Opened once more, so that the new segment records that all others are on disk.
    let mut bench = StoreFixture::open(dir, small());
    bench.write(|batch| batch.put(StateKind::Delayed, b"k", b"v"));
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("log")).unwrap();
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    paths
}

fn seqs(dir: &Path) -> BTreeSet<u64> {
    let bench = StoreFixture::open(dir, small());
    let found = bench.fetch_all(1, 50);
    assert!(
        found
            .iter()
            .all(|stored| stored.body == [stored.seq as u8; 1000][..])
    );
    found.into_iter().map(|stored| stored.seq).collect()
}

#[test]
fn a_sound_store_is_found_sound() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let mut progress_messages = Vec::new();
    let checked = tools::check(dir.path(), &mut |what| {
        progress_messages.push(what.to_owned())
    })
    .unwrap();
    assert_eq!((checked.problems.len(), checked.torn_end), (0, None));
    assert_eq!(
        (checked.queued_messages, checked.queued_sessions),
        (MESSAGES, 1)
    );
    assert_eq!((checked.keys, checked.objects), ([MESSAGES, 0, 0, 1, 0], 1));
    assert_eq!(progress_messages.len(), 2);
    let repaired = tools::repair(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(repaired, tools::StoreRepairReport::default());
    assert_eq!(seqs(dir.path()).len() as u64, MESSAGES);
}

#[test]
fn a_torn_end_is_reported_and_not_refused() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let last = segments(dir.path()).pop().unwrap();
    let mut bytes = fs::read(&last).unwrap();
    let whole = bytes.len();
    // The beginning of a frame, as a crash leaves it.
    bytes.extend_from_within(64..100);
    fs::write(&last, &bytes).unwrap();
    let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
    assert!(checked.problems.is_empty());
    let torn = checked.torn_end.unwrap();
    assert!(torn.contains("incomplete"), "{torn}");
    let (_store, report) = Store::open(dir.path(), small()).unwrap();
    assert!(report.truncated_bytes > 0);
    assert_eq!(report.truncation, Some(torn));
    drop(_store);
    // Synced data cannot be a torn end.
    bytes.truncate(whole - 3);
    fs::write(&last, &bytes).unwrap();
    let refused = Store::open(dir.path(), small());
    assert!(matches!(refused, Err(StoreOpenError::Damaged { .. })));
    let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
    assert!(checked.problems[0].contains("tidegate store repair"));
    let repaired = tools::repair(dir.path(), &mut |_| {}).unwrap();
    assert!(
        repaired.lost[0].contains("1 batches"),
        "{:?}",
        repaired.lost
    );
    assert!(Store::open(dir.path(), small()).is_ok());
}

#[test]
fn repair_keeps_what_can_be_read() {
    type Damage = fn(&[PathBuf]);
    let damages: [(&str, Damage, u64); 8] = [
        ("a byte", |paths| change(&paths[2], 20_000), 1),
        ("a head", |paths| change(&paths[2], 50), 0),
        ("a head and its salt", |paths| change(&paths[2], 20), 0),
        ("a layout version", |paths| change(&paths[2], 8), 0),
        ("the first layout version", |paths| change(&paths[0], 9), 0),
        ("a head of zeros", |paths| clear_head(&paths[2]), 0),
        ("the first head of zeros", |paths| clear_head(&paths[0]), 0),
        ("a file", |paths| fs::remove_file(&paths[2]).unwrap(), 65),
    ];
    for (what, damage, max_lost) in damages {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        damage(&segments(dir.path()));
        let refused = Store::open(dir.path(), small());
        assert!(
            matches!(refused, Err(StoreOpenError::Damaged { .. })),
            "{what}"
        );
        let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
        assert_eq!(checked.problems.len(), 1, "{what}");

        let repaired = tools::repair(dir.path(), &mut |_| {}).unwrap();
        assert!(!repaired.lost.is_empty(), "{what}");
        assert!(
            repaired.damaged_copies.iter().all(|path| path.exists()),
            "{what}"
        );
        let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
        assert_eq!(
            (checked.problems.len(), checked.torn_end),
            (0, None),
            "{what}"
        );
        let found = seqs(dir.path());
        let lost = MESSAGES - found.len() as u64;
        assert!(lost <= max_lost, "{what}: {lost} lost, {:?}", repaired.lost);
        // Writing continues after it.
        let mut bench = StoreFixture::open(dir.path(), small());
        bench.write(|batch| found.iter().for_each(|&seq| batch.complete_entry(1, seq)));
        drop(bench);
        assert!(seqs(dir.path()).is_empty(), "{what}");
    }
}

fn change(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x40;
    fs::write(path, bytes).unwrap();
}

fn clear_head(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[..64].fill(0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn compaction_makes_a_stopped_store_small() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let mut bench = StoreFixture::open(dir.path(), small());
    bench.write(|batch| (1..MESSAGES).for_each(|seq| batch.complete_entry(1, seq)));
    wait_until("it is counted", || bench.store.stats().live_messages == 1);
    drop(bench);
    let (before, after) = tools::compact(dir.path(), small(), &mut |_| {}).unwrap();
    // The running store may have reclaimed everything already; a new file then costs a few blocks.
    let blocks = 16 << 10;
    assert!(
        after <= before + blocks && after < MESSAGES * 1000,
        "{before} before, {after} after"
    );
    assert_eq!(seqs(dir.path()), BTreeSet::from([MESSAGES]));
    let missing = tools::check(&dir.path().join("nothing"), &mut |_| {});
    assert!(matches!(missing, Err(StoreOpenError::Missing { .. })));
}

/// A queue server without messages.
struct EmptyServer;

impl QueueBackend for EmptyServer {
    fn name(&self) -> String {
        "a server".to_owned()
    }

    fn recover(
        &mut self,
        _owner: &str,
        _each: &mut dyn FnMut(u64, QueueSummary),
    ) -> Result<u64, BackendError> {
        Ok(0)
    }

    fn apply(&mut self, _group: &QueueGroup<'_>) -> Result<(), BackendError> {
        Ok(())
    }

    fn end_sessions(&mut self, _sessions: &[u64]) -> Result<(), BackendError> {
        Ok(())
    }

    fn fetch(&mut self, wanted: &[QueueFetch]) -> Result<Vec<QueuePage>, BackendError> {
        assert!(wanted.is_empty());
        Ok(Vec::new())
    }
}

/// Without its file `queues` a directory has no record that messages are queued in another server.
#[test]
fn a_missing_owner_of_queues_in_another_server_is_refused_until_it_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let queues = dir.path().join("queues");
    let open_there = || Store::open_with_queues(dir.path(), small(), Box::new(EmptyServer));
    drop(open_there().unwrap());
    drop(open_there().unwrap());
    let owner = fs::read(&queues).unwrap();
    assert!(
        tools::check(dir.path(), &mut |_| {})
            .unwrap()
            .problems
            .is_empty()
    );
    change(&queues, 3);
    assert!(open_there().is_err(), "it is another owner");
    fs::remove_file(&queues).unwrap();
    for opened in [open_there(), Store::open(dir.path(), small())] {
        let error = opened.err().expect("it is missing").to_string();
        assert!(
            error.contains("/queues is missing") && error.contains("tidegate store repair"),
            "{error}"
        );
    }
    let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(checked.problems.len(), 1, "{:?}", checked.problems);
    fs::write(&queues, &owner).unwrap();
    drop(open_there().unwrap());
    fs::remove_file(&queues).unwrap();
    let repaired = tools::repair(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(repaired.lost.len(), 1, "{:?}", repaired.lost);
    assert!(Store::open(dir.path(), small()).is_ok());
}
