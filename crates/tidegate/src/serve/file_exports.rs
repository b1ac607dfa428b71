//! The files of the node as what sinks export, and the exports that a start continues.

use std::sync::Arc;

use connect::{AfterExport, ConnectorService, ContentPort, FileContent, PushOutcome};
use serde_json::Value;
use transfer::{FileService, TransferError};

/// The files of the node for its sinks.
pub(super) struct NodeContentPort(pub(super) FileService);

/// Logs what could not be recorded; the export is then repeated after a restart.
fn log_failure(what: &str, sink: &str, file: &str, result: Result<(), TransferError>) {
    if let Err(error) = result {
        tracing::error!(sink, file, %error, "recording the {what} of an export failed");
    }
}

impl ContentPort for NodeContentPort {
    fn queued(&self, sink: &str, file: &str, row: Value) {
        if !self.0.queue_export(sink, file, row) {
            tracing::warn!(
                sink,
                file,
                "export not recorded; there is no such file, it has too many exports, or the row is too large"
            );
        }
    }

    fn begin(&self, sink: &str, file: &str) -> Result<Option<FileContent>, String> {
        let opened = self.0.begin_export(sink, file);
        let Some(opened) = opened.map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let (info, position) = (opened.info, opened.position);
        let (Some(size), Some(digest)) = (info.size, info.checksum) else {
            return Err(format!("the file {file} has no size or digest"));
        };
        Ok(Some(FileContent {
            id: info.id,
            name: info.name,
            size,
            sha256: digest.0,
            content_type: info.content_type,
            file: opened.file,
            position,
        }))
    }

    fn note_progress(&self, sink: &str, file: &str, sent_bytes: u64) {
        self.0.note_export_progress(sink, file, sent_bytes);
    }

    fn store_position(&self, sink: &str, file: &str, position: Option<&str>) -> bool {
        let stored = self.0.store_export_position(sink, file, position);
        // If it cannot be recorded, the export continues, and begins anew after a restart.
        let exists = *stored.as_ref().unwrap_or(&true);
        log_failure("position", sink, file, stored.map(drop));
        exists
    }

    fn completed(&self, sink: &str, file: &str, location: &str, after: AfterExport) {
        let deletes_file = after == AfterExport::Delete;
        tracing::info!(sink, file, location, deletes_file, "file exported");
        let completed = (self.0).complete_export(sink, file, location, deletes_file);
        log_failure("completion", sink, file, completed);
    }

    fn postponed(&self, sink: &str, file: &str, error: &str) {
        log_failure(
            "failure",
            sink,
            file,
            self.0.postpone_export(sink, file, error),
        );
    }

    fn failed(&self, sink: &str, file: &str, error: &str) {
        tracing::warn!(
            sink,
            file,
            error,
            "export of a file failed; the file is kept until it is exported again or the export is cancelled"
        );
        log_failure("failure", sink, file, self.0.fail_export(sink, file, error));
    }

    fn sink_removed(&self, sink: &str) {
        let error = "the sink was deleted; create it again or cancel the export";
        self.0.fail_exports_of_sink(sink, error);
    }
}

/// Lets sinks export files, and queues what had not ended when the node stopped. May block on the disk.
pub(super) fn start(files: &FileService, connectors: &ConnectorService) {
    connectors.set_content_port(Arc::new(NodeContentPort(files.clone())));
    let discarding = connectors.clone();
    files.set_export_discard(Box::new(move |sink, file, position| {
        discarding.discard_content(sink, file, position);
    }));
    let exports = files.active_exports();
    if !exports.is_empty() {
        tracing::info!(
            exports = exports.len(),
            "resuming unfinished exports of files"
        );
    }
    for export in exports {
        let (sink, fields) = (connectors.sink(&export.sink), export.row.as_object());
        let outcome = match (sink, fields) {
            (Some(sink), Some(fields)) => connectors.push(sink, 0, |row| row.json_fields(fields)),
            _ => PushOutcome::Unknown,
        };
        let problem = match outcome {
            PushOutcome::Queued | PushOutcome::Blocked => continue,
            PushOutcome::Dropped => "the queue of the sink is full; export the file again",
            PushOutcome::Unknown => {
                "the sink does not exist or is disabled; correct that and export the file again"
            }
        };
        let failed = files.fail_export(&export.sink, &export.file, problem);
        log_failure("failure", &export.sink, &export.file, failed);
    }
}
