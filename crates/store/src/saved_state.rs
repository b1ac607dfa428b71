//! Journals and retained messages in a backup: one line per entry, in hexadecimal.

use std::io::{BufRead as _, BufReader, Read, Write};

use serde::Deserialize;

use crate::backup::ImportError;
use crate::batch::StateKind;
use crate::error::StoreError;
use crate::keyed_state::KeyedDatabase;
use crate::objects::Objects;
use crate::row_spool;

/// Limit of a line: a message of the largest size, in hexadecimal.
const MAX_LINE_BYTES: u64 = 600 << 20;
/// Entries, and bytes of them, that are written at a time.
const MAX_BATCH_ENTRIES: usize = 1000;
const MAX_BATCH_BYTES: usize = 16 << 20;

/// A part of the keyed state that a backup contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedState {
    /// Journals, such as the audit log.
    Journals,
    /// Retained messages.
    Retained,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLine<'l> {
    table: &'l str,
    key: &'l str,
    value: &'l str,
}

impl SavedState {
    pub const ALL: [Self; 2] = [Self::Journals, Self::Retained];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Journals => "journals",
            Self::Retained => "retained",
        }
    }

    fn keyspace(self, db: &KeyedDatabase) -> &fjall::Keyspace {
        match self {
            Self::Journals => &db.journals,
            Self::Retained => db.keyspace(StateKind::Retained),
        }
    }
}

impl Objects {
    /// Writes all entries of a part of the keyed state; returns their number. What the log contains and the keyed state does not
    /// contain yet is missing.
    ///
    /// # Errors
    /// If the state cannot be read or the output not be written.
    pub fn export_state(&self, state: SavedState, out: &mut dyn Write) -> Result<u64, ImportError> {
        let db = self.db()?;
        let (mut line, mut count) = (String::new(), 0);
        for item in state.keyspace(&db).iter() {
            let (key, value) = item
                .into_inner()
                .map_err(StoreError::keyed_error("read the keyed state"))?;
            row_spool::write_line(state.name(), &key, &value, &mut line);
            out.write_all(line.as_bytes())?;
            count += 1;
        }
        out.flush()?;
        Ok(count)
    }

    /// Adds what [`export_state`](Self::export_state) wrote to a store in which the broker does not run; returns the number of
    /// entries. After an error a part of them is written.
    ///
    /// # Errors
    /// If a line is invalid, or the state cannot be written.
    pub fn import_state(
        &self,
        state: SavedState,
        input: &mut dyn Read,
    ) -> Result<u64, ImportError> {
        let _writing = self.lock_writes();
        let db = self.db()?;
        let mut reader = BufReader::new(input);
        let mut batch = db.database.batch();
        let (mut line, mut count, mut bytes) = (String::new(), 0, 0);
        loop {
            line.clear();
            if (&mut reader).take(MAX_LINE_BYTES).read_line(&mut line)? == 0 {
                break;
            }
            count += 1;
            let (key, value) = parse(state, &line).map_err(|detail| ImportError::Line {
                line: count,
                detail,
            })?;
            bytes += key.len() + value.len();
            batch.insert(state.keyspace(&db), key, value);
            if batch.len() >= MAX_BATCH_ENTRIES || bytes >= MAX_BATCH_BYTES {
                let full = std::mem::replace(&mut batch, db.database.batch());
                self.commit_with(full, None, "write the keyed state")?;
                bytes = 0;
            }
        }
        self.commit(batch)?;
        Ok(count)
    }
}

/// Key and value of a line.
fn parse(state: SavedState, line: &str) -> Result<(Vec<u8>, Vec<u8>), String> {
    let parsed: SavedLine<'_> = serde_json::from_str(line.trim_end())
        .map_err(|error| format!("expected an entry as exported: {error}"))?;
    match parsed.table == state.name() {
        true => Ok((row_spool::hex(parsed.key)?, row_spool::hex(parsed.value)?)),
        false => Err(format!(
            "expected an entry of {}, found {:?}",
            state.name(),
            parsed.table
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{JournalEntry, Store, StoreConfig};

    #[test]
    fn a_journal_continues_in_another_store() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open = |nth: usize| {
            Store::open(directories[nth].path(), StoreConfig::default())
                .unwrap()
                .0
        };
        let entry = |value| JournalEntry {
            journal: "audit",
            value: json!(value),
            max_entries: 2,
        };
        let first = open(0);
        for nth in 1..=3 {
            first.objects().append_journal_entry(&entry(nth)).unwrap();
        }
        let mut text = Vec::new();
        let exported = first
            .objects()
            .export_state(SavedState::Journals, &mut text);
        assert_eq!(exported.unwrap(), 2);
        let second = open(1);
        let imported = second
            .objects()
            .import_state(SavedState::Journals, &mut &text[..]);
        assert_eq!(imported.unwrap(), 2);
        assert_eq!(second.objects().append_journal_entry(&entry(4)).unwrap(), 4);
        let entries = second
            .objects()
            .list_journal_entries("audit", None, 9)
            .unwrap();
        assert_eq!(entries, [(4, json!(4)), (3, json!(3))]);
        let wrong = second
            .objects()
            .import_state(SavedState::Retained, &mut &text[..]);
        assert!(
            wrong
                .unwrap_err()
                .to_string()
                .contains("expected an entry of retained")
        );
    }
}
