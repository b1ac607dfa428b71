//! What a request says: one row or many.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::batch::{Batch, RowId};
use crate::row::Row;
use crate::settings::Invalid;
use crate::template::Template;

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
            self.body.render(row, &mut bytes);
        }
        bytes.extend_from_slice(end);
        let last = batch.id(batch.len() - 1).number;
        let key = format!("{}-{last}", batch.id(0));
        Some(Body { bytes, key })
    }
}
