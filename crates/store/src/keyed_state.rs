//! The LSM library: one database with a keyspace per kind of thing.
//!
//! A database that failed to write refuses everything from then on; it is then closed and opened again, which is why it is
//! reached through a lock that can be empty.

use std::collections::BTreeSet;
use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fjall::config::PartitioningPolicy;
use fjall::{
    AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode,
};

use crate::batch::StateKind;
use crate::directory;
use crate::error::{StoreError, StoreOpenError};
use crate::log::record::{LogRecord, LogRecords};
use crate::log::recovery::io_error;
use crate::objects::u64_at;
use crate::state::examination::{StateExamination, examine_state, list_keyspaces, sync_keyspaces};
use crate::state::journal::{self, JournalScan};
use crate::state::keyspace_files::TableFile;
use crate::state::state_mark::{JournalMark, StateMark};
use crate::tables::TableKeyspaces;

/// Up to which frame of the log the spaces have everything.
const APPLIED_LSN: &[u8] = b"applied_lsn";
/// What may stay in memory of what is read from the journal at a start.
const MAX_REPLAYED_BYTES: u64 = 4 << 20;
/// Tables of so many bytes are read and checked before the state is opened, all others while the node runs.
const MAX_VERIFIED_BYTES: u64 = 64 << 20;
const REPAIR_ADVICE: &str =
    "Restore a backup, or run `tidegate store repair` to keep what can be read";
pub(crate) const REPLACE_ADVICE: &str = "Restore a backup; or move the directory `state` away, run `tidegate store repair` and import an export with \
                       `tidegate store import`: sessions, subscriptions and retained messages are lost then";
/// How long a call that reads objects may hold an old database while it is to be closed.
const MAX_CLOSING: Duration = Duration::from_secs(10);

/// An open database.
pub(crate) struct KeyedDatabase {
    pub(crate) database: Database,
    /// In the order of [`StateKind`].
    keyspaces: [Keyspace; StateKind::ALL.len()],
    /// Single values of the store itself.
    pub(crate) meta: Keyspace,
    pub(crate) objects: Keyspace,
    pub(crate) journals: Keyspace,
    pub(crate) tables: TableKeyspaces,
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

impl KeyedDatabase {
    /// The library panics at some kinds of damage; that is an error here.
    fn open(path: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let opening = AssertUnwindSafe(|| Self::open_database(path, cache_bytes));
        std::panic::catch_unwind(opening).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(StoreError::Damaged {
                what: format!("the keyed state in {}", path.display()),
                detail: text.unwrap_or("it cannot be opened").to_owned(),
            })
        })
    }

    fn open_database(path: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(1)
            .max_journaling_size(64 << 20)
            .open()
            .map_err(StoreError::keyed_error("open its keyed state"))?;
        let space = |name: &str| {
            database
                .keyspace(name, keyspace_options)
                .map_err(StoreError::keyed_error("open its keyed state"))
        };
        Ok(Self {
            keyspaces: [
                space("sessions")?,
                space("subscriptions")?,
                space("retained")?,
                space("delayed")?,
            ],
            meta: space("meta")?,
            objects: space("objects")?,
            journals: space("journals")?,
            tables: TableKeyspaces::open(&database)?,
            writing: Mutex::new(()),
            database,
        })
    }

    pub(crate) fn keyspace(&self, space: StateKind) -> &Keyspace {
        &self.keyspaces[space as usize]
    }

    pub(crate) fn applied_lsn(&self) -> Result<u64, StoreError> {
        let stored = self.meta.get(APPLIED_LSN);
        let stored = stored.map_err(StoreError::keyed_error("read its keyed state"))?;
        Ok(stored.map_or(0, |bytes| u64_at(&bytes, 0)))
    }

    /// Begins a write of what frames of the log say.
    pub(crate) fn write(&self) -> KeyedWrite<'_> {
        KeyedWrite {
            db: self,
            batch: self.database.batch(),
        }
    }

    /// Removes those of the keys whose value is unwanted as it is now; returns how many they were.
    pub(crate) fn prune(
        &self,
        space: StateKind,
        keys: &mut dyn Iterator<Item = &[u8]>,
        is_unwanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<u64, StoreError> {
        let space = self.keyspace(space);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = self.database.batch();
        for key in keys {
            let value = space.get(key);
            let value = value.map_err(StoreError::keyed_error("read its keyed state"))?;
            if value.is_some_and(|value| is_unwanted(&value)) {
                batch.remove(space, key);
            }
        }
        let count = batch.len() as u64;
        let committed = batch.commit();
        committed.map_err(StoreError::keyed_error("write its keyed state"))?;
        Ok(count)
    }

    /// Everything written so far is on disk afterwards.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.database
            .persist(PersistMode::SyncData)
            .map_err(StoreError::keyed_error("force its keyed state to disk"))
    }

    pub(crate) fn compact(&self) -> Result<(), StoreError> {
        let others = [&self.meta, &self.objects, &self.journals];
        let tables = self.tables.list();
        let tables = tables.iter().map(|(_, keyspace)| keyspace);
        for keyspace in self.keyspaces.iter().chain(others).chain(tables) {
            let compacted = keyspace
                .rotate_memtable_and_wait()
                .and_then(|()| keyspace.major_compact());
            compacted.map_err(StoreError::keyed_error("compact its keyed state"))?;
        }
        Ok(())
    }

    /// Whether tables have what was in a journal that is gone.
    fn covers_journal(&self, journal: &JournalMark, cleared: &BTreeSet<u64>) -> bool {
        let others = [&self.meta, &self.objects, &self.journals];
        let tables = self.tables.list();
        let tables = tables.iter().map(|(_, keyspace)| keyspace);
        let mut all = self.keyspaces.iter().chain(others).chain(tables);
        all.all(|keyspace| {
            let Some(&seqno) = journal.highest.get(&keyspace.id()) else {
                return true;
            };
            let persisted = keyspace.tree.get_highest_persisted_seqno();
            cleared.contains(&keyspace.id()) || persisted >= Some(seqno)
        })
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }
}

/// What frames say about the spaces, written all at once.
pub(crate) struct KeyedWrite<'a> {
    db: &'a KeyedDatabase,
    batch: OwnedWriteBatch,
}

impl KeyedWrite<'_> {
    pub(crate) fn add(&mut self, records: &[u8]) {
        for record in LogRecords::new(records).flatten() {
            match record {
                LogRecord::Put { space, key, value } => {
                    self.batch.insert(self.db.keyspace(space), key, value);
                }
                LogRecord::Delete { space, key } => self.batch.remove(self.db.keyspace(space), key),
                _ => {}
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    /// Writes it, with the number of the last frame that was added.
    pub(crate) fn commit(mut self, lsn: u64) -> Result<(), StoreError> {
        let writing = self.db.writing.lock();
        let _writing = writing.unwrap_or_else(PoisonError::into_inner);
        self.batch
            .insert(&self.db.meta, APPLIED_LSN, lsn.to_le_bytes());
        self.batch
            .commit()
            .map_err(StoreError::keyed_error("write its keyed state"))
    }
}

/// The database, or nothing while it is being opened again.
pub(crate) struct KeyedState {
    /// Of the store.
    dir: PathBuf,
    path: PathBuf,
    cache_bytes: u64,
    db: RwLock<Option<Arc<KeyedDatabase>>>,
    has_failed: AtomicBool,
    marker: Mutex<StateMarkWriter>,
    /// Tables whose contents were not looked at when the state was opened.
    unverified: Mutex<Vec<TableFile>>,
}

/// What the mark says, and how far journals were read for it.
struct StateMarkWriter {
    scans: Vec<JournalScan>,
    mark: StateMark,
}

/// A state that was opened.
struct OpenedState {
    db: KeyedDatabase,
    marker: StateMarkWriter,
    warnings: Vec<String>,
    tables: Vec<TableFile>,
}

/// The first damage, as an error.
fn first_damage_error(examined: &StateExamination) -> Result<(), StoreOpenError> {
    match examined.first_damage() {
        None => Ok(()),
        Some((damage, can_be_repaired)) => Err(StoreOpenError::StateDamaged {
            path: damage.path.clone(),
            detail: damage.detail.clone(),
            remedy: if can_be_repaired {
                REPAIR_ADVICE
            } else {
                REPLACE_ADVICE
            },
        }),
    }
}

/// Examines the state of the store in `dir`, cuts off a torn end and opens it.
fn open_state(dir: &Path, cache_bytes: u64, is_first: bool) -> Result<OpenedState, StoreOpenError> {
    let path = dir.join(directory::STATE);
    let read = StateMark::read(dir)?;
    let mut warnings: Vec<String> = read.problem.into_iter().collect();
    let mut examined =
        examine_state(&path, read.mark.as_ref()).map_err(io_error("look at", &path))?;
    let mut tables = std::mem::take(&mut examined.tables);
    if tables.iter().map(|table| table.len).sum::<u64>() <= MAX_VERIFIED_BYTES && is_first {
        let damaged = tables.drain(..).map(|table| table.verify());
        examined
            .other_damage
            .extend(damaged.filter_map(Result::err));
    }
    first_damage_error(&examined)?;
    if let Some(torn) = &examined.torn_end {
        let cut = File::options().write(true).open(&torn.path);
        let cut = cut.and_then(|file| file.set_len(torn.offset).and_then(|()| file.sync_all()));
        cut.map_err(io_error("cut", &torn.path))?;
        warnings.push(format!(
            "the end of the journal of the keyed state was not whole and was cut off, as after a crash; changes that \
             were not forced to disk may be lost: {torn}"
        ));
    }
    if read.mark.is_some_and(|mark| mark.keyspaces.is_empty())
        && !path.join("version").exists()
        && path.exists()
    {
        // It was being made for the first time.
        std::fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
    }
    let db = KeyedDatabase::open(&path, cache_bytes)?;
    let cleared = examined
        .scans
        .iter()
        .flat_map(|scan| scan.cleared.iter().copied());
    let cleared: BTreeSet<u64> = cleared.collect();
    for journal in &examined.removed_journals {
        if !db.covers_journal(journal, &cleared) {
            return Err(StoreOpenError::StateDamaged {
                path: journal::journal_path(&path, journal.id),
                detail: "the file is missing, and no table has what was in it".to_owned(),
                remedy: REPAIR_ADVICE,
            });
        }
    }
    let marker = StateMarkWriter {
        scans: examined.scans,
        mark: StateMark::default(),
    };
    Ok(OpenedState {
        db,
        marker,
        warnings,
        tables,
    })
}

impl KeyedState {
    /// Opens the state of the store in `dir`; tells what is wrong and does not keep it from being opened.
    pub(crate) fn open(
        dir: &Path,
        cache_bytes: u64,
    ) -> Result<(Self, Vec<String>), StoreOpenError> {
        let opened = open_state(dir, cache_bytes, true)?;
        let keyed = Self {
            dir: dir.to_owned(),
            path: dir.join(directory::STATE),
            cache_bytes,
            db: RwLock::new(Some(Arc::new(opened.db))),
            has_failed: AtomicBool::new(false),
            marker: Mutex::new(opened.marker),
            unverified: Mutex::new(opened.tables),
        };
        keyed.update_mark()?;
        Ok((keyed, opened.warnings))
    }

    /// Says in the mark what is on disk, if that has changed. Forces the state to disk before.
    pub(crate) fn update_mark(&self) -> Result<(), StoreError> {
        let db = self.healthy_db()?;
        let mut marker = self.marker.lock().unwrap_or_else(PoisonError::into_inner);
        let scans = self.scan_journals(&marker.scans)?;
        let ids =
            list_keyspaces(&self.path).map_err(io_error("list the keyspaces in", &self.path))?;
        let mark = StateMark::from_scans(&scans, ids);
        if mark == marker.mark {
            return Ok(());
        }
        // After reading the journals: what was read is on disk then.
        db.sync().inspect_err(|_| self.mark_failed())?;
        if mark.keyspaces != marker.mark.keyspaces {
            let synced = sync_keyspaces(&self.path, &mark.keyspaces);
            synced.map_err(io_error("force to disk", &self.path))?;
        }
        mark.write(&self.dir)?;
        *marker = StateMarkWriter { scans, mark };
        Ok(())
    }

    /// Reads what was appended to journals since they were read last.
    fn scan_journals(&self, known: &[JournalScan]) -> Result<Vec<JournalScan>, StoreError> {
        let listed = journal::list_journals(&self.path)
            .map_err(io_error("list the journals in", &self.path))?;
        let mut scans = Vec::with_capacity(listed.len());
        for (id, path) in listed {
            let scan = known.iter().find(|scan| scan.id == id);
            let mut scan = scan.cloned().unwrap_or_else(|| JournalScan::new(id));
            let file = match File::open(&path) {
                // It was removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.map_err(io_error("open", &path))?,
            };
            scan.read_further(&file, u64::MAX, &mut |_| {})
                .map_err(io_error("read", &path))?;
            scans.push(scan);
        }
        Ok(scans)
    }

    /// Reads the tables that were not read when the state was opened, until `is_stopping`, and tells of damaged ones.
    pub(crate) fn verify_remaining_tables(&self, is_stopping: &AtomicBool) {
        let tables = {
            let mut unverified = self
                .unverified
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *unverified)
        };
        for table in tables {
            if is_stopping.load(Ordering::Acquire) {
                return;
            }
            if let Err(damage) = table.verify() {
                tracing::error!(
                    path = %damage.path.display(),
                    detail = damage.detail,
                    "a table of the keyed state is damaged; {REPLACE_ADVICE}"
                );
            }
        }
    }

    pub(crate) fn has_unverified_tables(&self) -> bool {
        let unverified = self.unverified.lock();
        !unverified
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Has what tables have in memory written to the disk, in the background, if it is much and there is room for it.
    ///
    /// At a start, what was written last is read from the journal into lists in memory, where finding a row takes longer than in a
    /// file, and stays there until more is written.
    pub(crate) fn flush_replayed(&self, free_bytes: u64) -> Result<(), StoreError> {
        let db = self.db()?;
        let replayed = db.database.write_buffer_size();
        // A file takes as much again when it is merged with others.
        if replayed <= MAX_REPLAYED_BYTES || replayed * 4 > free_bytes {
            return Ok(());
        }
        for (_, table) in db.tables.list() {
            let rotated = table.rotate_memtable();
            rotated.map_err(StoreError::keyed_error("write what tables have in memory"))?;
        }
        Ok(())
    }

    pub(crate) fn db(&self) -> Result<Arc<KeyedDatabase>, StoreError> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        db.clone().ok_or(StoreError::Recovering)
    }

    /// As [`db`](Self::db), and an error if somebody else has seen it fail.
    pub(crate) fn healthy_db(&self) -> Result<Arc<KeyedDatabase>, StoreError> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(StoreError::Recovering);
        }
        self.db()
    }

    /// A write failed: the database takes no more of them.
    pub(crate) fn mark_failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Closes the database, when nobody uses it any more, and opens it again.
    pub(crate) fn reopen(&self) -> Result<Arc<KeyedDatabase>, StoreError> {
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
        let opened = match open_state(&self.dir, self.cache_bytes, false) {
            Ok(opened) => opened,
            Err(StoreOpenError::Store(error)) => return Err(error),
            Err(error) => {
                return Err(StoreError::Damaged {
                    what: "the keyed state".to_owned(),
                    detail: error.to_string(),
                });
            }
        };
        for warning in &opened.warnings {
            tracing::warn!(warning, "the keyed state was opened again");
        }
        let db = Arc::new(opened.db);
        *self.marker.lock().unwrap_or_else(PoisonError::into_inner) = opened.marker;
        let mut place = self.db.write().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::clone(&db));
        self.has_failed.store(false, Ordering::Release);
        Ok(db)
    }
}

impl Drop for KeyedState {
    fn drop(&mut self) {
        // What is not in the mark is only not looked for.
        if let Err(error) = self.update_mark() {
            tracing::warn!(%error, "the mark of the keyed state was not written");
        }
    }
}
