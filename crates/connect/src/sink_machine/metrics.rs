//! Counters of one sink, written by shards and by the machine, read from any thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the latency histogram in milliseconds; a final bucket takes the rest.
pub const LATENCY_BOUNDS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000];

#[derive(Debug, Default)]
pub(crate) struct SinkCounters {
    pub(crate) dropped_full: AtomicU64,
    pub(crate) dropped_too_large: AtomicU64,
    /// Rows neither written nor kept when the sink ended.
    pub(crate) dropped_at_stop: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) rows_in_flight: AtomicU64,
    pub(crate) batches_in_flight: AtomicU64,
    pub(crate) latency_ns: AtomicU64,
    pub(crate) latency: [AtomicU64; LATENCY_BOUNDS_MS.len() + 1],
    pub(crate) dead_letters_dropped: AtomicU64,
    /// When dead letters were last logged, and their number since then.
    pub(crate) dead_letters_logged_at_ms: AtomicU64,
    pub(crate) dead_letters_unlogged: AtomicU64,
}

impl SinkCounters {
    /// Records the duration of a successful or failed attempt.
    pub(crate) fn observe(&self, took: Duration) {
        self.batches.fetch_add(1, Relaxed);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.fetch_add(ns, Relaxed);
        let bucket = LATENCY_BOUNDS_MS.partition_point(|&bound| bound * 1_000_000 < ns);
        self.latency[bucket].fetch_add(1, Relaxed);
    }
}

/// Metrics of one sink since it was created.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct SinkMetrics {
    /// Rows waiting now, in memory and on disk, including those being written.
    pub queued: u64,
    pub queued_bytes: u64,
    /// Rows of the queue that are in no file.
    pub queued_in_memory: u64,
    /// Rows taken from the queue for a batch.
    pub taken: u64,
    /// Rows written to the system.
    pub sent: u64,
    /// Retried rows; each retry counts.
    pub retried: u64,
    /// Rows that became dead letters.
    pub failed: u64,
    /// Rows dropped because the queue was full.
    pub dropped_queue_full: u64,
    /// Rows dropped because they were larger than the queue.
    pub dropped_too_large: u64,
    /// Rows neither written nor kept when the sink ended.
    pub dropped_at_stop: u64,
    /// Attempts to write a batch.
    pub batches: u64,
    pub batches_in_flight: u64,
    pub rows_in_flight: u64,
    /// Total duration of all attempts.
    pub latency_seconds: f64,
    /// Attempts by duration: up to 1, 2, 5, 10, 20, 50, 100, 200, 500 ms, 1, 5, 30 s, longer.
    pub latency_buckets: Vec<u64>,
    /// Present number of dead letters.
    pub dead_letters: u64,
    /// Dead letters removed to make room for others.
    pub dead_letters_dropped: u64,
}

impl SinkCounters {
    /// All metrics except those of the queue and of dead letters, which report their own content.
    pub(crate) fn snapshot(&self) -> SinkMetrics {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        SinkMetrics {
            queued: 0,
            queued_bytes: 0,
            queued_in_memory: 0,
            taken: get(&self.taken),
            sent: get(&self.sent),
            retried: get(&self.retried),
            failed: get(&self.failed),
            dropped_queue_full: get(&self.dropped_full),
            dropped_too_large: get(&self.dropped_too_large),
            dropped_at_stop: get(&self.dropped_at_stop),
            batches: get(&self.batches),
            batches_in_flight: get(&self.batches_in_flight),
            rows_in_flight: get(&self.rows_in_flight),
            latency_seconds: get(&self.latency_ns) as f64 / 1e9,
            latency_buckets: self.latency.iter().map(get).collect(),
            dead_letters: 0,
            dead_letters_dropped: get(&self.dead_letters_dropped),
        }
    }
}
