//! The records of this node, as the exchange with other nodes sees them.

use super::digests::RecordDigests;
use super::version::RecordVersion;

/// A record in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub id: String,
    pub version: RecordVersion,
    /// `None`: the record was removed.
    pub content: Option<Vec<u8>>,
}

/// Why records cannot be read or written. The exchange is repeated later.
pub type SharedRecordsError = Box<dyn std::error::Error + Send + Sync>;

/// Records that are the same on all nodes. Calls may read and write files.
pub trait SharedRecords: Send + Sync + 'static {
    /// What others need to make use of the records, such as the key of their digests. At most 64 KiB.
    fn context(&self) -> Vec<u8>;

    /// Adds the context of another node to that of this one.
    fn merge_context(&self, context: &[u8]) -> Result<(), SharedRecordsError>;

    /// See [`RecordDigests::root`].
    fn root(&self) -> u64;

    fn digests(&self) -> RecordDigests;

    /// The versions of all records in a bucket, removed ones included as long as they are remembered.
    fn versions(
        &self,
        bucket: u16,
        each: &mut dyn FnMut(&str, RecordVersion),
    ) -> Result<(), SharedRecordsError>;

    fn version(&self, id: &str) -> Result<Option<RecordVersion>, SharedRecordsError>;

    /// `None`: the record is not known, or cannot be sent.
    fn read(&self, id: &str) -> Result<Option<Record>, SharedRecordsError>;

    /// Stores records of another node, except where this node has the same or a later version.
    fn apply(&self, records: Vec<Record>) -> Result<(), SharedRecordsError>;
}
