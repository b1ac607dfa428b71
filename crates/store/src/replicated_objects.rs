//! Changes of configuration objects that several nodes share: they go to the other nodes first.

use std::sync::Arc;

use serde_json::Value;

use crate::error::{ObjectError, StoreError};
use crate::expected_version::ExpectedVersion;
use crate::journal_entries::JournalEntry;
use crate::keyed_state::KeyedDatabase;
use crate::object_replication::ObjectReplication;
use crate::objects::{
    Object, ObjectChange, Objects, change_from_object, check_names, encode, last_version,
    object_key, put_last_version, read,
};

impl Objects {
    /// Changes of replicated kinds go to `replication` from now on. Only the first call has an effect.
    pub fn set_replication(&self, replication: Arc<dyn ObjectReplication>) {
        // A store belongs to one node, which is in one cluster.
        let _ = self.inner.replication.set(replication);
    }

    /// The replication, if it concerns this kind.
    pub(crate) fn replication_of(&self, kind: &str) -> Option<&Arc<dyn ObjectReplication>> {
        let replication = self.inner.replication.get()?;
        replication.is_replicated(kind).then_some(replication)
    }

    pub(crate) fn is_replicated(&self) -> bool {
        self.inner.replication.get().is_some()
    }

    pub(crate) fn put_replicated(
        &self,
        replication: &dyn ObjectReplication,
        (kind, id): (&str, &str),
        value: &Value,
        expected: ExpectedVersion,
        entry: Option<&dyn Fn(&Object) -> JournalEntry>,
    ) -> Result<Object, ObjectError> {
        check_names(kind, id)?;
        let put = replication.put(kind, id, value, expected);
        put.map_err(|error| self.describe_conflict(error, kind, id))?;
        let stored = self.get(kind, id)?;
        // Another node may have deleted it again.
        let object = stored.ok_or(ObjectError::Conflict { current: None })?;
        if let Some(entry) = entry {
            self.append_journal_entry(&entry(&object))?;
        }
        Ok(object)
    }

    pub(crate) fn delete_replicated(
        &self,
        replication: &dyn ObjectReplication,
        (kind, id): (&str, &str),
        expected: ExpectedVersion,
        entry: Option<&JournalEntry>,
    ) -> Result<bool, ObjectError> {
        let deleted = replication.delete(kind, id, expected);
        let existed = deleted.map_err(|error| self.describe_conflict(error, kind, id))?;
        if existed && let Some(entry) = entry {
            self.append_journal_entry(entry)?;
        }
        Ok(existed)
    }

    /// Adds the present version to a conflict.
    fn describe_conflict(&self, error: ObjectError, kind: &str, id: &str) -> ObjectError {
        match (error, self.get(kind, id)) {
            (ObjectError::Conflict { .. }, Ok(current)) => ObjectError::Conflict {
                current: current.map(|object| object.version),
            },
            (error, _) => error,
        }
    }

    /// Stores an object with its version and times, as all nodes have it. It is on disk when this returns.
    ///
    /// # Errors
    /// If the store cannot be written, or the object is invalid.
    pub fn apply_replicated(&self, object: &Object) -> Result<(), ObjectError> {
        check_names(&object.kind, &object.id)?;
        let writing = self.lock_writes();
        let db = self.db()?;
        let mut batch = db.database.batch();
        let key = object_key(&object.kind, &object.id);
        batch.insert(&db.objects, key, encode(object)?);
        self.raise_version(&db, &mut batch, object.version)?;
        self.commit(batch)?;
        self.notify_observers(writing, &[change_from_object(object)]);
        Ok(())
    }

    /// Removes an object that other nodes do not have any more.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn remove_replicated(&self, kind: &str, id: &str) -> Result<(), StoreError> {
        let writing = self.lock_writes();
        let db = self.db()?;
        if read(&db, kind, id)?.is_none() {
            return Ok(());
        }
        let mut batch = db.database.batch();
        batch.remove(&db.objects, object_key(kind, id));
        self.raise_version(&db, &mut batch, 0)?;
        self.commit(batch)?;
        let change = ObjectChange {
            kind: kind.to_owned(),
            id: id.to_owned(),
            version: 0,
        };
        self.notify_observers(writing, &[change]);
        Ok(())
    }

    /// Versions of this node stay above all that were used.
    fn raise_version(
        &self,
        db: &KeyedDatabase,
        batch: &mut fjall::OwnedWriteBatch,
        version: u64,
    ) -> Result<(), StoreError> {
        let next = last_version(db)? + 1;
        put_last_version(db, batch, next.max(version));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::{Store, StoreConfig};

    /// Applies changes at once, with versions from 1000 on.
    struct AnotherNode {
        objects: crate::WeakObjects,
        next_version: Mutex<u64>,
    }

    impl ObjectReplication for AnotherNode {
        fn is_replicated(&self, kind: &str) -> bool {
            kind == "rule"
        }

        fn put(
            &self,
            kind: &str,
            id: &str,
            value: &Value,
            expected: ExpectedVersion,
        ) -> Result<(), ObjectError> {
            let objects = self.objects.upgrade().expect("the store is open");
            let current = objects.get(kind, id)?.map(|object| object.version);
            if expected == ExpectedVersion::Absent && current.is_some() {
                return Err(ObjectError::Conflict { current });
            }
            let mut version = self.next_version.lock().expect("not poisoned");
            *version += 1;
            objects.apply_replicated(&Object {
                kind: kind.to_owned(),
                id: id.to_owned(),
                value: value.clone(),
                version: *version,
                created_ms: 5,
                updated_ms: 6,
            })
        }

        fn delete(&self, kind: &str, id: &str, _: ExpectedVersion) -> Result<bool, ObjectError> {
            let objects = self.objects.upgrade().expect("the store is open");
            let existed = objects.get(kind, id)?.is_some();
            objects.remove_replicated(kind, id)?;
            Ok(existed)
        }
    }

    #[test]
    fn changes_of_replicated_kinds_have_the_versions_of_the_cluster() {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, _) =
            Store::open(directory.path(), StoreConfig::default()).expect("the store opens");
        let objects = store.objects().clone();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let observed = Arc::clone(&seen);
        objects.observe_changes(Box::new(move |change| {
            observed
                .lock()
                .expect("not poisoned")
                .push((change.id.clone(), change.version));
        }));
        objects.set_replication(Arc::new(AnotherNode {
            objects: objects.downgrade(),
            next_version: Mutex::new(1000),
        }));
        let entry = |object: &Object| JournalEntry {
            journal: "audit",
            value: json!({"version": object.version}),
            max_entries: 10,
        };
        let put = |id: &str, expected| {
            objects.put_with_entry("rule", id, json!({"a": 1}), expected, &entry)
        };
        let stored = put("one", ExpectedVersion::Absent).expect("it is stored");
        assert_eq!((stored.version, stored.created_ms), (1001, 5));
        assert!(matches!(
            put("one", ExpectedVersion::Absent),
            Err(ObjectError::Conflict {
                current: Some(1001)
            })
        ));
        // Other kinds stay on this node, with versions above those of the cluster.
        let local = objects.put("local", "x", json!(1), ExpectedVersion::Any);
        assert_eq!(local.expect("it is stored").version, 1002);
        assert!(
            objects
                .delete("rule", "one", ExpectedVersion::Any)
                .expect("it is deleted")
        );
        assert!(
            !objects
                .delete("rule", "one", ExpectedVersion::Any)
                .expect("it is gone")
        );
        assert_eq!(objects.get("rule", "one").expect("it can be read"), None);
        let expected = [("one", 1001), ("x", 1002), ("one", 0)];
        let expected = expected.map(|(id, version)| (id.to_owned(), version));
        assert_eq!(*seen.lock().expect("not poisoned"), expected);
        let entries = objects
            .list_journal_entries("audit", None, 10)
            .expect("they can be read");
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].1, json!({"version": 1001}));
    }
}
