//! Uploads over tus to a node whose disk is full.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{content, stored_files};
use crate::support::{DEADLINE, Node, SmallDisk, eventually};

/// A node with little space, which leaves 8 MiB to others.
fn node_on(disk: &SmallDisk) -> Node {
    let config = "[store]\nsegment_bytes = \"1MiB\"\nmin_free_bytes = 1048576\n[telemetry]\nmin_free_bytes = 0\n\
                  [files]\nmin_free_bytes = 8388608\n";
    let data_dir = disk.path().join("data");
    fs::create_dir(&data_dir).unwrap();
    let mut node = Node::spawn(data_dir, &["--shards", "1"], config);
    node.wait_until_it_listens()
        .unwrap_or_else(|why| panic!("{why}"));
    node
}

/// Sends a request of tus; returns the status and a header of the answer. A node that rejects content may close the connection
/// before it has read all of it.
fn tus(node: &Node, line: &str, fields: &str, body: &[u8], header: &str) -> (u16, String) {
    let address = node.address("http");
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let token = crate::api::local_token(node);
    let head = format!(
        "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Tus-Resumable: 1.0.0\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    let _ = socket.write_all(body);
    let mut answer = String::new();
    let _ = socket.read_to_string(&mut answer);
    let mut lines = answer.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.expect("a status line").parse().unwrap();
    let value = lines.find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case(header).then(|| value.to_owned())
    });
    (status, value.unwrap_or_default())
}

#[test]
fn tus_uploads_wait_for_space_on_a_full_disk() {
    if !crate::api::own_node() {
        return;
    }
    let Some(disk) = SmallDisk::mount() else {
        testkit::report_skipped("a file system cannot be mounted here");
        return;
    };
    let node = node_on(&disk);
    let create = |length: usize| {
        let fields = format!("Upload-Length: {length}\r\n");
        tus(&node, "POST /api/v1/tus", &fields, b"", "location")
    };
    assert_eq!(create(100 << 20).0, 507, "early");
    let all = content(20 << 20);
    let (status, path) = create(all.len());
    assert_eq!(status, 201);
    let append = |offset: usize, end: usize| {
        let fields =
            format!("Content-Type: application/offset+octet-stream\r\nUpload-Offset: {offset}\r\n");
        let line = format!("PATCH {path}");
        tus(&node, &line, &fields, &all[offset..end], "upload-offset")
    };
    assert_eq!(append(0, 1 << 20), (204, (1 << 20).to_string()));
    let filler = disk.fill_but(4 << 20);
    eventually("the full disk is noticed", || {
        let (_, offset) = tus(&node, &format!("HEAD {path}"), "", b"", "upload-offset");
        let offset: usize = offset.parse().unwrap();
        assert!(offset < 16 << 20, "the disk is never full");
        append(offset, offset + (1 << 19)).0 == 507
    });
    fs::remove_file(filler).unwrap();
    eventually("there is space again", || {
        let (_, offset) = tus(&node, &format!("HEAD {path}"), "", b"", "upload-offset");
        append(offset.parse().unwrap(), all.len()).0 == 204
    });
    let stored = stored_files(node.data_dir());
    assert!(stored.len() == 1 && stored[0].1 == all);
}
