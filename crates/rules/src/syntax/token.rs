//! Tokens of a statement.

use crate::statement_error::Span;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TokenKind {
    /// A word as written; whether it is a keyword depends on its position.
    Word,
    /// The text without quotes and with escapes resolved.
    Text(Box<str>),
    Int(i64),
    Float(f64),
    Symbol(Symbol),
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) span: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Symbol {
    LeftParen,
    RightParen,
    LeftBracket,
    RightBracket,
    LeftBrace,
    RightBrace,
    Comma,
    Colon,
    Semicolon,
    Dot,
    DotDot,
    Plus,
    Minus,
    Star,
    Slash,
    Percent,
    BarBar,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Match,
}
