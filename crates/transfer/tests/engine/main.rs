//! The engine through its public interface: limits, repetitions, restarts, and what is visible when.

mod exports;
mod limits;
mod segment_order;

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use namespaces::NamespaceSelection;
use tempfile::TempDir;
use transfer::{
    CompletionObserver, FileDigest, FileInfo, FileOwner, FileService, FileState, FileTarget,
    FinishStep, OwnerKind, TransferError, TransferErrorKind, TransferRequest, TransferSettings,
    TransferStart, check_files,
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
