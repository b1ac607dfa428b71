//! What a copy of a store on another node needs: reading the log, and notifications that wait for the copy.

use std::sync::Arc;

use super::Store;
use crate::error::StoreError;
use crate::log::tail::LogTail;

impl Store {
    /// Reads the log while the store runs: from the oldest segment on, or after a log sequence number (LSN) up to which the caller
    /// has everything. An LSN is comparable only as long as the store stays open: after a crash, numbers may be used again.
    ///
    /// The log has the queues and received packet ids of all sessions, but only the newest changes of the keyed state. A copy
    /// begins empty, with `None`; it takes what [`scan`](Self::scan) finds *after* this call, and then all frames in order.
    /// Older changes are then overwritten by newer ones, and the result is the state of this store.
    ///
    /// # Errors
    ///
    /// [`StoreError::LogPositionGone`] if the frame after the LSN is no longer in the log, or the LSN was never written.
    pub fn tail_log(&self, after_lsn: Option<u64>) -> Result<LogTail, StoreError> {
        let shared = Arc::clone(&self.inner.shared);
        LogTail::new(shared, self.inner.log_dir.clone(), after_lsn)
    }

    /// Log sequence number of the last frame written; 0 if there is none.
    pub fn logged_lsn(&self) -> u64 {
        self.inner.shared.written_log.written_lsn()
    }

    /// Has `wake` called whenever frames were written, in place of an earlier function. The writer calls it after every group, so
    /// it must be fast and must not block. It must not own this store, which would then never be closed.
    pub fn watch_log(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let watcher = Some(Arc::from(wake));
        self.inner.shared.written_log.set_watcher(watcher);
    }

    /// From now on, [`StoreObserver::on_logged`](crate::StoreObserver::on_logged) waits until
    /// [`confirm_replicated`](Self::confirm_replicated) covers the batch. When this returns, no batch after
    /// [`logged_lsn`](Self::logged_lsn) is reported unconfirmed; batches up to it may be. A store that is closed does not deliver
    /// what it holds.
    pub fn hold_notifications(&self) {
        self.inner.shared.hold_notifications();
    }

    /// The copy has everything up to this log sequence number: held notifications up to it are delivered. A number above
    /// [`logged_lsn`](Self::logged_lsn) counts as that.
    pub fn confirm_replicated(&self, lsn: u64) {
        self.inner.shared.confirm_replicated(lsn);
    }

    /// Ends holding and delivers everything held.
    pub fn release_notifications(&self) {
        self.inner.shared.release_notifications();
    }
}
