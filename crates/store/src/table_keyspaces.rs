//! The keyspaces of tables in the LSM library, and the options of all keyspaces.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use fjall::config::PartitioningPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use foldhash::fast::RandomState;

use crate::error::StoreError;

/// Prefix of a table's name in the library.
const PREFIX: &str = "table_";
/// Their names are constants of the program.
const MAX_TABLES: usize = 64;

/// Options of every keyspace.
///
/// Filters show whether a key exists at all. Unpartitioned filters of whole tables are megabytes in size. They do not fit into the
/// cache beside everything else, and would be read and hashed again for each key. Of block-sized partitions, those in use stay
/// cached.
pub(crate) fn keyspace_options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(16 << 20)
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
}

/// The tables of an open database.
#[derive(Default)]
pub(crate) struct TableKeyspaces {
    open: RwLock<HashMap<Box<str>, Keyspace, RandomState>>,
}

impl TableKeyspaces {
    /// Opens the existing tables; each takes some milliseconds.
    pub(crate) fn open(database: &Database) -> Result<Self, StoreError> {
        let keyspaces = Self::default();
        for name in database.list_keyspace_names() {
            if let Some(table) = name.strip_prefix(PREFIX) {
                keyspaces.get_or_create(database, table)?;
            }
        }
        Ok(keyspaces)
    }

    /// `None` for a table that has never been written.
    pub(crate) fn get(&self, name: &str) -> Option<Keyspace> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(name).cloned()
    }

    /// Creates the table if it does not exist: about 20 writes that are forced to disk.
    pub(crate) fn get_or_create(
        &self,
        database: &Database,
        name: &str,
    ) -> Result<Keyspace, StoreError> {
        if let Some(keyspace) = self.get(name) {
            return Ok(keyspace);
        }
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(keyspace) = open.get(name) {
            return Ok(keyspace.clone());
        }
        assert!(open.len() < MAX_TABLES, "at most {MAX_TABLES} tables");
        let keyspace = database
            .keyspace(&format!("{PREFIX}{name}"), keyspace_options)
            .map_err(StoreError::keyed_error("open a table"))?;
        open.insert(name.into(), keyspace.clone());
        Ok(keyspace)
    }

    /// All tables in name order.
    pub(crate) fn list(&self) -> Vec<(Box<str>, Keyspace)> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let tables = open.iter();
        let tables = tables.map(|(name, keyspace)| (name.clone(), keyspace.clone()));
        let mut tables: Vec<_> = tables.collect();
        tables.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        tables
    }
}
