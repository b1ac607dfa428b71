//! Exports of files: until they end, their file is kept.

use transfer::ExportState;

use super::*;

#[test]
fn files_are_kept_until_they_are_exported() {
    let mut node = Node::new(settings());
    let send = |node: &Node, bytes: &[u8]| {
        node.begin(&request("f")).expect("begun");
        node.write("f", 0, bytes).expect("written");
        let size = Some(bytes.len() as u64);
        node.finish("f", size).expect("finished").id
    };
    let export_of = |node: &Node, id: &str| {
        let info = node.files.info(FileTarget::Id(id)).expect("kept");
        info.exports.first().cloned().expect("an export")
    };
    let first = send(&node, b"first");
    let row = serde_json::json!({"id": first, "name": "a"});
    assert!(node.files.queue_export("archive", &first, row.clone()));
    assert!(!node.files.queue_export("archive", "none", row.clone()));
    node.files.store_queued_exports();
    // A later file of the same sender does not replace one that is still to be exported, and it does not expire.
    let second = send(&node, b"second");
    node.restart();
    node.files.expire(u64::MAX);
    assert!(node.files.info(FileTarget::Id(&first)).is_some());
    let active = node.files.active_exports();
    assert_eq!(active.len(), 1);
    assert_eq!(
        (&active[0].sink, &active[0].row),
        (&"archive".to_owned(), &row)
    );

    let opened = node.files.begin_export("archive", &first).expect("begun");
    let mut content = Vec::new();
    let mut opened = opened.expect("there is one");
    opened.file.read_to_end(&mut content).expect("read");
    assert_eq!(content, b"first");
    node.files.note_export_progress("archive", &first, 3);
    let position = Some("part 7");
    (node
        .files
        .store_export_position("archive", &first, position))
    .expect("stored");
    assert_eq!(export_of(&node, &first).state, ExportState::Running);
    // The node is killed: the export waits again, with its position.
    node.restart();
    assert_eq!(export_of(&node, &first).state, ExportState::Waiting);
    let opened = node.files.begin_export("archive", &first).expect("begun");
    assert_eq!(opened.expect("there is one").position.as_deref(), position);
    node.files
        .postpone_export("archive", &first, "down")
        .expect("stored");
    let export = export_of(&node, &first);
    assert_eq!(
        (export.attempts, export.error.as_deref()),
        (2, Some("down"))
    );
    // A failed export keeps the file too, until it is cancelled or repeated.
    node.files
        .fail_export("archive", &first, "refused")
        .expect("stored");
    node.restart();
    assert!(node.files.active_exports().is_empty());
    assert_eq!(export_of(&node, &first).state, ExportState::Failed);
    assert_eq!(node.files.export_row("archive", &first), Some(row.clone()));
    assert!(node.files.queue_export("archive", &first, row));
    node.files.begin_export("archive", &first).expect("begun");
    (node.files.complete_export("archive", &first, "s3", false)).expect("stored");
    // It was replaced meanwhile.
    assert!(node.files.info(FileTarget::Id(&first)).is_none());
    assert!(node.files.info(FileTarget::Id(&second)).is_some());

    // With two exports the file is deleted after the second one.
    for sink in ["a", "b"] {
        let row = serde_json::json!({"id": second});
        assert!(node.files.queue_export(sink, &second, row));
        node.files.begin_export(sink, &second).expect("begun");
    }
    (node.files.complete_export("a", &second, "s3", true)).expect("stored");
    assert!(node.files.info(FileTarget::Id(&second)).is_some());
    node.files.cancel_export("b", &second).expect("cancelled");
    assert!(node.files.info(FileTarget::Id(&second)).is_none());
    assert_eq!(
        node.files
            .begin_export("b", &second)
            .map(|begun| begun.is_none()),
        Ok(true)
    );
}

#[test]
fn what_a_target_has_of_a_cancelled_export_is_discarded() {
    let node = Node::new(settings());
    let discarded = Arc::new(Mutex::new(Vec::new()));
    let log = discarded.clone();
    node.files
        .set_export_discard(Box::new(move |sink, file, position| {
            let call = [sink, file, position].map(str::to_owned);
            log.lock().expect("not poisoned").push(call);
        }));
    let mut expected = Vec::new();
    for (file_id, position) in [("a", Some("part 1")), ("b", Some("part 2")), ("c", None)] {
        node.begin(&request(file_id)).expect("begun");
        let file = node.finish(file_id, Some(0)).expect("finished").id;
        let row = serde_json::json!({"id": file});
        assert!(node.files.queue_export("s3", &file, row));
        node.files.begin_export("s3", &file).expect("begun");
        (node.files.store_export_position("s3", &file, position)).expect("stored");
        if file_id == "b" {
            node.files.delete(&file).expect("deleted");
        } else {
            node.files.cancel_export("s3", &file).expect("cancelled");
        }
        // What begins now is not known to anybody.
        let late = node.files.store_export_position("s3", &file, Some("late"));
        assert_eq!(late, Ok(false));
        let call = |position: &str| ["s3".to_owned(), file.clone(), position.to_owned()];
        expected.extend(position.map(call));
    }
    assert_eq!(*discarded.lock().expect("not poisoned"), expected);
}

#[test]
fn an_event_is_pending_until_it_is_settled() {
    let mut node = Node::new(settings());
    let observe = |node: &Node| {
        node.files.observe_completions(CompletionObserver {
            is_interested: Box::new(|| true),
            completed: Box::new(|_| {}),
        });
    };
    observe(&node);
    for file_id in ["f", "g"] {
        node.begin(&request(file_id)).expect("begun");
        node.finish(file_id, Some(0)).expect("finished");
    }
    let pending = |node: &Node| {
        let files = node.files.files_with_pending_event();
        files
            .into_iter()
            .map(|info| info.file_id)
            .collect::<Vec<_>>()
    };
    assert_eq!(pending(&node), ["f", "g"]);
    node.restart();
    assert_eq!(pending(&node), ["f", "g"]);
    let id = node.files.files_with_pending_event()[0].id.clone();
    node.files.settle_event(&id).expect("settled");
    node.restart();
    assert_eq!(pending(&node), ["g"]);
}
