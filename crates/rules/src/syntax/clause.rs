//! Clauses: SELECT, FOREACH, FROM, WHERE, GROUP BY with its window, HAVING, LIMIT.

use super::Parser;
use super::ast::{AliasPart, Body, Expr, Group, Item, ItemKind, Node, Statement, Step};
use super::token::{Kind, Symbol};
use crate::error::{Error, Span};
use crate::nearest::nearest;
use crate::window::{CalendarUnit, WindowKind};
use crate::windows::MAX_OVERLAPPING;

/// Words that end an expression, so that no field can have their names without backquotes.
pub(crate) fn is_clause_word(word: &str) -> bool {
    const WORDS: &[&str] = &[
        "select", "foreach", "from", "where", "do", "incase", "group", "having", "limit", "as",
        "and", "or", "when", "then", "else", "end", "by",
    ];
    WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

pub(crate) const WINDOWS: &str =
    "tumbling(10s), hopping(1m, 10s), sliding(1m), session(30s[, 1h]) or count(100[, 10])";

impl Parser<'_> {
    pub(super) fn statement(&mut self) -> Result<Statement, Error> {
        let body = if self.eat_word("select") {
            Body::Select(self.items()?)
        } else if self.eat_word("foreach") {
            self.foreach()?
        } else {
            return Err(self.first_word());
        };
        let from = self.from(&body)?;
        let filter = if self.eat_word("where") {
            Some(self.expression()?)
        } else {
            None
        };
        let group = if self.at_word("group") {
            Some(self.group()?)
        } else {
            None
        };
        let having = if self.eat_word("having") {
            Some(self.expression()?)
        } else {
            None
        };
        let limit = if self.eat_word("limit") {
            Some(self.limit()?)
        } else {
            None
        };
        if self.peek().kind == Kind::Word || self.peek().kind == Kind::Symbol(Symbol::Comma) {
            return Err(self.after_clauses(filter.is_some(), group.is_some()));
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

    fn first_word(&self) -> Error {
        let word = self.text(self.peek().span);
        self.unexpected("`SELECT` or `FOREACH`")
            .suggest(nearest(word, ["SELECT", "FOREACH"].into_iter()))
    }

    fn after_clauses(&self, has_where: bool, has_group: bool) -> Error {
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
                .expected("the end of the statement");
        }
        self.unexpected(&expected.join(", "))
            .suggest(nearest(word, names.into_iter()))
    }

    fn items(&mut self) -> Result<Vec<Item>, Error> {
        let mut items = Vec::new();
        loop {
            items.push(self.item()?);
            self.count_items(items.len(), self.last_span())?;
            if !self.eat_symbol(Symbol::Comma) {
                return Ok(items);
            }
        }
    }

    fn item(&mut self) -> Result<Item, Error> {
        let start = self.peek().span;
        if self.at_symbol(Symbol::Star) {
            self.advance();
            return Ok(Item {
                span: start,
                what: ItemKind::All,
            });
        }
        let expr = self.expression()?;
        let alias = if self.eat_word("as") {
            Some(self.alias()?)
        } else {
            let next = self.peek();
            let is_alias = next.kind == Kind::Word
                && (self.is_quoted(next) || !is_clause_word(self.text(next.span)));
            if is_alias && !self.is_misspelled_from() {
                Some(self.alias()?)
            } else {
                None
            }
        };
        Ok(Item {
            span: start.to(self.last_span()),
            what: ItemKind::Expr { expr, alias },
        })
    }

    /// `SELECT a FORM "t"`: a word before a name in quotes can only be meant as FROM.
    fn is_misspelled_from(&self) -> bool {
        matches!(self.peek_at(1).kind, Kind::Text(_))
    }

    fn alias(&mut self) -> Result<Vec<AliasPart>, Error> {
        let mut parts = vec![self.alias_key()?];
        loop {
            if self.eat_symbol(Symbol::Dot) {
                parts.push(self.alias_key()?);
            } else if self.eat_symbol(Symbol::LeftBracket) {
                parts.push(self.alias_position()?);
            } else {
                return Ok(parts);
            }
            if parts.len() > self.bounds.max_depth {
                let error = self.error(self.last_span(), "the name is too long");
                return Err(error.expected(format!(
                    "at most {} parts (max_depth)",
                    self.bounds.max_depth
                )));
            }
        }
    }

    /// After the bracket: 1 is the first, -1 the last, 0 before the first, -0 after the last; or an expression.
    fn alias_position(&mut self) -> Result<AliasPart, Error> {
        let is_negative = self.at_symbol(Symbol::Minus);
        let number = match self.peek_at(usize::from(is_negative)).kind {
            Kind::Int(number)
                if self.peek_at(usize::from(is_negative) + 1).kind
                    == Kind::Symbol(Symbol::RightBracket) =>
            {
                Some(number)
            }
            _ => None,
        };
        let part = match (is_negative, number) {
            (_, None) => AliasPart::Computed(Box::new(self.expression()?)),
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

    fn alias_key(&mut self) -> Result<AliasPart, Error> {
        let token = self.peek().clone();
        let key = match token.kind {
            Kind::Word => self.text(token.span).into(),
            Kind::Text(text) => text,
            Kind::Int(_) => self.text(token.span).into(),
            _ => return Err(self.unexpected("a name")),
        };
        self.advance();
        Ok(AliasPart::Key(key))
    }

    fn foreach(&mut self) -> Result<Body, Error> {
        let lists = self.items()?;
        if let Some(all) = lists.iter().find(|item| matches!(item.what, ItemKind::All)) {
            return Err(self
                .error(all.span, "FOREACH goes through a list")
                .expected("a list, such as payload.sensors"));
        }
        let each = if self.eat_word("do") {
            Some(self.items()?)
        } else {
            None
        };
        let incase = if self.eat_word("incase") {
            Some(self.expression()?)
        } else {
            None
        };
        Ok(Body::Foreach {
            lists,
            each,
            incase,
        })
    }

    fn from(&mut self, body: &Body) -> Result<Vec<(Box<str>, Span)>, Error> {
        if !self.eat_word("from") {
            let word = self.text(self.peek().span);
            let expected = match body {
                Body::Select(_) => "`,`, `AS` or `FROM`",
                Body::Foreach {
                    incase: Some(_), ..
                } => "an operator or `FROM`",
                Body::Foreach { each: Some(_), .. } => "`,`, `AS`, `INCASE` or `FROM`",
                Body::Foreach { .. } => "`AS`, `DO`, `INCASE` or `FROM`",
            };
            return Err(self
                .unexpected(expected)
                .suggest(nearest(word, ["FROM"].into_iter())));
        }
        let mut sources = Vec::new();
        loop {
            let (name, span) = self.source()?;
            sources.push((name, span));
            self.count_items(sources.len(), span)?;
            if !self.eat_symbol(Symbol::Comma) {
                return Ok(sources);
            }
        }
    }

    /// A source, most often in quotes. Without them it ends at a blank or a comma, and is read from the text itself: its
    /// characters are operators and comments to the lexer.
    fn source(&mut self) -> Result<(Box<str>, Span), Error> {
        const EXPECTED: &str = "a source in quotes, such as \"t/#\" or \"$EVENT.PUBLISH\"";
        let token = self.peek().clone();
        if let Kind::Text(name) = token.kind {
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
            return Err(self.unexpected(EXPECTED));
        }
        let end = start + name.len();
        self.resume_at(end)?;
        Ok((name.into(), Span::new(start, end)))
    }

    fn group(&mut self) -> Result<Group, Error> {
        let start = self.advance().span;
        if !self.eat_word("by") {
            return Err(self.unexpected("`BY`"));
        }
        let mut keys = Vec::new();
        let mut window = None;
        loop {
            if let Some(found) = self.window()? {
                window = Some(found);
                break;
            }
            keys.push(self.expression()?);
            self.count_items(keys.len(), self.last_span())?;
            // The window stands after the last expression, with or without a comma.
            if !self.eat_symbol(Symbol::Comma) && !self.at_window() {
                break;
            }
        }
        Ok(Group {
            span: start.to(self.last_span()),
            keys,
            window,
        })
    }

    fn at_window(&self) -> bool {
        let names = ["tumbling", "hopping", "sliding", "session", "count"];
        self.peek_at(1).kind == Kind::Symbol(Symbol::LeftParen)
            && names.iter().any(|name| self.at_word(name))
    }

    fn window(&mut self) -> Result<Option<(WindowKind, Span)>, Error> {
        if !self.at_window() {
            return Ok(None);
        }
        let name = self.advance().span;
        self.advance();
        let kind = match self.text(name).to_ascii_lowercase().as_str() {
            "tumbling" => self.tumbling()?,
            "sliding" => WindowKind::Sliding {
                size_ms: self.duration()?,
            },
            "session" => {
                let gap_ms = self.duration()?;
                let mut max_ms = None;
                if self.eat_symbol(Symbol::Comma) {
                    let span = self.peek().span;
                    let most_ms = self.duration()?;
                    if most_ms < gap_ms {
                        let message = "no session is shorter than the gap that ends it";
                        let error = self.error(span, message);
                        return Err(error.expected(format!("at least {gap_ms}ms")));
                    }
                    max_ms = Some(most_ms);
                }
                WindowKind::Session { gap_ms, max_ms }
            }
            "hopping" => {
                let size_ms = self.duration()?;
                self.expect_symbol(Symbol::Comma, "`,` and how often a window begins")?;
                let every = self.peek().span;
                let every_ms = self.duration()?;
                if every_ms > size_ms {
                    let message =
                        "windows that begin more seldom than they are long would miss events";
                    return Err(self
                        .error(every, message)
                        .expected(format!("at most {size_ms}ms")));
                }
                WindowKind::Hopping { size_ms, every_ms }
            }
            _ => {
                let events = self.count_of_events(1, 1_000_000)?;
                let step = match self.eat_symbol(Symbol::Comma) {
                    // Of more windows at a time nobody keeps count.
                    true => self.count_of_events(events.div_ceil(MAX_OVERLAPPING), events)?,
                    false => events,
                };
                WindowKind::Count { events, step }
            }
        };
        let close = self.expect_symbol(Symbol::RightParen, "`)`")?;
        Ok(Some((kind, name.to(close.span))))
    }

    /// A time, or weeks or months of the calendar.
    fn tumbling(&mut self) -> Result<WindowKind, Error> {
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
            let message =
                "windows of the calendar are of whole weeks or months, and at most a year";
            let expected = format!("1 to {max} {}s", unit.name());
            return Err(self.error(start.to(span), message).expected(expected));
        }
        let size = number as u32;
        Ok(WindowKind::Calendar { size, unit })
    }

    fn count_of_events(&mut self, least: u64, most: u64) -> Result<u64, Error> {
        let span = self.peek().span;
        match self.advance().kind {
            Kind::Int(count) if (least..=most).contains(&(count as u64)) && count > 0 => {
                Ok(count as u64)
            }
            _ => Err(self
                .error(span, "no count of events")
                .expected(format!("a whole number from {least} to {most}"))),
        }
    }

    /// `10s`, `500ms`, `1m`, `2h`, `1d`, also in quotes; from 1 ms to 31 days.
    fn duration(&mut self) -> Result<u64, Error> {
        let (span, number, unit) = self.number_and_unit(DURATION)?;
        self.millis(span, number, &unit, DURATION)
    }

    fn number_and_unit(&mut self, expected: &str) -> Result<(Span, f64, String), Error> {
        let token = self.advance();
        let mut span = token.span;
        let (number, unit): (f64, String) = match &token.kind {
            Kind::Int(_) | Kind::Float(_) => {
                let number = self.text(token.span).parse().unwrap_or(0.0);
                let unit = self.peek().clone();
                if unit.kind != Kind::Word {
                    return Err(self.error(span, "a time needs a unit").expected(expected));
                }
                self.advance();
                span = span.to(unit.span);
                (number, self.text(unit.span).to_ascii_lowercase())
            }
            Kind::Text(text) => {
                let at = text
                    .find(|c: char| c.is_ascii_alphabetic())
                    .unwrap_or(text.len());
                (
                    text[..at].trim().parse().unwrap_or(0.0),
                    text[at..].trim().to_ascii_lowercase(),
                )
            }
            _ => return Err(self.error(span, "no time").expected(expected)),
        };
        Ok((span, number, unit))
    }

    fn millis(&self, span: Span, number: f64, unit: &str, expected: &str) -> Result<u64, Error> {
        const MAX_MS: f64 = 31.0 * 86_400_000.0;
        let factor = match unit {
            "ms" => 1.0,
            "s" | "ss" | "sec" | "second" | "seconds" => 1000.0,
            "m" | "mi" | "min" | "minute" | "minutes" => 60_000.0,
            "h" | "hh" | "hour" | "hours" => 3_600_000.0,
            "d" | "dd" | "day" | "days" => 86_400_000.0,
            _ => return Err(self.error(span, "unknown unit of time").expected(expected)),
        };
        let ms = number * factor;
        if !(1.0..=MAX_MS).contains(&ms) {
            return Err(self
                .error(span, "no window can be this long")
                .expected(expected));
        }
        Ok(ms as u64)
    }

    fn limit(&mut self) -> Result<u64, Error> {
        match self.peek().kind {
            Kind::Int(count) => {
                self.advance();
                Ok(count as u64)
            }
            _ => Err(self.unexpected("a whole number")),
        }
    }
}

const DURATION: &str = "a time from 1ms to 31d, such as 500ms, 10s, 5m, 1h or 1d";
const TUMBLING: &str = "a time from 1ms to 31d, such as 500ms, 10s, 5m, 1h or 1d, or weeks or months of the calendar, such as 1w or 1mo";

fn natural_position(index: &Expr) -> AliasPart {
    match &index.node {
        Node::Int(at) => AliasPart::Index(*at),
        Node::Negate(inner) => match inner.node {
            Node::Int(at) => AliasPart::Index(-at),
            _ => AliasPart::Computed(Box::new(index.clone())),
        },
        _ => AliasPart::Computed(Box::new(index.clone())),
    }
}

/// The name an item gets that has no alias: the path itself, nested; anything else has none of its own.
pub(crate) fn natural_alias(expr: &Expr) -> Option<Vec<AliasPart>> {
    match &expr.node {
        Node::Name(name) => Some(vec![AliasPart::Key(name.clone())]),
        Node::Path(base, steps) => {
            let mut parts = natural_alias(base)?;
            for step in steps {
                match step {
                    Step::Key(key) => parts.push(AliasPart::Key(key.clone())),
                    Step::Index(index) => parts.push(natural_position(index)),
                    // The list's name stands for a part of it.
                    Step::Slice(..) => {}
                }
            }
            Some(parts)
        }
        Node::Text(text) => Some(vec![AliasPart::Key(text.clone())]),
        _ => None,
    }
}
