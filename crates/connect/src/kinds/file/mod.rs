//! Connector kind `file`: JSON lines, CSV or Parquet files, rotated by size and time.

mod connector;
mod content;
mod csv;
mod directory;
mod file_names;
#[cfg(feature = "parquet")]
mod parquet;
mod rotating_file;
mod settings;
#[cfg(feature = "parquet")]
mod spool;

use std::path::Component;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::batch::SinkBatch;
use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, WriteOutcome, schema_of,
};
use crate::content::AfterExport;
use crate::content_sink::ContentSink;
use crate::row::SinkRow;
use crate::settings::{SettingsError, check_parquet_is_built_in, check_range, parse_settings};
use crate::template::Template;
use connector::FileConnector;
use content::FileContentWriter;
use csv::CsvColumns;
use directory::{is_link, probe_directory};
use rotating_file::{RotatingFile, RotationLimits};
use settings::{FileFormat, FileSettings, FileSinkSettings, RotationSettings};

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "file",
    title: "Files",
    page: "connectors.md#files-file",
    batch: BatchDefaults {
        max_rows: 2000,
        ..BatchDefaults::DEFAULT
    },
    connector_schema: schema_of::<FileSettings>,
    sink_schema: schema_of::<FileSinkSettings>,
    source_schema: None,
    open,
};

/// Relative directories are below this one in the node's data directory.
const FILES_DIRECTORY: &str = "files";

fn open(fields: Map<String, Value>, context: &ConnectorContext) -> OpenConnectorResult {
    let settings: FileSettings = parse_settings(fields)?;
    // A user who may create connectors must not be able to write wherever the node may.
    let is_below = settings
        .directory
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !is_below {
        let detail = "expected a relative path without `..`; it is below `sinks/files` in the node's data directory";
        return Err(SettingsError::new("directory", detail));
    }
    let node = context
        .directory
        .as_ref()
        .ok_or_else(|| SettingsError::new("directory", "the node has no data directory"))?;
    let root = node.join(FILES_DIRECTORY);
    let directory = FileConnector {
        path: root.join(&settings.directory),
        root,
    };
    directory
        .check_links()
        .map_err(|error| SettingsError::new("directory", error.to_string()))?;
    Ok(Arc::new(directory))
}

impl Connector for FileConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        check_parquet_is_built_in(&settings)?;
        let settings: FileSinkSettings = parse_settings(settings)?;
        self.check_links()
            .map_err(|error| SettingsError::new("connector", error.to_string()))?;
        if settings.format == FileFormat::Content {
            let is_of_rows = settings.line.is_some() || !settings.columns.is_empty();
            if is_of_rows {
                let detail = "a sink with format = \"content\" writes files and no rows; it has no line and no columns";
                return Err(SettingsError::new("format", detail));
            }
            return Ok(Arc::new(ContentSink(FileContentWriter::new(
                self, &settings,
            )?)));
        }
        if settings.after != AfterExport::Keep {
            let detail = "this is for format = \"content\"";
            return Err(SettingsError::new("after", detail));
        }
        let is_name = !settings.file.is_empty()
            && !settings.file.starts_with('.')
            && !settings.file.contains(['/', '\\', '\0'])
            && settings.file.len() <= 128;
        if !is_name {
            return Err(SettingsError::new(
                "file",
                "expected a file name without a directory",
            ));
        }
        if is_link(&self.path.join(&settings.file)) {
            let detail = "it is a symbolic link, which sinks do not follow";
            return Err(SettingsError::new("file", detail));
        }
        let RotationSettings {
            max_bytes,
            max_age_s,
            max_files,
        } = settings.rotate;
        check_range("rotate.max_bytes", max_bytes, 1024..=1 << 50)?;
        check_range("rotate.max_age_s", max_age_s.unwrap_or(1), 1..=1 << 32)?;
        check_range("rotate.max_files", max_files, 1..=100_000)?;
        let rotation = RotationLimits {
            max_bytes,
            max_age: max_age_s.map(Duration::from_secs),
            max_files,
        };
        #[cfg(feature = "parquet")]
        if settings.format == FileFormat::Parquet {
            return Ok(Arc::new(parquet::ParquetFileWriter::new(
                &self.path, settings, rotation,
            )?));
        }
        #[cfg(feature = "parquet")]
        if settings.parquet.is_some() {
            let detail = "this is for format = \"parquet\"";
            return Err(SettingsError::new("parquet", detail));
        }
        let lines = match settings.format {
            #[cfg(feature = "parquet")]
            FileFormat::Csv if settings.columns.iter().any(|column| column.of.is_some()) => {
                let detail = "types of columns are for format = \"parquet\"";
                return Err(SettingsError::new("columns", detail));
            }
            FileFormat::Lines if !settings.columns.is_empty() => {
                let detail = "these are for files of columns, as format = \"csv\"";
                return Err(SettingsError::new("columns", detail));
            }
            FileFormat::Csv if settings.line.is_some() => {
                return Err(SettingsError::new("line", "this is for format = \"lines\""));
            }
            FileFormat::Lines => {
                let line = settings.line.as_deref().unwrap_or("${.}");
                LineEncoder::Template(Template::parse("line", line)?)
            }
            #[cfg(feature = "parquet")]
            FileFormat::Parquet => unreachable!("Parquet files have their own sink"),
            FileFormat::Content => unreachable!("exports of files have their own sink"),
            FileFormat::Csv => {
                let columns = settings.columns.iter();
                let columns = columns.map(|column| (column.name.as_str(), column.value.as_str()));
                LineEncoder::Csv(CsvColumns::new(columns)?)
            }
        };
        let head = match &lines {
            LineEncoder::Csv(columns) => columns.head(),
            LineEncoder::Template(_) => Vec::new(),
        };
        let log = RotatingFile::new(&self.path, &settings.file, rotation, head, settings.sync);
        Ok(Arc::new(FileWriter {
            lines,
            log: Arc::new(Mutex::new(log)),
        }))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        let (directory, linked) = (self.path.clone(), self.check_links());
        Box::pin(async move {
            linked.map_err(ConnectorError::transient)?;
            let tried = tokio::task::spawn_blocking(move || probe_directory(&directory)).await;
            match tried {
                Ok(Ok(())) => Ok("the directory can be written".into()),
                Ok(Err(error)) => Err(ConnectorError::transient(error)),
                Err(error) => Err(ConnectorError::transient(error)),
            }
        })
    }
}

enum LineEncoder {
    Template(Template),
    Csv(CsvColumns),
}

impl LineEncoder {
    fn add(&self, row: SinkRow<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Template(template) => {
                let start = out.len();
                template.render(row, out);
                crate::template::keep_one_line(&mut out[start..]);
            }
            Self::Csv(columns) => columns.add(row, out),
        }
        out.push(b'\n');
    }
}

struct FileWriter {
    lines: LineEncoder,
    log: Arc<Mutex<RotatingFile>>,
}

impl SinkWriter for FileWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let mut text = Vec::with_capacity(batch.byte_len());
            for row in batch.rows() {
                self.lines.add(row, &mut text);
            }
            let log = self.log.clone();
            let writing = tokio::task::spawn_blocking(move || {
                log.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .append(&text)
            });
            match writing.await {
                Ok(Ok(())) => WriteOutcome::All,
                Ok(Err(error)) => WriteOutcome::Failed(ConnectorError::transient(error)),
                Err(error) => WriteOutcome::Failed(ConnectorError::transient(error)),
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let log = self.log.clone();
        Box::pin(async move {
            let closing = tokio::task::spawn_blocking(move || {
                log.lock().unwrap_or_else(PoisonError::into_inner).close();
            });
            let _ = closing.await;
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn opened(node: &Path, directory: &str) -> OpenConnectorResult {
        let fields = json!({"directory": directory});
        let context = ConnectorContext {
            name: "c".into(),
            directory: Some(node.to_owned()),
            node: None,
        };
        open(fields.as_object().unwrap().clone(), &context)
    }

    #[test]
    fn nothing_leads_out_of_the_folder_of_files() {
        let node = tempfile::tempdir().unwrap();
        let files = node.path().join(FILES_DIRECTORY);
        std::fs::create_dir_all(files.join("a")).unwrap();
        for directory in ["..", "a/../..", "/etc", "./a/.."] {
            assert_eq!(
                opened(node.path(), directory).err().unwrap().field,
                "directory"
            );
        }
        std::os::unix::fs::symlink("/etc", files.join("etc")).unwrap();
        assert_eq!(opened(node.path(), "etc").err().unwrap().field, "directory");
        assert!(opened(node.path(), "etc/x").is_err());
        let connector = opened(node.path(), "a").unwrap();
        std::os::unix::fs::symlink("/etc/x", files.join("a/l")).unwrap();
        for file in ["../x", "/x", "..", "l", ".x", "a/b"] {
            let settings = json!({"file": file});
            let settings = settings.as_object().unwrap().clone();
            let error = connector.clone().writer(settings).err().unwrap();
            assert_eq!(error.field, "file", "{file}");
        }
        assert_eq!(
            opened(node.path(), "a/b").map(drop).err(),
            None,
            "missing directories are created"
        );
    }
}
