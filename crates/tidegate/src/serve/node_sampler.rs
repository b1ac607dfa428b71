//! Samples the metrics of the node for the node alarm rules every few seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::QuarantinedPart;
use connect::ConnectorService;
use devices::alarm::NodeSample;
use devices::ingest::{Pipeline, PipelineSnapshot};
use engine::{Engine, RuleCounter, RuleTotals};
use series::Series;

use super::alarms::AlarmInputs;
use crate::quarantine::Quarantine;

/// The origins of the metrics.
pub(super) struct NodeSampler {
    pub(super) alarms: AlarmInputs,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) engine: Engine,
    pub(super) sinks: ConnectorService,
    pub(super) quarantine: Quarantine,
    pub(super) series: Series,
}

struct SampleBaseline {
    at: Instant,
    ingest: PipelineSnapshot,
    rules: RuleTotals,
}

impl NodeSampler {
    /// Runs until the runtime stops.
    pub(super) async fn run(self, every: Duration) {
        if !self.alarms.are_node_alarms_enabled() {
            return;
        }
        let this = Arc::new(self);
        let mut before = this.take_baseline();
        loop {
            tokio::time::sleep(every).await;
            let sampler = Arc::clone(&this);
            // Reads a file of `/proc`.
            let sampled = tokio::task::spawn_blocking(move || {
                let now = sampler.take_baseline();
                sampler
                    .alarms
                    .evaluate_node_alarms(&sampler.sample(&before, &now));
                now
            });
            match sampled.await {
                Ok(now) => before = now,
                Err(error) => {
                    tracing::error!(%error, "sampling the node's metrics panicked; this is a bug");
                    return;
                }
            }
        }
    }

    fn take_baseline(&self) -> SampleBaseline {
        SampleBaseline {
            at: Instant::now(),
            ingest: self.pipeline.snapshot(),
            rules: self.engine.totals(),
        }
    }

    fn sample(&self, before: &SampleBaseline, now: &SampleBaseline) -> NodeSample {
        let rules = now.rules.difference(&before.rules);
        let (matched, failed) = (
            rules.get(RuleCounter::Matched),
            rules.get(RuleCounter::Failed),
        );
        let sinks = self.sinks.sinks();
        let queued: u64 = sinks.iter().map(|sink| sink.metrics.queued).sum();
        NodeSample {
            memory_mb: resident_mb(),
            rule_success_percent: percent(matched.saturating_sub(failed), matched),
            rule_latency_ms: mean_ms(rules.sum_ns(), rules.timed_count()),
            rule_queue: Some(queued as f64),
            damaged_files: self
                .quarantine
                .list()
                .ok()
                .map(|parts| damaged_files(&parts)),
            damaged_telemetry_files: Some(self.series.stats().damaged_files as f64),
            ..ingest_sample(&before.ingest, &now.ingest, now.at - before.at)
        }
    }
}

/// Number of files in quarantine. Missing ones count once per part.
fn damaged_files(parts: &[QuarantinedPart]) -> f64 {
    let files = parts.iter().map(|part| part.files.len().max(1));
    files.sum::<usize>() as f64
}

/// The metrics of the pipeline.
fn ingest_sample(
    before: &PipelineSnapshot,
    now: &PipelineSnapshot,
    passed: Duration,
) -> NodeSample {
    let messages = now.messages.saturating_sub(before.messages);
    let bad = |s: &PipelineSnapshot| s.malformed + s.unknown + s.unstored;
    let bad = bad(now).saturating_sub(bad(before)).min(messages);
    let latency = now.latency.difference(&before.latency);
    let p95_ns = (latency.count > 0).then(|| latency.quantile_ns(950));
    NodeSample {
        messages_per_s: messages as f64 / passed.as_secs_f64().max(0.001),
        latency_mean_ms: mean_ms(latency.sum_ns, latency.count),
        latency_p95_ms: p95_ns.map(|ns| ns as f64 / 1e6),
        success_percent: percent(messages - bad, messages),
        mailbox_backlog: Some(now.queued as f64),
        ..NodeSample::default()
    }
}

/// `None` if `whole` is zero.
fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 100.0 * part as f64 / whole as f64)
}

fn mean_ms(sum_ns: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum_ns as f64 / count as f64 / 1e6)
}

/// Resident memory of the process; `None` without `/proc`.
fn resident_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_time_between_two_looks() {
        let before = PipelineSnapshot {
            messages: 1000,
            malformed: 100,
            ..PipelineSnapshot::default()
        };
        let now = PipelineSnapshot {
            messages: 3000,
            malformed: 150,
            unstored: 50,
            queued: 7,
            ..PipelineSnapshot::default()
        };
        let sample = ingest_sample(&before, &now, Duration::from_secs(10));
        assert_eq!(sample.messages_per_s, 200.0);
        assert_eq!(sample.success_percent, Some(95.0));
        assert_eq!(sample.mailbox_backlog, Some(7.0));
        // Without messages there is neither a latency nor a success rate.
        assert_eq!(sample.latency_mean_ms, None);
        let quiet = ingest_sample(&now, &now, Duration::from_secs(10));
        assert_eq!(quiet.success_percent, None);
        assert!(resident_mb().is_none_or(|mb| mb > 1.0));
    }
}
