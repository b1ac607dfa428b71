//! The arguments of one call, with the conversions that functions need and their errors.

use crate::evaluation_error::EvaluationError;
use crate::value::{Arena, Number, Value};

/// Counted from 0 here, from 1 in errors.
#[derive(Clone, Copy)]
pub struct Args<'v, 'a> {
    pub(crate) function: &'static str,
    pub(crate) values: &'v [Value<'a>],
}

impl<'a> Args<'_, 'a> {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The argument; null if it is missing.
    pub(super) fn get(&self, at: usize) -> Value<'a> {
        self.values.get(at).copied().unwrap_or(Value::Undefined)
    }

    pub(super) fn wrong_type<T>(
        &self,
        at: usize,
        expected: &'static str,
    ) -> Result<T, EvaluationError> {
        Err(EvaluationError::WrongType {
            function: self.function,
            argument: at + 1,
            expected,
            found: self.get(at).type_name(),
        })
    }

    pub(super) fn out_of_range<T>(
        &self,
        at: usize,
        expected: &'static str,
    ) -> Result<T, EvaluationError> {
        Err(EvaluationError::OutOfRange {
            function: self.function,
            argument: at + 1,
            expected,
        })
    }

    pub(super) fn invalid<T>(&self, why: impl Into<Box<str>>) -> Result<T, EvaluationError> {
        Err(EvaluationError::InvalidArgument {
            function: self.function,
            why: why.into(),
        })
    }

    /// An error for work beyond the limits of one evaluation.
    pub(super) fn limit_exceeded<T>(&self, why: impl Into<Box<str>>) -> Result<T, EvaluationError> {
        Err(EvaluationError::LimitExceeded {
            function: self.function,
            why: why.into(),
        })
    }

    pub(super) fn overflow(&self) -> EvaluationError {
        EvaluationError::Overflow {
            function: self.function,
        }
    }

    /// The argument as text. Numbers, booleans, arrays and maps are converted; bytes must be UTF-8.
    pub(super) fn text(&self, at: usize, arena: &'a Arena) -> Result<&'a str, EvaluationError> {
        match self.get(at) {
            Value::Str(text) => Ok(text),
            Value::Undefined | Value::Null => self.wrong_type(at, "text"),
            Value::Bytes(bytes) => match str::from_utf8(bytes) {
                Ok(text) => Ok(text),
                Err(_) => self.wrong_type(at, "text (these bytes are not UTF-8)"),
            },
            other => Ok(other.text(arena)),
        }
    }

    /// The argument as bytes, or the bytes of its text.
    pub(super) fn bytes(&self, at: usize, arena: &'a Arena) -> Result<&'a [u8], EvaluationError> {
        match self.get(at) {
            Value::Bytes(bytes) => Ok(bytes),
            _ => self.text(at, arena).map(str::as_bytes),
        }
    }

    pub(super) fn number(&self, at: usize) -> Result<Number, EvaluationError> {
        match self.get(at).as_number() {
            Some(number) => Ok(number),
            None => self.wrong_type(at, "a number"),
        }
    }

    pub(super) fn float(&self, at: usize) -> Result<f64, EvaluationError> {
        self.number(at).map(Number::as_f64)
    }

    /// The argument as an integer; also accepts a float without a fraction and the text of an integer.
    pub(super) fn int(&self, at: usize) -> Result<i64, EvaluationError> {
        match self.get(at).as_i64() {
            Some(number) => Ok(number),
            None => self.wrong_type(at, "an integer"),
        }
    }

    /// A non-negative integer.
    pub(super) fn size(&self, at: usize) -> Result<usize, EvaluationError> {
        match usize::try_from(self.int(at)?) {
            Ok(size) => Ok(size),
            Err(_) => self.out_of_range(at, "0 or more"),
        }
    }

    /// An array, or the JSON text of one.
    pub(super) fn array(
        &self,
        at: usize,
        arena: &'a Arena,
    ) -> Result<&'a [Value<'a>], EvaluationError> {
        match to_container(self.get(at), arena) {
            Value::Array(items) => Ok(items),
            _ => self.wrong_type(at, "an array"),
        }
    }

    /// A map, or the JSON text of one.
    pub(super) fn map(
        &self,
        at: usize,
        arena: &'a Arena,
    ) -> Result<&'a [(&'a str, Value<'a>)], EvaluationError> {
        match to_container(self.get(at), arena) {
            Value::Map(fields) => Ok(fields),
            _ => self.wrong_type(at, "a map"),
        }
    }

    /// One of a list of keywords.
    pub(super) fn keyword<T: Copy>(
        &self,
        at: usize,
        arena: &'a Arena,
        words: &[(&str, T)],
        expected: &'static str,
    ) -> Result<T, EvaluationError> {
        let text = self.text(at, arena)?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, meaning)) => Ok(*meaning),
            None => self.out_of_range(at, expected),
        }
    }
}

/// Converts to an array or map parsed one level deep, also from JSON text; other values are unchanged.
pub(super) fn to_container<'a>(value: Value<'a>, arena: &'a Arena) -> Value<'a> {
    let text = match value {
        Value::Json(_) => return value.parse_one_level(arena),
        Value::Str(_) | Value::Bytes(_) => value.as_str(),
        _ => None,
    };
    match text.map(|text| crate::json::parse_lazy(text, arena)) {
        Some(Ok(read @ Value::Json(_))) => read.parse_one_level(arena),
        _ => value,
    }
}
