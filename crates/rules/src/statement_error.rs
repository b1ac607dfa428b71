//! Errors of a statement with their positions.

use std::fmt;

/// A range of the statement, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        // The length limit of statements is far below 4 GiB.
        Self {
            start: start as u32,
            end: end as u32,
        }
    }

    pub(crate) fn to_end_of(self, end: Self) -> Self {
        Self {
            start: self.start,
            end: end.end.max(self.start),
        }
    }
}

/// The error of an invalid statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementError {
    /// Line number, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The text at this position; empty at the end of the statement.
    pub text: Box<str>,
    /// Description of the error.
    pub message: Box<str>,
    /// What is allowed at this position instead.
    pub expected: Option<Box<str>>,
    /// The name that may have been meant.
    pub suggestion: Option<Box<str>>,
    /// The line of the statement, shortened for display.
    source_line: Box<str>,
    /// Length of the marked part in characters, and its offset in the line.
    mark: (u32, u32),
}

const MAX_SHOWN_CHARS: usize = 100;
const MAX_OFFENDING_CHARS: usize = 60;

impl StatementError {
    pub(crate) fn at(sql: &str, span: Span, message: impl Into<Box<str>>) -> Self {
        let start = floor_char_boundary(sql, span.start as usize);
        let end = floor_char_boundary(sql, span.end as usize).max(start);
        let line_start = sql[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = sql[start..].find('\n').map_or(sql.len(), |at| start + at);
        let column = sql[line_start..start].chars().count();
        // A long line is shown from shortly before the position.
        let is_long = sql[line_start..line_end].chars().count() > MAX_SHOWN_CHARS;
        let hidden = if is_long {
            column.saturating_sub(MAX_SHOWN_CHARS / 2)
        } else {
            0
        };
        let shown: String = sql[line_start..line_end]
            .trim_end()
            .chars()
            .skip(hidden)
            .take(MAX_SHOWN_CHARS)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let marked = sql[start..end.min(line_end)].chars().count().clamp(
            1,
            (MAX_SHOWN_CHARS + 1).saturating_sub(column - hidden).max(1),
        );
        Self {
            line: sql[..start].bytes().filter(|&b| b == b'\n').count() as u32 + 1,
            column: column as u32 + 1,
            text: truncate_text(&sql[start..end]),
            message: message.into(),
            expected: None,
            suggestion: None,
            source_line: shown.into(),
            mark: (marked as u32, (column - hidden) as u32),
        }
    }

    pub(crate) fn with_expected(mut self, what: impl Into<Box<str>>) -> Self {
        self.expected = Some(what.into());
        self
    }

    pub(crate) fn with_suggestion(mut self, name: Option<impl Into<Box<str>>>) -> Self {
        self.suggestion = name.map(Into::into);
        self
    }

    /// Several lines for a terminal: the error, the line of the statement, and a marker under the position.
    pub fn report(&self) -> String {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        let blank = " ".repeat(self.mark.1 as usize);
        let mark = "^".repeat(self.mark.0 as usize);
        format!(
            "{self}\n{gutter} |\n{number} | {}\n{gutter} | {blank}{mark}",
            self.source_line
        )
    }
}

impl fmt::Display for StatementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}",
            self.line, self.column, self.message
        )?;
        if let Some(expected) = &self.expected {
            write!(f, "; expected {expected}")?;
        }
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; did you mean {suggestion}?")?;
        }
        Ok(())
    }
}

impl std::error::Error for StatementError {}

fn truncate_text(text: &str) -> Box<str> {
    if text.chars().count() <= MAX_OFFENDING_CHARS {
        return text.into();
    }
    let mut cut: String = text.chars().take(MAX_OFFENDING_CHARS - 3).collect();
    cut.push_str("...");
    cut.into()
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
