//! Files on their way to the peer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use content::{ContentDigest, ContentHasher, DigestAlgorithm, RangeSet};
use link::core::NewStream;
use link::error_code::ErrorCode;
use link::net::{Link, LinkError, OutgoingStream, PieceBuffers};
use link::priority::Priority;
use link::wire::control::TransferId;
use link_gateway::exchange::{AnnouncedFile, FileMetadata};

use super::options::random_bytes;
use super::rate_limit::RateLimit;
use crate::transfer_progress::TransferProgress;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 256 * 1024;
/// How often a file is sent again whose receiver has lost acknowledged content.
const MAX_ATTEMPTS: u32 = 5;

/// A file to send.
#[derive(Debug, Clone)]
pub(super) struct LocalFile {
    path: PathBuf,
    /// Name for the receiver.
    pub(super) name: String,
    pub(super) size: u64,
    modified: Option<SystemTime>,
}

/// Why a file could not be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum OutgoingFileError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} changed while it was sent; send it again", path.display())]
    Changed { path: PathBuf },
}

/// How files are sent.
#[derive(Clone)]
pub(super) struct FileSending {
    pub(super) digest: DigestAlgorithm,
    /// Continue a transfer of the same file that was interrupted.
    pub(super) is_resume: bool,
    /// The request that the files answer.
    pub(super) request: Option<u64>,
    pub(super) limit: Arc<RateLimit>,
    pub(super) progress: Arc<TransferProgress>,
}

/// The file `path`, or all files in it if it is a directory, named `name` or `name/...` for the receiver. Files that
/// are neither regular nor directories are left out.
pub(super) fn collect_files(path: &Path, name: &str) -> io::Result<Vec<LocalFile>> {
    let mut files = Vec::new();
    collect_into(path, name, &mut files)?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn collect_into(path: &Path, name: &str, files: &mut Vec<LocalFile>) -> io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_file() {
        files.push(LocalFile {
            path: path.to_owned(),
            name: name.to_owned(),
            size: metadata.len(),
            modified: metadata.modified().ok(),
        });
        return Ok(());
    }
    if !metadata.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        // Links inside a directory could lead out of it, or in circles.
        if entry.file_type()?.is_symlink() {
            continue;
        }
        let file_name = entry.file_name();
        let Some(file_name) = file_name.to_str() else {
            let text = format!("{} is not UTF-8 text", entry.path().display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        let name = match name {
            "" => file_name.to_owned(),
            name => format!("{name}/{file_name}"),
        };
        collect_into(&entry.path(), &name, files)?;
    }
    Ok(())
}

impl LocalFile {
    pub(super) fn announcement(&self) -> AnnouncedFile {
        AnnouncedFile {
            name: self.name.clone(),
            size: self.size,
        }
    }

    /// The same for the same content, as far as the file system tells.
    fn transfer_id(&self, digest: DigestAlgorithm) -> TransferId {
        let mut hasher = ContentHasher::new(DigestAlgorithm::Blake3);
        let modified = self
            .modified
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = modified.map_or(0, |time| time.as_nanos());
        hasher.update(&self.size.to_le_bytes());
        hasher.update(&modified.to_le_bytes());
        hasher.update(&[digest as u8]);
        hasher.update(self.name.as_bytes());
        let digest = hasher.finish().bytes;
        TransferId(*digest.first_chunk().expect("a digest has 32 bytes"))
    }

    fn metadata(&self, request: Option<u64>) -> Vec<u8> {
        let modified = self
            .modified
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let metadata = FileMetadata {
            name: self.name.clone(),
            modified_ms: modified.and_then(|time| i64::try_from(time.as_millis()).ok()),
            request,
            ..FileMetadata::default()
        };
        serde_json::to_vec(&metadata).expect("texts and numbers are valid JSON")
    }
}

impl FileSending {
    /// Sends a file and returns when the receiver has stored and verified it.
    pub(super) async fn send(
        &self,
        link: &Link,
        file: &LocalFile,
    ) -> Result<ContentDigest, OutgoingFileError> {
        let transfer_id = match self.is_resume {
            true => file.transfer_id(self.digest),
            false => TransferId(random_bytes()),
        };
        let mut attempt = 1;
        loop {
            let new = NewStream {
                priority: Priority::Bulk,
                transfer_id,
                size: Some(file.size),
                digest: Some(self.digest),
                metadata: file.metadata(self.request),
                is_resume: self.is_resume || attempt > 1,
            };
            let is_resume = new.is_resume;
            let stream = link.send_stream(new).await?;
            let mut done = 0;
            let result = self.send_content(stream, file, is_resume, &mut done).await;
            if result.is_err() {
                self.progress.remove_done(done);
            }
            match result {
                Err(OutgoingFileError::Link(LinkError::Stream { code, .. }))
                    if code == ErrorCode::CONTENT_LOST && attempt < MAX_ATTEMPTS =>
                {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn send_content(
        &self,
        stream: OutgoingStream,
        file: &LocalFile,
        is_resume: bool,
        done: &mut u64,
    ) -> Result<ContentDigest, OutgoingFileError> {
        let failed = |error| OutgoingFileError::Read {
            path: file.path.clone(),
            error,
        };
        let content = File::open(&file.path).map_err(failed)?;
        let known = match is_resume {
            true => stream.accepted().await?,
            false => RangeSet::new(),
        };
        let mut hasher = ContentHasher::new(self.digest);
        let mut buffers = PieceBuffers::default();
        let mut offset = 0;
        while offset < file.size {
            let len = (file.size - offset).min(PIECE_BYTES as u64) as usize;
            let mut piece = buffers.take(len);
            let read = tokio::task::block_in_place(|| {
                content.read_exact_at(&mut piece, offset)?;
                hasher.update(&piece);
                Ok::<(), io::Error>(())
            });
            match read {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let path = file.path.clone();
                    return Err(OutgoingFileError::Changed { path });
                }
                Err(error) => return Err(failed(error)),
            }
            if !known.covers(offset..offset + len as u64) {
                self.limit.pass(len).await;
                stream.write(offset, buffers.sent(piece)).await?;
            }
            offset += len as u64;
            *done += len as u64;
            self.progress.add_done(len as u64);
        }
        if content.metadata().map_err(failed)?.len() != file.size {
            let path = file.path.clone();
            return Err(OutgoingFileError::Changed { path });
        }
        let digest = hasher.finish();
        stream.finish(file.size, Some(digest)).await?;
        Ok(digest)
    }
}
