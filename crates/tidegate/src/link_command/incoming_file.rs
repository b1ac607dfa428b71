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
        // It names what the sender means; without it, damaged content would get the name of the file.
        let Some(algorithm) = info.digest else {
            let text = "a file needs a digest; open the stream with SHA-256 or BLAKE3";
            return Err(rejected(ErrorCode::NOT_PERMITTED, text));
        };
        let mut reservation = self.reserve(path.clone()).await;
        let open = || {
            let (dir, name) = split_path(&path)?;
            std::fs::create_dir_all(dir)?;
            let open = || PartialFile::open(dir, name, info.transfer_id, Some(algorithm));
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use link::config::LinkConfig;
    use link::core::NewStream;
    use link::net::{
        ConnectOptions, Link, LinkDecision, LinkListener, MemoryNetwork, OutgoingStream, connect,
    };
    use link::priority::Priority;
    use link::wire::control::TransferId;
    use link::wire::handshake::LinkId;

    /// Both ends of a link in memory.
    async fn open_link() -> (Link, Link) {
        let network = MemoryNetwork::default();
        let (listener, mut links) =
            LinkListener::new(LinkConfig::default(), 1, Duration::from_secs(60));
        let sender = connect(LinkId([1; 16]), ConnectOptions::default(), move || {
            let (opened, listener) = (network.open(), listener.clone());
            async move {
                let (near, far) = opened?;
                tokio::spawn(async move {
                    let principal = String::new();
                    let _ = listener
                        .serve(far, |_| LinkDecision::Accept { principal })
                        .await;
                });
                Ok(near)
            }
        });
        let receiver = links.recv().await.expect("the link is accepted").link;
        (sender, receiver)
    }

    async fn send_without_digest(sender: &Link) -> OutgoingStream {
        let metadata = FileMetadata {
            name: "file".to_owned(),
            ..FileMetadata::default()
        };
        let new = NewStream {
            priority: Priority::Bulk,
            transfer_id: TransferId([1; 16]),
            size: Some(4),
            digest: None,
            metadata: serde_json::to_vec(&metadata).expect("it is valid JSON"),
            is_resume: false,
        };
        let stream = sender.send_stream(new).await.expect("the link works");
        let bytes = Bytes::from_static(b"text");
        stream.write(0, bytes).await.expect("the link works");
        stream
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_without_a_digest_is_rejected() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (sender, receiver) = open_link().await;
        let stream = send_without_digest(&sender).await;
        let files = ReceivedFiles::new(dir.path().to_owned());
        let incoming = receiver.receive_stream().await.expect("the link works");
        let (limit, progress) = (RateLimit::new(None), TransferProgress::default());
        let received = files.receive(incoming, &limit, &progress, false).await;
        let error = received.expect_err("it has no digest").to_string();
        assert!(error.contains("needs a digest"), "{error}");
        // A new stream counts as accepted until its rejection arrives.
        let rejection = async {
            loop {
                match stream.accepted().await {
                    Ok(_) => tokio::task::yield_now().await,
                    Err(error) => return error,
                }
            }
        };
        let rejected = tokio::time::timeout(Duration::from_secs(10), rejection).await;
        let error = rejected.expect("it is rejected");
        assert!(error.to_string().contains("needs a digest"), "{error}");
        let names = std::fs::read_dir(dir.path()).expect("the directory exists");
        assert_eq!(names.count(), 0);
    }
}
