//! Tables: named keyspaces for crates above, in the same library and the same backup as the rest of the keyed state.
//!
//! Keys and values of a table are bytes, ordered by key. One [`TableBatch`] writes related changes atomically. Calls read and
//! write files: do not make them on a shard's thread, except for data that the caller caches itself.

use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use fjall::{Keyspace, OwnedWriteBatch, PersistMode};

use crate::error::StoreError;
use crate::keyed_state::{KeyedDatabase, KeyedState};

/// Limit on a table's name, so that it can be part of a file name.
const MAX_NAME_BYTES: usize = 48;

type RestoreObserver = Box<dyn Fn() + Send + Sync>;

/// The tables of a store.
#[derive(Clone)]
pub struct Tables {
    keyed: Arc<KeyedState>,
    restore_observers: Arc<Mutex<Vec<RestoreObserver>>>,
}

/// One table.
#[derive(Clone)]
pub struct Table {
    keyed: Arc<KeyedState>,
    name: Box<str>,
}

/// Durability of a written batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Survives the end of the process, and a power failure from the next sync on.
    Buffered,
    /// Survives a power failure.
    Synced,
}

/// Changes that are applied atomically.
pub struct TableBatch {
    keyed: Arc<KeyedState>,
    db: Arc<KeyedDatabase>,
    batch: OwnedWriteBatch,
}

impl Tables {
    pub(crate) fn new(keyed: Arc<KeyedState>) -> Self {
        Self {
            keyed,
            restore_observers: Arc::default(),
        }
    }

    /// The table of this name. It is created with the first change of it, so that a node has only the tables it uses.
    ///
    /// # Panics
    ///
    /// If the name is not 1 to 48 of a-z, 0-9 and _: table names are constants of the program.
    pub fn table(&self, name: &str) -> Table {
        assert!(
            is_table_name(name),
            "a table's name has 1 to 48 of a-z, 0-9 and _"
        );
        Table {
            keyed: Arc::clone(&self.keyed),
            name: name.into(),
        }
    }

    pub fn batch(&self) -> Result<TableBatch, StoreError> {
        let db = self.keyed.healthy_db()?;
        Ok(TableBatch {
            batch: db.database.batch(),
            keyed: Arc::clone(&self.keyed),
            db,
        })
    }

    /// Syncs everything written so far to disk.
    pub fn sync(&self) -> Result<(), StoreError> {
        let synced = self.keyed.healthy_db()?.sync();
        synced.inspect_err(|_| self.keyed.mark_failed())
    }

    /// Registers `observer`, called when an import has replaced the tables; callers must then discard cached rows.
    pub fn observe_restores(&self, observer: Box<dyn Fn() + Send + Sync>) {
        let observers = self.restore_observers.lock();
        observers
            .unwrap_or_else(PoisonError::into_inner)
            .push(observer);
    }

    pub(crate) fn notify_restored(&self) {
        let observers = self.restore_observers.lock();
        let observers = observers.unwrap_or_else(PoisonError::into_inner);
        observers.iter().for_each(|observer| observer());
    }
}

pub(crate) fn is_table_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(is_word)
}

impl Table {
    /// `None`: nothing has been written.
    fn keyspace(&self) -> Result<Option<Keyspace>, StoreError> {
        Ok(self.keyed.db()?.tables.get(&self.name))
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// As [`get`](Self::get), without copying the value.
    pub fn get_with<T>(
        &self,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, StoreError> {
        let Some(keyspace) = self.keyspace()? else {
            return Ok(None);
        };
        let found = keyspace.get(key);
        let found = found.map_err(StoreError::keyed_error("read a table"))?;
        Ok(found.map(|value| read(&value)))
    }

    pub fn has(&self, key: &[u8]) -> Result<bool, StoreError> {
        let Some(keyspace) = self.keyspace()? else {
            return Ok(false);
        };
        let found = keyspace.contains_key(key);
        found.map_err(StoreError::keyed_error("read a table"))
    }

    /// Calls `each` with the keys and values whose key begins with `prefix`, from `from` on if given, in key order, until it
    /// returns `false`.
    pub fn scan(
        &self,
        prefix: &[u8],
        from: Bound<&[u8]>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        let start = match from {
            Bound::Unbounded => Bound::Included(prefix.to_vec()),
            Bound::Included(key) => Bound::Included(key.max(prefix).to_vec()),
            Bound::Excluded(key) if key < prefix => Bound::Included(prefix.to_vec()),
            Bound::Excluded(key) => Bound::Excluded(key.to_vec()),
        };
        // The library rejects an empty range.
        if let Bound::Included(start) | Bound::Excluded(start) = &start
            && !start.starts_with(prefix)
        {
            return Ok(());
        }
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        for item in keyspace.range((start, Bound::Unbounded)) {
            let (key, value) = item
                .into_inner()
                .map_err(StoreError::keyed_error("read a table"))?;
            if !key.starts_with(prefix) || !each(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}

impl TableBatch {
    fn keyspace(&self, table: &Table) -> Result<Keyspace, StoreError> {
        let tables = &self.db.tables;
        tables.get_or_create(&self.db.database, &table.name)
    }

    /// Sets a value. A key has at most 65,535 bytes.
    pub fn put(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let keyspace = self.keyspace(table)?;
        self.batch.insert(&keyspace, key, value);
        Ok(())
    }

    pub fn remove(&mut self, table: &Table, key: &[u8]) -> Result<(), StoreError> {
        let keyspace = self.keyspace(table)?;
        self.batch.remove(&keyspace, key);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.batch.len()
    }

    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Applies the changes: all of them or none.
    pub fn commit(self, durability: Durability) -> Result<(), StoreError> {
        let batch = match durability {
            Durability::Buffered => self.batch,
            Durability::Synced => self.batch.durability(Some(PersistMode::SyncData)),
        };
        batch.commit().map_err(|error| {
            self.keyed.mark_failed();
            StoreError::keyed_error("write a table")(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, StoreConfig};

    fn keys(table: &Table, prefix: &[u8], from: Bound<&[u8]>) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let scanned = table.scan(prefix, from, &mut |key, _| {
            keys.push(key.to_vec());
            true
        });
        scanned.unwrap();
        keys
    }

    #[test]
    fn tables_are_there_after_the_store_was_closed() {
        let dir = tempfile::tempdir().unwrap();
        {
            let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
            let tables = store.tables();
            let (one, two) = (tables.table("one"), tables.table("two"));
            let mut batch = tables.batch().unwrap();
            for key in ["a1", "a2", "a3", "b1"] {
                batch.put(&one, key.as_bytes(), b"x").unwrap();
            }
            batch.put(&two, b"a1", b"y").unwrap();
            assert_eq!(batch.len(), 5);
            batch.commit(Durability::Synced).unwrap();
            let mut batch = tables.batch().unwrap();
            batch.remove(&one, b"a2").unwrap();
            batch.commit(Durability::Buffered).unwrap();
        }
        let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
        let one = store.tables().table("one");
        assert_eq!(one.get(b"a1").unwrap().as_deref(), Some(&b"x"[..]));
        assert!(!one.has(b"a2").unwrap());
        assert_eq!(keys(&one, b"a", Bound::Unbounded), [b"a1", b"a3"]);
        assert_eq!(keys(&one, b"a", Bound::Excluded(b"a1")), [b"a3"]);
        assert_eq!(keys(&one, b"a", Bound::Included(b"a3")), [b"a3"]);
        assert!(keys(&one, b"a", Bound::Included(b"b")).is_empty());
        assert_eq!(keys(&one, b"b", Bound::Included(b"a")), [b"b1"]);
        let two = store.tables().table("two");
        assert_eq!(two.get(b"a1").unwrap().as_deref(), Some(&b"y"[..]));
    }

    #[test]
    fn a_table_is_created_with_its_first_change() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
        let tables = store.tables();
        let table = tables.table("devices");
        let number_of_tables = || tables.keyed.db().unwrap().tables.list().len();

        assert_eq!(table.get(b"a").unwrap(), None);
        assert!(!table.has(b"a").unwrap());
        assert!(keys(&table, b"", Bound::Unbounded).is_empty());
        assert_eq!(number_of_tables(), 0);

        let mut batch = tables.batch().unwrap();
        batch.put(&table, b"a", b"1").unwrap();
        batch.commit(Durability::Synced).unwrap();
        assert_eq!(number_of_tables(), 1);
        assert!(table.has(b"a").unwrap());
    }

    #[test]
    fn what_is_replayed_at_a_start_is_in_files_soon_and_reads_the_same() {
        const ROWS: u32 = 60_000;
        let dir = tempfile::tempdir().unwrap();
        let value = [7_u8; 100];
        {
            let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
            let tables = store.tables();
            let table = tables.table("many");
            let mut batch = tables.batch().unwrap();
            for row in 0..ROWS {
                batch.put(&table, &row.to_be_bytes(), &value).unwrap();
            }
            batch.commit(Durability::Synced).unwrap();
            assert_eq!(table.keyspace().unwrap().unwrap().table_count(), 0);
        }
        let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
        let table = store.tables().table("many");
        let read = |row: u32| table.get(&row.to_be_bytes()).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while table.keyspace().unwrap().unwrap().table_count() == 0 {
            assert!(std::time::Instant::now() < deadline, "nothing was written");
            assert_eq!(read(ROWS / 2).as_deref(), Some(&value[..]));
            std::thread::yield_now();
        }
        for row in [0, 1, ROWS / 2, ROWS - 1] {
            assert_eq!(read(row).as_deref(), Some(&value[..]));
        }
        assert_eq!(read(ROWS), None);
    }
}
