//! How a pull source does.

use serde::Serialize;

/// What a source is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PullSourceState {
    /// It is asked when its time comes.
    Waiting,
    /// It is being asked.
    Asking,
    Disabled,
    /// What is stored of it cannot be used; see `last_error`.
    Invalid,
}

/// Since the node started or the source was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PullSourceHealth {
    /// How often it was asked.
    pub runs: u64,
    pub failed_runs: u64,
    /// Failures in a row.
    pub failures: u32,
    pub rows: u64,
    pub values: u64,
    /// Values that were none.
    pub skipped_values: u64,
    /// Rows of devices that nobody knows.
    pub unknown_rows: u64,
    pub last_run_at_ms: Option<u64>,
    pub last_success_at_ms: Option<u64>,
    pub last_took_ms: Option<u64>,
    pub next_run_at_ms: Option<u64>,
    /// What went wrong last; of the last time it was asked, if `is_ok` is false.
    pub last_error: Option<String>,
    pub last_error_at_ms: Option<u64>,
}

/// A source as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PullSourceStatus {
    pub name: String,
    /// `prometheus`, `http` or `ipmi`; empty: it is invalid.
    pub r#type: &'static str,
    pub condition: PullSourceState,
    /// Whether it answered the last time it was asked; true before the first.
    pub is_ok: bool,
    #[serde(flatten)]
    pub health: PullSourceHealth,
}

/// What one run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PullRun {
    pub(super) rows: u64,
    pub(super) values: u64,
    pub(super) skipped: u64,
    pub(super) unknown: u64,
    /// A part of it went wrong.
    pub(super) partial_error: Option<String>,
}

impl PullSourceHealth {
    pub(super) fn record_run(&mut self, run: Result<PullRun, String>, now_ms: u64, took_ms: u64) {
        self.runs += 1;
        self.last_run_at_ms = Some(now_ms);
        self.last_took_ms = Some(took_ms);
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
