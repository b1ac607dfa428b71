//! The clients of the guide "A relay in five minutes", as they are printed there.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::json;

use super::{BINARY, RelayClient, ask};
use crate::api::own_node;
use crate::interop::client::Client;
use crate::interop::mqtt_js::packages;
use crate::interop::{browser, find_program, installed, skipped};
use crate::support::{Node, temporary_directory};

/// The code of a section of the guide, for the address of this node.
fn code_of(section: &str, node: &Node) -> String {
    let page = include_str!("../../../../../docs/guides/relay.md");
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let (_, block) = rest.split_once("```").unwrap();
    let (code, _) = block.split_once("\n```").unwrap();
    let (_language, code) = code.split_once('\n').unwrap();
    let address = "127.0.0.1:8083";
    assert!(code.contains(address), "{code}");
    code.replace(address, node.address("ws"))
}

/// A node with the endpoint of the guide, and another client of it.
fn set_up() -> (Node, RelayClient) {
    let node = Node::start(&[]);
    let (status, answer) = ask(
        &node,
        "PUT",
        "endpoints/workshop",
        json!({"mode": "direct"}),
    );
    assert_eq!(status, 201, "{answer}");
    let peer = RelayClient::join(&node, "workshop");
    (node, peer)
}

/// Each client sends a message when it is connected, and shows those that it gets.
fn exchange(mut client: Client, peer: &mut RelayClient, hello: &str) -> Client {
    assert_eq!(peer.expect_text(), hello);
    for text in ["grüße", "second message"] {
        peer.send_text(text);
        assert_eq!(client.next_line().as_deref(), Some(text), "{hello}");
    }
    client
}

#[test]
fn the_python_client_of_the_guide_runs() {
    if !own_node() {
        return;
    }
    let packages = installed("TIDEGATE_TEST_WEBSOCKETS", "websockets");
    let Some(packages) = packages.filter(|_| find_program("python3").is_some()) else {
        return skipped("websockets for Python is not installed");
    };
    let (node, mut peer) = set_up();
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", &packages);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PYTHONUNBUFFERED", "1");
    command.env("PYTHONIOENCODING", "utf-8");
    command.args(["-c", &code_of("Python", &node)]);
    exchange(Client::start(&mut command), &mut peer, "hello from Python").kill();
}

#[test]
fn the_node_client_of_the_guide_runs() {
    if !own_node() {
        return;
    }
    let Some(packages) = packages() else { return };
    let (node, mut peer) = set_up();
    let directory = temporary_directory();
    symlink(&packages, directory.join("node_modules")).unwrap();
    let script = directory.join("client.mjs");
    std::fs::write(&script, code_of("Node", &node)).unwrap();
    let mut command = Command::new("node");
    command.arg(&script);
    let mut client = exchange(Client::start(&mut command), &mut peer, "hello from Node");
    peer.0.send_frame(BINARY, &[0, 255]);
    assert_eq!(client.next_line().as_deref(), Some("<Buffer 00 ff>"));
    client.kill();
}

#[test]
fn the_web_page_of_the_guide_runs() {
    if !own_node() {
        return;
    }
    let Some(mut pages) = browser::start_script("relay/guide_page.mjs") else {
        return;
    };
    let (node, mut peer) = set_up();
    pages.feed(&format!("{}\n", json!(code_of("Browser", &node))));
    exchange(pages, &mut peer, "hello from a page").kill();
}
