//! The LSM library: one database with a keyspace per kind of thing.
//!
//! A database that failed to write refuses everything from then on; it is then closed and opened again, which is why it is
//! reached through a lock that can be empty.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fjall::config::PartitioningPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};

use crate::batch::Space;
use crate::error::Error;
use crate::log::record::{Record, Records};
use crate::objects::u64_at;
use crate::tables::Keyspaces;

/// Up to which frame of the log the spaces have everything.
const APPLIED_LSN: &[u8] = b"applied_lsn";
/// What may stay in memory of what is read from the journal at a start.
const MAX_REPLAYED_BYTES: u64 = 4 << 20;
/// How long a call that reads objects may hold an old database while it is to be closed.
const MAX_CLOSING: Duration = Duration::from_secs(10);

/// An open database.
pub(crate) struct Db {
    pub(crate) database: Database,
    /// In the order of [`Space`].
    spaces: [Keyspace; Space::ALL.len()],
    /// Single values of the store itself.
    pub(crate) meta: Keyspace,
    pub(crate) objects: Keyspace,
    pub(crate) journals: Keyspace,
    pub(crate) tables: Keyspaces,
    /// Held while the spaces are written, so that nothing comes between looking at a value and removing it.
    writing: Mutex<()>,
}

/// How every keyspace is laid out.
///
/// A filter answers whether a key is there at all. Filters of whole tables of the library are megabytes: too large for the cache
/// beside everything else, they would be read and hashed anew for each key. In parts of a block each, those in use stay in the cache.
pub(crate) fn keyspace_options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(16 << 20)
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
}

impl Db {
    fn open(path: &Path, cache_bytes: u64) -> Result<Self, Error> {
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(1)
            .max_journaling_size(64 << 20)
            .open()
            .map_err(Error::keyed("open its keyed state"))?;
        let space = |name: &str| {
            database
                .keyspace(name, keyspace_options)
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
            tables: Keyspaces::open(&database)?,
            writing: Mutex::new(()),
            database,
        })
    }

    pub(crate) fn space(&self, space: Space) -> &Keyspace {
        &self.spaces[space as usize]
    }

    pub(crate) fn applied_lsn(&self) -> Result<u64, Error> {
        let stored = self.meta.get(APPLIED_LSN);
        let stored = stored.map_err(Error::keyed("read its keyed state"))?;
        Ok(stored.map_or(0, |bytes| u64_at(&bytes, 0)))
    }

    /// Begins a write of what frames of the log say.
    pub(crate) fn write(&self) -> Write<'_> {
        Write {
            db: self,
            batch: self.database.batch(),
        }
    }

    /// Removes those of the keys whose value is unwanted as it is now; returns how many they were.
    pub(crate) fn prune(
        &self,
        space: Space,
        keys: &mut dyn Iterator<Item = &[u8]>,
        is_unwanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<u64, Error> {
        let space = self.space(space);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = self.database.batch();
        for key in keys {
            let value = space.get(key);
            let value = value.map_err(Error::keyed("read its keyed state"))?;
            if value.is_some_and(|value| is_unwanted(&value)) {
                batch.remove(space, key);
            }
        }
        let count = batch.len() as u64;
        let committed = batch.commit();
        committed.map_err(Error::keyed("write its keyed state"))?;
        Ok(count)
    }

    /// Everything written so far is on disk afterwards.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.database
            .persist(PersistMode::SyncData)
            .map_err(Error::keyed("force its keyed state to disk"))
    }

    pub(crate) fn compact(&self) -> Result<(), Error> {
        let others = [&self.meta, &self.objects, &self.journals];
        let tables = self.tables.all();
        let tables = tables.iter().map(|(_, keyspace)| keyspace);
        for keyspace in self.spaces.iter().chain(others).chain(tables) {
            let compacted = keyspace
                .rotate_memtable_and_wait()
                .and_then(|()| keyspace.major_compact());
            compacted.map_err(Error::keyed("compact its keyed state"))?;
        }
        Ok(())
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }
}

/// What frames say about the spaces, written all at once.
pub(crate) struct Write<'a> {
    db: &'a Db,
    batch: OwnedWriteBatch,
}

impl Write<'_> {
    pub(crate) fn add(&mut self, records: &[u8]) {
        for record in Records::new(records).flatten() {
            match record {
                Record::Put { space, key, value } => {
                    self.batch.insert(self.db.space(space), key, value);
                }
                Record::Delete { space, key } => self.batch.remove(self.db.space(space), key),
                _ => {}
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    /// Writes it, with the number of the last frame that was added.
    pub(crate) fn commit(mut self, lsn: u64) -> Result<(), Error> {
        let writing = self.db.writing.lock();
        let _writing = writing.unwrap_or_else(PoisonError::into_inner);
        self.batch
            .insert(&self.db.meta, APPLIED_LSN, lsn.to_le_bytes());
        self.batch
            .commit()
            .map_err(Error::keyed("write its keyed state"))
    }
}

/// The database, or nothing while it is being opened again.
pub(crate) struct Keyed {
    path: PathBuf,
    cache_bytes: u64,
    db: RwLock<Option<Arc<Db>>>,
    has_failed: AtomicBool,
}

impl Keyed {
    pub(crate) fn open(path: PathBuf, cache_bytes: u64) -> Result<Self, Error> {
        let db = Db::open(&path, cache_bytes)?;
        Ok(Self {
            path,
            cache_bytes,
            db: RwLock::new(Some(Arc::new(db))),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Has what tables have in memory written to the disk, in the background, if it is much and there is room for it.
    ///
    /// At a start, what was written last is read from the journal into lists in memory, where finding a row takes longer than in a
    /// file, and stays there until more is written.
    pub(crate) fn write_replayed(&self, free_bytes: u64) -> Result<(), Error> {
        let db = self.db()?;
        let replayed = db.database.write_buffer_size();
        // A file takes as much again when it is merged with others.
        if replayed <= MAX_REPLAYED_BYTES || replayed * 4 > free_bytes {
            return Ok(());
        }
        for (_, table) in db.tables.all() {
            let rotated = table.rotate_memtable();
            rotated.map_err(Error::keyed("write what tables have in memory"))?;
        }
        Ok(())
    }

    pub(crate) fn db(&self) -> Result<Arc<Db>, Error> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        db.clone().ok_or(Error::Recovering)
    }

    /// As [`db`](Self::db), and an error if somebody else has seen it fail.
    pub(crate) fn healthy(&self) -> Result<Arc<Db>, Error> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(Error::Recovering);
        }
        self.db()
    }

    /// A write failed: the database takes no more of them.
    pub(crate) fn failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Closes the database, when nobody uses it any more, and opens it again.
    pub(crate) fn reopen(&self) -> Result<Arc<Db>, Error> {
        let old = {
            let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
            db.take()
        };
        if let Some(mut old) = old {
            let started = Instant::now();
            loop {
                match Arc::try_unwrap(old) {
                    Ok(db) => break drop(db),
                    Err(used) if started.elapsed() < MAX_CLOSING => old = used,
                    Err(_) => break,
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let db = Arc::new(Db::open(&self.path, self.cache_bytes)?);
        let mut place = self.db.write().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::clone(&db));
        self.has_failed.store(false, Ordering::Release);
        Ok(db)
    }
}
