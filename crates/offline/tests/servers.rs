//! The behaviour of each backend against real servers: written entries are present once and in order, also if the
//! server is killed, slow, or belongs to another node.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use offline::{QueueBackendKind, QueueBackendOptions};
use store::{
    QueueFetch, QueuePage, StateKind, Store, StoreBatch, StoreConfig, StoreHealth, StoreObserver,
    StoreOpenError,
};
use testkit::{CertificateAuthority, Proxy, ProxyMode, TestServer};

const PATIENCE: Duration = Duration::from_secs(60);

fn options(url: String) -> QueueBackendOptions {
    QueueBackendOptions {
        url,
        prefix: "kit".into(),
        tls_ca: None,
        connect_timeout: Duration::from_secs(2),
        command_timeout: Duration::from_secs(2),
        max_body_bytes: 1 << 20,
    }
}

#[derive(Default)]
struct TestObserver {
    events: Mutex<(u64, Vec<QueuePage>)>,
    called: Condvar,
}

impl StoreObserver for TestObserver {
    fn on_logged(&self, _: u16, batch: u64) {
        let mut events = self.events.lock().unwrap();
        assert!(events.0 < batch, "numbers grow");
        events.0 = batch;
        self.called.notify_all();
    }

    fn on_fetched(&self, _: u16, page: QueuePage) {
        self.events.lock().unwrap().1.push(page);
        self.called.notify_all();
    }
}

/// A store with its queues in a server.
struct OfflineStore {
    store: Store,
    observer: Arc<TestObserver>,
    last: u64,
}

impl OfflineStore {
    fn open(
        dir: &std::path::Path,
        kind: QueueBackendKind,
        options: &QueueBackendOptions,
    ) -> Result<Self, String> {
        let queues = offline::create_backend(kind, options)?;
        let config = StoreConfig {
            max_pending_bytes: 1 << 17,
            ..StoreConfig::default()
        };
        let opened = Store::open_with_queues(dir, config, queues);
        let (store, _) = opened.map_err(|error| error.to_string())?;
        let observer = Arc::new(TestObserver::default());
        Ok(Self {
            store,
            observer,
            last: 0,
        })
    }

    fn started(
        dir: &std::path::Path,
        kind: QueueBackendKind,
        options: &QueueBackendOptions,
    ) -> Self {
        let node = Self::open(dir, kind, options).unwrap();
        node.store.start(node.observer.clone()).unwrap();
        node
    }

    fn submit(&mut self, write: impl FnOnce(&mut StoreBatch)) {
        let mut batch = self.store.recycled_batch();
        write(&mut batch);
        self.last += 1;
        batch.number = self.last;
        self.store.submit(0, batch);
    }

    fn wait(&self) {
        let events = self.observer.events.lock().unwrap();
        let waits = |events: &mut (u64, Vec<QueuePage>)| events.0 < self.last;
        let (_heard, timeout) = (self.observer.called)
            .wait_timeout_while(events, PATIENCE, waits)
            .unwrap();
        assert!(!timeout.timed_out(), "not stored in time");
    }

    fn page(&self, fetch: QueueFetch) -> QueuePage {
        self.store.fetch(0, fetch);
        let events = self.observer.events.lock().unwrap();
        let (mut events, timeout) = (self.observer.called)
            .wait_timeout_while(events, PATIENCE, |events| events.1.is_empty())
            .unwrap();
        assert!(!timeout.timed_out(), "not read in time");
        events.1.remove(0)
    }

    fn all(&self, session: u64) -> Vec<store::QueueEntry> {
        let mut all: Vec<store::QueueEntry> = Vec::new();
        loop {
            let page = self.page(QueueFetch {
                session,
                from_seq: all.last().map_or(0, |last| last.seq + 1),
                max_messages: 7,
                max_bytes: 20_000,
            });
            all.extend(page.entries);
            if page.is_last {
                return all;
            }
        }
    }
}

fn each(test: impl Fn(QueueBackendKind, &TestServer)) {
    for (kind, program) in [
        (QueueBackendKind::Redis, testkit::ServerKind::Redis),
        (QueueBackendKind::MySql, testkit::ServerKind::MariaDb),
    ] {
        if let Some(server) = TestServer::start_or_skip(program) {
            test(kind, &server);
        }
    }
}

/// Number of separately stored bodies that still exist.
fn count_separate_bodies(kind: QueueBackendKind, server: &TestServer) -> usize {
    match kind {
        QueueBackendKind::Redis => server.redis(&["KEYS", "kit:m:*"]).len(),
        QueueBackendKind::MySql => server.sql("SELECT id FROM kit_message").len(),
    }
}

#[test]
fn written_entries_can_be_read() {
    each(|kind, server| {
        let dir = tempfile::tempdir().unwrap();
        let options = options(server.url());
        let mut node = OfflineStore::started(dir.path(), kind, &options);
        let large = vec![b'x'; 100_000];
        node.submit(|batch| {
            batch.begin_message(&[b"sha", b"red\0'\\\xff"]);
            for session in 1..=3 {
                batch.add_entry(session, 10, 0, b"attr");
            }
            batch.begin_message(&[&large]);
            batch.add_entry(1, 11, 5, b"");
            batch.put(StateKind::Retained, b"key", b"value");
            for seq in 12..=40 {
                batch.begin_message(&[seq.to_string().as_bytes()]);
                batch.add_entry(1, seq, 0, b"");
            }
            batch.add_received_id(1, 77);
            batch.add_received_id(1, 78);
        });
        node.submit(|batch| {
            batch.mark_sent(1, 10, 3);
            batch.mark_released(1, 11);
            batch.complete_entry(2, 10);
            (13..=20).for_each(|seq| batch.complete_entry(1, seq));
            batch.remove_received_id(1, 77);
        });
        node.wait();
        let check = |node: &OfflineStore| {
            let all = node.all(1);
            let expected: Vec<u64> = (10..=12).chain(21..=40).collect();
            let seqs: Vec<u64> = all.iter().map(|entry| entry.seq).collect();
            assert_eq!(seqs, expected);
            assert_eq!(
                (all[0].packet_id, &*all[0].body),
                (3, &b"shared\0'\\\xff"[..])
            );
            assert_eq!(&*all[0].attributes, b"attr");
            assert!(all[1].released && all[1].packet_id == 5 && all[1].body.is_empty());
            assert_eq!(&*all[2].body, b"12");
            assert!(node.all(2).is_empty());
            assert_eq!(node.all(3).len(), 1);
        };
        check(&node);
        node.store.close();
        drop(node);

        let mut node = OfflineStore::open(dir.path(), kind, &options).unwrap();
        let summary = node.store.queue(1).unwrap();
        assert_eq!(
            (summary.messages, summary.first_seq, summary.last_seq),
            (23, 10, 40)
        );
        assert_eq!(summary.received, [78]);
        assert_eq!(node.store.queue(2), None);
        node.store.start(node.observer.clone()).unwrap();
        check(&node);
        assert_eq!(count_separate_bodies(kind, server), 2);
        node.submit(|batch| batch.end_session(1));
        node.submit(|batch| batch.complete_entry(3, 10));
        node.wait();
        assert!(node.all(1).is_empty() && node.all(3).is_empty());
        node.store.close();
        assert_eq!(
            count_separate_bodies(kind, server),
            0,
            "bodies are left over"
        );
        drop(node);

        let other = tempfile::tempdir().unwrap();
        let rejected = OfflineStore::open(other.path(), kind, &options)
            .err()
            .unwrap();
        assert!(rejected.contains("belong to another node"), "{rejected}");
        let (_, rejected) = (dir.path(), Store::open(dir.path(), StoreConfig::default()));
        let rejected = rejected.err().unwrap().to_string();
        assert!(rejected.contains("in another server"), "{rejected}");
    });
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writes while a failure is injected, then checks that every acknowledged entry is present, once and in order.
fn write_during_failure(
    kind: QueueBackendKind,
    options: &QueueBackendOptions,
    failure: impl FnOnce() + Send,
) {
    let dir = tempfile::tempdir().unwrap();
    let mut node = OfflineStore::started(dir.path(), kind, options);
    let mut expected: HashMap<u64, Vec<u64>> = HashMap::new();
    std::thread::scope(|scope| {
        let failure = scope.spawn(failure);
        let mut seq = 0_u64;
        while !failure.is_finished() || seq < 500 {
            seq += 1;
            node.submit(|batch| {
                batch.begin_message(&[&seq.to_be_bytes()]);
                batch.add_entry(seq % 3, seq, 0, b"");
                batch.add_entry(3 + seq % 2, seq, 0, b"");
                expected.entry(seq % 3).or_default().push(seq);
                expected.entry(3 + seq % 2).or_default().push(seq);
                if seq > 50 && seq.is_multiple_of(5) {
                    let old = seq - 45;
                    batch.complete_entry(old % 3, old);
                    expected.get_mut(&(old % 3)).unwrap().retain(|s| *s != old);
                }
            });
            // Like a shard, wait while the store is overloaded.
            let deadline = Instant::now() + PATIENCE;
            while node.store.is_overloaded() {
                assert!(Instant::now() < deadline, "the store stays overloaded");
                std::thread::yield_now();
            }
            if seq.is_multiple_of(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    node.wait();
    for (session, expected) in expected {
        let found = node.all(session);
        let seqs: Vec<u64> = found.iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, expected, "session {session}");
        for entry in found {
            assert_eq!(&*entry.body, &entry.seq.to_be_bytes());
        }
    }
    assert_eq!(node.store.health(), StoreHealth::Ok);
}

#[test]
fn a_killed_server_loses_and_doubles_nothing() {
    each(|kind, server| {
        write_during_failure(kind, &options(server.url()), || {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(150));
                server.kill();
                std::thread::sleep(Duration::from_millis(300));
                server.start();
            }
        });
    });
}

#[test]
fn cut_and_stalled_connections_lose_and_double_nothing() {
    each(|kind, server| {
        let proxy = Proxy::start(server.address());
        write_during_failure(kind, &options(server.url_through(proxy.address())), || {
            for round in 0..20 {
                std::thread::sleep(Duration::from_millis(30 + round * 3));
                proxy.close_connections();
            }
            proxy.set_mode(ProxyMode::Delay(Duration::from_millis(40)));
            let passed = proxy.passed_count();
            wait_until("pieces pass slowly", || proxy.passed_count() >= passed + 10);
            // Stall until the connection is abandoned: sent data arrives later, from that connection.
            proxy.set_mode(ProxyMode::Stall);
            let accepted = proxy.accepted_count();
            wait_until("another connection is opened", || {
                proxy.accepted_count() > accepted
            });
            proxy.set_mode(ProxyMode::Pass);
        });
    });
}

#[test]
fn new_messages_are_rejected_while_too_much_waits() {
    each(|kind, server| {
        let dir = tempfile::tempdir().unwrap();
        let mut node = OfflineStore::started(dir.path(), kind, &options(server.url()));
        node.submit(|batch| batch.put(StateKind::Retained, b"a", b"b"));
        node.wait();
        server.kill();
        let deadline = Instant::now() + PATIENCE;
        let mut seq = 0;
        while node.store.health() == StoreHealth::Ok {
            assert!(Instant::now() < deadline, "no message is rejected");
            seq += 1;
            node.submit(|batch| {
                batch.begin_message(&[&[7; 1000]]);
                batch.add_entry(1, seq, 0, b"");
            });
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            !node.store.is_overloaded(),
            "writers stall before messages are rejected"
        );
        server.start();
        node.wait();
        assert_eq!(node.all(1).len() as u64, seq);
        assert_eq!(node.store.health(), StoreHealth::Ok);
    });
}

#[test]
fn start_errors_contain_no_password() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, url) in [
        (QueueBackendKind::Redis, "redis://u:geheim@127.0.0.1:1/0"),
        (QueueBackendKind::MySql, "mysql://u:geheim@127.0.0.1:1/d"),
        (QueueBackendKind::Redis, "geheim"),
        (QueueBackendKind::MySql, "mysql://geheim@127.0.0.1"),
    ] {
        let options = options(url.into());
        let error = OfflineStore::open(dir.path(), kind, &options)
            .err()
            .unwrap();
        assert!(!error.contains("geheim"), "{error}");
        assert!(!format!("{options:?}").contains("geheim"));
    }
    // The directory was not claimed: it can still be used without a server. A process that another test is starting at
    // this moment may hold the lock until it runs its program.
    let mut opened = Store::open(dir.path(), StoreConfig::default());
    for _ in 0..100 {
        if !matches!(opened, Err(StoreOpenError::Locked { .. })) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        opened = Store::open(dir.path(), StoreConfig::default());
    }
    opened.unwrap();
}

/// Stores a message in a server over TLS with this authority only, and reads it back. Returns the error of the start,
/// if any.
fn by_tls(
    server: &TestServer,
    kind: QueueBackendKind,
    authority: &CertificateAuthority,
) -> Result<(), String> {
    let (scheme, path) = match kind {
        QueueBackendKind::Redis => ("rediss", "0"),
        QueueBackendKind::MySql => ("mysql", testkit::DATABASE),
    };
    let (user, password) = (testkit::USER, testkit::PASSWORD);
    let address = server.tls_address();
    let options = QueueBackendOptions {
        tls_ca: Some(authority.certificate_path()),
        ..options(format!("{scheme}://{user}:{password}@{address}/{path}"))
    };
    let dir = tempfile::tempdir().unwrap();
    let mut node = OfflineStore::open(dir.path(), kind, &options)?;
    node.store.start(node.observer.clone()).unwrap();
    node.submit(|batch| {
        batch.begin_message(&[b"secret"]);
        batch.add_entry(1, 1, 0, b"");
    });
    node.wait();
    assert_eq!(node.all(1).len(), 1);
    node.store.close();
    Ok(())
}

fn trusts_the_right_authority_and_name_alone(
    kind: QueueBackendKind,
    server_kind: testkit::ServerKind,
) {
    let files = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::new(files.path().join("ours"));
    let strangers = CertificateAuthority::new(files.path().join("theirs"));
    let right = authority.issue_server("right");
    let Some(server) = TestServer::start_with_tls_or_skip(server_kind, &right) else {
        return;
    };
    by_tls(&server, kind, &authority).unwrap();
    let error = by_tls(&server, kind, &strangers).unwrap_err();
    assert!(error.contains("certificate: UnknownIssuer"), "{error}");
    drop(server);
    let elsewhere = authority.issue_server_for("elsewhere", &["db.example"]);
    let server = TestServer::start_with_tls_or_skip(server_kind, &elsewhere).unwrap();
    let error = by_tls(&server, kind, &authority).unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
}

#[test]
fn redis_by_tls() {
    trusts_the_right_authority_and_name_alone(QueueBackendKind::Redis, testkit::ServerKind::Redis);
}

#[test]
fn mysql_by_tls() {
    trusts_the_right_authority_and_name_alone(
        QueueBackendKind::MySql,
        testkit::ServerKind::MariaDb,
    );
}
