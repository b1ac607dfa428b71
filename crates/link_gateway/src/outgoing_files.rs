//! Files and images on their way to a peer.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use content::{ContentDigest, ContentHasher, DigestAlgorithm};
use firmware::{ChunkTransport, FirmwarePackage, FirmwareService};
use link::core::NewStream;
use link::error_code::ErrorCode;
use link::net::{Link, LinkError, PieceBuffers};
use link::priority::Priority;
use link::wire::control::TransferId;
use tokio::task::block_in_place;
use transfer::{FileDigest, FileService, TransferError};

use crate::exchange::{AnnouncedFile, FileMetadata};

/// Bytes that are read at a time.
const PIECE_BYTES: u64 = 256 << 10;
/// How often a file is sent again whose receiver has lost acknowledged content.
const MAX_ATTEMPTS: u32 = 5;

/// A file that a peer may receive.
#[derive(Clone)]
pub(crate) struct OfferedFile {
    /// Name for the peer.
    pub(crate) name: String,
    /// Id of the file in the node.
    pub(crate) id: String,
    pub(crate) size: u64,
    pub(crate) digest: FileDigest,
    pub(crate) modified_ms: Option<u64>,
    /// The package whose image it is. Its pieces are shared with all devices that install it.
    pub(crate) package: Option<Arc<FirmwarePackage>>,
}

/// Why a file was not sent.
#[derive(Debug)]
pub(crate) enum SendFileError {
    /// The receiver rejects it, or the link has ended.
    Link(LinkError),
    /// The file cannot be read; it may have expired.
    File(TransferError),
}

impl From<LinkError> for SendFileError {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl From<TransferError> for SendFileError {
    fn from(error: TransferError) -> Self {
        Self::File(error)
    }
}

/// Where pieces of a file are read.
enum FileSource<'a> {
    File(File),
    Image(&'a FirmwareService, &'a FirmwarePackage),
}

impl FileSource<'_> {
    fn read(
        &self,
        offset: u64,
        len: u64,
        buffers: &mut PieceBuffers,
    ) -> Result<Bytes, TransferError> {
        match self {
            Self::Image(firmware, package) => {
                firmware.read_chunk(package, offset, len, ChunkTransport::Link)
            }
            Self::File(file) => {
                let mut piece = buffers.take(len as usize);
                file.read_exact_at(&mut piece, offset).map_err(|error| {
                    let detail = format!("cannot read a file: {error}");
                    TransferError::new(transfer::TransferErrorKind::Storage, detail)
                })?;
                Ok(buffers.sent(piece))
            }
        }
    }
}

impl OfferedFile {
    pub(crate) fn announcement(&self) -> AnnouncedFile {
        AnnouncedFile {
            name: self.name.clone(),
            size: self.size,
        }
    }

    /// The same for the same content, so that the peer can continue a transfer that was interrupted.
    fn transfer_id(&self) -> TransferId {
        let digest = ContentHasher::digest(DigestAlgorithm::Blake3, self.id.as_bytes());
        TransferId(*digest.bytes.first_chunk().expect("a digest has 32 bytes"))
    }

    /// Sends the file and returns when the peer has stored and verified it.
    pub(crate) async fn send(
        &self,
        link: &Link,
        request: u64,
        files: &FileService,
        firmware: &FirmwareService,
    ) -> Result<(), SendFileError> {
        let source = match &self.package {
            Some(package) => FileSource::Image(firmware, package),
            None => FileSource::File(block_in_place(|| files.read(&self.id))?.1),
        };
        let metadata = FileMetadata {
            name: self.name.clone(),
            modified_ms: self.modified_ms.and_then(|ms| i64::try_from(ms).ok()),
            request: Some(request),
            ..FileMetadata::default()
        };
        let new = NewStream {
            priority: Priority::Bulk,
            transfer_id: self.transfer_id(),
            size: Some(self.size),
            digest: Some(DigestAlgorithm::Sha256),
            metadata: serde_json::to_vec(&metadata).expect("texts and numbers are valid JSON"),
            // The receiver decides what it uses of an interrupted transfer.
            is_resume: true,
        };
        let mut attempt = 1;
        loop {
            match self.send_content(link, new.clone(), &source, files).await {
                Err(SendFileError::Link(LinkError::Stream { code, .. }))
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
        link: &Link,
        new: NewStream,
        source: &FileSource<'_>,
        files: &FileService,
    ) -> Result<(), SendFileError> {
        let stream = link.send_stream(new).await?;
        let known = stream.accepted().await?;
        let mut buffers = PieceBuffers::default();
        let mut offset = 0;
        while offset < self.size {
            let len = PIECE_BYTES.min(self.size - offset);
            if !known.covers(offset..offset + len) {
                let piece = block_in_place(|| source.read(offset, len, &mut buffers))?;
                stream.write(offset, piece).await?;
                files.count_sent(len);
            }
            offset += len;
        }
        let digest = ContentDigest {
            algorithm: DigestAlgorithm::Sha256,
            bytes: self.digest.0,
        };
        stream.finish(self.size, Some(digest)).await?;
        Ok(())
    }
}
