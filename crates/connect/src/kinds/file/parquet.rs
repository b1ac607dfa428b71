//! Parquet files: rows go into a spool, which is converted to a file when it is full, old, or the sink ends.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::rotating_file::RotationLimits;
use super::settings::FileSinkSettings;
use super::spool::{self, Spool, SpoolFiles};
use crate::batch::SinkBatch;
use crate::columns::ColumnMapping;
use crate::connector::{BoxFuture, ConnectorError, SinkWriter, WriteOutcome};
use crate::settings::SettingsError;

pub(super) struct ParquetFileWriter {
    columns: ColumnMapping,
    files: Arc<ParquetFiles>,
}

/// The files of a sink; blocking operations.
struct ParquetFiles {
    spool: Mutex<Spool>,
    spools: SpoolFiles,
    max_age: Option<Duration>,
    /// Serialises conversions.
    finishing: Mutex<()>,
}

impl ParquetFileWriter {
    pub(super) fn new(
        directory: &Path,
        settings: FileSinkSettings,
        rotation: RotationLimits,
    ) -> Result<Self, SettingsError> {
        if settings.line.is_some() {
            return Err(SettingsError::new("line", "this is for format = \"lines\""));
        }
        let columns = ColumnMapping::new(&settings.columns)?;
        let layout = settings.parquet.unwrap_or_default();
        layout.check("parquet")?;
        let spools = SpoolFiles::new(directory, &settings.file, layout, rotation.max_files);
        let files = ParquetFiles {
            max_age: rotation.max_age,
            spool: Mutex::new(Spool::new(
                spools.clone(),
                columns.shape().clone(),
                rotation,
                settings.sync,
            )),
            spools,
            finishing: Mutex::default(),
        };
        Ok(Self {
            columns,
            files: Arc::new(files),
        })
    }
}

impl ParquetFiles {
    fn lock(&self) -> MutexGuard<'_, Spool> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Converts all full spools. A spool that cannot be converted stays, and is retried with the next one.
    fn convert_full_spools(&self) {
        let _one = self
            .finishing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.spools.convert_all() {
            let path = self.spools.path();
            tracing::warn!(path = %path.display(), %error, "Parquet file could not be written; its rows stay in their spool");
        }
    }
}

/// Closes a spool at its maximum age, even if no more rows arrive.
fn spawn_max_age_timer(files: &Arc<ParquetFiles>, number: u64, max_age: Duration) {
    let files: Weak<ParquetFiles> = Arc::downgrade(files);
    tokio::spawn(async move {
        tokio::time::sleep(max_age).await;
        let Some(files) = files.upgrade() else {
            return;
        };
        let ending = tokio::task::spawn_blocking(move || {
            let ended = files.lock().close_spool(Some(number));
            match ended {
                Ok(true) => files.convert_full_spools(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "spool of a Parquet file could not be closed"),
            }
        });
        let _ = ending.await;
    });
}

impl SinkWriter for ParquetFileWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let (mut frames, mut record) = (Vec::with_capacity(batch.byte_len()), Vec::new());
            let mut failures = Vec::new();
            for (place, row) in batch.rows().enumerate() {
                record.clear();
                match self.columns.add(row, &mut record) {
                    Ok(()) => spool::put_frame(&record, &mut frames),
                    Err(what) => failures.push((place, ConnectorError::bad_rows(what))),
                }
            }
            let files = self.files.clone();
            let appending = tokio::task::spawn_blocking(move || files.lock().append(&frames));
            let appended = match appending.await {
                Ok(Ok(appended)) => appended,
                Ok(Err(error)) => return WriteOutcome::Failed(ConnectorError::transient(error)),
                Err(error) => return WriteOutcome::Failed(ConnectorError::transient(error)),
            };
            if let (Some(number), Some(max_age)) = (appended.begun_spool, self.files.max_age) {
                spawn_max_age_timer(&self.files, number, max_age);
            }
            if appended.has_full_spool {
                // Not awaited: the rows are already durable in the spool.
                let files = self.files.clone();
                tokio::task::spawn_blocking(move || files.convert_full_spools());
            }
            WriteOutcome::all_except(batch.len(), failures)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let files = self.files.clone();
        Box::pin(async move {
            let closing = tokio::task::spawn_blocking(move || {
                if let Err(error) = files.lock().close_spool(None) {
                    tracing::warn!(%error, "spool of a Parquet file could not be closed");
                }
                files.convert_full_spools();
            });
            let _ = closing.await;
        })
    }
}
