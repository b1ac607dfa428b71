//! Exports of files: sinks whose rows name a file of the node, and which send its content instead of the row.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::row::{SinkRow, SinkValue};

/// The `format` of sinks that export files.
const CONTENT_FORMAT: &str = "content";
/// The field of a row that contains the id of the file.
const FILE_ID_FIELD: &str = "id";

/// What happens with a file after its export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AfterExport {
    /// It stays on the node.
    #[default]
    Keep,
    /// It is deleted from the node when all its exports are complete.
    Delete,
}

/// A complete file of the node.
#[derive(Debug)]
pub struct FileContent {
    pub id: String,
    pub name: String,
    pub size: u64,
    /// SHA-256 digest.
    pub sha256: [u8; 32],
    pub content_type: Option<String>,
    pub file: File,
    /// What an earlier attempt stored by [`ContentExport::store_position`].
    pub position: Option<String>,
}

/// The files of a node, and what it records about their exports. Methods may block on the disk unless they say otherwise.
/// What cannot be recorded is logged by the implementation.
pub trait ContentPort: Send + Sync + 'static {
    /// Notes that a sink will export a file, so that it is kept until then. Does not wait for the disk.
    fn queued(&self, sink: &str, file: &str, row: Value);

    /// Begins an attempt. `None`: the export was cancelled, or its file deleted.
    ///
    /// # Errors
    /// Text for people.
    fn begin(&self, sink: &str, file: &str) -> Result<Option<FileContent>, String>;

    /// Notes how far an attempt is. Does not wait for the disk.
    fn note_progress(&self, sink: &str, file: &str, sent_bytes: u64);

    /// Stores what a later attempt needs to continue. `false`: the export was cancelled meanwhile.
    fn store_position(&self, sink: &str, file: &str, position: Option<&str>) -> bool;

    fn completed(&self, sink: &str, file: &str, location: &str, after: AfterExport);

    /// An attempt failed, and another will be made.
    fn postponed(&self, sink: &str, file: &str, error: &str);

    /// The sink has given up.
    fn failed(&self, sink: &str, file: &str, error: &str);

    /// The sink was deleted.
    fn sink_removed(&self, sink: &str);
}

/// The port of a service; empty until the files of the node are known.
pub(crate) type ContentPortCell = Arc<OnceLock<Arc<dyn ContentPort>>>;

/// One attempt to export a file.
pub struct ContentExport {
    pub content: FileContent,
    sink: String,
    port: Arc<dyn ContentPort>,
    sent_bytes: Arc<SentBytes>,
    position: Mutex<Option<String>>,
}

/// The progress of an attempt, which the task that reads the file may outlive.
#[derive(Debug, Default)]
pub struct SentBytes(AtomicU64);

impl SentBytes {
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl ContentExport {
    pub(crate) fn new(port: Arc<dyn ContentPort>, sink: &str, content: FileContent) -> Self {
        Self {
            sink: sink.to_owned(),
            port,
            sent_bytes: Arc::default(),
            position: Mutex::new(content.position.clone()),
            content,
        }
    }

    pub fn sent_bytes(&self) -> &Arc<SentBytes> {
        &self.sent_bytes
    }

    pub(crate) fn note_progress(&self) {
        let sent_bytes = self.sent_bytes.get().min(self.content.size);
        self.port
            .note_progress(&self.sink, &self.content.id, sent_bytes);
    }

    /// What was stored last.
    pub fn position(&self) -> Option<String> {
        let position = self.position.lock();
        position.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores what a later attempt needs to continue, also after a restart of the node. `None`: it begins anew. Returns
    /// `false` if the export was cancelled: nobody will discard what has begun.
    pub async fn store_position(&self, position: Option<String>) -> bool {
        *self.position.lock().unwrap_or_else(PoisonError::into_inner) = position.clone();
        let (port, sink, file) = (
            self.port.clone(),
            self.sink.clone(),
            self.content.id.clone(),
        );
        let storing = tokio::task::spawn_blocking(move || {
            port.store_position(&sink, &file, position.as_deref())
        });
        // A panic was logged.
        storing.await.unwrap_or(true)
    }
}

/// Whether the sink with these settings exports files.
pub(crate) fn exports_files(settings: &Map<String, Value>) -> bool {
    settings.get("format").and_then(Value::as_str) == Some(CONTENT_FORMAT)
}

/// The id of the file that a row names.
pub(crate) fn file_id(row: SinkRow<'_>) -> Option<&str> {
    match row.get(FILE_ID_FIELD) {
        Some(SinkValue::Text(id)) if !id.is_empty() => Some(id),
        _ => None,
    }
}
