//! Names of fields, aliases, items and group keys.

use super::{NameScope, Resolver};
use crate::event_field::EventField;
use crate::function_context::Dialect;
use crate::plan::aliases::Alias;
use crate::plan::{Op, OpId};
use crate::statement_error::{Span, StatementError};
use crate::suggestion::nearest_name;
use crate::syntax::ast::{AliasPart, PathStep};

impl<'s> Resolver<'s> {
    /// In EMQX, double quotes denote a name. Here they denote a name if such a field, alias or item exists,
    /// otherwise text, because statements of other products write text this way.
    pub(super) fn double_quoted_name(
        &mut self,
        text: &'s str,
        steps: &'s [PathStep],
        span: Span,
    ) -> Result<Option<OpId>, StatementError> {
        let is_emqx = self.builder.dialect == Dialect::Emqx && self.scope != NameScope::Template;
        let written = self.sql[span.start as usize..].trim_start_matches(['(', ' ', '\n', '\t']);
        if !is_emqx || !written.starts_with('"') {
            return Ok(None);
        }
        let is_alias = |alias: &Alias| matches!(alias.parts.first(), Some(AliasPart::Key(key)) if **key == *text);
        let is_known = EventField::find(text).is_some()
            || self.own_fields.contains(&text)
            || self.item.as_deref() == Some(text)
            || self.aliases.iter().any(is_alias);
        if is_known {
            return self.resolve_name(text, steps, span).map(Some);
        }
        let message = format!(
            "\"{text}\" in double quotes is a field name in EMQX; no field has this name, so it is treated as text: write '{text}'"
        );
        self.add_warning(span, message);
        Ok(None)
    }

    /// Resolves a name and the steps after it.
    pub(super) fn resolve_name(
        &mut self,
        name: &'s str,
        steps: &'s [PathStep],
        span: Span,
    ) -> Result<OpId, StatementError> {
        if self.scope == NameScope::Group {
            return self.resolve_group_name(name, steps, span);
        }
        if self.item.as_deref() == Some(name) {
            let item = self.push(Op::Item, span)?;
            return self.resolve_steps(item, steps, span);
        }
        let dialect = self.builder.dialect;
        let field = EventField::find(name).map(|field| field.for_dialect(dialect));
        let field_first = field.is_some() && self.builder.dialect == Dialect::Fluxmq;
        if !field_first && let Some(found) = self.resolve_alias(name, steps, span)? {
            return Ok(found);
        }
        let text = self.builder.text(match self.is_of_devices {
            true => device_field(name),
            false => name,
        });
        let op = match (self.scope, field) {
            (NameScope::Template, field) => Op::Column(text, field),
            (_, field) if self.is_open || self.own_fields.contains(&name) => Op::Open(text, field),
            (_, Some(field)) => Op::Field(field),
            (_, None) => return Err(self.unknown_name_error(name, span)),
        };
        let base = self.push(op, span)?;
        self.resolve_steps(base, steps, span)
    }

    fn resolve_alias(
        &mut self,
        name: &str,
        steps: &'s [PathStep],
        span: Span,
    ) -> Result<Option<OpId>, StatementError> {
        // Of the aliases that match the most steps, the latest one.
        let found = (self.aliases.iter().enumerate())
            .filter_map(|(at, alias)| Some((alias.matched_steps(name, steps)?, at)))
            .max();
        let Some((covered, at)) = found else {
            return Ok(None);
        };
        let memo = self
            .builder
            .memo(self.aliases[at].node)
            .map_err(|too_much| self.plan_size_error(too_much, span))?;
        self.aliases[at].node = memo;
        self.resolve_steps(memo, &steps[covered - 1..], span)
            .map(Some)
    }

    fn unknown_name_error(&self, name: &str, span: Span) -> StatementError {
        let start = span.start as usize;
        let name_span = Span::new(start, start + name.len());
        let error = self.error(name_span, format!("unknown field `{name}`"));
        let aliases: Vec<String> = self.aliases.iter().map(Alias::text).collect();
        let own = aliases
            .iter()
            .map(String::as_str)
            .chain(self.item.as_deref());
        let known = EventField::names().map(|name| -> &str { name });
        let known = known.chain(self.own_fields.iter().copied()).chain(own);
        match nearest_name(name, known) {
            Some(name) => error.with_suggestion(Some(format!("`{name}`"))),
            // Users of other products tend to omit `payload.`.
            None => error.with_expected(format!(
                "a field of the event, or payload.{name} for a field of the payload"
            )),
        }
    }

    /// In SELECT and HAVING of a rule with a window a name must be an alias.
    fn resolve_group_name(
        &mut self,
        name: &'s str,
        steps: &'s [PathStep],
        span: Span,
    ) -> Result<OpId, StatementError> {
        if let Some(expr) = self
            .find_select_alias(name)
            .filter(|_| self.alias_depth == 0 || steps.is_empty())
        {
            self.alias_depth += 1;
            let inner = if self.alias_depth > 8 {
                Err(self.error(span, format!("`{name}` refers to itself")))
            } else {
                self.resolve_expr(expr)
            };
            self.alias_depth -= 1;
            return self.resolve_steps(inner?, steps, span);
        }
        let error = self.error(
            span,
            format!("`{name}` refers to a single event, but a window covers many"),
        );
        Err(error.with_expected(
            "an expression of GROUP BY, or an aggregate such as last(x), avg(x) or count(*)",
        ))
    }
}

/// The field of a device event under either spelling.
fn device_field(name: &str) -> &str {
    match name {
        "device_id" | "deviceid" => "deviceId",
        "product_id" | "productid" => "productId",
        name => name,
    }
}
