//! Texts of actions with placeholders: `${field.path}`, `${function(arguments)}`, `${.}` for the whole output.
//!
//! A name is a column of the output; if the output has none of this name, a field of the event. `$${` stands for `${`.
//!
//! What a null becomes depends on the place: `null` where JSON expects a value, the dialect's word (`null`, in EMQX's `undefined`)
//! within text. [`Rendered`] reports nulls, so that the caller can fail where neither makes sense, as in a topic.

mod form;
mod sql;

use crate::context::{Dialect, UNDEFINED};
use crate::error::{Error, Span};
use crate::eval::Evaluator;
use crate::fault::{Fault, contained};
use crate::options::{Bounds, EvaluationLimits, Options};
use crate::plan::build::Builder;
use crate::plan::resolve::{Resolver, Scope};
use crate::plan::{NodeId, Op, Plan};
use crate::rule::{Output, Rule, RuleState};
use crate::syntax::ast::Expr;
use crate::syntax::parse_expression;
use crate::value::Value;
use crate::view::View;
use crate::zone::Zone;

pub use form::{Form, Position, ends_in_string};
pub use sql::{Placeholders, SqlTemplate};

/// A text with placeholders, ready.
pub struct Template {
    parts: Box<[Part]>,
    program: Program,
}

enum Part {
    Text(Box<str>),
    /// An operation, how its value is written, and the placeholder's text.
    Value(NodeId, Position, Box<str>),
}

/// Facts about a rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rendered<'t> {
    /// Number of placeholders that were null.
    pub nulls: u32,
    /// The first placeholder that was null, without `${` and `}`.
    pub first_null: Option<&'t str>,
}

impl Template {
    /// Reads a template. Dialect and time zone of the options are those of the rule; without a dialect it is FluxMQ's.
    ///
    /// # Errors
    /// If a placeholder does not end, or is no expression.
    pub fn compile(text: &str, form: Form, options: &Options) -> Result<Self, Error> {
        let pieces = pieces(text, &options.bounds)?;
        let expressions = expressions(&pieces);
        let mut compiler = Compiler::new(text, options);
        let mut parts = Vec::with_capacity(pieces.len());
        let mut in_string = false;
        let mut expressions = expressions.iter();
        for piece in &pieces {
            match piece {
                Piece::Text(text) => {
                    in_string = ends_in_string(text, in_string);
                    parts.push(Part::Text(text.as_str().into()));
                }
                Piece::Value(_, source) => {
                    let position = Position::of(form, in_string, source);
                    if let Some(expression) = expressions.next() {
                        let node = compiler.node(expression)?;
                        parts.push(Part::Value(node, position, source.as_str().into()));
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
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Names in placeholders that are neither columns of the rule's outputs nor fields of its events, each once: they are always null.
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

    /// Appends the text to `out`.
    ///
    /// # Errors
    /// If an expression fails, or the text becomes too long; `out` may have a part of it then.
    pub fn render<'a>(
        &'a self,
        output: &Output<'a>,
        view: &View<'a>,
        state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<Rendered<'a>, Fault> {
        let start = out.len();
        let mut rendered = Rendered::default();
        self.program.evaluate(output, view, state, |evaluator| {
            for part in &self.parts {
                match part {
                    Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                    Part::Value(node, position, source) => {
                        let value = evaluator.evaluate(*node)?;
                        if value.is_null() {
                            rendered.nulls += 1;
                            rendered.first_null.get_or_insert(source);
                        }
                        write(value, *position, self.program.dialect, out);
                    }
                }
                self.program.bound(out.len() - start)?;
            }
            Ok(rendered)
        })
    }
}

/// A null within text. In EMQX's dialect what is not there is told from the null of JSON.
fn null_text(value: Value<'_>, dialect: Dialect) -> &'static str {
    match (value, dialect) {
        (Value::Undefined, Dialect::Emqx) => UNDEFINED,
        _ => "null",
    }
}

fn write(value: Value<'_>, position: Position, dialect: Dialect, out: &mut Vec<u8>) {
    match (position, value) {
        (Position::Text | Position::JsonString, value) if value.is_null() => {
            out.extend_from_slice(null_text(value, dialect).as_bytes());
        }
        (Position::JsonPayload, value) => match value.as_str() {
            Some(text) if crate::json::check(text.trim()).is_ok() => {
                out.extend_from_slice(text.trim().as_bytes());
            }
            _ => value.write_json(out),
        },
        (Position::JsonValue, value) => value.write_json(out),
        (Position::Text, Value::Str(text)) => out.extend_from_slice(text.as_bytes()),
        (Position::Text, Value::Bytes(bytes)) => out.extend_from_slice(bytes),
        (Position::Text, value) => value.write_json(out),
        (Position::JsonString, Value::Str(_) | Value::Bytes(_)) => {
            let start = out.len();
            value.write_json(out);
            // Without its quotes; the template has them.
            out.remove(start);
            out.pop();
        }
        (Position::JsonString, value) => {
            let mut inner = Vec::new();
            value.write_json(&mut inner);
            write(Value::Bytes(&inner), position, dialect, out);
        }
    }
}

/// Operations of all placeholders, and what they need.
struct Program {
    plan: Plan,
    dialect: Dialect,
    zone: Zone,
    limits: EvaluationLimits,
}

impl Program {
    fn evaluate<'a, T>(
        &'a self,
        output: &Output<'a>,
        view: &View<'a>,
        state: &mut RuleState,
        work: impl FnOnce(&mut Evaluator<'a, '_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut tools = view.tools.borrow_mut();
        let mut evaluator = Evaluator::new(
            &self.plan,
            view,
            &mut tools,
            &mut state.kv,
            &self.zone,
            self.dialect,
        );
        evaluator.limit(self.limits);
        evaluator.output = output.columns;
        contained(|| work(&mut evaluator))
    }

    fn bound(&self, bytes: usize) -> Result<(), Fault> {
        if bytes <= self.limits.max_output_bytes {
            return Ok(());
        }
        Err(Fault::TooLarge {
            function: "template",
            limit: self.limits.max_output_bytes,
            unit: "bytes",
        })
    }
}

struct Compiler<'s> {
    resolver: Resolver<'s>,
}

/// What a placeholder asks for.
enum Expression {
    Whole(Span),
    Expr(Expr),
}

impl<'s> Compiler<'s> {
    fn new(text: &'s str, options: &'s Options) -> Self {
        let dialect = options.dialect.unwrap_or(Dialect::Fluxmq);
        let builder = Builder::new(dialect, options.timezone.clone(), options.bounds.max_depth);
        Self {
            resolver: Resolver::new(text, builder, &options.bounds, Scope::Template),
        }
    }

    fn node(&mut self, expression: &'s Expression) -> Result<NodeId, Error> {
        match expression {
            Expression::Whole(span) => {
                let pushed = self.resolver.builder.push(Op::Output);
                pushed.map_err(|too_much| self.resolver.too_much(too_much, *span))
            }
            Expression::Expr(expr) => self.resolver.expr(expr),
        }
    }

    fn finish(self, options: &Options) -> Program {
        let dialect = self.resolver.builder.dialect;
        Program {
            plan: self.resolver.builder.finish(),
            dialect,
            zone: options.timezone.clone(),
            limits: options.bounds.evaluation(),
        }
    }
}

enum Piece {
    Text(String),
    /// With what stands between the braces.
    Value(Expression, String),
}

fn expressions(pieces: &[Piece]) -> Vec<&Expression> {
    pieces
        .iter()
        .filter_map(|piece| {
            if let Piece::Value(expression, _) = piece {
                Some(expression)
            } else {
                None
            }
        })
        .collect()
}

/// Text and placeholders in turn.
fn pieces(text: &str, bounds: &Bounds) -> Result<Vec<Piece>, Error> {
    if text.len() > bounds.max_sql_bytes {
        let span = Span::new(bounds.max_sql_bytes, bounds.max_sql_bytes);
        let error = Error::at(text, span, format!("the template has {} bytes", text.len()));
        return Err(error.expected(format!("at most {} (max_sql_bytes)", bounds.max_sql_bytes)));
    }
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
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
        }
        let (expression, end) = placeholder(text, dollar, bounds)?;
        let source = text[dollar + 2..end - 1].trim().to_owned();
        pieces.push(Piece::Value(expression, source));
        at = end;
    }
    plain.push_str(&text[at..]);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// The expression of the placeholder that begins at `dollar`, and where the text goes on.
fn placeholder(text: &str, dollar: usize, bounds: &Bounds) -> Result<(Expression, usize), Error> {
    let start = dollar + 2;
    let Some(length) = placeholder_length(&text[start..]) else {
        let error = Error::at(
            text,
            Span::new(dollar, dollar + 2),
            "this placeholder does not end",
        );
        return Err(error.expected("`}`; write $${ for the characters ${"));
    };
    let end = start + length;
    let expression = match text[start..end].trim() {
        "" => {
            let error = Error::at(
                text,
                Span::new(dollar, end + 1),
                "this placeholder is empty",
            );
            return Err(error.expected("a column, a field or a function; `.` for the whole output"));
        }
        "." => Expression::Whole(Span::new(start, end)),
        _ => Expression::Expr(parse_expression(&text[..end], start, bounds)?),
    };
    Ok((expression, end + 1))
}

/// Up to the brace that closes it; braces in text and of maps do not count.
fn placeholder_length(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut open = 0;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(expected), byte) if byte == expected => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"' | b'`') => quote = Some(byte),
            (None, b'{') => open += 1,
            (None, b'}') if open == 0 => return Some(at),
            (None, b'}') => open -= 1,
            (None, _) => {}
        }
    }
    None
}
