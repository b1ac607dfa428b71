//! How a pull source does.

use serde::Serialize;

/// What a source is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
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
pub struct Health {
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
pub struct Status {
    pub name: String,
    /// `prometheus`, `http` or `ipmi`; empty: it is invalid.
    pub r#type: &'static str,
    pub condition: Condition,
    /// Whether it answered the last time it was asked; true before the first.
    pub is_ok: bool,
    #[serde(flatten)]
    pub health: Health,
}

/// What one run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) rows: u64,
    pub(super) values: u64,
    pub(super) skipped: u64,
    pub(super) unknown: u64,
    /// A part of it went wrong.
    pub(super) problem: Option<String>,
}

impl Health {
    pub(super) fn note(&mut self, run: Result<Run, String>, now_ms: u64, took_ms: u64) {
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
                run.problem
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
