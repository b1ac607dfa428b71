//! Why an evaluation failed. A fault ends one rule for one message; it is counted by its kind and shown in traces.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What went wrong, with the function and the argument where one is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    #[error("{function}: argument {argument} is {found}, expected {expected}")]
    WrongType {
        function: &'static str,
        /// Counted from 1.
        argument: usize,
        expected: &'static str,
        found: &'static str,
    },
    #[error("{function}: argument {argument} is out of range, expected {expected}")]
    OutOfRange {
        function: &'static str,
        argument: usize,
        expected: &'static str,
    },
    #[error("{function}: the result does not fit a 64-bit integer")]
    Overflow { function: &'static str },
    #[error("{function}: the result is not a number")]
    NotANumber { function: &'static str },
    #[error("{function}: the result would exceed {limit} {unit}")]
    TooLarge {
        function: &'static str,
        limit: usize,
        unit: &'static str,
    },
    #[error("{function}: {why}")]
    InvalidArgument {
        function: &'static str,
        why: Box<str>,
    },
    /// A bound on what one call, or all calls of a kind, may do.
    #[error("{function}: {why}")]
    LimitExceeded {
        function: &'static str,
        why: Box<str>,
    },
    /// In EMQX's dialect a path into it makes the rule fail.
    #[error("the payload is not JSON, but the rule reads a part of it: {why}")]
    PayloadNotJson { why: Box<str> },
    /// A defect of the program, which ends this evaluation and nothing else.
    #[error("the evaluation failed inside the rule engine; the log has the place")]
    InternalError,
    #[error("the rule took more than its budget of {steps} steps")]
    StepLimit { steps: u64 },
}

/// Evaluates something, and makes a fault of a panic: one message must not take its shard along.
pub(crate) fn catch_panic<T>(
    evaluate: impl FnOnce() -> Result<T, EvaluationError>,
) -> Result<T, EvaluationError> {
    // What an evaluation changes are caches, counters and values in the arena, each whole after every step.
    catch_unwind(AssertUnwindSafe(evaluate)).unwrap_or(Err(EvaluationError::InternalError))
}

impl EvaluationError {
    /// One word for metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            EvaluationError::WrongType { .. } => "type",
            EvaluationError::OutOfRange { .. } => "range",
            EvaluationError::Overflow { .. } => "overflow",
            EvaluationError::NotANumber { .. } => "not_a_number",
            EvaluationError::TooLarge { .. } => "too_large",
            EvaluationError::InvalidArgument { .. } => "invalid",
            EvaluationError::PayloadNotJson { .. } => "payload",
            EvaluationError::InternalError => "defect",
            EvaluationError::StepLimit { .. } | EvaluationError::LimitExceeded { .. } => "budget",
        }
    }
}
