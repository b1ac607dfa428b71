//! Evaluation errors. An error ends one rule for one event; it is counted by kind and shown in traces.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The reason for a failed evaluation, with the function and argument that caused it, if any.
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
    /// A limit of one call, or of all calls of a kind, is exceeded.
    #[error("{function}: {why}")]
    LimitExceeded {
        function: &'static str,
        why: Box<str>,
    },
    /// In EMQX's dialect a path into such a payload makes the rule fail.
    #[error("the payload is not JSON, but the rule reads a part of it: {why}")]
    PayloadNotJson { why: Box<str> },
    /// A bug of the program. It ends this evaluation and nothing else.
    #[error("the evaluation failed inside the rule engine; see the log")]
    InternalError,
    #[error("the rule took more than its budget of {steps} steps")]
    StepLimit { steps: u64 },
}

/// Evaluates, and turns a panic into an error, so that one message cannot bring down its shard.
pub(crate) fn catch_panic<T>(
    evaluate: impl FnOnce() -> Result<T, EvaluationError>,
) -> Result<T, EvaluationError> {
    // An evaluation changes only caches, counters and values in the arena, which are consistent after every
    // step.
    catch_unwind(AssertUnwindSafe(evaluate)).unwrap_or(Err(EvaluationError::InternalError))
}

impl EvaluationError {
    /// The kind of error as one word, for metrics.
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
