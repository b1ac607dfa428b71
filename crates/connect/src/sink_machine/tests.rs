//! Tests of the machine with a simulated system that is down, slow, or rejects some rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::batch_partitions::{BatchLimits, PartitionAssignment};
use super::circuit_breaker::CircuitBreaker;
use super::dead_letters::DeadLetters;
use super::delivery::BatchDelivery;
use super::memory_queue::{MemoryQueue, PushOutcome};
use super::metrics::SinkCounters;
use super::runner::{SinkRunPlan, run_sink};
use super::sink_files::{SinkFiles, SinkInventory, check_sink_inventory};
use super::stop_signal::StopSignal;
use crate::batch::SinkBatch;
use crate::connector::{BoxFuture, ConnectorError, SinkWriter, WriteOutcome};
use crate::settings::{DiskQueueSettings, OnFull, QueueSettings, RetrySettings};
use crate::template::Template;
use crate::{SinkRow, SinkValue};

/// A simulated system that stores rows with a number `n` and a `key`.
#[derive(Default)]
struct SimulatedSystem {
    rows: Mutex<Vec<(i64, i64)>>,
    batches: Mutex<Vec<usize>>,
    is_down: AtomicBool,
    /// Its table is missing.
    is_wrong: AtomicBool,
    /// Fails every other attempt after storing its rows.
    is_flaky: AtomicBool,
    /// Rows with these numbers make their batch fail.
    poison: Mutex<BTreeSet<i64>>,
    /// Rows with these numbers are rejected individually, temporarily or permanently.
    rejected: Mutex<BTreeMap<i64, ConnectorError>>,
    delay: Mutex<Duration>,
    attempts: Mutex<u64>,
}

fn number(row: SinkRow<'_>, name: &str) -> i64 {
    match row.get(name) {
        Some(SinkValue::Int(number)) => number,
        other => panic!("{name}: {other:?}"),
    }
}

impl SinkWriter for SimulatedSystem {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let delay = *self.delay.lock().unwrap();
            tokio::time::sleep(delay).await;
            *self.attempts.lock().unwrap() += 1;
            let attempt = *self.attempts.lock().unwrap();
            if self.is_down.load(Relaxed) {
                return WriteOutcome::Failed(ConnectorError::transient("down"));
            }
            if self.is_wrong.load(Relaxed) {
                return WriteOutcome::Failed(ConnectorError::permanent("no such table"));
            }
            let rows: Vec<_> = batch
                .rows()
                .map(|row| (number(row, "n"), number(row, "key")))
                .collect();
            let poison = self.poison.lock().unwrap().clone();
            if rows.iter().any(|(n, _)| poison.contains(n)) {
                return WriteOutcome::Failed(ConnectorError::bad_rows("poison"));
            }
            assert!(!rows.iter().any(|(n, _)| *n == -1), "a row that panics");
            let rejected = self.rejected.lock().unwrap().clone();
            let (no, yes): (Vec<_>, Vec<_>) = rows
                .iter()
                .enumerate()
                .partition(|(_, (n, _))| rejected.contains_key(n));
            self.batches.lock().unwrap().push(rows.len());
            self.rows
                .lock()
                .unwrap()
                .extend(yes.into_iter().map(|(_, row)| *row));
            if self.is_flaky.load(Relaxed) && attempt.is_multiple_of(2) {
                return WriteOutcome::Failed(ConnectorError::transient("the connection broke"));
            }
            let no = no.into_iter().map(|(at, (n, _))| (at, rejected[n].clone()));
            WriteOutcome::Except(no.collect())
        })
    }
}

struct SinkFixture {
    system: Arc<SimulatedSystem>,
    queue: Arc<MemoryQueue>,
    dead: Arc<DeadLetters>,
    metrics: Arc<SinkCounters>,
    files: Option<SinkFiles>,
    in_flight: usize,
    key: Option<&'static str>,
    retry: RetrySettings,
}

impl SinkFixture {
    fn new() -> Self {
        let metrics = Arc::new(SinkCounters::default());
        let settings = QueueSettings {
            max_rows: 1_000_000,
            on_full: OnFull::Block,
            ..QueueSettings::default()
        };
        Self {
            system: Arc::default(),
            queue: Arc::new(MemoryQueue::new(2, &settings, metrics.clone())),
            dead: Arc::new(
                DeadLetters::open(None, &crate::settings::DeadLetterSettings::default()).unwrap(),
            ),
            metrics,
            files: None,
            in_flight: 4,
            key: None,
            retry: RetrySettings {
                initial_delay_ms: 1,
                max_delay_ms: 20,
                ..RetrySettings::default()
            },
        }
    }

    fn push(&self, numbers: impl IntoIterator<Item = i64>) {
        for n in numbers {
            let pushed = self.queue.push(0, |row| {
                row.int("n", n);
                row.int("key", n % 7);
            });
            assert_eq!(pushed, PushOutcome::Queued);
        }
    }

    fn start(
        &self,
        carried: Vec<SinkBatch>,
    ) -> (watch::Sender<StopSignal>, JoinHandle<Vec<SinkBatch>>) {
        let (stop, stopped) = watch::channel(StopSignal::Run);
        let spread = match self.key {
            None => PartitionAssignment::One {
                in_flight: self.in_flight,
            },
            Some(key) => PartitionAssignment::ByKey {
                partitions: self.in_flight,
                key: Template::parse("order.by", key).unwrap(),
            },
        };
        let plan = SinkRunPlan {
            queue: self.queue.clone(),
            memory_row_numbers: (7, Arc::default()),
            files: self.files.clone(),
            disk: self.files.as_ref().map(|_| DiskQueueSettings::default()),
            spread,
            sizes: BatchLimits {
                max_rows: 50,
                max_bytes: 1 << 20,
                max_wait: Duration::from_millis(5),
            },
            delivery: BatchDelivery {
                dead_letter_observer: Arc::default(),
                content_port: Arc::default(),
                sink: "s".into(),
                writer: self.system.clone(),
                circuit: Arc::new(CircuitBreaker::new(self.retry.clone())),
                dead_letters: self.dead.clone(),
                metrics: self.metrics.clone(),
                retry: self.retry.clone(),
                timeout: Duration::from_millis(500),
                stop: stopped,
            },
            disk_view: watch::channel(None).0,
            carried_over_batches: carried,
        };
        (stop, tokio::spawn(run_sink(plan)))
    }

    fn written(&self) -> Vec<i64> {
        let rows = self.system.rows.lock().unwrap();
        rows.iter().map(|(n, _)| *n).collect()
    }

    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while !is(self) {
            assert!(tokio::time::Instant::now() < deadline, "{what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn drain(
        &self,
        stop: &watch::Sender<StopSignal>,
        done: JoinHandle<Vec<SinkBatch>>,
    ) -> Vec<SinkBatch> {
        stop.send_replace(StopSignal::Drain);
        let ended = tokio::time::timeout(Duration::from_secs(20), done).await;
        ended.expect("it ends").unwrap()
    }
}

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_arrives_once_in_batches() {
    let bench = SinkFixture::new();
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..1234);
    assert!(bench.drain(&stop, done).await.is_empty());
    assert_eq!(sorted(bench.written()), (0..1234).collect::<Vec<_>>());
    let batches = bench.system.batches.lock().unwrap().clone();
    assert!(batches.iter().all(|size| *size <= 50), "{batches:?}");
    assert!(batches.len() < 60, "{batches:?}");
    assert_eq!(bench.metrics.sent.load(Relaxed), 1234);
    assert_eq!(bench.metrics.rows_in_flight.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_that_is_down_costs_time_and_no_row() {
    let bench = SinkFixture::new();
    bench.system.is_down.store(true, Relaxed);
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..500);
    bench
        .until("it tries again", |bench| {
            *bench.system.attempts.lock().unwrap() > 8
        })
        .await;
    assert!(bench.written().is_empty());
    bench.system.is_down.store(false, Relaxed);
    bench
        .until("all rows", |bench| bench.written().len() == 500)
        .await;
    assert!(bench.drain(&stop, done).await.is_empty());
    assert_eq!(sorted(bench.written()), (0..500).collect::<Vec<_>>());
    assert!(bench.metrics.retried.load(Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_through_failures() {
    let bench = SinkFixture {
        key: Some("${key}"),
        ..SinkFixture::new()
    };
    bench.system.is_flaky.store(true, Relaxed);
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..2000);
    bench.drain(&stop, done).await;
    let rows = bench.system.rows.lock().unwrap().clone();
    for key in 0..7 {
        let mut seen = BTreeSet::new();
        let firsts: Vec<_> = rows
            .iter()
            .filter(|(n, of)| *of == key && seen.insert(*n))
            .map(|(n, _)| *n)
            .collect();
        let expected: Vec<_> = (0..2000).filter(|n| n % 7 == key).collect();
        assert_eq!(firsts, expected, "of key {key}");
    }
    assert!(
        rows.len() > 2000,
        "what is not known to be written is written again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_to_blame_is_found_and_the_others_are_written() {
    let bench = SinkFixture::new();
    bench.system.poison.lock().unwrap().extend([3, 77, 78, 199]);
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..200);
    bench.drain(&stop, done).await;
    let expected: Vec<_> = (0..200).filter(|n| ![3, 77, 78, 199].contains(n)).collect();
    assert_eq!(sorted(bench.written()), expected);
    let letters = bench.dead.list(0, 99);
    let dead = letters
        .iter()
        .map(|letter| number(SinkRow::from_bytes(&letter.row), "n"));
    assert_eq!(sorted(dead.collect()), [3, 77, 78, 199]);
    assert!(letters.iter().all(|letter| letter.error == "poison"));
    assert_eq!(bench.metrics.failed.load(Relaxed), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_rows_are_tried_again_or_buried() {
    let bench = SinkFixture {
        in_flight: 1,
        ..SinkFixture::new()
    };
    {
        let mut rejected = bench.system.rejected.lock().unwrap();
        rejected.insert(5, ConnectorError::transient("busy"));
        rejected.insert(6, ConnectorError::bad_rows("no such type"));
    }
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..10);
    bench
        .until("it is tried again", |bench| {
            bench.metrics.retried.load(Relaxed) > 2
        })
        .await;
    assert_eq!(sorted(bench.written()), [0, 1, 2, 3, 4, 7, 8, 9]);
    bench.system.rejected.lock().unwrap().remove(&5);
    bench.drain(&stop, done).await;
    assert_eq!(sorted(bench.written()), [0, 1, 2, 3, 4, 5, 7, 8, 9]);
    assert_eq!(bench.dead.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_so_many_attempts_rows_are_buried() {
    let bench = SinkFixture {
        retry: RetrySettings {
            initial_delay_ms: 1,
            max_delay_ms: 1,
            max_attempts: Some(3),
            ..RetrySettings::default()
        },
        in_flight: 1,
        ..SinkFixture::new()
    };
    bench.system.is_down.store(true, Relaxed);
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..10);
    bench.drain(&stop, done).await;
    assert_eq!(bench.dead.len(), 10);
    assert_eq!(*bench.system.attempts.lock().unwrap(), 3);
    assert_eq!(bench.dead.list(0, 1)[0].attempts, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_has_to_mend_is_not_tried_for_ever() {
    let bench = SinkFixture {
        retry: RetrySettings {
            initial_delay_ms: 1,
            max_delay_ms: 1,
            max_permanent_attempts: 4,
            ..RetrySettings::default()
        },
        in_flight: 1,
        ..SinkFixture::new()
    };
    bench.system.is_wrong.store(true, Relaxed);
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..10);
    bench
        .until("its rows are dead letters", |bench| bench.dead.len() == 10)
        .await;
    assert_eq!(*bench.system.attempts.lock().unwrap(), 4);
    // The failure is known now: one more batch probes whether it persists.
    bench.push(10..20);
    bench
        .until("the others, too", |bench| bench.dead.len() == 20)
        .await;
    assert_eq!(*bench.system.attempts.lock().unwrap(), 5);
    bench.system.is_wrong.store(false, Relaxed);
    bench.push(20..30);
    bench.drain(&stop, done).await;
    assert_eq!(sorted(bench.written()), (20..30).collect::<Vec<_>>());
    assert_eq!(bench.dead.len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_costs_a_row_and_not_the_sink() {
    let bench = SinkFixture::new();
    let (stop, done) = bench.start(Vec::new());
    bench.push(-1..20);
    bench.drain(&stop, done).await;
    assert_eq!(sorted(bench.written()), (0..20).collect::<Vec<_>>());
    assert_eq!(bench.dead.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_that_does_not_answer_is_tried_again() {
    let bench = SinkFixture::new();
    *bench.system.delay.lock().unwrap() = Duration::from_secs(3600);
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..10);
    bench
        .until("an attempt ends", |bench| {
            bench.metrics.batches.load(Relaxed) > 0
        })
        .await;
    *bench.system.delay.lock().unwrap() = Duration::ZERO;
    bench.drain(&stop, done).await;
    assert_eq!(sorted(bench.written()), (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_goes_to_the_next_machine() {
    let bench = SinkFixture {
        in_flight: 1,
        ..SinkFixture::new()
    };
    bench.system.is_down.store(true, Relaxed);
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..180);
    bench
        .until("it tries", |bench| {
            *bench.system.attempts.lock().unwrap() > 1
        })
        .await;
    stop.send_replace(StopSignal::GiveUp);
    let left = done.await.unwrap();
    assert!(!left.is_empty());
    bench.system.is_down.store(false, Relaxed);
    let (stop, done) = bench.start(left);
    bench.drain(&stop, done).await;
    assert_eq!(
        bench.written(),
        (0..180).collect::<Vec<_>>(),
        "in their order"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_files_are_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let files = SinkInventory::open(directory.path()).files("q");
    let bench = SinkFixture {
        files: Some(files.clone()),
        in_flight: 1,
        ..SinkFixture::new()
    };
    bench.system.is_down.store(true, Relaxed);
    let (stop, done) = bench.start(Vec::new());
    bench.push(0..1000);
    bench
        .until("it tries", |bench| {
            *bench.system.attempts.lock().unwrap() > 1
        })
        .await;
    stop.send_replace(StopSignal::GiveUp);
    assert!(done.await.unwrap().is_empty(), "all is in files");
    assert_eq!(bench.queue.rows(), 0);
    bench.system.is_down.store(false, Relaxed);
    let (stop, done) = bench.start(Vec::new());
    bench
        .until("all rows", |bench| bench.written().len() >= 1000)
        .await;
    bench.push(1000..1010);
    bench
        .until("new rows", |bench| bench.written().len() >= 1010)
        .await;
    bench.drain(&stop, done).await;
    assert_eq!(bench.written(), (0..1010).collect::<Vec<_>>());

    // A disk queue that is no longer configured is drained first, then its files are removed.
    bench.system.is_down.store(true, Relaxed);
    let (stop, done) = bench.start(Vec::new());
    bench.push(2000..2100);
    bench
        .until("it tries", |bench| bench.metrics.retried.load(Relaxed) > 50)
        .await;
    stop.send_replace(StopSignal::GiveUp);
    done.await.unwrap();
    bench.system.is_down.store(false, Relaxed);
    bench.push(2100..2110);
    let (stop, done) = {
        let without = SinkFixture {
            files: None,
            system: bench.system.clone(),
            queue: bench.queue.clone(),
            ..SinkFixture::new()
        };
        let (stop, stopped) = watch::channel(StopSignal::Run);
        let plan = SinkRunPlan {
            queue: without.queue.clone(),
            memory_row_numbers: (8, Arc::default()),
            files: bench.files.clone(),
            disk: None,
            spread: PartitionAssignment::One { in_flight: 1 },
            sizes: BatchLimits {
                max_rows: 50,
                max_bytes: 1 << 20,
                max_wait: Duration::from_millis(5),
            },
            delivery: BatchDelivery {
                dead_letter_observer: Arc::default(),
                content_port: Arc::default(),
                sink: "s".into(),
                writer: without.system.clone(),
                circuit: Arc::new(CircuitBreaker::new(RetrySettings::default())),
                dead_letters: without.dead.clone(),
                metrics: without.metrics.clone(),
                retry: RetrySettings::default(),
                timeout: Duration::from_secs(1),
                stop: stopped,
            },
            disk_view: watch::channel(None).0,
            carried_over_batches: Vec::new(),
        };
        (stop, tokio::spawn(run_sink(plan)))
    };
    bench
        .until("the rest", |bench| bench.written().len() >= 1120)
        .await;
    bench.drain(&stop, done).await;
    let expected: Vec<_> = (0..1010).chain(2000..2110).collect();
    assert_eq!(bench.written(), expected);
    assert!(!files.queue_directory().exists());
    let problems = check_sink_inventory(directory.path()).unwrap();
    assert_eq!(problems, Vec::<String>::new());
}
