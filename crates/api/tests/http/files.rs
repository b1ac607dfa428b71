//! Tests of files: plain uploads, downloads in parts, signed links, and the tus protocol by handwritten requests.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::access::{bearer, local, make_operator, send, token};
use crate::client::{HttpResponse, delete, get, request};
use crate::fake::{FakeState, Server};

const OFFSET_OCTETS: &str = "Content-Type: application/offset+octet-stream\r\n";

/// A server that grants everybody the admin role.
async fn server() -> Server {
    Server::start(&FakeState::with_clients(0)).await
}

fn sha256_base64(bytes: &[u8]) -> String {
    STANDARD.encode(digest(&SHA256, bytes))
}

fn sha256_hex(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Text of this length without a short period.
fn text(len: usize) -> String {
    let digits = (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 % 26 + b'a');
    digits.map(char::from).collect()
}

/// The value of a header.
fn field<'a>(answer: &'a HttpResponse, name: &str) -> &'a str {
    let mut lines = answer.head.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("no {name} in {}", answer.head))
}

async fn upload(address: SocketAddr, name: &str, fields: &str, body: &str) -> HttpResponse {
    request(
        address,
        "PUT",
        &format!("/api/v1/uploads/{name}"),
        fields,
        body,
    )
    .await
}

#[tokio::test]
async fn a_file_is_uploaded_listed_downloaded_and_deleted() {
    let server = server().await;
    let address = server.address;
    let body = text(2_500_000);
    let fields = format!(
        "Content-Type: text/plain\r\nRepr-Digest: sha-256=:{}:\r\n",
        sha256_base64(body.as_bytes())
    );
    let made = upload(address, "a%20b.txt", &fields, &body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let info = made.json();
    let id = info["id"].as_str().unwrap();
    assert_eq!(field(&made, "location"), format!("/api/v1/files/{id}"));
    assert_eq!(info["name"], "a b.txt");
    assert_eq!(
        (&info["state"], &info["size"]),
        (&json!("complete"), &json!(2_500_000))
    );
    assert_eq!(info["checksum"], sha256_hex(body.as_bytes()));
    assert_eq!(
        get(address, &format!("/api/v1/files/{id}")).await.json(),
        info
    );
    let listed = get(address, "/api/v1/files?state=complete").await.json();
    assert_eq!(listed["data"], json!([info]));
    let none = get(address, "/api/v1/files?owner=somebody").await.json();
    assert_eq!(none["data"], json!([]));

    let path = format!("/api/v1/files/{id}/content");
    let whole = get(address, &path).await;
    assert_eq!((whole.status, whole.body == body), (200, true));
    assert!(whole.has("content-type: text/plain") && whole.has("accept-ranges: bytes"));
    let tag = format!("\"{}\"", sha256_hex(body.as_bytes()));
    assert_eq!(field(&whole, "etag"), tag);
    assert!(field(&whole, "content-disposition").contains("filename*=utf-8''a%20b.txt"));
    let expected = format!("sha-256=:{}:", sha256_base64(body.as_bytes()));
    assert_eq!(field(&whole, "repr-digest"), expected.to_ascii_lowercase());
    // RFC 3230; `field` returns lower case.
    let expected = format!("sha-256={}", sha256_base64(body.as_bytes()));
    assert_eq!(field(&whole, "digest"), expected.to_ascii_lowercase());
    let head = request(address, "HEAD", &path, "", "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(field(&head, "content-length"), "2500000");

    assert_eq!(
        delete(address, &format!("/api/v1/files/{id}")).await.status,
        204
    );
    assert_eq!(get(address, &path).await.status, 404);
    let audit = get(address, "/api/v1/audit-log?action=file.").await.json();
    let actions = audit["data"].as_array().unwrap().iter();
    let actions: Vec<&Value> = actions.map(|entry| &entry["action"]).collect();
    assert!(actions.contains(&&json!("file.upload")) && actions.contains(&&json!("file.delete")));
}

#[tokio::test]
async fn parts_of_a_file_are_downloaded() {
    let server = server().await;
    let address = server.address;
    let made = upload(address, "digits", "", "0123456789").await.json();
    let path = format!("/api/v1/files/{}/content", made["id"].as_str().unwrap());
    let tag = format!("\"{}\"", sha256_hex(b"0123456789"));
    let fetch = |fields: String| {
        let path = path.clone();
        async move { request(address, "GET", &path, &fields, "").await }
    };
    for (range, status, body, content_range) in [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=7-", 206, "789", "bytes 7-9/10"),
        ("bytes=-2", 206, "89", "bytes 8-9/10"),
        ("bytes=0-99", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, "", "bytes */10"),
    ] {
        let answer = fetch(format!("Range: {range}\r\n")).await;
        assert_eq!(answer.status, status, "{range}");
        assert_eq!(field(&answer, "content-range"), content_range);
        assert!(
            status == 416 || answer.body == body,
            "{range}: {}",
            answer.body
        );
    }
    let whole = fetch("Range: bytes=1-2,4-5\r\n".to_owned()).await;
    assert_eq!((whole.status, whole.body.as_str()), (200, "0123456789"));
    let same = fetch(format!("Range: bytes=1-2\r\nIf-Range: {tag}\r\n")).await;
    assert_eq!((same.status, same.body.as_str()), (206, "12"));
    let other = fetch("Range: bytes=1-2\r\nIf-Range: \"other\"\r\n".to_owned()).await;
    assert_eq!((other.status, other.body.as_str()), (200, "0123456789"));
    assert_eq!(fetch(format!("If-None-Match: {tag}\r\n")).await.status, 304);
    assert_eq!(
        fetch("If-None-Match: \"other\"\r\n".to_owned())
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn signed_links_need_no_login_until_they_expire() {
    let server = Server::closed(&FakeState::with_clients(0)).await;
    let address = server.address;
    let made = request(address, "PUT", "/api/v1/uploads/x", &local(), "content").await;
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(
        get(address, &format!("/api/v1/files/{id}/content"))
            .await
            .status,
        401
    );
    let links = format!("/api/v1/files/{id}/links");
    let long = send(
        &server,
        &local(),
        "POST",
        &links,
        &json!({"expires_in_s": 99_999_999}),
    )
    .await;
    assert_eq!(long.status, 422, "{}", long.body);
    let link = send(
        &server,
        &local(),
        "POST",
        &links,
        &json!({"expires_in_s": 60}),
    )
    .await;
    assert_eq!(link.status, 201, "{}", link.body);
    let path = link.json()["path"].as_str().unwrap().to_owned();
    let answer = get(address, &path).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "content"));
    let part = request(address, "GET", &path, "Range: bytes=1-2\r\n", "").await;
    assert_eq!((part.status, part.body.as_str()), (206, "on"));
    let later = path.replace("expires=", "expires=1");
    let short = &path[..path.len() - 2];
    let other = path.replace(&id, "0123");
    for wrong in [&later, short, &other] {
        assert_eq!(get(address, wrong).await.status, 403, "{wrong}");
    }
    let expired = send(
        &server,
        &local(),
        "POST",
        &links,
        &json!({"expires_in_s": 1}),
    )
    .await;
    let expired = expired.json()["path"].as_str().unwrap().to_owned();
    let until_expired = async {
        while get(address, &expired).await.status != 403 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let until_expired = tokio::time::timeout(Duration::from_secs(10), until_expired);
    until_expired.await.expect("the link expires");
}

#[tokio::test]
async fn wrong_uploads_leave_nothing() {
    let server = server().await;
    let address = server.address;
    let wrong = format!("Digest: sha-256={}\r\n", sha256_base64(b"other"));
    let rejected = upload(address, "x", &wrong, "content").await;
    assert_eq!(rejected.status, 422, "{}", rejected.body);
    assert!(rejected.problem().contains("SHA-256"));
    assert_eq!(upload(address, "..", "", "content").await.status, 400);
    let elsewhere = upload(address, "x?namespace=absent", "", "content").await;
    assert_eq!(elsewhere.status, 400, "{}", elsewhere.body);
    // The client closes in the middle.
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head =
        "PUT /api/v1/uploads/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\npart";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let none_left = async {
        while get(address, "/api/v1/files").await.json()["data"] != json!([]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let none_left = tokio::time::timeout(Duration::from_secs(10), none_left);
    none_left.await.expect("the transfer is removed");
    assert_eq!(upload(address, "x", "", "content").await.status, 201);
}

#[tokio::test]
async fn files_of_operators_belong_to_their_namespace() {
    let server = Server::closed(&FakeState::with_clients(0)).await;
    for namespace in ["acme", "other"] {
        let body = json!({"id": namespace, "quotas": {"files": 1}});
        send(&server, &local(), "POST", "/api/v1/namespaces", &body).await;
    }
    let operator = json!({
        "username": "ann", "password": "ann-secret", "must_change_password": false,
        "namespaces": [{"namespace": "acme", "role": "owner"}],
    });
    send(&server, &local(), "POST", "/api/v1/operators", &operator).await;
    make_operator(&server, "viewer", "viewer").await;
    let ann = bearer(&token(&server, "ann").await);
    let made = request(server.address, "PUT", "/api/v1/uploads/x", &ann, "content").await;
    assert_eq!(made.json()["owner"]["namespace"], "acme", "{}", made.body);
    let more = request(server.address, "PUT", "/api/v1/uploads/y", &ann, "content").await;
    assert_eq!(more.status, 409, "{}", more.body);
    assert!(more.problem().contains("quota files"), "{}", more.body);
    let path = "/api/v1/uploads/z?namespace=other";
    let rejected = request(server.address, "PUT", path, &ann, "content").await;
    assert_eq!(rejected.status, 400, "{}", rejected.body);
    let viewer = bearer(&token(&server, "viewer").await);
    let rejected = request(server.address, "PUT", "/api/v1/uploads/x", &viewer, "x").await;
    assert_eq!(rejected.status, 403);
    let usage = send(
        &server,
        &local(),
        "GET",
        "/api/v1/namespaces/acme/usage",
        &Value::Null,
    )
    .await;
    let usage = usage.json();
    let mut rows = usage["data"].as_array().unwrap().iter();
    let files = rows.find(|row| row["quota"] == "files").unwrap();
    assert_eq!((&files["used"], &files["limit"]), (&json!(1), &json!(1)));
}

/// A client of tus, as its protocol describes it.
struct TusClient {
    address: SocketAddr,
}

impl TusClient {
    async fn send(&self, method: &str, path: &str, fields: &str, body: &str) -> HttpResponse {
        let fields = format!("Tus-Resumable: 1.0.0\r\n{fields}");
        let answer = request(self.address, method, path, &fields, body).await;
        assert_eq!(field(&answer, "tus-resumable"), "1.0.0");
        answer
    }

    /// Begins an upload and returns its path.
    async fn create(&self, fields: &str) -> String {
        let created = self.send("POST", "/api/v1/tus", fields, "").await;
        assert_eq!(created.status, 201, "{}", created.body);
        field(&created, "location").to_owned()
    }

    async fn append(&self, path: &str, offset: u64, fields: &str, body: &str) -> HttpResponse {
        let fields = format!("{OFFSET_OCTETS}Upload-Offset: {offset}\r\n{fields}");
        self.send("PATCH", path, &fields, body).await
    }

    async fn offset(&self, path: &str) -> String {
        let answer = self.send("HEAD", path, "", "").await;
        assert_eq!(answer.status, 200);
        assert!(answer.has("cache-control: no-store"));
        field(&answer, "upload-offset").to_owned()
    }

    /// The content of the file that an upload has become.
    async fn content(&self, path: &str) -> HttpResponse {
        let id = path.strip_prefix("/api/v1/tus/").unwrap();
        get(self.address, &format!("/api/v1/files/{id}/content")).await
    }
}

#[tokio::test]
async fn tus_describes_itself() {
    let server = server().await;
    let answer = request(server.address, "OPTIONS", "/api/v1/tus", "", "").await;
    assert_eq!(answer.status, 204);
    assert_eq!(field(&answer, "tus-version"), "1.0.0");
    for extension in [
        "creation",
        "checksum",
        "expiration",
        "termination",
        "concatenation",
    ] {
        assert!(
            field(&answer, "tus-extension").contains(extension),
            "{extension}"
        );
    }
    assert!(field(&answer, "tus-checksum-algorithm").contains("sha1"));
    assert!(field(&answer, "tus-max-size").parse::<u64>().unwrap() > 0);
    for version in ["", "Tus-Resumable: 0.2.2\r\n"] {
        let fields = format!("{version}Upload-Length: 1\r\n");
        let rejected = request(server.address, "POST", "/api/v1/tus", &fields, "").await;
        assert_eq!(rejected.status, 412);
        assert_eq!(field(&rejected, "tus-version"), "1.0.0");
    }
}

#[tokio::test]
async fn tus_uploads_a_file_in_parts() {
    let server = server().await;
    let tus = TusClient {
        address: server.address,
    };
    let body = text(3_000_001);
    let (name, sha256) = (
        STANDARD.encode("a.txt"),
        STANDARD.encode(sha256_hex(body.as_bytes())),
    );
    let metadata = format!("Upload-Metadata: filename {name},sha256 {sha256},flag\r\n");
    let path = tus
        .create(&format!("Upload-Length: {}\r\n{metadata}", body.len()))
        .await;
    assert_eq!(tus.offset(&path).await, "0");
    let first = tus.append(&path, 0, "", &body[..1_000_000]).await;
    assert_eq!(
        (first.status, field(&first, "upload-offset")),
        (204, "1000000")
    );
    assert!(field(&first, "upload-expires").ends_with("gmt"));
    let wrong = tus.append(&path, 5, "", "x").await;
    assert_eq!(wrong.status, 409, "{}", wrong.body);
    assert_eq!(tus.content(&path).await.status, 409, "not complete");
    // An interrupted request: what arrived counts.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "PATCH {path} HTTP/1.1\r\nHost: localhost\r\nTus-Resumable: 1.0.0\r\n{OFFSET_OCTETS}Upload-Offset: 1000000\r\n\
         Content-Length: 2000001\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
        .write_all(&body.as_bytes()[1_000_000..1_500_000])
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    let resumed = async {
        while tus.offset(&path).await != "1500000" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let resumed = tokio::time::timeout(Duration::from_secs(10), resumed);
    resumed.await.expect("what arrived counts");
    let head = tus.send("HEAD", &path, "", "").await;
    assert_eq!(field(&head, "upload-length"), "3000001");
    let known = field(&head, "upload-metadata");
    assert!(
        known.contains(&format!("filename {}", name.to_ascii_lowercase())),
        "{known}"
    );
    let rest = tus.append(&path, 1_500_000, "", &body[1_500_000..]).await;
    assert_eq!(
        (rest.status, field(&rest, "upload-offset")),
        (204, "3000001")
    );
    let content = tus.content(&path).await;
    assert!(content.status == 200 && content.body == body);
    assert!(field(&content, "content-disposition").contains("a.txt"));
    assert_eq!(
        tus.offset(&path).await,
        "3000001",
        "also when it is complete"
    );
}

#[tokio::test]
async fn a_paused_upload_continues_when_it_is_resumed() {
    let server = server().await;
    let tus = TusClient {
        address: server.address,
    };
    let path = tus.create("Upload-Length: 6\r\n").await;
    assert_eq!(tus.append(&path, 0, "", "abc").await.status, 204);
    let id = path.strip_prefix("/api/v1/tus/").unwrap();
    let act = async |action: &str| {
        let path = format!("/api/v1/files/{id}/{action}");
        send(&server, &local(), "POST", &path, &Value::Null).await
    };
    let paused = act("pause").await;
    assert_eq!(paused.status, 200, "{}", paused.body);
    let info = paused.json();
    assert_eq!(
        (&info["is_paused"], &info["expires_at_ms"]),
        (&json!(true), &Value::Null)
    );
    let checksum = format!("Upload-Checksum: sha256 {}\r\n", sha256_base64(b"def"));
    for fields in ["", checksum.as_str()] {
        let rejected = tus.append(&path, 3, fields, "def").await;
        assert_eq!(rejected.status, 423, "{}", rejected.body);
        assert!(rejected.problem().contains("paused"), "{}", rejected.body);
    }
    assert_eq!(tus.offset(&path).await, "3");
    assert_eq!(act("resume").await.json()["is_paused"], false);
    assert_eq!(tus.append(&path, 3, "", "def").await.status, 204);
    assert_eq!(tus.content(&path).await.body, "abcdef");
    for action in ["pause", "resume"] {
        let rejected = act(action).await;
        assert_eq!(rejected.status, 409, "{}", rejected.body);
        assert!(rejected.problem().contains("complete"));
    }
    let audit = get(server.address, "/api/v1/audit-log?action=file.").await;
    assert!(audit.body.contains("file.pause") && audit.body.contains("file.resume"));
}

#[tokio::test]
async fn tus_rejects_wrong_requests() {
    let server = server().await;
    let tus = TusClient {
        address: server.address,
    };
    for fields in [
        "",
        "Upload-Length: -1\r\n",
        "Upload-Length: x\r\n",
        "Upload-Length: 1\r\nUpload-Metadata: filename %%%\r\n",
        "Upload-Length: 1\r\nUpload-Concat: whole\r\n",
    ] {
        let rejected = tus.send("POST", "/api/v1/tus", fields, "").await;
        assert_eq!(rejected.status, 400, "{fields}: {}", rejected.body);
    }
    let huge = tus
        .send(
            "POST",
            "/api/v1/tus",
            "Upload-Length: 99999999999999999\r\n",
            "",
        )
        .await;
    assert_eq!(huge.status, 413, "{}", huge.body);
    let path = tus.create("Upload-Length: 5\r\n").await;
    let untyped = tus.send("PATCH", &path, "Upload-Offset: 0\r\n", "x").await;
    assert_eq!(untyped.status, 415);
    let without = tus.send("PATCH", &path, OFFSET_OCTETS, "x").await;
    assert_eq!(without.status, 400);
    let long = tus.append(&path, 0, "", "123456").await;
    assert_eq!(long.status, 413, "{}", long.body);
    assert_eq!(tus.offset(&path).await, "0");
    for (method, path) in [
        ("HEAD", "/api/v1/tus/absent"),
        ("DELETE", "/api/v1/tus/absent"),
    ] {
        assert_eq!(tus.send(method, path, "", "").await.status, 404);
    }
}

#[tokio::test]
async fn tus_verifies_checksums() {
    let server = server().await;
    let tus = TusClient {
        address: server.address,
    };
    let path = tus.create("Upload-Length: 10\r\n").await;
    let sha1 = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, b"01234"));
    let wrong = tus
        .append(
            &path,
            0,
            &format!("Upload-Checksum: sha1 {sha1}\r\n"),
            "01235",
        )
        .await;
    assert_eq!(wrong.status, 460, "{}", wrong.body);
    assert_eq!(tus.offset(&path).await, "0", "nothing of it counts");
    let right = tus
        .append(
            &path,
            0,
            &format!("Upload-Checksum: sha1 {sha1}\r\n"),
            "01234",
        )
        .await;
    assert_eq!(right.status, 204, "{}", right.body);
    let unknown = tus
        .append(&path, 5, "Upload-Checksum: md5 AAAA\r\n", "56789")
        .await;
    assert_eq!(unknown.status, 400);
    let sha256 = format!("Upload-Checksum: sha256 {}\r\n", sha256_base64(b"56789"));
    assert_eq!(tus.append(&path, 5, &sha256, "56789").await.status, 204);
    assert_eq!(tus.content(&path).await.body, "0123456789");
    // A digest of the whole file in the metadata.
    let metadata = STANDARD.encode(sha256_hex(b"right"));
    let fields = format!("Upload-Length: 5\r\nUpload-Metadata: sha256 {metadata}\r\n");
    let path = tus.create(&fields).await;
    let wrong = tus.append(&path, 0, "", "wrong").await;
    assert_eq!(wrong.status, 460, "{}", wrong.body);
    assert_eq!(tus.content(&path).await.status, 409, "not visible");
}

#[tokio::test]
async fn tus_creates_with_a_body_and_terminates() {
    let server = server().await;
    let tus = TusClient {
        address: server.address,
    };
    let fields = format!("{OFFSET_OCTETS}Upload-Length: 5\r\n");
    let created = tus.send("POST", "/api/v1/tus", &fields, "12345").await;
    assert_eq!(
        (created.status, field(&created, "upload-offset")),
        (201, "5")
    );
    let path = field(&created, "location").to_owned();
    assert_eq!(tus.content(&path).await.body, "12345");
    assert_eq!(tus.send("DELETE", &path, "", "").await.status, 204);
    assert_eq!(tus.send("HEAD", &path, "", "").await.status, 404);
    let path = tus.create("Upload-Length: 5\r\n").await;
    let fields = format!("{OFFSET_OCTETS}Upload-Offset: 0\r\nX-HTTP-Method-Override: PATCH\r\n");
    assert_eq!(tus.send("POST", &path, &fields, "12").await.status, 204);
    assert_eq!(tus.offset(&path).await, "2");
    let fields = "X-HTTP-Method-Override: DELETE\r\n";
    assert_eq!(tus.send("POST", &path, fields, "").await.status, 204);
    assert_eq!(tus.send("HEAD", &path, "", "").await.status, 404);
    let empty = tus.create("Upload-Length: 0\r\n").await;
    assert_eq!(tus.content(&empty).await.status, 200, "complete at once");
}

#[tokio::test]
async fn tus_joins_parallel_uploads() {
    let server = server().await;
    let tus = TusClient {
        address: server.address,
    };
    let body = text(2_100_000);
    let (left, right) = body.split_at(1_100_000);
    let mut paths = Vec::new();
    for part in [left, right] {
        let fields = format!(
            "Upload-Concat: partial\r\nUpload-Length: {}\r\n",
            part.len()
        );
        paths.push(tus.create(&fields).await);
    }
    let join = format!("Upload-Concat: final;{} {}\r\n", paths[0], paths[1]);
    let early = tus.send("POST", "/api/v1/tus", &join, "").await;
    assert_eq!(early.status, 409, "{}", early.body);
    for (path, part) in paths.iter().zip([left, right]) {
        let appended = tus.append(path, 0, "", part).await;
        assert_eq!(appended.status, 204, "{}", appended.body);
        assert_eq!(tus.content(path).await.status, 409, "a part is no file");
        let head = tus.send("HEAD", path, "", "").await;
        assert_eq!(field(&head, "upload-concat"), "partial");
    }
    let path = tus.create(&join).await;
    assert!(tus.content(&path).await.body == body);
    let listed = get(server.address, "/api/v1/files").await.json();
    assert_eq!(
        listed["data"].as_array().unwrap().len(),
        1,
        "the parts are gone"
    );
    let absent = "Upload-Concat: final;/api/v1/tus/absent\r\n";
    assert_eq!(
        tus.send("POST", "/api/v1/tus", absent, "").await.status,
        404
    );
}

#[tokio::test]
async fn files_are_sorted_page_by_page() {
    let server = server().await;
    for (name, len) in [("b", 30), ("a", 100), ("c", 1), ("D", 30)] {
        let stored = upload(server.address, name, "", &text(len)).await;
        assert_eq!(stored.status, 201, "{}", stored.body);
    }
    for (sort, expected) in [
        ("name", "a b c D"),
        ("-name", "D c b a"),
        ("size", "c b D a"),
        ("-size", "a b D c"),
        ("created_at_ms", "b a c D"),
    ] {
        let mut names = Vec::new();
        let mut after = String::new();
        loop {
            let path = format!("/api/v1/files?limit=2&sort={sort}{after}");
            let page: Value = serde_json::from_str(&get(server.address, &path).await.body).unwrap();
            let rows = page["data"].as_array().unwrap();
            names.extend(
                rows.iter()
                    .map(|row| row["name"].as_str().unwrap().to_owned()),
            );
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(names.join(" "), expected, "{sort}");
    }
    let page: Value = serde_json::from_str(
        &get(server.address, "/api/v1/files?limit=1&sort=size")
            .await
            .body,
    )
    .unwrap();
    let next = page["next"].as_str().unwrap();
    for query in ["sort=weight".to_owned(), format!("sort=name&after={next}")] {
        let refused = get(server.address, &format!("/api/v1/files?{query}")).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
}

#[tokio::test]
async fn sessions_are_sorted_page_by_page() {
    let server = Server::start(&FakeState::with_clients(25)).await;
    let mut ids = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/api/v1/sessions?limit=10&sort=-client_id{after}");
        let page: Value = serde_json::from_str(&get(server.address, &path).await.body).unwrap();
        let rows = page["data"].as_array().unwrap();
        ids.extend(
            rows.iter()
                .map(|row| row["client_id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    // The fake node has one client more than asked for.
    assert_eq!(ids.len(), 26);
    assert!(ids.is_sorted_by(|a, b| a > b), "{ids:?}");
}
