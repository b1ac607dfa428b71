//! Files from peers.

use std::time::Duration;

use content::{ContentDigest, DigestAlgorithm, PrefixDigest, RangeSet};
use link::core::IncomingStreamInfo;
use link::error_code::ErrorCode;
use link::net::{IncomingStream, LinkError};
use link::wire::control::Done;
use tokio::task::block_in_place;
use tokio::time::Instant;
use transfer::{
    FileDigest, FileOwner, FileService, FileState, FileTarget, TransferError, TransferErrorKind,
    TransferRequest, TransferStart, WrittenSegment,
};
use wall_clock::now_ms;

use crate::exchange::FileMetadata;
use crate::identity::ClientIdentity;
use crate::metrics::LinkMetrics;
use crate::shared::GatewayShared;

/// Content that is written before it is acknowledged.
const COMMIT_BYTES: u64 = 1 << 20;
/// Content is acknowledged after this time at the latest.
const COMMIT_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes that are digested at once.
const DIGEST_BYTES: u64 = 16 << 20;

/// Why a file was not received.
#[derive(Debug)]
pub(crate) enum UploadError {
    /// The sender has cancelled it, or the link has ended.
    Link,
    Rejected {
        code: ErrorCode,
        text: String,
    },
}

impl From<LinkError> for UploadError {
    fn from(_: LinkError) -> Self {
        Self::Link
    }
}

impl From<TransferError> for UploadError {
    fn from(error: TransferError) -> Self {
        let code = match error.kind {
            TransferErrorKind::TooLarge => ErrorCode::TOO_LARGE,
            TransferErrorKind::QuotaExceeded
            | TransferErrorKind::Busy
            | TransferErrorKind::Paused => ErrorCode::LIMIT_EXCEEDED,
            TransferErrorKind::DiskFull | TransferErrorKind::Storage => ErrorCode::STORAGE_FAILED,
            TransferErrorKind::ChecksumMismatch => ErrorCode::DIGEST_MISMATCH,
            TransferErrorKind::NotFound => ErrorCode::CANCELLED,
            TransferErrorKind::InvalidFileCommand
            | TransferErrorKind::InvalidRequest
            | TransferErrorKind::Incomplete => ErrorCode::PROTOCOL_VIOLATION,
            TransferErrorKind::Conflict | TransferErrorKind::Disabled => ErrorCode::NOT_PERMITTED,
        };
        Self::Rejected {
            code,
            text: error.to_string(),
        }
    }
}

fn rejected(code: ErrorCode, text: impl Into<String>) -> UploadError {
    UploadError::Rejected {
        code,
        text: text.into(),
    }
}

/// Receives the file of a stream.
pub(crate) async fn receive_file(
    shared: &GatewayShared,
    identity: &ClientIdentity,
    mut stream: IncomingStream,
) {
    match receive(shared, identity, &mut stream).await {
        Ok(()) => {
            stream.complete();
            LinkMetrics::count(&shared.metrics.files_received);
        }
        Err(UploadError::Link) => {}
        Err(UploadError::Rejected { code, text }) => {
            tracing::debug!(client_id = identity.client_id, %code, text, "file of a link rejected");
            LinkMetrics::count(&shared.metrics.files_rejected);
            stream.reject(code, &text);
        }
    }
}

async fn receive(
    shared: &GatewayShared,
    identity: &ClientIdentity,
    stream: &mut IncomingStream,
) -> Result<(), UploadError> {
    let info = stream.info().clone();
    let (request, algorithm) = read_request(&info, identity)?;
    // The sender derives the id of a stream from the content; an id that the application chose says nothing about it.
    let names_content = request.file_id == info.transfer_id.to_string();
    let topic = format!("$file/{}/init", request.file_id);
    match shared
        .broker
        .authorize_publish(&identity.client_id, topic)
        .await
    {
        Some(true) => {}
        Some(false) => {
            let file_id = &request.file_id;
            let text = format!(
                "the client may not publish to $file/{file_id}/init; permit it in the access rules"
            );
            return Err(rejected(ErrorCode::NOT_PERMITTED, text));
        }
        None => {
            return Err(rejected(
                ErrorCode::CANCELLED,
                "the client is not connected",
            ));
        }
    }
    let (mut upload, received) =
        block_in_place(|| ReceivedUpload::begin(&shared.files, request, algorithm, names_content))?;
    stream.accept(&received);
    let mut commit_at = Instant::now();
    let done = loop {
        let read = tokio::select! {
            read = stream.read() => Some(read?),
            () = tokio::time::sleep_until(commit_at), if upload.has_uncommitted() => None,
        };
        match read {
            Some(Ok(chunk)) => {
                if !upload.has_uncommitted() {
                    commit_at = Instant::now() + COMMIT_INTERVAL;
                }
                let len = chunk.bytes.len() as u64;
                block_in_place(|| upload.write(chunk.offset, &chunk.bytes))?;
                let until_ms = shared.files.charge_rate(&identity.owner, len);
                if upload.uncommitted_bytes() < COMMIT_BYTES && until_ms == 0 {
                    continue;
                }
                acknowledge(stream, &mut upload)?;
                let pause_ms = until_ms.saturating_sub(now_ms());
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            Some(Err(done)) => break done,
            None => acknowledge(stream, &mut upload)?,
        }
    };
    block_in_place(|| upload.finish(&done))
}

fn acknowledge(stream: &IncomingStream, upload: &mut ReceivedUpload) -> Result<(), UploadError> {
    let ranges = block_in_place(|| upload.commit())?;
    for range in ranges.iter() {
        stream.acknowledge(range);
    }
    Ok(())
}

/// Reads what OPEN says about a file.
fn read_request(
    info: &IncomingStreamInfo,
    identity: &ClientIdentity,
) -> Result<(TransferRequest, DigestAlgorithm), UploadError> {
    let metadata: FileMetadata = serde_json::from_slice(&info.metadata).map_err(|error| {
        let text = format!("metadata of the file: {error}");
        rejected(ErrorCode::PROTOCOL_VIOLATION, text)
    })?;
    let Some(algorithm) = info.digest else {
        let text = "a file needs a digest; open the stream with SHA-256 or BLAKE3";
        return Err(rejected(ErrorCode::NOT_PERMITTED, text));
    };
    let file_id = metadata
        .file_id
        .unwrap_or_else(|| info.transfer_id.to_string());
    let name = metadata.name.rsplit('/').next().unwrap_or_default();
    let mut user_data = metadata.user_data;
    if user_data.is_null() && name != metadata.name {
        // A file of a directory keeps its place.
        user_data = serde_json::json!({"path": metadata.name});
    }
    let mut request = TransferRequest::new(identity.owner.clone(), file_id, name);
    request.size = info.size;
    request.content_type = metadata.content_type;
    request.expires_at_ms = metadata
        .expire_at
        .map(|seconds| seconds.saturating_mul(1000));
    request.segments_ttl_s = metadata.segments_ttl;
    request.user_data = user_data;
    Ok((request, algorithm))
}

/// A transfer that a stream continues.
struct ReceivedUpload<'a> {
    files: &'a FileService,
    owner: FileOwner,
    file_id: String,
    id: String,
    /// What is not committed.
    written: Option<WrittenSegment>,
    uncommitted: RangeSet,
    /// The digest, unless it is SHA-256, which the files compute.
    digest: Option<PrefixDigest>,
}

impl<'a> ReceivedUpload<'a> {
    /// Begins or continues a transfer. Returns the ranges that were received before.
    fn begin(
        files: &'a FileService,
        request: TransferRequest,
        algorithm: DigestAlgorithm,
        names_content: bool,
    ) -> Result<(Self, RangeSet), UploadError> {
        let (owner, file_id) = (request.owner.clone(), request.file_id.clone());
        let known = files.info(FileTarget::Transfer(&owner, &file_id));
        // The sender has not learnt that the file is complete; DONE will prove that it is the same.
        let complete = known.filter(|info| {
            names_content
                && info.state == FileState::Complete
                && info.size == request.size
                && transfer::sanitise(&request.name).is_ok_and(|name| name == info.name)
        });
        let mut received = RangeSet::new();
        let (id, is_new) = match complete {
            Some(info) => (info.id, false),
            None => {
                let begun = files.begin(request)?;
                if begun.info().is_paused {
                    return Err(TransferError::paused().into());
                }
                let is_new = matches!(begun, TransferStart::New(_));
                (begun.info().id.clone(), is_new)
            }
        };
        if !is_new {
            for (start, end) in files.status(FileTarget::Id(&id))?.received {
                received.insert(start..end);
            }
        }
        let upload = Self {
            files,
            owner,
            file_id,
            id,
            written: None,
            uncommitted: RangeSet::new(),
            digest: match algorithm {
                DigestAlgorithm::Sha256 => None,
                other => Some(PrefixDigest::new(other)),
            },
        };
        Ok((upload, received))
    }

    fn has_uncommitted(&self) -> bool {
        !self.uncommitted.is_empty()
    }

    fn uncommitted_bytes(&self) -> u64 {
        self.uncommitted.count()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), UploadError> {
        let written = self
            .files
            .write(FileTarget::Id(&self.id), offset, bytes, None)?;
        self.written = Some(written);
        self.uncommitted.insert(offset..offset + bytes.len() as u64);
        if let Some(digest) = &mut self.digest {
            digest.append(offset, bytes);
        }
        Ok(())
    }

    /// Makes everything that is written durable. Returns its ranges.
    fn commit(&mut self) -> Result<RangeSet, UploadError> {
        if let Some(written) = self.written.take() {
            self.files.commit(&written)?;
        }
        Ok(std::mem::take(&mut self.uncommitted))
    }

    /// Verifies the file and makes it visible. A file with a wrong digest is removed, so that it can be sent again.
    fn finish(mut self, done: &Done) -> Result<(), UploadError> {
        self.commit()?;
        let result = self.complete(done);
        if let Err(UploadError::Rejected { code, .. }) = &result
            && *code == ErrorCode::DIGEST_MISMATCH
            && let Err(error) = self.files.abort(&self.owner, &self.file_id)
        {
            tracing::warn!(%error, id = self.id, "removing a file with a wrong digest failed");
        }
        result
    }

    fn complete(&mut self, done: &Done) -> Result<(), UploadError> {
        let Some(expected) = done.digest else {
            let text = "DONE contains no digest";
            return Err(rejected(ErrorCode::PROTOCOL_VIOLATION, text));
        };
        let sha256 = match &mut self.digest {
            None => Some(FileDigest(expected.bytes)),
            Some(digest) => {
                let actual = digest_of(self.files, &self.id, digest, done.size)?;
                if actual != expected {
                    let text = format!("the file has the digest {actual:?}, not {expected:?}");
                    return Err(rejected(ErrorCode::DIGEST_MISMATCH, text));
                }
                None
            }
        };
        let target = FileTarget::Id(&self.id);
        self.files.finish(target, Some(done.size), sha256)?;
        Ok(())
    }
}

/// Completes a digest with content that did not arrive in order.
fn digest_of(
    files: &FileService,
    id: &str,
    digest: &mut PrefixDigest,
    size: u64,
) -> Result<ContentDigest, UploadError> {
    if digest.at() < size {
        let file = files.content_of_transfer(id)?;
        while digest.at() < size {
            let before = digest.at();
            digest.advance(&file, size, DIGEST_BYTES).map_err(|error| {
                let text = format!("the file cannot be read: {error}");
                rejected(ErrorCode::STORAGE_FAILED, text)
            })?;
            if digest.at() == before {
                let text = "parts of the file are missing";
                return Err(rejected(ErrorCode::PROTOCOL_VIOLATION, text));
            }
        }
    }
    Ok(digest.finish())
}
