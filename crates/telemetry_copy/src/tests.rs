//! Two nodes without sockets: one sends its telemetry, the other one keeps the copy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use series::{
    DeviceNo, Point, PointValue, PolicyAssignment, RangeQuery, RetentionPolicy, Series,
    SeriesConfig,
};

use crate::copied_series::CopiedSeries;
use crate::keeper::CopyKeeper;
use crate::lock::lock;
use crate::message::{CopyRequest, ReceivedRequest, decode_request, encode_answer};
use crate::ports::{CopiedDevices, CopyPeers};
use crate::sender::{CopySender, CopySenderParts, STANDBY_PATIENCE};
use crate::status::CopyState;

const DAY: i64 = 86_400_000;
/// Products of the test.
const COPIED: &str = "copied";

fn config() -> SeriesConfig {
    SeriesConfig {
        min_free_bytes: 0,
        memtable_bytes: 1 << 20,
        wal_segment_bytes: 1 << 20,
        assignment: PolicyAssignment {
            policies: vec![(
                0,
                RetentionPolicy {
                    retention_ms: None,
                    tiers: Vec::new(),
                },
            )],
            ..PolicyAssignment::default()
        },
        ..SeriesConfig::default()
    }
}

/// Devices by id: number and product.
#[derive(Default)]
struct TestDevices {
    devices: Mutex<BTreeMap<String, (u32, String)>>,
    products: Mutex<BTreeSet<String>>,
}

impl TestDevices {
    fn add(&self, id: &str, number: u32, product: &str) {
        let device = (number, product.to_owned());
        lock(&self.devices).insert(id.to_owned(), device);
    }

    fn set_products(&self, products: &[&str]) {
        *lock(&self.products) = products.iter().map(|id| (*id).to_owned()).collect();
    }
}

impl CopiedDevices for TestDevices {
    fn products(&self) -> BTreeSet<String> {
        lock(&self.products).clone()
    }

    fn device(&self, number: DeviceNo) -> Result<Option<(String, String)>, String> {
        let devices = lock(&self.devices);
        let found = devices.iter().find(|(_, (known, _))| *known == number.0);
        Ok(found.map(|(id, (_, product))| (id.clone(), product.clone())))
    }

    fn by_id(&self, id: &str) -> Result<Option<(DeviceNo, String)>, String> {
        let devices = lock(&self.devices);
        let found = devices.get(id);
        Ok(found.map(|(number, product)| (DeviceNo(*number), product.clone())))
    }
}

/// A node that keeps copies.
struct Standby {
    directory: PathBuf,
    devices: Arc<TestDevices>,
    keeper: Mutex<Option<CopyKeeper>>,
}

impl Standby {
    fn new(directory: PathBuf) -> Arc<Self> {
        let this = Self {
            directory,
            devices: Arc::default(),
            keeper: Mutex::default(),
        };
        this.start();
        Arc::new(this)
    }

    fn start(&self) {
        let devices = self.devices.clone();
        let opened = CopyKeeper::open(
            self.directory.clone(),
            Box::new(config),
            devices,
            Instant::now(),
        );
        *lock(&self.keeper) = Some(opened.unwrap());
    }

    /// The end of the process: nothing is written any more.
    fn kill(&self) {
        *lock(&self.keeper) = None;
    }

    fn answer(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let keeper = lock(&self.keeper);
        let keeper = keeper.as_ref().ok_or("it has ended")?;
        let now = Instant::now();
        let answer = match decode_request(request)? {
            ReceivedRequest::Batch(head, entries) => keeper.store(&head, entries, now)?,
            ReceivedRequest::Json(CopyRequest::Begin { source, copy, run }) => {
                keeper.begin(&source, (copy, run), now)?
            }
            ReceivedRequest::Json(CopyRequest::Announce { .. }) => unreachable!(),
        };
        Ok(encode_answer(&answer))
    }

    /// Rows of a device in all copies: time, and values by key.
    fn rows(&self, device: &str) -> Vec<(i64, Vec<(String, i64)>)> {
        let Some((number, _)) = self.devices.by_id(device).unwrap() else {
            return Vec::new();
        };
        let keeper = lock(&self.keeper);
        let copies = keeper.as_ref().unwrap().copies();
        copies
            .iter()
            .flat_map(|copy| rows_of(&copy.series, number))
            .collect()
    }

    fn is_complete(&self) -> bool {
        let keeper = lock(&self.keeper);
        let places = keeper.as_ref().unwrap().places();
        !places.is_empty() && places.iter().all(|copy| copy.is_complete)
    }
}

fn rows_of(series: &Series, device: DeviceNo) -> Vec<(i64, Vec<(String, i64)>)> {
    let mut rows = Vec::new();
    let all = &RangeQuery::default();
    let read = series.range(device, None, all, &mut |row| {
        let values = row.points.iter().map(|point| {
            let PointValue::Int(value) = point.value else {
                panic!("{point:?}");
            };
            (series.key_name(point.key).unwrap().to_owned(), value)
        });
        let mut values: Vec<_> = values.collect();
        values.sort();
        rows.push((row.ts_ms, values));
        ControlFlow::Continue(())
    });
    read.unwrap();
    rows
}

/// The connection of the sending node with others.
#[derive(Default)]
struct TestPeers {
    nodes: Mutex<BTreeMap<String, Arc<Standby>>>,
    unreachable: Mutex<BTreeSet<String>>,
    /// Every second request is lost, or its answer, in turn.
    is_lossy: AtomicBool,
    requests: AtomicU64,
}

impl CopyPeers for TestPeers {
    fn reachable(&self) -> Vec<String> {
        let unreachable = lock(&self.unreachable);
        let nodes = lock(&self.nodes);
        let names = nodes.keys().filter(|node| !unreachable.contains(*node));
        names.cloned().collect()
    }

    fn request(&self, node: &str, request: &[u8]) -> Result<Vec<u8>, String> {
        if lock(&self.unreachable).contains(node) {
            return Err("it cannot be reached".to_owned());
        }
        assert!(request.len() < 1 << 20);
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let is_lossy = self.is_lossy.load(Ordering::Relaxed);
        if is_lossy && number % 4 == 1 {
            return Err("the request was lost".to_owned());
        }
        let standby = lock(&self.nodes)[node].clone();
        let answer = standby.answer(request)?;
        match is_lossy && number % 4 == 3 {
            true => Err("the answer was lost".to_owned()),
            false => Ok(answer),
        }
    }

    fn notify(&self, _: &str, _: &[u8]) {
        unreachable!("senders do not announce");
    }
}

/// The clock of the sender.
static CLOCK_S: AtomicU64 = AtomicU64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(1);

fn now() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_secs(CLOCK_S.load(Ordering::Relaxed))
}

fn random() -> u64 {
    RANDOM.fetch_add(1, Ordering::Relaxed)
}

/// A node that sends.
struct Origin {
    directory: PathBuf,
    devices: Arc<TestDevices>,
    peers: Arc<TestPeers>,
    series: CopiedSeries,
    sender: CopySender,
}

const QUEUE_BYTES: usize = 256 << 10;

impl Origin {
    fn open(directory: &Path, devices: Arc<TestDevices>, peers: Arc<TestPeers>) -> Self {
        let (series, _) = Series::open(&directory.join("telemetry"), config()).unwrap();
        let series = CopiedSeries::with_queue(series, QUEUE_BYTES);
        let sender = CopySender::open(CopySenderParts {
            node: "origin".to_owned(),
            series: series.clone(),
            devices: devices.clone(),
            peers: peers.clone(),
            directory: directory.join("own"),
            random,
            now,
        });
        Self {
            directory: directory.to_owned(),
            devices,
            peers,
            series,
            sender: sender.unwrap(),
        }
    }

    fn restart(self) -> Self {
        let Self {
            directory,
            devices,
            peers,
            series,
            sender,
        } = self;
        drop((series, sender));
        Self::open(&directory, devices, peers)
    }

    fn append(&self, device: &str, ts_ms: i64, values: &[(&str, i64)]) {
        let (number, product) = self.devices.by_id(device).unwrap().unwrap();
        let points: Vec<_> = values
            .iter()
            .map(|(key, value)| Point {
                key: self.series.series().get_or_create_key(key).unwrap(),
                value: PointValue::Int(*value),
            })
            .collect();
        let is_copied = lock(&self.devices.products).contains(&product);
        let stored = self.series.submit(number, ts_ms, &points, is_copied);
        stored.unwrap();
    }

    fn delete(&self, device: &str, keys: Option<&[&str]>, from_ms: i64, to_ms: i64) {
        let (number, _) = self.devices.by_id(device).unwrap().unwrap();
        let series = self.series.series();
        let keys: Option<Vec<_>> = keys.map(|keys| {
            keys.iter()
                .map(|key| series.find_key(key).unwrap())
                .collect()
        });
        let deleted = self
            .series
            .delete_range(number, keys.as_deref(), from_ms, to_ms);
        deleted.unwrap();
    }

    fn rows(&self, device: &str) -> Vec<(i64, Vec<(String, i64)>)> {
        let (number, _) = self.devices.by_id(device).unwrap().unwrap();
        rows_of(self.series.series(), number)
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.sender.step();
        }
    }

    fn state(&self) -> CopyState {
        self.sender.status().state
    }

    /// Until the copy is complete, and nothing is left to send.
    fn settle(&mut self) {
        for _ in 0..2000 {
            let pause = self.sender.step();
            let load = self.series.queue_load();
            if self.state() == CopyState::Complete && load.bytes == 0 && !pause.is_zero() {
                return;
            }
            // Retries are due.
            CLOCK_S.fetch_add(1, Ordering::Relaxed);
        }
        panic!("{:?}", self.sender.status());
    }
}

struct Pair {
    _directory: tempfile::TempDir,
    origin: Origin,
    standby: Arc<Standby>,
}

/// Both nodes know the devices `a` and `b` of the copied product and `x` of another one, with different numbers.
fn pair() -> Pair {
    let directory = tempfile::tempdir().unwrap();
    let standby = Standby::new(directory.path().join("standby"));
    let devices = Arc::new(TestDevices::default());
    devices.set_products(&[COPIED]);
    for (at, (id, product)) in [("a", COPIED), ("b", COPIED), ("x", "other")]
        .iter()
        .enumerate()
    {
        devices.add(id, at as u32, product);
        standby.devices.add(id, 100 - 7 * at as u32, product);
    }
    let peers = Arc::new(TestPeers::default());
    lock(&peers.nodes).insert("standby".to_owned(), standby.clone());
    let origin = Origin::open(&directory.path().join("origin"), devices, peers);
    Pair {
        _directory: directory,
        origin,
        standby,
    }
}

#[test]
fn rows_and_deletions_are_copied_in_order() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    // Before anything was sent, and afterwards.
    origin.append("a", 10 * DAY, &[("t", 1), ("u", 2)]);
    origin.append("x", 10 * DAY, &[("t", 1)]);
    origin.settle();
    assert!(standby.is_complete());
    for ts in 0..500 {
        origin.append("a", 11 * DAY + ts, &[("t", ts)]);
        origin.append("b", 12 * DAY + ts, &[("v", ts)]);
    }
    origin.delete("a", None, 11 * DAY, 11 * DAY + 400);
    // Later than the deletion, and a later value of a time.
    origin.append("a", 11 * DAY + 7, &[("t", -7)]);
    origin.append("a", 11 * DAY + 450, &[("t", -450)]);
    origin.delete("b", Some(&["v"]), 12 * DAY + 10, 12 * DAY + 500);
    origin.settle();
    assert_eq!(standby.rows("a"), origin.rows("a"));
    assert_eq!(standby.rows("a").len(), 102);
    assert_eq!(standby.rows("b"), origin.rows("b"));
    assert_eq!(standby.rows("b").len(), 10);
    assert_eq!(standby.rows("x"), []);
    let status = origin.sender.status();
    assert_eq!(status.standby.as_deref(), Some("standby"));
    assert!(status.sent_rows >= 1003, "{status:?}");
}

#[test]
fn lost_messages_and_restarts_of_both_nodes_lose_nothing() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    origin.peers.is_lossy.store(true, Ordering::Relaxed);
    for round in 0..12_i64 {
        for ts in 0..50 {
            let ts = (10 + round) * DAY + ts;
            origin.append("a", ts, &[("t", ts)]);
            origin.append("b", 3 * DAY + round * 100 + ts % DAY, &[("v", ts)]);
        }
        if round % 3 == 2 {
            origin.delete("a", None, (9 + round) * DAY + 10, (10 + round) * DAY + 40);
            origin.append("a", (10 + round) * DAY + 20, &[("t", round)]);
        }
        origin.steps(3 + round as usize % 4);
        match round % 4 {
            0 => {
                standby.kill();
                origin.steps(2);
                standby.start();
            }
            1 => origin = origin.restart(),
            2 => {
                standby.kill();
                origin = origin.restart();
                standby.start();
            }
            _ => origin.settle(),
        }
    }
    origin.settle();
    assert!(origin.rows("a").len() > 250);
    for device in ["a", "b"] {
        assert_eq!(standby.rows(device), origin.rows(device));
    }
    assert!(standby.is_complete());
}

#[test]
fn a_queue_that_overflows_is_completed_from_the_time_series() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    origin.append("a", DAY, &[("t", 0)]);
    origin.settle();
    lock(&origin.peers.unreachable).insert("standby".to_owned());
    origin.steps(2);
    assert_eq!(origin.state(), CopyState::Interrupted);
    // More than the queue has room for.
    for ts in 0..20_000 {
        let name = if ts % 2 == 0 { "a" } else { "b" };
        origin.append(name, 20 * DAY + ts, &[("t", ts), ("u", i64::MAX - ts)]);
    }
    assert!(origin.series.queue_load().has_overflowed);
    origin.delete("a", None, 0, 2 * DAY);
    origin.delete("b", None, 20 * DAY, 20 * DAY + 100);
    origin.append("b", 20 * DAY + 50, &[("t", 50)]);
    lock(&origin.peers.unreachable).clear();
    origin.settle();
    for device in ["a", "b"] {
        assert_eq!(standby.rows(device), origin.rows(device));
    }
    assert_eq!(standby.rows("b").len(), 9951);
}

#[test]
fn a_standby_that_stays_away_is_replaced() {
    let Pair {
        _directory,
        mut origin,
        standby,
    } = pair();
    for ts in 0..3000 {
        origin.append("a", 5 * DAY + ts, &[("t", ts)]);
    }
    origin.settle();
    let other = Standby::new(_directory.path().join("other"));
    other.devices.add("a", 3, COPIED);
    lock(&origin.peers.nodes).insert("other".to_owned(), other.clone());
    origin.settle();
    // It has no reason to change.
    assert_eq!(other.rows("a"), []);
    lock(&origin.peers.unreachable).insert("standby".to_owned());
    origin.delete("a", None, 5 * DAY, 5 * DAY + 1000);
    origin.steps(2);
    assert_eq!(origin.state(), CopyState::Interrupted);
    CLOCK_S.fetch_add(STANDBY_PATIENCE.as_secs() / 2, Ordering::Relaxed);
    origin.steps(2);
    assert_eq!(origin.state(), CopyState::Interrupted);
    CLOCK_S.fetch_add(STANDBY_PATIENCE.as_secs(), Ordering::Relaxed);
    origin.settle();
    assert_eq!(other.rows("a"), origin.rows("a"));
    assert_eq!(other.rows("a").len(), 2000);
    // The former one removes its copy when it hears of the new one.
    assert_eq!(standby.rows("a").len(), 3000);
    let own = origin.sender.own_copy().unwrap();
    assert!(own.is_complete);
    let follow = |standby: &Standby| {
        let keeper = lock(&standby.keeper);
        let keeper = keeper.as_ref().unwrap();
        keeper.follow_announcement("origin", &own);
        keeper.copies().len()
    };
    assert_eq!((follow(&standby), follow(&other)), (0, 1));
}

#[test]
fn devices_that_the_standby_does_not_know_yet_are_copied_later() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    origin.settle();
    origin.devices.add("new", 44, COPIED);
    for ts in 0..10 {
        origin.append("new", DAY + ts, &[("t", ts)]);
    }
    origin.append("a", DAY, &[("t", 5)]);
    origin.steps(5);
    assert_eq!(standby.rows("a"), origin.rows("a"));
    assert!(!standby.is_complete());
    assert_eq!(origin.state(), CopyState::Completing);
    // A restart does not forget them.
    origin = origin.restart();
    origin.steps(5);
    assert!(!standby.is_complete());
    standby.devices.add("new", 12, COPIED);
    origin.settle();
    assert_eq!(standby.rows("new"), origin.rows("new"));
    assert!(standby.is_complete());
}

#[test]
fn products_are_added_and_removed() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    for ts in 0..100 {
        origin.append("a", DAY + ts, &[("t", ts)]);
        origin.append("x", DAY + ts, &[("t", ts)]);
    }
    origin.settle();
    assert_eq!((standby.rows("a").len(), standby.rows("x").len()), (100, 0));
    origin.devices.set_products(&[COPIED, "other"]);
    let covers = |product: &str| {
        let keeper = lock(&standby.keeper);
        keeper.as_ref().unwrap().copies()[0].covers(product)
    };
    assert!(covers(COPIED) && !covers("other"));
    for _ in 0..3 {
        CLOCK_S.fetch_add(3, Ordering::Relaxed);
        origin.settle();
    }
    assert_eq!(standby.rows("x"), origin.rows("x"));
    assert!(covers("other"));
    origin.devices.set_products(&["other"]);
    for _ in 0..3 {
        CLOCK_S.fetch_add(3, Ordering::Relaxed);
        origin.settle();
    }
    assert_eq!((standby.rows("a").len(), standby.rows("x").len()), (0, 100));
    assert!(!covers(COPIED));
    // A device that moves to a copied product takes its rows along with its next one.
    origin.devices.add("a", 0, "other");
    origin.append("a", DAY + 200, &[("t", 1)]);
    origin.settle();
    assert_eq!(standby.rows("a"), origin.rows("a"));
    // Nothing is to be copied any more.
    origin.devices.set_products(&[]);
    for _ in 0..8 {
        CLOCK_S.fetch_add(3, Ordering::Relaxed);
        origin.steps(1);
    }
    assert_eq!(origin.state(), CopyState::NotWanted);
    let own = origin.sender.own_copy().unwrap();
    let keeper = lock(&standby.keeper);
    let keeper = keeper.as_ref().unwrap();
    keeper.follow_announcement("origin", &own);
    assert!(keeper.copies().is_empty());
}

#[test]
fn the_copy_of_lost_time_series_stays() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    for ts in 0..100 {
        origin.append("a", DAY + ts, &[("t", ts)]);
    }
    origin.settle();
    let Origin {
        directory,
        devices,
        peers,
        series,
        sender,
    } = origin;
    drop((series, sender));
    std::fs::remove_dir_all(directory.join("telemetry")).unwrap();
    let mut origin = Origin::open(&directory, devices, peers);
    origin.append("a", 2 * DAY, &[("t", 1)]);
    origin.settle();
    let places = {
        let keeper = lock(&standby.keeper);
        keeper.as_ref().unwrap().places()
    };
    let orphans: Vec<_> = places.iter().map(|place| place.is_orphan).collect();
    assert_eq!(orphans.iter().filter(|is_orphan| **is_orphan).count(), 1);
    assert_eq!(places.len(), 2);
    assert_eq!(standby.rows("a").len(), 101);
}

#[test]
fn rows_that_are_stored_together_are_copied_without_those_that_are_rejected() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    origin.settle();
    let key = origin.series.series().get_or_create_key("t").unwrap();
    let values: Vec<[Point<'_>; 1]> = (0..30)
        .map(|number| {
            let value = PointValue::Int(number);
            [Point { key, value }]
        })
        .collect();
    // Of `a`, `b` and `x` in turn; the third row of `a` is empty, and `x` is not copied.
    let row = |at: usize| {
        let points = if at == 6 { &[][..] } else { &values[at][..] };
        (DeviceNo(at as u32 % 3), DAY + at as i64 / 6, points)
    };
    let mut rejected = Vec::new();
    origin
        .series
        .submit_row_refs(values.len(), row, |at| at % 3 != 2, &mut |at, _| {
            rejected.push(at);
        });
    assert_eq!(rejected, [6]);
    origin.settle();
    for device in ["a", "b"] {
        assert_eq!(standby.rows(device), origin.rows(device));
        assert_eq!(standby.rows(device).len(), 5);
    }
    // Of two values of one time, the later one.
    assert_eq!(standby.rows("a")[4], (DAY + 4, vec![("t".to_owned(), 27)]));
    assert_eq!(standby.rows("x"), []);
}

#[test]
fn after_a_restart_only_days_with_new_rows_are_sent_again() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    for day in 1..20 {
        for ts in 0..100 {
            origin.append("a", day * DAY + ts, &[("t", ts)]);
        }
    }
    origin.series.series().flush().unwrap();
    origin.settle();
    assert_eq!(origin.sender.status().sent_rows, 1900);
    origin = origin.restart();
    origin.settle();
    assert_eq!(origin.sender.status().sent_rows, 0);
    // Stored, and not sent when the node ends.
    origin.append("a", 7 * DAY + 500, &[("t", 1)]);
    origin.append("b", 30 * DAY, &[("t", 1)]);
    origin = origin.restart();
    origin.settle();
    let sent = origin.sender.status().sent_rows;
    assert!((2..=102).contains(&sent), "{sent}");
    for device in ["a", "b"] {
        assert_eq!(standby.rows(device), origin.rows(device));
    }
}
