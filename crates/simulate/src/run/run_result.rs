//! What a run has measured.

use serde::{Deserialize, Serialize};

use super::phase_counts::PhaseCounts;
use super::process_memory::PhaseMemory;
use super::run_series::SeriesPoint;
use crate::firmware_setup::CampaignCounts;

/// One phase that has begun.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PhaseResult {
    /// Number in the plan.
    pub(crate) phase: usize,
    pub(crate) seconds: f64,
    /// Devices connected at its end.
    pub(crate) connected: u64,
    pub(crate) counts: PhaseCounts,
    /// The campaign that began with it.
    #[serde(default)]
    pub(crate) campaign: Option<CampaignCounts>,
    /// Set if the node is in this process, too.
    #[serde(default)]
    pub(crate) memory: Option<PhaseMemory>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunResult {
    pub(crate) phases: Vec<PhaseResult>,
    pub(crate) series: Vec<SeriesPoint>,
    pub(crate) is_interrupted: bool,
    /// What a user has changed while it ran.
    #[serde(default)]
    pub(crate) interventions: Vec<String>,
    /// Verified messages of the whole run; `None`: the simulation verifies none.
    pub(crate) verified: Option<VerifiedMessages>,
}

/// What became of the messages that subscribers verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerifiedMessages {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
}
