//! paho-mqtt, the usual client in Python. The scenarios are in `paho_scenarios.py`.

use std::path::PathBuf;
use std::process::Command;

use super::client::Client;
use super::{SharedNode, Transport, find_program, installed, own_node, report_skipped};
use crate::support::unique;

fn packages() -> Option<PathBuf> {
    let packages = installed("TIDEGATE_TEST_PYTHONPATH", "python")
        .filter(|dir| dir.join("paho/mqtt").is_dir() && find_program("python3").is_some());
    if packages.is_none() {
        report_skipped("paho-mqtt for Python is not installed");
    }
    packages
}

/// Runs one scenario of `paho_scenarios.py` with each of the protocol versions.
fn run(scenario: &str, transport: Transport, versions: &[u8]) {
    let Some(packages) = packages() else { return };
    if matches!(transport, Transport::Tls | Transport::SecureWebSocket) && !own_node() {
        return;
    }
    let node = SharedNode::get();
    let (host, port) = node.host_and_port(transport);
    for version in versions {
        let mut command = Command::new("python3");
        command
            .env("PYTHONPATH", &packages)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/wire/interop/paho_scenarios.py"
        ));
        command.args([scenario, "--host", host, "--port", &port.to_string()]);
        command.args(["--version", &version.to_string()]);
        command.args(["--topic", &unique("paho/"), "--id", &unique("paho")]);
        if matches!(transport, Transport::Tls | Transport::SecureWebSocket) {
            command.arg("--ca").arg(node.authority.certificate_path());
        }
        if matches!(transport, Transport::WebSocket | Transport::SecureWebSocket) {
            command.args(["--websocket", "/mqtt"]);
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
    paho_exchanges_messages: "exchange", Tcp, [3, 4, 5];
    paho_exchanges_messages_over_tls: "exchange", Tls, [4, 5];
    paho_exchanges_messages_over_websocket: "exchange", WebSocket, [4, 5];
    paho_exchanges_messages_over_secure_websocket: "exchange", SecureWebSocket, [5];
    paho_sends_more_than_fits_in_flight: "flood", Tcp, [4, 5];
    paho_sends_more_than_fits_in_flight_over_websocket: "flood", WebSocket, [5];
    paho_gets_retained_messages: "retained", Tcp, [4, 5];
    paho_leaves_a_will: "will", Tcp, [4, 5];
    paho_leaves_a_will_over_tls: "will", Tls, [5];
    paho_leaves_a_will_over_websocket: "will", WebSocket, [5];
    paho_resumes_a_session: "session", Tcp, [4, 5];
    paho_shares_a_subscription: "shared", Tcp, [4, 5];
    paho_is_taken_over: "takeover", Tcp, [4, 5];
    paho_sees_the_properties_of_a_message: "properties", Tcp, [5];
    paho_uses_subscription_options: "options5", Tcp, [5];
    paho_limits_what_it_is_sent: "aliases", Tcp, [5];
}
