//! How a statement is to be understood, and how much of it there may be.

use crate::function_context::Dialect;
use crate::zone::Zone;

/// What compiling needs to know besides the text.
#[derive(Debug, Clone, Default)]
pub struct CompileOptions {
    /// `None`: a rule whose FROM has `$EVENT.` speaks FluxMQ, any other EMQX.
    pub dialect: Option<Dialect>,
    /// For functions that print local time.
    pub timezone: Zone,
    pub limits: StatementLimits,
}

/// Bounds of a statement and of one evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementLimits {
    pub max_sql_bytes: usize,
    /// Nested expressions, steps of a path, levels of JSON.
    pub max_depth: usize,
    /// Items of one list: of SELECT, of FROM, of arguments, of IN.
    pub max_items: usize,
    /// Parts of the whole statement.
    pub max_nodes: usize,
    /// What one evaluation may do: each part of an expression is a step, and each 64 bytes of text handled are.
    pub max_steps: u32,
    /// Bytes that one evaluation may bring forth.
    pub max_output_bytes: usize,
    /// Outputs of one FOREACH.
    pub max_outputs: usize,
    /// What all programs of jq in one evaluation may do together; 10,000 steps take about a millisecond.
    pub max_jq_steps: u64,
}

/// The bounds of one evaluation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvaluationLimits {
    pub(crate) max_steps: u32,
    pub(crate) max_output_bytes: usize,
    pub(crate) max_jq_steps: u64,
}

impl StatementLimits {
    pub(crate) fn evaluation_limits(&self) -> EvaluationLimits {
        EvaluationLimits {
            max_steps: self.max_steps,
            max_output_bytes: self.max_output_bytes,
            max_jq_steps: self.max_jq_steps,
        }
    }
}

impl Default for StatementLimits {
    fn default() -> Self {
        Self {
            max_sql_bytes: 32 << 10,
            max_depth: 64,
            max_items: 256,
            max_nodes: 4096,
            max_steps: 100_000,
            max_output_bytes: 1 << 20,
            max_outputs: 1000,
            max_jq_steps: crate::function_context::MAX_JQ_STEPS,
        }
    }
}
