//! MQTT over QUIC with a client of other people: aioquic, which shares no code with the node. `quic_client.py` speaks MQTT
//! over its streams.

use std::process::Command;

use super::own_node;
use super::quic::QuicNode;
use crate::interop::client::Client;
use crate::interop::{find_program, installed, report_skipped};
use crate::support::{eventually, unique};

/// Starts a scenario, unless aioquic is missing.
fn start(quic: &QuicNode, scenario: &str, version: u8, client_id: &str) -> Option<Client> {
    let packages = installed("TIDEGATE_TEST_AIOQUIC", "aioquic")
        .filter(|dir| dir.join("aioquic").is_dir() && find_program("python3").is_some());
    let Some(packages) = packages else {
        report_skipped("aioquic for Python is not installed");
        return None;
    };
    let (_, port) = quic.address().rsplit_once(':')?;
    let mut command = Command::new("python3");
    command
        .env("PYTHONPATH", &packages)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/wire/listeners/quic_client.py"
    ));
    command.args([scenario, "--port", port, "--id", client_id]);
    command.args(["--version", &version.to_string()]);
    command.args(["--topic", &unique("aioquic/")]);
    command.arg("--ca").arg(quic.certificate_path());
    Some(Client::start(&mut command))
}

/// Runs a scenario that needs nothing else, with both versions.
fn run(scenario: &str) {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    for version in [4, 5] {
        let Some(client) = start(&quic, scenario, version, &unique("aioquic")) else {
            return;
        };
        assert_eq!(
            client.finish(),
            ["done"],
            "{scenario} with version {version}"
        );
        eventually("the connection has ended", || quic.connections() == 0);
    }
}

#[test]
fn aioquic_exchanges_messages_over_one_stream() {
    run("single");
}

#[test]
fn aioquic_uses_several_streams() {
    run("streams");
}

/// RFC 9000 section 9.
#[test]
fn aioquic_continues_after_changes_of_its_address() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    for version in [4, 5] {
        let client_id = unique("aioquic");
        let Some(mut client) = start(&quic, "migration", version, &client_id) else {
            return;
        };
        for address in ["127.0.0.1", "127.0.0.2", "127.0.0.3"] {
            client.wait_for(&format!("moved to {address}:"));
        }
        eventually("it is one connection", || quic.connections() == 1);
        client.feed("");
        assert_eq!(client.finish(), ["done"]);
    }
}
