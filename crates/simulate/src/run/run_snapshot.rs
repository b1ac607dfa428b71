//! A run at a time, for other parts of the program.

use crate::screen::{PhaseRow, PhaseStage};

/// What all devices have done so far, and how far the run is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunSnapshot {
    pub phases: Vec<PhaseSnapshot>,
    /// Devices that are connected.
    pub connected: u64,
    pub sent: u64,
    /// Messages in the last second.
    pub sent_per_s: f64,
    pub acknowledged: u64,
    /// Messages that devices received.
    pub received: u64,
    /// Requests that devices have answered.
    pub answers: u64,
    pub failures: u64,
    /// Upper bound of the times to acknowledgement of 99 % of the messages; `None`: there are none.
    pub ack_p99_ns: Option<u64>,
    /// The most frequent first.
    pub failures_by_kind: Vec<(String, u64)>,
    /// The last lines with their times in milliseconds since 1970, the latest first.
    pub log: Vec<(u64, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PhaseSnapshot {
    pub name: String,
    pub stage: PhaseSnapshotStage,
    pub elapsed_s: f64,
    /// The duration of the file, if it has one.
    pub duration_s: Option<f64>,
    /// The part that is complete, from 0 to 1, if its end is known.
    pub progress: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseSnapshotStage {
    Waiting,
    Running,
    Done,
}

impl From<&PhaseRow> for PhaseSnapshot {
    fn from(row: &PhaseRow) -> Self {
        Self {
            name: row.name.clone(),
            stage: match row.stage {
                PhaseStage::Waiting => PhaseSnapshotStage::Waiting,
                PhaseStage::Running => PhaseSnapshotStage::Running,
                PhaseStage::Done => PhaseSnapshotStage::Done,
            },
            elapsed_s: row.elapsed_s,
            duration_s: row.duration_s,
            progress: row.progress.map(|part| part.clamp(0.0, 1.0)),
        }
    }
}
