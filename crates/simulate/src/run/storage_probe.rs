//! Measures how long a node takes to store telemetry: reads the latest values of a device that has just sent a message, again
//! and again, until they have the time of the message.

use std::time::Duration;

use anyhow::Context as _;
use load_client::host::now_ns;
use load_client::node_api::NodeApi;
use serde_json::Value;

use super::phase_counts::PhaseCounts;
use super::run_shared::{NO_PHASE, RunShared};
use super::storage_sampler::{StorageSample, StorageSampler};

/// Time between two requests; the resolution of the measurement.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// A message that is not stored in this time counts as `unstored`.
const STORE_TIMEOUT_NS: u64 = 10_000_000_000;

pub(super) struct StorageProbe<'a> {
    node: &'a NodeApi,
    shared: &'a RunShared,
    sampler: &'a StorageSampler,
    by_phase: Vec<PhaseCounts>,
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

    /// Time from when the message was due until it is stored; `None`: it takes too long.
    fn measure(&self, sample: &StorageSample) -> anyhow::Result<Option<u64>> {
        let path = format!("/api/v1/devices/{}/telemetry/latest", sample.device);
        loop {
            let answer = self
                .node
                .get(&path)
                .context("cannot measure the time to storage")?;
            let took_ns = now_ns().saturating_sub(sample.due_ns);
            if answer.is_some_and(|answer| is_stored(&answer, sample.ts_ms)) {
                return Ok(Some(took_ns));
            }
            if took_ns > STORE_TIMEOUT_NS {
                return Ok(None);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
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
    use super::*;
    use serde_json::json;

    #[test]
    fn values_of_the_time_of_the_message_are_stored() {
        let latest = json!({"device": "a", "values": {"x": {"ts_ms": 5, "value": 1}}});
        assert!(is_stored(&latest, 5) && is_stored(&latest, 4));
        assert!(!is_stored(&latest, 6));
        assert!(!is_stored(&json!({"values": {}}), 0));
    }
}
