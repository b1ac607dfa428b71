//! Configuration objects and journals: persistence, version conflicts, export and import.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use store::{
    ExpectedVersion, ImportMode, JournalEntry, Object, ObjectError, Objects, Store, StoreConfig,
    StoreOpenError,
};

fn open(dir: &tempfile::TempDir) -> Store {
    Store::open(dir.path(), StoreConfig::default()).unwrap().0
}

fn ids(objects: &Objects, kind: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let found = objects.list(kind, after, limit).unwrap();
    found.into_iter().map(|object| object.id).collect()
}

#[test]
fn objects_survive_and_versions_grow() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let made = store
        .objects()
        .put(
            "user",
            "ada",
            json!({"roles": ["admin"]}),
            ExpectedVersion::Absent,
        )
        .unwrap();
    let changed = store
        .objects()
        .put(
            "user",
            "ada",
            json!({"roles": []}),
            ExpectedVersion::Version(made.version),
        )
        .unwrap();
    assert!(changed.version > made.version);
    assert_eq!(changed.created_ms, made.created_ms);
    drop(store);

    let store = open(&dir);
    assert_eq!(
        store.objects().get("user", "ada").unwrap(),
        Some(changed.clone())
    );
    assert!(
        store
            .objects()
            .delete("user", "ada", ExpectedVersion::Any)
            .unwrap()
    );
    assert!(
        !store
            .objects()
            .delete("user", "ada", ExpectedVersion::Any)
            .unwrap()
    );
    let again = store
        .objects()
        .put("user", "ada", json!(1), ExpectedVersion::Absent)
        .unwrap();
    assert!(
        again.version > changed.version,
        "versions are not used again"
    );
}

#[test]
fn a_change_that_expected_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let objects = store.objects();
    let made = objects
        .put("ban", "x", json!({}), ExpectedVersion::Any)
        .unwrap();
    let refused = |expected| match objects.put("ban", "x", json!(1), expected) {
        Err(ObjectError::Conflict { current }) => current,
        other => panic!("expected a conflict, got {other:?}"),
    };
    assert_eq!(refused(ExpectedVersion::Absent), Some(made.version));
    assert_eq!(
        refused(ExpectedVersion::Version(made.version + 1)),
        Some(made.version)
    );
    let gone = objects.delete("ban", "y", ExpectedVersion::Version(1));
    assert!(matches!(gone, Err(ObjectError::Conflict { current: None })));
    assert_eq!(objects.get("ban", "x").unwrap(), Some(made));
}

#[test]
fn lists_go_page_by_page_and_keep_to_their_kind() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let objects = store.objects();
    for id in ["b", "a", "ab", "ä", "c"] {
        objects
            .put("user", id, json!(id), ExpectedVersion::Any)
            .unwrap();
    }
    objects
        .put("user_group", "z", json!(0), ExpectedVersion::Any)
        .unwrap();
    objects
        .put("use", "z", json!(0), ExpectedVersion::Any)
        .unwrap();
    assert_eq!(ids(objects, "user", None, 10), ["a", "ab", "b", "c", "ä"]);
    assert_eq!(ids(objects, "user", Some("a"), 2), ["ab", "b"]);
    assert_eq!(ids(objects, "user", Some("aa"), 1), ["ab"]);
    assert_eq!(ids(objects, "user", Some("ä"), 10), [""; 0]);
}

#[test]
fn names_and_values_have_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let invalid = |kind: &str, id: &str, value| {
        let error = store.objects().put(kind, id, value, ExpectedVersion::Any);
        assert!(
            matches!(error, Err(ObjectError::Invalid { .. })),
            "{error:?}"
        );
    };
    invalid("", "a", json!(0));
    invalid("User", "a", json!(0));
    invalid("user", "", json!(0));
    invalid("user", "a\0b", json!(0));
    invalid("user", &"a".repeat(513), json!(0));
    invalid("user", "a", json!("x".repeat(5 << 20)));
}

#[test]
fn listeners_hear_changes_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let changes: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
    let (observer, reader) = (Arc::clone(&changes), store.objects().clone());
    store.objects().observe_changes(Box::new(move |change| {
        // The change is already stored when it is reported.
        let found = reader.get(&change.kind, &change.id).unwrap();
        assert_eq!(found.map_or(0, |object| object.version), change.version);
        observer
            .lock()
            .unwrap()
            .push((change.id.clone(), change.version));
    }));
    let one = store
        .objects()
        .put("k", "1", json!(1), ExpectedVersion::Any)
        .unwrap();
    let two = store
        .objects()
        .put("k", "2", json!(2), ExpectedVersion::Any)
        .unwrap();
    store
        .objects()
        .delete("k", "1", ExpectedVersion::Any)
        .unwrap();
    let _ = store
        .objects()
        .put("k", "2", json!(3), ExpectedVersion::Absent);
    let expected = [("1", one.version), ("2", two.version), ("1", 0)];
    let expected: Vec<_> = expected
        .map(|(id, version)| (id.to_owned(), version))
        .into();
    assert_eq!(*changes.lock().unwrap(), expected);
}

#[test]
fn a_journal_keeps_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    for n in 1..=10 {
        assert_eq!(
            store
                .objects()
                .append_journal_entry(&journal_entry("audit", json!(n)))
                .unwrap(),
            n
        );
    }
    drop(store);
    let store = open(&dir);
    let objects = store.objects();
    assert_eq!(
        objects
            .append_journal_entry(&journal_entry("audit", json!(11)))
            .unwrap(),
        11
    );
    objects
        .append_journal_entry(&journal_entry("auditing", json!(0)))
        .unwrap();
    let numbers = |before, limit| {
        let found = objects
            .list_journal_entries("audit", before, limit)
            .unwrap();
        let number = |(number, value)| {
            assert_eq!(value, json!(number));
            number
        };
        found.into_iter().map(number).collect::<Vec<u64>>()
    };
    assert_eq!(numbers(None, 100), [11, 10, 9, 8, 7]);
    assert_eq!(numbers(Some(10), 2), [9, 8]);
    assert_eq!(
        objects.list_journal_entries("nothing", None, 10).unwrap(),
        []
    );
}

#[test]
fn an_export_can_be_imported_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let made = store
        .objects()
        .put(
            "user",
            "ada",
            json!({"n": "line\nbreak"}),
            ExpectedVersion::Any,
        )
        .unwrap();
    store
        .objects()
        .put("ban", "b", json!(null), ExpectedVersion::Any)
        .unwrap();
    let mut file = Vec::new();
    assert_eq!(store.objects().export_to(&mut file).unwrap(), 2);

    let dir = tempfile::tempdir().unwrap();
    let other = open(&dir);
    let objects = other.objects();
    objects
        .put("user", "eve", json!(1), ExpectedVersion::Any)
        .unwrap();
    let merged = objects
        .import_from(&mut &file[..], ImportMode::Merge)
        .unwrap();
    assert_eq!((merged.written, merged.removed), (2, 0));
    assert_eq!(ids(objects, "user", None, 10), ["ada", "eve"]);
    let found = objects.get("user", "ada").unwrap().unwrap();
    assert_eq!(
        (&found.value, found.created_ms),
        (&made.value, made.created_ms)
    );
    let replaced = objects
        .import_from(&mut &file[..], ImportMode::Replace)
        .unwrap();
    assert_eq!((replaced.written, replaced.removed), (2, 1));
    assert_eq!(ids(objects, "user", None, 10), ["ada"]);

    let broken = String::from_utf8(file).unwrap() + "{\"kind\":\"user\"}\n";
    let error = objects
        .import_from(&mut broken.as_bytes(), ImportMode::Replace)
        .unwrap_err();
    assert!(error.to_string().starts_with("line 4: "), "{error}");
    let error = objects.import_from(&mut &b"{}"[..], ImportMode::Merge);
    assert!(error.unwrap_err().to_string().contains("export of objects"));
    assert_eq!(ids(objects, "user", None, 10), ["ada"]);
}

#[test]
fn a_store_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let _store = open(&dir);
    let second = Store::open(dir.path(), StoreConfig::default());
    assert!(matches!(second, Err(StoreOpenError::Locked { .. })));
}

#[test]
fn all_objects_of_a_kind_are_read_whatever_the_size_of_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let objects = store.objects();
    let put = |kind, id: &str| {
        let made = objects.put(kind, id, json!({}), ExpectedVersion::Absent);
        made.unwrap();
    };
    put("a", "x");
    put("c", "x");
    let read = || {
        let mut read = Vec::new();
        objects
            .for_each("b", |object| read.push(object.id))
            .unwrap();
        read
    };
    assert_eq!(read(), Vec::<String>::new());
    let ids: Vec<_> = (0..1001).map(|number| format!("{number:04}")).collect();
    for (number, id) in ids.iter().enumerate() {
        put("b", id);
        if number + 1 >= 1000 {
            assert_eq!(read(), ids[..=number]);
        }
    }
}

fn journal_entry(journal: &'static str, value: Value) -> JournalEntry {
    JournalEntry {
        journal,
        value,
        max_entries: 5,
    }
}

#[test]
fn a_change_and_its_journal_entry_are_written_together() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let objects = store.objects();
    let entry_of = |object: &Object| journal_entry("audit", json!({"put": object.version}));
    let put = |expected| objects.put_with_entry("user", "ann", json!(1), expected, &entry_of);
    let object = put(ExpectedVersion::Absent).unwrap();
    assert!(put(ExpectedVersion::Absent).is_err());
    let recorded = journal_entry("audit", json!("deleted"));
    let delete = |version| {
        let expected = ExpectedVersion::Version(version);
        objects.delete_with_entry("user", "ann", expected, &recorded)
    };
    assert!(delete(object.version + 1).is_err());
    assert!(delete(object.version).unwrap());
    let entries = objects.list_journal_entries("audit", None, 10).unwrap();
    assert_eq!(
        entries,
        [(2, json!("deleted")), (1, json!({"put": object.version}))]
    );
}
