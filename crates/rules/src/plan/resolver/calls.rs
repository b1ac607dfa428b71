//! Calls of functions, methods and aggregates.

use super::{NameScope, Resolver};
use crate::functions;
use crate::plan::aliases::is_same_expr;
use crate::plan::{Op, OpId, StepOp, constant_checks, method_names};
use crate::statement_error::{Span, StatementError};
use crate::syntax::ast::{BinaryOp, CallForm, Expr, ExprNode};
use crate::window::{Aggregate, AggregateKind};

impl<'s> Resolver<'s> {
    pub(super) fn resolve_call(
        &mut self,
        span: Span,
        name: &'s str,
        name_span: Span,
        args: &'s [Expr],
        form: CallForm,
    ) -> Result<OpId, StatementError> {
        if self.scope == NameScope::Group
            && let Some(found) = self.resolve_aggregate(name, name_span, args, form)?
        {
            return Ok(found);
        }
        if matches!(form, CallForm::Star | CallForm::Distinct) {
            let what = if form == CallForm::Star {
                "*"
            } else {
                "distinct x"
            };
            let error = self.error(
                name_span,
                format!("{name}({what}) aggregates events, but there is no window"),
            );
            return Err(error.with_expected("GROUP BY with tumbling(10s) or another window, and the aggregate in SELECT or HAVING"));
        }
        let ids = self.resolve_exprs(args)?;
        // EMQX also provides these operators as functions.
        if let &[left, right] = &ids[..] {
            for op in [BinaryOp::Quotient, BinaryOp::Remainder] {
                if name.eq_ignore_ascii_case(op.text()) {
                    return self.push(Op::Binary(op, left, right), span);
                }
            }
        }
        if form == CallForm::Method
            && let Some(found) = self.resolve_method(name, &ids, span)?
        {
            return Ok(found);
        }
        let name = if form == CallForm::Method {
            method_names::function_name(name)
        } else {
            name
        };
        let Some(function) = functions::find(name) else {
            return Err(self.unknown_function_error(name, name_span));
        };
        if ids.len() < function.min_args || ids.len() > function.max_args {
            let message = format!(
                "`{name}` has {} argument{}",
                ids.len(),
                if ids.len() == 1 { "" } else { "s" }
            );
            let arity = function.arity();
            let arity = arity.strip_prefix("expected ").unwrap_or(&arity);
            return Err(self.error(span, message).with_expected(format!(
                "{arity}: {}({})",
                function.name, function.parameters
            )));
        }
        if let Some(bad) = constant_checks::check_call(&self.builder, function, &ids) {
            let at = args
                .get(bad.argument)
                .map_or(span, |argument| argument.span);
            return Err(self.error(at, format!("{}: {}", function.name, bad.reason)));
        }
        self.warn_of_missing_window(function.name, name_span, args, form);
        let list = self.list(&ids, span)?;
        self.push(Op::Call(function, list), span)
    }

    /// `avg(payload.t)` is probably meant to aggregate events, but without a window it is the mean of one array.
    fn warn_of_missing_window(&mut self, name: &str, span: Span, args: &[Expr], form: CallForm) {
        let is_aggregate = AggregateKind::ALL.iter().any(|(known, _)| *known == name);
        let is_path = matches!(args, [argument] if !matches!(argument.node, ExprNode::Array(_) | ExprNode::Call { .. }));
        if self.lacks_window && form == CallForm::Plain && is_aggregate && is_path {
            let message = format!(
                "without a window, `{name}` evaluates the items of one array; to aggregate events, add GROUP BY with a window \
                 such as tumbling(10s)"
            );
            self.add_warning(span, message);
        }
    }

    fn unknown_function_error(&self, name: &str, span: Span) -> StatementError {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if AggregateKind::ALL.iter().any(|(known, _)| is(known))
            || is("median")
            || is("window_start")
            || is("window_end")
        {
            let error = self.error(span, format!("`{name}` requires a window"));
            return error.with_expected("GROUP BY with tumbling(10s) or another window, and the aggregate in SELECT or HAVING");
        }
        let error = self.error(span, format!("unknown function `{name}`"));
        error.with_suggestion(functions::nearest(name).map(|name| format!("`{name}`")))
    }

    /// Methods that do not correspond to a function with the value as its first argument.
    fn resolve_method(
        &mut self,
        name: &str,
        ids: &[OpId],
        span: Span,
    ) -> Result<Option<OpId>, StatementError> {
        let found = match (name, ids) {
            ("get", &[base, at]) => self.push_path(base, &[StepOp::Get(at)], span)?,
            ("equals", &[left, right]) => {
                self.push(Op::Binary(BinaryOp::Equal, left, right), span)?
            }
            _ => return Ok(None),
        };
        Ok(Some(found))
    }

    /// Resolves a call if it is an aggregate, as decided by its name and its arguments.
    fn resolve_aggregate(
        &mut self,
        name: &str,
        name_span: Span,
        args: &'s [Expr],
        form: CallForm,
    ) -> Result<Option<OpId>, StatementError> {
        if args.is_empty() && form == CallForm::Plain {
            for (known, op) in [
                ("window_start", Op::WindowStart),
                ("window_end", Op::WindowEnd),
            ] {
                if name.eq_ignore_ascii_case(known) {
                    return self.push(op, name_span).map(Some);
                }
            }
        }
        let plain: String = name.chars().filter(|&c| c != '_').collect();
        let known = AggregateKind::ALL
            .iter()
            .find(|(known, _)| known.replace('_', "").eq_ignore_ascii_case(&plain));
        let is_median = plain.eq_ignore_ascii_case("median");
        let kind = match known {
            Some(&(_, kind)) => kind,
            None if is_median => AggregateKind::Percentile,
            None => return Ok(None),
        };
        let (kind, argument, percentile) = match (kind, form, args) {
            (AggregateKind::Count, CallForm::Star, []) => (kind, None, 0.0),
            (AggregateKind::Count, CallForm::Plain, []) => (kind, None, 0.0),
            (AggregateKind::Count, CallForm::Distinct, [argument]) => {
                (AggregateKind::DistinctCount, Some(argument), 0.0)
            }
            (AggregateKind::Percentile, CallForm::Plain | CallForm::Method, [argument])
                if is_median =>
            {
                (kind, Some(argument), 50.0)
            }
            (AggregateKind::Percentile, _, _) if is_median => {
                let error = self.error(name_span, "`median` takes one value");
                return Err(error.with_expected("median(x)"));
            }
            (AggregateKind::Percentile, CallForm::Plain, [argument, percentile]) => {
                (kind, Some(argument), self.resolve_percentile(percentile)?)
            }
            (AggregateKind::Percentile, _, _) => {
                let error = self.error(name_span, "`percentile` needs a value and a percentage");
                return Err(error.with_expected("percentile(x, 95)"));
            }
            (_, CallForm::Plain | CallForm::Method, [argument]) => (kind, Some(argument), 0.0),
            // `max(a, b)` with two values is the function.
            _ => return Ok(None),
        };
        let at = self.aggregates.iter().position(|(known, known_argument)| {
            known.kind == kind
                && known.percentile == percentile
                && match (known_argument, argument) {
                    (Some(left), Some(right)) => is_same_expr(left, right),
                    (None, None) => true,
                    _ => false,
                }
        });
        let at = at.unwrap_or_else(|| {
            self.aggregates
                .push((Aggregate { kind, percentile }, argument));
            self.aggregates.len() - 1
        });
        if at >= self.bounds.max_items {
            return Err(self
                .error(name_span, "too many aggregates")
                .with_expected(format!("at most {}", self.bounds.max_items)));
        }
        self.push(Op::Aggregate(at as u16), name_span).map(Some)
    }

    fn resolve_percentile(&mut self, expr: &'s Expr) -> Result<f64, StatementError> {
        let id = self.resolve_expr(expr)?;
        let value = self.builder.scalar(id).and_then(|value| value.as_f64());
        if let Some(part) = value.filter(|value| *value > 0.0 && *value < 1.0) {
            let message = format!(
                "a percentage counts from 0 to 100; did you mean {}?",
                (part * 1e6).round() / 1e4
            );
            self.add_warning(expr.span, message);
        }
        value
            .filter(|value| (0.0..=100.0).contains(value))
            .ok_or_else(|| {
                let error = self.error(expr.span, "no percentage");
                error.with_expected("a constant from 0 to 100")
            })
    }
}
