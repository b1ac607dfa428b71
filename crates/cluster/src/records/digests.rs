//! Digests that show which records two nodes have in different versions.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::version::RecordVersion;

/// Buckets of records; only the versions in those with different digests are exchanged. With 10 million records, one
/// bucket has about 600.
pub const RECORD_BUCKETS: usize = 16_384;

/// The bucket of a record, the same on all nodes.
pub fn record_bucket(id: &str) -> u16 {
    (xxh3_64(id.as_bytes()) % RECORD_BUCKETS as u64) as u16
}

/// A digest of the versions of the records of each bucket. Removed records do not count: nodes forget them at
/// different times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordDigests(Box<[u64]>);

impl Default for RecordDigests {
    fn default() -> Self {
        Self(vec![0; RECORD_BUCKETS].into())
    }
}

impl RecordDigests {
    /// Adds a record that exists, or removes one that was added with this version.
    pub fn toggle(&mut self, id: &str, version: RecordVersion) {
        let name = xxh3_64(id.as_bytes());
        let bucket = (name % RECORD_BUCKETS as u64) as usize;
        self.0[bucket] ^= xxh3_64_with_seed(&version.to_bytes(), name);
    }

    /// Whether all records are the same, but for an accident.
    pub fn root(&self) -> u64 {
        let places = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, digest)| **digest != 0);
        places.fold(0, |root, (bucket, digest)| {
            root ^ xxh3_64_with_seed(&digest.to_le_bytes(), bucket as u64)
        })
    }

    pub(super) fn as_slice(&self) -> &[u64] {
        &self.0
    }

    /// Buckets whose digests differ from those of another node, of which there are [`RECORD_BUCKETS`].
    pub(super) fn differences(&self, other: &[u64]) -> Vec<u16> {
        let pairs = self.0.iter().zip(other).enumerate();
        let different = pairs.filter(|(_, (own, other))| own != other);
        different.map(|(bucket, _)| bucket as u16).collect()
    }
}
