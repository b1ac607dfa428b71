//! Errors of the parser.

/// A syntax error and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at byte {offset}: {expected}")]
pub struct JsonError {
    pub offset: usize,
    pub expected: &'static str,
}

pub(crate) type JsonResult<T> = Result<T, JsonError>;
