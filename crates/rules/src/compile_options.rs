//! Compile options: dialect, time zone and limits of a statement.

use crate::function_context::Dialect;
use crate::statement_error::{Span, StatementError};
use crate::zone::Zone;

/// Everything that compilation needs besides the text.
#[derive(Debug, Clone, Default)]
pub struct CompileOptions {
    /// `None`: FluxMQ if FROM contains `$EVENT.`, otherwise EMQX.
    pub dialect: Option<Dialect>,
    /// Time zone of functions that print local time.
    pub timezone: Zone,
    pub limits: StatementLimits,
}

/// Maximum length of a statement, a template or an expression.
pub const MAX_SQL_BYTES: usize = 32 << 10;

/// Limits of a statement and of one evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementLimits {
    pub max_sql_bytes: usize,
    /// Maximum number of nested expressions, steps of a path, and levels of JSON.
    pub max_depth: usize,
    /// Maximum number of items in one list: SELECT, FROM, arguments, IN.
    pub max_items: usize,
    /// Maximum number of nodes in the whole statement.
    pub max_nodes: usize,
    /// Maximum number of steps of one evaluation. Each part of an expression is a step, and so are each 64
    /// bytes of processed text.
    pub max_steps: u32,
    /// Maximum number of bytes that one evaluation may create.
    pub max_output_bytes: usize,
    /// Maximum number of outputs of one FOREACH.
    pub max_outputs: usize,
    /// Maximum number of steps of all jq programs in one evaluation together; 10,000 steps take about a
    /// millisecond.
    pub max_jq_steps: u64,
}

/// Limits of one evaluation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvaluationLimits {
    pub(crate) max_steps: u32,
    pub(crate) max_output_bytes: usize,
    pub(crate) max_jq_steps: u64,
}

impl StatementLimits {
    /// Checks the length of a text, which `name` describes: a statement, a template or an expression.
    pub(crate) fn check_length(&self, name: &str, text: &str) -> Result<(), StatementError> {
        if text.len() <= self.max_sql_bytes {
            return Ok(());
        }
        let span = Span::new(self.max_sql_bytes, self.max_sql_bytes);
        let error = StatementError::at(text, span, format!("the {name} has {} bytes", text.len()));
        Err(error.with_expected(format!("at most {} (max_sql_bytes)", self.max_sql_bytes)))
    }

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
            max_sql_bytes: MAX_SQL_BYTES,
            max_depth: 64,
            max_items: 256,
            max_nodes: 4096,
            max_steps: 100_000,
            max_output_bytes: 1 << 20,
            max_outputs: 1000,
            max_jq_steps: crate::function_limits::MAX_JQ_STEPS,
        }
    }
}
