//! Templates that yield a value with its type instead of text.

use super::{TemplateCompiler, TemplatePiece, check_output_size, evaluate, split_template};
use crate::compile_options::CompileOptions;
use crate::evaluation_error::EvaluationError;
use crate::event_view::EventView;
use crate::plan::{Op, OpId};
use crate::program::Program;
use crate::rule::{RuleOutput, RuleState};
use crate::statement_error::{Span, StatementError};
use crate::value::Value;

/// A compiled template of exactly one placeholder, such as `${payload.list}` or `${upper(clientid)}`.
pub struct ValueTemplate {
    operation: OpId,
    program: Program,
}

impl ValueTemplate {
    /// Compiles a template. Without a dialect in the options it is FluxMQ's.
    ///
    /// # Errors
    /// If the text is not one placeholder, or the placeholder is not an expression.
    pub fn compile(text: &str, options: &CompileOptions) -> Result<Self, StatementError> {
        let pieces = split_template(text, &options.limits)?;
        let [TemplatePiece::Value(expression, _)] = pieces.as_slice() else {
            let span = Span::new(0, text.len());
            let error = StatementError::at(text, span, "this is not one placeholder");
            return Err(error.with_expected("`${` and `}` with an expression between them"));
        };
        let mut compiler = TemplateCompiler::new(text, options);
        let operation = compiler.node(expression)?;
        Ok(Self {
            operation,
            program: compiler.finish(options),
        })
    }

    /// The names of the columns or event fields that the expression reads; `None` if it reads the whole output.
    #[must_use]
    pub fn names(&self) -> Option<Vec<&str>> {
        let plan = &self.program.plan;
        let mut names = Vec::new();
        for op in &plan.ops {
            match op {
                Op::Output => return None,
                Op::Column(name, _) => names.push(plan.text(*name)),
                _ => {}
            }
        }
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    /// The value for an output. A name that exists nowhere is undefined.
    ///
    /// # Errors
    /// If the expression fails, or the value is too long.
    pub fn evaluate<'a>(
        &'a self,
        output: &RuleOutput<'a>,
        view: &EventView<'a>,
        state: &mut RuleState,
    ) -> Result<Value<'a>, EvaluationError> {
        evaluate(&self.program, output, view, state, |evaluator| {
            let value = evaluator.evaluate(self.operation)?;
            let bytes = value.as_bytes().map_or(0, <[u8]>::len);
            check_output_size(&self.program.limits, bytes)?;
            Ok(value)
        })
    }
}
