//! The LSM library: one database with a keyspace per kind of thing.
//!
//! A database that failed to write refuses everything from then on; it is then closed and opened again, which is why it is
//! reached through a lock that can be empty.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use fjall::{Database, Keyspace, KeyspaceCreateOptions};

use crate::batch::Space;
use crate::error::Error;

/// An open database.
pub(crate) struct Db {
    pub(crate) database: Database,
    /// In the order of [`Space`].
    spaces: [Keyspace; Space::ALL.len()],
    /// Single values of the store itself.
    pub(crate) meta: Keyspace,
    pub(crate) objects: Keyspace,
    pub(crate) journals: Keyspace,
}

impl Db {
    fn open(path: &Path, cache_bytes: u64) -> Result<Self, Error> {
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(1)
            .max_journaling_size(128 << 20)
            .open()
            .map_err(Error::keyed("open its keyed state"))?;
        let space = |name: &str| {
            database
                .keyspace(name, || {
                    KeyspaceCreateOptions::default().max_memtable_size(16 << 20)
                })
                .map_err(Error::keyed("open its keyed state"))
        };
        Ok(Self {
            spaces: [
                space("sessions")?,
                space("subscriptions")?,
                space("retained")?,
                space("delayed")?,
            ],
            meta: space("meta")?,
            objects: space("objects")?,
            journals: space("journals")?,
            database,
        })
    }

    pub(crate) fn space(&self, space: Space) -> &Keyspace {
        &self.spaces[space as usize]
    }
}

/// The database, or nothing while it is being opened again.
pub(crate) struct Keyed {
    db: RwLock<Option<Arc<Db>>>,
}

impl Keyed {
    pub(crate) fn open(path: &Path, cache_bytes: u64) -> Result<Self, Error> {
        let db = Db::open(path, cache_bytes)?;
        Ok(Self {
            db: RwLock::new(Some(Arc::new(db))),
        })
    }

    pub(crate) fn db(&self) -> Result<Arc<Db>, Error> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        db.clone().ok_or(Error::Recovering)
    }
}
