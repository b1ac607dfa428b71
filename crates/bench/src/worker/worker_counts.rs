//! What one worker counted.

use hdrhistogram::Histogram;

use crate::client_error::FailureLog;
use crate::metrics::latency_histogram;
use crate::sequence_checker::SequenceFaults;
use crate::timer::PollingTime;

/// Counts of one worker, or of several together.
#[derive(Clone, Debug)]
pub(crate) struct WorkerCounts {
    /// Length of the measured interval.
    pub(crate) seconds: f64,
    /// Different messages received, and messages sent, within the interval.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Deliveries that what was sent calls for, over the whole run.
    pub(crate) expected: u64,
    /// Processor time of the generator within the interval, and the time its threads had.
    pub(crate) generator_cpu_s: f64,
    /// Further processor time of the generator: it waited for events without sleeping.
    pub(crate) generator_polling_s: f64,
    /// The same by the clock, and how much of it the machine did not run the generator.
    pub(crate) polling: PollingTime,
    pub(crate) generator_core_s: f64,
    /// Latencies in nanoseconds of messages sent (or due) within the interval; of connects in `connect`.
    pub(crate) latency: Histogram<u64>,
    /// Over the whole run.
    pub(crate) faults: SequenceFaults,
    /// Answered with a reason code of 0x80 or more.
    pub(crate) rejected: u64,
    pub(crate) unacknowledged: u64,
    pub(crate) unsent: u64,
    pub(crate) abandoned_windows: u64,
    pub(crate) unexpected: u64,
    /// Connections accepted.
    pub(crate) connects: u64,
    pub(crate) failures: FailureLog,
    /// Of `offline` only.
    pub(crate) offline: Option<OfflineCounts>,
    /// Counters of the broker's rules, if its API is known.
    pub(crate) rules: Option<RuleCounts>,
}

/// What rules counted during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleCounts {
    pub(crate) evaluated: u64,
    /// Evaluations that failed, actions that failed, outputs that were dropped.
    pub(crate) failures: u64,
}

/// What else there is to know where messages were stored for clients that were away.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct OfflineCounts {
    /// Messages acknowledged, and the time from the first to the last acknowledgement.
    pub(crate) stored: u64,
    pub(crate) store_seconds: f64,
    /// Messages that were there at the same time, at most.
    pub(crate) held: u64,
    /// Clients that did not get everything.
    pub(crate) incomplete: u64,
}

impl Default for WorkerCounts {
    fn default() -> Self {
        Self {
            seconds: 0.0,
            received: 0,
            sent: 0,
            expected: 0,
            generator_cpu_s: 0.0,
            generator_polling_s: 0.0,
            polling: PollingTime::default(),
            generator_core_s: 0.0,
            latency: latency_histogram(),
            faults: SequenceFaults::default(),
            rejected: 0,
            unacknowledged: 0,
            unsent: 0,
            abandoned_windows: 0,
            unexpected: 0,
            connects: 0,
            failures: FailureLog::default(),
            offline: None,
            rules: None,
        }
    }
}

impl WorkerCounts {
    /// Adds what another worker counted at the same time.
    pub(crate) fn add_parallel(&mut self, other: &WorkerCounts) {
        self.add_counts(other);
        self.seconds = self.seconds.max(other.seconds);
        if let Some(other) = other.offline {
            let sum = self.offline.get_or_insert_default();
            sum.stored += other.stored;
            sum.held += other.held;
            sum.store_seconds = sum.store_seconds.max(other.store_seconds);
            sum.incomplete += other.incomplete;
        }
    }

    /// Adds what another round counted.
    pub(crate) fn add_round(&mut self, other: &WorkerCounts) {
        self.add_counts(other);
        self.seconds += other.seconds;
        if let Some(other) = other.offline {
            let sum = self.offline.get_or_insert_default();
            sum.stored += other.stored;
            sum.held = sum.held.max(other.held);
            sum.store_seconds += other.store_seconds;
            sum.incomplete += other.incomplete;
        }
    }

    fn add_counts(&mut self, other: &WorkerCounts) {
        self.received += other.received;
        self.sent += other.sent;
        self.expected += other.expected;
        self.generator_cpu_s += other.generator_cpu_s;
        self.generator_polling_s += other.generator_polling_s;
        self.polling += other.polling;
        self.generator_core_s += other.generator_core_s;
        self.latency
            .add(&other.latency)
            .expect("all latency histograms have the same bounds");
        self.faults.add(other.faults);
        self.rejected += other.rejected;
        self.unacknowledged += other.unacknowledged;
        self.unsent += other.unsent;
        self.abandoned_windows += other.abandoned_windows;
        self.unexpected += other.unexpected;
        self.connects += other.connects;
        self.failures.add(&other.failures);
        if let Some(other) = other.rules {
            let sum = self.rules.get_or_insert_default();
            sum.evaluated += other.evaluated;
            sum.failures += other.failures;
        }
    }
}
