//! Copies of files of other nodes of a cluster, under the ids of the files.
//!
//! A copy is received like a transfer: piece by piece, resumed after a restart, and complete when its digest is verified. It has no
//! name among the files of its sender, and is not subject to quotas, which the node of the file has checked. It is kept
//! while somebody holds it, and removed by the last release.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::FileDigest;
use crate::error::{TransferError, TransferErrorKind};
use crate::file_info::FileInfo;
use crate::file_table::EntryPhase;
use crate::record::{FORMAT_VERSION, FileOwner, FileRecord, FileState};
use crate::service::{FileService, FileTarget, usage_of_new};

/// A complete file, as another node needs it to make a copy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileDescription {
    pub id: String,
    pub owner: FileOwner,
    pub file_id: String,
    pub name: String,
    pub size: u64,
    pub checksum: FileDigest,
    pub content_type: Option<String>,
    pub user_data: Value,
    pub created_at_ms: u64,
}

impl FileService {
    /// Describes a complete file; `None`: there is none with this id.
    #[must_use]
    pub fn description(&self, id: &str) -> Option<FileDescription> {
        let entry = self.find(FileTarget::Id(id))?;
        let state = entry.lock();
        let record = &state.record;
        matches!(state.phase, EntryPhase::Complete).then_some(())?;
        Some(FileDescription {
            id: record.id.clone(),
            owner: record.owner.clone(),
            file_id: record.file_id.clone(),
            name: record.name.clone(),
            size: record.size?,
            checksum: record.checksum?,
            content_type: record.content_type.clone(),
            user_data: record.user_data.clone(),
            created_at_ms: record.created_at_ms,
        })
    }

    /// Begins a copy of a file of another node, or continues it. Its bytes are written like those of a transfer; then it is
    /// finished with the size and the digest of the description.
    ///
    /// # Errors
    /// If the id belongs to another file of this node, a limit of the node is reached, or the disk is nearly full.
    pub fn begin_copy(&self, file: &FileDescription) -> Result<FileInfo, TransferError> {
        self.count(self.try_begin_copy(file))
    }

    fn try_begin_copy(&self, file: &FileDescription) -> Result<FileInfo, TransferError> {
        self.check_enabled()?;
        self.check_file_size(file.size)?;
        // The id becomes the name of a directory.
        let is_id = !file.id.is_empty() && file.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_id {
            let detail = "another node has sent an invalid id of a file";
            return Err(TransferError::invalid(detail));
        }
        if let Some(info) = self.info(FileTarget::Id(&file.id)) {
            let is_same = info.checksum == Some(file.checksum) && info.size == Some(file.size);
            return match is_same {
                true => Ok(info),
                false => Err(TransferError::new(
                    TransferErrorKind::Conflict,
                    "this node has another file with this id",
                )),
            };
        }
        let record = FileRecord {
            version: FORMAT_VERSION,
            id: file.id.clone(),
            owner: file.owner.clone(),
            file_id: file.file_id.clone(),
            name: file.name.clone(),
            size: Some(file.size),
            checksum: Some(file.checksum),
            content_type: file.content_type.clone(),
            expires_at_ms: None,
            segments_ttl_s: self.inner.settings.max_segments_ttl_s,
            user_data: file.user_data.clone(),
            is_partial: false,
            is_paused: false,
            is_event_pending: false,
            created_at_ms: file.created_at_ms,
            state: FileState::Receiving,
            completed_at_ms: None,
            is_copy: true,
            used_by: std::collections::BTreeSet::new(),
        };
        let free = self.free_bytes()?;
        {
            let mut table = self.table();
            let needed = table.outstanding_bytes().saturating_add(file.size);
            self.check_free(free, needed)?;
            table.usage.add(&record.owner, usage_of_new(file.size));
        }
        self.create_counted(record, file.size)
    }

    /// Removes a copy that is not complete, so that it begins again. Others are left as they are.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn discard_copy(&self, id: &str) -> Result<(), TransferError> {
        let Some(entry) = self.find(FileTarget::Id(id)) else {
            return Ok(());
        };
        let is_copy = entry.lock().record.is_copy;
        match is_copy {
            true => (self.remove_entry(&entry, Some(FileState::Receiving))).map(drop),
            false => Ok(()),
        }
    }

    /// Removes a complete copy that nobody holds.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn remove_unused_copy(&self, id: &str) -> Result<(), TransferError> {
        let Some(entry) = self.find(FileTarget::Id(id)) else {
            return Ok(());
        };
        let is_unused = {
            let state = entry.lock();
            state.record.is_copy && state.record.used_by.is_empty()
        };
        match is_unused {
            true => self.remove_entry(&entry, None).map(drop),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use wall_clock::now_ms;

    use super::*;
    use crate::request::TransferRequest;
    use crate::service::COPY_RETENTION_MS;
    use crate::settings::TransferSettings;

    fn service() -> (tempfile::TempDir, FileService) {
        let directory = tempfile::tempdir().unwrap();
        let service = open(directory.path());
        (directory, service)
    }

    fn open(directory: &std::path::Path) -> FileService {
        let settings = TransferSettings {
            min_free_bytes: 0,
            max_files_per_owner: 1,
            ..TransferSettings::default()
        };
        FileService::open(directory, settings).unwrap()
    }

    fn upload(service: &FileService, content: &[u8]) -> FileDescription {
        let request = TransferRequest::new(FileOwner::client("c"), "image", "image.bin");
        let id = service.begin(request).unwrap().info().id.clone();
        let written = service.write(FileTarget::Id(&id), 0, content, None);
        service.commit(&written.unwrap()).unwrap();
        service.finish(FileTarget::Id(&id), None, None).unwrap();
        service.description(&id).unwrap()
    }

    fn add(service: &FileService, file: &FileDescription, offset: u64, bytes: &[u8]) {
        let written = service.write(FileTarget::Id(&file.id), offset, bytes, None);
        service.commit(&written.unwrap()).unwrap();
    }

    fn finish(service: &FileService, file: &FileDescription) -> Result<FileInfo, TransferError> {
        let target = FileTarget::Id(&file.id);
        service.finish(target, Some(file.size), Some(file.checksum))
    }

    #[test]
    fn a_copy_is_resumed_verified_and_removed_by_its_last_release() {
        let (_source_directory, source) = service();
        let (directory, service) = service();
        let file = upload(&source, b"firmware");
        // The sender has a file of the same name here, and no room for another one.
        let own = upload(&service, b"own");
        assert_eq!(service.begin_copy(&file).unwrap().received_bytes, 0);
        add(&service, &file, 0, b"firm");
        drop(service);
        let service = open(directory.path());
        assert_eq!(service.begin_copy(&file).unwrap().id, file.id);
        assert_eq!(service.received_prefix(&file.id).unwrap(), 4);
        assert!(service.description(&file.id).is_none(), "not complete yet");
        add(&service, &file, 4, b"wore");
        let error = finish(&service, &file).unwrap_err();
        assert_eq!(error.kind, TransferErrorKind::ChecksumMismatch);
        service.discard_copy(&file.id).unwrap();
        service.begin_copy(&file).unwrap();
        add(&service, &file, 0, b"firmware");
        finish(&service, &file).unwrap();
        assert_eq!(service.description(&file.id), Some(file.clone()));
        service.hold(&file.id, "the package").unwrap();
        service.remove_unused_copy(&file.id).unwrap();
        drop(service);
        let service = open(directory.path());
        assert!(service.read(&file.id).is_ok(), "held");
        assert!(service.read(&own.id).is_ok(), "not replaced");
        service.release(&file.id, "the package").unwrap();
        assert!(service.read(&file.id).is_err(), "removed");
        assert!(service.read(&own.id).is_ok());
    }

    #[test]
    fn a_copy_that_nobody_holds_expires() {
        let (_source_directory, source) = service();
        let (_directory, service) = service();
        let file = upload(&source, b"firmware");
        service.begin_copy(&file).unwrap();
        add(&service, &file, 0, b"firmware");
        finish(&service, &file).unwrap();
        service.expire(now_ms() + COPY_RETENTION_MS / 2);
        assert!(service.read(&file.id).is_ok());
        service.expire(now_ms() + COPY_RETENTION_MS + 1000);
        assert!(service.read(&file.id).is_err());
        assert!(source.read(&file.id).is_ok(), "the file itself stays");
    }

    #[test]
    fn other_files_are_not_overwritten() {
        let (_source_directory, source) = service();
        let (_directory, service) = service();
        let file = upload(&source, b"firmware");
        let own = upload(&service, b"own");
        let same_id = FileDescription {
            id: own.id.clone(),
            ..file.clone()
        };
        let error = service.begin_copy(&same_id).unwrap_err();
        assert_eq!(error.kind, TransferErrorKind::Conflict);
        service.discard_copy(&own.id).unwrap();
        service.remove_unused_copy(&own.id).unwrap();
        assert!(service.read(&own.id).is_ok());
        let outside = FileDescription {
            id: "../x".to_owned(),
            ..file
        };
        let error = service.begin_copy(&outside).unwrap_err();
        assert_eq!(error.kind, TransferErrorKind::InvalidRequest);
    }
}
