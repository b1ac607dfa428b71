//! Tests with damaged files of the keyed state.

use std::fs;
use std::path::{Path, PathBuf};

use super::state_mark::StateMark;
use crate::tables::Durability;
use crate::{ExpectedVersion, Store, StoreConfig, StoreOpenError, tools};

const OBJECTS: usize = 200;

fn config() -> StoreConfig {
    StoreConfig {
        min_free_bytes: 0,
        ..StoreConfig::default()
    }
}

/// Creates objects, rows in the journal and rows in tables of the library.
fn make(dir: &Path) {
    let (store, report) = Store::open(dir, config()).unwrap();
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    for nth in 0..OBJECTS {
        let id = format!("user-{nth}");
        let value = serde_json::json!({ "number": nth });
        let objects = store.objects();
        objects
            .put("user", &id, value, ExpectedVersion::Any)
            .unwrap();
    }
    let table = store.tables().table("devices");
    for part in 0..2_u32 {
        let mut batch = store.tables().batch().unwrap();
        for row in 0..500_u32 {
            let key = (part * 500 + row).to_be_bytes();
            batch.put(&table, &key, &[part as u8; 60]).unwrap();
        }
        batch.commit(Durability::Synced).unwrap();
        if part == 0 {
            store.compact_keyed().unwrap();
        }
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.file_name().unwrap() != "lock" {
            found.push(path);
        }
    }
}

fn damages(bytes: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    let mut damages = vec![("removed".to_owned(), None)];
    let mut add = |what: String, changed: Vec<u8>| damages.push((what, Some(changed)));
    let len = bytes.len();
    add("cut to half".into(), bytes[..len / 2].to_vec());
    add(
        "without three bytes".into(),
        bytes[..len.saturating_sub(3)].to_vec(),
    );
    for at in [0, len / 3, len / 2, len * 2 / 3, len.saturating_sub(1)] {
        if at >= len {
            continue;
        }
        let mut changed = bytes.to_vec();
        changed[at] ^= 0x10;
        add(format!("byte {at} changed"), changed);
        let mut changed = bytes.to_vec();
        changed[at..len.min(at + 512)].fill(0);
        add(format!("zeros from {at} on"), changed);
    }
    damages.retain(|(_, changed)| changed.as_deref() != Some(bytes));
    damages
}

/// A version file that the next start removes.
fn is_old_version(path: &Path) -> bool {
    let number = path
        .file_name()
        .and_then(|name| name.to_str()?.strip_prefix('v')?.parse::<u64>().ok());
    let Some(number) = number else {
        return false;
    };
    let current = fs::read(path.with_file_name("current")).unwrap();
    let current: &[u8; 8] = current.first_chunk().unwrap();
    u64::from_le_bytes(*current) != number
}

/// The end of a journal without its preallocated zeros.
fn trim(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let len = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    fs::write(path, &bytes[..len]).unwrap();
}

#[test]
fn damage_of_any_file_is_refused_and_found_by_a_check() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let state = dir.path().join("state");
    for (_, journal) in super::journal::list_journals(&state).unwrap() {
        trim(&journal);
    }
    let mut all = Vec::new();
    files(&state, &mut all);
    assert!(all.len() > 20, "{all:?}");
    let (mut tables, mut journals) = (0, 0);
    for path in all {
        if is_old_version(&path) {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        for (what, changed) in damages(&bytes) {
            match &changed {
                Some(changed) => fs::write(&path, changed).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let what = format!("{}: {what}", path.display());
            match Store::open(dir.path(), config()) {
                Ok(_) => panic!("{what}: it was opened"),
                Err(error @ StoreOpenError::StateDamaged { .. }) => {
                    let message = error.to_string();
                    assert!(message.contains(state.to_str().unwrap()), "{message}");
                }
                Err(error) => panic!("{what}: {error}"),
            }
            let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
            assert!(!checked.problems.is_empty(), "{what}");
            fs::write(&path, &bytes).unwrap();
        }
        tables += u32::from(path.parent().unwrap().ends_with("tables"));
        journals += u32::from(path.extension().is_some_and(|extension| extension == "jnl"));
    }
    assert!(
        tables > 0 && journals > 0,
        "{tables} tables, {journals} journals"
    );
    let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
    assert_eq!(checked.objects as usize, OBJECTS);
}

#[test]
fn repair_keeps_the_batches_of_a_journal_that_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let journal = dir.path().join("state/0.jnl");
    trim(&journal);
    let mut bytes = fs::read(&journal).unwrap();
    bytes[400..912].fill(0);
    fs::write(&journal, bytes).unwrap();
    let error = Store::open(dir.path(), config()).err().unwrap().to_string();
    assert!(error.contains("tidegate store repair"), "{error}");
    let repaired = tools::repair(dir.path(), &mut |_| {}).unwrap();
    assert!(!repaired.lost.is_empty() && repaired.unrepaired.is_empty());
    assert_eq!(
        repaired.damaged_copies,
        [journal.with_extension("jnl.damaged")]
    );
    let (store, report) = Store::open(dir.path(), config()).unwrap();
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    let objects = store.objects().list("user", None, OBJECTS).unwrap();
    assert!(objects.len() + 20 > OBJECTS, "{} are left", objects.len());
    drop(store);
    let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
}

/// Adds objects and divides the only journal within them; a new one begins behind, as if the state had grown.
fn divide_journal(dir: &Path) {
    let (store, _) = Store::open(dir, config()).unwrap();
    for nth in 0..10 {
        let id = format!("late-{nth}");
        let objects = store.objects();
        objects
            .put("user", &id, 1.into(), ExpectedVersion::Any)
            .unwrap();
    }
    drop(store);
    use super::journal::{JournalScan, journal_path};
    let state = dir.join("state");
    let path = |id| journal_path(&state, id);
    trim(&path(0));
    let bytes = fs::read(path(0)).unwrap();
    let mut ends = Vec::new();
    let scan = |id, ends: &mut Vec<usize>| {
        let mut scan = JournalScan::new(id);
        let file = fs::File::open(path(id)).unwrap();
        let stop = scan.read_further(&file, u64::MAX, &mut |scan| ends.push(scan.end as usize));
        assert_eq!(stop.unwrap(), None);
        scan
    };
    scan(0, &mut ends);
    let middle = ends[ends.len() - 5];
    fs::write(path(0), &bytes[..middle]).unwrap();
    fs::write(path(1), &bytes[middle..]).unwrap();
    fs::write(path(2), b"").unwrap();
    let scans = [0, 1, 2].map(|id| scan(id, &mut Vec::new()));
    let keyspaces = StateMark::read(dir).unwrap().mark.unwrap().keyspaces;
    StateMark::from_scans(&scans, keyspaces).write(dir).unwrap();
}

#[test]
fn repair_gives_up_an_older_journal_that_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    divide_journal(dir.path());
    let missing = dir.path().join("state/0.jnl");
    fs::remove_file(&missing).unwrap();
    // However often it is tried: the library may not hide the loss by writing the other journals to tables.
    for _ in 0..3 {
        let refused = Store::open(dir.path(), config()).err().unwrap().to_string();
        assert!(refused.contains(missing.to_str().unwrap()), "{refused}");
        assert!(refused.contains("tidegate store repair"), "{refused}");
        let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
        assert_eq!(checked.problems.len(), 1, "{:?}", checked.problems);
    }
    let repaired = tools::repair(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(repaired.unrepaired, Vec::<String>::new());
    let [lost] = &repaired.lost[..] else {
        panic!("{:?}", repaired.lost);
    };
    assert!(
        lost.contains("0.jnl") && lost.contains("configuration objects"),
        "{lost}"
    );
    let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
    let (store, report) = Store::open(dir.path(), config()).unwrap();
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    // What tables and younger journals have is still there.
    let table = store.tables().table("devices");
    assert!(table.has(&0_u32.to_be_bytes()).unwrap());
    assert!(!table.has(&999_u32.to_be_bytes()).unwrap());
    let objects = store.objects();
    assert!(objects.get("user", "late-9").unwrap().is_some());
    assert!(objects.get("user", "late-0").unwrap().is_none());
    objects
        .put("user", "new", 1.into(), ExpectedVersion::Any)
        .unwrap();
    drop(store);
    let again = tools::repair(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(again, tools::StoreRepairReport::default());
}

#[test]
fn a_journal_that_tables_cover_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    divide_journal(dir.path());
    // The library writes the content of all but the last journal to tables.
    let journal = dir.path().join("state/0.jnl");
    let bytes = fs::read(&journal).unwrap();
    let mark = fs::read(dir.path().join(super::state_mark::FILE)).unwrap();
    let (store, _) = Store::open(dir.path(), config()).unwrap();
    store.compact_keyed().unwrap();
    drop(store);
    assert!(!journal.exists(), "{} bytes", bytes.len());
    // The last mark was written before that.
    fs::write(dir.path().join(super::state_mark::FILE), mark).unwrap();
    let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
    let (store, _) = Store::open(dir.path(), config()).unwrap();
    let objects = store.objects().list("user", None, 2 * OBJECTS).unwrap();
    assert_eq!(objects.len(), OBJECTS + 10);
}

#[test]
fn a_torn_end_behind_the_mark_is_cut_off_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let journal = dir.path().join("state/0.jnl");
    trim(&journal);
    let mut bytes = fs::read(&journal).unwrap();
    let whole = bytes.len();
    bytes.extend_from_within(..40);
    fs::write(&journal, &bytes).unwrap();
    let checked = tools::check(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
    assert!(checked.torn_end.unwrap().contains("40 bytes"));
    fs::write(&journal, &bytes).unwrap();
    let (store, report) = Store::open(dir.path(), config()).unwrap();
    assert!(
        report.warnings[0].contains("40 bytes"),
        "{:?}",
        report.warnings
    );
    assert_eq!(fs::metadata(&journal).unwrap().len() as usize, whole);
    let objects = store.objects().list("user", None, OBJECTS).unwrap();
    assert_eq!(objects.len(), OBJECTS);
}

#[test]
fn a_damaged_mark_is_reported_and_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    for name in [super::state_mark::FILE, crate::log::log_mark::FILE] {
        let path = dir.path().join(name);
        let bytes = fs::read(&path).unwrap();
        for (what, changed) in damages(&bytes) {
            match &changed {
                Some(changed) => fs::write(&path, changed).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let (_store, report) = Store::open(dir.path(), config()).unwrap();
            assert_eq!(report.warnings.len(), 1, "{name} {what}");
            assert!(report.warnings[0].contains(name), "{what}");
            drop(_store);
            let (_store, report) = Store::open(dir.path(), config()).unwrap();
            assert!(report.warnings.is_empty(), "{name} {what}");
        }
    }
}

#[test]
fn a_state_that_was_moved_away_begins_anew_by_a_repair_alone() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    fs::rename(dir.path().join("state"), dir.path().join("old")).unwrap();
    let refused = Store::open(dir.path(), config()).err().unwrap();
    assert!(
        refused.to_string().contains("the directory is missing"),
        "{refused}"
    );
    let repaired = tools::repair(dir.path(), &mut |_| {}).unwrap();
    assert_eq!(repaired.lost.len(), 1);
    let (store, report) = Store::open(dir.path(), config()).unwrap();
    assert!(report.warnings.is_empty());
    assert!(store.objects().list("user", None, 1).unwrap().is_empty());
}

#[test]
fn the_mark_follows_a_running_store() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let read = || StateMark::read(dir.path()).unwrap().mark.unwrap();
    let before = read();
    assert!(before.keyspaces.len() > 7 && !before.journals.is_empty());
    let (store, _) = Store::open(dir.path(), config()).unwrap();
    struct NoopObserver;
    impl crate::StoreObserver for NoopObserver {
        fn on_logged(&self, _: u16, _: u64) {}
        fn on_fetched(&self, _: u16, _: crate::QueuePage) {}
    }
    store.start(std::sync::Arc::new(NoopObserver)).unwrap();
    let objects = store.objects();
    objects
        .put("user", "late", 1.into(), ExpectedVersion::Any)
        .unwrap();
    let started = std::time::Instant::now();
    while read() == before {
        assert!(started.elapsed().as_secs() < 60, "the mark stays as it is");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let marked = read().journals.pop().unwrap();
    assert!(marked.bytes > before.journals.last().unwrap().bytes);
}
