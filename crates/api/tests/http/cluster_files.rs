//! Files of several nodes, asked for at any of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::access::{bearer, local, send};
use crate::client::{HttpResponse, delete, get, request};
use crate::events::{open, read_until};
use crate::fake::{FakeCluster, FakeState, Server};
use crate::{column, pages};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const FILES: &str = "/api/v1/files";
/// More than one piece.
const LARGE: usize = 2_500_001;

struct FakeNodes {
    states: Vec<Arc<FakeState>>,
    servers: Vec<Server>,
}

impl FakeNodes {
    async fn start() -> Self {
        Self::start_with(false).await
    }

    async fn start_with(is_closed: bool) -> Self {
        let states: Vec<_> = NODES.iter().map(|_| FakeState::with_clients(0)).collect();
        let mut servers = Vec::new();
        for (at, state) in states.iter().enumerate() {
            let others = (0..NODES.len()).filter(|other| *other != at);
            let others = others.map(|other| (NODES[other], Some(states[other].clone())));
            let cluster = FakeCluster::new(NODES[at], others.collect());
            assert!(state.cluster.set(cluster).is_ok());
            servers.push(match is_closed {
                true => Server::closed(state).await,
                false => Server::start(state).await,
            });
        }
        Self { states, servers }
    }

    async fn get(&self, node: usize, path: &str) -> HttpResponse {
        get(self.servers[node].address, path).await
    }

    async fn get_with(&self, node: usize, path: &str, fields: &str) -> HttpResponse {
        request(self.servers[node].address, "GET", path, fields, "").await
    }

    /// Uploads a file to a node and returns its id.
    async fn upload(&self, node: usize, name: &str, content: &str) -> String {
        let path = format!("/api/v1/uploads/{name}");
        let fields = "Content-Type: text/plain\r\n";
        let made = request(self.servers[node].address, "PUT", &path, fields, content).await;
        assert_eq!(made.status, 201, "{}", made.body);
        made.json()["id"].as_str().unwrap().to_owned()
    }

    fn set_reachable(&self, node: usize, is_reachable: bool) {
        let is_unreachable = &self.states[node].is_unreachable;
        is_unreachable.store(!is_reachable, Ordering::SeqCst);
    }
}

fn text(len: usize) -> String {
    let letters = (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 % 26 + b'a');
    letters.map(char::from).collect()
}

fn content_of(id: &str) -> String {
    format!("{FILES}/{id}/content")
}

/// The value of a header, as it was sent.
fn field<'a>(answer: &'a HttpResponse, name: &str) -> &'a str {
    let mut lines = answer.head.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("no {name} in {}", answer.head))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_all_nodes_are_one_list() {
    let nodes = FakeNodes::start().await;
    let mut names = Vec::new();
    for (number, node) in [0, 1, 1, 2, 0, 2, 1].into_iter().enumerate() {
        let name = format!("f{number}");
        nodes.upload(node, &name, &"x".repeat(10 - number)).await;
        names.push(name);
        // Lists are in the order of the times of their files, in milliseconds.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    names.reverse();
    for (at, server) in nodes.servers.iter().enumerate() {
        for limit in 1..=8 {
            let rows = pages(server, &format!("{FILES}?limit={limit}")).await;
            assert_eq!(column(&rows, "name"), names, "limit {limit}");
            let of = [
                "node-2", "node-3", "node-1", "node-3", "node-2", "node-2", "node-1",
            ];
            assert_eq!(column(&rows, "node"), of);
            let rows = pages(server, &format!("{FILES}?limit={limit}&sort=size")).await;
            assert_eq!(column(&rows, "name"), names, "limit {limit}");
        }
        let page = nodes.get(at, &format!("{FILES}?sort=name")).await.json();
        assert_eq!(page["missing_nodes"], json!([]));
    }
    let next = nodes.get(0, &format!("{FILES}?limit=3")).await.json()["next"].clone();
    let path = format!("{FILES}?limit=3&after={}", next.as_str().unwrap());
    let second = nodes.get(2, &path).await.json();
    assert_eq!(second["data"][0]["name"], names[3]);
    nodes.set_reachable(1, false);
    let page = nodes.get(0, FILES).await.json();
    assert_eq!(page["missing_nodes"], json!(["node-2"]));
    assert_eq!(page["data"].as_array().unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptions_that_are_too_large_for_one_message_are_all_listed() {
    // Together more than 2 MiB.
    const UPLOADS: usize = 250;
    let nodes = FakeNodes::start().await;
    let value = STANDARD.encode(text(9_000));
    for _ in 0..UPLOADS {
        let fields = format!(
            "Tus-Resumable: 1.0.0\r\nUpload-Length: 0\r\nUpload-Metadata: filename YQ==,note {value}\r\n"
        );
        let address = nodes.servers[1].address;
        let made = request(address, "POST", "/api/v1/tus", &fields, "").await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    for sort in ["", "&sort=-created_at_ms"] {
        let path = format!("{FILES}?limit=1000{sort}");
        let listed = pages(&nodes.servers[0], &path).await;
        assert!(listed.len() > 1, "one page of {}", listed[0].len());
        let mut ids = column(&listed, "id");
        assert_eq!(ids.len(), UPLOADS);
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), UPLOADS);
        assert_eq!(
            pages(&nodes.servers[1], &path).await.concat().len(),
            UPLOADS
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_node_is_downloaded_in_pieces() {
    let nodes = FakeNodes::start().await;
    let body = text(LARGE);
    let id = nodes.upload(1, "a%20b.txt", &body).await;
    let path = content_of(&id);
    let own = nodes.get(1, &path).await;
    for at in [0, 2] {
        let described = nodes.get(at, &format!("{FILES}/{id}")).await.json();
        assert_eq!(described["node"], "node-2");
        let whole = nodes.get(at, &path).await;
        assert_eq!((whole.status, whole.body == body), (200, true));
        for name in [
            "content-length",
            "content-type",
            "content-disposition",
            "etag",
            "repr-digest",
            "accept-ranges",
            "cache-control",
        ] {
            assert_eq!(field(&whole, name), field(&own, name), "{name}");
        }
        assert!(!whole.head.contains("tidegate-file-part"), "{}", whole.head);
        let head = request(nodes.servers[at].address, "HEAD", &path, "", "").await;
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        assert_eq!(field(&head, "content-length"), LARGE.to_string());
    }
    let tag = field(&own, "etag").to_owned();
    // Across the end of a piece.
    let (start, end) = (1_000_000, 1_100_000);
    for condition in ["", "If-Range", "If-Match"] {
        let condition = match condition {
            "" => String::new(),
            name => format!("{name}: {tag}\r\n"),
        };
        let range = format!("Range: bytes={start}-{}\r\n{condition}", end - 1);
        let part = nodes.get_with(0, &path, &range).await;
        assert_eq!(part.status, 206, "{}", part.head);
        assert!(part.body == body[start..end]);
        let sent = format!("bytes {start}-{}/{LARGE}", end - 1);
        assert_eq!(field(&part, "content-range"), sent);
    }
    for (fields, status) in [
        (format!("If-None-Match: {tag}\r\n"), 304),
        ("If-Match: \"other\"\r\n".to_owned(), 412),
        (format!("Range: bytes={LARGE}-\r\n"), 416),
    ] {
        for at in 0..NODES.len() {
            let answer = nodes.get_with(at, &path, &fields).await;
            assert_eq!(answer.status, status, "{fields}");
        }
    }
    let changed = "Range: bytes=1-2\r\nIf-Range: \"other\"\r\n";
    let whole = nodes.get_with(2, &path, changed).await;
    assert_eq!((whole.status, whole.body == body), (200, true));
}

/// Begins a download and reads its first bytes. The rest waits, since nobody reads.
async fn begin_download(server: &Server, path: &str) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut begin = vec![0; 4096];
    stream.read_exact(&mut begin).await.unwrap();
    (stream, begin)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_ends_early_if_its_node_or_file_is_lost() {
    const SIZE: usize = 48 << 20;
    let nodes = FakeNodes::start().await;
    let content = text(SIZE);
    let id = nodes.upload(2, "f", &content).await;
    let path = content_of(&id);
    for is_node_lost in [true, false] {
        let (mut stream, mut received) = begin_download(&nodes.servers[0], &path).await;
        if is_node_lost {
            nodes.set_reachable(2, false);
        } else {
            let deleted = delete(nodes.servers[2].address, &format!("{FILES}/{id}")).await;
            assert_eq!(deleted.status, 204, "{}", deleted.body);
        }
        // Closed, or reset.
        let _ = stream.read_to_end(&mut received).await;
        let answer = HttpResponse::parse(&received);
        assert_eq!(answer.status, 200);
        assert_eq!(field(&answer, "content-length"), SIZE.to_string());
        assert!(answer.body.len() < SIZE);
        assert!(content.starts_with(&answer.body));
        nodes.set_reachable(2, true);
        if is_node_lost {
            // What is missing is fetched with Range.
            let range = format!("Range: bytes={}-\r\n", answer.body.len());
            let rest = nodes.get_with(1, &path, &range).await;
            assert_eq!(rest.status, 206, "{}", rest.head);
            assert!(answer.body + &rest.body == content);
        }
    }
    assert_eq!(nodes.get(0, &path).await.status, 404);
    nodes.set_reachable(2, false);
    let unknown = nodes.get(0, &path).await;
    assert_eq!(unknown.status, 503, "{}", unknown.body);
    assert!(unknown.problem().contains("node-3"), "{}", unknown.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_made_at_the_node_of_the_file() {
    let nodes = FakeNodes::start().await;
    let fields = "Tus-Resumable: 1.0.0\r\nUpload-Length: 10\r\nUpload-Metadata: filename YQ==\r\n";
    let begun = request(nodes.servers[1].address, "POST", "/api/v1/tus", fields, "").await;
    let upload = field(&begun, "location").to_owned();
    let id = upload.rsplit('/').next().unwrap();
    let tus = async |node: usize, method: &str, more: &str, body: &str| {
        let fields = format!("Tus-Resumable: 1.0.0\r\n{more}");
        request(nodes.servers[node].address, method, &upload, &fields, body).await
    };
    let append = "Content-Type: application/offset+octet-stream\r\nUpload-Offset: 0\r\n";
    let elsewhere = tus(0, "PATCH", append, "12345").await;
    assert_eq!(elsewhere.status, 421, "{}", elsewhere.body);
    assert!(elsewhere.problem().contains("node-2"), "{}", elsewhere.body);
    assert_eq!(tus(1, "PATCH", append, "12345").await.status, 204);
    let offset = tus(2, "HEAD", "", "").await;
    assert_eq!((offset.status, field(&offset, "upload-offset")), (200, "5"));
    // Another node than that of the transfer pauses, resumes and cancels it.
    let steer = async |step: &str| {
        let path = format!("{FILES}/{id}/{step}");
        send(&nodes.servers[0], "", "POST", &path, &Value::Null).await
    };
    assert_eq!(steer("pause").await.json()["is_paused"], true);
    let rest = append.replace("Offset: 0", "Offset: 5");
    assert_eq!(tus(1, "PATCH", &rest, "67890").await.status, 423);
    assert_eq!(steer("resume").await.json()["is_paused"], false);
    let status = nodes.get(2, &format!("{FILES}/{id}/status")).await.json();
    assert_eq!(status["received"], json!([[0, 5]]));
    assert_eq!(nodes.get(0, &content_of(id)).await.status, 409);
    assert_eq!(tus(0, "DELETE", "", "").await.status, 204);
    let file = nodes.upload(1, "f", "content").await;
    let path = format!("{FILES}/{file}");
    assert_eq!(delete(nodes.servers[2].address, &path).await.status, 204);
    for at in 0..NODES.len() {
        assert_eq!(nodes.get(at, &path).await.status, 404);
        let absent = nodes.get(at, &format!("{FILES}/{id}")).await;
        assert_eq!(absent.status, 404, "{}", absent.body);
    }
    // The node of the files writes the audit log.
    let audit = nodes.get(1, "/api/v1/audit-log?action=file.").await.json();
    let actions = column(&[audit["data"].as_array().unwrap().clone()], "action");
    for action in ["file.pause", "file.resume", "file.delete"] {
        assert!(actions.iter().any(|known| known == action), "{actions:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_of_a_node_work_at_all_nodes() {
    let nodes = FakeNodes::start_with(true).await;
    let body = text(LARGE);
    let address = nodes.servers[1].address;
    let made = request(address, "PUT", "/api/v1/uploads/f", &local(), &body).await;
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let links = format!("{FILES}/{id}/links");
    let life = json!({"expires_in_s": 60});
    let link = send(&nodes.servers[0], &local(), "POST", &links, &life).await;
    assert_eq!(link.status, 201, "{}", link.body);
    let path = link.json()["path"].as_str().unwrap().to_owned();
    for at in 0..NODES.len() {
        let answer = nodes.get(at, &path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(answer.body == body);
        let part = nodes.get_with(at, &path, "Range: bytes=1-2\r\n").await;
        assert_eq!((part.status, part.body.as_str()), (206, &body[1..3]));
        let later = nodes.get(at, &path.replace("expires=", "expires=1")).await;
        assert_eq!(later.status, 403, "{}", later.body);
        let unknown = nodes.get(at, &path.replace("node-2", "node-9")).await;
        assert_eq!(unknown.status, 400, "{}", unknown.body);
    }
    // Another node has not signed it.
    let other = nodes.get(0, &path.replace("node-2", "node-3")).await;
    assert_eq!(other.status, 403, "{}", other.body);
    assert_eq!(nodes.get(0, &content_of(&id)).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_other_namespaces_are_not_found_at_any_node() {
    let nodes = FakeNodes::start_with(true).await;
    for server in &nodes.servers {
        for namespace in ["acme", "other"] {
            let body = json!({"id": namespace});
            send(server, &local(), "POST", "/api/v1/namespaces", &body).await;
        }
    }
    let ann = json!({
        "username": "ann", "password": "ann-secret", "must_change_password": false,
        "namespaces": [{"namespace": "acme", "role": "viewer"}],
    });
    send(
        &nodes.servers[0],
        &local(),
        "POST",
        "/api/v1/operators",
        &ann,
    )
    .await;
    let login = json!({"username": "ann", "password": "ann-secret"});
    let login = send(&nodes.servers[0], "", "POST", "/api/v1/login", &login).await;
    let token = bearer(login.json()["token"].as_str().unwrap());
    let mut ids = Vec::new();
    for namespace in ["acme", "other"] {
        let path = format!("/api/v1/uploads/f?namespace={namespace}");
        let address = nodes.servers[2].address;
        let made = request(address, "PUT", &path, &local(), "content").await;
        ids.push(made.json()["id"].as_str().unwrap().to_owned());
    }
    let listed = nodes.get_with(0, FILES, &token).await.json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    assert_eq!(listed["data"][0]["id"], ids[0]);
    for more in ["", "/content", "/status"] {
        let own = nodes
            .get_with(0, &format!("{FILES}/{}{more}", ids[0]), &token)
            .await;
        assert_eq!(own.status, 200, "{more}: {}", own.body);
        let other = nodes
            .get_with(0, &format!("{FILES}/{}{more}", ids[1]), &token)
            .await;
        assert_eq!(other.status, 404, "{more}: {}", other.body);
    }
    let other = nodes
        .get_with(0, &format!("{FILES}/{}/events", ids[1]), &token)
        .await;
    assert_eq!(other.status, 404, "{}", other.body);
    // A viewer may not delete it, at whichever node it is.
    let path = format!("{FILES}/{}", ids[0]);
    let refused = request(nodes.servers[0].address, "DELETE", &path, &token, "").await;
    assert_eq!(refused.status, 403, "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_progress_of_a_transfer_of_another_node_is_streamed() {
    let nodes = FakeNodes::start().await;
    let fields = "Tus-Resumable: 1.0.0\r\nUpload-Length: 10\r\nUpload-Metadata: filename YQ==\r\n";
    let begun = request(nodes.servers[1].address, "POST", "/api/v1/tus", fields, "").await;
    let upload = field(&begun, "location").to_owned();
    let id = upload.rsplit('/').next().unwrap();
    let path = format!("{FILES}/{id}/events");
    let mut stream = open(&nodes.servers[0], &path, "").await;
    read_until(&mut stream, "\"received_bytes\":0").await;
    let fields = "Tus-Resumable: 1.0.0\r\nContent-Type: application/offset+octet-stream\r\nUpload-Offset: 0\r\n";
    let address = nodes.servers[1].address;
    let sent = request(address, "PATCH", &upload, fields, "0123456789").await;
    assert_eq!(sent.status, 204, "{}", sent.body);
    read_until(&mut stream, "\"state\":\"complete\"").await;
}
