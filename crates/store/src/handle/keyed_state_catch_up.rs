//! The keyed state catches up with the message log at a start.

use crate::error::StoreError;
use crate::keyed_state::{KeyedDatabase, KeyedWrite};

/// Applies frames of the log that the keyed state lacks.
pub(super) struct KeyedStateCatchUp<'a> {
    db: &'a KeyedDatabase,
    applied_lsn: u64,
    write: KeyedWrite<'a>,
    last_lsn: u64,
}

impl<'a> KeyedStateCatchUp<'a> {
    pub(super) fn new(db: &'a KeyedDatabase) -> Result<Self, StoreError> {
        let applied_lsn = db.applied_lsn()?;
        Ok(Self {
            db,
            applied_lsn,
            write: db.write(),
            last_lsn: applied_lsn,
        })
    }

    pub(super) fn add(&mut self, lsn: u64, records: &[u8]) -> Result<(), StoreError> {
        if lsn <= self.last_lsn {
            return Ok(());
        }
        self.write.add(records);
        self.last_lsn = lsn;
        if self.write.len() > 10_000 {
            let write = std::mem::replace(&mut self.write, self.db.write());
            write.commit(lsn)?;
            self.applied_lsn = lsn;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<u64, StoreError> {
        if self.last_lsn > self.applied_lsn {
            self.write.commit(self.last_lsn)?;
        }
        // Segments wait for a sync from this number on.
        self.db.sync()?;
        Ok(self.last_lsn)
    }
}
