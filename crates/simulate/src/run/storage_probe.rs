//! Measures how long a node takes to store telemetry: reads the latest values of a device that has just sent a message, again
//! and again, until they have the time of the message.

use std::time::Duration;

use anyhow::Context as _;
use load_client::host::now_ns;
use load_client::node_api::NodeApi;
use outbound::url_encoding::url_encode;
use serde_json::Value;

use super::phase_counts::PhaseCounts;
use super::run_shared::{NO_PHASE, RunShared};
use super::storage_sampler::{StorageSample, StorageSampler};

/// Time between two requests; the resolution of the measurement.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// A message that is not stored in this time counts as `unstored`.
const STORE_TIMEOUT_NS: u64 = 10_000_000_000;
/// Time after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Failed requests before the first answer after which the address or the token is considered wrong.
const MAX_FAILURES_AT_START: u32 = 10;

pub(super) struct StorageProbe<'a> {
    node: &'a NodeApi,
    shared: &'a RunShared,
    sampler: &'a StorageSampler,
    by_phase: Vec<PhaseCounts>,
    /// Whether the node has answered a request.
    has_answer: bool,
    failures_at_start: u32,
}

impl<'a> StorageProbe<'a> {
    pub(super) fn new(
        node: &'a NodeApi,
        shared: &'a RunShared,
        sampler: &'a StorageSampler,
    ) -> Self {
        Self {
            node,
            shared,
            sampler,
            by_phase: Vec::new(),
            has_answer: false,
            failures_at_start: 0,
        }
    }

    /// Measures one message after the other until the run ends; returns what was counted in each phase.
    pub(super) fn run(mut self) -> anyhow::Result<Vec<PhaseCounts>> {
        self.sampler.request();
        loop {
            if let Some(sample) = self.sampler.take() {
                let took_ns = self.measure(&sample)?;
                let counts = self.counts();
                match took_ns {
                    Some(took_ns) => counts.storage.saturating_record(took_ns),
                    None => counts.unstored += 1,
                }
                self.sampler.request();
            } else if self.shared.is_stopped() {
                return Ok(self.by_phase);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn counts(&mut self) -> &mut PhaseCounts {
        let phase = match self.shared.phase().0 {
            NO_PHASE => 0,
            phase => phase,
        };
        if self.by_phase.len() <= phase {
            self.by_phase.resize_with(phase + 1, PhaseCounts::default);
        }
        &mut self.by_phase[phase]
    }

    /// Time from when the message was due until it is stored; `None`: it takes too long, or the node does not answer meanwhile.
    fn measure(&mut self, sample: &StorageSample) -> anyhow::Result<Option<u64>> {
        let path = format!(
            "/api/v1/devices/{}/telemetry/latest",
            url_encode(&sample.device)
        );
        loop {
            let answer = self.node.get(&path);
            let took_ns = now_ns().saturating_sub(sample.due_ns);
            let pause = match answer {
                Ok(answer) => {
                    self.has_answer = true;
                    if answer.is_some_and(|answer| is_stored(&answer, sample.ts_ms)) {
                        return Ok(Some(took_ns));
                    }
                    POLL_INTERVAL
                }
                Err(error) => {
                    self.record_failure(error)?;
                    RETRY_INTERVAL
                }
            };
            if took_ns > STORE_TIMEOUT_NS {
                return Ok(None);
            }
            std::thread::sleep(pause);
        }
    }

    /// Counts a failed request. The result of a run is not worth less than an answer, unless there never is one.
    fn record_failure(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        let text = format!("time to storage: {error:#}");
        let failures = &mut self.counts().failures;
        failures.record_other("time to storage not read", || text);
        self.failures_at_start += u32::from(!self.has_answer);
        if self.failures_at_start >= MAX_FAILURES_AT_START {
            return Err(error).context("cannot measure the time to storage");
        }
        Ok(())
    }
}

/// Whether latest values contain one of this time or later.
fn is_stored(latest: &Value, ts_ms: u64) -> bool {
    let values = latest["values"].as_object().into_iter().flatten();
    let mut times = values.filter_map(|(_, value)| value["ts_ms"].as_u64());
    times.any(|time| time >= ts_ms)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use load_client::node_api::{NodeRequest, NodeTransport};
    use serde_json::json;

    use super::*;

    /// Answers as `answer` does to the request of this number and path.
    struct ScriptedNode<F> {
        requests: AtomicUsize,
        answer: F,
    }

    impl<F: Fn(usize, &str) -> (u16, String) + Send + Sync> NodeTransport for ScriptedNode<F> {
        fn send(&self, request: &NodeRequest<'_>) -> anyhow::Result<(u16, String)> {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            Ok((self.answer)(number, request.path))
        }

        fn address(&self) -> String {
            "memory".to_owned()
        }
    }

    /// Measures one message of the device `a/b` with the time 5.
    fn measure(
        answer: impl Fn(usize, &str) -> (u16, String) + Send + Sync + 'static,
    ) -> (anyhow::Result<Option<u64>>, Vec<PhaseCounts>) {
        let node = NodeApi::with_transport(Arc::new(ScriptedNode {
            requests: AtomicUsize::new(0),
            answer,
        }));
        let shared = RunShared::new(1, true, None);
        let sampler = shared.storage_sampler().unwrap();
        let mut probe = StorageProbe::new(&node, &shared, sampler);
        let measured = probe.measure(&StorageSample {
            device: "a/b".to_owned(),
            ts_ms: 5,
            due_ns: now_ns(),
        });
        (measured, probe.by_phase)
    }

    #[test]
    fn failed_requests_are_counted_and_repeated() {
        let (measured, counts) = measure(|number, path| {
            assert_eq!(path, "/api/v1/devices/a%2Fb/telemetry/latest");
            match number {
                0 | 1 => (503, json!({"detail": "restarting"}).to_string()),
                _ => (200, json!({"values": {"x": {"ts_ms": 5}}}).to_string()),
            }
        });
        assert!(measured.unwrap().is_some());
        assert_eq!(counts[0].failures.by_kind["time to storage not read"], 2);
        assert!(counts[0].failures.first[0].contains("restarting"));
    }

    #[test]
    fn a_node_that_rejects_the_first_requests_is_an_error() {
        let (measured, counts) = measure(|_, _| (401, String::new()));
        let error = format!("{:#}", measured.unwrap_err());
        assert!(error.contains("answered 401"), "{error}");
        assert_eq!(counts[0].failures.count(), u64::from(MAX_FAILURES_AT_START));
    }

    #[test]
    fn values_of_the_time_of_the_message_are_stored() {
        let latest = json!({"device": "a", "values": {"x": {"ts_ms": 5, "value": 1}}});
        assert!(is_stored(&latest, 5) && is_stored(&latest, 4));
        assert!(!is_stored(&latest, 6));
        assert!(!is_stored(&json!({"values": {}}), 0));
    }
}
