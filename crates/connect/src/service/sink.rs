//! One sink: its queue, which shards know, and the machine that empties it, which comes and goes as settings change.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Options;
use super::status::{SinkState, SinkStatus};
use crate::batch::Batch;
use crate::connector::{Connector, Failure, Kind};
use crate::machine::circuit::Circuit;
use crate::machine::dead::{DeadLetters, Letter, Mourner};
use crate::machine::deliver::Delivery;
use crate::machine::feed::DiskView;
use crate::machine::lanes::{Sizes, Spread};
use crate::machine::metrics::Metrics;
use crate::machine::now_ms;
use crate::machine::queue::{MemoryQueue, Pushed};
use crate::machine::runner::{Plan, Stop, run};
use crate::row::{Row, RowWriter};
use crate::settings::{Invalid, Order, SinkSettings};
use crate::template::Template;

/// For asking a system about a sink's statement.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Beyond the deadline of stopping, for what is on its way.
const LANDING_TIME: Duration = Duration::from_secs(3);

pub(super) struct Sink {
    name: String,
    pub(super) queue: Arc<MemoryQueue>,
    is_enabled: AtomicBool,
    metrics: Arc<Metrics>,
    dead: Arc<DeadLetters>,
    numbers: (u64, Arc<AtomicU64>),
    mourner: Arc<OnceLock<Arc<dyn Mourner>>>,
    state: Mutex<State>,
}

struct State {
    common: SinkSettings,
    own: Map<String, Value>,
    kind: Option<&'static Kind>,
    state: SinkState,
    problem: Option<String>,
    circuit: Arc<Circuit>,
    disk: watch::Receiver<Option<DiskView>>,
    machine: Option<Machine>,
}

struct Machine {
    stop: watch::Sender<Stop>,
    done: JoinHandle<Vec<Batch>>,
}

/// A name as a file's.
fn file_name(name: &str) -> String {
    let mut file = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => file.push(byte.into()),
            _ => file.push_str(&format!("%{byte:02x}")),
        }
    }
    // File systems take no names longer than 255 bytes.
    if file.len() > 200 {
        let sum = crc32c::crc32c(name.as_bytes());
        file.truncate(180);
        file.push_str(&format!("-{sum:08x}"));
    }
    file
}

pub(super) fn queue_directory(options: &Options, name: &str) -> Option<PathBuf> {
    let directory = options.directory.as_ref()?;
    Some(directory.join("queues").join(file_name(name)))
}

pub(super) fn letters_path(options: &Options, name: &str) -> Option<PathBuf> {
    let directory = options.directory.as_ref()?;
    let file = format!("{}.jsonl", file_name(name));
    Some(directory.join("dead-letters").join(file))
}

impl Sink {
    pub(super) fn new(
        name: &str,
        common: &SinkSettings,
        options: &Options,
        mourner: Arc<OnceLock<Arc<dyn Mourner>>>,
    ) -> Result<Self, Invalid> {
        let metrics = Arc::new(Metrics::default());
        let path = letters_path(options, name);
        let dead = DeadLetters::open(path.as_deref(), &common.dead_letters).map_err(|error| {
            let detail = format!("its file cannot be read or written: {error}");
            Invalid::new("dead_letters", detail)
        })?;
        // Random enough to tell the rows of this process from those of another.
        let epoch = now_ms() << 16 ^ u64::from(std::process::id());
        Ok(Self {
            name: name.to_owned(),
            queue: Arc::new(MemoryQueue::new(
                options.shards,
                &common.queue,
                metrics.clone(),
            )),
            is_enabled: AtomicBool::new(common.enabled),
            metrics,
            dead: Arc::new(dead),
            numbers: (epoch, Arc::default()),
            mourner,
            state: Mutex::new(State {
                common: common.clone(),
                own: Map::new(),
                kind: None,
                state: SinkState::NoConnector,
                problem: None,
                circuit: Arc::new(Circuit::new(common.retry.clone())),
                disk: watch::channel(None).1,
                machine: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn connector(&self) -> String {
        self.lock().common.connector.clone()
    }

    pub(super) fn push(&self, shard: u16, fill: impl FnOnce(&mut RowWriter<'_>)) -> Pushed {
        match self.is_enabled.load(Relaxed) {
            true => self.queue.push(shard, fill),
            false => Pushed::Unknown,
        }
    }

    /// The settings it has that its connector's kind reads.
    pub(super) fn own_settings(&self) -> Map<String, Value> {
        self.lock().own.clone()
    }

    /// What was found when somebody had the sink tested.
    pub(super) fn tested(&self, result: &Result<String, Failure>) {
        self.lock().circuit.checked(result);
    }

    pub(super) fn set(&self, common: SinkSettings, own: Map<String, Value>) {
        self.queue.set_limits(&common.queue);
        self.dead.set_limits(&common.dead_letters);
        self.is_enabled.store(common.enabled, Relaxed);
        let mut state = self.lock();
        state.common = common;
        state.own = own;
    }

    /// Starts the machine with the settings there are now, after the one before has ended.
    pub(super) fn start(
        self: &Arc<Self>,
        connector: Option<(&'static Kind, Arc<dyn Connector>)>,
        ended: Option<JoinHandle<Vec<Batch>>>,
        options: &Options,
    ) {
        let mut state = self.lock();
        let before = state.machine.take().map(|machine| {
            machine.stop.send_replace(Stop::GiveUp);
            machine.done
        });
        state.problem = None;
        state.kind = connector.as_ref().map(|(kind, _)| *kind);
        state.circuit = Arc::new(Circuit::new(state.common.retry.clone()));
        let (stop, stopped) = watch::channel(Stop::Run);
        let plan = connector.map(|connector| self.plan(&mut state, connector, stopped, options));
        let plan = match plan {
            Some(Ok(plan)) => {
                state.state = match state.common.enabled {
                    true => SinkState::Running,
                    false => SinkState::Disabled,
                };
                Some(plan)
            }
            Some(Err(error)) => {
                tracing::error!(sink = self.name, %error, "a sink does not fit its connector; it keeps its rows");
                state.state = SinkState::Invalid;
                state.problem = Some(error.to_string());
                None
            }
            None => {
                let connector = &state.common.connector;
                state.problem = Some(format!("there is no connector {connector:?}"));
                state.state = SinkState::NoConnector;
                None
            }
        };
        // Already now: what is pushed until the files are open is waited for, too.
        let has_files = plan.is_some() && state.common.queue.disk.is_some();
        self.queue.set_spooled(has_files);
        if !has_files {
            self.queue.set_files_full(false);
        }
        if let Some(plan) = &plan {
            self.check_soon(plan);
        }
        let done = tokio::spawn(async move {
            let mut carried = Vec::new();
            for before in [ended, before].into_iter().flatten() {
                carried.extend(before.await.unwrap_or_default());
            }
            match plan {
                Some(plan) => run(Plan { carried, ..plan }).await,
                None => carried,
            }
        });
        state.machine = Some(Machine { stop, done });
    }

    /// Asks the system about the sink's statement before the first row comes.
    fn check_soon(&self, plan: &Plan) {
        let delivery = &plan.delivery;
        let (writer, circuit) = (delivery.writer.clone(), delivery.circuit.clone());
        let (sink, mut stop) = (self.name.clone(), delivery.stop.clone());
        tokio::spawn(async move {
            let Some(checking) = writer.check() else {
                return;
            };
            let checked = tokio::select! {
                checked = tokio::time::timeout(CHECK_TIMEOUT, checking) => checked,
                _ = stop.wait_for(|stop| *stop != Stop::Run) => return,
            };
            // No answer in time says nothing of the statement.
            let Ok(checked) = checked else { return };
            if let Err(error) = &checked {
                tracing::warn!(sink, %error, "sink check failed; rows wait until the sink can be written");
            }
            circuit.checked(&checked);
        });
    }

    fn plan(
        &self,
        state: &mut State,
        (kind, connector): (&'static Kind, Arc<dyn Connector>),
        stop: watch::Receiver<Stop>,
        options: &Options,
    ) -> Result<Plan, Invalid> {
        let common = &state.common;
        let in_flight = common.batches_in_flight as usize;
        let spread = match &common.order {
            Order::None => Spread::One { in_flight },
            Order::All => Spread::One { in_flight: 1 },
            Order::By(key) => Spread::ByKey {
                lanes: in_flight,
                key: Template::parse("order.by", key)?,
            },
        };
        let sizes = Sizes {
            max_rows: common.batch.max_rows.unwrap_or(kind.batch.max_rows),
            max_bytes: common.batch.max_bytes.unwrap_or(kind.batch.max_bytes),
            max_wait: Duration::from_millis(
                common.batch.max_wait_ms.unwrap_or(kind.batch.max_wait_ms),
            ),
        };
        let writer = connector.writer(state.own.clone())?;
        let (disk_view, disk) = watch::channel(None);
        state.disk = disk;
        Ok(Plan {
            queue: self.queue.clone(),
            numbers: self.numbers.clone(),
            directory: queue_directory(options, &self.name),
            disk: common.queue.disk.clone(),
            spread,
            sizes,
            delivery: Delivery {
                sink: self.name.clone(),
                writer,
                circuit: state.circuit.clone(),
                dead: self.dead.clone(),
                metrics: self.metrics.clone(),
                retry: common.retry.clone(),
                timeout: Duration::from_millis(common.write_timeout_ms),
                stop,
                mourner: self.mourner.clone(),
            },
            disk_view,
            carried: Vec::new(),
        })
    }

    /// Writes what there is until the time is over; what is left then, and is in no file, becomes dead letters.
    pub(super) async fn end(&self, within: Duration) {
        self.is_enabled.store(false, Relaxed);
        let Some(Machine { stop, mut done }) = self.lock().machine.take() else {
            self.queue.set_spooled(false);
            return;
        };
        stop.send_replace(Stop::Drain);
        let left = match tokio::time::timeout(within, &mut done).await {
            Ok(left) => left,
            Err(_) => {
                stop.send_replace(Stop::GiveUp);
                match tokio::time::timeout(LANDING_TIME, &mut done).await {
                    Ok(left) => left,
                    Err(_) => {
                        done.abort();
                        done.await
                    }
                }
            }
        };
        let mut letters = Vec::new();
        let mut keep = |row: Row<'_>| {
            letters.push(Letter {
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
        if letters.is_empty() {
            return;
        }
        tracing::error!(
            sink = self.name,
            rows = letters.len(),
            "rows were not written before the sink ended; they are dead letters"
        );
        self.metrics.failed.fetch_add(letters.len() as u64, Relaxed);
        let dropped = self.dead.add(letters).await;
        self.metrics.dropped_at_end.fetch_add(dropped, Relaxed);
    }

    pub(super) fn letters(&self, after: u64, limit: usize) -> Vec<Letter> {
        self.dead.list(after, limit)
    }

    pub(super) fn letter(&self, id: u64) -> Option<Letter> {
        self.dead.get(id)
    }

    pub(super) async fn discard(&self, ids: Option<Vec<u64>>) -> usize {
        self.dead.take(ids).await.len()
    }

    /// Queues the rows of dead letters again. Those for which there is no room stay dead letters.
    pub(super) async fn replay(&self, ids: Option<Vec<u64>>) -> usize {
        let mut letters = self.dead.take(ids).await.into_iter();
        let mut replayed = 0;
        let mut left = Vec::new();
        for letter in letters.by_ref() {
            if self.queue.is_full() {
                left.push(letter);
                break;
            }
            match self.push(0, |row| row.fields_of(Row::from_bytes(&letter.row))) {
                Pushed::Queued | Pushed::Blocked => replayed += 1,
                Pushed::Dropped | Pushed::Unknown => left.push(letter),
            }
        }
        left.extend(letters);
        if !left.is_empty() {
            self.dead.add(left).await;
        }
        replayed
    }

    pub(super) fn status(&self) -> SinkStatus {
        let state = self.lock();
        let mut metrics = self.metrics.snapshot();
        let in_memory = self.queue.rows() as u64;
        let disk = state.disk.borrow().clone();
        metrics.queued_in_memory = in_memory + disk.as_ref().map_or(0, DiskView::spooling);
        let is_starting = disk.is_none() && state.common.queue.disk.is_some();
        let (disk_rows, disk_bytes) = disk.as_ref().map(DiskView::held).unwrap_or_default();
        // What is in files counts until it is acknowledged; what is not, until it is written or given up.
        let on_the_way = match state.common.queue.disk {
            Some(_) => 0,
            None => (metrics.taken).saturating_sub(metrics.sent + metrics.failed),
        };
        metrics.queued = metrics.queued_in_memory + on_the_way + disk_rows;
        metrics.queued_bytes = self.queue.bytes() as u64 + disk_bytes;
        metrics.dead_letters = self.dead.len() as u64;
        let health = state.circuit.health();
        SinkStatus {
            name: self.name.clone(),
            connector: state.common.connector.clone(),
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
