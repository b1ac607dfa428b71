//! What the coordinator tells the workers, and what they tell it while they run.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::live_latency::{CLASSES, LatencyCounts, LiveLatency};
use super::run_control::RunControl;
use super::run_log::RunLog;
use super::storage_sampler::StorageSampler;

/// No phase yet.
pub(crate) const NO_PHASE: usize = usize::MAX;

#[derive(Debug)]
pub(crate) struct RunShared {
    phase: AtomicUsize,
    /// Start of the phase on the monotonic clock.
    phase_start_ns: AtomicU64,
    is_stopped: AtomicBool,
    /// In the stamps of all verified messages.
    run_id: u32,
    /// At the end of the run, the number of verified messages that were sent, and the time.
    verified_messages: OnceLock<(u64, u64)>,
    /// Verified messages that subscribers have received.
    delivered: AtomicU64,
    /// Set if the time to storage is measured.
    storage_sampler: Option<StorageSampler>,
    control: RunControl,
    /// Set if it is shown.
    log: Option<RunLog>,
    workers: Vec<WorkerCounters>,
}

/// Counters of one worker since the start of the run; on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    /// The phase that the worker has begun, plus 1.
    pub(crate) begun_phases: AtomicU64,
    pub(crate) connected: AtomicU64,
    /// Devices of the phase that have not yet tried to connect, or are connecting for the first time.
    pub(crate) unsettled: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// Requests that were answered.
    pub(crate) answers: AtomicU64,
    pub(crate) acknowledged: AtomicU64,
    /// Sum of the times to acknowledgement.
    pub(crate) ack_sum_ns: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) missed: AtomicU64,
    pub(crate) connect_times: LiveLatency,
    pub(crate) ack_times: LiveLatency,
}

/// Sums over all workers.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RunProgress {
    pub(crate) connected: u64,
    pub(crate) unsettled: u64,
    pub(crate) connects: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    #[serde(default)]
    pub(crate) answers: u64,
    pub(crate) acknowledged: u64,
    pub(crate) ack_sum_ns: u64,
    pub(crate) failures: u64,
    pub(crate) skipped: u64,
    pub(crate) missed: u64,
    /// Verified messages that subscribers have received.
    pub(crate) delivered: u64,
}

impl RunProgress {
    /// Adds that of another machine.
    pub(super) fn add(&mut self, other: &Self) {
        self.connected += other.connected;
        self.unsettled += other.unsettled;
        self.connects += other.connects;
        self.sent += other.sent;
        self.received += other.received;
        self.answers += other.answers;
        self.acknowledged += other.acknowledged;
        self.ack_sum_ns += other.ack_sum_ns;
        self.failures += other.failures;
        self.skipped += other.skipped;
        self.missed += other.missed;
        self.delivered += other.delivered;
    }
}

impl RunShared {
    pub(crate) fn new(threads: usize, measures_storage: bool, log: Option<RunLog>) -> Self {
        Self {
            phase: AtomicUsize::new(NO_PHASE),
            phase_start_ns: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            run_id: random_id(),
            verified_messages: OnceLock::new(),
            delivered: AtomicU64::new(0),
            storage_sampler: measures_storage.then(StorageSampler::default),
            control: RunControl::default(),
            log,
            workers: (0..threads).map(|_| WorkerCounters::default()).collect(),
        }
    }

    pub(crate) fn start_phase(&self, phase: usize, now_ns: u64) {
        self.phase_start_ns.store(now_ns, Ordering::Relaxed);
        self.control.begin_phase();
        self.phase.store(phase, Ordering::Release);
    }

    /// The current phase and its start.
    pub(crate) fn phase(&self) -> (usize, u64) {
        let phase = self.phase.load(Ordering::Acquire);
        (phase, self.phase_start_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    pub(super) fn run_id(&self) -> u32 {
        self.run_id
    }

    /// Tells the subscribers how many messages they are to receive, when all have been sent.
    pub(super) fn end_verification(&self, messages: u64, now_ns: u64) {
        // Set once, at the end of the run.
        let _ = self.verified_messages.set((messages, now_ns));
    }

    /// After the end of the run, the number of verified messages that were sent, and its time.
    pub(super) fn verified_messages(&self) -> Option<(u64, u64)> {
        self.verified_messages.get().copied()
    }

    pub(super) fn set_delivered(&self, messages: u64) {
        self.delivered.store(messages, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn storage_sampler(&self) -> Option<&StorageSampler> {
        self.storage_sampler.as_ref()
    }

    pub(crate) fn worker(&self, thread: usize) -> &WorkerCounters {
        &self.workers[thread]
    }

    /// Whether all workers have begun `phase` and all their devices have connected or failed once.
    pub(crate) fn is_settled(&self, phase: usize) -> bool {
        self.workers.iter().all(|worker| {
            worker.begun_phases.load(Ordering::Acquire) == phase as u64 + 1
                && worker.unsettled.load(Ordering::Relaxed) == 0
        })
    }

    pub(crate) fn control(&self) -> &RunControl {
        &self.control
    }

    /// Shows a line of a script, where a run is shown.
    pub(super) fn log_line(&self, text: impl Into<String>) {
        if let Some(log) = &self.log {
            log.add_script_line(text.into());
        }
    }

    /// Shows a failure of a device.
    pub(super) fn log_failure(&self, device: &str, kind: &str, failure: &dyn fmt::Display) {
        if let Some(log) = &self.log {
            log.record_failure(device, kind, failure);
        }
    }

    /// `None`: nothing shows it.
    pub(crate) fn log(&self) -> Option<&RunLog> {
        self.log.as_ref()
    }

    /// Times of connections and of acknowledgements since the start of the run, by class.
    pub(super) fn live_times(&self) -> (LatencyCounts, LatencyCounts) {
        let mut sums = ([0; CLASSES], [0; CLASSES]);
        for worker in &self.workers {
            worker.connect_times.add_to(&mut sums.0);
            worker.ack_times.add_to(&mut sums.1);
        }
        sums
    }

    pub(crate) fn progress(&self) -> RunProgress {
        let mut sum = RunProgress::default();
        for worker in &self.workers {
            sum.connected += worker.connected.load(Ordering::Relaxed);
            sum.unsettled += worker.unsettled.load(Ordering::Relaxed);
            sum.connects += worker.connects.load(Ordering::Relaxed);
            sum.answers += worker.answers.load(Ordering::Relaxed);
            sum.received += worker.received.load(Ordering::Relaxed);
            sum.ack_sum_ns += worker.ack_sum_ns.load(Ordering::Relaxed);
            sum.sent += worker.sent.load(Ordering::Relaxed);
            sum.acknowledged += worker.acknowledged.load(Ordering::Relaxed);
            sum.failures += worker.failures.load(Ordering::Relaxed);
            sum.skipped += worker.skipped.load(Ordering::Relaxed);
            sum.missed += worker.missed.load(Ordering::Relaxed);
        }
        sum.delivered = self.delivered.load(Ordering::Relaxed);
        sum
    }
}

/// A number that two runs at the same time hardly share, other than 0.
fn random_id() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    (RandomState::new().hash_one(load_client::host::now_ns()) as u32).max(1)
}
