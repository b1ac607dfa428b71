//! The engine through its public interface: limits, repetitions, restarts, and what is visible when.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use namespaces::NamespaceSelection;
use proptest::prelude::*;
use tempfile::TempDir;
use transfer::{
    CompletionObserver, ExportState, FileDigest, FileInfo, FileOwner, FileService, FileState,
    FileTarget, FinishStep, OwnerKind, TransferError, TransferErrorKind, TransferRequest,
    TransferSettings, TransferStart, check_files,
};

struct Node {
    directory: TempDir,
    settings: TransferSettings,
    files: FileService,
}

fn settings() -> TransferSettings {
    TransferSettings {
        min_free_bytes: 0,
        ..TransferSettings::default()
    }
}

impl Node {
    fn new(settings: TransferSettings) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let files = FileService::open(directory.path(), settings.clone()).expect("opened");
        Self {
            directory,
            settings,
            files,
        }
    }

    /// As after a kill: nothing is closed.
    fn restart(&mut self) {
        self.files = FileService::open(self.path(), self.settings.clone()).expect("opened");
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn begin(&self, request: &TransferRequest) -> Result<TransferStart, TransferError> {
        self.files.begin(request.clone())
    }

    fn write(&self, file_id: &str, offset: u64, bytes: &[u8]) -> Result<(), TransferError> {
        let owner = owner();
        let target = FileTarget::Transfer(&owner, file_id);
        let written = self.files.write(target, offset, bytes, None)?;
        self.files.commit(&written)
    }

    fn finish(&self, file_id: &str, size: Option<u64>) -> Result<FileInfo, TransferError> {
        let owner = owner();
        self.files
            .finish(FileTarget::Transfer(&owner, file_id), size, None)
    }

    fn content(&self, id: &str) -> Vec<u8> {
        let (_, mut file) = self.files.read(id).expect("complete");
        let mut content = Vec::new();
        file.read_to_end(&mut content).expect("readable");
        content
    }

    fn all(&self) -> Vec<FileInfo> {
        self.files
            .list(&NamespaceSelection::All, None, 100, &|_| true)
    }

    fn directories(&self) -> usize {
        let entries = fs::read_dir(self.path()).expect("a directory");
        entries
            .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir()))
            .count()
    }
}

fn owner() -> FileOwner {
    FileOwner::client("c")
}

fn request(file_id: &str) -> TransferRequest {
    TransferRequest::new(owner(), file_id, "a.bin")
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

fn kind<T>(result: Result<T, TransferError>) -> Option<TransferErrorKind> {
    result.err().map(|error| error.kind)
}

#[test]
fn files_of_all_sizes_arrive_in_segments_of_all_sizes() {
    let node = Node::new(settings());
    for size in [
        0, 1, 2, 251, 65_535, 65_536, 65_537, 262_144, 262_145, 1_000_003,
    ] {
        for segment in [1000, 65_536, 1_048_576] {
            let content = bytes(size);
            let file_id = format!("{size}-{segment}");
            let request = TransferRequest {
                size: Some(size as u64),
                checksum: Some(FileDigest::of(&content)),
                ..request(&file_id)
            };
            node.begin(&request).expect("begun");
            // The last segment first.
            for (at, piece) in content.chunks(segment).enumerate().rev() {
                node.write(&file_id, (at * segment) as u64, piece)
                    .expect("written");
            }
            let info = node.finish(&file_id, Some(size as u64)).expect("complete");
            assert_eq!(info.size, Some(size as u64));
            assert!(node.content(&info.id) == content, "{file_id}");
            node.files.delete(&info.id).expect("deleted");
        }
    }
    assert_eq!((node.directories(), node.all().len()), (0, 0));
}

#[test]
fn nothing_is_visible_before_it_is_complete_and_verified() {
    let node = Node::new(settings());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observed = seen.clone();
    let push = move |info: &FileInfo| observed.lock().expect("a lock").push(info.id.clone());
    node.files.observe_completions(CompletionObserver {
        is_interested: Box::new(|| true),
        completed: Box::new(push),
    });
    let begun = TransferRequest {
        checksum: Some(FileDigest::of(b"right")),
        ..request("f")
    };
    let id = node.begin(&begun).expect("begun").info().id.clone();
    let incomplete = Some(TransferErrorKind::Incomplete);
    assert_eq!(kind(node.files.read(&id)), incomplete);
    assert_eq!(kind(node.finish("f", Some(5))), incomplete);
    node.write("f", 0, b"wrong").expect("written");
    let mismatch = Some(TransferErrorKind::ChecksumMismatch);
    assert_eq!(kind(node.finish("f", Some(5))), mismatch);
    assert_eq!(kind(node.files.read(&id)), incomplete);
    assert!(seen.lock().expect("a lock").is_empty());
    // The wrong segments are replaced.
    node.write("f", 0, b"ri").expect("written");
    node.write("f", 2, b"ght").expect("written");
    let info = node.finish("f", Some(5)).expect("complete");
    assert_eq!(info.state, FileState::Complete);
    assert_eq!(node.content(&id), b"right");
    assert_eq!(seen.lock().expect("a lock").len(), 1);
    // Everything again is harmless.
    assert_eq!(node.finish("f", Some(5)).expect("complete").id, id);
    node.write("f", 2, b"gh").expect("the same bytes");
    assert_eq!(
        kind(node.write("f", 2, b"GH")),
        Some(TransferErrorKind::Conflict)
    );
    assert_eq!(
        kind(node.finish("f", Some(4))),
        Some(TransferErrorKind::Conflict)
    );
    let again = node.begin(&begun).expect("begun");
    assert!(matches!(again, TransferStart::Complete(info) if info.id == id));
    assert_eq!(seen.lock().expect("a lock").len(), 1);
}

#[test]
fn a_segment_with_another_digest_is_rejected() {
    let node = Node::new(settings());
    node.begin(&request("f")).expect("begun");
    let owner = owner();
    let target = FileTarget::Transfer(&owner, "f");
    let wrong = node
        .files
        .write(target, 0, b"abc", Some(FileDigest::of(b"abd")));
    assert_eq!(kind(wrong), Some(TransferErrorKind::ChecksumMismatch));
    let right = node
        .files
        .write(target, 0, b"abc", Some(FileDigest::of(b"abc")));
    node.files
        .commit(&right.expect("written"))
        .expect("committed");
    assert_eq!(
        node.files.status(target).expect("a status").received,
        [(0, 3)]
    );
}

#[test]
fn a_new_transfer_replaces_the_file_when_it_is_complete() {
    let mut node = Node::new(settings());
    node.begin(&request("f")).expect("begun");
    node.write("f", 0, b"old").expect("written");
    let old = node.finish("f", Some(3)).expect("complete").id;
    node.begin(&request("f")).expect("begun");
    node.write("f", 0, b"newer").expect("written");
    assert_eq!(node.content(&old), b"old");
    let new = node.finish("f", Some(5)).expect("complete").id;
    assert_ne!(new, old);
    assert_eq!(
        kind(node.files.read(&old)),
        Some(TransferErrorKind::NotFound)
    );
    assert_eq!(
        (node.content(&new), node.directories()),
        (b"newer".to_vec(), 1)
    );
    node.restart();
    assert_eq!(node.content(&new), b"newer");
}

#[test]
fn a_repeated_begin_continues_and_another_one_is_a_conflict() {
    let node = Node::new(settings());
    let first = TransferRequest {
        size: Some(10),
        ..request("f")
    };
    let id = node.begin(&first).expect("begun").info().id.clone();
    node.write("f", 0, b"abc").expect("written");
    let again = node.begin(&first).expect("begun");
    assert!(matches!(&again, TransferStart::Resumed(info) if info.id == id));
    assert_eq!(again.info().received_bytes, 3);
    let other = TransferRequest {
        size: Some(11),
        ..request("f")
    };
    assert_eq!(kind(node.begin(&other)), Some(TransferErrorKind::Conflict));
    node.files.abort(&owner(), "f").expect("aborted");
    node.files.abort(&owner(), "f").expect("nothing to abort");
    assert_eq!(
        kind(node.write("f", 0, b"x")),
        Some(TransferErrorKind::NotFound)
    );
    assert_ne!(node.begin(&other).expect("begun").info().id, id);
    assert_eq!(node.directories(), 1);
}

#[test]
fn acknowledged_segments_survive_a_kill() {
    for fsync in [
        disk::Fsync::Always,
        disk::Fsync::Never,
        disk::Fsync::default(),
    ] {
        let mut node = Node::new(TransferSettings {
            fsync,
            ..settings()
        });
        let begun = TransferRequest {
            size: Some(9),
            ..request("f")
        };
        let id = node.begin(&begun).expect("begun").info().id.clone();
        node.write("f", 6, b"ghi").expect("written");
        node.restart();
        node.write("f", 0, b"abc").expect("written");
        let owner = owner();
        let unacknowledged = node.files.write(FileTarget::Id(&id), 3, b"def", None);
        drop(unacknowledged);
        node.restart();
        let status = node.files.status(FileTarget::Transfer(&owner, "f"));
        let status = status.expect("a status");
        assert_eq!(status.received, [(0, 3), (6, 9)]);
        assert_eq!(status.missing, [(3, 6)]);
        node.files.sync();
        node.restart();
        node.write("f", 3, b"def").expect("written");
        let info = node.finish("f", None).expect("complete");
        assert_eq!(node.content(&info.id), b"abcdefghi");
        node.restart();
        assert_eq!(node.content(&info.id), b"abcdefghi");
        assert_eq!(node.all()[0].checksum, Some(FileDigest::of(b"abcdefghi")));
    }
}

#[test]
fn interrupted_begins_and_removals_leave_nothing() {
    let mut node = Node::new(settings());
    fs::create_dir(node.path().join("remainder")).expect("created");
    fs::write(node.path().join("remainder/data"), "x").expect("written");
    let id = node.begin(&request("f")).expect("begun").info().id.clone();
    fs::remove_file(node.path().join(id).join("record")).expect("removed");
    node.restart();
    assert_eq!((node.directories(), node.all().len()), (0, 0));
    // A file that was replaced, but not removed.
    node.begin(&request("f")).expect("begun");
    node.write("f", 0, b"old").expect("written");
    let old = node.finish("f", Some(3)).expect("complete").id;
    let kept = tempfile::tempdir().expect("a directory");
    for name in ["record", "data"] {
        let from = node.path().join(&old).join(name);
        fs::copy(from, kept.path().join(name)).expect("copied");
    }
    node.begin(&request("f")).expect("begun");
    node.write("f", 0, b"new").expect("written");
    let new = node.finish("f", Some(3)).expect("complete").id;
    fs::create_dir(node.path().join(&old)).expect("created");
    for name in ["record", "data"] {
        let to = node.path().join(&old).join(name);
        fs::copy(kept.path().join(name), to).expect("copied");
    }
    node.restart();
    assert_eq!(
        node.all().iter().map(|info| &info.id).collect::<Vec<_>>(),
        [&new]
    );
    assert_eq!(node.directories(), 1);
}

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

#[test]
fn a_large_digest_is_computed_in_slices() {
    let node = Node::new(settings());
    node.begin(&request("f")).expect("begun");
    let content = bytes(1000);
    node.write("f", 500, &content[500..]).expect("written");
    node.write("f", 0, &content[..500]).expect("written");
    let owner = owner();
    let target = FileTarget::Transfer(&owner, "f");
    let mut steps = 0;
    while node
        .files
        .finish_step(target, Some(1000), None, 100)
        .expect("steps")
        == FinishStep::Pending
    {
        steps += 1;
    }
    assert_eq!(steps, 4, "the first half was digested as it arrived");
    assert_eq!(node.all()[0].checksum, Some(FileDigest::of(&content)));
}

#[test]
fn a_file_finished_smaller_than_received_is_cut() {
    let node = Node::new(settings());
    node.begin(&request("f")).expect("begun");
    node.write("f", 0, b"abcdef").expect("written");
    let info = node.finish("f", Some(4)).expect("complete");
    assert_eq!(
        (node.content(&info.id), info.size),
        (b"abcd".to_vec(), Some(4))
    );
    assert_eq!(info.checksum, Some(FileDigest::of(b"abcd")));
    assert_eq!(node.files.namespace_usage("default").bytes, 4);
}

#[test]
fn the_check_finds_changed_files() {
    let node = Node::new(settings());
    for file_id in ["a", "b", "c"] {
        node.begin(&request(file_id)).expect("begun");
        node.write(file_id, 0, b"content").expect("written");
    }
    let a = node.finish("a", Some(7)).expect("complete").id;
    let b = node.finish("b", Some(7)).expect("complete").id;
    assert_eq!(check_files(node.path()).expect("readable"), (3, Vec::new()));
    fs::write(node.path().join(&a).join("data"), "Content").expect("written");
    fs::write(node.path().join(&b).join("record"), "{}").expect("written");
    let (files, problems) = check_files(node.path()).expect("readable");
    assert_eq!((files, problems.len()), (3, 2), "{problems:?}");
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("digest differs"))
    );
    let reopened = FileService::open(node.path(), settings()).expect("opened");
    let listed = reopened.list(&NamespaceSelection::All, None, 100, &|_| true);
    assert_eq!(
        listed.len(),
        2,
        "a damaged record hides its file and stops nothing"
    );
    assert!(node.path().join(&b).exists());
}

#[test]
fn lists_are_pages_of_the_selected_namespaces() {
    let node = Node::new(settings());
    for (number, namespace) in ["a", "b", "a", "a"].into_iter().enumerate() {
        let owner = FileOwner {
            namespace: namespace.to_owned(),
            ..FileOwner::client(namespace)
        };
        let request = TransferRequest::new(owner, number.to_string(), "x");
        node.begin(&request).expect("begun");
        // Ids begin with the time of the begin.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let only = NamespaceSelection::All.within("a");
    let page = |before: Option<&str>| node.files.list(&only, before, 2, &|_| true);
    let first = page(None);
    let ids = |page: &[FileInfo]| {
        page.iter()
            .map(|info| info.file_id.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&first), ["3", "2"]);
    assert_eq!(ids(&page(Some(&first[1].id))), ["0"]);
    assert_eq!(node.files.namespace_usage("a").transfers, 3);
}

#[test]
fn disabled_files_accept_nothing() {
    let node = Node::new(TransferSettings {
        enabled: false,
        ..settings()
    });
    assert_eq!(
        kind(node.begin(&request("f"))),
        Some(TransferErrorKind::Disabled)
    );
}

/// A step of a sender, or a kill of the node.
#[derive(Debug, Clone)]
enum Step {
    Write { start: usize, len: usize },
    WriteWithoutCommit { start: usize, len: usize },
    Kill,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..300_usize, 0..90_usize);
    prop_oneof![
        4 => range.clone().prop_map(|(start, len)| Step::Write { start, len }),
        1 => range.prop_map(|(start, len)| Step::WriteWithoutCommit { start, len }),
        1 => Just(Step::Kill),
        1 => Just(Step::Sync),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the order of segments, repetitions and kills: what was acknowledged is there, and filling what the
    /// status reports as missing yields exactly the file.
    #[test]
    fn every_order_of_segments_and_kills_yields_the_file(
        steps in prop::collection::vec(step(), 1..24),
        always in any::<bool>(),
    ) {
        const SIZE: usize = 350;
        let content = bytes(SIZE);
        let fsync = if always { disk::Fsync::Always } else { disk::Fsync::default() };
        let mut node = Node::new(TransferSettings { fsync, ..settings() });
        let request = TransferRequest {
            size: Some(SIZE as u64),
            checksum: Some(FileDigest::of(&content)),
            ..request("f")
        };
        node.begin(&request).expect("begun");
        let owner = owner();
        let target = FileTarget::Transfer(&owner, "f");
        let mut acknowledged = [false; SIZE];
        for step in steps {
            match step {
                Step::Write { start, len } => {
                    let end = (start + len).min(SIZE);
                    node.write("f", start as u64, &content[start..end]).expect("written");
                    acknowledged[start..end].fill(true);
                }
                Step::WriteWithoutCommit { start, len } => {
                    let end = (start + len).min(SIZE);
                    drop(node.files.write(target, start as u64, &content[start..end], None));
                }
                Step::Kill => node.restart(),
                Step::Sync => node.files.sync(),
            }
        }
        node.restart();
        let status = node.files.status(target).expect("a status");
        for (start, end) in &status.missing {
            for at in *start..*end {
                prop_assert!(!acknowledged[at as usize], "byte {} was acknowledged", at);
            }
        }
        for (start, end) in status.missing {
            node.write("f", start, &content[start as usize..end as usize]).expect("written");
        }
        let info = node.finish("f", None).expect("complete");
        prop_assert_eq!(node.content(&info.id), content);
    }
}

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
