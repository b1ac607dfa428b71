//! Name resolution: gives every name of a statement its meaning as a field, alias, function or aggregate. Names are in
//! `resolver/names.rs`, calls in `resolver/calls.rs`.

mod calls;
mod names;

use super::aliases::{Alias, is_same_expr};
use super::builder::{PlanBuilder, PlanError, PlanSizeError};
use super::constant_checks;
use super::{ColumnTarget, Op, OpId, OutputColumn, PutStep, StepOp, TextRange};
use crate::compile_options::StatementLimits;
use crate::event_field::EventField;
use crate::function_context::Dialect;
use crate::functions;
use crate::statement_error::{Span, StatementError};
use crate::syntax::ast::{
    AliasPart, BinaryOp, Expr, ExprNode, PathStep, SelectItem, SelectItemKind,
};
use crate::syntax::default_alias;
use crate::window::Aggregate;

/// The context of an expression, which decides what its names can mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameScope {
    /// Evaluated for one event.
    Event,
    /// SELECT and HAVING of a rule with a window: evaluated for a group.
    Group,
    /// A template placeholder: evaluated for an output.
    Template,
}

/// Maximum number of warnings; further ones are dropped.
const MAX_WARNINGS: usize = 20;

pub(crate) struct Resolver<'s> {
    pub(crate) sql: &'s str,
    pub(crate) builder: PlanBuilder,
    pub(crate) bounds: &'s StatementLimits,
    pub(crate) scope: NameScope,
    /// Whether the statement is a rule without a window.
    pub(crate) lacks_window: bool,
    /// Whether a source has fields that only the sender knows.
    pub(crate) is_open: bool,
    /// Further known fields of the sources; their events have them in addition to the common ones.
    pub(crate) own_fields: &'static [&'static str],
    /// Whether all events are device events, whose fields have two spellings.
    pub(crate) is_of_devices: bool,
    pub(crate) aliases: Vec<Alias>,
    /// Name of FOREACH's item, if any.
    pub(crate) item: Option<Box<str>>,
    /// Expressions of GROUP BY.
    pub(crate) keys: Vec<&'s Expr>,
    /// Items of SELECT with their aliases, for GROUP BY and HAVING of a rule with a window.
    pub(crate) selected: &'s [SelectItem],
    /// The aggregates of windows, each with its argument.
    pub(crate) aggregates: Vec<(Aggregate, Option<&'s Expr>)>,
    /// Probable mistakes that are not errors.
    pub(crate) warnings: Vec<StatementError>,
    /// Number of aliases in `selected` that are currently being resolved.
    alias_depth: usize,
}

impl<'s> Resolver<'s> {
    pub(crate) fn new(
        sql: &'s str,
        builder: PlanBuilder,
        bounds: &'s StatementLimits,
        scope: NameScope,
    ) -> Self {
        Self {
            sql,
            builder,
            bounds,
            scope,
            lacks_window: false,
            is_open: false,
            own_fields: &[],
            is_of_devices: false,
            aliases: Vec::new(),
            item: None,
            keys: Vec::new(),
            selected: &[],
            aggregates: Vec::new(),
            warnings: Vec::new(),
            alias_depth: 0,
        }
    }

    pub(crate) fn error(&self, span: Span, message: impl Into<Box<str>>) -> StatementError {
        StatementError::at(self.sql, span, message)
    }

    fn push(&mut self, op: Op, span: Span) -> Result<OpId, StatementError> {
        self.builder
            .push_folded(op)
            .map_err(|rejected| match rejected {
                PlanError::TooLarge(too_much) => self.plan_size_error(too_much, span),
                PlanError::AlwaysFails(fault) => self
                    .error(span, format!("this fails for every event: {fault}"))
                    .with_expected("constants that the function accepts"),
            })
    }

    fn add_warning(&mut self, span: Span, message: impl Into<Box<str>>) {
        let warning = self.error(span, message);
        if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    pub(crate) fn plan_size_error(
        &self,
        PlanSizeError(message): PlanSizeError,
        span: Span,
    ) -> StatementError {
        self.error(span, message)
            .with_expected("a simpler statement")
    }

    fn list(&mut self, ids: &[OpId], span: Span) -> Result<super::ListRange, StatementError> {
        self.builder
            .list(ids)
            .map_err(|too_much| self.plan_size_error(too_much, span))
    }

    /// Resolves the columns of SELECT or DO. A column with an alias is known by it from then on.
    pub(crate) fn resolve_columns(
        &mut self,
        items: &'s [SelectItem],
    ) -> Result<Vec<OutputColumn>, StatementError> {
        let mut columns: Vec<OutputColumn> = Vec::with_capacity(items.len());
        for item in items {
            let SelectItemKind::Expr { expr, alias } = &item.kind else {
                if self.scope == NameScope::Group {
                    let error = self.error(
                        item.span,
                        "`*` refers to a single event, but a window covers many",
                    );
                    return Err(error.with_expected(
                        "expressions of GROUP BY, and aggregates such as count(*) or last(x)",
                    ));
                }
                columns.push(OutputColumn {
                    target: ColumnTarget::All,
                    node: OpId(0),
                });
                continue;
            };
            let node = self.resolve_expr(expr)?;
            let mut natural = default_alias(expr);
            if self.builder.dialect == Dialect::Fluxmq
                && let Some(parts) = &mut natural
            {
                // In this context the list's name also stands for an item of the list.
                parts.retain(|part| matches!(part, AliasPart::Key(_)));
            }
            let (parts, positions) = match (alias, &natural) {
                (Some(parts), _) => (parts.clone(), self.resolve_positions(parts)?),
                (None, Some(parts)) => (parts.clone(), self.path_positions(node)),
                (None, None) => {
                    let name = AliasPart::Key(default_column_name(self.sql, expr.span));
                    (vec![name], Vec::new())
                }
            };
            let target = self.resolve_target(&parts, &positions, item.span)?;
            // A field under its own name is resolved as a field.
            if alias.is_some() && natural.as_ref() != Some(&parts) {
                self.aliases.push(Alias {
                    parts,
                    node,
                    column: columns.len(),
                });
            }
            columns.push(OutputColumn { target, node });
        }
        Ok(columns)
    }

    /// Called after all names are resolved: turns aliases used by other expressions into memos, also in their
    /// own columns.
    pub(crate) fn share_aliases(
        &self,
        columns: &mut [OutputColumn],
        aliases: std::ops::Range<usize>,
    ) {
        for alias in &self.aliases[aliases] {
            columns[alias.column].node = alias.node;
        }
    }

    /// Resolves the computed positions in a name.
    fn resolve_positions(&mut self, parts: &'s [AliasPart]) -> Result<Vec<OpId>, StatementError> {
        let mut positions = Vec::new();
        for part in parts {
            if let AliasPart::Computed(index) = part {
                positions.push(self.resolve_expr(index)?);
            }
        }
        Ok(positions)
    }

    /// The computed positions in a path that serves as a column name.
    fn path_positions(&self, node: OpId) -> Vec<OpId> {
        let Op::Path(_, steps) = self.builder.op(node) else {
            return Vec::new();
        };
        let position = |step: &StepOp| match *step {
            StepOp::Computed(id) => Some(id),
            _ => None,
        };
        let steps = self.builder.steps_of(steps).iter();
        steps.filter_map(position).collect()
    }

    fn resolve_target(
        &mut self,
        parts: &[AliasPart],
        positions: &[OpId],
        span: Span,
    ) -> Result<ColumnTarget, StatementError> {
        if let [AliasPart::Key(key)] = parts {
            return Ok(ColumnTarget::Key(self.builder.text(key)));
        }
        let mut positions = positions.iter();
        let mut puts = Vec::with_capacity(parts.len());
        for part in parts {
            puts.push(match part {
                AliasPart::Key(key) => PutStep::Key(self.builder.text(key)),
                AliasPart::Index(index) => match i32::try_from(*index) {
                    Ok(index) => PutStep::Index(index),
                    Err(_) => return Err(self.error(span, "the index is too large for a list")),
                },
                AliasPart::Head => PutStep::Head,
                AliasPart::Tail => PutStep::Tail,
                AliasPart::Computed(_) => match positions.next() {
                    Some(position) => PutStep::Computed(*position),
                    // It turned out to be constant or an alias.
                    None => continue,
                },
            });
        }
        let list = self
            .builder
            .puts(&puts)
            .map_err(|too_much| self.plan_size_error(too_much, span))?;
        Ok(ColumnTarget::Nested(list))
    }

    pub(crate) fn resolve_expr(&mut self, expr: &'s Expr) -> Result<OpId, StatementError> {
        if self.scope == NameScope::Group
            && let Some(at) = self.keys.iter().position(|key| is_same_expr(key, expr))
        {
            return self.push(Op::Key(at as u16), expr.span);
        }
        let op = match &expr.node {
            ExprNode::Null => Op::Null,
            ExprNode::Bool(value) => Op::Bool(*value),
            ExprNode::Int(value) => Op::Int(*value),
            ExprNode::Float(value) => Op::Float(*value),
            ExprNode::Text(text) => match self.double_quoted_name(text, &[], expr.span)? {
                Some(name) => return Ok(name),
                None => Op::Text(self.builder.text(text)),
            },
            ExprNode::Name(name) => return self.resolve_name(name, &[], expr.span),
            ExprNode::Path(base, steps) => return self.resolve_path(base, steps, expr.span),
            ExprNode::Call {
                name,
                name_span,
                args,
                form,
            } => return self.resolve_call(expr.span, name, *name_span, args, *form),
            ExprNode::Not(inner) => Op::Not(self.resolve_expr(inner)?),
            ExprNode::Negate(inner) => Op::Negate(self.resolve_expr(inner)?),
            ExprNode::Binary(op, left, right) => {
                return self.resolve_binary(*op, left, right, expr.span);
            }
            ExprNode::IsNull(inner, negated) => Op::IsNull(self.resolve_expr(inner)?, *negated),
            ExprNode::In(inner, items, negated) => {
                let inner = self.resolve_expr(inner)?;
                let ids = self.resolve_exprs(items)?;
                Op::In(inner, self.list(&ids, expr.span)?, *negated)
            }
            ExprNode::Between(inner, low, high, negated) => {
                let inner = self.resolve_expr(inner)?;
                let ends = [self.resolve_expr(low)?, self.resolve_expr(high)?];
                Op::Between(inner, self.list(&ends, expr.span)?, *negated)
            }
            ExprNode::Like(inner, pattern, negated) => {
                let (inner, pattern_id) = (self.resolve_expr(inner)?, self.resolve_expr(pattern)?);
                if let Some(filter) = self.filter_of_like(inner, pattern_id) {
                    let matched = self.push(Op::MatchFilter(inner, filter), expr.span)?;
                    return match negated {
                        true => self.push(Op::Not(matched), expr.span),
                        false => Ok(matched),
                    };
                }
                if let Some(doubt) = constant_checks::like_warning(&self.builder, pattern_id) {
                    self.add_warning(pattern.span, doubt);
                }
                Op::Like(inner, pattern_id, *negated)
            }
            ExprNode::Case {
                subject,
                arms,
                otherwise,
            } => {
                let mut ids = Vec::with_capacity(arms.len() * 2 + 2);
                if let Some(subject) = subject {
                    ids.push(self.resolve_expr(subject)?);
                }
                for (condition, result) in arms {
                    ids.push(self.resolve_expr(condition)?);
                    ids.push(self.resolve_expr(result)?);
                }
                if let Some(otherwise) = otherwise {
                    ids.push(self.resolve_expr(otherwise)?);
                }
                let list = self.list(&ids, expr.span)?;
                if subject.is_some() {
                    Op::Switch(list)
                } else {
                    Op::Case(list)
                }
            }
            ExprNode::Array(items) => {
                let ids = self.resolve_exprs(items)?;
                Op::Array(self.list(&ids, expr.span)?)
            }
            ExprNode::Map(fields) => {
                let mut ids = Vec::with_capacity(fields.len() * 2);
                for (key, value) in fields {
                    let key = self.builder.text(key);
                    ids.push(self.push(Op::Text(key), expr.span)?);
                    ids.push(self.resolve_expr(value)?);
                }
                Op::Map(self.list(&ids, expr.span)?)
            }
            ExprNode::Range(from, to) => {
                Op::Range(self.resolve_expr(from)?, self.resolve_expr(to)?)
            }
        };
        self.push(op, expr.span)
    }

    fn resolve_exprs(&mut self, exprs: &'s [Expr]) -> Result<Vec<OpId>, StatementError> {
        exprs.iter().map(|expr| self.resolve_expr(expr)).collect()
    }

    fn resolve_path(
        &mut self,
        base: &'s Expr,
        steps: &'s [PathStep],
        span: Span,
    ) -> Result<OpId, StatementError> {
        match &base.node {
            ExprNode::Name(name) => self.resolve_name(name, steps, span),
            ExprNode::Text(text) => match self.double_quoted_name(text, steps, base.span)? {
                Some(name) => Ok(name),
                None => {
                    let base = self.resolve_expr(base)?;
                    self.resolve_steps(base, steps, span)
                }
            },
            _ => {
                let base = self.resolve_expr(base)?;
                self.resolve_steps(base, steps, span)
            }
        }
    }

    fn resolve_steps(
        &mut self,
        base: OpId,
        steps: &'s [PathStep],
        span: Span,
    ) -> Result<OpId, StatementError> {
        if steps.is_empty() {
            return Ok(base);
        }
        let mut ops = Vec::with_capacity(steps.len());
        for step in steps {
            ops.push(match step {
                PathStep::Key(key) => StepOp::Key(self.builder.text(key)),
                PathStep::Index(index) => {
                    let id = self.resolve_expr(index)?;
                    match self.builder.op(id) {
                        Op::Int(0) => {
                            return Err(self
                                .error(index.span, "there is no item 0")
                                .with_expected("1 for the first, -1 for the last"));
                        }
                        Op::Int(index) if i32::try_from(index).is_ok() => {
                            StepOp::Index(index as i32)
                        }
                        Op::Text(key) => StepOp::Key(key),
                        _ => StepOp::Computed(id),
                    }
                }
                PathStep::Slice(from, to) => {
                    StepOp::Slice(self.resolve_expr(from)?, self.resolve_expr(to)?)
                }
            });
        }
        self.push_path(base, &ops, span)
    }

    pub(super) fn push_path(
        &mut self,
        base: OpId,
        ops: &[StepOp],
        span: Span,
    ) -> Result<OpId, StatementError> {
        let list = self
            .builder
            .steps(ops)
            .map_err(|too_much| self.plan_size_error(too_much, span))?;
        self.push(Op::Path(base, list), span)
    }

    /// The expression in SELECT with this alias.
    pub(crate) fn find_select_alias(&self, name: &str) -> Option<&'s Expr> {
        self.selected.iter().find_map(|item| match &item.kind {
            SelectItemKind::Expr {
                expr,
                alias: Some(parts),
            } => match &parts[..] {
                [AliasPart::Key(key)]
                    if &**key == name
                        && !matches!(&expr.node, ExprNode::Name(own) if **own == *name) =>
                {
                    Some(expr)
                }
                _ => None,
            },
            _ => None,
        })
    }

    fn resolve_binary(
        &mut self,
        op: BinaryOp,
        left: &'s Expr,
        right: &'s Expr,
        span: Span,
    ) -> Result<OpId, StatementError> {
        // A comparison with a literal null is a null check.
        let negated = op == BinaryOp::NotEqual;
        if negated || op == BinaryOp::Equal {
            for (value, null) in [(left, right), (right, left)] {
                if matches!(null.node, ExprNode::Null) {
                    let value = self.resolve_expr(value)?;
                    return self.push(Op::IsNull(value, negated), span);
                }
            }
        }
        let left_id = self.resolve_expr(left)?;
        let right_id = self.resolve_expr(right)?;
        if op != BinaryOp::Match {
            return self.push(Op::Binary(op, left_id, right_id), span);
        }
        let Op::Text(filter) = self.builder.op(right_id) else {
            return self.push(Op::Binary(op, left_id, right_id), span);
        };
        let text = self.builder.text_of(filter);
        let is_topic = matches!(self.builder.op(left_id), Op::Field(EventField::Topic));
        // FluxMQ's examples use `=~` with a regular expression for values other than topics.
        if !is_topic
            && self.builder.dialect == Dialect::Fluxmq
            && text.contains(['*', '^', '[', '(', '\\', '|', '?'])
            && let Some(function) = functions::find("matches")
        {
            let ids = [left_id, right_id];
            if let Some(bad) = constant_checks::check_call(&self.builder, function, &ids) {
                return Err(self.error(right.span, format!("=~: {}", bad.reason)));
            }
            let list = self.list(&ids, span)?;
            return self.push(Op::Call(function, list), span);
        }
        if mqtt::validate_topic_filter(text, &mqtt::TopicLimits::NONE).is_err() {
            let error = self.error(right.span, "not a topic filter");
            return Err(error.with_expected(
                "levels between `/`; `+` for one level, `#` for the rest at the end",
            ));
        }
        self.push(Op::MatchFilter(left_id, filter), span)
    }
}

impl Resolver<'_> {
    /// FluxMQ's examples contain `topic LIKE 'sensor/+/data'`. No topic contains such a level, so the pattern
    /// can only mean a filter.
    fn filter_of_like(&self, subject: OpId, pattern: OpId) -> Option<TextRange> {
        let Op::Text(filter) = self.builder.op(pattern) else {
            return None;
        };
        let text = self.builder.text_of(filter);
        let is_filter = self.builder.dialect == Dialect::Fluxmq
            && matches!(self.builder.op(subject), Op::Field(EventField::Topic))
            && !text.contains('%')
            && constant_checks::is_wildcard_filter(text);
        is_filter.then_some(filter)
    }
}

/// The source text of an item, as the name of a column without alias.
fn default_column_name(sql: &str, span: Span) -> Box<str> {
    const MAX_CHARS: usize = 64;
    let text = &sql[span.start as usize..span.end as usize];
    let mut name = String::new();
    for word in text.split_whitespace() {
        if !name.is_empty() {
            name.push(' ');
        }
        name.push_str(word);
    }
    name.chars().take(MAX_CHARS).collect::<String>().into()
}
