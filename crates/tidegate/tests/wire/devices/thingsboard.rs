//! ThingsBoard's own client for Python against the node. The scenarios are in `thingsboard_scenarios.py`; what they cannot see, this
//! side of the test looks up in the API.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{api, by_token, device, get, login, product};
use crate::interop::client::Client;
use crate::interop::{find_program, installed, report_skipped};
use crate::support::{Node, eventually, kind};

fn packages() -> Option<PathBuf> {
    let packages = installed("TIDEGATE_TEST_THINGSBOARD", "thingsboard");
    let packages = packages
        .filter(|dir| dir.join("tb_device_mqtt.py").is_file() && find_program("python3").is_some());
    if packages.is_none() {
        report_skipped("ThingsBoard's client for Python is not installed");
    }
    packages
}

/// Starts a scenario; it says `ready` when the rest is for the other side to do.
fn start(packages: &Path, node: &Node, scenario: &str, token: &str) -> Client {
    let (host, port) = node.address("mqtt").rsplit_once(':').unwrap();
    let mut command = Command::new("python3");
    command
        .env("PYTHONPATH", packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // It would install what it misses.
        .env("PIP_NO_INDEX", "1")
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/wire/devices/thingsboard_scenarios.py"
        ))
        .args([scenario, host, port, token]);
    Client::start(&mut command)
}

fn latest(node: &Node, id: &str, key: &str) -> Value {
    // It may be registered by what it says.
    let path = format!("devices/{id}/telemetry/latest");
    let (_, latest) = api(node, "GET", &path, &Value::Null);
    latest["values"][key]["value"].clone()
}

fn attribute(node: &Node, id: &str, key: &str) -> Value {
    let listed = get(node, &format!("devices/{id}/attributes/client"));
    let mut listed = listed["data"].as_array().unwrap().iter();
    let found = listed.find(|attribute| attribute["key"] == key);
    found.map_or(Value::Null, |attribute| attribute["value"].clone())
}

fn set_shared(node: &Node, id: &str, values: &Value) {
    let path = format!("devices/{id}/attributes/shared");
    assert_eq!(api(node, "PUT", &path, values).0, 204);
}

fn node() -> Node {
    let node = Node::start(&[]);
    product(&node, "meter", json!({}));
    product(&node, "hub", json!({"gateway": true}));
    let credentials = json!([{"type": "token", "token": "T"}]);
    device(
        &node,
        json!({"id": "d", "product": "meter", "credentials": credentials}),
    );
    let credentials = json!([{"type": "token", "token": "G"}]);
    device(
        &node,
        json!({"id": "g", "product": "hub", "credentials": credentials}),
    );
    node
}

#[test]
fn the_client_of_a_device_reports_requests_and_receives() {
    let Some(packages) = packages() else { return };
    let node = node();
    set_shared(&node, "d", &json!({"rate": 5}));
    let mut client = start(&packages, &node, "device", "T");
    client.wait_for("ready");
    eventually("telemetry is stored", || {
        latest(&node, "d", "temperature") == 41.5
    });
    assert_eq!(latest(&node, "d", "mode"), "eco");
    assert_eq!(attribute(&node, "d", "firmware"), "1.2");
    set_shared(&node, "d", &json!({"rate": 6}));
    assert_eq!(client.wait_for("told"), "told {\"rate\": 6}");
    let call = json!({"method": "setGPIO", "params": {"pin": 7}, "timeout_ms": 20_000});
    let (status, ended) = api(&node, "POST", "devices/d/commands", &call);
    assert_eq!(
        (status, &ended["result"]),
        (200, &json!({"method": "setGPIO", "pin": 7})),
        "{ended}"
    );
    client.feed("");
    assert_eq!(client.finish(), ["done"]);
}

/// ThingsBoard's server replies without looking at subscriptions, and its client for Python may ask before it has
/// subscribed.
#[test]
fn requests_are_answered_without_a_subscription() {
    let node = node();
    set_shared(&node, "d", &json!({"rate": 5}));
    let (mut raw, _) = login(&node, &by_token("T"));
    for request in [7, 8] {
        let topic = format!("v1/devices/me/attributes/request/{request}");
        raw.publish(&topic, r#"{"sharedKeys":"rate"}"#);
        let packet = raw.recv(kind::PUBLISH);
        raw.acknowledge(&packet);
        assert_eq!(
            packet.topic,
            format!("v1/devices/me/attributes/response/{request}")
        );
        assert_eq!(packet.payload, br#"{"shared":{"rate":5}}"#);
    }
    let listed = get(&node, "subscriptions");
    let listed = listed["data"].as_array().unwrap().iter();
    let filters: Vec<_> = listed
        .map(|subscription| &subscription["topic_filter"])
        .collect();
    assert_eq!(filters, ["v1/devices/me/attributes/response/+"]);
}

#[test]
fn the_client_of_a_gateway_represents_the_devices_behind_it() {
    let Some(packages) = packages() else { return };
    let node = node();
    let mut client = start(&packages, &node, "gateway", "G");
    client.wait_for("ready");
    eventually("telemetry is stored", || latest(&node, "behind", "t") == 2);
    eventually("the attribute is stored", || {
        attribute(&node, "behind", "serial") == "x9"
    });
    assert_eq!(super::state(&node, "behind"), "online");
    set_shared(&node, "behind", &json!({"rate": 6}));
    assert_eq!(client.wait_for("told"), "told behind {\"rate\": 6}");
    let call = json!({"method": "reset", "timeout_ms": 20_000});
    let (status, ended) = api(&node, "POST", "devices/behind/commands", &call);
    assert_eq!(
        (status, &ended["result"]),
        (200, &json!({"done": "reset"})),
        "{ended}"
    );
    assert_eq!(client.wait_for("asked"), "asked 6");
    eventually("it has gone", || super::state(&node, "behind") == "offline");
    client.feed("");
    assert_eq!(client.finish(), ["done"]);
}

#[test]
fn the_client_registers_itself_and_offers_to_be_claimed() {
    let Some(packages) = packages() else { return };
    let node = node();
    let secret = "0123456789abcdef";
    let provisioning = json!({"mode": "allow_new", "key": "new-meters", "secret": secret});
    product(&node, "new", json!({"provisioning": provisioning}));
    let mut client = start(&packages, &node, "provision", secret);
    client.wait_for("ready");
    eventually("it reports", || latest(&node, "fresh", "t") == 1);
    let claim = |secret: &str| {
        let claim = json!({"secret": secret, "group": "anna"});
        api(&node, "POST", "devices/fresh/claim", &claim).0
    };
    eventually("it is offered", || {
        claim("wrong") == 422 && claim("mine") == 200
    });
    assert_eq!(get(&node, "devices/fresh")["group"], "anna");
    assert_eq!(claim("mine"), 422, "once");
    client.feed("");
    assert_eq!(client.finish(), ["done"]);
}
