//! Whether notifications of logged batches wait for a copy of the log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether notifications are held, and up to which frame they are confirmed.
#[derive(Default)]
pub(crate) struct NotificationHold {
    pub(super) is_active: AtomicBool,
    pub(super) confirmed_lsn: AtomicU64,
}

impl NotificationHold {
    /// Whether notifications of the group that was just published are held.
    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }
}
