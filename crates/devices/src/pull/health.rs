//! Health of a pull source.

use schemars::JsonSchema;
use serde::Serialize;

/// The state of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PullSourceState {
    /// Waits for its next poll.
    Waiting,
    /// Is being polled.
    Asking,
    /// Another node of the cluster polls it, or none does; see `not_polled_reason`.
    Elsewhere,
    Disabled,
    /// The stored definition is invalid; see `last_error`.
    Invalid,
}

/// Counts since the node started or the source was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PullSourceHealth {
    /// Number of polls.
    pub runs: u64,
    pub failed_runs: u64,
    /// Number of consecutive failures.
    pub failures: u32,
    pub rows: u64,
    pub values: u64,
    /// Values that were null, not finite or not read.
    pub skipped_values: u64,
    /// Rows of devices that are not registered.
    pub unknown_rows: u64,
    pub last_run_at_ms: Option<u64>,
    pub last_success_at_ms: Option<u64>,
    pub last_duration_ms: Option<u64>,
    pub next_run_at_ms: Option<u64>,
    /// Why this node does not poll the source now; `null`: it does, or the source is disabled or invalid.
    pub not_polled_reason: Option<String>,
    /// Last error; the error of the last poll if `is_ok` is false.
    pub last_error: Option<String>,
    pub last_error_at_ms: Option<u64>,
}

/// The status of a source in the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PullSourceStatus {
    pub name: String,
    /// `prometheus`, `http` or `ipmi`; empty: invalid.
    pub r#type: &'static str,
    pub state: PullSourceState,
    /// Whether the last poll succeeded; true before the first.
    pub is_ok: bool,
    #[serde(flatten)]
    pub health: PullSourceHealth,
}

/// Result of one poll.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PullRun {
    pub(super) rows: u64,
    pub(super) values: u64,
    pub(super) skipped: u64,
    pub(super) unknown: u64,
    /// Error of a part of the poll.
    pub(super) partial_error: Option<String>,
}

impl PullSourceHealth {
    pub(super) fn record_run(&mut self, run: Result<PullRun, String>, now_ms: u64, took_ms: u64) {
        self.runs += 1;
        self.last_run_at_ms = Some(now_ms);
        self.last_duration_ms = Some(took_ms);
        let problem = match run {
            Ok(run) => {
                self.failures = 0;
                self.rows += run.rows;
                self.values += run.values;
                self.skipped_values += run.skipped;
                self.unknown_rows += run.unknown;
                self.last_success_at_ms = Some(now_ms);
                run.partial_error
            }
            Err(problem) => {
                self.failed_runs += 1;
                self.failures = self.failures.saturating_add(1);
                Some(problem)
            }
        };
        if problem.is_some() {
            self.last_error = problem;
            self.last_error_at_ms = Some(now_ms);
        }
    }
}
