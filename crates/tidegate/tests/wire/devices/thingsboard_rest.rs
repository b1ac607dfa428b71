//! A program that was written for ThingsBoard's REST API: it logs in, reads telemetry, calls a device, and renews its token.

use std::process::Command;
use std::thread::spawn;

use serde_json::{Value, json};

use super::{api, ask_at, connect, product, with_token};
use crate::interop::{find_program, installed, report_skipped};
use crate::support::Node;

/// A request on a path of ThingsBoard.
fn ask(node: &Node, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
    ask_by(node.address("http"), method, path, token, body)
}

fn ask_by(address: &str, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
    let mut fields = "content-type: application/json\r\n".to_owned();
    if !token.is_empty() {
        fields += &format!("X-Authorization: Bearer {token}\r\n");
    }
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let (status, _, answer) = ask_at(address, (method, path), &fields, &body);
    (status, answer)
}

fn token(node: &Node, username: &str, password: &str) -> (String, String) {
    let body = json!({"username": username, "password": password});
    let (status, pair) = ask(node, "POST", "/api/auth/login", "", &body);
    assert_eq!(status, 200, "{pair}");
    let text = |name: &str| pair[name].as_str().unwrap().to_owned();
    (text("token"), text("refreshToken"))
}

#[test]
fn a_program_for_thingsboard_reads_and_calls() {
    let node = Node::start(&[]);
    // Names as ThingsBoard has them, and a UUID where a device is registered under one.
    let id = "784f394c-42b6-435a-983c-b7beff2784f9";
    for (name, role) in [
        ("tenant@example.org", "operator"),
        ("reader@example.org", "viewer"),
    ] {
        let operator = json!({"username": name, "role": role, "password": "correct horse", "must_change_password": false});
        let (status, answer) = api(&node, "POST", "operators", &operator);
        assert_eq!(status, 201, "{answer}");
    }
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, id, "meter", Value::Null);
    let mut raw = connect(&node, id);
    raw.subscribe("v1/devices/me/rpc/request/+", 1);
    raw.publish_qos1("v1/devices/me/telemetry", r#"{"t": 21.5}"#, 1);

    let (reader, refresh) = token(&node, "reader@example.org", "correct horse");
    let look = |path: &str| ask(&node, "GET", path, &reader, &Value::Null);
    let found = look(&format!("/api/tenant/devices?deviceName={id}"));
    assert_eq!(found, look(&format!("/api/device/{id}")));
    let (status, found) = found;
    assert_eq!(
        (status, &found["id"], &found["type"]),
        (
            200,
            &json!({"entityType": "DEVICE", "id": id}),
            &json!("meter")
        ),
        "{found}"
    );
    assert_eq!(look("/api/tenant/devices?deviceName=nobody").0, 404);
    assert_eq!(look("/api/tenant/devices").0, 400);
    let values = format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=t");
    let (status, found) = ask(&node, "GET", &values, &reader, &Value::Null);
    assert_eq!(
        (status, &found["t"][0]["value"]),
        (200, &json!("21.5")),
        "{found}"
    );
    let call = json!({"method": "getState", "params": {}, "timeout": 20_000});
    let rpc = format!("/api/plugins/rpc/twoway/{id}");
    let (status, _) = ask(&node, "POST", &rpc, &reader, &call);
    assert_eq!(status, 403, "a viewer looks");

    let (tenant, _) = token(&node, "tenant@example.org", "correct horse");
    let address = node.address("http").to_owned();
    let asking = spawn(move || ask_by(&address, "POST", &rpc, &tenant, &call));
    let packet = raw.recv_packet();
    raw.acknowledge(&packet);
    let answer = packet.topic.replace("request", "response");
    raw.publish_qos1(&answer, r#"{"on": true}"#, 2);
    assert_eq!(asking.join().unwrap(), (200, json!({"on": true})));

    let next = json!({"refreshToken": refresh});
    let (status, pair) = ask(&node, "POST", "/api/auth/token", "", &next);
    assert_eq!(status, 200, "{pair}");
    let renewed = pair["token"].as_str().unwrap();
    assert_eq!(ask(&node, "GET", &values, renewed, &Value::Null).0, 200);
    assert_eq!(
        ask(&node, "POST", "/api/auth/logout", renewed, &Value::Null).0,
        200
    );
    assert_eq!(ask(&node, "GET", &values, &reader, &Value::Null).0, 401);
}

/// ThingsBoard's own client for its REST API; `thingsboard_rest_client.py` says what it does.
#[test]
fn the_rest_client_of_thingsboard_manages_a_device() {
    let packages = installed("TIDEGATE_TEST_THINGSBOARD_REST", "thingsboard-rest");
    let packages = packages.filter(|dir| dir.join("tb_rest_client").is_dir());
    let (Some(packages), Some(python)) = (packages, find_program("python3")) else {
        return report_skipped("ThingsBoard's REST client for Python is not installed");
    };
    let node = Node::start(&[]);
    let operator = json!({"username": "tenant@example.org", "role": "operator", "password": "correct horse", "must_change_password": false});
    let (status, answer) = api(&node, "POST", "operators", &operator);
    assert_eq!(status, 201, "{answer}");
    let alarm = json!([{"id": "overheated",
        "raise": [{"severity": "MAJOR", "when": {"key": "hot", "is": "=", "value": true}}]}]);
    product(&node, "meter", json!({"mode": "sync", "alarms": alarm}));
    let url = format!("http://{}", node.address("http"));
    let ended = Command::new(python)
        .env("PYTHONPATH", packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/wire/devices/thingsboard_rest_client.py"
        ))
        .args([&url, "tenant@example.org", "correct horse"])
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && output_text.ends_with("done\n"),
        "{output_text}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}
