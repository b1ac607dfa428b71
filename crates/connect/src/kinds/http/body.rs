//! What a request says: one row or many.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::batch::{Batch, RowId};
use crate::row::Row;
use crate::settings::Invalid;
use crate::template::{Template, keep_one_line};

/// How rows become requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Format {
    /// A request for each batch: a JSON array of the rows.
    #[default]
    JsonArray,
    /// A request for each batch: a line for each row.
    Lines,
    /// A request for each row.
    Single,
}

impl Format {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::JsonArray | Self::Single => "application/json",
            Self::Lines => "application/x-ndjson",
        }
    }
}

pub(super) struct Bodies {
    format: Format,
    body: Template,
}

pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// Names its rows, the same each time.
    pub(super) key: String,
}

impl Bodies {
    pub(super) fn new(format: Format, body: Option<&str>) -> Result<Self, Invalid> {
        Ok(Self {
            format,
            body: Template::parse("body", body.unwrap_or("${.}"))?,
        })
    }

    pub(super) fn of_row(&self, row: Row<'_>, id: RowId) -> Body {
        let mut bytes = Vec::new();
        self.body.render(row, &mut bytes);
        Body {
            bytes,
            key: id.to_string(),
        }
    }

    /// `None`: each row is a request.
    pub(super) fn of_batch(&self, batch: &Batch) -> Option<Body> {
        let (start, between, end): (&[u8], &[u8], &[u8]) = match self.format {
            Format::JsonArray => (b"[", b",", b"]"),
            Format::Lines => (b"", b"\n", b"\n"),
            Format::Single => return None,
        };
        let mut bytes = start.to_vec();
        for (at, row) in batch.rows().enumerate() {
            if at > 0 {
                bytes.extend_from_slice(between);
            }
            let start = bytes.len();
            self.body.render(row, &mut bytes);
            match self.format {
                Format::JsonArray => keep_one_item(&mut bytes, start),
                Format::Lines => keep_one_line(&mut bytes[start..]),
                Format::Single => {}
            }
        }
        bytes.extend_from_slice(end);
        let last = batch.id(batch.len() - 1).number;
        let key = format!("{}-{last}", batch.id(0));
        Some(Body { bytes, key })
    }
}

/// A row is one item of the array: what is no JSON becomes a string.
fn keep_one_item(bytes: &mut Vec<u8>, start: usize) {
    let item = &bytes[start..];
    let is_json = std::str::from_utf8(item).is_ok_and(|text| rules::json::check(text).is_ok());
    if !is_json {
        let text = String::from_utf8_lossy(item).into_owned();
        bytes.truncate(start);
        crate::row::Value::Text(&text).write_json(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::RowWriter;

    fn body(format: Format, template: &str) -> String {
        let mut batch = Batch::new(1);
        for (number, text) in ["a", "1],[\"x\"\n{}"].into_iter().enumerate() {
            let mut bytes = Vec::new();
            RowWriter::new(&mut bytes).text("t", text);
            batch.push(number as u64, Row::from_bytes(&bytes));
        }
        let bodies = Bodies::new(format, Some(template)).unwrap();
        String::from_utf8(bodies.of_batch(&batch).unwrap().bytes).unwrap()
    }

    #[test]
    fn a_row_is_one_item_or_one_line_whatever_it_holds() {
        let json = serde_json::json!(["a", "1],[\"x\"\n{}"]).to_string();
        assert_eq!(body(Format::JsonArray, "${t}"), json);
        assert_eq!(
            body(Format::JsonArray, r#"{"v": ${t}}"#),
            r#"[{"v": "a"},{"v": "1],[\"x\"\n{}"}]"#
        );
        assert_eq!(body(Format::Lines, "${t}"), "a\n1],[\"x\" {}\n");
    }
}
