//! mqtt.js, the usual client in Node and browsers. The scenarios are in `mqtt_js_scenarios.mjs`.

use std::path::PathBuf;
use std::process::Command;

use super::client::Client;
use super::{SharedNode, Transport, find_program, installed, own_node, report_skipped};
use crate::support::unique;

/// The folder with the packages of Node.
pub(crate) fn packages() -> Option<PathBuf> {
    let packages = installed("TIDEGATE_TEST_NODE_MODULES", "node/node_modules")
        .filter(|dir| dir.join("mqtt").is_dir() && find_program("node").is_some());
    if packages.is_none() {
        report_skipped("mqtt.js for Node is not installed");
    }
    packages
}

/// Runs one scenario of `mqtt_js_scenarios.mjs` with each of the protocol versions.
fn run(scenario: &str, transport: Transport, versions: &[u8]) {
    let Some(packages) = packages() else { return };
    let encrypted = matches!(transport, Transport::Tls | Transport::SecureWebSocket);
    if encrypted && !own_node() {
        return;
    }
    let node = SharedNode::get();
    let address = node.node.address(transport.listener());
    let url = match transport {
        Transport::Tcp => format!("mqtt://{address}"),
        Transport::Tls => format!("mqtts://{address}"),
        Transport::WebSocket => format!("ws://{address}/mqtt"),
        Transport::SecureWebSocket => format!("wss://{address}/mqtt"),
    };
    for version in versions {
        let mut command = Command::new("node");
        command.env("TIDEGATE_TEST_NODE_MODULES", &packages);
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/wire/interop/mqtt_js_scenarios.mjs"
        ));
        command.args([
            scenario,
            &url,
            &version.to_string(),
            &unique("js/"),
            &unique("js"),
        ]);
        if encrypted {
            command.arg(node.authority.certificate_path());
        }
        let lines = Client::start(&mut command).finish();
        assert_eq!(lines, ["done"], "{scenario} with version {version}");
    }
}

macro_rules! scenarios {
    ($($name:ident: $scenario:literal, $transport:ident, $versions:expr;)*) => {
        $(#[test]
        fn $name() {
            run($scenario, Transport::$transport, &$versions);
        })*
    };
}

scenarios! {
    mqtt_js_exchanges_messages: "exchange", Tcp, [3, 4, 5];
    mqtt_js_exchanges_messages_over_tls: "exchange", Tls, [4, 5];
    mqtt_js_exchanges_messages_over_websocket: "exchange", WebSocket, [3, 4, 5];
    mqtt_js_exchanges_messages_over_secure_websocket: "exchange", SecureWebSocket, [4, 5];
    mqtt_js_gets_a_retained_message: "retained", WebSocket, [4, 5];
    mqtt_js_leaves_a_will: "will", WebSocket, [4, 5];
    mqtt_js_resumes_a_session: "session", Tcp, [3, 4, 5];
    mqtt_js_resumes_a_session_over_websocket: "session", WebSocket, [5];
    mqtt_js_sees_the_properties_of_a_message: "properties", Tcp, [5];
    mqtt_js_sees_the_properties_of_a_message_over_websocket: "properties", WebSocket, [5];
}
