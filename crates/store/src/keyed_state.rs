//! The keyed state: one database of the LSM library with a keyspace per kind of state.
//!
//! After a failed write, the database refuses all further operations. It is then closed and opened again; the lock around it can
//! therefore be empty.

use std::collections::BTreeSet;
use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode};

use crate::batch::StateKind;
use crate::directory;
use crate::error::{StoreError, StoreOpenError, io_error};
use crate::log::record::{LogRecord, LogRecords};
use crate::state::examination::{StateExamination, examine_state, list_keyspaces, sync_keyspaces};
use crate::state::journal::{self, JournalScan};
use crate::state::keyspace_files::TableFile;
use crate::state::state_mark::StateMark;
use crate::table_keyspaces::{TableKeyspaces, keyspace_options};

/// Key of the last frame of the log that the keyspaces contain.
const APPLIED_LSN: &[u8] = b"applied_lsn";
/// Amount of replayed journal data that may stay in memory after a start.
const MAX_REPLAYED_BYTES: u64 = 4 << 20;
/// Tables up to this total size are verified before the state is opened, all others while the node runs.
const MAX_VERIFIED_BYTES: u64 = 64 << 20;
const REPAIR_ADVICE: &str =
    "Restore a backup, or run `tidegate store repair` to keep what can be read";
pub(crate) const REPLACE_ADVICE: &str = "Restore a backup; or move the directory `state` away, run `tidegate store repair` and import an export with \
                       `tidegate store import`: sessions, subscriptions and retained messages are lost then";
/// How long readers of objects may hold an old database that is to be closed.
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
    /// Held during writes of the keyspaces, so that no write comes between checking and removing a value.
    writing: Mutex<()>,
}

impl KeyedDatabase {
    /// Opens the database. The library panics at some kinds of damage; this function returns them as errors.
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
                space("received")?,
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

    /// Begins a write of records from frames of the log.
    pub(crate) fn write(&self) -> KeyedWrite<'_> {
        KeyedWrite {
            db: self,
            batch: self.database.batch(),
        }
    }

    /// Removes those of the keys whose current value is unwanted; returns their number.
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

    /// Syncs everything written so far to disk.
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

    /// Names of keyspaces, for people.
    pub(crate) fn describe_keyspaces(&self, ids: &BTreeSet<u64>) -> Vec<String> {
        let [sessions, subscriptions, retained, delayed, received] = &self.keyspaces;
        let named = [
            (sessions, "sessions"),
            (subscriptions, "subscriptions"),
            (retained, "retained messages"),
            (delayed, "delayed messages"),
            (received, "numbers of messages of other nodes"),
            (&self.meta, "the state of the store"),
            (&self.objects, "configuration objects"),
            (&self.journals, "journals"),
        ];
        let named = named.map(|(keyspace, name)| (keyspace.id(), name.to_owned()));
        let tables = self.tables.list().into_iter();
        let tables = tables.map(|(name, keyspace)| (keyspace.id(), format!("table {name}")));
        let all = named.into_iter().chain(tables);
        all.filter(|(id, _)| ids.contains(id))
            .map(|(_, name)| name)
            .collect()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }
}

/// A write of keyed records from frames, applied atomically.
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

    /// Commits the write together with the number of the last added frame.
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

/// The database, or nothing while it is being reopened.
pub(crate) struct KeyedState {
    /// Directory of the store.
    dir: PathBuf,
    path: PathBuf,
    cache_bytes: u64,
    db: RwLock<Option<Arc<KeyedDatabase>>>,
    has_failed: AtomicBool,
    marker: Mutex<StateMarkWriter>,
    /// Tables that were not verified when the state was opened.
    unverified: Mutex<Vec<TableFile>>,
}

/// The content of the mark, and how far journals were read for it.
struct StateMarkWriter {
    scans: Vec<JournalScan>,
    mark: StateMark,
}

/// Result of opening the state.
struct OpenedState {
    db: KeyedDatabase,
    marker: StateMarkWriter,
    warnings: Vec<String>,
    tables: Vec<TableFile>,
}

/// Returns the first damage as an error.
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

/// Examines the state of the store in `dir`, cuts off a torn end and opens the database.
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
    examined.compare_with_tables(&path);
    first_damage_error(&examined)?;
    if let Some(torn) = &examined.torn_end {
        let cut = File::options().write(true).open(&torn.path);
        let cut = cut.and_then(|file| file.set_len(torn.offset).and_then(|()| file.sync_all()));
        cut.map_err(io_error("cut", &torn.path))?;
        warnings.push(format!(
            "the torn end of the keyed state's journal was cut off, as after a crash; changes that \
             were not forced to disk may be lost: {torn}"
        ));
    }
    if read.mark.is_some_and(|mark| mark.keyspaces.is_empty())
        && !path.join("version").exists()
        && path.exists()
    {
        // Its creation was interrupted.
        std::fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
    }
    let db = KeyedDatabase::open(&path, cache_bytes)?;
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
    /// Opens the state of the store in `dir`; returns problems that do not prevent opening as warnings.
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

    /// Updates the mark if what is on disk has changed. Syncs the state first.
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
        // After reading the journals, so that what was read is on disk.
        db.sync().inspect_err(|_| self.mark_failed())?;
        if mark.keyspaces != marker.mark.keyspaces {
            let synced = sync_keyspaces(&self.path, &mark.keyspaces);
            synced.map_err(io_error("force to disk", &self.path))?;
        }
        mark.write(&self.dir)?;
        *marker = StateMarkWriter { scans, mark };
        Ok(())
    }

    /// Reads what was appended to journals since the last scan.
    fn scan_journals(&self, known: &[JournalScan]) -> Result<Vec<JournalScan>, StoreError> {
        let listed = journal::list_journals(&self.path)
            .map_err(io_error("list the journals in", &self.path))?;
        let mut scans = Vec::with_capacity(listed.len());
        for (id, path) in listed {
            let scan = known.iter().find(|scan| scan.id == id);
            let mut scan = scan.cloned().unwrap_or_else(|| JournalScan::new(id));
            let file = match File::open(&path) {
                // The journal was removed in the meantime.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.map_err(io_error("open", &path))?,
            };
            scan.read_further(&file, u64::MAX, &mut |_| {})
                .map_err(io_error("read", &path))?;
            scans.push(scan);
        }
        Ok(scans)
    }

    /// Verifies the tables that were not read when the state was opened, until `is_stopping`, and reports damaged ones.
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

    /// Requests a background flush of replayed data, if there is much of it and enough disk space.
    ///
    /// At a start, the latest writes are read from the journal into lists in memory. Finding a row there takes longer than in a
    /// file, and without a flush the lists stay until enough new data is written.
    pub(crate) fn flush_replayed(&self, free_bytes: u64) -> Result<(), StoreError> {
        let db = self.db()?;
        let replayed = db.database.write_buffer_size();
        // A merge of the file with others takes the same space again.
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

    /// As [`db`](Self::db), but an error if another thread has marked it as failed.
    pub(crate) fn healthy_db(&self) -> Result<Arc<KeyedDatabase>, StoreError> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(StoreError::Recovering);
        }
        self.db()
    }

    /// Records a failed write: the database accepts no more of them.
    pub(crate) fn mark_failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Closes the database once it is unused, and opens it again.
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
            tracing::warn!(warning, "keyed state reopened");
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
        // A missing mark only means that some losses are not detected.
        if let Err(error) = self.update_mark() {
            tracing::warn!(%error, "keyed state mark not written");
        }
    }
}

/// The number at a position of a stored value.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    if let Some(found) = bytes.get(at..at + 8) {
        number.copy_from_slice(found);
    }
    u64::from_le_bytes(number)
}
