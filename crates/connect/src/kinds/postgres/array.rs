//! Parameters in the text form of PostgreSQL: the server reads each as the type it has there.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use crate::row::Value;

/// The text of a parameter; `None` is NULL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parameter(Option<Vec<u8>>);

impl ToSql for Parameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.0 {
            None => Ok(IsNull::Yes),
            Some(text) => {
                out.extend_from_slice(text);
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

pub(super) fn text_of(value: Value<'_>) -> Parameter {
    if value.is_null() {
        return Parameter(None);
    }
    let mut text = Vec::new();
    value.write_text(&mut text);
    Parameter(Some(text))
}

/// An array in the making: `{1,"a b",NULL}`.
pub(super) struct Array {
    text: Vec<u8>,
    scratch: Vec<u8>,
}

impl Array {
    pub(super) fn new(rows: usize) -> Self {
        let mut text = Vec::with_capacity(rows * 8 + 2);
        text.push(b'{');
        Self {
            text,
            scratch: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, value: Value<'_>) {
        if self.text.len() > 1 {
            self.text.push(b',');
        }
        match value {
            Value::Null => self.text.extend_from_slice(b"NULL"),
            Value::Bool(_) | Value::Int(_) => value.write_text(&mut self.text),
            Value::Float(number) if number.is_finite() => value.write_text(&mut self.text),
            Value::Float(_) => self.text.extend_from_slice(b"NULL"),
            Value::Text(text) => self.push_quoted(text.as_bytes()),
            other => {
                let mut scratch = std::mem::take(&mut self.scratch);
                scratch.clear();
                other.write_text(&mut scratch);
                self.push_quoted(&scratch);
                self.scratch = scratch;
            }
        }
    }

    fn push_quoted(&mut self, text: &[u8]) {
        self.text.push(b'"');
        let mut rest = text;
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            self.text.extend_from_slice(&rest[..at]);
            self.text.extend_from_slice(&[b'\\', rest[at]]);
            rest = &rest[at + 1..];
        }
        self.text.extend_from_slice(rest);
        self.text.push(b'"');
    }

    pub(super) fn finish(mut self) -> Parameter {
        self.text.push(b'}');
        Parameter(Some(self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_told_apart() {
        let mut array = Array::new(5);
        for value in [
            Value::Int(-1),
            Value::Text("a,\"b\\"),
            Value::Null,
            Value::Text("NULL"),
            Value::Bool(true),
            Value::Float(0.5),
            Value::Float(f64::NAN),
            Value::Json("{\"a\":1}"),
        ] {
            array.push(value);
        }
        let Parameter(Some(text)) = array.finish() else {
            panic!("an array is not null")
        };
        assert_eq!(
            String::from_utf8(text).unwrap(),
            r#"{-1,"a,\"b\\",NULL,"NULL",true,0.5,NULL,"{\"a\":1}"}"#
        );
    }
}
