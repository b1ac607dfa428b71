//! Templates: texts of actions with placeholders: `${field.path}`, `${function(arguments)}`, `${.}` for the
//! whole output.
//!
//! A name is a column of the output, or else a field of the event. `$${` is an escaped `${`.
//!
//! A null is written as `null` where JSON expects a value, and as the dialect's word (`null`, in EMQX
//! `undefined`) within text. [`RenderSummary`] reports nulls, so that the caller can fail where neither makes
//! sense, as in a topic.

mod format;
mod value_template;

use crate::compile_options::{CompileOptions, EvaluationLimits, StatementLimits};
use crate::eval::Evaluator;
use crate::evaluation_error::EvaluationError;
use crate::event_view::EventView;
use crate::function_context::{Dialect, UNDEFINED};
use crate::plan::builder::PlanBuilder;
use crate::plan::resolver::{NameScope, Resolver};
use crate::plan::{Op, OpId};
use crate::program::Program;
use crate::rule::{Rule, RuleOutput, RuleState};
use crate::statement_error::{Span, StatementError};
use crate::syntax::ast::Expr;
use crate::syntax::parse_expression;
use crate::value::Value;

use format::placeholder_length;
pub use format::{PlaceholderPosition, TemplateFormat, ends_in_string};
pub use value_template::ValueTemplate;

/// A compiled text with placeholders.
pub struct Template {
    parts: Box<[TemplatePart]>,
    program: Program,
}

enum TemplatePart {
    Text(Box<str>),
    /// An operation, the position of its value, and the placeholder's text.
    Value(OpId, PlaceholderPosition, Box<str>),
}

/// Facts about a rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenderSummary<'t> {
    /// Number of placeholders that were null.
    pub nulls: u32,
    /// The first placeholder that was null, without `${` and `}`.
    pub first_null: Option<&'t str>,
}

impl Template {
    /// Compiles a template. The options contain the rule's dialect and time zone; without a dialect it is
    /// FluxMQ's.
    ///
    /// # Errors
    /// If a placeholder is not closed or is not an expression.
    pub fn compile(
        text: &str,
        form: TemplateFormat,
        options: &CompileOptions,
    ) -> Result<Self, StatementError> {
        let pieces = split_template(text, &options.limits)?;
        let expressions = expressions(&pieces);
        let mut compiler = TemplateCompiler::new(text, options);
        let mut parts = Vec::with_capacity(pieces.len());
        let mut in_string = false;
        let mut expressions = expressions.iter();
        for piece in &pieces {
            match piece {
                TemplatePiece::Text(text) => {
                    in_string = ends_in_string(text, in_string);
                    parts.push(TemplatePart::Text(text.as_str().into()));
                }
                TemplatePiece::Value(_, source) => {
                    let position = PlaceholderPosition::for_placeholder(form, in_string, source);
                    if let Some(expression) = expressions.next() {
                        let node = compiler.node(expression)?;
                        parts.push(TemplatePart::Value(node, position, source.as_str().into()));
                    }
                }
            }
        }
        Ok(Self {
            parts: parts.into(),
            program: compiler.finish(options),
        })
    }

    /// The text, if it has no placeholders.
    #[must_use]
    pub fn constant(&self) -> Option<&str> {
        match &*self.parts {
            [] => Some(""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Names in placeholders that are neither columns of the rule's outputs nor fields of its events, without
    /// duplicates. They are always null.
    #[must_use]
    pub fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        let plan = &self.program.plan;
        let mut unknown: Vec<String> = Vec::new();
        for op in &plan.ops {
            if let Op::Column(name, None) = op {
                let name = plan.text(*name);
                if !rule.may_have_column(name) && !unknown.iter().any(|known| known == name) {
                    unknown.push(name.to_owned());
                }
            }
        }
        unknown
    }

    /// Appends the rendered text to `out`.
    ///
    /// # Errors
    /// If an expression fails, or the text becomes too long. `out` may then contain a part of it.
    pub fn render<'a>(
        &'a self,
        output: &RuleOutput<'a>,
        view: &EventView<'a>,
        state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<RenderSummary<'a>, EvaluationError> {
        let start = out.len();
        let mut rendered = RenderSummary::default();
        evaluate(&self.program, output, view, state, |evaluator| {
            for part in &self.parts {
                match part {
                    TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                    TemplatePart::Value(node, position, source) => {
                        let value = evaluator.evaluate(*node)?;
                        if value.is_null() {
                            rendered.nulls += 1;
                            rendered.first_null.get_or_insert(source);
                        }
                        write(value, *position, self.program.dialect, out);
                    }
                }
                check_output_size(&self.program.limits, out.len() - start)?;
            }
            Ok(rendered)
        })
    }
}

/// The text of a null. EMQX's dialect distinguishes undefined from the null of JSON.
fn null_text(value: Value<'_>, dialect: Dialect) -> &'static str {
    match (value, dialect) {
        (Value::Undefined, Dialect::Emqx) => UNDEFINED,
        _ => "null",
    }
}

fn write(value: Value<'_>, position: PlaceholderPosition, dialect: Dialect, out: &mut Vec<u8>) {
    match (position, value) {
        (PlaceholderPosition::Text | PlaceholderPosition::JsonString, value) if value.is_null() => {
            out.extend_from_slice(null_text(value, dialect).as_bytes());
        }
        (PlaceholderPosition::JsonPayload, value) => match value.as_str() {
            Some(text) if crate::json::check(text.trim()).is_ok() => {
                out.extend_from_slice(text.trim().as_bytes());
            }
            _ => value.write_json(out),
        },
        (PlaceholderPosition::JsonValue, value) => value.write_json(out),
        (PlaceholderPosition::Text, Value::Str(text)) => out.extend_from_slice(text.as_bytes()),
        (PlaceholderPosition::Text, Value::Bytes(bytes)) => out.extend_from_slice(bytes),
        (PlaceholderPosition::Text, value) => value.write_json(out),
        (PlaceholderPosition::JsonString, Value::Str(_) | Value::Bytes(_)) => {
            let start = out.len();
            value.write_json(out);
            // Without its quotes, which are part of the template.
            out.remove(start);
            out.pop();
        }
        (PlaceholderPosition::JsonString, value) => {
            let mut inner = Vec::new();
            value.write_json(&mut inner);
            write(Value::Bytes(&inner), position, dialect, out);
        }
    }
}

/// Evaluates placeholders of a template for one output of a rule.
fn evaluate<'a, T>(
    program: &'a Program,
    output: &RuleOutput<'a>,
    view: &EventView<'a>,
    state: &mut RuleState,
    work: impl FnOnce(&mut Evaluator<'a, '_>) -> Result<T, EvaluationError>,
) -> Result<T, EvaluationError> {
    program.evaluate(view, &mut state.kv, |evaluator| {
        evaluator.output = output.columns;
        work(evaluator)
    })
}

fn check_output_size(limits: &EvaluationLimits, bytes: usize) -> Result<(), EvaluationError> {
    if bytes <= limits.max_output_bytes {
        return Ok(());
    }
    Err(EvaluationError::TooLarge {
        function: "template",
        limit: limits.max_output_bytes,
        unit: "bytes",
    })
}

struct TemplateCompiler<'s> {
    resolver: Resolver<'s>,
}

/// The expression of a placeholder.
enum PlaceholderExpression {
    WholeOutput(Span),
    Expr(Expr),
}

impl<'s> TemplateCompiler<'s> {
    fn new(text: &'s str, options: &'s CompileOptions) -> Self {
        let dialect = options.dialect.unwrap_or(Dialect::Fluxmq);
        let builder = PlanBuilder::new(dialect, options.timezone.clone(), options.limits.max_depth);
        Self {
            resolver: Resolver::new(text, builder, &options.limits, NameScope::Template),
        }
    }

    fn node(&mut self, expression: &'s PlaceholderExpression) -> Result<OpId, StatementError> {
        match expression {
            PlaceholderExpression::WholeOutput(span) => {
                let pushed = self.resolver.builder.push(Op::Output);
                pushed.map_err(|too_much| self.resolver.plan_size_error(too_much, *span))
            }
            PlaceholderExpression::Expr(expr) => self.resolver.resolve_expr(expr),
        }
    }

    fn finish(self, options: &CompileOptions) -> Program {
        Program::new(self.resolver.builder, options.limits.evaluation_limits())
    }
}

enum TemplatePiece {
    Text(String),
    /// With the text between the braces.
    Value(PlaceholderExpression, String),
}

fn expressions(pieces: &[TemplatePiece]) -> Vec<&PlaceholderExpression> {
    pieces
        .iter()
        .filter_map(|piece| {
            if let TemplatePiece::Value(expression, _) = piece {
                Some(expression)
            } else {
                None
            }
        })
        .collect()
}

/// Splits a template into alternating text and placeholders.
fn split_template(
    text: &str,
    bounds: &StatementLimits,
) -> Result<Vec<TemplatePiece>, StatementError> {
    bounds.check_length("template", text)?;
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut at = 0;
    while let Some(found) = text[at..].find("${") {
        let dollar = at + found;
        if text[..dollar].ends_with('$') {
            plain.push_str(&text[at..dollar - 1]);
            plain.push_str("${");
            at = dollar + 2;
            continue;
        }
        plain.push_str(&text[at..dollar]);
        if !plain.is_empty() {
            pieces.push(TemplatePiece::Text(std::mem::take(&mut plain)));
        }
        let (expression, end) = parse_placeholder(text, dollar, bounds)?;
        let source = text[dollar + 2..end - 1].trim().to_owned();
        pieces.push(TemplatePiece::Value(expression, source));
        at = end;
    }
    plain.push_str(&text[at..]);
    if !plain.is_empty() {
        pieces.push(TemplatePiece::Text(plain));
    }
    Ok(pieces)
}

/// Parses the placeholder that begins at `dollar`. Returns its expression and the end position.
fn parse_placeholder(
    text: &str,
    dollar: usize,
    bounds: &StatementLimits,
) -> Result<(PlaceholderExpression, usize), StatementError> {
    let start = dollar + 2;
    let Some(length) = placeholder_length(&text[start..]) else {
        let error = StatementError::at(
            text,
            Span::new(dollar, dollar + 2),
            "this placeholder does not end",
        );
        return Err(error.with_expected("`}`; write $${ for the characters ${"));
    };
    let end = start + length;
    let expression = match text[start..end].trim() {
        "" => {
            let error = StatementError::at(
                text,
                Span::new(dollar, end + 1),
                "this placeholder is empty",
            );
            return Err(
                error.with_expected("a column, a field or a function; `.` for the whole output")
            );
        }
        "." => PlaceholderExpression::WholeOutput(Span::new(start, end)),
        _ => PlaceholderExpression::Expr(parse_expression(&text[..end], start, bounds)?),
    };
    Ok((expression, end + 1))
}
