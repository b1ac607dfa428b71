//! Parser: turns the text of a statement into its syntax tree.

pub(crate) mod ast;
mod clause;
mod expr;
mod lexer;
mod token;

use crate::compile_options::StatementLimits;
use crate::statement_error::{Span, StatementError};
use token::{Symbol, Token, TokenKind};

pub(crate) use clause::{WINDOWS, default_alias};

/// Parses a whole statement.
pub(crate) fn parse(sql: &str, bounds: &StatementLimits) -> Result<ast::Statement, StatementError> {
    let mut parser = Parser::new(sql, 0, bounds)?;
    let statement = parser.parse_statement()?;
    parser.expect_end()?;
    Ok(statement)
}

/// Parses one expression from `start` to the end of the text, as in a template placeholder.
pub(crate) fn parse_expression(
    text: &str,
    start: usize,
    bounds: &StatementLimits,
) -> Result<ast::Expr, StatementError> {
    let mut parser = Parser::new(text, start, bounds)?;
    let expr = parser.parse_expr()?;
    parser.expect_end()?;
    Ok(expr)
}

struct Parser<'s> {
    sql: &'s str,
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    nodes: usize,
    bounds: &'s StatementLimits,
}

impl<'s> Parser<'s> {
    fn new(
        sql: &'s str,
        start: usize,
        bounds: &'s StatementLimits,
    ) -> Result<Self, StatementError> {
        bounds.check_length("statement", sql)?;
        Ok(Self {
            sql,
            tokens: lexer::tokenize(sql, start)?,
            at: 0,
            depth: 0,
            nodes: 0,
            bounds,
        })
    }

    /// Replaces the remaining tokens by those of the text from `start`.
    fn resume_at(&mut self, start: usize) -> Result<(), StatementError> {
        // The token ends at the position that was read last.
        self.tokens.truncate(self.at);
        self.tokens.push(Token {
            kind: TokenKind::Word,
            span: Span::new(start, start),
        });
        self.at += 1;
        self.tokens.extend(lexer::tokenize(self.sql, start)?);
        Ok(())
    }

    fn peek(&self) -> &Token {
        // The last token is `End`; the parser never moves past it.
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn peek_at(&self, ahead: usize) -> &Token {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)]
    }

    fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        if token.kind != TokenKind::End {
            self.at += 1;
        }
        token
    }

    fn text(&self, span: Span) -> &'s str {
        &self.sql[span.start as usize..span.end as usize]
    }

    /// The end of the last token read.
    fn last_span(&self) -> Span {
        self.tokens[self.at.saturating_sub(1)].span
    }

    fn at_symbol(&self, symbol: Symbol) -> bool {
        self.peek().kind == TokenKind::Symbol(symbol)
    }

    fn accept_symbol(&mut self, symbol: Symbol) -> bool {
        let found = self.at_symbol(symbol);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect_symbol(&mut self, symbol: Symbol, expected: &str) -> Result<Token, StatementError> {
        if self.at_symbol(symbol) {
            return Ok(self.advance());
        }
        Err(self.unexpected_error(expected))
    }

    /// Whether the next token is this word, in any case and not in backquotes.
    fn at_word(&self, word: &str) -> bool {
        self.is_word(self.peek(), word)
    }

    fn is_word(&self, token: &Token, word: &str) -> bool {
        token.kind == TokenKind::Word
            && !self.is_quoted(token)
            && self.text(token.span).eq_ignore_ascii_case(word)
    }

    fn is_quoted(&self, token: &Token) -> bool {
        token.span.start > 0 && self.sql.as_bytes()[token.span.start as usize - 1] == b'`'
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.at += 1;
        }
        found
    }

    fn error(&self, span: Span, message: impl Into<Box<str>>) -> StatementError {
        StatementError::at(self.sql, span, message)
    }

    fn unexpected_error(&self, expected: &str) -> StatementError {
        let token = self.peek();
        let message = match token.kind {
            TokenKind::End => "the statement ends too early".to_owned(),
            _ => format!("unexpected `{}`", truncate_text(self.text(token.span))),
        };
        self.error(token.span, message).with_expected(expected)
    }

    fn expect_end(&mut self) -> Result<(), StatementError> {
        while self.accept_symbol(Symbol::Semicolon) {}
        match self.peek().kind {
            TokenKind::End => Ok(()),
            _ => Err(self.unexpected_error("the end of the statement")),
        }
    }

    fn count_node(&mut self, span: Span) -> Result<(), StatementError> {
        self.nodes += 1;
        if self.nodes > self.bounds.max_nodes {
            let message = "the statement has too many parts";
            return Err(self
                .error(span, message)
                .with_expected(format!("at most {} (max_nodes)", self.bounds.max_nodes)));
        }
        Ok(())
    }

    fn count_items(&self, count: usize, span: Span) -> Result<(), StatementError> {
        if count > self.bounds.max_items {
            let message = "the list is too long";
            return Err(self
                .error(span, message)
                .with_expected(format!("at most {} (max_items)", self.bounds.max_items)));
        }
        Ok(())
    }
}

fn truncate_text(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    if text.chars().count() <= MAX_CHARS {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(MAX_CHARS).collect();
    cut.push_str("...");
    cut
}
