//! Request bodies with one row or many.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::batch::{RowId, SinkBatch};
use crate::row::SinkRow;
use crate::settings::SettingsError;
use crate::template::{Template, keep_one_line};

/// How rows are mapped to requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum BodyFormat {
    /// One request per batch: a JSON array of the rows.
    #[default]
    JsonArray,
    /// One request per batch: a line for each row.
    Lines,
    /// One request per row.
    Single,
    /// One request per row, with the content of a file of the node. The field `id` of the row is the id of the file, as
    /// in the event `$events/file/received`.
    Content,
}

impl BodyFormat {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::JsonArray | Self::Single => "application/json",
            Self::Lines => "application/x-ndjson",
            Self::Content => "application/octet-stream",
        }
    }
}

pub(super) struct BodyEncoder {
    format: BodyFormat,
    body: Template,
}

pub(super) struct RequestBody {
    pub(super) bytes: Vec<u8>,
    /// Idempotency key of the rows; the same for each attempt.
    pub(super) key: String,
}

impl BodyEncoder {
    pub(super) fn new(format: BodyFormat, body: Option<&str>) -> Result<Self, SettingsError> {
        Ok(Self {
            format,
            body: Template::parse("body", body.unwrap_or("${.}"))?,
        })
    }

    pub(super) fn encode_row(&self, row: SinkRow<'_>, id: RowId) -> RequestBody {
        let mut bytes = Vec::new();
        self.body.render(row, &mut bytes);
        RequestBody {
            bytes,
            key: id.to_string(),
        }
    }

    /// `None`: each row is a separate request.
    pub(super) fn encode_batch(&self, batch: &SinkBatch) -> Option<RequestBody> {
        let (start, between, end): (&[u8], &[u8], &[u8]) = match self.format {
            BodyFormat::JsonArray => (b"[", b",", b"]"),
            BodyFormat::Lines => (b"", b"\n", b"\n"),
            BodyFormat::Single | BodyFormat::Content => return None,
        };
        let mut bytes = start.to_vec();
        for (at, row) in batch.rows().enumerate() {
            if at > 0 {
                bytes.extend_from_slice(between);
            }
            let start = bytes.len();
            self.body.render(row, &mut bytes);
            match self.format {
                BodyFormat::JsonArray => keep_one_item(&mut bytes, start),
                BodyFormat::Lines => keep_one_line(&mut bytes[start..]),
                BodyFormat::Single | BodyFormat::Content => {}
            }
        }
        bytes.extend_from_slice(end);
        let last = batch.id(batch.len() - 1).number;
        let key = format!("{}-{last}", batch.id(0));
        Some(RequestBody { bytes, key })
    }
}

/// Ensures that a row is a single array item: invalid JSON becomes a string.
fn keep_one_item(bytes: &mut Vec<u8>, start: usize) {
    let item = &bytes[start..];
    let is_json = std::str::from_utf8(item).is_ok_and(|text| rules::json::check(text).is_ok());
    if !is_json {
        let text = String::from_utf8_lossy(item).into_owned();
        bytes.truncate(start);
        crate::row::SinkValue::Text(&text).write_json(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::SinkRowWriter;

    fn body(format: BodyFormat, template: &str) -> String {
        let mut batch = SinkBatch::new(1);
        for (number, text) in ["a", "1],[\"x\"\n{}"].into_iter().enumerate() {
            let mut bytes = Vec::new();
            SinkRowWriter::new(&mut bytes).text("t", text);
            batch.push(number as u64, SinkRow::from_bytes(&bytes));
        }
        let bodies = BodyEncoder::new(format, Some(template)).unwrap();
        String::from_utf8(bodies.encode_batch(&batch).unwrap().bytes).unwrap()
    }

    #[test]
    fn a_row_is_one_item_or_one_line_whatever_it_holds() {
        let json = serde_json::json!(["a", "1],[\"x\"\n{}"]).to_string();
        assert_eq!(body(BodyFormat::JsonArray, "${t}"), json);
        assert_eq!(
            body(BodyFormat::JsonArray, r#"{"v": ${t}}"#),
            r#"[{"v": "a"},{"v": "1],[\"x\"\n{}"}]"#
        );
        assert_eq!(body(BodyFormat::Lines, "${t}"), "a\n1],[\"x\" {}\n");
    }
}
