//! What the node stores about a file, and the log of its received ranges.

use std::collections::BTreeSet;
use std::ops::Range;

use namespaces::DEFAULT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::FileDigest;

/// Version of the layout of a file's directory.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Who sent a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OwnerKind {
    /// An MQTT client that is not a registered device; its id is the client id.
    Client,
    /// A registered device.
    Device,
    /// An operator or an API key.
    Operator,
}

/// The sender of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileOwner {
    pub kind: OwnerKind,
    pub id: String,
    /// The product of a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    pub namespace: String,
}

impl FileOwner {
    #[must_use]
    pub fn client(client_id: &str) -> Self {
        Self {
            kind: OwnerKind::Client,
            id: client_id.to_owned(),
            product: None,
            namespace: DEFAULT.to_owned(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// Parts are still missing, or the file is not verified.
    Receiving,
    /// It is complete, verified and visible.
    Complete,
}

/// The stored description of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRecord {
    pub(crate) version: u32,
    pub(crate) id: String,
    pub(crate) owner: FileOwner,
    pub(crate) file_id: String,
    pub(crate) name: String,
    /// As announced, or of the complete file.
    pub(crate) size: Option<u64>,
    /// As announced, or of the complete file.
    pub(crate) checksum: Option<FileDigest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) segments_ttl_s: u32,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) user_data: Value,
    /// It is a part of a file that is made of several uploads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_partial: bool,
    /// Segments are rejected, and the transfer does not expire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_paused: bool,
    pub(crate) created_at_ms: u64,
    pub(crate) state: FileState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) completed_at_ms: Option<u64>,
    /// The rules have not handled the event of the file yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_event_pending: bool,
    /// It is a copy of a file of another node of the cluster, see [`FileService::begin_copy`](crate::FileService::begin_copy).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_copy: bool,
    /// What the file is kept for, see [`FileService::hold`](crate::FileService::hold).
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) used_by: BTreeSet<String>,
}

/// Bytes of one entry of the log of received ranges.
pub(crate) const ENTRY_BYTES: usize = 24;
/// Set in the length of a range whose bytes were synced before the entry was written.
const SYNCED: u64 = 1 << 63;

/// One entry of the log: offset, length, CRC-32C of the bytes, CRC-32C of the entry so far; little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RangeEntry {
    Written {
        range: Range<u64>,
        crc: u32,
    },
    /// The bytes were synced before.
    Synced(Range<u64>),
    /// The bytes of all earlier entries are synced.
    Checkpoint,
}

impl RangeEntry {
    pub(crate) fn encode(&self, log: &mut Vec<u8>) {
        let (start, len, crc) = match self {
            Self::Written { range, crc } => (range.start, range.end - range.start, *crc),
            Self::Synced(range) => (range.start, (range.end - range.start) | SYNCED, 0),
            Self::Checkpoint => (0, 0, 0),
        };
        let begin = log.len();
        log.extend_from_slice(&start.to_le_bytes());
        log.extend_from_slice(&len.to_le_bytes());
        log.extend_from_slice(&crc.to_le_bytes());
        let check = crc32c::crc32c(&log[begin..]);
        log.extend_from_slice(&check.to_le_bytes());
    }

    fn decode(entry: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (fields, check) = entry.split_at(ENTRY_BYTES - 4);
        if crc32c::crc32c(fields).to_le_bytes() != check {
            return None;
        }
        let word = |at: usize| u64::from_le_bytes(*fields[at..].first_chunk().expect("8 bytes"));
        let (start, len) = (word(0), word(8));
        let crc = u32::from_le_bytes(*fields[16..].first_chunk().expect("4 bytes"));
        let range = start..start.checked_add(len & !SYNCED)?;
        Some(match len {
            0 => Self::Checkpoint,
            _ if len & SYNCED != 0 => Self::Synced(range),
            _ => Self::Written { range, crc },
        })
    }
}

/// The intact beginning of a log.
pub(crate) struct RangeLog {
    pub(crate) entries: Vec<RangeEntry>,
    /// Length of the intact beginning in bytes.
    pub(crate) intact_bytes: u64,
}

pub(crate) fn decode_range_log(log: &[u8]) -> RangeLog {
    let (chunks, _) = log.as_chunks::<ENTRY_BYTES>();
    let entries: Vec<RangeEntry> = chunks.iter().map_while(RangeEntry::decode).collect();
    RangeLog {
        intact_bytes: (entries.len() * ENTRY_BYTES) as u64,
        entries,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_up_to_the_first_damaged_entry() {
        let entries = [
            RangeEntry::Written {
                range: 0..10,
                crc: 7,
            },
            RangeEntry::Synced(20..u64::MAX >> 2),
            RangeEntry::Checkpoint,
            RangeEntry::Written {
                range: 10..20,
                crc: u32::MAX,
            },
        ];
        let mut log = Vec::new();
        for entry in &entries {
            entry.encode(&mut log);
        }
        let read = decode_range_log(&log);
        assert_eq!(read.entries, entries);
        assert_eq!(read.intact_bytes, log.len() as u64);
        for at in 0..log.len() {
            assert_eq!(
                decode_range_log(&log[..at]).entries,
                entries[..at / ENTRY_BYTES]
            );
            let mut changed = log.clone();
            changed[at] ^= 1;
            let read = decode_range_log(&changed);
            assert_eq!(read.entries, entries[..at / ENTRY_BYTES], "byte {at}");
        }
    }
}
