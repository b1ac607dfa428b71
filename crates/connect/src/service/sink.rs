//! One sink: its queue, which shards push into, and the machine that drains it, which is replaced when settings change.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wall_clock::now_ms;

use super::status::{SinkState, SinkStatus};
use crate::batch::SinkBatch;
use crate::connector::{Connector, ConnectorError, ConnectorKind};
use crate::content::{ContentPortCell, exports_files, file_id};
use crate::row::{SinkRow, SinkRowWriter};
use crate::settings::{DeliveryOrder, SettingsError, SinkSettings};
use crate::sink_machine::batch_partitions::{BatchLimits, PartitionAssignment};
use crate::sink_machine::circuit_breaker::CircuitBreaker;
use crate::sink_machine::dead_letters::{DeadLetter, DeadLetterObserver, DeadLetters};
use crate::sink_machine::delivery::BatchDelivery;
use crate::sink_machine::memory_queue::{MemoryQueue, PushOutcome};
use crate::sink_machine::metrics::SinkCounters;
use crate::sink_machine::queue_feed::DiskQueueView;
use crate::sink_machine::runner::{SinkRunPlan, run_sink};
use crate::sink_machine::sink_files::SinkFiles;
use crate::sink_machine::stop_signal::StopSignal;
use crate::template::Template;

/// Time-out for checking a sink's statement.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Extra time beyond the stop deadline for batches in flight.
const COMPLETION_GRACE: Duration = Duration::from_secs(3);

pub(super) struct ManagedSink {
    name: String,
    pub(super) queue: Arc<MemoryQueue>,
    is_enabled: AtomicBool,
    /// Whether its rows name files that it exports.
    exports_files: AtomicBool,
    content_port: ContentPortCell,
    runtime: Handle,
    metrics: Arc<SinkCounters>,
    /// `None`: the node has no data directory.
    files: Option<SinkFiles>,
    dead_letters: Arc<DeadLetters>,
    memory_row_numbers: (u64, Arc<AtomicU64>),
    dead_letter_observer: Arc<OnceLock<Arc<dyn DeadLetterObserver>>>,
    state: Mutex<ManagedSinkState>,
}

struct ManagedSinkState {
    common_settings: SinkSettings,
    kind_settings: Map<String, Value>,
    kind: Option<&'static ConnectorKind>,
    state: SinkState,
    problem: Option<String>,
    circuit: Arc<CircuitBreaker>,
    disk: watch::Receiver<Option<DiskQueueView>>,
    task: Option<SinkTask>,
}

struct SinkTask {
    stop: watch::Sender<StopSignal>,
    done: JoinHandle<Vec<SinkBatch>>,
}

impl ManagedSink {
    pub(super) fn new(
        name: &str,
        common: &SinkSettings,
        shards: usize,
        files: Option<SinkFiles>,
        dead_letter_observer: Arc<OnceLock<Arc<dyn DeadLetterObserver>>>,
        content_port: ContentPortCell,
        runtime: Handle,
    ) -> Result<Self, SettingsError> {
        let metrics = Arc::new(SinkCounters::default());
        let path = files.as_ref().map(SinkFiles::dead_letters_path);
        let opened = DeadLetters::open(path.as_deref(), &common.dead_letters);
        let recorded = opened.and_then(|dead| match &files {
            Some(files) => files.record_dead_letters().map(|()| dead),
            None => Ok(dead),
        });
        let dead = recorded.map_err(|error| {
            let detail = format!("its file cannot be read or written: {error}");
            SettingsError::new("dead_letters", detail)
        })?;
        // Sufficiently random to distinguish the rows of this process from those of another.
        let epoch = now_ms() << 16 ^ u64::from(std::process::id());
        Ok(Self {
            name: name.to_owned(),
            queue: Arc::new(MemoryQueue::new(shards, &common.queue, metrics.clone())),
            is_enabled: AtomicBool::new(common.enabled),
            exports_files: AtomicBool::new(false),
            content_port,
            runtime,
            metrics,
            files,
            dead_letters: Arc::new(dead),
            memory_row_numbers: (epoch, Arc::default()),
            dead_letter_observer,
            state: Mutex::new(ManagedSinkState {
                common_settings: common.clone(),
                kind_settings: Map::new(),
                kind: None,
                state: SinkState::NoConnector,
                problem: None,
                circuit: Arc::new(CircuitBreaker::new(common.retry.clone())),
                disk: watch::channel(None).1,
                task: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ManagedSinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn connector(&self) -> String {
        self.lock().common_settings.connector.clone()
    }

    pub(super) fn push(
        &self,
        shard: u16,
        fill: impl FnOnce(&mut SinkRowWriter<'_>),
    ) -> PushOutcome {
        match self.is_enabled.load(Relaxed) {
            true if self.exports_files() => self.push_export(shard, fill),
            true => self.queue.push(shard, fill),
            false => PushOutcome::Unknown,
        }
    }

    pub(super) fn exports_files(&self) -> bool {
        self.exports_files.load(Relaxed)
    }

    /// Queues the export of a file, which is kept from now on.
    fn push_export(&self, shard: u16, fill: impl FnOnce(&mut SinkRowWriter<'_>)) -> PushOutcome {
        let mut bytes = Vec::new();
        fill(&mut SinkRowWriter::new(&mut bytes));
        let row = SinkRow::from_bytes(&bytes);
        let port = self.content_port.get();
        let export = port.zip(file_id(row));
        if let Some((port, file)) = export {
            port.queued(&self.name, file, row.to_json());
        }
        let outcome = self.queue.push(shard, |out| {
            out.fields_of(row);
            if let Some(origin) = row.origin() {
                out.origin(origin);
            }
        });
        if let (PushOutcome::Dropped, Some((port, file))) = (outcome, export) {
            let (port, sink, file) = (port.clone(), self.name.clone(), file.to_owned());
            // Not on a shard, since it waits for the disk.
            self.runtime.spawn_blocking(move || {
                port.failed(
                    &sink,
                    &file,
                    "the queue of the sink is full; export the file again",
                );
            });
        }
        outcome
    }

    /// The sink settings that are specific to the connector's kind.
    pub(super) fn own_settings(&self) -> Map<String, Value> {
        self.lock().kind_settings.clone()
    }

    /// Records the result of a requested test.
    pub(super) fn record_test(&self, result: &Result<String, ConnectorError>) {
        self.lock().circuit.record_check(result);
    }

    pub(super) fn set_settings(&self, common: SinkSettings, own: Map<String, Value>) {
        self.queue.set_limits(&common.queue);
        self.dead_letters.set_limits(&common.dead_letters);
        self.is_enabled.store(common.enabled, Relaxed);
        self.exports_files.store(exports_files(&own), Relaxed);
        let mut state = self.lock();
        state.common_settings = common;
        state.kind_settings = own;
    }

    /// Starts the machine with the present settings, after the previous one has ended.
    pub(super) fn start_task(
        self: &Arc<Self>,
        connector: Option<(&'static ConnectorKind, Arc<dyn Connector>)>,
        ended: Option<JoinHandle<Vec<SinkBatch>>>,
    ) {
        let mut state = self.lock();
        let before = state.task.take().map(|machine| {
            machine.stop.send_replace(StopSignal::GiveUp);
            machine.done
        });
        state.problem = None;
        state.kind = connector.as_ref().map(|(kind, _)| *kind);
        state.circuit = Arc::new(CircuitBreaker::new(state.common_settings.retry.clone()));
        let (stop, stopped) = watch::channel(StopSignal::Run);
        let plan = connector.map(|connector| self.build_plan(&mut state, connector, stopped));
        let plan = match plan {
            Some(Ok(plan)) => {
                state.state = match state.common_settings.enabled {
                    true => SinkState::Running,
                    false => SinkState::Disabled,
                };
                Some(plan)
            }
            Some(Err(error)) => {
                tracing::error!(sink = self.name, %error, "sink settings do not match the connector; keeping its rows");
                state.state = SinkState::Invalid;
                state.problem = Some(error.to_string());
                None
            }
            None => {
                let connector = &state.common_settings.connector;
                state.problem = Some(format!("there is no connector {connector:?}"));
                state.state = SinkState::NoConnector;
                None
            }
        };
        // Set before the files are open, so that rows pushed until then are also waited for.
        let has_files = plan.is_some() && state.common_settings.queue.disk.is_some();
        self.queue.set_spooled(has_files);
        if !has_files {
            self.queue.set_files_full(false);
        }
        if let Some(plan) = &plan {
            self.spawn_check(plan);
        }
        let done = tokio::spawn(async move {
            let mut carried = Vec::new();
            for before in [ended, before].into_iter().flatten() {
                carried.extend(before.await.unwrap_or_default());
            }
            match plan {
                Some(plan) => {
                    run_sink(SinkRunPlan {
                        carried_over_batches: carried,
                        ..plan
                    })
                    .await
                }
                None => carried,
            }
        });
        state.task = Some(SinkTask { stop, done });
    }

    /// Checks the sink's statement with the system before the first row arrives.
    fn spawn_check(&self, plan: &SinkRunPlan) {
        let delivery = &plan.delivery;
        let (writer, circuit) = (delivery.writer.clone(), delivery.circuit.clone());
        let (sink, mut stop) = (self.name.clone(), delivery.stop.clone());
        tokio::spawn(async move {
            let Some(checking) = writer.check() else {
                return;
            };
            let checked = tokio::select! {
                checked = tokio::time::timeout(CHECK_TIMEOUT, checking) => checked,
                _ = stop.wait_for(|stop| *stop != StopSignal::Run) => return,
            };
            // A time-out does not mean that the statement is invalid.
            let Ok(checked) = checked else { return };
            if let Err(error) = &checked {
                tracing::warn!(sink, %error, "sink check failed; rows wait until the sink can be written");
            }
            circuit.record_check(&checked);
        });
    }

    fn build_plan(
        &self,
        state: &mut ManagedSinkState,
        (kind, connector): (&'static ConnectorKind, Arc<dyn Connector>),
        stop: watch::Receiver<StopSignal>,
    ) -> Result<SinkRunPlan, SettingsError> {
        let common = &state.common_settings;
        let in_flight = common.batches_in_flight as usize;
        let spread = match &common.order {
            DeliveryOrder::None => PartitionAssignment::One { in_flight },
            DeliveryOrder::All => PartitionAssignment::One { in_flight: 1 },
            DeliveryOrder::By(key) => PartitionAssignment::ByKey {
                partitions: in_flight,
                key: Template::parse("order.by", key)?,
            },
        };
        let sizes = BatchLimits {
            max_rows: common.batch.max_rows.unwrap_or(kind.batch.max_rows),
            max_bytes: common.batch.max_bytes.unwrap_or(kind.batch.max_bytes),
            max_wait: Duration::from_millis(
                common.batch.max_wait_ms.unwrap_or(kind.batch.max_wait_ms),
            ),
        };
        let writer = connector.writer(state.kind_settings.clone())?;
        let sizes = match writer.content_writer() {
            None => sizes,
            // Each file is an attempt of its own.
            Some(_) => BatchLimits {
                max_rows: 1,
                max_wait: Duration::ZERO,
                ..sizes
            },
        };
        let (disk_view, disk) = watch::channel(None);
        state.disk = disk;
        Ok(SinkRunPlan {
            queue: self.queue.clone(),
            memory_row_numbers: self.memory_row_numbers.clone(),
            files: self.files.clone(),
            disk: common.queue.disk.clone(),
            spread,
            sizes,
            delivery: BatchDelivery {
                sink: self.name.clone(),
                writer,
                circuit: state.circuit.clone(),
                dead_letters: self.dead_letters.clone(),
                metrics: self.metrics.clone(),
                retry: common.retry.clone(),
                timeout: Duration::from_millis(common.write_timeout_ms),
                stop,
                dead_letter_observer: self.dead_letter_observer.clone(),
                content_port: self.content_port.clone(),
            },
            disk_view,
            carried_over_batches: Vec::new(),
        })
    }

    /// Writes queued rows until the time is over; remaining rows that are in no file become dead letters.
    pub(super) async fn end(&self, within: Duration) {
        self.is_enabled.store(false, Relaxed);
        let Some(SinkTask { stop, mut done }) = self.lock().task.take() else {
            self.queue.set_spooled(false);
            return;
        };
        stop.send_replace(StopSignal::Drain);
        let left = match tokio::time::timeout(within, &mut done).await {
            Ok(left) => left,
            Err(_) => {
                stop.send_replace(StopSignal::GiveUp);
                match tokio::time::timeout(COMPLETION_GRACE, &mut done).await {
                    Ok(left) => left,
                    Err(_) => {
                        done.abort();
                        done.await
                    }
                }
            }
        };
        let mut letters = Vec::new();
        let mut keep = |row: SinkRow<'_>| {
            letters.push(DeadLetter {
                id: 0,
                at_ms: now_ms(),
                error: "the node stopped before it was written".into(),
                attempts: 0,
                row: row.as_bytes().to_vec(),
            });
        };
        for batch in left.unwrap_or_default() {
            batch.rows().for_each(&mut keep);
        }
        self.queue.take(usize::MAX, usize::MAX, keep);
        self.queue.set_spooled(false);
        // Exports are recorded with their files, and queued again by the next start.
        if letters.is_empty() || self.exports_files() {
            return;
        }
        tracing::error!(
            sink = self.name,
            rows = letters.len(),
            "rows were not written before the sink ended; they became dead letters"
        );
        self.metrics.failed.fetch_add(letters.len() as u64, Relaxed);
        let dropped = self.dead_letters.add(letters).await;
        self.metrics.dropped_at_stop.fetch_add(dropped, Relaxed);
    }

    /// Deletes the file of dead letters of a deleted sink; its last letters stay in memory until it ends.
    pub(super) fn remove_dead_letters(&self) -> io::Result<()> {
        self.dead_letters.close_file();
        match &self.files {
            Some(files) => files.remove_dead_letters(),
            None => Ok(()),
        }
    }

    /// Deletes the disk queue of a deleted sink, after its end.
    pub(super) fn remove_queue(&self) -> io::Result<()> {
        match &self.files {
            Some(files) => files.remove_queue(),
            None => Ok(()),
        }
    }

    pub(super) fn dead_letters(&self, after: u64, limit: usize) -> Vec<DeadLetter> {
        self.dead_letters.list(after, limit)
    }

    pub(super) fn dead_letter(&self, id: u64) -> Option<DeadLetter> {
        self.dead_letters.get(id)
    }

    pub(super) async fn discard(&self, ids: Option<Vec<u64>>) -> usize {
        self.dead_letters.take(ids).await.len()
    }

    /// Queues the rows of dead letters again. Rows that find no room stay dead letters.
    pub(super) async fn replay(&self, ids: Option<Vec<u64>>) -> usize {
        let mut letters = self.dead_letters.take(ids).await.into_iter();
        let mut replayed = 0;
        let mut left = Vec::new();
        for letter in letters.by_ref() {
            if self.queue.is_full() {
                left.push(letter);
                break;
            }
            match self.push(0, |row| row.fields_of(SinkRow::from_bytes(&letter.row))) {
                PushOutcome::Queued | PushOutcome::Blocked => replayed += 1,
                PushOutcome::Dropped | PushOutcome::Unknown => left.push(letter),
            }
        }
        left.extend(letters);
        if !left.is_empty() {
            self.dead_letters.add(left).await;
        }
        replayed
    }

    pub(super) fn status(&self) -> SinkStatus {
        let state = self.lock();
        let mut metrics = self.metrics.snapshot();
        let in_memory = self.queue.rows() as u64;
        let disk = state.disk.borrow().clone();
        metrics.queued_in_memory = in_memory + disk.as_ref().map_or(0, DiskQueueView::spooling);
        let is_starting = disk.is_none() && state.common_settings.queue.disk.is_some();
        let (disk_rows, disk_bytes) = disk.as_ref().map(DiskQueueView::usage).unwrap_or_default();
        // Rows in files count until they are acknowledged, others until they are written or given up.
        let on_the_way = match state.common_settings.queue.disk {
            Some(_) => 0,
            None => (metrics.taken).saturating_sub(metrics.sent + metrics.failed),
        };
        metrics.queued = metrics.queued_in_memory + on_the_way + disk_rows;
        metrics.queued_bytes = self.queue.bytes() as u64 + disk_bytes;
        metrics.dead_letters = self.dead_letters.len() as u64;
        let health = state.circuit.health();
        SinkStatus {
            name: self.name.clone(),
            connector: state.common_settings.connector.clone(),
            kind: state.kind.map(|kind| kind.name),
            state: match state.state {
                SinkState::Running if is_starting => SinkState::Starting,
                SinkState::Running if health.failing_since_ms.is_some() => SinkState::Failing,
                state => state,
            },
            problem: state.problem.clone(),
            health,
            metrics,
        }
    }
}
