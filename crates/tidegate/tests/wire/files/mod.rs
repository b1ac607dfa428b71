//! Files that devices and people send to the node, over every protocol.

mod clients;
mod exports;
mod full_disk;
mod mqtt;

use std::fs;
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde_json::Value;

use crate::support::Node;

/// SHA-256 in hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

/// Bytes without a period that a mistake could hide behind.
fn content(len: usize) -> Vec<u8> {
    let mixed = (0..len as u32).map(|n| n.wrapping_mul(2_654_435_761) >> 13);
    mixed.map(|number| number as u8).collect()
}

/// The contents of all complete files in a data directory, with their names.
fn stored_files(data_dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(data_dir.join("files")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(record) = fs::read_to_string(path.join("record")) else {
            continue;
        };
        let record: Value = serde_json::from_str(record.lines().next().unwrap()).unwrap();
        if record["state"] == "complete" {
            let name = record["name"].as_str().unwrap().to_owned();
            found.push((name, fs::read(path.join("data")).unwrap()));
        }
    }
    found.sort();
    found
}

/// A node of its own; none against another broker.
fn node(settings: &[&str]) -> Option<Node> {
    if !crate::api::own_node() {
        return None;
    }
    let mut arguments = vec!["--shards", "2"];
    arguments.extend(settings.iter().flat_map(|set| ["--set", set]));
    Some(Node::start(&arguments))
}
