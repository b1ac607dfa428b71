//! Entries of the audit log that wait because the store cannot write.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::{JournalEntry, Objects, StoreError};

/// Entries about actions that were carried out, and that could not be written. They are written with the next entry;
/// until then, requests that would need one are rejected, which bounds their number.
#[derive(Clone, Default)]
pub(crate) struct UnwrittenEntries(Arc<Mutex<VecDeque<JournalEntry>>>);

impl UnwrittenEntries {
    pub(crate) fn push(&self, entry: JournalEntry) {
        self.lock().push_back(entry);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<JournalEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the entries in their order; those that cannot be written stay. Blocks on the store.
    pub(crate) fn write(&self, objects: &Objects) -> Result<(), StoreError> {
        // The lock is not held while the store writes: requests take it on threads that must not block.
        loop {
            let Some(entry) = self.lock().pop_front() else {
                return Ok(());
            };
            if let Err(error) = objects.append_journal_entry(&entry) {
                self.lock().push_front(entry);
                return Err(error);
            }
        }
    }
}
