//! The `ws` package for Node as a client, as in the guide.

use std::process::Command;

use serde_json::json;

use super::{RelayClient, new_endpoint};
use crate::api::own_node;
use crate::interop::client::Client;
use crate::interop::mqtt_js::packages;
use crate::support::Node;

#[test]
fn the_ws_package_exchanges_text_and_binary_messages() {
    if !own_node() {
        return;
    }
    let Some(packages) = packages() else { return };
    let node = Node::shared();
    let id = new_endpoint(node, json!({"mode": "direct"}));
    let mut peer = RelayClient::connect(node, &id);
    let url = format!("ws://{}/ws/{id}", node.address("ws"));
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/wire/relay/ws_client.mjs"
    );
    let mut command = Command::new("node");
    command.env("TIDEGATE_TEST_NODE_MODULES", &packages);
    let client = Client::start(command.args([script, &url]));
    // The client sends when it is connected, and answers what it receives.
    assert_eq!(peer.expect_text(), "hello from ws");
    peer.send_text("grüße");
    assert_eq!(peer.expect_text(), "text grüße");
    peer.0.send_frame(super::BINARY, &[0, 255]);
    assert_eq!(peer.receive().unwrap(), (super::BINARY, vec![255, 0]));
    assert_eq!(client.finish(), ["closed 1000"]);
}
