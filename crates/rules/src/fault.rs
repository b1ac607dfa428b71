//! Why an evaluation failed. A fault ends one rule for one message; it is counted by its kind and shown in traces.

/// What went wrong, with the function and the argument where one is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{function}: argument {argument} is {found}, expected {expected}")]
    Type {
        function: &'static str,
        /// Counted from 1.
        argument: usize,
        expected: &'static str,
        found: &'static str,
    },
    #[error("{function}: argument {argument} is out of range, expected {expected}")]
    Range {
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
    Invalid {
        function: &'static str,
        why: Box<str>,
    },
    #[error("the rule took more than its budget of {steps} steps")]
    Budget { steps: u64 },
}

impl Fault {
    /// One word for metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Type { .. } => "type",
            Fault::Range { .. } => "range",
            Fault::Overflow { .. } => "overflow",
            Fault::NotANumber { .. } => "not_a_number",
            Fault::TooLarge { .. } => "too_large",
            Fault::Invalid { .. } => "invalid",
            Fault::Budget { .. } => "budget",
        }
    }
}
