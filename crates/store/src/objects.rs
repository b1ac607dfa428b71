//! Configuration objects: JSON values with a kind, an id and a version, changed rarely and read often.
//!
//! Versions come from one counter for all objects. An object that is deleted and created again therefore never repeats a
//! version, as an ETag requires. Key: kind, NUL, id. Value: version, created, updated (8 bytes each, little-endian), JSON.

use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde_json::Value;
use wall_clock::now_ms;

use crate::error::{ObjectError, StoreError};
use crate::expected_version::ExpectedVersion;
use crate::journal_entries::{JournalEntry, JournalNumbers};
use crate::keyed_state::{KeyedDatabase, KeyedState, u64_at};
use crate::object_replication::ReplicationSlot;
use crate::tables::Tables;

const COUNTER: &[u8] = b"object_version";
const HEAD: usize = 24;
const MAX_KIND: usize = 64;
const MAX_ID: usize = 512;
const MAX_VALUE_BYTES: usize = 4 << 20;
/// Objects read at once by [`Objects::for_each`].
const PAGE_OBJECTS: usize = 1000;

/// A configuration object.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Object {
    pub kind: String,
    pub id: String,
    pub value: Value,
    /// Increases with every change; never repeats for one id, even after a deletion.
    pub version: u64,
    pub created_ms: u64,
    pub updated_ms: u64,
}

/// Notification of a changed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectChange {
    pub kind: String,
    pub id: String,
    /// 0 if deleted.
    pub version: u64,
}

type ObjectObserver = Box<dyn Fn(&ObjectChange) + Send + Sync>;

/// The configuration objects and journals of a store. Calls read and write files: do not make them on a shard's thread.
#[derive(Clone)]
pub struct Objects {
    pub(crate) inner: Arc<ObjectsInner>,
}

/// A weak reference to [`Objects`] that does not keep the store open.
#[derive(Clone)]
pub struct WeakObjects(std::sync::Weak<ObjectsInner>);

impl WeakObjects {
    /// `None` if the store is closed.
    pub fn upgrade(&self) -> Option<Objects> {
        let inner = self.0.upgrade()?;
        Some(Objects { inner })
    }
}

pub(crate) struct ObjectsInner {
    keyed: Arc<KeyedState>,
    /// Tables, which are part of the same backup.
    tables: Tables,
    /// Serialises changes.
    writing: Mutex<ObjectWriteState>,
    /// Acquired before `writing` is released, so that observers are notified in the order of the changes.
    notify_lock: Mutex<()>,
    observers: RwLock<Vec<ObjectObserver>>,
    pub(crate) replication: ReplicationSlot,
}

#[derive(Default)]
pub(crate) struct ObjectWriteState {
    pub(crate) journals: JournalNumbers,
}

impl Objects {
    pub(crate) fn new(keyed: Arc<KeyedState>) -> Self {
        Self {
            inner: Arc::new(ObjectsInner {
                tables: Tables::new(Arc::clone(&keyed)),
                keyed,
                writing: Mutex::default(),
                notify_lock: Mutex::default(),
                observers: RwLock::default(),
                replication: ReplicationSlot::new(),
            }),
        }
    }

    /// For observers, which would otherwise keep open the store that holds them.
    pub fn downgrade(&self) -> WeakObjects {
        WeakObjects(Arc::downgrade(&self.inner))
    }

    pub fn tables(&self) -> &Tables {
        &self.inner.tables
    }

    pub(crate) fn db(&self) -> Result<Arc<KeyedDatabase>, StoreError> {
        self.inner.keyed.db()
    }

    pub(crate) fn lock_writes(&self) -> MutexGuard<'_, ObjectWriteState> {
        let writing = self.inner.writing.lock();
        writing.unwrap_or_else(PoisonError::into_inner)
    }

    /// The object, if it exists.
    pub fn get(&self, kind: &str, id: &str) -> Result<Option<Object>, StoreError> {
        read(&*self.db()?, kind, id)
    }

    /// Up to `limit` objects of a kind in the order of their ids, beginning behind `after`.
    pub fn list(
        &self,
        kind: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Object>, StoreError> {
        let db = self.db()?;
        // An id cannot contain NUL, so this is the first key behind `after`.
        let from = match after {
            Some(id) => Bound::Excluded(object_key(kind, id)),
            None => Bound::Included(object_key(kind, "")),
        };
        let to = Bound::Excluded([kind.as_bytes(), b"\x01"].concat());
        let mut found = Vec::new();
        for item in db.objects.range((from, to)).take(limit) {
            let (key, value) = item
                .into_inner()
                .map_err(StoreError::keyed_error("list configuration objects"))?;
            found.push(decode(&key, &value)?);
        }
        Ok(found)
    }

    /// Passes all objects of a kind to `each`, in the order of their ids. They are read in pages, without a snapshot:
    /// of concurrent changes, some may be included.
    pub fn for_each(&self, kind: &str, mut each: impl FnMut(Object)) -> Result<(), StoreError> {
        let mut after: Option<String> = None;
        loop {
            let page = self.list(kind, after.as_deref(), PAGE_OBJECTS)?;
            after = match page.last() {
                Some(last) if page.len() == PAGE_OBJECTS => Some(last.id.clone()),
                _ => None,
            };
            page.into_iter().for_each(&mut each);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Creates or replaces an object. It is on disk when this returns.
    pub fn put(
        &self,
        kind: &str,
        id: &str,
        value: Value,
        expected: ExpectedVersion,
    ) -> Result<Object, ObjectError> {
        self.put_recorded((kind, id), value, expected, None)
    }

    /// Like [`put`](Self::put), and appends the journal entry that `entry` returns for the stored object. Both are on disk,
    /// or none.
    pub fn put_with_entry(
        &self,
        kind: &str,
        id: &str,
        value: Value,
        expected: ExpectedVersion,
        entry: &dyn Fn(&Object) -> JournalEntry,
    ) -> Result<Object, ObjectError> {
        self.put_recorded((kind, id), value, expected, Some(entry))
    }

    fn put_recorded(
        &self,
        (kind, id): (&str, &str),
        value: Value,
        expected: ExpectedVersion,
        entry: Option<&dyn Fn(&Object) -> JournalEntry>,
    ) -> Result<Object, ObjectError> {
        if let Some(replication) = self.replication_of(kind) {
            return self.put_replicated(&**replication, (kind, id), &value, expected, entry);
        }
        check_names(kind, id)?;
        let mut writing = self.lock_writes();
        let db = self.db()?;
        let current = read(&db, kind, id)?;
        check_expected(expected, current.as_ref().map(|object| object.version))?;
        let now_ms = now_ms();
        let object = Object {
            kind: kind.to_owned(),
            id: id.to_owned(),
            value,
            version: last_version(&db)? + 1,
            created_ms: current.map_or(now_ms, |object| object.created_ms),
            updated_ms: now_ms,
        };
        let encoded = encode(&object)?;
        let mut batch = db.database.batch();
        batch.insert(&db.objects, object_key(kind, id), encoded);
        batch.insert(&db.meta, COUNTER, object.version.to_le_bytes());
        let entry = entry.map(|entry| writing.journals.append(&db, &mut batch, &entry(&object)));
        let appended = entry.transpose()?;
        writing.journals.finish(self.commit(batch), appended)?;
        self.notify_observers(writing, &[change_from_object(&object)]);
        Ok(object)
    }

    /// Removes an object; `false` if it does not exist. The removal is on disk when this returns.
    pub fn delete(
        &self,
        kind: &str,
        id: &str,
        expected: ExpectedVersion,
    ) -> Result<bool, ObjectError> {
        self.delete_recorded(kind, id, expected, None)
    }

    /// Like [`delete`](Self::delete), and appends an entry to a journal if the object existed. Both are on disk, or none.
    pub fn delete_with_entry(
        &self,
        kind: &str,
        id: &str,
        expected: ExpectedVersion,
        entry: &JournalEntry,
    ) -> Result<bool, ObjectError> {
        self.delete_recorded(kind, id, expected, Some(entry))
    }

    fn delete_recorded(
        &self,
        kind: &str,
        id: &str,
        expected: ExpectedVersion,
        entry: Option<&JournalEntry>,
    ) -> Result<bool, ObjectError> {
        if let Some(replication) = self.replication_of(kind) {
            return self.delete_replicated(&**replication, (kind, id), expected, entry);
        }
        let mut writing = self.lock_writes();
        let db = self.db()?;
        let current = read(&db, kind, id)?;
        check_expected(expected, current.as_ref().map(|object| object.version))?;
        if current.is_none() {
            return Ok(false);
        }
        let mut batch = db.database.batch();
        batch.remove(&db.objects, object_key(kind, id));
        let version = last_version(&db)? + 1;
        batch.insert(&db.meta, COUNTER, version.to_le_bytes());
        let entry = entry.map(|entry| writing.journals.append(&db, &mut batch, entry));
        let appended = entry.transpose()?;
        writing.journals.finish(self.commit(batch), appended)?;
        let change = ObjectChange {
            kind: kind.to_owned(),
            id: id.to_owned(),
            version: 0,
        };
        self.notify_observers(writing, &[change]);
        Ok(true)
    }

    /// Calls `observer` after each change once it is on disk, on the thread that made it and in the order of the changes.
    /// It may read objects but must not change any.
    pub fn observe_changes(&self, observer: Box<dyn Fn(&ObjectChange) + Send + Sync>) {
        let observers = self.inner.observers.write();
        observers
            .unwrap_or_else(PoisonError::into_inner)
            .push(observer);
    }

    pub(crate) fn commit(&self, batch: fjall::OwnedWriteBatch) -> Result<(), StoreError> {
        let durability = Some(fjall::PersistMode::SyncData);
        self.commit_with(batch, durability, "write configuration objects")
    }

    /// After a failed write, the database is opened again before the next one.
    pub(crate) fn commit_with(
        &self,
        batch: fjall::OwnedWriteBatch,
        durability: Option<fjall::PersistMode>,
        what: &'static str,
    ) -> Result<(), StoreError> {
        batch.durability(durability).commit().map_err(|error| {
            self.inner.keyed.mark_failed();
            StoreError::keyed_error(what)(error)
        })
    }

    pub(crate) fn notify_observers(
        &self,
        writing: MutexGuard<'_, ObjectWriteState>,
        changes: &[ObjectChange],
    ) {
        let telling = self.inner.notify_lock.lock();
        let _telling = telling.unwrap_or_else(PoisonError::into_inner);
        drop(writing);
        let observers = self.inner.observers.read();
        let observers = observers.unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            observers.iter().for_each(|observer| observer(change));
        }
    }
}

pub(crate) fn change_from_object(object: &Object) -> ObjectChange {
    ObjectChange {
        kind: object.kind.clone(),
        id: object.id.clone(),
        version: object.version,
    }
}

fn check_expected(expected: ExpectedVersion, current: Option<u64>) -> Result<(), ObjectError> {
    let is_as_expected = match expected {
        ExpectedVersion::Any => true,
        ExpectedVersion::Absent => current.is_none(),
        ExpectedVersion::Version(version) => current == Some(version),
    };
    if is_as_expected {
        Ok(())
    } else {
        Err(ObjectError::Conflict { current })
    }
}

pub(crate) fn check_names(kind: &str, id: &str) -> Result<(), ObjectError> {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if kind.is_empty() || kind.len() > MAX_KIND || !kind.bytes().all(is_word) {
        return Err(ObjectError::Invalid {
            field: "the kind",
            found: truncate_for_error(kind),
            expected: "1 to 64 of a-z, 0-9 and _",
        });
    }
    if id.is_empty() || id.len() > MAX_ID || id.contains('\0') {
        return Err(ObjectError::Invalid {
            field: "the id",
            found: truncate_for_error(id),
            expected: "1 to 512 bytes without NUL",
        });
    }
    Ok(())
}

fn truncate_for_error(text: &str) -> String {
    let start: String = text.chars().take(80).collect();
    format!("{start:?}")
}

pub(crate) fn last_version(db: &KeyedDatabase) -> Result<u64, StoreError> {
    let stored = db.meta.get(COUNTER);
    let stored = stored.map_err(StoreError::keyed_error("read configuration objects"))?;
    Ok(stored.map_or(0, |bytes| u64_at(&bytes, 0)))
}

/// Writes the version counter once for a batch of objects.
pub(crate) fn put_last_version(
    db: &KeyedDatabase,
    batch: &mut fjall::OwnedWriteBatch,
    version: u64,
) {
    batch.insert(&db.meta, COUNTER, version.to_le_bytes());
}

pub(crate) fn read(db: &KeyedDatabase, kind: &str, id: &str) -> Result<Option<Object>, StoreError> {
    let key = object_key(kind, id);
    let stored = db.objects.get(&key);
    match stored.map_err(StoreError::keyed_error("read configuration objects"))? {
        Some(value) => decode(&key, &value).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn object_key(kind: &str, id: &str) -> Vec<u8> {
    [kind.as_bytes(), b"\0", id.as_bytes()].concat()
}

pub(crate) fn encode(object: &Object) -> Result<Vec<u8>, ObjectError> {
    let mut bytes = Vec::with_capacity(HEAD + 256);
    for number in [object.version, object.created_ms, object.updated_ms] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    serde_json::to_writer(&mut bytes, &object.value)
        .expect("a JSON value has string keys and a Vec takes everything");
    if bytes.len() > MAX_VALUE_BYTES {
        return Err(ObjectError::Invalid {
            field: "the value",
            found: format!("{} bytes of JSON", bytes.len() - HEAD),
            expected: "up to 4 MiB",
        });
    }
    Ok(bytes)
}

pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Object, StoreError> {
    let damaged = |detail: &str| StoreError::Damaged {
        what: format!("object {:?}", String::from_utf8_lossy(key)),
        detail: detail.to_owned(),
    };
    let key_text = std::str::from_utf8(key).map_err(|_| damaged("its key is not UTF-8"))?;
    let (kind, id) = key_text
        .split_once('\0')
        .ok_or_else(|| damaged("its key has no kind"))?;
    let json = value
        .get(HEAD..)
        .ok_or_else(|| damaged("it is too short"))?;
    Ok(Object {
        kind: kind.to_owned(),
        id: id.to_owned(),
        value: serde_json::from_slice(json).map_err(|error| damaged(&error.to_string()))?,
        version: u64_at(value, 0),
        created_ms: u64_at(value, 8),
        updated_ms: u64_at(value, 16),
    })
}
