//! The version of a record.

use xxhash_rust::xxh3::xxh3_64;

use crate::member::NodeName;

/// Orders the changes of one record. A change has a later version than what its node knew before, also if the clock of
/// that node is behind. Versions of different records are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordVersion {
    pub time_ms: u64,
    /// The node that has made the change, which decides between changes at the same time.
    pub node: u64,
}

impl RecordVersion {
    pub const BYTES: usize = 16;

    /// The version of a change after the version `before`.
    pub fn next(before: Option<Self>, now_ms: u64, node: u64) -> Self {
        let earliest = before.map_or(0, |before| before.time_ms.saturating_add(1));
        Self {
            time_ms: now_ms.max(earliest),
            node,
        }
    }

    /// The number of a node in versions.
    pub fn node_number(node: &NodeName) -> u64 {
        xxh3_64(node.as_str().as_bytes())
    }

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.time_ms.to_le_bytes());
        bytes[8..].copy_from_slice(&self.node.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let (mut time, mut node) = ([0; 8], [0; 8]);
        time.copy_from_slice(&bytes[..8]);
        node.copy_from_slice(&bytes[8..]);
        Self {
            time_ms: u64::from_le_bytes(time),
            node: u64::from_le_bytes(node),
        }
    }
}
