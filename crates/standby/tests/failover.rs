//! Two nodes with real stores, and a record in memory: what is acknowledged, copied and adopted.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{
    BoxFuture, ClusterError, ClusterObjects, DownReason, ExpectedRevision, NodeName, ObjectChange,
    ObjectEntry, PeerNodeId, PutError,
};
use standby::{
    AdoptionProgress, CopyPhase, SessionCopies, SessionCopiesParts, SessionHold, SessionOwner,
};
use store::{QueuePage, StateKind, Store, StoreBatch, StoreConfig, StoreObserver};
use tokio::runtime::Runtime;

/// The record of the cluster.
#[derive(Default)]
struct MemoryObjects {
    entries: Mutex<HashMap<String, ObjectEntry>>,
    last_revision: AtomicU64,
    is_down: AtomicBool,
    /// The next write is carried out, and its answer is lost.
    loses_answer: AtomicBool,
}

impl MemoryObjects {
    /// The record about the standby of node `a`.
    fn standby_record_of_a(&self) -> serde_json::Value {
        let entries = self.entries.lock().unwrap();
        serde_json::from_slice(&entries["standby.a"].value).unwrap()
    }

    fn check(&self) -> Result<(), ClusterError> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(ClusterError::Unreachable("switched off".to_owned())),
            false => Ok(()),
        }
    }
}

impl ClusterObjects for MemoryObjects {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<ObjectEntry>, ClusterError>> {
        Box::pin(async move {
            self.check()?;
            Ok(self.entries.lock().unwrap().get(key).cloned())
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: ExpectedRevision,
    ) -> BoxFuture<'a, Result<u64, PutError>> {
        Box::pin(async move {
            self.check()?;
            let mut entries = self.entries.lock().unwrap();
            let known = entries.get(key).map(|entry| entry.revision);
            let is_expected = match expected {
                ExpectedRevision::Any => true,
                ExpectedRevision::Absent => known.is_none(),
                ExpectedRevision::Revision(revision) => known == Some(revision),
            };
            if !is_expected {
                return Err(PutError::Conflict);
            }
            let revision = self.last_revision.fetch_add(1, Ordering::SeqCst) + 1;
            entries.insert(key.to_owned(), ObjectEntry { value, revision });
            match self.loses_answer.swap(false, Ordering::SeqCst) {
                true => Err(ClusterError::Unreachable("no answer".to_owned()).into()),
                false => Ok(revision),
            }
        })
    }

    fn delete<'a>(
        &'a self,
        _key: &'a str,
        _expected: ExpectedRevision,
    ) -> BoxFuture<'a, Result<u64, PutError>> {
        unreachable!("records are not deleted")
    }

    fn watch(&self) -> tokio::sync::mpsc::Receiver<ObjectChange> {
        unreachable!("records are not watched")
    }
}

/// What a node was told to do.
#[derive(Default)]
struct Owner {
    calls: Mutex<Vec<String>>,
    /// Sessions with their queued messages, of the node that was adopted last.
    adopted: Mutex<BTreeMap<Vec<u8>, u64>>,
    hold: Mutex<Option<SessionHold>>,
    fails_to_adopt: AtomicBool,
    /// When the adoption began of which each attempt was.
    attempts_since_ms: Mutex<Vec<u64>>,
}

impl Owner {
    fn has_called(&self, call: &str) -> bool {
        self.calls.lock().unwrap().iter().any(|known| known == call)
    }

    fn record(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }
}

impl SessionOwner for Owner {
    fn set_standby_for(&self, node: &NodeName, is_standby: bool) {
        self.record(format!("standby {node} {is_standby}"));
    }

    fn begin_succession(&self, node: &NodeName) {
        self.record(format!("begin {node}"));
    }

    fn end_succession(&self, node: &NodeName, is_adopted: bool) {
        self.record(format!("end {node} {is_adopted}"));
    }

    fn confirm_succession(&self, node: &NodeName) {
        self.record(format!("confirm {node}"));
    }

    fn adopt_sessions(
        &self,
        node: &NodeName,
        copy: &Store,
        since_ms: u64,
        progress: &AdoptionProgress,
    ) -> Result<u64, String> {
        self.attempts_since_ms.lock().unwrap().push(since_ms);
        if self.fails_to_adopt.load(Ordering::SeqCst) {
            return Err("switched off".to_owned());
        }
        let mut adopted = BTreeMap::new();
        copy.scan(StateKind::Sessions, &mut |key, value| {
            let number = u64::from_le_bytes(value.try_into().unwrap());
            let mut messages = 0;
            copy.read_queue(number, &mut |entry| {
                assert_eq!(&entry.body[..], b"message");
                messages += 1;
            })
            .unwrap();
            adopted.insert(key.to_vec(), messages);
        })
        .unwrap();
        let count = adopted.len() as u64;
        progress.set(count, count);
        *self.adopted.lock().unwrap() = adopted;
        self.record(format!("adopt {node}"));
        Ok(count)
    }

    fn hold_sessions(&self, hold: SessionHold) {
        *self.hold.lock().unwrap() = Some(hold);
    }

    fn abandon_sessions(&self) -> bool {
        self.record("abandon".to_owned());
        true
    }
}

#[derive(Default)]
struct Logged(AtomicU64);

impl StoreObserver for Logged {
    fn on_logged(&self, _shard: u16, batch: u64) {
        self.0.fetch_max(batch, Ordering::SeqCst);
    }

    fn on_fetched(&self, _shard: u16, _page: QueuePage) {}
}

type Wires = Arc<Mutex<HashMap<PeerNodeId, Weak<SessionCopies>>>>;

struct TestNode {
    name: NodeName,
    directory: PathBuf,
    store: Store,
    copies: Arc<SessionCopies>,
    owner: Arc<Owner>,
    logged: Arc<Logged>,
    wires: Wires,
    /// The number by which the other node knows this one.
    own: PeerNodeId,
    last_batch: u64,
}

fn random() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(1);
    LAST.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst)
}

fn channel() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(1);
    LAST.fetch_add(1, Ordering::SeqCst)
}

fn config() -> StoreConfig {
    StoreConfig {
        segment_bytes: 64 << 10,
        ..StoreConfig::default()
    }
}

impl TestNode {
    /// `is_wanted`: the node wants a standby.
    fn start(
        name: &str,
        directory: PathBuf,
        objects: &Arc<MemoryObjects>,
        runtime: &Runtime,
        is_wanted: bool,
    ) -> Self {
        let (store, _) = Store::open(&directory.join("store"), config()).unwrap();
        let name = NodeName::new(name).unwrap();
        let (copies, owner) = (
            Arc::new(SessionCopies::default()),
            Arc::new(Owner::default()),
        );
        let wires = Wires::default();
        let own = PeerNodeId::new(0, channel());
        let outgoing = wires.clone();
        copies
            .start(SessionCopiesParts {
                node: name.clone(),
                store: store.clone(),
                directory: directory.join("standby"),
                copy_config: config(),
                objects: objects.clone(),
                send: Box::new(move |peer, message| {
                    let other = outgoing.lock().unwrap().get(&peer).and_then(Weak::upgrade);
                    if let Some(other) = other {
                        other.receive(own, message);
                    }
                }),
                owner: owner.clone(),
                runtime: runtime.handle().clone(),
                can_keep_copies: true,
                random,
                start_delay: Duration::from_millis(1500),
                is_wanted: Box::new(move || is_wanted),
            })
            .unwrap();
        let logged = Arc::new(Logged::default());
        store.start(logged.clone()).unwrap();
        Self {
            name,
            directory,
            store,
            copies,
            owner,
            logged,
            wires,
            own,
            last_batch: 0,
        }
    }

    fn submit(&mut self, change: impl FnOnce(&mut StoreBatch)) -> u64 {
        self.last_batch += 1;
        let mut batch = StoreBatch::default();
        batch.number = self.last_batch;
        change(&mut batch);
        self.store.submit(0, batch);
        self.last_batch
    }

    fn add_session(&mut self, number: u64) -> u64 {
        self.submit(|batch| {
            let key = format!("session {number}");
            batch.put(StateKind::Sessions, key.as_bytes(), &number.to_le_bytes());
        })
    }

    fn queue(&mut self, session: u64, seq: u64) -> u64 {
        self.submit(|batch| {
            batch.begin_message(&[b"message"]);
            batch.add_entry(session, seq, 0, b"");
        })
    }

    fn complete(&mut self, session: u64, seq: u64) -> u64 {
        self.submit(|batch| batch.complete_entry(session, seq))
    }

    fn is_logged(&self, batch: u64) -> bool {
        self.logged.0.load(Ordering::SeqCst) >= batch
    }

    fn phase(&self) -> CopyPhase {
        self.copies.status().own.phase
    }

    /// Ends as by kill -9: nobody is told.
    fn kill(self) -> PathBuf {
        self.copies.stop();
        self.store.close();
        self.directory
    }
}

fn connect(a: &TestNode, b: &TestNode) {
    a.wires
        .lock()
        .unwrap()
        .insert(b.own, Arc::downgrade(&b.copies));
    b.wires
        .lock()
        .unwrap()
        .insert(a.own, Arc::downgrade(&a.copies));
    // The first one begins a copy at once; a channel delivers nothing before both nodes know it.
    b.copies.peer_up(a.own, &a.name);
    a.copies.peer_up(b.own, &b.name);
}

fn disconnect(a: &TestNode, other: PeerNodeId) {
    a.wires.lock().unwrap().remove(&other);
    a.copies.peer_down(other, DownReason::Silent);
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    // Files are synced, on a disk that other tests may use at the same time.
    let until = Instant::now() + Duration::from_secs(60);
    while !check() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Nodes `a`, which wants a standby, and `b`.
struct Pair {
    objects: Arc<MemoryObjects>,
    runtime: Runtime,
    directories: Vec<tempfile::TempDir>,
    a: TestNode,
    b: TestNode,
}

impl Pair {
    fn start() -> Self {
        let objects = Arc::new(MemoryObjects::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let directories = vec![tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let path = |n: usize| directories[n].path().to_path_buf();
        let a = TestNode::start("a", path(0), &objects, &runtime, true);
        let b = TestNode::start("b", path(1), &objects, &runtime, false);
        Self {
            objects,
            runtime,
            directories,
            a,
            b,
        }
    }

    /// With ten sessions of ten messages, half of which were acknowledged, before the copy and after it.
    fn with_current_standby() -> Self {
        let mut pair = Self::start();
        for session in 1..=5 {
            pair.fill(session);
        }
        connect(&pair.a, &pair.b);
        eventually("the standby is current", || {
            pair.a.phase() == CopyPhase::Current
        });
        for session in 6..=10 {
            pair.fill(session);
        }
        let last = pair.a.last_batch;
        eventually("everything is acknowledged", || pair.a.is_logged(last));
        pair
    }

    fn fill(&mut self, session: u64) {
        self.a.add_session(session);
        for seq in 1..=10 {
            self.a.queue(session, seq);
        }
        for seq in 1..=5 {
            self.a.complete(session, seq);
        }
    }
}

fn expected() -> BTreeMap<Vec<u8>, u64> {
    let sessions = 1..=10_u64;
    sessions
        .map(|number| (format!("session {number}").into_bytes(), 5))
        .collect()
}

#[test]
fn the_standby_of_a_killed_node_adopts_what_was_acknowledged_and_the_node_abandons_it() {
    let pair = Pair::with_current_standby();
    let Pair {
        objects,
        runtime,
        directories,
        a,
        b,
    } = pair;
    let old = a.own;
    let directory = a.kill();
    disconnect(&b, old);
    eventually("the sessions are adopted", || {
        b.owner.has_called("end a true")
    });
    assert_eq!(*b.owner.adopted.lock().unwrap(), expected());
    eventually("the copy is removed", || {
        !b.directory.join("standby/a/store").exists()
    });
    eventually("the adoption is shown", || {
        b.copies.status().adopted_sessions == 10
    });
    // It returns: nothing of it is acknowledged before its sessions are removed.
    let a = TestNode::start("a", directory, &objects, &runtime, true);
    eventually("the sessions are abandoned", || {
        a.owner.has_called("abandon")
    });
    connect(&a, &b);
    eventually("the standby is current again", || {
        a.phase() == CopyPhase::Current
    });
    assert_eq!(*a.owner.hold.lock().unwrap(), Some(SessionHold::Released));
    drop(directories);
}

#[test]
fn nothing_is_acknowledged_that_a_current_standby_does_not_have() {
    let mut pair = Pair::with_current_standby();
    // The connection is lost, and nobody has noticed it.
    pair.a.wires.lock().unwrap().clear();
    let batch = pair.a.queue(1, 50);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!pair.a.is_logged(batch));
    assert_eq!(pair.a.phase(), CopyPhase::Current);
    // Now the node notices, but cannot tell the cluster.
    pair.objects.is_down.store(true, Ordering::SeqCst);
    pair.a.copies.peer_down(pair.b.own, DownReason::Silent);
    eventually("the standby is being removed", || {
        pair.a.phase() == CopyPhase::RemovingStandby
    });
    std::thread::sleep(Duration::from_millis(700));
    assert!(!pair.a.is_logged(batch));
    assert_eq!(
        *pair.a.owner.hold.lock().unwrap(),
        Some(SessionHold::Withheld)
    );
    pair.objects.is_down.store(false, Ordering::SeqCst);
    eventually("it is acknowledged without a standby", || {
        pair.a.is_logged(batch)
    });
    assert_eq!(pair.a.phase(), CopyPhase::NoStandby);
    // The standby adopts nothing any more.
    disconnect(&pair.b, pair.a.own);
    eventually("it declines", || pair.b.owner.has_called("end a false"));
    assert!(!pair.b.owner.has_called("adopt a"));
}

#[test]
fn a_node_that_was_adopted_while_it_was_separated_acknowledges_nothing_and_ends_its_sessions() {
    for loses_answer in [false, true] {
        adopt_while_separated(loses_answer);
    }
}

/// `loses_answer`: that of the last change of the record.
fn adopt_while_separated(loses_answer: bool) {
    let mut pair = Pair::with_current_standby();
    pair.a.wires.lock().unwrap().clear();
    disconnect(&pair.b, pair.a.own);
    eventually("the sessions are adopted", || {
        pair.b.owner.has_called("end a true")
    });
    let batch = pair.a.queue(1, 50);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!pair.a.is_logged(batch));
    (pair.objects.loses_answer).store(loses_answer, Ordering::SeqCst);
    pair.a.copies.peer_down(pair.b.own, DownReason::Silent);
    eventually("the sessions end", || pair.a.owner.has_called("abandon"));
    // Clients would get new sessions before the other node can be asked.
    std::thread::sleep(Duration::from_millis(1200));
    assert!(!pair.objects.loses_answer.load(Ordering::SeqCst));
    assert_eq!(pair.a.phase(), CopyPhase::Adopted);
    assert_eq!(*pair.a.owner.hold.lock().unwrap(), Some(SessionHold::Held));
    connect(&pair.a, &pair.b);
    eventually("the node continues", || {
        *pair.a.owner.hold.lock().unwrap() == Some(SessionHold::Released)
    });
}

/// A node that has started again changes its record before it is a member.
#[test]
fn clients_wait_for_a_node_that_has_taken_its_sessions_back() {
    let Pair {
        objects,
        runtime,
        directories,
        a,
        b,
    } = Pair::with_current_standby();
    let old = a.own;
    let directory = a.kill();
    let a = TestNode::start("a", directory, &objects, &runtime, true);
    eventually("the record names no standby", || {
        objects.standby_record_of_a()["standby"].is_null()
    });
    // The beginning of the copy has called it, too.
    b.owner.calls.lock().unwrap().clear();
    disconnect(&b, old);
    eventually("the standby declines", || {
        b.owner.has_called("standby a false")
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(!b.owner.has_called("end a false"));
    connect(&a, &b);
    eventually("clients wait no longer", || {
        b.owner.has_called("end a false")
    });
    assert!(!b.owner.has_called("adopt a"));
    drop(directories);
}

#[test]
fn a_node_whose_log_has_no_frames_gets_a_standby() {
    let Pair {
        objects,
        runtime,
        directories,
        a,
        b,
    } = Pair::start();
    let of_a = a.kill();
    // Everything was removed from the log.
    let store_of_a = of_a.join("store");
    for run in 0..3 {
        let (store, _) = Store::open(&store_of_a, config()).unwrap();
        store.start(Arc::new(Logged::default())).unwrap();
        if run == 0 {
            let mut batch = StoreBatch::default();
            batch.put(StateKind::Sessions, b"session 1", &1_u64.to_le_bytes());
            store.submit(0, batch);
            store.compact();
            std::thread::sleep(Duration::from_millis(1500));
        }
        store.close();
    }
    let mut a = TestNode::start("a", of_a, &objects, &runtime, true);
    connect(&a, &b);
    eventually("the standby is current", || a.phase() == CopyPhase::Current);
    let batch = a.queue(1, 1);
    eventually("it is acknowledged", || a.is_logged(batch));
    let old = a.own;
    a.kill();
    disconnect(&b, old);
    eventually("the sessions are adopted", || {
        b.owner.has_called("end a true")
    });
    let adopted = b.owner.adopted.lock().unwrap().clone();
    assert_eq!(adopted, BTreeMap::from([(b"session 1".to_vec(), 1)]));
    drop(directories);
}

#[test]
fn a_standby_continues_where_it_was_interrupted() {
    let mut pair = Pair::with_current_standby();
    let sent_bytes = pair.a.copies.status().own.sent_bytes;
    pair.a.copies.peer_down(pair.b.own, DownReason::Silent);
    eventually("it is removed", || pair.a.phase() == CopyPhase::NoStandby);
    let batch = pair.a.queue(1, 60);
    eventually("it is acknowledged", || pair.a.is_logged(batch));
    pair.a.complete(1, 60);
    pair.a.copies.peer_up(pair.b.own, &pair.b.name);
    eventually("the standby is current again", || {
        pair.a.phase() == CopyPhase::Current
    });
    let after = pair.a.copies.status().own.sent_bytes;
    assert!(after < sent_bytes + 1000, "{sent_bytes} {after}");
    let old = pair.a.own;
    let batch = pair.a.queue(2, 61);
    eventually("it is acknowledged", || pair.a.is_logged(batch));
    pair.a.kill();
    disconnect(&pair.b, old);
    eventually("the sessions are adopted", || {
        pair.b.owner.has_called("end a true")
    });
    let mut expected = expected();
    expected.insert(b"session 2".to_vec(), 6);
    assert_eq!(*pair.b.owner.adopted.lock().unwrap(), expected);
}

#[test]
fn a_standby_that_starts_again_adopts_the_sessions_of_a_node_that_does_not_return() {
    let Pair {
        objects,
        runtime,
        directories,
        a,
        b,
    } = Pair::with_current_standby();
    // Both are killed; only the standby returns.
    let of_a = a.kill();
    let of_b = b.kill();
    let b = TestNode::start("b", of_b, &objects, &runtime, false);
    b.owner.fails_to_adopt.store(true, Ordering::SeqCst);
    assert!(b.owner.has_called("standby a true"));
    // Clients wait, and it waits for the other one for some time.
    assert!(b.owner.has_called("begin a"));
    std::thread::sleep(Duration::from_secs(1));
    let is_adopting = || objects.standby_record_of_a()["adopted_by"] == "b";
    assert!(!is_adopting());
    eventually("it begins to adopt", is_adopting);
    let attempts = |node: &TestNode| node.owner.attempts_since_ms.lock().unwrap().clone();
    eventually("it tries again", || attempts(&b).len() > 1);
    let began_ms = attempts(&b)[0];
    // It is killed meanwhile, and the node returns: it has to wait.
    let of_b = b.kill();
    let a = TestNode::start("a", of_a, &objects, &runtime, true);
    eventually("the node notices", || a.phase() == CopyPhase::Adopted);
    let b = TestNode::start("b", of_b, &objects, &runtime, false);
    connect(&a, &b);
    eventually("the adoption continues", || {
        b.owner.has_called("end a true")
    });
    assert_eq!(*b.owner.adopted.lock().unwrap(), expected());
    assert_eq!(attempts(&b), [began_ms], "it is the same adoption");
    eventually("the node abandons its sessions", || {
        a.owner.has_called("abandon")
    });
    drop(directories);
}

/// What it adopted would end with its own sessions.
#[test]
fn a_standby_whose_own_sessions_are_adopted_waits_until_it_has_ended_them() {
    let Pair {
        objects,
        runtime: _runtime,
        directories,
        a,
        b,
    } = Pair::with_current_standby();
    let set_record_of_b = |adopted_by: Option<&str>| {
        let mut record = objects.standby_record_of_a();
        record["standby"] = serde_json::Value::Null;
        record["adopted_by"] = adopted_by.into();
        let entry = ObjectEntry {
            value: serde_json::to_vec(&record).unwrap().into(),
            revision: 1 + objects.last_revision.fetch_add(1, Ordering::SeqCst),
        };
        let mut entries = objects.entries.lock().unwrap();
        entries.insert("standby.b".to_owned(), entry);
    };
    set_record_of_b(Some("c"));
    let old = a.own;
    a.kill();
    disconnect(&b, old);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(objects.standby_record_of_a()["standby"], "b");
    set_record_of_b(None);
    eventually("the sessions are adopted", || {
        b.owner.has_called("end a true")
    });
    assert_eq!(*b.owner.adopted.lock().unwrap(), expected());
    drop(directories);
}

/// The servers have lost all records, and the node as well as its standby are down.
fn lose_records_and_nodes() -> (LostRecords, PathBuf, PathBuf) {
    let pair = Pair::with_current_standby();
    let (of_a, of_b) = (pair.a.kill(), pair.b.kill());
    pair.objects.entries.lock().unwrap().clear();
    let lost = LostRecords {
        objects: pair.objects,
        runtime: pair.runtime,
        _directories: pair.directories,
    };
    (lost, of_a, of_b)
}

struct LostRecords {
    objects: Arc<MemoryObjects>,
    runtime: Runtime,
    _directories: Vec<tempfile::TempDir>,
}

impl LostRecords {
    fn start(&self, name: &str, directory: PathBuf) -> TestNode {
        TestNode::start(name, directory, &self.objects, &self.runtime, false)
    }

    fn record(&self) -> serde_json::Value {
        let entries = self.objects.entries.lock().unwrap();
        let entry = entries.get("standby.a");
        entry.map_or(serde_json::Value::Null, |entry| {
            serde_json::from_slice(&entry.value).unwrap()
        })
    }
}

fn request_adoption(of_b: &std::path::Path) {
    let copies = standby::stored_copies(&of_b.join("standby")).unwrap();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].node.as_str(), "a");
    assert!(copies[0].is_complete && !copies[0].is_adopted);
    assert!(copies[0].changed.is_some());
    standby::request_adoption(&copies[0]).unwrap();
}

#[test]
fn without_records_nothing_is_adopted_and_the_node_keeps_its_sessions() {
    let (lost, of_a, of_b) = lose_records_and_nodes();
    let b = lost.start("b", of_b);
    eventually("it declines", || b.owner.has_called("end a false"));
    assert!(!b.owner.has_called("adopt a"));
    let mut a = lost.start("a", of_a);
    eventually("the node releases its sessions", || {
        *a.owner.hold.lock().unwrap() == Some(SessionHold::Released)
    });
    assert!(!a.owner.has_called("abandon"));
    let batch = a.queue(1, 50);
    eventually("it is acknowledged", || a.is_logged(batch));
}

#[test]
fn without_records_the_sessions_of_a_lost_node_are_adopted_on_request() {
    let (lost, of_a, of_b) = lose_records_and_nodes();
    request_adoption(&of_b);
    let b = lost.start("b", of_b);
    assert!(b.owner.has_called("begin a"), "clients wait");
    std::thread::sleep(Duration::from_millis(800));
    assert!(lost.record().is_null(), "the node may appear");
    b.owner.fails_to_adopt.store(true, Ordering::SeqCst);
    eventually("it begins to adopt", || lost.record()["adopted_by"] == "b");
    // It is killed meanwhile, and continues.
    let of_b = b.kill();
    let b = lost.start("b", of_b);
    eventually("the sessions are adopted", || {
        b.owner.has_called("end a true")
    });
    assert_eq!(*b.owner.adopted.lock().unwrap(), expected());
    eventually("the copy and the request are removed", || {
        !b.directory.join("standby/a").exists()
    });
    // The node was not lost: it acknowledges nothing, and ends its sessions.
    let a = lost.start("a", of_a);
    eventually("the sessions are abandoned", || {
        a.owner.has_called("abandon")
    });
}

#[test]
fn a_node_that_was_declared_lost_and_returns_keeps_its_sessions() {
    // It may be reachable, or may only have written its record.
    for is_reachable in [true, false] {
        let (lost, of_a, of_b) = lose_records_and_nodes();
        request_adoption(&of_b);
        let a = lost.start("a", of_a);
        eventually("it has its sessions back", || {
            a.phase() == CopyPhase::NoStandby
        });
        if is_reachable {
            // As after a loss of its own record: nothing but the connection says that it runs.
            lost.objects.entries.lock().unwrap().clear();
        }
        let b = lost.start("b", of_b);
        if is_reachable {
            connect(&a, &b);
        }
        eventually("the request is declined", || {
            b.owner.has_called("end a false")
        });
        // Nor is anything adopted when it is lost later.
        disconnect(&b, a.own);
        eventually("the copy is removed", || {
            !b.directory.join("standby/a").exists()
        });
        std::thread::sleep(Duration::from_millis(1800));
        assert!(!b.owner.has_called("adopt a"));
        assert!(lost.record()["adopted_by"].is_null());
    }
}
