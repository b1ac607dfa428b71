//! Content of an object: lines or a Parquet file.

#[cfg(feature = "parquet")]
use crate::columns::{ColumnMapping, ParquetLayout, ParquetWriter};
use crate::row::SinkRow;
use crate::template::Template;

/// Format of objects.
pub(super) enum ObjectFormat {
    /// A line per row: a template, or the row as JSON.
    Lines(Option<Template>),
    #[cfg(feature = "parquet")]
    Parquet(ColumnMapping, ParquetLayout),
}

/// An object body being built.
pub(super) enum ObjectBody {
    Lines(Vec<u8>),
    #[cfg(feature = "parquet")]
    Parquet(Box<ParquetWriter<Vec<u8>>>),
}

impl ObjectFormat {
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

    pub(super) fn new_body(&self) -> Result<ObjectBody, String> {
        match self {
            Self::Lines(_) => Ok(ObjectBody::Lines(Vec::new())),
            #[cfg(feature = "parquet")]
            Self::Parquet(columns, layout) => {
                let writer = ParquetWriter::new(Vec::new(), columns.shape(), *layout);
                let writer = writer.map_err(|error| error.to_string())?;
                Ok(ObjectBody::Parquet(Box::new(writer)))
            }
        }
    }

    /// Adds a row, or returns why it does not fit the format.
    pub(super) fn add(&self, row: SinkRow<'_>, body: &mut ObjectBody) -> Result<(), String> {
        match (self, body) {
            (Self::Lines(line), ObjectBody::Lines(text)) => {
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
            (Self::Parquet(columns, _), ObjectBody::Parquet(file)) => {
                let mut record = Vec::new();
                columns.add(row, &mut record)?;
                file.add_record(&record).map_err(|error| error.to_string())
            }
            #[cfg(feature = "parquet")]
            _ => Err("the body has another format".to_owned()),
        }
    }
}

impl ObjectBody {
    pub(super) fn finish(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Lines(text) => Ok(text),
            #[cfg(feature = "parquet")]
            Self::Parquet(file) => file.finish().map_err(|error| error.to_string()),
        }
    }
}
