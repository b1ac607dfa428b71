//! Clients of others, as in the guide: `ws` for Node, `websockets` for Python, and a browser.

use std::process::Command;

use serde_json::json;

use super::{BINARY, RelayClient, new_endpoint};
use crate::api::own_node;
use crate::interop::client::Client;
use crate::interop::mqtt_js::packages;
use crate::interop::{browser, find_program, installed, report_skipped};
use crate::support::{Node, temporary_directory};

/// A script that sends when it is connected, and answers what it receives; without and with compression.
fn exchange(command: impl Fn(&str) -> Command) {
    let compressing = Node::start(&["--set", "listener.ws.compression=true"]);
    for (node, closed) in [
        (Node::shared(), "closed 1000"),
        (&compressing, "closed 1000 permessage-deflate"),
    ] {
        let id = new_endpoint(node, json!({"mode": "direct"}));
        let mut peer = RelayClient::connect(node, &id);
        let mut command = command(&format!("ws://{}/ws/{id}", node.address("ws")));
        let client = Client::start(&mut command);
        assert_eq!(peer.expect_text(), "hello");
        peer.send_text("grüße");
        assert_eq!(peer.expect_text(), "text grüße");
        // Long enough to be compressed, in both directions.
        let text = "grüße ".repeat(1000);
        peer.send_text(&text);
        assert_eq!(peer.expect_text(), format!("text {text}"));
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n / 300) as u8).collect();
        peer.0.send_frame(BINARY, &bytes);
        let reversed = bytes.into_iter().rev().collect();
        assert!(peer.receive().unwrap() == (BINARY, reversed));
        assert_eq!(client.finish(), [closed]);
    }
}

fn script(name: &str) -> String {
    format!("{}/tests/wire/relay/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_ws_package_for_node_exchanges_messages() {
    if !own_node() {
        return;
    }
    let Some(packages) = packages() else { return };
    exchange(|url| {
        let mut command = Command::new("node");
        command.env("TIDEGATE_TEST_NODE_MODULES", &packages);
        command.args([&script("ws_client.mjs"), url]);
        command
    });
}

#[test]
fn the_websockets_package_for_python_exchanges_messages() {
    if !own_node() {
        return;
    }
    let packages = installed("TIDEGATE_TEST_WEBSOCKETS", "websockets");
    let Some(packages) = packages.filter(|_| find_program("python3").is_some()) else {
        report_skipped("websockets for Python is not installed");
        return;
    };
    exchange(|url| {
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", &packages);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.args([&script("websockets_client.py"), url]);
        command
    });
}

#[test]
fn pages_of_a_browser_exchange_messages_if_origin_and_key_are_right() {
    if !own_node() {
        return;
    }
    let Some(mut pages) = browser::start_script("relay/browser_pages.mjs") else {
        return;
    };
    let port = pages.next_line().expect("the port of the pages");
    let config = format!(
        "[[listener]]\nname = \"ws\"\nbind = \"127.0.0.1:0\"\ncompression = true\n\
         [[listener]]\nname = \"strict\"\nprotocol = \"ws\"\nbind = \"127.0.0.1:0\"\n\
         allowed_origins = \"http://127.0.0.1:{port}\"\n"
    );
    let mut node = Node::spawn(temporary_directory(), &[], &config);
    node.wait_until_it_listens().unwrap();
    let key = "an-access-key-of-mine";
    let origins = [format!("http://127.0.0.1:{port}")];
    let definition = json!({"mode": "direct", "access_key": key, "allowed_origins": origins});
    let id = new_endpoint(&node, definition);
    let (ws, strict) = (node.address("ws"), node.address("strict"));
    pages.feed(&format!(
        "{}\n",
        json!({"ws": ws, "strict": strict, "id": id, "key": key})
    ));
    let expected = [
        "open tidegate-relay true",
        "open tidegate-relay true",
        "text grüße",
        "binary 0,255,7",
        "5005",
        "close 1000 ",
        "INVALID_ACCESS_KEY, close 1008 Invalid access key",
        "ORIGIN_NOT_ALLOWED, close 1008 Origin not allowed",
        "close 1006 ",
    ];
    let seen = pages.finish();
    let seen: Vec<&str> = seen.iter().map(|line| line.trim_end()).collect();
    assert_eq!(seen, expected.map(str::trim_end));
}
