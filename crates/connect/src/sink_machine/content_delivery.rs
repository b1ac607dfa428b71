//! Delivery of files: one attempt to export the file that a row names.

use std::sync::Arc;
use std::time::Duration;

use super::delivery::{BatchDelivery, CatchUnwindWrite};
use crate::batch::SinkBatch;
use crate::connector::{ConnectorError, ContentWriter, Retryable, WriteOutcome};
use crate::content::{ContentExport, ContentPort, FileContent, file_id};
use crate::row::SinkRow;

/// How often the progress of an attempt is noted.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

impl BatchDelivery {
    /// Exports the files of a batch. Batches of such sinks have one row, unless the sink had another format before.
    pub(super) async fn export(
        &self,
        writer: &dyn ContentWriter,
        batch: &SinkBatch,
    ) -> WriteOutcome {
        let Some(port) = self.content_port.get() else {
            let what = "this node has no files";
            return WriteOutcome::Failed(ConnectorError::permanent(what));
        };
        let mut failures = Vec::new();
        for (at, row) in batch.rows().enumerate() {
            let Err(failure) = self.export_row(port, writer, row).await else {
                continue;
            };
            if batch.len() == 1 {
                return WriteOutcome::Failed(failure);
            }
            failures.push((at, failure));
        }
        WriteOutcome::all_except(batch.len(), failures)
    }

    async fn export_row(
        &self,
        port: &Arc<dyn ContentPort>,
        writer: &dyn ContentWriter,
        row: SinkRow<'_>,
    ) -> Result<(), ConnectorError> {
        let Some(file) = file_id(row) else {
            let what =
                "the row has no text field `id` with the id of a file; select it: SELECT id, ...";
            return Err(ConnectorError::bad_rows(what));
        };
        let begun = on_port(port, &self.sink, file, |port, sink, file| {
            port.begin(sink, file)
        });
        let content = match begun.await? {
            Ok(Some(content)) => content,
            Ok(None) => {
                tracing::info!(
                    sink = self.sink,
                    file,
                    "export skipped; it was cancelled, or the file was deleted"
                );
                return Ok(());
            }
            Err(error) => return Err(ConnectorError::transient(error)),
        };
        let sent = self.send_content(port, writer, row, content).await;
        match sent {
            Ok(location) => {
                let after = writer.after();
                let completing = on_port(port, &self.sink, file, move |port, sink, file| {
                    port.completed(sink, file, &location, after);
                });
                completing.await
            }
            Err(failure) => {
                let error = failure.message.clone();
                let postponing = on_port(port, &self.sink, file, move |port, sink, file| {
                    port.postponed(sink, file, &error);
                });
                postponing.await?;
                Err(failure)
            }
        }
    }

    /// One attempt, which ends when it makes no progress for the time-out of the sink.
    async fn send_content(
        &self,
        port: &Arc<dyn ContentPort>,
        writer: &dyn ContentWriter,
        row: SinkRow<'_>,
        content: FileContent,
    ) -> Result<String, ConnectorError> {
        let export = ContentExport::new(port.clone(), &self.sink, content);
        let mut writing = CatchUnwindWrite(writer.write_content(row, &export));
        let mut noted = tokio::time::interval(PROGRESS_INTERVAL);
        let (mut sent_bytes, mut progress_at) = (0, tokio::time::Instant::now());
        let written = loop {
            tokio::select! {
                written = &mut writing => break written,
                _ = noted.tick() => {
                    export.note_progress();
                    let now = tokio::time::Instant::now();
                    let sent_now = export.sent_bytes().get();
                    if sent_now != sent_bytes {
                        (sent_bytes, progress_at) = (sent_now, now);
                    } else if now - progress_at >= self.timeout {
                        let ms = self.timeout.as_millis();
                        let what = format!("no progress within {ms} ms (write_timeout_ms)");
                        return Err(ConnectorError::transient(what));
                    }
                }
            }
        };
        export.note_progress();
        written.unwrap_or_else(|| {
            let what = "the connector panicked; this is a bug, please report it";
            Err(ConnectorError {
                retryable: Retryable::BadRows,
                ..ConnectorError::transient(what)
            })
        })
    }

    /// Records that the exports of rows that became dead letters have failed.
    pub(super) async fn fail_exports(&self, batch: &SinkBatch, error: &str) {
        let (Some(port), true) = (
            self.content_port.get(),
            self.writer.content_writer().is_some(),
        ) else {
            return;
        };
        for row in batch.rows() {
            let Some(file) = file_id(row) else { continue };
            let error = error.to_owned();
            let failing = on_port(port, &self.sink, file, move |port, sink, file| {
                port.failed(sink, file, &error);
            });
            // A panic was logged.
            let _ = failing.await;
        }
    }
}

/// Calls a port where it may block.
async fn on_port<T: Send + 'static>(
    port: &Arc<dyn ContentPort>,
    sink: &str,
    file: &str,
    work: impl FnOnce(&dyn ContentPort, &str, &str) -> T + Send + 'static,
) -> Result<T, ConnectorError> {
    let (port, sink, file) = (port.clone(), sink.to_owned(), file.to_owned());
    let done = tokio::task::spawn_blocking(move || work(&*port, &sink, &file)).await;
    done.map_err(ConnectorError::transient)
}
