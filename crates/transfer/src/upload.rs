//! Uploads of one request at a time, as over HTTP: exclusive access, pieces that count only when their checksum is
//! verified, and files made of several uploads.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use wall_clock::now_ms;

use crate::error::{TransferError, TransferErrorKind};
use crate::file_info::FileInfo;
use crate::file_table::{EntryPhase, FileEntry};
use crate::record::FileOwner;
use crate::service::{FileService, FileTarget};

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Exclusive access to a transfer for one request.
pub struct UploadGuard {
    service: FileService,
    id: String,
}

impl Drop for UploadGuard {
    fn drop(&mut self) {
        let uploads = self.service.inner.uploads.lock();
        uploads
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.id);
    }
}

fn not_found() -> TransferError {
    let detail = "there is no upload of this id, or it has expired; begin a new one";
    TransferError::new(TransferErrorKind::NotFound, detail)
}

/// The id under which a request takes a transfer that is not begun yet; ids of files contain no line feed.
fn single_request_id(owner: &FileOwner, file_id: &str) -> String {
    format!("{}\n{file_id}", owner.id)
}

impl FileService {
    /// Takes a transfer for one request; `None`: another request has it.
    #[must_use]
    pub fn lock_upload(&self, id: &str) -> Option<UploadGuard> {
        let mut uploads = (self.inner.uploads.lock()).unwrap_or_else(PoisonError::into_inner);
        uploads.insert(id.to_owned()).then(|| UploadGuard {
            service: self.clone(),
            id: id.to_owned(),
        })
    }

    /// Takes a transfer of which one request carries all bytes, so that it cannot be continued; `None`: another request has
    /// it.
    #[must_use]
    pub fn lock_single_request(&self, owner: &FileOwner, file_id: &str) -> Option<UploadGuard> {
        self.lock_upload(&single_request_id(owner, file_id))
    }

    /// Whether one request carries all bytes of a transfer.
    pub(crate) fn is_single_request(&self, owner: &FileOwner, file_id: &str) -> bool {
        let uploads = self.inner.uploads.lock();
        let uploads = uploads.unwrap_or_else(PoisonError::into_inner);
        uploads.contains(&single_request_id(owner, file_id))
    }

    fn transfer_of(&self, id: &str) -> Result<Arc<FileEntry>, TransferError> {
        self.find(FileTarget::Id(id)).ok_or_else(not_found)
    }

    /// Writes bytes that do not count before [`record_staged`](Self::record_staged). The range must not contain received
    /// bytes.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn stage(&self, id: &str, offset: u64, bytes: &[u8]) -> Result<(), TransferError> {
        let entry = self.transfer_of(id)?;
        let mut state = entry.lock();
        if matches!(state.phase, EntryPhase::Complete | EntryPhase::Removed) {
            return Err(not_found());
        }
        state.check_not_paused()?;
        self.check_room(&entry, offset, bytes.len() as u64)?;
        let staged = self.open_partial(&entry, &mut state)?.stage(offset, bytes);
        state.last_activity_ms = now_ms();
        staged.map_err(|error| TransferError::storage("write a segment", &error))
    }

    /// Makes staged bytes count, durably.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn record_staged(&self, id: &str, offset: u64, len: u64) -> Result<(), TransferError> {
        let entry = self.transfer_of(id)?;
        let mut state = entry.lock();
        let sync = self.inner.settings.fsync == disk::Fsync::Always;
        let file = self.open_partial(&entry, &mut state)?;
        let recorded = file.record_staged(offset..offset + len);
        let recorded = recorded.and_then(|()| file.commit(sync));
        entry.received.store(file.received().count(), Relaxed);
        self.inner.metrics.received_bytes.fetch_add(len, Relaxed);
        recorded.map_err(|error| TransferError::storage("store a segment", &error))
    }

    /// Copies the content of other transfers, whose bytes have all arrived, into a new one, one after the other.
    ///
    /// # Errors
    /// If there is no such transfer, one is not whole, or the disk is full.
    pub fn concatenate(&self, target: &str, parts: &[String]) -> Result<(), TransferError> {
        let mut offset = 0;
        for part in parts {
            let entry = self.transfer_of(part)?;
            let (size, received) = {
                let mut state = entry.lock();
                let size = state.record.size.unwrap_or(0);
                (
                    size,
                    self.open_partial(&entry, &mut state)?
                        .received()
                        .contiguous_end(0),
                )
            };
            if received != size {
                let detail =
                    format!("the upload {part} has {received} of {size} bytes; complete it first");
                return Err(TransferError::new(TransferErrorKind::Incomplete, detail));
            }
            let failed = |error| TransferError::storage("copy an upload", &error);
            let file = File::open(entry.directory.data_path()).map_err(failed)?;
            let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(size).unwrap_or(COPY_BYTES))];
            let mut at = 0;
            while at < size {
                let wanted = buffer.len().min((size - at) as usize);
                file.read_exact_at(&mut buffer[..wanted], at)
                    .map_err(failed)?;
                let written =
                    self.write(FileTarget::Id(target), offset, &buffer[..wanted], None)?;
                self.commit(&written)?;
                at += wanted as u64;
                offset += wanted as u64;
            }
        }
        Ok(())
    }

    /// A link to a complete file that is valid until then: the value of its signature.
    ///
    /// # Errors
    /// If there is no such complete file.
    pub fn sign_link(&self, id: &str, expires_at_ms: u64) -> Result<String, TransferError> {
        self.read(id)?;
        Ok(self.inner.link_key.sign(id, expires_at_ms))
    }

    /// Path and query of a signed link, relative to the address of the HTTP API.
    #[must_use]
    pub fn signed_path(id: &str, expires_at_ms: u64, signature: &str) -> String {
        format!("/api/v1/signed-files/{id}?expires={expires_at_ms}&signature={signature}")
    }

    /// Whether a link was signed by this node, or by another one of the cluster, and has not expired.
    #[must_use]
    pub fn is_link_valid(&self, id: &str, expires_at_ms: u64, signature: &str) -> bool {
        (self.inner.link_key).verify(id, expires_at_ms, signature, now_ms())
    }

    /// The key by which this node signs links, for other nodes of the cluster only.
    #[must_use]
    pub fn link_key(&self) -> &str {
        self.inner.link_key.text()
    }

    /// Accepts links that another node of the cluster signs with this key.
    ///
    /// # Errors
    /// If the key is invalid, or the file system returns an error.
    pub fn set_link_key_of_node(&self, node: &str, key: &str) -> Result<(), TransferError> {
        let set = self.inner.link_key.set_key_of_node(node, key);
        set.map_err(|error| TransferError::storage("store the key of another node", &error))
    }

    /// Whether all bytes of a transfer have arrived.
    #[must_use]
    pub fn has_all_bytes(info: &FileInfo) -> bool {
        info.size == Some(info.received_bytes)
    }
}
