//! Lexer: splits the text of a statement into tokens.

use super::token::{Symbol, Token, TokenKind};
use crate::statement_error::{Span, StatementError};

/// Reads all tokens from `start`; the last one is `TokenKind::End`.
pub(crate) fn tokenize(sql: &str, start: usize) -> Result<Vec<Token>, StatementError> {
    let mut lexer = Lexer { sql, at: start };
    let mut out = Vec::with_capacity(sql.len() / 5 + 4);
    loop {
        let token = lexer.next()?;
        let ended = token.kind == TokenKind::End;
        out.push(token);
        if ended {
            return Ok(out);
        }
    }
}

struct Lexer<'s> {
    sql: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    fn peek(&self, ahead: usize) -> u8 {
        self.sql
            .as_bytes()
            .get(self.at + ahead)
            .copied()
            .unwrap_or(0)
    }

    fn rest(&self) -> &'s str {
        &self.sql[self.at..]
    }

    fn next(&mut self) -> Result<Token, StatementError> {
        self.skip_blanks_and_comments()?;
        let start = self.at;
        let Some(first) = self.rest().chars().next() else {
            return Ok(self.token(start, TokenKind::End));
        };
        match first {
            '\'' | '"' => self.text(first as u8),
            '`' => self.quoted_word(),
            '0'..='9' => self.number(),
            c if is_word_start(c) => {
                self.at += self
                    .rest()
                    .find(|c| !is_word_part(c))
                    .unwrap_or(self.rest().len());
                Ok(self.token(start, TokenKind::Word))
            }
            _ => self.symbol(),
        }
    }

    fn token(&self, start: usize, kind: TokenKind) -> Token {
        Token {
            kind,
            span: Span::new(start, self.at),
        }
    }

    fn skip_blanks_and_comments(&mut self) -> Result<(), StatementError> {
        loop {
            let trimmed = self
                .rest()
                .trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
            self.at = self.sql.len() - trimmed.len();
            // Both products' manuals use `#` for comments.
            if trimmed.starts_with("--") || trimmed.starts_with('#') {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("/*") {
                match trimmed.find("*/") {
                    Some(end) => self.at += end + 2,
                    None => {
                        let span = Span::new(self.at, self.at + 2);
                        return Err(StatementError::at(
                            self.sql,
                            span,
                            "this comment does not end",
                        )
                        .with_expected("`*/`"));
                    }
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Parses quoted text. A doubled quote stands for one quote. Backslash escapes are those of JSON; before
    /// any other character the backslash stands for itself, so that regular expressions need no extra
    /// escaping.
    fn text(&mut self, quote: u8) -> Result<Token, StatementError> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let Some(c) = self.rest().chars().next() else {
                let span = Span::new(start, start + 1);
                return Err(StatementError::at(self.sql, span, "this text does not end")
                    .with_expected(format!("a closing {}", quote as char)));
            };
            self.at += c.len_utf8();
            if c == quote as char {
                if self.peek(0) != quote {
                    return Ok(self.token(start, TokenKind::Text(out.into())));
                }
                self.at += 1;
                out.push(c);
            } else if c == '\\' {
                self.escape(&mut out);
            } else {
                out.push(c);
            }
        }
    }

    fn escape(&mut self, out: &mut String) {
        let plain = match self.peek(0) {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            quoted @ (b'\\' | b'\'' | b'"') => quoted as char,
            b'u' => {
                let hex = self.sql.get(self.at + 1..self.at + 5);
                let code = hex.filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
                match code
                    .and_then(|hex| u32::from_str_radix(hex, 16).ok())
                    .and_then(char::from_u32)
                {
                    Some(c) => {
                        self.at += 5;
                        out.push(c);
                    }
                    None => out.push('\\'),
                }
                return;
            }
            _ => {
                out.push('\\');
                return;
            }
        };
        self.at += 1;
        out.push(plain);
    }

    /// A name in backquotes, as in MySQL. The span excludes the quotes.
    fn quoted_word(&mut self) -> Result<Token, StatementError> {
        let start = self.at;
        let Some(length) = self.rest()[1..].find('`') else {
            let span = Span::new(start, start + 1);
            return Err(StatementError::at(self.sql, span, "this name does not end")
                .with_expected("a closing `"));
        };
        self.at += length + 2;
        Ok(Token {
            kind: TokenKind::Word,
            span: Span::new(start + 1, self.at - 1),
        })
    }

    fn number(&mut self) -> Result<Token, StatementError> {
        let start = self.at;
        self.digits();
        let mut is_float = false;
        // `1..5` is a range.
        if self.peek(0) == b'.' && self.peek(1).is_ascii_digit() {
            is_float = true;
            self.at += 1;
            self.digits();
        }
        let exponent = if matches!(self.peek(1), b'+' | b'-') {
            2
        } else {
            1
        };
        if matches!(self.peek(0), b'e' | b'E') && self.peek(exponent).is_ascii_digit() {
            is_float = true;
            self.at += exponent;
            self.digits();
        }
        let text = &self.sql[start..self.at];
        let kind = if is_float {
            text.parse()
                .ok()
                .filter(|value: &f64| value.is_finite())
                .map(TokenKind::Float)
        } else {
            text.parse().ok().map(TokenKind::Int)
        };
        match kind {
            Some(kind) => Ok(self.token(start, kind)),
            None => {
                let span = Span::new(start, self.at);
                Err(
                    StatementError::at(self.sql, span, "this number is too large")
                        .with_expected("at most 9223372036854775807"),
                )
            }
        }
    }

    fn digits(&mut self) {
        while self.peek(0).is_ascii_digit() {
            self.at += 1;
        }
    }

    fn symbol(&mut self) -> Result<Token, StatementError> {
        let start = self.at;
        let (symbol, length) = match (self.peek(0), self.peek(1)) {
            (b'=', b'~') | (b'~', b'=') => (Symbol::Match, 2),
            (b'=', b'=') => (Symbol::Equal, 2),
            (b'!', b'=') | (b'<', b'>') => (Symbol::NotEqual, 2),
            (b'<', b'=') => (Symbol::LessEqual, 2),
            (b'>', b'=') => (Symbol::GreaterEqual, 2),
            (b'|', b'|') => (Symbol::BarBar, 2),
            (b'.', b'.') => (Symbol::DotDot, 2),
            (b'=', _) => (Symbol::Equal, 1),
            (b'<', _) => (Symbol::Less, 1),
            (b'>', _) => (Symbol::Greater, 1),
            (b'(', _) => (Symbol::LeftParen, 1),
            (b')', _) => (Symbol::RightParen, 1),
            (b'[', _) => (Symbol::LeftBracket, 1),
            (b']', _) => (Symbol::RightBracket, 1),
            (b'{', _) => (Symbol::LeftBrace, 1),
            (b'}', _) => (Symbol::RightBrace, 1),
            (b',', _) => (Symbol::Comma, 1),
            (b':', _) => (Symbol::Colon, 1),
            (b';', _) => (Symbol::Semicolon, 1),
            (b'.', _) => (Symbol::Dot, 1),
            (b'+', _) => (Symbol::Plus, 1),
            (b'-', _) => (Symbol::Minus, 1),
            (b'*', _) => (Symbol::Star, 1),
            (b'/', _) => (Symbol::Slash, 1),
            (b'%', _) => (Symbol::Percent, 1),
            _ => return Err(self.unexpected_character_error(start)),
        };
        self.at += length;
        Ok(self.token(start, TokenKind::Symbol(symbol)))
    }

    fn unexpected_character_error(&self, start: usize) -> StatementError {
        let c = self.rest().chars().next().unwrap_or(' ');
        let error = StatementError::at(
            self.sql,
            Span::new(start, start + c.len_utf8()),
            format!("`{}` has no meaning here", c.escape_debug()),
        );
        match c {
            '‘' | '’' | '“' | '”' => error.with_expected("straight quotes, ' or \""),
            '，' => error.with_expected("`,`"),
            '（' | '）' => error.with_expected("`(` or `)`"),
            '!' => error.with_expected("`!=` or `not`"),
            '&' => error.with_expected("`and`"),
            '|' => error.with_expected("`||` to join text, `or` between conditions"),
            _ => error,
        }
    }
}

fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_' || c == '$'
}

fn is_word_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '@')
}
