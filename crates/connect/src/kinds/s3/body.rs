//! What is in an object: lines, or a Parquet file.

#[cfg(feature = "parquet")]
use crate::columns::{Columns, Layout, Writer};
use crate::row::Row;
use crate::template::Template;

/// How rows become the body of an object.
pub(super) enum Bodies {
    /// A line for each row: a template, or the row as JSON.
    Lines(Option<Template>),
    #[cfg(feature = "parquet")]
    Parquet(Columns, Layout),
}

/// A body that grows.
pub(super) enum Body {
    Lines(Vec<u8>),
    #[cfg(feature = "parquet")]
    Parquet(Box<Writer<Vec<u8>>>),
}

impl Bodies {
    pub(super) fn suffix(&self) -> &'static str {
        match self {
            Self::Lines(_) => ".jsonl",
            #[cfg(feature = "parquet")]
            Self::Parquet(..) => ".parquet",
        }
    }

    pub(super) fn content_type(&self) -> &'static str {
        match self {
            Self::Lines(_) => "application/x-ndjson",
            #[cfg(feature = "parquet")]
            Self::Parquet(..) => "application/vnd.apache.parquet",
        }
    }

    pub(super) fn begin(&self) -> Result<Body, String> {
        match self {
            Self::Lines(_) => Ok(Body::Lines(Vec::new())),
            #[cfg(feature = "parquet")]
            Self::Parquet(columns, layout) => {
                let writer = Writer::new(Vec::new(), columns.shape(), *layout);
                let writer = writer.map_err(|error| error.to_string())?;
                Ok(Body::Parquet(Box::new(writer)))
            }
        }
    }

    /// Adds a row, or says why it cannot be one of this body.
    pub(super) fn add(&self, row: Row<'_>, body: &mut Body) -> Result<(), String> {
        match (self, body) {
            (Self::Lines(line), Body::Lines(text)) => {
                match line {
                    None => row.write_json(text),
                    Some(template) => {
                        let start = text.len();
                        template.render(row, text);
                        crate::template::keep_one_line(&mut text[start..]);
                    }
                }
                text.push(b'\n');
                Ok(())
            }
            #[cfg(feature = "parquet")]
            (Self::Parquet(columns, _), Body::Parquet(file)) => {
                let mut record = Vec::new();
                columns.add(row, &mut record)?;
                file.add(&record).map_err(|error| error.to_string())
            }
            #[cfg(feature = "parquet")]
            _ => Err("a row of another format".to_owned()),
        }
    }
}

impl Body {
    pub(super) fn finish(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Lines(text) => Ok(text),
            #[cfg(feature = "parquet")]
            Self::Parquet(file) => file.finish().map_err(|error| error.to_string()),
        }
    }
}
