//! Journals: entries with growing numbers, of which the oldest make room. The audit log is one.
//!
//! Key: name, NUL, number (8 bytes, big-endian). Value: JSON.

use serde_json::Value;

use crate::error::Error;
use crate::keyed::Db;
use crate::objects::Objects;

/// How many old entries one append removes at most, when the bound was lowered.
const MAX_TRIM: u64 = 64;

impl Objects {
    /// Adds an entry, numbered from 1 on, and removes the oldest beyond `max_entries`. Survives the end of the process at
    /// once, and a power failure from the next sync on.
    pub fn append(&self, journal: &str, value: &Value, max_entries: u64) -> Result<u64, Error> {
        let mut writing = self.writing();
        let db = self.db()?;
        let (mut first, number) = match writing.journals.get(journal) {
            Some(&known) => known,
            None => bounds(&db, journal)?,
        };
        let mut batch = db.database.batch();
        batch.insert(
            &db.journals,
            key_of(journal, number),
            value.to_string().as_bytes(),
        );
        for _ in 0..MAX_TRIM {
            if number - first < max_entries.max(1) {
                break;
            }
            batch.remove(&db.journals, key_of(journal, first));
            first += 1;
        }
        batch
            .commit()
            .map_err(Error::keyed("write a journal entry"))?;
        writing
            .journals
            .insert(journal.to_owned(), (first, number + 1));
        Ok(number)
    }

    /// Up to `limit` entries, newest first, beginning below number `before`.
    pub fn journal(
        &self,
        name: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Value)>, Error> {
        let db = self.db()?;
        let range = key_of(name, 0)..key_of(name, before.unwrap_or(u64::MAX));
        let mut found = Vec::new();
        for item in db.journals.range(range).rev().take(limit) {
            let (key, value) = item.into_inner().map_err(Error::keyed("read a journal"))?;
            let value = serde_json::from_slice(&value).map_err(|error| Error::Damaged {
                what: format!("journal {name}, entry {}", number_of(&key)),
                detail: error.to_string(),
            })?;
            found.push((number_of(&key), value));
        }
        Ok(found)
    }
}

/// The number of the first entry and of the next.
fn bounds(db: &Db, journal: &str) -> Result<(u64, u64), Error> {
    let mut range = db
        .journals
        .range(key_of(journal, 0)..key_of(journal, u64::MAX));
    let number = |item: Option<fjall::Guard>| {
        item.map(|item| item.key().map(|key| number_of(&key)))
            .transpose()
            .map_err(Error::keyed("read a journal"))
    };
    let Some(first) = number(range.next())? else {
        return Ok((1, 1));
    };
    let last = number(range.next_back())?.unwrap_or(first);
    Ok((first, last + 1))
}

fn key_of(journal: &str, number: u64) -> Vec<u8> {
    [journal.as_bytes(), b"\0", &number.to_be_bytes()].concat()
}

fn number_of(key: &[u8]) -> u64 {
    let number = key.last_chunk::<8>();
    number.map_or(0, |number| u64::from_be_bytes(*number))
}
