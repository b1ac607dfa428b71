//! What a sink of the node writes during a run, and how much waits for it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::node_api::NodeApi;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Counters of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SinkCounts {
    sent: u64,
    failed: u64,
    queued: u64,
    batches: u64,
    latency_s: f64,
}

/// A sink of the node, from the begin of a run on.
pub(super) struct SinkMeter<'a> {
    node: &'a NodeApi,
    path: String,
    before: SinkCounts,
    started: Instant,
}

/// What the sink has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SinkResult {
    pub(super) written: u64,
    /// Rows that the system has rejected.
    pub(super) failed: u64,
    /// The most rows that waited, by samples.
    pub(super) max_queued: u64,
    /// From the begin until the last row was written.
    pub(super) seconds: f64,
    batches: u64,
    latency_s: f64,
}

impl<'a> SinkMeter<'a> {
    /// # Errors
    /// If there is no such sink, or it does not run.
    pub(super) fn new(node: &'a NodeApi, name: &str) -> anyhow::Result<Self> {
        let mut meter = Self {
            node,
            path: format!("/api/v1/sinks/{name}/status"),
            before: SinkCounts::default(),
            started: Instant::now(),
        };
        let status = node
            .get(&meter.path)?
            .with_context(|| format!("--sink {name}: the node has no such sink"))?;
        ensure!(
            status["state"] == "running",
            "--sink {name}: the sink does not run: {}",
            status["problem"].as_str().unwrap_or("its writes fail")
        );
        meter.before = meter.counts()?;
        meter.started = Instant::now();
        Ok(meter)
    }

    fn counts(&self) -> anyhow::Result<SinkCounts> {
        let status = self.node.get(&self.path)?.context("the sink is gone")?;
        let number = |name: &str| status["metrics"][name].as_u64().unwrap_or(0);
        Ok(SinkCounts {
            sent: number("sent"),
            failed: number("failed"),
            queued: number("queued"),
            batches: number("batches"),
            latency_s: status["metrics"]["latency_seconds"].as_f64().unwrap_or(0.0),
        })
    }

    /// The most rows that waited until `is_done`.
    pub(super) fn observe_queue(&self, is_done: &AtomicBool) -> u64 {
        let mut most = 0;
        while !is_done.load(Relaxed) {
            // A sample that fails is missing; the final counts are read again.
            most = most.max(self.counts().map_or(0, |counts| counts.queued));
            std::thread::sleep(SAMPLE_INTERVAL);
        }
        most
    }

    /// Waits until so many rows are written or rejected.
    pub(super) fn finish(
        &self,
        rows: u64,
        max_queued: u64,
        timeout: Duration,
    ) -> anyhow::Result<SinkResult> {
        let deadline = Instant::now() + timeout;
        loop {
            let now = self.counts()?;
            let (written, failed) = (now.sent - self.before.sent, now.failed - self.before.failed);
            if written + failed >= rows || Instant::now() >= deadline {
                return Ok(SinkResult {
                    written,
                    failed,
                    max_queued: max_queued.max(now.queued),
                    seconds: self.started.elapsed().as_secs_f64(),
                    batches: now.batches - self.before.batches,
                    latency_s: now.latency_s - self.before.latency_s,
                });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl SinkResult {
    pub(super) fn written_per_s(&self) -> f64 {
        self.written as f64 / self.seconds.max(1e-9)
    }

    /// Mean time from the begin of a write to the answer of the system.
    pub(super) fn batch_mean_ms(&self) -> f64 {
        self.latency_s * 1e3 / self.batches.max(1) as f64
    }

    pub(super) fn rows_per_batch(&self) -> f64 {
        self.written as f64 / self.batches.max(1) as f64
    }

    pub(super) fn to_json(self) -> Value {
        json!({
            "written": self.written, "failed": self.failed, "max_queued": self.max_queued,
            "written_per_s": self.written_per_s(), "seconds": self.seconds, "batches": self.batches,
            "batch_mean_ms": self.batch_mean_ms(), "rows_per_batch": self.rows_per_batch(),
        })
    }
}
