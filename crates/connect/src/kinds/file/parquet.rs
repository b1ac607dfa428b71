//! Parquet files: rows go into a spool, which becomes a file of columns when it is full, old, or the sink ends.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::SinkSettings;
use super::log::Rotation;
use super::spool::{self, Spool, Spools};
use crate::batch::Batch;
use crate::columns::Columns;
use crate::connector::{Doing, Failure, Writer, Written};
use crate::settings::Invalid;

pub(super) struct Sink {
    columns: Columns,
    files: Arc<Files>,
}

/// What is on disk. Blocking.
struct Files {
    spool: Mutex<Spool>,
    spools: Spools,
    max_age: Option<Duration>,
    /// One is finished at a time.
    finishing: Mutex<()>,
}

impl Sink {
    pub(super) fn new(
        directory: &Path,
        settings: SinkSettings,
        rotation: Rotation,
    ) -> Result<Self, Invalid> {
        if settings.line.is_some() {
            return Err(Invalid::new("line", "this is for format = \"lines\""));
        }
        let columns = Columns::new(&settings.columns)?;
        let layout = settings.parquet.unwrap_or_default();
        layout.check("parquet")?;
        let spools = Spools::new(directory, &settings.file, layout, rotation.max_files);
        let files = Files {
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

impl Files {
    fn lock(&self) -> MutexGuard<'_, Spool> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes files of all spools that are full. What cannot be made one now stays, and is tried with the next.
    fn finish(&self) {
        let _one = self
            .finishing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.spools.finish_all() {
            let path = self.spools.path();
            tracing::warn!(path = %path.display(), %error, "rows cannot be made a Parquet file; they stay in their spool");
        }
    }
}

/// Ends a spool when it is old, also if no more rows come.
fn end_in_time(files: &Arc<Files>, number: u64, max_age: Duration) {
    let files: Weak<Files> = Arc::downgrade(files);
    tokio::spawn(async move {
        tokio::time::sleep(max_age).await;
        let Some(files) = files.upgrade() else {
            return;
        };
        let ending = tokio::task::spawn_blocking(move || {
            let ended = files.lock().end(Some(number));
            match ended {
                Ok(true) => files.finish(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the spool of a Parquet file cannot be ended"),
            }
        });
        let _ = ending.await;
    });
}

impl Writer for Sink {
    fn write<'a>(&'a self, batch: &'a Batch) -> Doing<'a, Written> {
        Box::pin(async move {
            let (mut frames, mut record) = (Vec::with_capacity(batch.byte_len()), Vec::new());
            let mut failures = Vec::new();
            for (place, row) in batch.rows().enumerate() {
                record.clear();
                match self.columns.add(row, &mut record) {
                    Ok(()) => spool::put_frame(&record, &mut frames),
                    Err(what) => failures.push((place, Failure::of_rows(what))),
                }
            }
            let files = self.files.clone();
            let appending = tokio::task::spawn_blocking(move || files.lock().append(&frames));
            let appended = match appending.await {
                Ok(Ok(appended)) => appended,
                Ok(Err(error)) => return Written::Failed(Failure::passing(error)),
                Err(error) => return Written::Failed(Failure::passing(error)),
            };
            if let (Some(number), Some(max_age)) = (appended.began, self.files.max_age) {
                end_in_time(&self.files, number, max_age);
            }
            if appended.is_one_full {
                // Nobody waits for it: the rows are where they survive.
                let files = self.files.clone();
                tokio::task::spawn_blocking(move || files.finish());
            }
            Written::except(batch.len(), failures)
        })
    }

    fn close(&self) -> Doing<'_, ()> {
        let files = self.files.clone();
        Box::pin(async move {
            let closing = tokio::task::spawn_blocking(move || {
                if let Err(error) = files.lock().end(None) {
                    tracing::warn!(%error, "the spool of a Parquet file cannot be ended");
                }
                files.finish();
            });
            let _ = closing.await;
        })
    }
}
