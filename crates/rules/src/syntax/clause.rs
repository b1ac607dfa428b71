//! Parser of clauses: SELECT, FOREACH, FROM, WHERE, GROUP BY with its window, HAVING, LIMIT.

use super::Parser;
use super::ast::{
    AliasPart, Expr, ExprNode, GroupBy, PathStep, SelectItem, SelectItemKind, Statement,
    StatementBody,
};
use super::token::{Symbol, TokenKind};
use crate::statement_error::{Span, StatementError};
use crate::suggestion::nearest_name;
use crate::window::{CalendarUnit, MAX_OVERLAPPING, WindowKind};

/// Keywords that end an expression. A field with such a name needs backquotes.
pub(crate) fn is_clause_word(word: &str) -> bool {
    const CLAUSE_KEYWORDS: &[&str] = &[
        "select", "foreach", "from", "where", "do", "incase", "group", "having", "limit", "as",
        "and", "or", "when", "then", "else", "end", "by",
    ];
    CLAUSE_KEYWORDS
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known))
}

pub(crate) const WINDOWS: &str =
    "tumbling(10s), hopping(1m, 10s), sliding(1m), session(30s[, 1h]) or count(100[, 10])";

impl Parser<'_> {
    pub(super) fn parse_statement(&mut self) -> Result<Statement, StatementError> {
        let body = if self.accept_word("select") {
            StatementBody::Select(self.parse_items()?)
        } else if self.accept_word("foreach") {
            self.parse_foreach()?
        } else {
            return Err(self.first_word_error());
        };
        let from = self.parse_from(&body)?;
        let filter = if self.accept_word("where") {
            Some(self.parse_expr()?)
        } else {
            None
        };
        let group = if self.at_word("group") {
            Some(self.parse_group_by()?)
        } else {
            None
        };
        let having = if self.accept_word("having") {
            Some(self.parse_expr()?)
        } else {
            None
        };
        let limit = if self.accept_word("limit") {
            Some(self.parse_limit()?)
        } else {
            None
        };
        if self.peek().kind == TokenKind::Word
            || self.peek().kind == TokenKind::Symbol(Symbol::Comma)
        {
            return Err(self.trailing_input_error(filter.is_some(), group.is_some()));
        }
        Ok(Statement {
            body,
            from,
            filter,
            group,
            having,
            limit,
        })
    }

    fn first_word_error(&self) -> StatementError {
        let word = self.text(self.peek().span);
        self.unexpected_error("`SELECT` or `FOREACH`")
            .with_suggestion(nearest_name(word, ["SELECT", "FOREACH"]))
    }

    fn trailing_input_error(&self, has_where: bool, has_group: bool) -> StatementError {
        let mut expected = vec!["an operator"];
        let mut names = vec!["HAVING", "LIMIT", "AND", "OR"];
        if !has_group {
            names.push("GROUP");
            expected.push("`GROUP BY`");
            if !has_where {
                names.push("WHERE");
                expected[0] = "`WHERE`";
            }
        }
        expected.push("the end of the statement");
        let word = self.text(self.peek().span);
        if word.eq_ignore_ascii_case("order") {
            return self
                .error(
                    self.peek().span,
                    "a rule has no ORDER BY: it sees one event at a time",
                )
                .with_expected("the end of the statement");
        }
        self.unexpected_error(&expected.join(", "))
            .with_suggestion(nearest_name(word, names))
    }

    fn parse_items(&mut self) -> Result<Vec<SelectItem>, StatementError> {
        let mut items = Vec::new();
        loop {
            items.push(self.parse_item()?);
            self.count_items(items.len(), self.last_span())?;
            if !self.accept_symbol(Symbol::Comma) {
                return Ok(items);
            }
        }
    }

    fn parse_item(&mut self) -> Result<SelectItem, StatementError> {
        let start = self.peek().span;
        if self.at_symbol(Symbol::Star) {
            self.advance();
            return Ok(SelectItem {
                span: start,
                kind: SelectItemKind::All,
            });
        }
        let expr = self.parse_expr()?;
        let alias = if self.accept_word("as") {
            Some(self.parse_alias()?)
        } else {
            let next = self.peek();
            let is_alias = next.kind == TokenKind::Word
                && (self.is_quoted(next) || !is_clause_word(self.text(next.span)));
            if is_alias && !self.is_misspelled_from() {
                Some(self.parse_alias()?)
            } else {
                None
            }
        };
        Ok(SelectItem {
            span: start.to_end_of(self.last_span()),
            kind: SelectItemKind::Expr { expr, alias },
        })
    }

    /// `SELECT a FORM "t"`: a word before a quoted name can only be a misspelled FROM.
    fn is_misspelled_from(&self) -> bool {
        matches!(self.peek_at(1).kind, TokenKind::Text(_))
    }

    fn parse_alias(&mut self) -> Result<Vec<AliasPart>, StatementError> {
        let mut parts = vec![self.parse_alias_key()?];
        loop {
            if self.accept_symbol(Symbol::Dot) {
                parts.push(self.parse_alias_key()?);
            } else if self.accept_symbol(Symbol::LeftBracket) {
                parts.push(self.parse_alias_position()?);
            } else {
                return Ok(parts);
            }
            if parts.len() > self.bounds.max_depth {
                let error = self.error(self.last_span(), "the name is too long");
                return Err(error.with_expected(format!(
                    "at most {} parts (max_depth)",
                    self.bounds.max_depth
                )));
            }
        }
    }

    /// Parses a position after the bracket: 1 is the first item, -1 the last, 0 before the first, -0 after
    /// the last; or an expression.
    fn parse_alias_position(&mut self) -> Result<AliasPart, StatementError> {
        let is_negative = self.at_symbol(Symbol::Minus);
        let number = match self.peek_at(usize::from(is_negative)).kind {
            TokenKind::Int(number)
                if self.peek_at(usize::from(is_negative) + 1).kind
                    == TokenKind::Symbol(Symbol::RightBracket) =>
            {
                Some(number)
            }
            _ => None,
        };
        let part = match (is_negative, number) {
            (_, None) => AliasPart::Computed(Box::new(self.parse_expr()?)),
            (false, Some(0)) => AliasPart::Head,
            (true, Some(0)) => AliasPart::Tail,
            (false, Some(at)) => AliasPart::Index(at),
            (true, Some(at)) => AliasPart::Index(-at),
        };
        if number.is_some() {
            self.at += 1 + usize::from(is_negative);
        }
        self.expect_symbol(Symbol::RightBracket, "`]`")?;
        Ok(part)
    }

    fn parse_alias_key(&mut self) -> Result<AliasPart, StatementError> {
        let token = self.peek().clone();
        let key = match token.kind {
            TokenKind::Word => self.text(token.span).into(),
            TokenKind::Text(text) => text,
            TokenKind::Int(_) => self.text(token.span).into(),
            _ => return Err(self.unexpected_error("a name")),
        };
        self.advance();
        Ok(AliasPart::Key(key))
    }

    fn parse_foreach(&mut self) -> Result<StatementBody, StatementError> {
        let lists = self.parse_items()?;
        if let Some(all) = lists
            .iter()
            .find(|item| matches!(item.kind, SelectItemKind::All))
        {
            return Err(self
                .error(all.span, "FOREACH iterates over a list")
                .with_expected("a list, such as payload.sensors"));
        }
        let each = if self.accept_word("do") {
            Some(self.parse_items()?)
        } else {
            None
        };
        let incase = if self.accept_word("incase") {
            Some(self.parse_expr()?)
        } else {
            None
        };
        Ok(StatementBody::Foreach {
            lists,
            each,
            incase,
        })
    }

    fn parse_from(
        &mut self,
        body: &StatementBody,
    ) -> Result<Vec<(Box<str>, Span)>, StatementError> {
        if !self.accept_word("from") {
            let word = self.text(self.peek().span);
            let expected = match body {
                StatementBody::Select(_) => "`,`, `AS` or `FROM`",
                StatementBody::Foreach {
                    incase: Some(_), ..
                } => "an operator or `FROM`",
                StatementBody::Foreach { each: Some(_), .. } => "`,`, `AS`, `INCASE` or `FROM`",
                StatementBody::Foreach { .. } => "`AS`, `DO`, `INCASE` or `FROM`",
            };
            return Err(self
                .unexpected_error(expected)
                .with_suggestion(nearest_name(word, ["FROM"])));
        }
        let mut sources = Vec::new();
        loop {
            let (name, span) = self.parse_source()?;
            sources.push((name, span));
            self.count_items(sources.len(), span)?;
            if !self.accept_symbol(Symbol::Comma) {
                return Ok(sources);
            }
        }
    }

    /// Parses a source, usually in quotes. An unquoted source ends at a blank or a comma and is read from the text
    /// itself. The lexer would treat its characters as operators and comments.
    fn parse_source(&mut self) -> Result<(Box<str>, Span), StatementError> {
        const EXPECTED: &str = "a source in quotes, such as \"t/#\" or \"$EVENT.PUBLISH\"";
        let token = self.peek().clone();
        if let TokenKind::Text(name) = token.kind {
            self.advance();
            return Ok((name, token.span));
        }
        let behind = self.last_span().end as usize;
        let rest = &self.sql[behind..];
        let start = behind + rest.len() - rest.trim_start().len();
        let rest = &self.sql[start..];
        let ends =
            |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '(' | ')' | '\'' | '"' | '`');
        let name = &rest[..rest.find(ends).unwrap_or(rest.len())];
        let is_comment = name.starts_with("--") || name.starts_with("/*");
        if name.is_empty()
            || is_comment
            || is_clause_word(name)
            || name.eq_ignore_ascii_case("where")
        {
            return Err(self.unexpected_error(EXPECTED));
        }
        let end = start + name.len();
        self.resume_at(end)?;
        Ok((name.into(), Span::new(start, end)))
    }

    fn parse_group_by(&mut self) -> Result<GroupBy, StatementError> {
        let start = self.advance().span;
        if !self.accept_word("by") {
            return Err(self.unexpected_error("`BY`"));
        }
        let mut keys = Vec::new();
        let mut window = None;
        loop {
            if let Some(found) = self.parse_window()? {
                window = Some(found);
                break;
            }
            keys.push(self.parse_expr()?);
            self.count_items(keys.len(), self.last_span())?;
            // The window follows the last expression, with or without a comma.
            if !self.accept_symbol(Symbol::Comma) && !self.at_window() {
                break;
            }
        }
        Ok(GroupBy {
            span: start.to_end_of(self.last_span()),
            keys,
            window,
        })
    }

    fn at_window(&self) -> bool {
        let names = ["tumbling", "hopping", "sliding", "session", "count"];
        self.peek_at(1).kind == TokenKind::Symbol(Symbol::LeftParen)
            && names.iter().any(|name| self.at_word(name))
    }

    fn parse_window(&mut self) -> Result<Option<(WindowKind, Span)>, StatementError> {
        if !self.at_window() {
            return Ok(None);
        }
        let name = self.advance().span;
        self.advance();
        let kind = match self.text(name).to_ascii_lowercase().as_str() {
            "tumbling" => self.tumbling()?,
            "sliding" => WindowKind::Sliding {
                size_ms: self.parse_duration()?,
            },
            "session" => {
                let gap_ms = self.parse_duration()?;
                let mut max_ms = None;
                if self.accept_symbol(Symbol::Comma) {
                    let span = self.peek().span;
                    let most_ms = self.parse_duration()?;
                    if most_ms < gap_ms {
                        let message = "a session cannot be shorter than the gap that ends it";
                        let error = self.error(span, message);
                        return Err(error.with_expected(format!("at least {gap_ms}ms")));
                    }
                    max_ms = Some(most_ms);
                }
                WindowKind::Session { gap_ms, max_ms }
            }
            "hopping" => {
                let size_ms = self.parse_duration()?;
                self.expect_symbol(Symbol::Comma, "`,` and the interval at which windows begin")?;
                let every = self.peek().span;
                let every_ms = self.parse_duration()?;
                if every_ms > size_ms {
                    let message =
                        "windows that begin less often than their length would miss events";
                    return Err(self
                        .error(every, message)
                        .with_expected(format!("at most {size_ms}ms")));
                }
                WindowKind::Hopping { size_ms, every_ms }
            }
            _ => {
                let events = self.parse_event_count(1, 1_000_000)?;
                let step = match self.accept_symbol(Symbol::Comma) {
                    // Limits the number of windows that overlap.
                    true => self.parse_event_count(events.div_ceil(MAX_OVERLAPPING), events)?,
                    false => events,
                };
                WindowKind::Count { events, step }
            }
        };
        let close = self.expect_symbol(Symbol::RightParen, "`)`")?;
        Ok(Some((kind, name.to_end_of(close.span))))
    }

    /// Parses a duration, or a number of weeks or months of the calendar.
    fn tumbling(&mut self) -> Result<WindowKind, StatementError> {
        let start = self.peek().span;
        let (span, number, unit) = self.number_and_unit(TUMBLING)?;
        let unit = match unit.as_str() {
            "w" | "week" | "weeks" => CalendarUnit::Week,
            "mo" | "mon" | "month" | "months" => CalendarUnit::Month,
            unit => {
                let size_ms = self.millis(span, number, unit, TUMBLING)?;
                return Ok(WindowKind::Tumbling { size_ms });
            }
        };
        let max = unit.max_size();
        if number.fract() != 0.0 || !(1.0..=f64::from(max)).contains(&number) {
            let message = "calendar windows are whole weeks or months, at most a year";
            let expected = format!("1 to {max} {}s", unit.name());
            return Err(self
                .error(start.to_end_of(span), message)
                .with_expected(expected));
        }
        let size = number as u32;
        Ok(WindowKind::Calendar { size, unit })
    }

    fn parse_event_count(&mut self, least: u64, most: u64) -> Result<u64, StatementError> {
        let span = self.peek().span;
        match self.advance().kind {
            TokenKind::Int(count) if (least..=most).contains(&(count as u64)) && count > 0 => {
                Ok(count as u64)
            }
            _ => Err(self
                .error(span, "not a number of events")
                .with_expected(format!("a whole number from {least} to {most}"))),
        }
    }

    /// Parses `10s`, `500ms`, `1m`, `2h`, `1d`, also in quotes; from 1 ms to 31 days.
    fn parse_duration(&mut self) -> Result<u64, StatementError> {
        let (span, number, unit) = self.number_and_unit(DURATION)?;
        self.millis(span, number, &unit, DURATION)
    }

    fn number_and_unit(&mut self, expected: &str) -> Result<(Span, f64, String), StatementError> {
        let token = self.advance();
        let mut span = token.span;
        let (number, unit): (f64, String) = match &token.kind {
            TokenKind::Int(_) | TokenKind::Float(_) => {
                let number = self.text(token.span).parse().unwrap_or(0.0);
                let unit = self.peek().clone();
                if unit.kind != TokenKind::Word {
                    return Err(self
                        .error(span, "a duration needs a unit")
                        .with_expected(expected));
                }
                self.advance();
                span = span.to_end_of(unit.span);
                (number, self.text(unit.span).to_ascii_lowercase())
            }
            TokenKind::Text(text) => {
                let at = text
                    .find(|c: char| c.is_ascii_alphabetic())
                    .unwrap_or(text.len());
                (
                    text[..at].trim().parse().unwrap_or(0.0),
                    text[at..].trim().to_ascii_lowercase(),
                )
            }
            _ => return Err(self.error(span, "no time").with_expected(expected)),
        };
        Ok((span, number, unit))
    }

    fn millis(
        &self,
        span: Span,
        number: f64,
        unit: &str,
        expected: &str,
    ) -> Result<u64, StatementError> {
        const MAX_MS: f64 = 31.0 * 86_400_000.0;
        let factor = match unit {
            "ms" => 1.0,
            "s" | "ss" | "sec" | "second" | "seconds" => 1000.0,
            "m" | "mi" | "min" | "minute" | "minutes" => 60_000.0,
            "h" | "hh" | "hour" | "hours" => 3_600_000.0,
            "d" | "dd" | "day" | "days" => 86_400_000.0,
            _ => {
                return Err(self
                    .error(span, "unknown unit of time")
                    .with_expected(expected));
            }
        };
        let ms = number * factor;
        if !(1.0..=MAX_MS).contains(&ms) {
            return Err(self
                .error(span, "this time is too short or too long")
                .with_expected(expected));
        }
        Ok(ms as u64)
    }

    fn parse_limit(&mut self) -> Result<u64, StatementError> {
        match self.peek().kind {
            TokenKind::Int(count) if count > 0 => {
                self.advance();
                Ok(count as u64)
            }
            // It would discard every output; a rule is switched off with its state.
            _ => Err(self.unexpected_error("a whole number from 1")),
        }
    }
}

const DURATION: &str = "a time from 1ms to 31d, such as 500ms, 10s, 5m, 1h or 1d";
const TUMBLING: &str = "a time from 1ms to 31d, such as 500ms, 10s, 5m, 1h or 1d, or weeks or months of the calendar, such as 1w or 1mo";

fn default_alias_position(index: &Expr) -> AliasPart {
    match &index.node {
        ExprNode::Int(at) => AliasPart::Index(*at),
        ExprNode::Negate(inner) => match inner.node {
            ExprNode::Int(at) => AliasPart::Index(-at),
            _ => AliasPart::Computed(Box::new(index.clone())),
        },
        _ => AliasPart::Computed(Box::new(index.clone())),
    }
}

/// The name of an item without alias: a path keeps its nested form; other expressions have no name of their
/// own.
pub(crate) fn default_alias(expr: &Expr) -> Option<Vec<AliasPart>> {
    match &expr.node {
        ExprNode::Name(name) => Some(vec![AliasPart::Key(name.clone())]),
        ExprNode::Path(base, steps) => {
            let mut parts = default_alias(base)?;
            for step in steps {
                match step {
                    PathStep::Key(key) => parts.push(AliasPart::Key(key.clone())),
                    PathStep::Index(index) => parts.push(default_alias_position(index)),
                    // The list's name stands for a part of it.
                    PathStep::Slice(..) => {}
                }
            }
            Some(parts)
        }
        ExprNode::Text(text) => Some(vec![AliasPart::Key(text.clone())]),
        _ => None,
    }
}
