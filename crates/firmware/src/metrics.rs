//! Counters of firmware.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hooks::{MetricFamily, MetricKind};

use crate::campaign::{CampaignDeviceState, CampaignStatus, CampaignTotals};
use crate::chunk_cache::ChunkStats;
use crate::device_state::InstallState;

/// How a device downloads a part of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkTransport {
    Mqtt,
    Http,
    Link,
}

impl ChunkTransport {
    const ALL: [Self; 3] = [Self::Mqtt, Self::Http, Self::Link];

    fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Http => "http",
            Self::Link => "link",
        }
    }
}

#[derive(Default)]
pub(crate) struct FirmwareMetrics {
    chunks: [AtomicU64; ChunkTransport::ALL.len()],
    chunk_bytes: [AtomicU64; ChunkTransport::ALL.len()],
    rejected_requests: AtomicU64,
    reported_states: [AtomicU64; InstallState::ALL.len()],
}

impl FirmwareMetrics {
    pub(crate) fn count_chunk(&self, transport: ChunkTransport, bytes: u64) {
        self.chunks[transport as usize].fetch_add(1, Relaxed);
        self.chunk_bytes[transport as usize].fetch_add(bytes, Relaxed);
    }

    pub(crate) fn count_rejected_request(&self) {
        self.rejected_requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_reported_state(&self, state: InstallState) {
        self.reported_states[state as usize].fetch_add(1, Relaxed);
    }

    /// `dropped_requests` did not fit into the queue.
    pub(crate) fn families(
        &self,
        cache: ChunkStats,
        dropped_requests: u64,
        campaigns: &CampaignTotals,
    ) -> Vec<MetricFamily> {
        let mut families = self.chunk_families(cache, dropped_requests);
        families.extend(self.install_families(campaigns));
        families
    }

    fn chunk_families(&self, cache: ChunkStats, dropped_requests: u64) -> Vec<MetricFamily> {
        let by_transport = |name, help, counters: &[AtomicU64; ChunkTransport::ALL.len()]| {
            let counts = ChunkTransport::ALL.map(|transport| {
                let count = counters[transport as usize].load(Relaxed);
                (transport.name(), count as f64)
            });
            MetricFamily::by_label(name, help, MetricKind::Counter, "transport", counts)
        };
        vec![
            by_transport(
                "firmware_chunks_total",
                "Chunks of firmware passed to devices. Whole images over HTTP count as files.",
                &self.chunks,
            ),
            by_transport(
                "firmware_chunk_bytes_total",
                "Bytes of chunks of firmware passed to devices.",
                &self.chunk_bytes,
            ),
            MetricFamily::counter(
                "firmware_chunk_requests_rejected_total",
                "Requests for chunks over MQTT that were answered with an error.",
                self.rejected_requests.load(Relaxed),
            ),
            MetricFamily::counter(
                "firmware_chunk_requests_dropped_total",
                "Requests for chunks over MQTT that were dropped because too many waited.",
                dropped_requests,
            ),
            MetricFamily::counter(
                "firmware_chunk_reads_total",
                "Chunks of firmware read from the disk.",
                cache.reads,
            ),
            MetricFamily::counter(
                "firmware_chunk_cache_hits_total",
                "Chunks of firmware that were in memory.",
                cache.hits,
            ),
            MetricFamily::gauge(
                "firmware_chunk_cache_bytes",
                "Memory of chunks of firmware.",
                cache.cached_bytes as f64,
            ),
        ]
    }

    fn install_families(&self, campaigns: &CampaignTotals) -> Vec<MetricFamily> {
        let reported = InstallState::REPORTED.iter().map(|state| {
            let count = self.reported_states[*state as usize].load(Relaxed);
            (state.name(), count as f64)
        });
        let statuses = CampaignStatus::ALL.iter().map(|status| {
            let count = campaigns.by_status[*status as usize];
            (status.name(), f64::from(count))
        });
        let devices = CampaignDeviceState::ALL.iter().map(|state| {
            let count = campaigns.open_devices.get(*state);
            (state.name(), f64::from(count))
        });
        vec![
            MetricFamily::by_label(
                "firmware_reported_states_total",
                "Reports of devices that have changed the state of an installation, by the new state.",
                MetricKind::Counter,
                "state",
                reported,
            ),
            MetricFamily::by_label(
                "firmware_campaigns",
                "Firmware campaigns by status.",
                MetricKind::Gauge,
                "status",
                statuses,
            ),
            MetricFamily::by_label(
                "firmware_campaign_devices",
                "Devices of unfinished firmware campaigns, by their state in the campaign.",
                MetricKind::Gauge,
                "state",
                devices,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters are found by the number of a variant, and shown by the order of the lists.
    #[test]
    fn lists_are_in_the_order_of_their_variants() {
        for (at, transport) in ChunkTransport::ALL.into_iter().enumerate() {
            assert_eq!(transport as usize, at);
        }
        for (at, state) in InstallState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, at);
        }
        for (at, status) in CampaignStatus::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, at);
            let json = serde_json::to_value(status).expect("a text");
            assert_eq!(json, status.name());
        }
        for state in CampaignDeviceState::ALL {
            let json = serde_json::to_value(state).expect("a text");
            assert_eq!(json, state.name());
        }
    }
}
