//! Reading and appending entries of journals.

use serde_json::Value;

use crate::error::StoreError;
use crate::journal_entries::{JournalEntry, entry_key, entry_number};
use crate::objects::Objects;

impl Objects {
    /// Appends an entry, numbered from 1 on, and removes the oldest beyond its `max_entries`. Survives the end of the
    /// process immediately, and a power failure from the next sync on.
    pub fn append_journal_entry(&self, entry: &JournalEntry) -> Result<u64, StoreError> {
        let mut writing = self.lock_writes();
        let db = self.db()?;
        let mut batch = db.database.batch();
        let appended = writing.journals.append(&db, &mut batch, entry)?;
        let number = appended.number;
        let committed = self.commit_with(batch, None, "write a journal entry");
        writing.journals.finish(committed, Some(appended))?;
        Ok(number)
    }

    /// Up to `limit` entries, newest first, with numbers below `before`.
    pub fn list_journal_entries(
        &self,
        name: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Value)>, StoreError> {
        let db = self.db()?;
        let range = entry_key(name, 0)..entry_key(name, before.unwrap_or(u64::MAX));
        let mut found = Vec::new();
        for item in db.journals.range(range).rev().take(limit) {
            let (key, value) = item
                .into_inner()
                .map_err(StoreError::keyed_error("read a journal"))?;
            let value = serde_json::from_slice(&value).map_err(|error| StoreError::Damaged {
                what: format!("journal {name}, entry {}", entry_number(&key)),
                detail: error.to_string(),
            })?;
            found.push((entry_number(&key), value));
        }
        Ok(found)
    }
}
