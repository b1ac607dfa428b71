//! Sinks that export files: multipart uploads, streamed requests, retries and what is recorded about them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};

use connect::{AfterExport, ContentPort, FileContent};
use serde_json::{Value, json};

use crate::bench::{ConnectorFixture, until};
use crate::http::{HttpServer, ReceivedRequest, Reply, decoded};
use crate::s3::is_signed;

const MEBIBYTE: usize = 1 << 20;

/// Paths and bodies of requests.
type ReceivedRequests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Files in a directory, and what sinks record about their exports.
struct Files {
    directory: PathBuf,
    positions: Mutex<BTreeMap<String, String>>,
    events: Mutex<Vec<String>>,
}

impl Files {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            directory: tempfile::tempdir().unwrap().keep(),
            positions: Mutex::default(),
            events: Mutex::default(),
        })
    }

    fn add(&self, id: &str, bytes: &[u8]) {
        fs::write(self.directory.join(id), bytes).unwrap();
    }

    fn note(&self, event: String) {
        self.events.lock().unwrap().push(event);
    }

    fn has(&self, event: &str) -> bool {
        self.events
            .lock()
            .unwrap()
            .iter()
            .any(|known| known.starts_with(event))
    }

    fn wait_for(&self, event: &str) {
        until(event, || self.has(event).then_some(()))
            .unwrap_or_else(|| panic!("{:?}", self.events));
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl ContentPort for Files {
    fn queued(&self, sink: &str, file: &str, row: Value) {
        self.note(format!("queued {sink} {file} {}", row["name"]));
    }

    fn begin(&self, _: &str, file: &str) -> Result<Option<FileContent>, String> {
        let Ok(bytes) = fs::read(self.directory.join(file)) else {
            return Ok(None);
        };
        let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
        Ok(Some(FileContent {
            id: file.to_owned(),
            name: format!("{file}.bin"),
            size: bytes.len() as u64,
            sha256: digest.as_ref().try_into().unwrap(),
            content_type: Some("image/png".to_owned()),
            file: File::open(self.directory.join(file)).unwrap(),
            position: self.positions.lock().unwrap().get(file).cloned(),
        }))
    }

    fn note_progress(&self, _: &str, file: &str, sent_bytes: u64) {
        self.note(format!("sent {file} {sent_bytes}"));
    }

    fn store_position(&self, _: &str, file: &str, position: Option<&str>) -> bool {
        if !self.directory.join(file).exists() {
            return false;
        }
        let mut positions = self.positions.lock().unwrap();
        match position {
            Some(position) => positions.insert(file.to_owned(), position.to_owned()),
            None => positions.remove(file),
        };
        true
    }

    fn completed(&self, _: &str, file: &str, location: &str, after: AfterExport) {
        self.note(format!("completed {file} {after:?} {location}"));
    }

    fn postponed(&self, _: &str, file: &str, error: &str) {
        self.note(format!("postponed {file} {error}"));
    }

    fn failed(&self, _: &str, file: &str, error: &str) {
        self.note(format!("failed {file} {error}"));
    }

    fn sink_removed(&self, sink: &str) {
        self.note(format!("removed {sink}"));
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// An object store with multipart uploads of one upload at a time.
#[derive(Default)]
struct ObjectStore {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    parts: Mutex<BTreeMap<u64, Vec<u8>>>,
    puts: AtomicUsize,
    begun: AtomicUsize,
    /// Each part is refused while this is set, after this many.
    refuse_after: Mutex<Option<usize>>,
    /// Uploads are forgotten.
    forgets: Mutex<bool>,
    aborted: AtomicUsize,
    /// Called when an upload begins.
    on_begin: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl ObjectStore {
    fn answer(&self, asked: &ReceivedRequest) -> Reply {
        let reply = |status, body: &str| (status, Vec::new(), body.to_owned());
        if !is_signed(asked, "gate") {
            return reply(403, "<Error><Code>SignatureDoesNotMatch</Code></Error>");
        }
        let key = decoded(asked.path.strip_prefix("/bucket/").unwrap());
        let no_upload = || reply(404, "<Error><Code>NoSuchUpload</Code></Error>");
        let is_known = asked.query("uploadId") == "up&1/=" && !*self.forgets.lock().unwrap();
        match (asked.method.as_str(), asked.raw_query.as_str()) {
            ("POST", "uploads=") => {
                assert_eq!(asked.header("content-type"), "image/png");
                self.begun.fetch_add(1, Relaxed);
                self.parts.lock().unwrap().clear();
                *self.forgets.lock().unwrap() = false;
                if let Some(on_begin) = &*self.on_begin.lock().unwrap() {
                    on_begin();
                }
                reply(200, "<R><UploadId>up&amp;1/=</UploadId></R>")
            }
            ("PUT", "") => {
                assert_eq!(asked.header("content-type"), "image/png");
                self.objects
                    .lock()
                    .unwrap()
                    .insert(key, asked.bytes.clone());
                reply(200, "")
            }
            _ if !is_known => no_upload(),
            ("DELETE", _) => {
                self.aborted.fetch_add(1, Relaxed);
                self.parts.lock().unwrap().clear();
                *self.forgets.lock().unwrap() = true;
                reply(204, "")
            }
            ("PUT", _) => {
                let count = self.puts.load(Relaxed);
                if self
                    .refuse_after
                    .lock()
                    .unwrap()
                    .is_some_and(|after| count >= after)
                {
                    return reply(503, "<Error><Code>SlowDown</Code></Error>");
                }
                self.puts.fetch_add(1, Relaxed);
                let number: u64 = asked.query("partNumber").parse().unwrap();
                self.parts
                    .lock()
                    .unwrap()
                    .insert(number, asked.bytes.clone());
                let tag = vec![format!("ETag: \"tag-{number}\"")];
                (200, tag, String::new())
            }
            ("GET", _) => {
                let after: u64 = asked.query("part-number-marker").parse().unwrap_or(0);
                let parts = self.parts.lock().unwrap();
                // Two on a page.
                let page: Vec<_> = parts.range(after + 1..).take(2).collect();
                let mut text = String::from("<L>");
                for (number, bytes) in &page {
                    let size = bytes.len();
                    text.push_str(&format!(
                        "<Part><PartNumber>{number}</PartNumber><ETag>&quot;tag-{number}&quot;</ETag><Size>{size}</Size></Part>"
                    ));
                }
                let last = page.last().map_or(0, |(number, _)| **number);
                let is_truncated = parts.range(last + 1..).next().is_some();
                text.push_str(&format!(
                    "<IsTruncated>{is_truncated}</IsTruncated><NextPartNumberMarker>{last}</NextPartNumberMarker></L>"
                ));
                reply(200, &text)
            }
            ("POST", _) => {
                let parts = self.parts.lock().unwrap();
                for number in parts.keys() {
                    let part = format!(
                        "<Part><PartNumber>{number}</PartNumber><ETag>&quot;tag-{number}&quot;</ETag></Part>"
                    );
                    assert!(asked.body.contains(&part), "{}", asked.body);
                }
                let whole = parts.values().flatten().copied().collect();
                self.objects.lock().unwrap().insert(key, whole);
                reply(200, "<R></R>")
            }
            other => panic!("{other:?}"),
        }
    }
}

fn start_store() -> (HttpServer, Arc<ObjectStore>) {
    let store = Arc::new(ObjectStore::default());
    let shared = store.clone();
    (HttpServer::start(move |asked| shared.answer(asked)), store)
}

fn store_connector(server: &HttpServer) -> Value {
    json!({
        "type": "s3", "endpoint": server.url(), "region": "eu-west-1", "bucket": "bucket",
        "access_key_id": "tide", "secret_access_key": "gate", "path_style": true
    })
}

fn bench(connector: Value, sink: Value) -> (ConnectorFixture, Arc<Files>) {
    let bench = ConnectorFixture::new(connector, sink);
    let files = Files::new();
    bench.service.set_content_port(files.clone());
    (bench, files)
}

#[test]
fn small_files_are_objects_and_large_ones_multipart_uploads_that_continue() {
    let (server, store) = start_store();
    let sink = json!({"format": "content", "key": "in/${name}", "part_bytes": 5 * MEBIBYTE, "after": "delete"});
    let (bench, files) = bench(store_connector(&server), sink);
    let (small, large) = (bytes(1000), bytes(27 * MEBIBYTE + 11));
    files.add("small", &small);
    files.add("large", &large);
    files.add("empty", &[]);
    for id in ["small", "empty"] {
        bench.push(json!({"id": id, "name": id}));
    }
    files.wait_for("completed small Delete");
    files.wait_for("completed empty Delete");
    assert!(files.has("queued s small \"small\""));

    // The store takes three parts and then none.
    *store.refuse_after.lock().unwrap() = Some(3);
    bench.push(json!({"id": "large", "name": "large"}));
    files.wait_for("postponed large status 503");
    assert_eq!(store.puts.load(Relaxed), 3);
    *store.refuse_after.lock().unwrap() = None;
    files.wait_for("completed large Delete");
    // Six parts, each sent once, by one upload.
    assert_eq!(
        (store.puts.load(Relaxed), store.begun.load(Relaxed)),
        (6, 1)
    );
    {
        let objects = store.objects.lock().unwrap();
        assert_eq!(
            objects.keys().collect::<Vec<_>>(),
            ["in/empty", "in/large", "in/small"]
        );
        assert!(objects["in/small"] == small && objects["in/large"] == large);
    }

    // An upload that the store has forgotten is begun anew.
    *store.refuse_after.lock().unwrap() = Some(8);
    bench.push(json!({"id": "large", "name": "again"}));
    files.positions.lock().unwrap().clear();
    until("two more parts", || {
        (store.puts.load(Relaxed) == 8).then_some(())
    })
    .unwrap();
    *store.forgets.lock().unwrap() = true;
    *store.refuse_after.lock().unwrap() = None;
    until("the second object", || {
        store
            .objects
            .lock()
            .unwrap()
            .contains_key("in/again")
            .then_some(())
    })
    .unwrap_or_else(|| panic!("{:?}", files.events));
    assert!(store.objects.lock().unwrap()["in/again"] == large);
    bench.stop();
}

#[test]
fn the_parts_of_a_cancelled_export_are_removed_from_the_store() {
    let (server, store) = start_store();
    let sink = json!({"format": "content", "key": "in/${name}", "part_bytes": 5 * MEBIBYTE});
    let (bench, files) = bench(store_connector(&server), sink);
    files.add("large", &bytes(12 * MEBIBYTE));
    *store.refuse_after.lock().unwrap() = Some(1);
    bench.push(json!({"id": "large", "name": "large"}));
    files.wait_for("postponed large status 503");
    assert_eq!(store.parts.lock().unwrap().len(), 1);
    // Cancelled: there is no such export any longer.
    fs::remove_file(files.directory.join("large")).unwrap();
    let position = files.positions.lock().unwrap().remove("large").unwrap();
    bench.service.discard_content("s", "large", &position);
    until("the upload is aborted", || {
        (store.aborted.load(Relaxed) == 1).then_some(())
    })
    .unwrap();
    assert!(store.parts.lock().unwrap().is_empty());

    // Cancelled between the begin of the upload and its record.
    *store.refuse_after.lock().unwrap() = None;
    files.add("later", &bytes(6 * MEBIBYTE));
    let path = files.directory.join("later");
    let cancel = move || fs::remove_file(&path).unwrap();
    *store.on_begin.lock().unwrap() = Some(Box::new(cancel));
    bench.push(json!({"id": "later", "name": "later"}));
    files.wait_for("postponed later the export was cancelled");
    assert_eq!(store.aborted.load(Relaxed), 2);
    assert!(store.objects.lock().unwrap().is_empty());
    bench.stop();
}

#[test]
fn a_file_is_the_streamed_body_of_a_request() {
    let received = ReceivedRequests::default();
    let log = received.clone();
    let server = HttpServer::start(move |asked| {
        assert_eq!(asked.method, "PUT");
        assert_eq!(asked.header("content-type"), "image/png");
        assert!(asked.header("repr-digest").starts_with("sha-256=:"));
        let id = asked.header("idempotency-key").to_owned();
        if id == "bad" {
            return (422, Vec::new(), "no such patient".to_owned());
        }
        log.lock()
            .unwrap()
            .push((asked.path.clone(), asked.bytes.clone()));
        (201, Vec::new(), String::new())
    });
    server.lose_every(2);
    let sink = json!({"format": "content", "path": "/archive/${name}"});
    let connector = json!({"type": "http", "url": format!("{}/base", server.url())});
    let (bench, files) = bench(connector, sink);
    let large = bytes(9 * MEBIBYTE + 1);
    for (id, bytes) in [("a", &large[..]), ("b", b""), ("bad", b"x")] {
        files.add(id, bytes);
        bench.push(json!({"id": id, "name": format!("{id} 1")}));
    }
    files.wait_for("completed a Keep");
    files.wait_for("completed b Keep");
    files.wait_for("failed bad the server answers 422");
    let received = received.lock().unwrap();
    let of = |path: &'static str| received.iter().filter(move |(at, _)| at == path);
    assert!(of("/base/archive/a%201").count() >= 1);
    assert!(of("/base/archive/a%201").all(|(_, body)| *body == large));
    assert!(of("/base/archive/b%201").all(|(_, body)| body.is_empty()));
    drop(received);
    // Neither a row without an id nor a deleted file stops the sink.
    bench.push(json!({"name": "x"}));
    bench.push(json!({"id": "deleted", "name": "x"}));
    assert_eq!(bench.until_settled(5).failed, 2);
    assert!(
        bench
            .letters()
            .iter()
            .any(|(error, _)| error.contains("no text field `id`"))
    );
    bench.stop();
}

#[test]
fn an_attempt_without_progress_ends() {
    // The first request gets no answer.
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(Some(released));
    let server = HttpServer::start(move |_| {
        let first = released.lock().unwrap().take();
        if let Some(released) = first {
            let _ = released.recv();
        }
        (200, Vec::new(), String::new())
    });
    let sink = json!({"format": "content", "write_timeout_ms": 1000});
    let (bench, files) = bench(json!({"type": "http", "url": server.url()}), sink);
    files.add("a", b"abc");
    bench.push(json!({"id": "a"}));
    files.wait_for("postponed a no progress within 1000 ms");
    files.wait_for("completed a Keep");
    drop(release);
    bench.stop();
}

#[test]
fn settings_that_do_not_apply_to_files_are_refused() {
    let (server, _) = start_store();
    let bench = ConnectorFixture::new(store_connector(&server), json!({}));
    let check = |sink: Value| bench.service.check_sink(&sink).unwrap_err().to_string();
    let disk = json!({"connector": "c", "format": "content", "queue": {"disk": {}}});
    assert!(check(disk).contains("queue.disk: not for format"));
    let line = json!({"connector": "c", "format": "content", "line": "x"});
    assert!(check(line).starts_with("line:"));
    let after = json!({"connector": "c", "after": "delete"});
    assert!(check(after).contains("this is for format = \"content\""));
    let small = json!({"connector": "c", "format": "content", "part_bytes": 5});
    assert!(check(small).starts_with("part_bytes: expected 5242880"));
    bench.stop();
}
