//! Parameters in PostgreSQL's text format: the server parses each as the parameter's type.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use crate::row::SinkValue;

/// The text of a parameter; `None` is NULL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextParameter(Option<Vec<u8>>);

impl ToSql for TextParameter {
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

pub(super) fn text_parameter(value: SinkValue<'_>) -> TextParameter {
    if value.is_null() {
        return TextParameter(None);
    }
    let mut text = Vec::new();
    value.write_text(&mut text);
    TextParameter(Some(text))
}

/// Builds an array literal: `{1,"a b",NULL}`.
pub(super) struct ArrayBuilder {
    text: Vec<u8>,
    scratch: Vec<u8>,
}

impl ArrayBuilder {
    pub(super) fn new(rows: usize) -> Self {
        let mut text = Vec::with_capacity(rows * 8 + 2);
        text.push(b'{');
        Self {
            text,
            scratch: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, value: SinkValue<'_>) {
        if self.text.len() > 1 {
            self.text.push(b',');
        }
        match value {
            SinkValue::Null => self.text.extend_from_slice(b"NULL"),
            SinkValue::Bool(_) | SinkValue::Int(_) => value.write_text(&mut self.text),
            SinkValue::Float(number) if number.is_finite() => value.write_text(&mut self.text),
            SinkValue::Float(_) => self.text.extend_from_slice(b"NULL"),
            SinkValue::Text(text) => self.push_quoted(text.as_bytes()),
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

    pub(super) fn finish(mut self) -> TextParameter {
        self.text.push(b'}');
        TextParameter(Some(self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_distinguished() {
        let mut array = ArrayBuilder::new(5);
        for value in [
            SinkValue::Int(-1),
            SinkValue::Text("a,\"b\\"),
            SinkValue::Null,
            SinkValue::Text("NULL"),
            SinkValue::Bool(true),
            SinkValue::Float(0.5),
            SinkValue::Float(f64::NAN),
            SinkValue::Json("{\"a\":1}"),
        ] {
            array.push(value);
        }
        let TextParameter(Some(text)) = array.finish() else {
            panic!("an array is not null")
        };
        assert_eq!(
            String::from_utf8(text).unwrap(),
            r#"{-1,"a,\"b\\",NULL,"NULL",true,0.5,NULL,"{\"a\":1}"}"#
        );
    }
}
