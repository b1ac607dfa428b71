//! SQL with placeholders: a statement to prepare, and the values to bind to it. A value never becomes part of the statement.

use super::{Compiler, Expression, Program, placeholder};
use crate::error::{Error, Span};
use crate::fault::Fault;
use crate::options::Options;
use crate::plan::NodeId;
use crate::rule::{Output, RuleState};
use crate::value::Value;
use crate::view::View;

/// How the database marks the places of values, and reads quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholders {
    /// `?`; text in single or double quotes, a backslash escapes in them (MySQL, MariaDB).
    Question,
    /// `$1`, `$2`, ..; text in single quotes only, a backslash is a character (PostgreSQL).
    Numbered,
}

/// A statement with placeholders, ready.
pub struct SqlTemplate {
    statement: Box<str>,
    values: Box<[Bound]>,
    program: Program,
}

/// What is bound to one place.
enum Bound {
    /// `${x}` and `'${x}'`: the value with its type.
    Value(NodeId),
    /// `'a-${x}'`: text put together.
    Joined(Box<[JoinedPart]>),
}

enum JoinedPart {
    Text(Box<str>),
    Value(NodeId),
}

/// A place for a value, as it was read.
enum Place {
    Value(Expression),
    Joined(Vec<Piece>),
}

enum Piece {
    Text(String),
    Value(Expression),
}

impl SqlTemplate {
    /// Reads a template. Quotes around a placeholder are not part of the statement.
    ///
    /// # Errors
    /// If a placeholder does not end, is no expression, or stands for the name of a table or a column.
    pub fn compile(
        text: &str,
        placeholders: Placeholders,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut scanner = Scanner {
            text,
            at: 0,
            placeholders,
            options,
            statement: String::with_capacity(text.len()),
            places: Vec::new(),
        };
        if text.len() > options.bounds.max_sql_bytes {
            let span = Span::new(options.bounds.max_sql_bytes, options.bounds.max_sql_bytes);
            let error = Error::at(
                text,
                span,
                format!("the statement has {} bytes", text.len()),
            );
            return Err(error.expected(format!(
                "at most {} (max_sql_bytes)",
                options.bounds.max_sql_bytes
            )));
        }
        scanner.scan()?;
        let Scanner {
            statement, places, ..
        } = scanner;
        let mut compiler = Compiler::new(text, options);
        let mut values = Vec::with_capacity(places.len());
        for place in &places {
            values.push(match place {
                Place::Value(expression) => Bound::Value(compiler.node(expression)?),
                Place::Joined(pieces) => {
                    let mut parts = Vec::with_capacity(pieces.len());
                    for piece in pieces {
                        parts.push(match piece {
                            Piece::Text(text) => JoinedPart::Text(text.as_str().into()),
                            Piece::Value(expression) => {
                                JoinedPart::Value(compiler.node(expression)?)
                            }
                        });
                    }
                    Bound::Joined(parts.into())
                }
            });
        }
        let program = compiler.finish(options);
        Ok(Self {
            statement: statement.into(),
            values: values.into(),
            program,
        })
    }

    /// The statement to prepare.
    #[must_use]
    pub fn statement(&self) -> &str {
        &self.statement
    }

    /// How many values it takes.
    #[must_use]
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// The values to bind, in the order of their places. What is missing in the output is null.
    ///
    /// # Errors
    /// If an expression fails, or the values become too long.
    pub fn bind<'a>(
        &'a self,
        output: &Output<'a>,
        view: &View<'a>,
        state: &mut RuleState,
    ) -> Result<&'a [Value<'a>], Fault> {
        self.program.evaluate(output, view, state, |evaluator| {
            let values = view
                .arena()
                .alloc_slice_fill_copy(self.values.len(), Value::Undefined);
            let mut bytes = 0;
            for (value, bound) in values.iter_mut().zip(&self.values) {
                *value = match bound {
                    Bound::Value(node) => evaluator.evaluate(*node)?,
                    Bound::Joined(parts) => {
                        let mut text = bumpalo::collections::String::new_in(view.arena());
                        for part in parts {
                            match part {
                                JoinedPart::Text(part) => text.push_str(part),
                                JoinedPart::Value(node) => {
                                    text.push_str(evaluator.evaluate(*node)?.text(view.arena()))
                                }
                            }
                            self.program.bound(text.len())?;
                        }
                        Value::Str(text.into_bump_str())
                    }
                };
                bytes += value.as_bytes().map_or(8, <[u8]>::len);
                self.program.bound(bytes)?;
            }
            Ok(&*values)
        })
    }
}

struct Scanner<'s> {
    text: &'s str,
    at: usize,
    placeholders: Placeholders,
    options: &'s Options,
    statement: String,
    places: Vec<Place>,
}

impl Scanner<'_> {
    fn scan(&mut self) -> Result<(), Error> {
        while self.at < self.text.len() {
            let rest = &self.text[self.at..];
            if rest.starts_with("$${") {
                self.statement.push_str("${");
                self.at += 3;
            } else if rest.starts_with("${") {
                let (expression, end) = placeholder(self.text, self.at, &self.options.bounds)?;
                self.place(Place::Value(expression));
                self.at = end;
            } else if rest.starts_with("--") {
                self.copy(rest.find('\n').unwrap_or(rest.len()));
            } else if rest.starts_with("/*") {
                self.copy(rest.find("*/").map_or(rest.len(), |end| end + 2));
            } else {
                self.one(rest)?;
            }
        }
        Ok(())
    }

    fn one(&mut self, rest: &str) -> Result<(), Error> {
        let is_question = self.placeholders == Placeholders::Question;
        let Some(c) = rest.chars().next() else {
            return Ok(());
        };
        match c {
            '\'' => self.quoted('\''),
            '"' if is_question => self.quoted('"'),
            '"' | '`' => self.name(c),
            '?' if is_question => Err(self.own_placeholder(1)),
            '$' if !is_question && rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                Err(self.own_placeholder(2))
            }
            c => {
                self.copy(c.len_utf8());
                Ok(())
            }
        }
    }

    fn own_placeholder(&self, length: usize) -> Error {
        let error = Error::at(
            self.text,
            Span::new(self.at, self.at + length),
            "a place for a value without a value",
        );
        error.expected("a placeholder with a name, such as ${payload.x}")
    }

    fn copy(&mut self, bytes: usize) {
        self.statement
            .push_str(&self.text[self.at..self.at + bytes]);
        self.at += bytes;
    }

    fn place(&mut self, place: Place) {
        self.places.push(place);
        match self.placeholders {
            Placeholders::Question => self.statement.push('?'),
            Placeholders::Numbered => {
                self.statement.push('$');
                self.statement.push_str(&self.places.len().to_string());
            }
        }
    }

    /// The name of a table or a column: as it is, and from nowhere else.
    fn name(&mut self, quote: char) -> Result<(), Error> {
        let rest = &self.text[self.at..];
        let length = rest[1..].find(quote).map_or(rest.len(), |end| end + 2);
        if let Some(at) = rest[..length].find("${") {
            let start = self.at + at;
            let error = Error::at(
                self.text,
                Span::new(start, start + 2),
                "a name of a table or column cannot come from a message",
            );
            return Err(error.expected("a name as it is; placeholders are for values"));
        }
        self.copy(length);
        Ok(())
    }

    /// Text in quotes. With placeholders in it, all of it is a value.
    fn quoted(&mut self, quote: char) -> Result<(), Error> {
        let start = self.at;
        let escapes = self.placeholders == Placeholders::Question;
        self.at += 1;
        let mut pieces = Vec::new();
        let mut plain = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(c) = rest.chars().next() else {
                let error = Error::at(
                    self.text,
                    Span::new(start, start + 1),
                    "this text does not end",
                );
                return Err(error.expected(format!("a closing {quote}")));
            };
            if rest.starts_with("$${") {
                plain.push_str("${");
                self.at += 3;
            } else if rest.starts_with("${") {
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                let (expression, end) = placeholder(self.text, self.at, &self.options.bounds)?;
                pieces.push(Piece::Value(expression));
                self.at = end;
            } else if c == quote && rest[1..].starts_with(quote) {
                plain.push(quote);
                self.at += 2;
            } else if c == quote {
                self.at += 1;
                break;
            } else if c == '\\' && escapes {
                let escaped = rest[1..].chars().next().unwrap_or('\\');
                plain.push(match escaped {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    '0' => '\0',
                    other => other,
                });
                self.at += 1 + escaped.len_utf8().min(rest.len() - 1);
            } else {
                plain.push(c);
                self.at += c.len_utf8();
            }
        }
        if pieces.is_empty() {
            // `$${` was undone, so that it is not copied from the text as it is.
            let end = self.at;
            let literal = self.text[start..end].replace("$${", "${");
            self.statement.push_str(&literal);
            return Ok(());
        }
        if plain.is_empty() && pieces.len() == 1 {
            if let Some(Piece::Value(expression)) = pieces.pop() {
                self.place(Place::Value(expression));
            }
            return Ok(());
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        self.place(Place::Joined(pieces));
        Ok(())
    }
}
