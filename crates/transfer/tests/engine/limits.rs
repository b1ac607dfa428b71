//! Quotas, space, holds, pauses and expiry.

use super::*;

#[test]
fn quotas_are_checked_and_released() {
    let node = Node::new(TransferSettings {
        max_file_bytes: 100,
        max_files_per_owner: 3,
        max_bytes_per_owner: 150,
        max_transfers_per_owner: 2,
        max_bytes_per_product: 30,
        ..settings()
    });
    let sized = |file_id: &str, size: u64| TransferRequest {
        size: Some(size),
        ..request(file_id)
    };
    assert_eq!(
        kind(node.begin(&sized("a", 101))),
        Some(TransferErrorKind::TooLarge)
    );
    node.begin(&sized("a", 100)).expect("begun");
    let quota = Some(TransferErrorKind::QuotaExceeded);
    assert_eq!(kind(node.begin(&sized("b", 51))), quota, "bytes");
    node.begin(&request("b")).expect("begun");
    assert_eq!(kind(node.begin(&request("c"))), quota, "transfers");
    node.write("b", 0, &bytes(50)).expect("written");
    assert_eq!(
        kind(node.write("b", 50, b"x")),
        quota,
        "without an announced size"
    );
    let too_large = Some(TransferErrorKind::TooLarge);
    assert_eq!(kind(node.write("b", 100, b"x")), too_large);
    assert_eq!(kind(node.write("b", u64::MAX, b"x")), too_large);
    node.finish("b", None).expect("complete");
    node.begin(&request("c")).expect("begun");
    node.files.abort(&owner(), "c").expect("aborted");
    node.files.abort(&owner(), "a").expect("aborted");
    for file_id in ["d", "e"] {
        node.begin(&request(file_id)).expect("begun");
        node.finish(file_id, Some(0)).expect("complete");
    }
    assert_eq!(kind(node.begin(&request("f"))), quota, "files");
    let device = FileOwner {
        kind: OwnerKind::Device,
        product: Some("p".to_owned()),
        ..FileOwner::client("d1")
    };
    let of_device = TransferRequest {
        owner: device,
        ..sized("x", 31)
    };
    assert_eq!(kind(node.begin(&of_device)), quota, "the product");
    for info in node.all() {
        node.files.delete(&info.id).expect("deleted");
    }
    assert_eq!(
        node.files.namespace_usage("default"),
        transfer::Usage::default()
    );
}

#[test]
fn a_held_file_is_neither_deleted_nor_replaced_and_does_not_expire() {
    let mut node = Node::new(TransferSettings {
        retention_s: 1,
        ..settings()
    });
    let send = |node: &Node, content: &[u8]| {
        node.begin(&request("f")).expect("begun");
        node.write("f", 0, content).expect("written");
        node.finish("f", None).expect("complete").id
    };
    let held = send(&node, b"one");
    for holder in ["a", "b", "b"] {
        node.files.hold(&held, holder).expect("held");
    }
    let other = send(&node, b"two");
    for restarts in 0..2 {
        assert_eq!(
            kind(node.files.delete(&held)),
            Some(TransferErrorKind::Conflict)
        );
        node.files.expire(wall_clock::now_ms() - 3000);
        assert_eq!(node.content(&held), b"one", "{restarts}");
        assert_eq!(node.content(&other), b"two", "{restarts}");
        node.restart();
    }
    node.files.expire(u64::MAX);
    assert_eq!(node.all().len(), 1, "the other one has expired");
    node.files.release(&held, "a").expect("released");
    assert_eq!(node.all()[0].used_by, ["b"]);
    node.files.release(&held, "b").expect("released");
    assert_eq!(
        node.files
            .info(FileTarget::Transfer(&owner(), "f"))
            .expect("named")
            .id,
        held
    );
    let newest = send(&node, b"three");
    assert_eq!(node.all().len(), 1, "a released file is replaced again");
    node.files.hold(&newest, "a").expect("held");
    let newer = send(&node, b"four");
    node.files.release(&newest, "a").expect("released");
    assert_eq!(node.all()[0].id, newer, "it was replaced while it was held");
    assert_eq!(node.directories(), 1);
    assert_eq!(
        kind(node.files.hold(&held, "a")),
        Some(TransferErrorKind::NotFound)
    );
}

#[test]
fn a_nearly_full_disk_rejects_early() {
    let node = Node::new(TransferSettings {
        min_free_bytes: 1 << 60,
        ..settings()
    });
    assert_eq!(
        kind(node.begin(&request("f"))),
        Some(TransferErrorKind::DiskFull)
    );
    let node = Node::new(TransferSettings {
        max_file_bytes: 1 << 60,
        max_bytes: 1 << 61,
        max_bytes_per_owner: 1 << 61,
        ..settings()
    });
    let huge = TransferRequest {
        size: Some(1 << 59),
        ..request("f")
    };
    assert_eq!(kind(node.begin(&huge)), Some(TransferErrorKind::DiskFull));
    assert_eq!(
        node.files.namespace_usage("default"),
        transfer::Usage::default()
    );
}

#[test]
fn transfers_and_files_expire() {
    let mut node = Node::new(TransferSettings {
        retention_s: 1000,
        ..settings()
    });
    let now_ms = wall_clock::now_ms();
    let after = |seconds: u64| now_ms + seconds * 1000;
    let begun = TransferRequest {
        segments_ttl_s: Some(1),
        ..request("idle")
    };
    node.begin(&begun).expect("begun");
    let expiring = TransferRequest {
        expires_at_ms: Some(after(500)),
        ..request("short")
    };
    for request in [&expiring, &request("kept")] {
        node.begin(request).expect("begun");
        node.finish(&request.file_id, Some(0)).expect("complete");
    }
    let names = |node: &Node| -> Vec<String> {
        let mut names: Vec<_> = node.all().into_iter().map(|info| info.file_id).collect();
        names.sort();
        names
    };
    node.files.expire(after(290));
    assert_eq!(
        names(&node),
        ["idle", "kept", "short"],
        "the least life of a transfer is 300 s"
    );
    node.restart();
    node.files.expire(after(310));
    assert_eq!(names(&node), ["kept", "short"]);
    node.files.expire(after(501));
    assert_eq!(names(&node), ["kept"]);
    node.files.expire(after(1001));
    assert!(names(&node).is_empty() && node.directories() == 0);
}

#[test]
fn a_paused_transfer_rejects_segments_and_does_not_expire() {
    let mut node = Node::new(settings());
    let now_ms = wall_clock::now_ms();
    let begun = TransferRequest {
        size: Some(6),
        segments_ttl_s: Some(300),
        ..request("f")
    };
    let id = node.begin(&begun).expect("begun").info().id.clone();
    node.write("f", 0, b"abc").expect("written");
    assert!(!node.files.resume(&id).expect("it is not paused").is_paused);
    for _ in 0..2 {
        let info = node.files.pause(&id).expect("paused");
        assert_eq!((info.is_paused, info.expires_at_ms), (true, None));
    }
    node.restart();
    let paused = Some(TransferErrorKind::Paused);
    assert_eq!(kind(node.write("f", 3, b"def")), paused);
    assert_eq!(kind(node.files.stage(&id, 3, b"def")), paused);
    assert_eq!(kind(node.finish("f", None)), paused);
    assert!(node.begin(&begun).expect("the same").info().is_paused);
    let status = node.files.status(FileTarget::Id(&id)).expect("a transfer");
    assert_eq!((status.is_paused, status.missing), (true, vec![(3, 6)]));
    node.files.expire(now_ms + 100_000_000);
    assert_eq!(node.all().len(), 1, "it does not expire");

    // As if the pause had been long; the time begins again, also for a start that follows.
    let ranges = node.path().join(&id).join("ranges");
    let ranges = fs::File::options().append(true).open(ranges);
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(10_000);
    (ranges.expect("a log").set_modified(long_ago)).expect("changed");
    assert!(!node.files.resume(&id).expect("resumed").is_paused);
    node.restart();
    node.files.expire(now_ms + 250_000);
    node.write("f", 3, b"def").expect("written");
    // All bytes are there, so nothing has to be sent again.
    node.files.pause(&id).expect("paused");
    let info = node.finish("f", None).expect("complete");
    assert!(!info.is_paused && node.content(&id) == b"abcdef");
    let conflict = Some(TransferErrorKind::Conflict);
    assert_eq!(kind(node.files.pause(&id)), conflict);
    assert_eq!(kind(node.files.resume(&id)), conflict);
    let not_found = Some(TransferErrorKind::NotFound);
    assert_eq!(kind(node.files.pause("absent")), not_found);
}

#[test]
fn a_transfer_in_one_request_cannot_be_paused() {
    let node = Node::new(settings());
    let guard = node.files.lock_single_request(&owner(), "f").expect("free");
    assert!(node.files.lock_single_request(&owner(), "f").is_none());
    let id = node.begin(&request("f")).expect("begun").info().id.clone();
    let conflict = Some(TransferErrorKind::Conflict);
    assert_eq!(kind(node.files.pause(&id)), conflict);
    drop(guard);
    assert!(node.files.pause(&id).expect("paused").is_paused);
}

#[test]
fn idle_transfers_are_closed_and_continue() {
    let node = Node::new(settings());
    node.begin(&request("f")).expect("begun");
    node.write("f", 0, b"abc").expect("written");
    node.files.expire(wall_clock::now_ms() + 61_000);
    node.write("f", 3, b"def").expect("written");
    let info = node.finish("f", Some(6)).expect("complete");
    assert_eq!(node.content(&info.id), b"abcdef");
}
