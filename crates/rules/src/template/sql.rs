//! SQL templates: a statement to prepare, and the values to bind to it. A value never becomes part of the
//! statement.

use super::{PlaceholderExpression, TemplateCompiler, TemplateProgram, parse_placeholder};
use crate::compile_options::CompileOptions;
use crate::evaluation_error::EvaluationError;
use crate::event_view::EventView;
use crate::plan::OpId;
use crate::rule::{RuleOutput, RuleState};
use crate::statement_error::{Span, StatementError};
use crate::value::Value;

/// How the database marks parameters and reads quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceholderStyle {
    /// `?`; text in single or double quotes with backslash escapes (MySQL, MariaDB).
    Question,
    /// `$1`, `$2`, ..; text in single quotes only, without backslash escapes (PostgreSQL).
    Numbered,
}

/// A compiled statement with placeholders.
pub struct SqlTemplate {
    statement: Box<str>,
    values: Box<[BoundValue]>,
    program: TemplateProgram,
}

/// The value bound to one parameter.
enum BoundValue {
    /// `${x}` and `'${x}'`: the value with its type.
    Value(OpId),
    /// `'a-${x}'`: concatenated text.
    Joined(Box<[JoinedTextPart]>),
}

enum JoinedTextPart {
    Text(Box<str>),
    Value(OpId),
}

/// A parameter as parsed.
enum ValuePlace {
    Value(PlaceholderExpression),
    Joined(Vec<SqlPiece>),
}

enum SqlPiece {
    Text(String),
    Value(PlaceholderExpression),
}

impl SqlTemplate {
    /// Compiles a template. Quotes around a placeholder do not become part of the statement.
    ///
    /// # Errors
    /// If a placeholder is not closed, is not an expression, or stands for the name of a table or a column.
    pub fn compile(
        text: &str,
        placeholders: PlaceholderStyle,
        options: &CompileOptions,
    ) -> Result<Self, StatementError> {
        let mut scanner = SqlScanner {
            text,
            at: 0,
            placeholders,
            options,
            statement: String::with_capacity(text.len()),
            places: Vec::new(),
        };
        if text.len() > options.limits.max_sql_bytes {
            let span = Span::new(options.limits.max_sql_bytes, options.limits.max_sql_bytes);
            let error = StatementError::at(
                text,
                span,
                format!("the statement has {} bytes", text.len()),
            );
            return Err(error.with_expected(format!(
                "at most {} (max_sql_bytes)",
                options.limits.max_sql_bytes
            )));
        }
        scanner.scan()?;
        let SqlScanner {
            statement, places, ..
        } = scanner;
        let mut compiler = TemplateCompiler::new(text, options);
        let mut values = Vec::with_capacity(places.len());
        for place in &places {
            values.push(match place {
                ValuePlace::Value(expression) => BoundValue::Value(compiler.node(expression)?),
                ValuePlace::Joined(pieces) => {
                    let mut parts = Vec::with_capacity(pieces.len());
                    for piece in pieces {
                        parts.push(match piece {
                            SqlPiece::Text(text) => JoinedTextPart::Text(text.as_str().into()),
                            SqlPiece::Value(expression) => {
                                JoinedTextPart::Value(compiler.node(expression)?)
                            }
                        });
                    }
                    BoundValue::Joined(parts.into())
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

    /// Number of values to bind.
    #[must_use]
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// The values to bind, in the order of their parameters. A value missing in the output is null.
    ///
    /// # Errors
    /// If an expression fails, or the values become too long.
    pub fn bind<'a>(
        &'a self,
        output: &RuleOutput<'a>,
        view: &EventView<'a>,
        state: &mut RuleState,
    ) -> Result<&'a [Value<'a>], EvaluationError> {
        self.program.evaluate(output, view, state, |evaluator| {
            let values = view
                .arena()
                .alloc_slice_fill_copy(self.values.len(), Value::Undefined);
            let mut bytes = 0;
            for (value, bound) in values.iter_mut().zip(&self.values) {
                *value = match bound {
                    BoundValue::Value(node) => evaluator.evaluate(*node)?,
                    BoundValue::Joined(parts) => {
                        let mut text = bumpalo::collections::String::new_in(view.arena());
                        for part in parts {
                            match part {
                                JoinedTextPart::Text(part) => text.push_str(part),
                                JoinedTextPart::Value(node) => {
                                    text.push_str(evaluator.evaluate(*node)?.text(view.arena()))
                                }
                            }
                            self.program.check_output_size(text.len())?;
                        }
                        Value::Str(text.into_bump_str())
                    }
                };
                bytes += value.as_bytes().map_or(8, <[u8]>::len);
                self.program.check_output_size(bytes)?;
            }
            Ok(&*values)
        })
    }
}

struct SqlScanner<'s> {
    text: &'s str,
    at: usize,
    placeholders: PlaceholderStyle,
    options: &'s CompileOptions,
    statement: String,
    places: Vec<ValuePlace>,
}

impl SqlScanner<'_> {
    fn scan(&mut self) -> Result<(), StatementError> {
        while self.at < self.text.len() {
            let rest = &self.text[self.at..];
            if rest.starts_with("$${") {
                self.statement.push_str("${");
                self.at += 3;
            } else if rest.starts_with("${") {
                let (expression, end) =
                    parse_placeholder(self.text, self.at, &self.options.limits)?;
                self.add_place(ValuePlace::Value(expression));
                self.at = end;
            } else if rest.starts_with("--") {
                self.copy_bytes(rest.find('\n').unwrap_or(rest.len()));
            } else if rest.starts_with("/*") {
                self.copy_bytes(rest.find("*/").map_or(rest.len(), |end| end + 2));
            } else {
                self.scan_one(rest)?;
            }
        }
        Ok(())
    }

    fn scan_one(&mut self, rest: &str) -> Result<(), StatementError> {
        let is_question = self.placeholders == PlaceholderStyle::Question;
        let Some(c) = rest.chars().next() else {
            return Ok(());
        };
        match c {
            '\'' => self.scan_quoted('\''),
            '"' if is_question => self.scan_quoted('"'),
            '"' | '`' => self.scan_name(c),
            '?' if is_question => Err(self.own_placeholder_error(1)),
            '$' if !is_question && rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                Err(self.own_placeholder_error(2))
            }
            c => {
                self.copy_bytes(c.len_utf8());
                Ok(())
            }
        }
    }

    fn own_placeholder_error(&self, length: usize) -> StatementError {
        let error = StatementError::at(
            self.text,
            Span::new(self.at, self.at + length),
            "a parameter without a value",
        );
        error.with_expected("a placeholder with a name, such as ${payload.x}")
    }

    fn copy_bytes(&mut self, bytes: usize) {
        self.statement
            .push_str(&self.text[self.at..self.at + bytes]);
        self.at += bytes;
    }

    fn add_place(&mut self, place: ValuePlace) {
        self.places.push(place);
        match self.placeholders {
            PlaceholderStyle::Question => self.statement.push('?'),
            PlaceholderStyle::Numbered => {
                self.statement.push('$');
                self.statement.push_str(&self.places.len().to_string());
            }
        }
    }

    /// Copies the quoted name of a table or a column, which must not contain placeholders.
    fn scan_name(&mut self, quote: char) -> Result<(), StatementError> {
        let rest = &self.text[self.at..];
        let length = rest[1..].find(quote).map_or(rest.len(), |end| end + 2);
        if let Some(at) = rest[..length].find("${") {
            let start = self.at + at;
            let error = StatementError::at(
                self.text,
                Span::new(start, start + 2),
                "the name of a table or column cannot come from a message",
            );
            return Err(error.with_expected("a literal name; placeholders are for values"));
        }
        self.copy_bytes(length);
        Ok(())
    }

    /// Scans quoted text. If it contains placeholders, all of it becomes one value.
    fn scan_quoted(&mut self, quote: char) -> Result<(), StatementError> {
        let start = self.at;
        let escapes = self.placeholders == PlaceholderStyle::Question;
        self.at += 1;
        let mut pieces = Vec::new();
        let mut plain = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(c) = rest.chars().next() else {
                let error = StatementError::at(
                    self.text,
                    Span::new(start, start + 1),
                    "this text does not end",
                );
                return Err(error.with_expected(format!("a closing {quote}")));
            };
            if rest.starts_with("$${") {
                plain.push_str("${");
                self.at += 3;
            } else if rest.starts_with("${") {
                if !plain.is_empty() {
                    pieces.push(SqlPiece::Text(std::mem::take(&mut plain)));
                }
                let (expression, end) =
                    parse_placeholder(self.text, self.at, &self.options.limits)?;
                pieces.push(SqlPiece::Value(expression));
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
            // An unescaped `$${` was written already, so it must not be copied from the text again.
            let end = self.at;
            let literal = self.text[start..end].replace("$${", "${");
            self.statement.push_str(&literal);
            return Ok(());
        }
        if plain.is_empty() && pieces.len() == 1 {
            if let Some(SqlPiece::Value(expression)) = pieces.pop() {
                self.add_place(ValuePlace::Value(expression));
            }
            return Ok(());
        }
        if !plain.is_empty() {
            pieces.push(SqlPiece::Text(plain));
        }
        self.add_place(ValuePlace::Joined(pieces));
        Ok(())
    }
}
