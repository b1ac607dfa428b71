//! The part of a durable session's queue that is only in the store.

/// Messages of a durable session that are only in the store, behind all that are in memory. A session without a
/// connection keeps none in memory; a resumed one reads them page by page.
#[derive(Default)]
pub(super) struct StoredTail {
    /// Messages from this number on are stored and not in memory.
    pub(super) from_seq: u64,
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// When the oldest was received, approximately.
    pub(super) since_ms: u64,
    /// First number of the page that is being read.
    pub(super) fetching: Option<u64>,
    /// Messages and bytes stored since that read began.
    pub(super) since_fetch: (usize, usize),
}
