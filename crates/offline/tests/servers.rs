//! The same behaviour from each server, real ones: what is written is there, once, in order; also when the server is killed,
//! slow, or somebody else's.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use offline::{Kind, Options};
use store::{Batch, Config, Fetch, Health, Owner, Page, Space, Store};
use testkit::{Authority, Mode, Proxy, Server};

const PATIENCE: Duration = Duration::from_secs(60);

fn options(url: String) -> Options {
    Options {
        url,
        prefix: "kit".into(),
        tls_ca: None,
        connect_timeout: Duration::from_secs(2),
        command_timeout: Duration::from_secs(2),
        max_body_bytes: 1 << 20,
    }
}

#[derive(Default)]
struct Ear {
    heard: Mutex<(u64, Vec<Page>)>,
    called: Condvar,
}

impl Owner for Ear {
    fn logged(&self, _: u16, batch: u64) {
        let mut heard = self.heard.lock().unwrap();
        assert!(heard.0 < batch, "numbers grow");
        heard.0 = batch;
        self.called.notify_all();
    }

    fn fetched(&self, _: u16, page: Page) {
        self.heard.lock().unwrap().1.push(page);
        self.called.notify_all();
    }
}

/// A store with its queues in a server.
struct Node {
    store: Store,
    ear: Arc<Ear>,
    last: u64,
}

impl Node {
    fn open(dir: &std::path::Path, kind: Kind, options: &Options) -> Result<Self, String> {
        let queues = offline::backend(kind, options)?;
        let config = Config {
            max_pending_bytes: 1 << 17,
            ..Config::default()
        };
        let opened = Store::open_with_queues(dir, config, queues);
        let (store, _) = opened.map_err(|error| error.to_string())?;
        let ear = Arc::new(Ear::default());
        Ok(Self {
            store,
            ear,
            last: 0,
        })
    }

    fn started(dir: &std::path::Path, kind: Kind, options: &Options) -> Self {
        let node = Self::open(dir, kind, options).unwrap();
        node.store.start(node.ear.clone()).unwrap();
        node
    }

    fn submit(&mut self, write: impl FnOnce(&mut Batch)) {
        let mut batch = self.store.spare();
        write(&mut batch);
        self.last += 1;
        batch.number = self.last;
        self.store.submit(0, batch);
    }

    fn wait(&self) {
        let heard = self.ear.heard.lock().unwrap();
        let waits = |heard: &mut (u64, Vec<Page>)| heard.0 < self.last;
        let (_heard, timeout) = (self.ear.called)
            .wait_timeout_while(heard, PATIENCE, waits)
            .unwrap();
        assert!(!timeout.timed_out(), "not stored in time");
    }

    fn page(&self, fetch: Fetch) -> Page {
        self.store.fetch(0, fetch);
        let heard = self.ear.heard.lock().unwrap();
        let (mut heard, timeout) = (self.ear.called)
            .wait_timeout_while(heard, PATIENCE, |heard| heard.1.is_empty())
            .unwrap();
        assert!(!timeout.timed_out(), "not read in time");
        heard.1.remove(0)
    }

    fn all(&self, session: u64) -> Vec<store::Stored> {
        let mut all: Vec<store::Stored> = Vec::new();
        loop {
            let page = self.page(Fetch {
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

fn each(test: impl Fn(Kind, &Server)) {
    for (kind, program) in [
        (Kind::Redis, testkit::Kind::Redis),
        (Kind::MySql, testkit::Kind::MariaDb),
    ] {
        if let Some(server) = Server::start_or_skip(program) {
            test(kind, &server);
        }
    }
}

/// Bodies and entries still there that stand beside.
fn beside(kind: Kind, server: &Server) -> usize {
    match kind {
        Kind::Redis => server.redis(&["KEYS", "kit:m:*"]).len(),
        Kind::MySql => server.sql("SELECT id FROM kit_message").len(),
    }
}

#[test]
fn what_is_written_is_there_again() {
    each(|kind, server| {
        let dir = tempfile::tempdir().unwrap();
        let options = options(server.url());
        let mut node = Node::started(dir.path(), kind, &options);
        let large = vec![b'x'; 100_000];
        node.submit(|batch| {
            batch.message(&[b"sha", b"red\0'\\\xff"]);
            for session in 1..=3 {
                batch.entry(session, 10, 0, b"attr");
            }
            batch.message(&[&large]);
            batch.entry(1, 11, 5, b"");
            batch.put(Space::Retained, b"key", b"value");
            for seq in 12..=40 {
                batch.message(&[seq.to_string().as_bytes()]);
                batch.entry(1, seq, 0, b"");
            }
            batch.received(1, 77);
            batch.received(1, 78);
        });
        node.submit(|batch| {
            batch.sent(1, 10, 3);
            batch.released(1, 11);
            batch.done(2, 10);
            (13..=20).for_each(|seq| batch.done(1, seq));
            batch.forgotten(1, 77);
        });
        node.wait();
        let check = |node: &Node| {
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

        let mut node = Node::open(dir.path(), kind, &options).unwrap();
        let summary = node.store.queue(1).unwrap();
        assert_eq!(
            (summary.messages, summary.first_seq, summary.last_seq),
            (23, 10, 40)
        );
        assert_eq!(summary.received, [78]);
        assert_eq!(node.store.queue(2), None);
        node.store.start(node.ear.clone()).unwrap();
        check(&node);
        assert_eq!(beside(kind, server), 2);
        node.submit(|batch| batch.end(1));
        node.submit(|batch| batch.done(3, 10));
        node.wait();
        assert!(node.all(1).is_empty() && node.all(3).is_empty());
        node.store.close();
        assert_eq!(beside(kind, server), 0, "bodies are left over");
        drop(node);

        let other = tempfile::tempdir().unwrap();
        let refused = Node::open(other.path(), kind, &options).err().unwrap();
        assert!(refused.contains("belong to another node"), "{refused}");
        let (_, refused) = (dir.path(), Store::open(dir.path(), Config::default()));
        let refused = refused.err().unwrap().to_string();
        assert!(refused.contains("in another server"), "{refused}");
    });
}

/// Writes while `trouble` goes on, and looks that everything acknowledged is there, once and in order.
fn under_trouble(kind: Kind, options: &Options, trouble: impl FnOnce() + Send) {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::started(dir.path(), kind, options);
    let mut expected: HashMap<u64, Vec<u64>> = HashMap::new();
    std::thread::scope(|scope| {
        let trouble = scope.spawn(trouble);
        let mut seq = 0_u64;
        while !trouble.is_finished() || seq < 500 {
            seq += 1;
            node.submit(|batch| {
                batch.message(&[&seq.to_be_bytes()]);
                batch.entry(seq % 3, seq, 0, b"");
                batch.entry(3 + seq % 2, seq, 0, b"");
                expected.entry(seq % 3).or_default().push(seq);
                expected.entry(3 + seq % 2).or_default().push(seq);
                if seq > 50 && seq.is_multiple_of(5) {
                    let old = seq - 45;
                    batch.done(old % 3, old);
                    expected.get_mut(&(old % 3)).unwrap().retain(|s| *s != old);
                }
            });
            // Like a shard: not faster than the store takes it, for long.
            let deadline = Instant::now() + PATIENCE;
            while node.store.is_behind() {
                assert!(Instant::now() < deadline, "it does not heal");
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
    assert_eq!(node.store.health(), Health::Ok);
}

#[test]
fn a_killed_server_loses_and_doubles_nothing() {
    each(|kind, server| {
        under_trouble(kind, &options(server.url()), || {
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
        let proxy = Proxy::to(server.address());
        under_trouble(kind, &options(server.url_by(proxy.address())), || {
            for round in 0..20 {
                std::thread::sleep(Duration::from_millis(30 + round * 3));
                proxy.cut();
            }
            proxy.set(Mode::Delay(Duration::from_millis(40)));
            std::thread::sleep(Duration::from_millis(600));
            // Longer than a command may take: what was sent arrives later, from a connection given up.
            proxy.set(Mode::Stall);
            std::thread::sleep(Duration::from_millis(2700));
            proxy.set(Mode::Pass);
        });
    });
}

#[test]
fn new_messages_are_refused_while_too_much_waits() {
    each(|kind, server| {
        let dir = tempfile::tempdir().unwrap();
        let mut node = Node::started(dir.path(), kind, &options(server.url()));
        node.submit(|batch| batch.put(Space::Retained, b"a", b"b"));
        node.wait();
        server.kill();
        let deadline = Instant::now() + PATIENCE;
        let mut seq = 0;
        while node.store.health() == Health::Ok {
            assert!(Instant::now() < deadline, "nothing is refused");
            seq += 1;
            node.submit(|batch| {
                batch.message(&[&[7; 1000]]);
                batch.entry(1, seq, 0, b"");
            });
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!node.store.is_behind(), "it stands still before it refuses");
        server.start();
        node.wait();
        assert_eq!(node.all(1).len() as u64, seq);
        assert_eq!(node.store.health(), Health::Ok);
    });
}

#[test]
fn what_cannot_be_is_said_at_start_and_without_passwords() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, url) in [
        (Kind::Redis, "redis://u:geheim@127.0.0.1:1/0"),
        (Kind::MySql, "mysql://u:geheim@127.0.0.1:1/d"),
        (Kind::Redis, "geheim"),
        (Kind::MySql, "mysql://geheim@127.0.0.1"),
    ] {
        let options = options(url.into());
        let error = Node::open(dir.path(), kind, &options).err().unwrap();
        assert!(!error.contains("geheim"), "{error}");
        assert!(!format!("{options:?}").contains("geheim"));
    }
    // Nothing was taken: the directory can still be used without a server.
    Store::open(dir.path(), Config::default()).unwrap();
}

/// Keeps a message in a server and reads it back, trusting this authority alone; the error is that of the start.
fn by_tls(server: &Server, kind: Kind, authority: &Authority) -> Result<(), String> {
    let (scheme, path) = match kind {
        Kind::Redis => ("rediss", "0"),
        Kind::MySql => ("mysql", testkit::DATABASE),
    };
    let (user, password) = (testkit::USER, testkit::PASSWORD);
    let address = server.tls_address();
    let options = Options {
        tls_ca: Some(authority.file()),
        ..options(format!("{scheme}://{user}:{password}@{address}/{path}"))
    };
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::open(dir.path(), kind, &options)?;
    node.store.start(node.ear.clone()).unwrap();
    node.submit(|batch| {
        batch.message(&[b"secret"]);
        batch.entry(1, 1, 0, b"");
    });
    node.wait();
    assert_eq!(node.all(1).len(), 1);
    node.store.close();
    Ok(())
}

fn trusts_the_right_authority_and_name_alone(kind: Kind, server_kind: testkit::Kind) {
    let files = tempfile::tempdir().unwrap();
    let authority = Authority::new(files.path().join("ours"));
    let strangers = Authority::new(files.path().join("theirs"));
    let right = authority.server("right");
    let Some(server) = Server::start_with_tls_or_skip(server_kind, &right) else {
        return;
    };
    by_tls(&server, kind, &authority).unwrap();
    let error = by_tls(&server, kind, &strangers).unwrap_err();
    assert!(error.contains("certificate: UnknownIssuer"), "{error}");
    drop(server);
    let elsewhere = authority.server_named("elsewhere", &["db.example"]);
    let server = Server::start_with_tls_or_skip(server_kind, &elsewhere).unwrap();
    let error = by_tls(&server, kind, &authority).unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
}

#[test]
fn redis_by_tls() {
    trusts_the_right_authority_and_name_alone(Kind::Redis, testkit::Kind::Redis);
}

#[test]
fn mysql_by_tls() {
    trusts_the_right_authority_and_name_alone(Kind::MySql, testkit::Kind::MariaDb);
}
