//! Devices and senders of a run, and what it has shown.

use devices::ingest::PipelineMode;
use serde_json::{Value, json};

/// Devices and senders of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PipelineScenario {
    pub(crate) name: &'static str,
    pub(crate) mode: PipelineMode,
    pub(crate) devices: u32,
    pub(crate) senders: u32,
    /// Of each device; `None`: so that all devices together send as many as were asked for.
    pub(crate) messages: Option<u64>,
}

pub(crate) const fn scenario(
    name: &'static str,
    mode: PipelineMode,
    devices: u32,
    senders: u32,
) -> PipelineScenario {
    PipelineScenario {
        name,
        mode,
        devices,
        senders,
        messages: None,
    }
}

/// What a scenario has shown.
#[derive(Clone, Debug)]
pub(crate) struct PipelineResult {
    pub(crate) name: &'static str,
    pub(crate) sent: u64,
    pub(crate) stored: u64,
    pub(crate) per_s: f64,
    pub(crate) cpu_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) resident_mib: f64,
    /// The most messages that waited in mailboxes at a time, by samples.
    pub(crate) max_queued: u64,
    /// Resident memory when all messages were handed over, or at the end, whichever is more.
    pub(crate) peak_bytes: u64,
    /// Time from the first message until all were stored.
    pub(crate) seconds: f64,
}

impl PipelineResult {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "scenario": self.name, "sent": self.sent, "stored": self.stored, "per_s": self.per_s.round(),
            "cpu_us_per_message": self.cpu_us, "mean_us": self.mean_us, "p50_us": self.p50_us,
            "p95_us": self.p95_us, "p99_us": self.p99_us, "resident_mib": self.resident_mib, "max_queued": self.max_queued,
            "peak_mib": self.peak_bytes as f64 / f64::from(1 << 20),
        })
    }
}
