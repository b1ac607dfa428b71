//! Journals: entries with increasing numbers, of which the oldest are removed. The audit log is one.
//!
//! Key: name, NUL, number (8 bytes, big-endian). Value: JSON.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::StoreError;
use crate::keyed_state::KeyedDatabase;

/// Maximum number of old entries that one append removes after the limit was lowered.
const MAX_TRIM: u64 = 64;

/// An entry to be appended to a journal.
#[derive(Debug, Clone)]
pub struct JournalEntry {
    pub journal: &'static str,
    pub value: Value,
    /// The oldest entries beyond this number are removed.
    pub max_entries: u64,
}

/// An entry that a batch appends.
pub(crate) struct AppendedEntry {
    journal: &'static str,
    /// Number of the first entry that is left.
    first: u64,
    pub(crate) number: u64,
}

/// The numbers of the first and the next entry of each journal.
#[derive(Default)]
pub(crate) struct JournalNumbers(HashMap<String, (u64, u64)>);

impl JournalNumbers {
    /// Adds an entry to a batch.
    pub(crate) fn append(
        &self,
        db: &KeyedDatabase,
        batch: &mut fjall::OwnedWriteBatch,
        entry: &JournalEntry,
    ) -> Result<AppendedEntry, StoreError> {
        let journal = entry.journal;
        let (mut first, number) = match self.0.get(journal) {
            Some(&known) => known,
            None => number_bounds(db, journal)?,
        };
        let value = entry.value.to_string();
        batch.insert(&db.journals, entry_key(journal, number), value.as_bytes());
        for _ in 0..MAX_TRIM {
            if number - first < entry.max_entries.max(1) {
                break;
            }
            batch.remove(&db.journals, entry_key(journal, first));
            first += 1;
        }
        Ok(AppendedEntry {
            journal,
            first,
            number,
        })
    }

    /// Completes the commit of a batch with this entry.
    pub(crate) fn finish(
        &mut self,
        committed: Result<(), StoreError>,
        appended: Option<AppendedEntry>,
    ) -> Result<(), StoreError> {
        match (&committed, appended) {
            (Ok(()), Some(appended)) => {
                let bounds = (appended.first, appended.number + 1);
                self.0.insert(appended.journal.to_owned(), bounds);
            }
            (Ok(()), None) => {}
            // A batch whose commit failed may be found when the database is opened again. Its number must not be given to
            // the next entry, which would replace it.
            (Err(_), _) => self.0.clear(),
        }
        committed
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

pub(crate) fn entry_key(journal: &str, number: u64) -> Vec<u8> {
    [journal.as_bytes(), b"\0", &number.to_be_bytes()].concat()
}

pub(crate) fn entry_number(key: &[u8]) -> u64 {
    let number = key.last_chunk::<8>();
    number.map_or(0, |number| u64::from_be_bytes(*number))
}
