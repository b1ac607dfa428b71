//! The nodes of the tests: one sends its telemetry, others keep copies. They have no sockets.

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
use crate::sender::CopySender;
use crate::sender_parts::CopySenderParts;
use crate::status::CopyState;

pub(super) const DAY: i64 = 86_400_000;
/// Products of the test.
pub(super) const COPIED: &str = "copied";

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
pub(super) struct TestDevices {
    devices: Mutex<BTreeMap<String, (u32, String)>>,
    pub(super) products: Mutex<BTreeSet<String>>,
}

impl TestDevices {
    pub(super) fn add(&self, id: &str, number: u32, product: &str) {
        let device = (number, product.to_owned());
        lock(&self.devices).insert(id.to_owned(), device);
    }

    pub(super) fn set_products(&self, products: &[&str]) {
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
pub(super) struct Standby {
    directory: PathBuf,
    pub(super) devices: Arc<TestDevices>,
    pub(super) keeper: Mutex<Option<CopyKeeper>>,
}

impl Standby {
    pub(super) fn new(directory: PathBuf) -> Arc<Self> {
        let this = Self {
            directory,
            devices: Arc::default(),
            keeper: Mutex::default(),
        };
        this.start();
        Arc::new(this)
    }

    pub(super) fn start(&self) {
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
    pub(super) fn kill(&self) {
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
    pub(super) fn rows(&self, device: &str) -> Vec<(i64, Vec<(String, i64)>)> {
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

    pub(super) fn is_complete(&self) -> bool {
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
pub(super) struct TestPeers {
    pub(super) nodes: Mutex<BTreeMap<String, Arc<Standby>>>,
    pub(super) unreachable: Mutex<BTreeSet<String>>,
    /// Some requests are lost, and some answers, in no regular turn with repetitions.
    pub(super) is_lossy: AtomicBool,
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
        if is_lossy && number % 5 == 1 {
            return Err("the request was lost".to_owned());
        }
        let standby = lock(&self.nodes)[node].clone();
        let answer = standby.answer(request)?;
        match is_lossy && number % 7 == 3 {
            true => Err("the answer was lost".to_owned()),
            false => Ok(answer),
        }
    }

    fn notify(&self, _: &str, _: &[u8]) {
        unreachable!("senders do not announce");
    }
}

/// The clock of the sender.
pub(super) static CLOCK_S: AtomicU64 = AtomicU64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(1);

fn now() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_secs(CLOCK_S.load(Ordering::Relaxed))
}

fn random() -> u64 {
    RANDOM.fetch_add(1, Ordering::Relaxed)
}

/// A node that sends.
pub(super) struct Origin {
    pub(super) directory: PathBuf,
    pub(super) devices: Arc<TestDevices>,
    pub(super) peers: Arc<TestPeers>,
    pub(super) series: CopiedSeries,
    pub(super) sender: CopySender,
}

const QUEUE_BYTES: usize = 256 << 10;

impl Origin {
    pub(super) fn open(directory: &Path, devices: Arc<TestDevices>, peers: Arc<TestPeers>) -> Self {
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

    pub(super) fn restart(self) -> Self {
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

    pub(super) fn append(&self, device: &str, ts_ms: i64, values: &[(&str, i64)]) {
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

    pub(super) fn delete(&self, device: &str, keys: Option<&[&str]>, from_ms: i64, to_ms: i64) {
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

    pub(super) fn rows(&self, device: &str) -> Vec<(i64, Vec<(String, i64)>)> {
        let (number, _) = self.devices.by_id(device).unwrap().unwrap();
        rows_of(self.series.series(), number)
    }

    pub(super) fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.sender.step();
        }
    }

    pub(super) fn state(&self) -> CopyState {
        self.sender.status().state
    }

    /// Until the copy is complete, and nothing is left to send.
    pub(super) fn settle(&mut self) {
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

pub(super) struct Pair {
    pub(super) _directory: tempfile::TempDir,
    pub(super) origin: Origin,
    pub(super) standby: Arc<Standby>,
}

/// Both nodes know the devices `a` and `b` of the copied product and `x` of another one, with different numbers.
pub(super) fn pair() -> Pair {
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
