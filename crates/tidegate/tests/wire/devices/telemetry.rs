//! What devices report, from MQTT into the time series and out of the API.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{SUCCESS, api, by_token, device, login, product};
use crate::support::{Node, Raw, eventually};

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_millis() as u64
}

fn with_token(node: &Node, id: &str, product: &str, more: Value) -> Value {
    let mut wanted = json!({"id": id, "product": product,
        "credentials": [{"type": "token", "token": format!("token-{id}")}]});
    for (key, value) in more.as_object().into_iter().flatten() {
        wanted[key] = value.clone();
    }
    device(node, wanted)
}

fn connect(node: &Node, id: &str) -> Raw {
    let (raw, reason) = login(node, &by_token(&format!("token-{id}")));
    assert_eq!(reason, SUCCESS);
    raw
}

fn get(node: &Node, path: &str) -> Value {
    let (status, answer) = api(node, "GET", path, &Value::Null);
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

/// The latest values of a device, without their times.
fn latest(node: &Node, id: &str) -> Value {
    let answer = get(node, &format!("devices/{id}/telemetry/latest"));
    let values = answer["values"].as_object().unwrap();
    values
        .iter()
        .map(|(key, sample)| (key.clone(), sample["value"].clone()))
        .collect()
}

#[test]
fn each_dialect_is_stored_in_each_mode() {
    let node = Node::start(&[]);
    for mode in ["sync", "actor"] {
        let id = format!("d-{mode}");
        product(&node, mode, json!({"mode": mode}));
        with_token(&node, &id, mode, Value::Null);
        let mut raw = connect(&node, &id);
        raw.publish_qos1(
            "v1/devices/me/telemetry",
            json!({"tb": 21.5, "on": true}).to_string(),
            1,
        );
        raw.publish_qos1(
            &format!("/{mode}/{id}/properties/report"),
            json!({"messageId": "1", "properties": {"jet": 5, "name": "x"}}).to_string(),
            2,
        );
        raw.publish_qos1(
            &format!("tg/{id}/up/telemetry"),
            json!([{"ts": now_ms() - 60_000, "values": {"own": {"x": 1}}}]).to_string(),
            3,
        );
        eventually("all are stored", || {
            latest(&node, &id)
                == json!({"tb": 21.5, "on": true, "jet": 5, "name": "x", "own": {"x": 1}})
        });
    }
}
