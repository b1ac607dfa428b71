//! Journals: entries with increasing numbers, of which the oldest are removed. The audit log is one.
//!
//! Key: name, NUL, number (8 bytes, big-endian). Value: JSON.

use serde_json::Value;

use crate::error::StoreError;
use crate::keyed_state::KeyedDatabase;
use crate::objects::Objects;

/// Maximum number of old entries that one append removes after the limit was lowered.
const MAX_TRIM: u64 = 64;

impl Objects {
    /// Appends an entry, numbered from 1 on, and removes the oldest beyond `max_entries`. Survives the end of the process
    /// immediately, and a power failure from the next sync on.
    pub fn append_journal_entry(
        &self,
        journal: &str,
        value: &Value,
        max_entries: u64,
    ) -> Result<u64, StoreError> {
        let mut writing = self.lock_writes();
        let db = self.db()?;
        let (mut first, number) = match writing.journals.get(journal) {
            Some(&known) => known,
            None => number_bounds(&db, journal)?,
        };
        let mut batch = db.database.batch();
        batch.insert(
            &db.journals,
            entry_key(journal, number),
            value.to_string().as_bytes(),
        );
        for _ in 0..MAX_TRIM {
            if number - first < max_entries.max(1) {
                break;
            }
            batch.remove(&db.journals, entry_key(journal, first));
            first += 1;
        }
        batch
            .commit()
            .map_err(StoreError::keyed_error("write a journal entry"))?;
        writing
            .journals
            .insert(journal.to_owned(), (first, number + 1));
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

/// The numbers of the first and the next entry.
fn number_bounds(db: &KeyedDatabase, journal: &str) -> Result<(u64, u64), StoreError> {
    let mut range = db
        .journals
        .range(entry_key(journal, 0)..entry_key(journal, u64::MAX));
    let number = |item: Option<fjall::Guard>| {
        item.map(|item| item.key().map(|key| entry_number(&key)))
            .transpose()
            .map_err(StoreError::keyed_error("read a journal"))
    };
    let Some(first) = number(range.next())? else {
        return Ok((1, 1));
    };
    let last = number(range.next_back())?.unwrap_or(first);
    Ok((first, last + 1))
}

fn entry_key(journal: &str, number: u64) -> Vec<u8> {
    [journal.as_bytes(), b"\0", &number.to_be_bytes()].concat()
}

fn entry_number(key: &[u8]) -> u64 {
    let number = key.last_chunk::<8>();
    number.map_or(0, |number| u64::from_be_bytes(*number))
}
