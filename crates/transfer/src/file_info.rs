//! Files and transfers as they are shown.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::digest::FileDigest;
use crate::export_table::FileExport;
use crate::record::{FileOwner, FileRecord, FileState, OwnerKind};

/// Maximum number of ranges that a status contains.
pub const MAX_SHOWN_RANGES: usize = 1000;

/// A file or a transfer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FileInfo {
    /// Id given by the node.
    pub id: String,
    /// Id chosen by the sender.
    pub file_id: String,
    pub owner: FileOwner,
    pub name: String,
    pub state: FileState,
    /// Size in bytes; of a transfer as announced, `null` if it was not.
    pub size: Option<u64>,
    /// Bytes received.
    pub received_bytes: u64,
    /// SHA-256 digest in hexadecimal digits; of a transfer as announced.
    pub checksum: Option<FileDigest>,
    /// Media type given by the sender.
    pub content_type: Option<String>,
    /// Any JSON given by the sender.
    pub user_data: Value,
    /// Whether it is a part of a file that is made of several uploads.
    pub is_partial: bool,
    /// Whether the transfer is paused: it rejects segments and does not expire.
    pub is_paused: bool,
    pub created_at_ms: u64,
    /// When the file was complete and verified; `null` for a transfer.
    pub completed_at_ms: Option<u64>,
    /// When it will be removed; `null`: it is kept until it is deleted.
    pub expires_at_ms: Option<u64>,
    /// What the file is kept for, such as firmware packages; while there is anything, it cannot be deleted.
    pub used_by: Vec<String>,
    /// Exports of the file, by sink.
    pub exports: Vec<FileExport>,
}

impl FileInfo {
    pub(crate) fn new(
        record: &FileRecord,
        received_bytes: u64,
        expires_at_ms: Option<u64>,
        exports: Vec<FileExport>,
    ) -> Self {
        Self {
            id: record.id.clone(),
            file_id: record.file_id.clone(),
            owner: record.owner.clone(),
            name: record.name.clone(),
            state: record.state,
            size: record.size,
            received_bytes,
            checksum: record.checksum,
            content_type: record.content_type.clone(),
            user_data: record.user_data.clone(),
            is_partial: record.is_partial,
            is_paused: record.is_paused,
            created_at_ms: record.created_at_ms,
            completed_at_ms: record.completed_at_ms,
            expires_at_ms,
            used_by: record.used_by.iter().cloned().collect(),
            exports,
        }
    }

    /// The fields of the event `$events/file/received`, which are also those of the row of an export.
    #[must_use]
    pub fn event_fields(&self) -> Value {
        let owner_of = |kind| (self.owner.kind == kind).then_some(&self.owner.id);
        json!({
            "id": self.id,
            "file_id": self.file_id,
            "name": self.name,
            "size": self.size,
            "sha256": self.checksum,
            "content_type": self.content_type,
            "user_data": self.user_data,
            "clientid": owner_of(OwnerKind::Client),
            "deviceId": owner_of(OwnerKind::Device),
            "operator": owner_of(OwnerKind::Operator),
            "productId": self.owner.product,
            "namespace": self.owner.namespace,
            "path": format!("/api/v1/files/{}/content", self.id),
        })
    }
}

/// What of a transfer was received. Ranges are pairs of the first byte and the byte after the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TransferStatus {
    pub state: FileState,
    /// Whether the transfer is paused: it rejects segments and does not expire.
    pub is_paused: bool,
    /// Size in bytes; `null`: not announced.
    pub size: Option<u64>,
    /// The first 1000 ranges that were received.
    pub received: Vec<(u64, u64)>,
    /// The first 1000 ranges that are missing. If the size is not announced, those below the end of the last segment.
    pub missing: Vec<(u64, u64)>,
    /// Recommended size of a segment in bytes.
    pub chunk: u64,
}
