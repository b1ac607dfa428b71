//! Notification of shards about what the store has done for them.

use crate::queue::QueuePage;

/// Receives the results of submissions and fetches, on threads of the store. Implementations must not block.
pub trait StoreObserver: Send + Sync {
    /// Everything this shard submitted up to and including this batch is in the log; with
    /// [`Fsync::Always`](crate::Fsync), on disk.
    fn on_logged(&self, shard: u16, batch: u64);
    /// The batch is in the log of this node, but [`on_logged`](Self::on_logged) is held until another node has it. It is not called
    /// if nothing is held.
    fn on_written(&self, _shard: u16, _batch: u64) {}
    /// The answer to a fetch.
    fn on_fetched(&self, shard: u16, page: QueuePage);
}
