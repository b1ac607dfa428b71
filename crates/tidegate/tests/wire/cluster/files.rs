//! Files that are at one node, listed, read and changed at others.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::devices::{device, name, product};
use super::support::{Cluster, get};
use crate::api::send;
use crate::support::{Connect, Node, Publish, Raw, eventually, kind};

const FILES: &str = "/api/v1/files";

/// Bytes without a period that a mistake could hide behind.
fn content(len: usize) -> Vec<u8> {
    let mixed = (0..len as u32).map(|n| n.wrapping_mul(2_654_435_761) >> 13);
    mixed.map(|number| number as u8).collect()
}

/// Sends a request, and returns the connection.
fn ask(node: &Node, method: &str, path: &str, fields: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(node.address("http")).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n"
    )
    .unwrap();
    stream.write_all(body).unwrap();
    stream
}

/// Status, head and body of what arrives until the connection ends, whether it is complete or not.
fn response(mut stream: TcpStream, mut received: Vec<u8>) -> (u16, String, Vec<u8>) {
    // Closed, or reset.
    let _ = stream.read_to_end(&mut received);
    let end = received.windows(4).position(|four| four == b"\r\n\r\n");
    let body = received.split_off(end.expect("a head") + 4);
    let head = String::from_utf8(received).unwrap();
    (head[9..12].parse().unwrap(), head, body)
}

fn exchange(node: &Node, method: &str, path: &str, fields: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let (status, _, body) = response(ask(node, method, path, fields, body), Vec::new());
    (status, body)
}

/// Uploads a file to a node and returns its id.
fn upload(node: &Node, name: &str, content: &[u8]) -> String {
    let path = format!("/api/v1/uploads/{name}");
    let (status, body) = exchange(node, "PUT", &path, "", content);
    assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
    let info: Value = serde_json::from_slice(&body).unwrap();
    info["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_file_of_one_node_is_steered_and_read_at_all() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    // A client that is no registered device.
    let id = name("cam");
    let picture = content(150_001);
    let mut raw = Raw::connect(b, &Connect::new(5, &id));
    let mut step = |packet_id: u16, topic: &str, payload: &[u8]| {
        raw.send_publish(&Publish::new(topic, payload).qos(1, packet_id));
        raw.recv(kind::PUBACK).reason
    };
    let meta = json!({"name": "picture.jpg", "size": picture.len()}).to_string();
    assert_eq!(step(1, "$file/p-1/init", meta.as_bytes()), 0);
    assert_eq!(step(2, "$file/p-1/0", &picture[..100_000]), 0);
    let list = format!("{FILES}?owner={id}");
    for node in [a, b, c] {
        let listed = get(node, &list).body;
        assert_eq!(listed["data"][0]["state"], "receiving", "{listed}");
        assert_eq!(listed["data"][0]["node"], "node-2");
        assert_eq!(listed["missing_nodes"], json!([]));
    }
    // The transfer is paused at a node that does not have it.
    let transfer = get(c, &list).body["data"][0]["id"].clone();
    let transfer = format!("{FILES}/{}", transfer.as_str().unwrap());
    let steer = |step: &str| send(a, "", "POST", &format!("{transfer}/{step}"), &Value::Null);
    assert_eq!(steer("pause").body["is_paused"], true);
    assert_ne!(step(3, "$file/p-1/100000", &picture[100_000..]), 0);
    assert_eq!(steer("resume").body["is_paused"], false);
    assert_eq!(step(4, "$file/p-1/100000", &picture[100_000..]), 0);
    let fin = format!("$file/p-1/fin/{}", picture.len());
    assert_eq!(step(5, &fin, b""), 0);
    for node in [a, b, c] {
        let path = format!("{transfer}/content");
        let (status, body) = exchange(node, "GET", &path, "", b"");
        assert_eq!((status, body == picture), (200, true));
    }
    let deleted = send(c, "", "DELETE", &transfer, &Value::Null);
    assert_eq!(deleted.status, 204, "{}", deleted.body);
    for node in [a, b, c] {
        assert_eq!(get(node, &transfer).status, 404);
        assert_eq!(get(node, &list).body["data"], json!([]));
    }
}

#[test]
fn a_device_reads_its_files_at_any_node() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("logger");
    assert_eq!(device(a, &id, &product).status, 201);
    let log = content(1_200_001);
    let path = format!("/api/v1/token-{id}/uploads/log");
    let (status, info) = exchange(b, "PUT", &path, "", &log);
    assert_eq!(status, 201, "{}", String::from_utf8_lossy(&info));
    let info: Value = serde_json::from_slice(&info).unwrap();
    let file = info["id"].as_str().unwrap();
    let other = upload(c, &id, b"of a person");
    for node in [a, b, c] {
        let path = |id: &str, file: &str| format!("/api/v1/token-{id}/files/{file}/content");
        let (status, body) = exchange(node, "GET", &path(&id, file), "", b"");
        assert_eq!((status, body == log), (200, true));
        let range = "Range: bytes=1200000-\r\n";
        let (status, body) = exchange(node, "GET", &path(&id, file), range, b"");
        assert_eq!((status, &body[..]), (206, &log[1_200_000..]));
        assert_eq!(exchange(node, "GET", &path(&id, &other), "", b"").0, 404);
        assert_eq!(exchange(node, "GET", &path("x", file), "", b"").0, 401);
    }
}

#[test]
fn a_download_ends_early_with_its_node_and_continues_after_its_return() {
    const SIZE: usize = 40_000_003;
    let Some(mut cluster) = Cluster::start_or_skip(2) else {
        return;
    };
    let file = content(SIZE);
    let id = upload(&cluster.nodes[1], "large", &file);
    let path = format!("{FILES}/{id}/content");
    let (status, body) = exchange(&cluster.nodes[0], "GET", &path, "", b"");
    assert_eq!((status, body == file), (200, true));
    let links = format!("{FILES}/{id}/links");
    let life = json!({"expires_in_s": 600});
    let link = send(&cluster.nodes[0], "", "POST", &links, &life);
    assert_eq!(link.status, 201, "{}", link.body);
    let link = link.body["path"].as_str().unwrap().to_owned();

    // Nobody reads the rest before the node has ended.
    let mut stream = ask(&cluster.nodes[0], "GET", &path, "", b"");
    let mut begin = vec![0; 4096];
    stream.read_exact(&mut begin).unwrap();
    cluster.nodes[1].signal(libc::SIGKILL);
    assert!(cluster.nodes[1].wait(Duration::from_secs(10)).is_some());
    let (status, head, received) = response(stream, begin);
    assert_eq!(status, 200);
    let length = format!("content-length: {SIZE}");
    assert!(head.lines().any(|line| line == length), "{head}");
    assert!(received.len() < SIZE && file.starts_with(&received));
    let listed = get(&cluster.nodes[0], FILES).body;
    assert_eq!(listed["missing_nodes"], json!(["node-2"]), "{listed}");
    let missing = get(&cluster.nodes[0], &path);
    assert_eq!(missing.status, 503, "{}", missing.body);
    let detail = missing.body["detail"].as_str().unwrap();
    assert!(detail.contains("node-2"), "{detail}");

    cluster.nodes[1].start_again();
    cluster.wait_until_connected();
    let first = &cluster.nodes[0];
    eventually("the file is found again", || {
        get(first, &format!("{FILES}/{id}")).status == 200
    });
    let range = format!("Range: bytes={}-\r\n", received.len());
    for path in [&path, &link] {
        let (status, rest) = exchange(first, "GET", path, &range, b"");
        assert_eq!(status, 206, "{}", String::from_utf8_lossy(&rest));
        assert!(rest == file[received.len()..]);
    }
}
