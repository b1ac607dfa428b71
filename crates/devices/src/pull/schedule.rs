//! Schedules polls: one task per source, never two polls of a source at once, a bounded number of polls at a time.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use store::Objects;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wall_clock::now_ms;

use super::KIND;
use super::definition::PullSourceError;
use super::health::{PullRun, PullSourceHealth, PullSourceState, PullSourceStatus};
use super::intake::{PollingTurn, ReadingIntake};
use super::readings::{PullError, Readings};
use super::source::PullSource;

/// Maximum pause of a failing source, unless its interval is longer.
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// A new source is first polled within this time.
const MAX_FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Time between two checks whether this node is to poll.
const TURN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a stopping node waits for values that are being stored.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Timeout of a test: less than the timeout of HTTP requests.
const TEST_WITHIN: Duration = Duration::from_secs(8);
/// Maximum number of rows that a test returns.
const SHOWN_ROWS: usize = 100;

#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Maximum number of sources that are polled at the same time.
    pub max_at_once: usize,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { max_at_once: 8 }
    }
}

/// The pull sources of a node. Clones share one scheduler.
#[derive(Clone)]
pub struct PullScheduler {
    inner: Arc<PullSchedulerInner>,
}

struct PullSchedulerInner {
    runtime: Handle,
    intake: OnceLock<Arc<dyn ReadingIntake>>,
    turn: OnceLock<Arc<dyn PollingTurn>>,
    slots: Arc<Semaphore>,
    entries: Mutex<BTreeMap<String, PullEntry>>,
    /// Sources declared in the configuration file; stored sources with the same names are ignored.
    declared: OnceLock<HashSet<String>>,
    random: RandomState,
}

struct PullEntry {
    state: Arc<PullEntryState>,
    task: Option<JoinHandle<()>>,
}

/// State shared by the task of a source and its readers.
struct PullEntryState {
    name: String,
    /// `Err`: why the definition is invalid.
    source: Result<PullSource, String>,
    health: Mutex<(PullSourceState, PullSourceHealth)>,
    /// Held during a poll, also by the previous source of this name.
    busy: Arc<tokio::sync::Mutex<()>>,
}

impl PullEntryState {
    fn lock_health(&self) -> MutexGuard<'_, (PullSourceState, PullSourceHealth)> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> PullSourceStatus {
        let (state, health) = self.lock_health().clone();
        PullSourceStatus {
            name: self.name.clone(),
            r#type: (self.source.as_ref()).map_or("", |source| source.definition.type_name()),
            state,
            is_ok: self.source.is_ok() && health.failures == 0,
            health,
        }
    }
}

impl PullScheduler {
    /// All tasks run on this runtime. Polling begins with [`PullScheduler::start`].
    #[must_use]
    pub fn new(runtime: Handle, options: &PullOptions) -> Self {
        Self {
            inner: Arc::new(PullSchedulerInner {
                runtime,
                intake: OnceLock::new(),
                turn: OnceLock::new(),
                slots: Arc::new(Semaphore::new(options.max_at_once.max(1))),
                entries: Mutex::default(),
                declared: OnceLock::new(),
                random: RandomState::new(),
            }),
        }
    }

    /// Validates a written definition and returns its stored form.
    ///
    /// # Errors
    /// Returns the path of the invalid field and what is wrong with it.
    pub fn stored_form(written: &Value) -> Result<Value, PullSourceError> {
        let source = PullSource::from_definition(written)?;
        serde_json::to_value(&source.definition)
            .map_err(|error| PullSourceError::new("", error.to_string()))
    }

    /// Adds sources declared in the configuration file; stored ones with the same names are ignored. Call it once,
    /// before [`PullScheduler::watch_objects`].
    pub fn declare(&self, sources: &[(String, Value)]) {
        let names = sources.iter().map(|(name, _)| name.clone());
        if self.inner.declared.set(names.collect()).is_ok() {
            sources
                .iter()
                .for_each(|(name, source)| self.set(name, source));
        }
    }

    fn is_declared(&self, name: &str) -> bool {
        let declared = self.inner.declared.get();
        declared.is_some_and(|declared| declared.contains(name))
    }

    /// Loads the stored sources and follows their changes.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn watch_objects(&self, objects: &Objects) -> Result<(), store::StoreError> {
        let (this, stored) = (Arc::downgrade(&self.inner), objects.downgrade());
        objects.observe_changes(Box::new(move |change| {
            if change.kind != KIND {
                return;
            }
            let (Some(inner), Some(stored)) = (this.upgrade(), stored.upgrade()) else {
                return;
            };
            let this = Self { inner };
            if this.is_declared(&change.id) {
                return;
            }
            match stored.get(KIND, &change.id) {
                Ok(Some(object)) => this.set(&change.id, &object.value),
                Ok(None) => this.remove(&change.id),
                Err(error) => {
                    tracing::error!(id = change.id, %error, "reading a changed pull source failed; the previous version remains in use");
                }
            }
        }));
        objects.for_each(KIND, |object| {
            if !self.is_declared(&object.id) {
                self.set(&object.id, &object.value);
            }
        })
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, PullEntry>> {
        let entries = self.inner.entries.lock();
        entries.unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates or replaces a source.
    pub fn set(&self, name: &str, value: &Value) {
        // Creating an HTTP client may require a runtime.
        let _runtime = self.inner.runtime.enter();
        let source = PullSource::from_definition(value).map_err(|error| error.to_string());
        let mut health = PullSourceHealth::default();
        let state = match &source {
            Ok(source) if source.definition.enabled => PullSourceState::Waiting,
            Ok(_) => PullSourceState::Disabled,
            Err(error) => {
                tracing::error!(name, error, "a pull source is invalid and is not polled");
                health.last_error = Some(error.clone());
                PullSourceState::Invalid
            }
        };
        let mut entries = self.entries();
        let before = entries.remove(name);
        let busy = before.as_ref().map(|before| before.state.busy.clone());
        if let Some(task) = before.and_then(|before| before.task) {
            task.abort();
        }
        let mut entry = PullEntry {
            state: Arc::new(PullEntryState {
                name: name.to_owned(),
                source,
                health: Mutex::new((state, health)),
                busy: busy.unwrap_or_default(),
            }),
            task: None,
        };
        self.begin(&mut entry);
        entries.insert(name.to_owned(), entry);
    }

    pub fn remove(&self, name: &str) {
        let removed = self.entries().remove(name);
        if let Some(task) = removed.and_then(|entry| entry.task) {
            task.abort();
        }
    }

    /// Polls only while it is this node's turn. To be called once, before [`PullScheduler::start`].
    pub fn set_turn(&self, turn: Arc<dyn PollingTurn>) {
        let _ = self.inner.turn.set(turn);
    }

    /// Starts polling and passes readings to `intake`.
    pub fn start(&self, intake: Arc<dyn ReadingIntake>) {
        // Only the first intake is used.
        let _ = self.inner.intake.set(intake);
        self.entries()
            .values_mut()
            .for_each(|entry| self.begin(entry));
    }

    /// Stops all tasks; values that are being stored are completed.
    pub async fn stop(&self) {
        let entries = std::mem::take(&mut *self.entries());
        let mut busy = Vec::new();
        for entry in entries.into_values() {
            if let Some(task) = entry.task {
                task.abort();
            }
            busy.push(entry.state.busy.clone());
        }
        let all_done = async {
            for busy in busy {
                drop(busy.lock().await);
            }
        };
        if tokio::time::timeout(STOP_WITHIN, all_done).await.is_err() {
            tracing::warn!("a pull source was still being polled when the node stopped");
        }
    }

    fn begin(&self, entry: &mut PullEntry) {
        let Some(intake) = self.inner.intake.get() else {
            return;
        };
        let is_asked = entry.state.lock_health().0 == PullSourceState::Waiting;
        if entry.task.is_none() && is_asked {
            let (state, intake) = (entry.state.clone(), intake.clone());
            let run = run(
                state,
                (intake, self.inner.turn.get().cloned()),
                self.inner.slots.clone(),
                self.inner.random.clone(),
            );
            entry.task = Some(self.inner.runtime.spawn(run));
        }
    }

    /// The status of all sources, sorted by name.
    #[must_use]
    pub fn statuses(&self) -> Vec<PullSourceStatus> {
        let entries = self.entries();
        entries.values().map(|entry| entry.state.status()).collect()
    }

    #[must_use]
    pub fn status(&self, name: &str) -> Option<PullSourceStatus> {
        Some(self.entries().get(name)?.state.status())
    }

    /// Polls a source once and stores nothing. Returns the rows or the error; `None`: the source does not exist.
    pub async fn test(&self, name: &str) -> Option<Result<Value, String>> {
        let state = self.entries().get(name)?.state.clone();
        let source = match &state.source {
            Ok(source) => source,
            Err(error) => return Some(Err(error.clone())),
        };
        let poll = async {
            // Waits for a running poll of the source.
            let _busy = state.busy.lock().await;
            // The semaphore is never closed.
            let _slot = self.inner.slots.acquire().await;
            source
                .read_all()
                .await
                .map(readings_json)
                .map_err(|failure| failure.0)
        };
        let result = tokio::time::timeout(TEST_WITHIN, poll).await;
        Some(result.unwrap_or_else(|_| {
            Err(format!(
                "no answer within {} s, the time limit of a test; scheduled polls use timeout_ms",
                TEST_WITHIN.as_secs()
            ))
        }))
    }
}

fn readings_json(readings: Readings) -> Value {
    let (rows, values) = (readings.rows.len(), readings.values());
    let shown = readings
        .rows
        .into_iter()
        .take(SHOWN_ROWS)
        .map(|row| json!({"device": row.device, "ts_ms": row.ts_ms, "values": row.values}));
    json!({
        "rows": rows,
        "values": values,
        "skipped_values": readings.skipped,
        "problem": readings.partial_error,
        "data": shown.collect::<Vec<_>>(),
    })
}

/// A random number in [0, 1), not for secrets.
fn random_fraction(random: &RandomState, state: &PullEntryState, turn: u64) -> f64 {
    let hash = random.hash_one((&state.name, turn, now_ms()));
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

/// The pause after a poll: the interval, increased while the source fails, with a jitter of 10 % so that sources do
/// not poll in step.
fn pause_before_next_run(interval: Duration, failures: u32, chance: f64) -> Duration {
    let factor = 1_u32 << failures.saturating_sub(1).min(16);
    let longest = MAX_PAUSE.max(interval);
    let pause = interval.saturating_mul(factor).min(longest);
    pause.mul_f64(0.9 + 0.2 * chance)
}

async fn run(
    state: Arc<PullEntryState>,
    (intake, polling_turn): (Arc<dyn ReadingIntake>, Option<Arc<dyn PollingTurn>>),
    slots: Arc<Semaphore>,
    random: RandomState,
) {
    let Ok(source) = &state.source else { return };
    let interval = source.interval();
    let first = interval.min(MAX_FIRST_PAUSE);
    let mut next = Instant::now() + first.mul_f64(random_fraction(&random, &state, 0));
    for turn in 1.. {
        let in_ms = next.saturating_duration_since(Instant::now()).as_millis() as u64;
        state.lock_health().1.next_run_at_ms = Some(now_ms() + in_ms);
        tokio::time::sleep_until(next).await;
        if let Some(polling_turn) = &polling_turn {
            wait_for_turn(&state, &**polling_turn).await;
        }
        let busy = state.busy.clone().lock_owned().await;
        // The semaphore is never closed.
        let slot = slots.acquire().await;
        state.lock_health().0 = PullSourceState::Asking;
        let (started, started_ms) = (Instant::now(), now_ms());
        let polled = match intake.is_full() {
            true => Err("the node has no room for more telemetry at the moment".to_owned()),
            false => source
                .read_all()
                .await
                .map_err(|failure: PullError| failure.0),
        };
        drop(slot);
        let outcome = match polled {
            Ok(readings) => store_readings(readings, intake.clone(), busy).await,
            Err(problem) => Err(problem),
        };
        let took_ms = started.elapsed().as_millis() as u64;
        let failures = {
            let mut seen = state.lock_health();
            let was_ok = seen.1.failures == 0;
            if let Err(problem) = &outcome
                && was_ok
            {
                tracing::warn!(
                    source = state.name,
                    problem,
                    "polling a pull source failed; retrying with increasing pauses"
                );
            }
            seen.1.record_run(outcome, started_ms, took_ms);
            seen.0 = PullSourceState::Waiting;
            if !was_ok && seen.1.failures == 0 {
                tracing::info!(source = state.name, "a pull source has recovered");
            }
            seen.1.failures
        };
        // Measured from the start of this poll, so that its duration does not add up.
        next = (started
            + pause_before_next_run(interval, failures, random_fraction(&random, &state, turn)))
        .max(Instant::now());
    }
}

/// Waits until this node is to poll.
async fn wait_for_turn(state: &PullEntryState, turn: &dyn PollingTurn) {
    while let Err(reason) = turn.check() {
        {
            let mut seen = state.lock_health();
            seen.0 = PullSourceState::Elsewhere;
            seen.1.not_polled_reason = Some(reason);
            seen.1.next_run_at_ms = None;
        }
        tokio::time::sleep(TURN_CHECK_INTERVAL).await;
    }
    state.lock_health().1.not_polled_reason = None;
}

/// Stores readings on a thread that may block. The source counts as busy until then, even if its task ends before.
async fn store_readings(
    readings: Readings,
    intake: Arc<dyn ReadingIntake>,
    busy: OwnedMutexGuard<()>,
) -> Result<PullRun, String> {
    let given = tokio::task::spawn_blocking(move || {
        let taken = intake.store_readings(&readings.rows, now_ms() as i64);
        drop(busy);
        (readings, taken)
    });
    let Ok((readings, taken)) = given.await else {
        return Err("storing the values panicked; this is a bug".to_owned());
    };
    let unknown = taken.unknown_device.map(|device| {
        format!(
            "{} rows belong to devices that are not registered, such as {device:?}",
            taken.unknown
        )
    });
    Ok(PullRun {
        rows: taken.rows,
        values: taken.values,
        skipped: readings.skipped,
        unknown: taken.unknown,
        partial_error: readings.partial_error.or(unknown),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_sources_are_polled_less_and_less_often() {
        let s = Duration::from_secs;
        let pause = |interval, failures| pause_before_next_run(s(interval), failures, 0.5);
        assert_eq!(
            [pause(60, 0), pause(60, 1), pause(60, 2)],
            [s(60), s(60), s(120)]
        );
        assert_eq!([pause(60, 10), pause(60, u32::MAX)], [s(600), s(600)]);
        assert_eq!([pause(3600, 0), pause(3600, 9)], [s(3600), s(3600)]);
        let least = pause_before_next_run(s(100), 0, 0.0);
        let most = pause_before_next_run(s(100), 0, 1.0);
        assert!(least >= s(89) && most <= s(111), "{least:?} {most:?}");
    }
}
