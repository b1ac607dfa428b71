//! Clauses: SELECT, FOREACH, FROM, WHERE, GROUP BY with its window, HAVING, LIMIT.

use super::Parser;
use super::ast::{AliasPart, Body, Expr, Group, Item, ItemKind, Node, Statement, Step};
use super::token::{Kind, Symbol};
use crate::error::{Error, Span};
use crate::nearest::nearest;
use crate::window::WindowKind;

/// Words that end an expression, so that no field can have their names without backquotes.
pub(crate) fn is_clause_word(word: &str) -> bool {
    const WORDS: &[&str] = &[
        "select", "foreach", "from", "where", "do", "incase", "group", "having", "limit", "as",
        "and", "or", "when", "then", "else", "end", "by",
    ];
    WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

pub(crate) const WINDOWS: &str =
    "tumbling(10s), hopping(1m, 10s), sliding(1m), session(30s) or count(100)";

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
                let negative = self.eat_symbol(Symbol::Minus);
                let Kind::Int(number) = self.peek().kind else {
                    return Err(self.unexpected("a position: 1 is the first, -1 the last, 0 before the first, -0 after the last"));
                };
                self.advance();
                self.expect_symbol(Symbol::RightBracket, "`]`")?;
                parts.push(match (negative, number) {
                    (false, 0) => AliasPart::Head,
                    (true, 0) => AliasPart::Tail,
                    (false, at) => AliasPart::Index(at),
                    (true, at) => AliasPart::Index(-at),
                });
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
        const EXPECTED: &str = "a source in quotes, such as \"t/#\" or \"$EVENT.PUBLISH\"";
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
            let token = self.peek().clone();
            let Kind::Text(name) = token.kind else {
                return Err(self.unexpected(EXPECTED));
            };
            self.advance();
            sources.push((name, token.span));
            self.count_items(sources.len(), token.span)?;
            if !self.eat_symbol(Symbol::Comma) {
                return Ok(sources);
            }
        }
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
            "tumbling" => WindowKind::Tumbling {
                size_ms: self.duration()?,
            },
            "sliding" => WindowKind::Sliding {
                size_ms: self.duration()?,
            },
            "session" => WindowKind::Session {
                gap_ms: self.duration()?,
            },
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
                let span = self.peek().span;
                match self.advance().kind {
                    Kind::Int(events @ 1..=1_000_000) => WindowKind::Count {
                        events: events as u64,
                    },
                    _ => {
                        return Err(self
                            .error(span, "no count of events")
                            .expected("a whole number from 1 to 1000000"));
                    }
                }
            }
        };
        let close = self.expect_symbol(Symbol::RightParen, "`)`")?;
        Ok(Some((kind, name.to(close.span))))
    }

    /// `10s`, `500ms`, `1m`, `2h`, `1d`, also in quotes; from 1 ms to 31 days.
    fn duration(&mut self) -> Result<u64, Error> {
        const MAX_MS: f64 = 31.0 * 86_400_000.0;
        const EXPECTED: &str = "a time from 1ms to 31d, such as 500ms, 10s, 5m, 1h or 1d";
        let token = self.advance();
        let mut span = token.span;
        let (number, unit): (f64, String) = match &token.kind {
            Kind::Int(_) | Kind::Float(_) => {
                let number = self.text(token.span).parse().unwrap_or(0.0);
                let unit = self.peek().clone();
                if unit.kind != Kind::Word {
                    return Err(self.error(span, "a time needs a unit").expected(EXPECTED));
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
            _ => return Err(self.error(span, "no time").expected(EXPECTED)),
        };
        let factor = match unit.as_str() {
            "ms" => 1.0,
            "s" | "ss" | "sec" | "second" | "seconds" => 1000.0,
            "m" | "mi" | "min" | "minute" | "minutes" => 60_000.0,
            "h" | "hh" | "hour" | "hours" => 3_600_000.0,
            "d" | "dd" | "day" | "days" => 86_400_000.0,
            _ => return Err(self.error(span, "unknown unit of time").expected(EXPECTED)),
        };
        let ms = number * factor;
        if !(1.0..=MAX_MS).contains(&ms) {
            return Err(self
                .error(span, "no window can be this long")
                .expected(EXPECTED));
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

/// The name an item gets that has no alias: the path itself, nested; anything else has none of its own.
pub(crate) fn natural_alias(expr: &Expr) -> Option<Vec<AliasPart>> {
    match &expr.node {
        Node::Name(name) => Some(vec![AliasPart::Key(name.clone())]),
        Node::Path(base, steps) => {
            let mut parts = natural_alias(base)?;
            for step in steps {
                // An index into what does not exist yet has nothing to put into; the list's name stands for it.
                if let Step::Key(key) = step {
                    parts.push(AliasPart::Key(key.clone()));
                }
            }
            Some(parts)
        }
        Node::Text(text) => Some(vec![AliasPart::Key(text.clone())]),
        _ => None,
    }
}
