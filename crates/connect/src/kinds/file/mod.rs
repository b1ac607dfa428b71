//! Files of JSON lines, CSV or Parquet, which are rotated by size and time.

mod csv;
mod log;
mod names;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod spool;

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::batch::Batch;
use crate::connector::{
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Writer, Written, schema_of,
};
use crate::row::Row;
use crate::settings::{Invalid, check_range, read};
use crate::template::Template;
use csv::Columns;
use log::{Log, Rotation};

pub(super) const KIND: Kind = Kind {
    name: "file",
    title: "Files",
    batch: BatchDefaults {
        max_rows: 2000,
        ..BatchDefaults::USUAL
    },
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<SinkSettings>,
    source_schema: None,
    open,
};

/// Relative folders are below this one in the node's folder.
const BELOW: &str = "files";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// A folder below `files` in the node's folder for data; made if it is not there.
    #[serde(default)]
    directory: PathBuf,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SinkSettings {
    /// The name of the file that is written, as `telemetry.jsonl`. Files that were rotated away have the time in their name.
    file: String,
    #[serde(default)]
    format: Format,
    /// Of each line with format `lines`; the whole row as JSON if left out.
    line: Option<String>,
    /// Of a file of columns, in their order: names and what is in them, as `{"name": "t", "value": "${payload.t}"}`; in
    /// Parquet they have types, too.
    #[serde(default)]
    columns: Vec<Column>,
    /// How a Parquet file is laid out.
    #[cfg(feature = "parquet")]
    parquet: Option<crate::columns::Layout>,
    #[serde(default)]
    rotate: Rotate,
    /// Waits after each batch until the disk has it.
    #[serde(default)]
    sync: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// A line for each row.
    #[default]
    Lines,
    /// Comma-separated values with a line of names at the beginning of each file.
    Csv,
    /// Columns with types. A file is there when it is complete, which it is when the next is begun; its rows are in
    /// `FILE.rows` until then.
    #[cfg(feature = "parquet")]
    Parquet,
}

#[cfg(feature = "parquet")]
use crate::columns::Setting as Column;

#[cfg(not(feature = "parquet"))]
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Column {
    name: String,
    value: String,
}

/// When a new file is begun.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Rotate {
    #[schemars(range(min = 1024))]
    max_bytes: u64,
    /// Left out: however old it is.
    #[schemars(range(min = 1))]
    max_age_s: Option<u64>,
    /// Files that are kept besides the one that is written; older ones are deleted.
    #[schemars(range(min = 1, max = 100_000))]
    max_files: usize,
}

impl Default for Rotate {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            max_age_s: None,
            max_files: 16,
        }
    }
}

struct Directory {
    /// `files` in the node's folder.
    root: PathBuf,
    path: PathBuf,
}

fn open(fields: Map<String, Value>, context: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    // Whoever may make connectors shall not be able to write anywhere the node may.
    let is_below = settings
        .directory
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !is_below {
        let detail = "expected a folder below `files` in the node's folder for data, without `..`";
        return Err(Invalid::new("directory", detail));
    }
    let node = context
        .directory
        .as_ref()
        .ok_or_else(|| Invalid::new("directory", "the node has no folder for its data"))?;
    let root = node.join(BELOW);
    let directory = Directory {
        path: root.join(&settings.directory),
        root,
    };
    directory
        .check_links()
        .map_err(|error| Invalid::new("directory", error.to_string()))?;
    Ok(Arc::new(directory))
}

impl Directory {
    /// A symbolic link below `files` would lead writes to wherever it points; `files` itself may be one.
    fn check_links(&self) -> std::io::Result<()> {
        let mut path = self.path.as_path();
        while path != self.root {
            if is_link(path) {
                let what = format!(
                    "{} is a symbolic link; only `files` itself may be one",
                    path.display()
                );
                return Err(std::io::Error::other(what));
            }
            let Some(parent) = path.parent() else { break };
            path = parent;
        }
        Ok(())
    }
}

/// Whether there is a symbolic link of this name.
fn is_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink())
}

impl Connector for Directory {
    fn writer(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
        #[cfg(not(feature = "parquet"))]
        if settings.get("format").and_then(Value::as_str) == Some("parquet") {
            let detail = "this program was built without Parquet; build it with the default features, or take a released one";
            return Err(Invalid::new("format", detail));
        }
        let settings: SinkSettings = read(settings)?;
        self.check_links()
            .map_err(|error| Invalid::new("connector", error.to_string()))?;
        let is_name = !settings.file.is_empty()
            && !settings.file.starts_with('.')
            && !settings.file.contains(['/', '\\', '\0'])
            && settings.file.len() <= 128;
        if !is_name {
            return Err(Invalid::new(
                "file",
                "expected the name of a file without a folder",
            ));
        }
        if is_link(&self.path.join(&settings.file)) {
            let detail = "it is a symbolic link, which sinks do not follow";
            return Err(Invalid::new("file", detail));
        }
        let Rotate {
            max_bytes,
            max_age_s,
            max_files,
        } = settings.rotate;
        check_range("rotate.max_bytes", max_bytes, 1024..=1 << 50)?;
        check_range("rotate.max_age_s", max_age_s.unwrap_or(1), 1..=1 << 32)?;
        check_range("rotate.max_files", max_files, 1..=100_000)?;
        let rotation = Rotation {
            max_bytes,
            max_age: max_age_s.map(Duration::from_secs),
            max_files,
        };
        #[cfg(feature = "parquet")]
        if settings.format == Format::Parquet {
            return Ok(Arc::new(parquet::Sink::new(
                &self.path, settings, rotation,
            )?));
        }
        #[cfg(feature = "parquet")]
        if settings.parquet.is_some() {
            let detail = "this is for format = \"parquet\"";
            return Err(Invalid::new("parquet", detail));
        }
        let lines = match settings.format {
            #[cfg(feature = "parquet")]
            Format::Csv if settings.columns.iter().any(|column| column.of.is_some()) => {
                let detail = "types of columns are for format = \"parquet\"";
                return Err(Invalid::new("columns", detail));
            }
            Format::Lines if !settings.columns.is_empty() => {
                let detail = "these are for files of columns, as format = \"csv\"";
                return Err(Invalid::new("columns", detail));
            }
            Format::Csv if settings.line.is_some() => {
                return Err(Invalid::new("line", "this is for format = \"lines\""));
            }
            Format::Lines => {
                let line = settings.line.as_deref().unwrap_or("${.}");
                Lines::Template(Template::parse("line", line)?)
            }
            #[cfg(feature = "parquet")]
            Format::Parquet => unreachable!("it has a sink of its own"),
            Format::Csv => {
                let columns = settings.columns.iter();
                let columns = columns.map(|column| (column.name.as_str(), column.value.as_str()));
                Lines::Csv(Columns::new(columns)?)
            }
        };
        let head = match &lines {
            Lines::Csv(columns) => columns.head(),
            Lines::Template(_) => Vec::new(),
        };
        let log = Log::new(&self.path, &settings.file, rotation, head, settings.sync);
        Ok(Arc::new(FileWriter {
            lines,
            log: Arc::new(Mutex::new(log)),
        }))
    }

    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        let (directory, linked) = (self.path.clone(), self.check_links());
        Box::pin(async move {
            linked.map_err(Failure::passing)?;
            let tried = tokio::task::spawn_blocking(move || try_directory(&directory)).await;
            match tried {
                Ok(Ok(())) => Ok("the folder can be written".into()),
                Ok(Err(error)) => Err(Failure::passing(error)),
                Err(error) => Err(Failure::passing(error)),
            }
        })
    }
}

/// Makes the directory of a sink, whose files are for others to read.
fn make_directory(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(directory)?;
    disk::share(directory)
}

fn try_directory(directory: &Path) -> std::io::Result<()> {
    make_directory(directory)?;
    let path = directory.join(".test");
    std::fs::write(&path, b"")?;
    std::fs::remove_file(&path)
}

enum Lines {
    Template(Template),
    Csv(Columns),
}

impl Lines {
    fn add(&self, row: Row<'_>, out: &mut Vec<u8>) {
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
    lines: Lines,
    log: Arc<Mutex<Log>>,
}

impl Writer for FileWriter {
    fn write<'a>(&'a self, batch: &'a Batch) -> Doing<'a, Written> {
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
                Ok(Ok(())) => Written::All,
                Ok(Err(error)) => Written::Failed(Failure::passing(error)),
                Err(error) => Written::Failed(Failure::passing(error)),
            }
        })
    }

    fn close(&self) -> Doing<'_, ()> {
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
    use serde_json::json;

    use super::*;

    fn opened(node: &Path, directory: &str) -> Opened {
        let fields = json!({"directory": directory});
        let context = Context {
            name: "c".into(),
            directory: Some(node.to_owned()),
        };
        open(fields.as_object().unwrap().clone(), &context)
    }

    #[test]
    fn nothing_leads_out_of_the_folder_of_files() {
        let node = tempfile::tempdir().unwrap();
        let files = node.path().join(BELOW);
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
            "folders that are not there are made"
        );
    }
}
