//! A connector service with pushing threads that act like shards.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use connect::{ConnectorService, ConnectorServiceOptions, PushOutcome, SinkId, SinkStatus};
use serde_json::Value;
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct ConnectorNode {
    pub(crate) service: ConnectorService,
    pub(crate) runtime: Runtime,
}

impl ConnectorNode {
    pub(crate) fn start(directory: Option<&Path>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let options = ConnectorServiceOptions {
            directory: directory.map(Path::to_owned),
            shards: 2,
        };
        let service = ConnectorService::new(runtime.handle().clone(), options);
        Self { service, runtime }
    }

    /// Creates a connector `c` and a sink `s`.
    pub(crate) fn with(connector: &Value, sink: &Value) -> (Self, SinkId) {
        let node = Self::start(None);
        node.service.set_connector("c", connector).unwrap();
        node.service.check_sink(sink).unwrap();
        let sink = node.service.set_sink("s", sink).unwrap();
        (node, sink)
    }

    pub(crate) fn status(&self) -> SinkStatus {
        self.service.sink_status("s").unwrap()
    }

    pub(crate) fn test(&self) -> Result<String, String> {
        let tested = self.runtime.block_on(self.service.test_connector("c"));
        tested.unwrap().map_err(|failure| failure.message)
    }

    pub(crate) fn push(&self, sink: SinkId, numbers: std::ops::Range<i64>) {
        for n in numbers {
            assert_eq!(push(&self.service, sink, 0, n), PushOutcome::Queued);
        }
    }

    pub(crate) fn until(&self, what: &str, is: impl Fn(&SinkStatus) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is(&self.status()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn stop(&self) {
        self.runtime.block_on(self.service.stop(PATIENCE));
    }
}

pub(crate) fn push(service: &ConnectorService, sink: SinkId, shard: u16, n: i64) -> PushOutcome {
    service.push(sink, shard, |row| {
        row.int("n", n);
        row.int("device", n % 10);
        row.text("topic", &format!("t/{}", n % 10));
        row.json(
            "payload",
            &format!("{{\"v\": {}.5, \"s\": \"it's\"}}", n % 100),
        );
    })
}

/// Pushes numbers until stopped, and waits when the queue is full.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    pushed: Arc<AtomicU64>,
    pusher: std::thread::JoinHandle<()>,
}

impl Load {
    pub(crate) fn start(node: &ConnectorNode, sink: SinkId) -> Self {
        let (stop, pushed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (service, handle) = (node.service.clone(), node.runtime.handle().clone());
        let (stopped, counted) = (stop.clone(), pushed.clone());
        let pusher = std::thread::spawn(move || {
            let mut n = 0;
            while !stopped.load(SeqCst) {
                match push(&service, sink, (n % 2) as u16, n) {
                    PushOutcome::Queued => {}
                    PushOutcome::Blocked => handle.block_on(service.wait_for_room(sink)),
                    other => panic!("{other:?}"),
                }
                n += 1;
                counted.store(n as u64, SeqCst);
                if n % 50 == 0 {
                    // A few thousand rows a second: the test does not measure speed.
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        Self {
            stop,
            pushed,
            pusher,
        }
    }

    pub(crate) fn pushed(&self) -> u64 {
        self.pushed.load(SeqCst)
    }

    /// Waits until a number of further rows were pushed.
    pub(crate) fn go_on(&self, rows: u64) {
        let goal = self.pushed() + rows;
        let deadline = Instant::now() + PATIENCE;
        while self.pushed() < goal {
            assert!(Instant::now() < deadline, "nobody can push");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Number of pushed rows, which have the numbers below it.
    pub(crate) fn end(self) -> i64 {
        self.stop.store(true, SeqCst);
        self.pusher.join().unwrap();
        self.pushed.load(SeqCst) as i64
    }
}

/// Checks the rows of a sink in stored order: none is missing, and the first occurrences of the numbers of each device are in
/// order.
pub(crate) fn assert_all_in_order(rows: &[i64], pushed: i64) {
    let mut seen = std::collections::BTreeSet::new();
    let firsts: Vec<i64> = rows.iter().copied().filter(|n| seen.insert(*n)).collect();
    let missing: Vec<i64> = (0..pushed).filter(|n| !seen.contains(n)).collect();
    assert!(missing.is_empty(), "rows are missing: {missing:?}");
    for device in 0..10 {
        let of_device: Vec<_> = firsts.iter().filter(|n| *n % 10 == device).collect();
        assert!(of_device.is_sorted(), "of device {device}: {of_device:?}");
    }
}
