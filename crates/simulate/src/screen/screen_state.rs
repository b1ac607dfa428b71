//! What the screen shows.

use super::rate_history::RateHistory;
use crate::run::{LatencyCounts, LogLine, RunProgress};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseStage {
    Waiting,
    Running,
    Done,
}

/// A phase of the run.
#[derive(Clone, Debug)]
pub(crate) struct PhaseRow {
    pub(crate) name: String,
    pub(crate) stage: PhaseStage,
    /// Without pauses.
    pub(crate) elapsed_s: f64,
    /// The duration of the file.
    pub(crate) duration_s: Option<f64>,
    /// The part that is complete, if its end is known.
    pub(crate) progress: Option<f64>,
}

/// Everything that is drawn at a time.
#[derive(Clone, Debug)]
pub(crate) struct ScreenState<'a> {
    pub(crate) name: &'a str,
    pub(crate) broker: &'a str,
    pub(crate) elapsed_s: f64,
    pub(crate) is_paused: bool,
    /// The factor of all rates: that of the phase, and that of the user.
    pub(crate) load: f64,
    pub(crate) factor: f64,
    pub(crate) phases: &'a [PhaseRow],
    pub(crate) devices: u64,
    pub(crate) progress: RunProgress,
    pub(crate) rates: &'a RateHistory,
    /// Times of this phase.
    pub(crate) connect: LatencyCounts,
    pub(crate) ack: LatencyCounts,
    /// Kinds of failures, the most frequent first.
    pub(crate) failures: &'a [(String, u64)],
    /// The latest first.
    pub(crate) log: &'a [LogLine],
}
