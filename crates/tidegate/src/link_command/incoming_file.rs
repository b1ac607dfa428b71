//! Files from the peer: they are stored in a directory and appear there when they are complete and verified.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use content::ContentDigest;
use link::durable::{FinishError, PartialFile};
use link::error_code::ErrorCode;
use link::net::{IncomingStream, LinkError};
use link_gateway::exchange::FileMetadata;
use tokio::sync::{OwnedMutexGuard, watch};

use super::file_path::path_in;
use super::rate_limit::RateLimit;
use crate::transfer_progress::TransferProgress;

/// Content that is written before it is synced and acknowledged: half of what a sender retains.
const SYNC_BYTES: u64 = 8 * 1024 * 1024;
/// Content is acknowledged after this time at the latest.
const SYNC_INTERVAL: Duration = Duration::from_millis(250);

/// The directory of received files, and which of them are being received.
pub(super) struct ReceivedFiles {
    dir: PathBuf,
    active: Mutex<HashMap<PathBuf, Arc<ActiveFile>>>,
}

/// A file that is being received. A newer transfer of it takes over, because the older one usually waits for a sender that
/// was restarted.
struct ActiveFile {
    lock: Arc<tokio::sync::Mutex<()>>,
    newest: watch::Sender<u64>,
}

/// The right to write one file.
struct FileReservation<'a> {
    files: &'a ReceivedFiles,
    path: PathBuf,
    number: u64,
    newest: watch::Receiver<u64>,
    _guard: OwnedMutexGuard<()>,
}

/// A file that is complete.
#[derive(Debug)]
pub(super) struct ReceivedFile {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) digest: Option<ContentDigest>,
}

/// Why a file was not received.
#[derive(Debug, thiserror::Error)]
pub(super) enum IncomingFileError {
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The sender has received the reason.
    #[error("{text} ({code})")]
    Rejected { code: ErrorCode, text: String },
}

impl From<io::Error> for IncomingFileError {
    fn from(error: io::Error) -> Self {
        Self::Rejected {
            code: ErrorCode::STORAGE_FAILED,
            text: format!("the file cannot be stored: {error}"),
        }
    }
}

fn rejected(code: ErrorCode, text: impl Into<String>) -> IncomingFileError {
    let text = text.into();
    IncomingFileError::Rejected { code, text }
}

impl ReceivedFiles {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            active: Mutex::default(),
        }
    }

    /// Receives the file of a stream. With `discards_partial`, what an interrupted transfer has left is not used.
    pub(super) async fn receive(
        &self,
        stream: IncomingStream,
        limit: &RateLimit,
        progress: &TransferProgress,
        discards_partial: bool,
    ) -> Result<ReceivedFile, IncomingFileError> {
        let mut stream = stream;
        let mut done = 0;
        let receiving =
            self.receive_into(&mut stream, limit, progress, discards_partial, &mut done);
        let result = receiving.await;
        match &result {
            Ok(_) => stream.complete(),
            Err(error) => {
                progress.remove_done(done);
                if let IncomingFileError::Rejected { code, text } = error {
                    stream.reject(*code, text);
                }
            }
        }
        result
    }

    async fn receive_into(
        &self,
        stream: &mut IncomingStream,
        limit: &RateLimit,
        progress: &TransferProgress,
        discards_partial: bool,
        done: &mut u64,
    ) -> Result<ReceivedFile, IncomingFileError> {
        let mut count = |bytes: u64| {
            *done += bytes;
            progress.add_done(bytes);
        };
        let info = stream.info().clone();
        let metadata: FileMetadata = serde_json::from_slice(&info.metadata).map_err(|error| {
            let text = format!("metadata of the file: {error}");
            rejected(ErrorCode::PROTOCOL_VIOLATION, text)
        })?;
        let path = path_in(&self.dir, &metadata.name)
            .map_err(|text| rejected(ErrorCode::NOT_PERMITTED, text))?;
        let mut reservation = self.reserve(path.clone()).await;
        let open = || {
            let (dir, name) = split_path(&path)?;
            std::fs::create_dir_all(dir)?;
            let open = || PartialFile::open(dir, name, info.transfer_id, info.digest);
            let file = open()?;
            if discards_partial && !file.durable().is_empty() {
                file.discard()?;
                return open();
            }
            Ok::<_, io::Error>(file)
        };
        let mut file = tokio::task::block_in_place(open)?;
        count(file.durable().count());
        stream.accept(file.durable());
        let mut unsynced_bytes = 0;
        let done = loop {
            let read = tokio::select! {
                read = stream.read() => Some(read?),
                () = reservation.lost() => {
                    let text = "a newer transfer of the same file replaces this one";
                    return Err(rejected(ErrorCode::REPLACED, text));
                }
                () = tokio::time::sleep(SYNC_INTERVAL), if unsynced_bytes > 0 => None,
            };
            match read {
                Some(Ok(chunk)) => {
                    limit.pass(chunk.bytes.len()).await;
                    tokio::task::block_in_place(|| file.write(&chunk))?;
                    unsynced_bytes += chunk.bytes.len() as u64;
                    count(chunk.bytes.len() as u64);
                    if unsynced_bytes < SYNC_BYTES {
                        continue;
                    }
                }
                Some(Err(done)) => break done,
                None => {}
            }
            let durable = tokio::task::block_in_place(|| file.sync().cloned())?;
            for range in durable.iter() {
                stream.acknowledge(range);
            }
            unsynced_bytes = 0;
        };
        let finish = || {
            let path = file.finish(done)?;
            if let Some(modified_ms) = metadata.modified_ms.and_then(|ms| u64::try_from(ms).ok())
                && let Some(time) = UNIX_EPOCH.checked_add(Duration::from_millis(modified_ms))
            {
                // Some file systems do not support it; the content is complete without it.
                let _ = File::open(&path).and_then(|file| file.set_modified(time));
            }
            Ok::<(), FinishError>(())
        };
        tokio::task::block_in_place(finish).map_err(|error| match error {
            FinishError::Io(error) => error.into(),
            FinishError::DigestMismatch { .. } => {
                rejected(ErrorCode::DIGEST_MISMATCH, error.to_string())
            }
            FinishError::Incomplete { .. } => {
                rejected(ErrorCode::PROTOCOL_VIOLATION, error.to_string())
            }
        })?;
        Ok(ReceivedFile {
            name: metadata.name,
            size: done.size,
            digest: done.digest,
        })
    }

    async fn reserve(&self, path: PathBuf) -> FileReservation<'_> {
        let (active, number) = {
            let mut all = self.lock();
            let active = all.entry(path.clone()).or_insert_with(|| {
                Arc::new(ActiveFile {
                    lock: Arc::default(),
                    newest: watch::Sender::new(0),
                })
            });
            active.newest.send_modify(|newest| *newest += 1);
            let number = *active.newest.borrow();
            (active.clone(), number)
        };
        let guard = active.lock.clone().lock_owned().await;
        FileReservation {
            files: self,
            path,
            number,
            newest: active.newest.subscribe(),
            _guard: guard,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, Arc<ActiveFile>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileReservation<'_> {
    /// Waits until a newer transfer of the file begins.
    async fn lost(&mut self) {
        let number = self.number;
        // The sender of the channel is dropped with the reservation.
        let _ = self.newest.wait_for(|newest| *newest > number).await;
    }
}

impl Drop for FileReservation<'_> {
    fn drop(&mut self) {
        let mut all = self.files.lock();
        if all
            .get(&self.path)
            .is_some_and(|active| *active.newest.borrow() == self.number)
        {
            all.remove(&self.path);
        }
    }
}

fn split_path(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent()
        .zip(name)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))
}
