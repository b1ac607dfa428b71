//! Text of a statement into its syntax tree.

pub(crate) mod ast;
mod clause;
mod expr;
mod lexer;
mod token;

use crate::error::{Error, Span};
use crate::options::Bounds;
use token::{Kind, Symbol, Token};

pub(crate) use clause::{WINDOWS, natural_alias};

/// Reads a whole statement.
pub(crate) fn parse(sql: &str, bounds: &Bounds) -> Result<ast::Statement, Error> {
    let mut parser = Parser::new(sql, 0, bounds)?;
    let statement = parser.statement()?;
    parser.end()?;
    Ok(statement)
}

/// Reads a single expression from `start` to the end of the text, as in the placeholder of a template.
pub(crate) fn parse_expression(
    text: &str,
    start: usize,
    bounds: &Bounds,
) -> Result<ast::Expr, Error> {
    let mut parser = Parser::new(text, start, bounds)?;
    let expr = parser.expression()?;
    parser.end()?;
    Ok(expr)
}

struct Parser<'s> {
    sql: &'s str,
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    nodes: usize,
    bounds: &'s Bounds,
}

impl<'s> Parser<'s> {
    fn new(sql: &'s str, start: usize, bounds: &'s Bounds) -> Result<Self, Error> {
        if sql.len() > bounds.max_sql_bytes {
            let span = Span::new(bounds.max_sql_bytes, bounds.max_sql_bytes);
            let message = format!("the statement has {} bytes", sql.len());
            return Err(Error::at(sql, span, message)
                .expected(format!("at most {} (max_sql_bytes)", bounds.max_sql_bytes)));
        }
        Ok(Self {
            sql,
            tokens: lexer::tokens(sql, start)?,
            at: 0,
            depth: 0,
            nodes: 0,
            bounds,
        })
    }

    /// Goes on with what the lexer makes of the text from `start` on.
    fn resume_at(&mut self, start: usize) -> Result<(), Error> {
        // Its end is where the last token was read.
        self.tokens.truncate(self.at);
        self.tokens.push(Token {
            kind: Kind::Word,
            span: Span::new(start, start),
        });
        self.at += 1;
        self.tokens.extend(lexer::tokens(self.sql, start)?);
        Ok(())
    }

    fn peek(&self) -> &Token {
        // The last token is the end, which is never passed.
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn peek_at(&self, ahead: usize) -> &Token {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)]
    }

    fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        if token.kind != Kind::End {
            self.at += 1;
        }
        token
    }

    fn text(&self, span: Span) -> &'s str {
        &self.sql[span.start as usize..span.end as usize]
    }

    /// The end of what was read last.
    fn last_span(&self) -> Span {
        self.tokens[self.at.saturating_sub(1)].span
    }

    fn at_symbol(&self, symbol: Symbol) -> bool {
        self.peek().kind == Kind::Symbol(symbol)
    }

    fn eat_symbol(&mut self, symbol: Symbol) -> bool {
        let found = self.at_symbol(symbol);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect_symbol(&mut self, symbol: Symbol, expected: &str) -> Result<Token, Error> {
        if self.at_symbol(symbol) {
            return Ok(self.advance());
        }
        Err(self.unexpected(expected))
    }

    /// Whether the next token is this word, in any case and not between backquotes.
    fn at_word(&self, word: &str) -> bool {
        self.is_word(self.peek(), word)
    }

    fn is_word(&self, token: &Token, word: &str) -> bool {
        token.kind == Kind::Word
            && !self.is_quoted(token)
            && self.text(token.span).eq_ignore_ascii_case(word)
    }

    fn is_quoted(&self, token: &Token) -> bool {
        token.span.start > 0 && self.sql.as_bytes()[token.span.start as usize - 1] == b'`'
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.at += 1;
        }
        found
    }

    fn error(&self, span: Span, message: impl Into<Box<str>>) -> Error {
        Error::at(self.sql, span, message)
    }

    fn unexpected(&self, expected: &str) -> Error {
        let token = self.peek();
        let message = match token.kind {
            Kind::End => "the statement ends too early".to_owned(),
            _ => format!("unexpected `{}`", shown(self.text(token.span))),
        };
        self.error(token.span, message).expected(expected)
    }

    fn end(&mut self) -> Result<(), Error> {
        while self.eat_symbol(Symbol::Semicolon) {}
        match self.peek().kind {
            Kind::End => Ok(()),
            _ => Err(self.unexpected("the end of the statement")),
        }
    }

    fn count_node(&mut self, span: Span) -> Result<(), Error> {
        self.nodes += 1;
        if self.nodes > self.bounds.max_nodes {
            let message = "the statement has too many parts";
            return Err(self
                .error(span, message)
                .expected(format!("at most {} (max_nodes)", self.bounds.max_nodes)));
        }
        Ok(())
    }

    fn count_items(&self, count: usize, span: Span) -> Result<(), Error> {
        if count > self.bounds.max_items {
            let message = "the list is too long";
            return Err(self
                .error(span, message)
                .expected(format!("at most {} (max_items)", self.bounds.max_items)));
        }
        Ok(())
    }
}

fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    if text.chars().count() <= MAX_CHARS {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(MAX_CHARS).collect();
    cut.push_str("...");
    cut
}
