//! A test bench: a store whose observer records notifications and can wait for them.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that fails may panic; not every test uses all"
)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use store::{QueueEntry, QueueFetch, QueuePage, Store, StoreConfig, StoreObserver};
#[allow(unused_imports, reason = "not every test uses both")]
pub(crate) use store::{StateKind, StoreBatch};

pub(crate) mod script;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct StoreNotifications {
    logged: HashMap<u16, u64>,
    written: HashMap<u16, u64>,
    pages: Vec<QueuePage>,
}

#[derive(Default)]
pub(crate) struct TestObserver {
    notifications: Mutex<StoreNotifications>,
    called: Condvar,
}

impl StoreObserver for TestObserver {
    fn on_logged(&self, shard: u16, batch: u64) {
        let mut notifications = self.notifications.lock().unwrap();
        let last = notifications.logged.insert(shard, batch);
        assert!(last.is_none_or(|last| last < batch), "numbers grow");
        self.called.notify_all();
    }

    fn on_written(&self, shard: u16, batch: u64) {
        self.notifications
            .lock()
            .unwrap()
            .written
            .insert(shard, batch);
    }

    fn on_fetched(&self, _shard: u16, page: QueuePage) {
        self.notifications.lock().unwrap().pages.push(page);
        self.called.notify_all();
    }
}

impl TestObserver {
    pub(crate) fn last(&self, shard: u16) -> u64 {
        let notifications = self.notifications.lock().unwrap();
        notifications.logged.get(&shard).copied().unwrap_or(0)
    }

    /// The last batch that is in the log, while notifications of logged batches are held.
    pub(crate) fn last_written(&self, shard: u16) -> u64 {
        let notifications = self.notifications.lock().unwrap();
        notifications.written.get(&shard).copied().unwrap_or(0)
    }

    pub(crate) fn wait_logged(&self, shard: u16, batch: u64) {
        let notifications = self.notifications.lock().unwrap();
        let is_waiting = |notifications: &mut StoreNotifications| {
            notifications
                .logged
                .get(&shard)
                .is_none_or(|&last| last < batch)
        };
        let (_notifications, timeout) = self
            .called
            .wait_timeout_while(notifications, PATIENCE, is_waiting)
            .unwrap();
        assert!(
            !timeout.timed_out(),
            "batch {batch} of shard {shard} was not logged"
        );
    }

    fn wait_page(&self) -> QueuePage {
        let notifications = self.notifications.lock().unwrap();
        let (mut notifications, timeout) = self
            .called
            .wait_timeout_while(notifications, PATIENCE, |notifications| {
                notifications.pages.is_empty()
            })
            .unwrap();
        assert!(!timeout.timed_out(), "no page came");
        notifications.pages.remove(0)
    }
}

/// A running store with one shard's numbering.
pub(crate) struct StoreFixture {
    pub(crate) store: Store,
    pub(crate) observer: Arc<TestObserver>,
    pub(crate) number: u64,
}

impl StoreFixture {
    pub(crate) fn open(dir: &Path, config: StoreConfig) -> Self {
        let (store, _) = Store::open(dir, config).unwrap();
        Self::start(store)
    }

    pub(crate) fn start(store: Store) -> Self {
        let observer = Arc::new(TestObserver::default());
        store
            .start(Arc::clone(&observer) as Arc<dyn StoreObserver>)
            .unwrap();
        Self {
            store,
            observer,
            number: 0,
        }
    }

    /// Submits a batch of shard 0.
    pub(crate) fn submit(&mut self, write: impl FnOnce(&mut StoreBatch)) -> u64 {
        let mut batch = self.store.recycled_batch();
        assert!(batch.is_empty());
        self.number += 1;
        batch.number = self.number;
        write(&mut batch);
        self.store.submit(0, batch);
        self.number
    }

    /// Applies frames of another store.
    pub(crate) fn apply(&mut self, frames: Vec<(u64, Vec<u8>)>) {
        for (_, records) in frames {
            self.number += 1;
            let batch = StoreBatch::from_records(self.number, &records).unwrap();
            self.store.submit(0, batch);
        }
    }

    /// Submits a batch and waits until it is logged.
    pub(crate) fn write(&mut self, write: impl FnOnce(&mut StoreBatch)) {
        let number = self.submit(write);
        self.observer.wait_logged(0, number);
    }

    /// All queued messages of a session, fetched in pages of this size.
    pub(crate) fn fetch_all(&self, session: u64, max_messages: u32) -> Vec<QueueEntry> {
        let mut all: Vec<QueueEntry> = Vec::new();
        loop {
            let from_seq = all.last().map_or(0, |last| last.seq + 1);
            self.store.fetch(
                0,
                QueueFetch {
                    session,
                    from_seq,
                    max_messages,
                    max_bytes: 1 << 20,
                },
            );
            let page = self.observer.wait_page();
            assert_eq!(page.session, session);
            assert!(page.entries.len() <= max_messages as usize);
            assert!(page.is_last || !page.entries.is_empty());
            all.extend(page.entries);
            if page.is_last {
                return all;
            }
        }
    }
}

/// The frames that a `LogTail` returned: numbers and records.
pub(crate) fn frames_of(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let lsn = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
        frames.push((lsn, bytes[12..12 + len].to_vec()));
        bytes = &bytes[12 + len..];
    }
    frames
}

pub(crate) fn small() -> StoreConfig {
    StoreConfig {
        segment_bytes: 64 << 10,
        min_free_bytes: 0,
        max_log_bytes: 1 << 30,
        ..StoreConfig::default()
    }
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < PATIENCE,
            "{what}: it did not come to that"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Compares the store with the model. `store` is open and not started; it is started to read messages.
pub(crate) fn check_opened(store: Store, model: &script::StoreModel) -> StoreFixture {
    assert_eq!(store.queued_sessions(), model.waiting());
    for (&id, session) in &model.sessions {
        let summary = store.queue(id).unwrap_or_default();
        assert_eq!(summary.messages, session.entries.len() as u64);
        let bytes: usize = session.entries.values().map(|item| item.body.len()).sum();
        assert_eq!(summary.bytes, bytes as u64);
        let first = session.entries.first_key_value();
        assert_eq!(summary.first_seq, first.map_or(0, |(&seq, _)| seq));
        let last = session.entries.last_key_value();
        assert_eq!(summary.last_seq, last.map_or(0, |(&seq, _)| seq));
        let received: Vec<u16> = session.received.iter().copied().collect();
        assert_eq!(summary.received, received);
    }
    for (nth, &space) in StateKind::ALL.iter().enumerate() {
        let mut found = Vec::new();
        let mut each = |key: &[u8], value: &[u8]| found.push((key.to_vec(), value.to_vec()));
        store.scan(space, &mut each).unwrap();
        let expected = model.keyed.iter().filter(|((space, _), _)| *space == nth);
        let expected: Vec<_> = expected
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(found, expected);
    }
    let mut bench = StoreFixture::start(store);
    bench.number = model.number;
    check_messages(&bench, model);
    bench
}

pub(crate) fn check_messages(bench: &StoreFixture, model: &script::StoreModel) {
    for (&id, session) in &model.sessions {
        let found = bench.fetch_all(id, 16).into_iter().map(|stored| {
            let item = script::ModelQueueEntry {
                packet_id: stored.packet_id,
                released: stored.released,
                attributes: stored.attributes.to_vec(),
                body: stored.body.to_vec(),
            };
            (stored.seq, item)
        });
        let found: Vec<_> = found.collect();
        let expected: Vec<_> = session.entries.clone().into_iter().collect();
        if found != expected {
            let seqs = |items: &[(u64, script::ModelQueueEntry)]| {
                items.iter().map(|(seq, _)| *seq).collect()
            };
            let (found_seqs, expected_seqs): (Vec<u64>, Vec<u64>) = (seqs(&found), seqs(&expected));
            let differ: Vec<_> = found
                .iter()
                .filter(|item| !expected.contains(item))
                .collect();
            panic!(
                "session {id} differs after batch {}: found {found_seqs:?}, expected \
                 {expected_seqs:?}; not expected: {differ:?}",
                model.number
            );
        }
    }
}
