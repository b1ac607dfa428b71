//! Devices as they are written for JetLinks' official protocol: they log in by `secureId|timestamp` and an MD5, subscribe to
//! nothing, report, answer reads, writes and calls, tell events, and have others behind them.

use std::thread::{JoinHandle, spawn};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{SUCCESS, api, device, get, login, md5, product};
use crate::support::{Connect, Node, Raw, eventually, kind};

/// A device, or a gateway.
struct JetLinks {
    raw: Raw,
    /// `/{productId}/{deviceId}`.
    root: String,
}

impl JetLinks {
    fn connect(node: &Node, product: &str, id: &str, key: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let username = format!("{id}|{}", now.as_millis());
        let password = md5(&format!("{username}|{key}"));
        let connect = Connect::new(4, id).username(username).password(password);
        let (raw, reason) = login(node, &connect);
        assert_eq!(reason, SUCCESS);
        Self {
            raw,
            root: format!("/{product}/{id}"),
        }
    }

    fn publish_json(&mut self, suffix: &str, payload: &Value) {
        let payload = match payload {
            Value::Null => String::new(),
            payload => payload.to_string(),
        };
        self.raw.publish(&format!("{}{suffix}", self.root), payload);
    }

    /// What it is told: what follows its root, and the message.
    fn receive_json(&mut self) -> (String, Value) {
        let packet = self.raw.recv(kind::PUBLISH);
        self.raw.acknowledge(&packet);
        let suffix = packet.topic.strip_prefix(&self.root).expect("it is for it");
        let payload: Value = serde_json::from_slice(&packet.payload).expect("JSON");
        assert!(payload["timestamp"].is_u64(), "{payload}");
        (suffix.to_owned(), payload)
    }
}

fn asking(node: &Node, path: &str, body: Value) -> JoinHandle<Value> {
    let (address, path) = (node.address("http").to_owned(), path.to_owned());
    spawn(move || {
        let (status, answer) = super::api_at(&address, "POST", &path, &body);
        assert_eq!(status, 200, "{answer}");
        answer
    })
}

fn latest(node: &Node, id: &str, key: &str) -> Value {
    get(node, &format!("devices/{id}/telemetry/latest"))["values"][key]["value"].clone()
}

fn lamps(node: &Node) {
    let model = json!({
        "properties": [
            {"id": "brightness", "name": "Brightness",
             "valueType": {"type": "int", "min": 0, "max": 100}},
            {"id": "colour", "name": "Colour", "valueType": {"type": "string"}},
        ],
        "functions": [{"id": "blink", "name": "Blink", "inputs": [
            {"id": "times", "name": "Times", "valueType": {"type": "int"}}]}],
        "events": [{"id": "fire", "name": "Fire", "valueType": {"type": "object", "properties": []}}],
    });
    let shared = json!({"secure_id": "lamp", "secure_key": "shared key"});
    product(
        node,
        "lamp",
        json!({"model": model, "gateway": true, "secure": shared}),
    );
}

fn secure(node: &Node, id: &str) {
    let credentials = json!([{"type": "secure", "secure_key": "sk"}]);
    let wanted = json!({"id": id, "product": "lamp", "credentials": credentials});
    device(node, wanted);
}

#[test]
fn a_device_made_for_jetlinks_reports_and_receives_commands() {
    let node = Node::start(&[]);
    lamps(&node);
    secure(&node, "l1");
    let mut lamp = JetLinks::connect(&node, "lamp", "l1", "sk");
    let report = json!({"messageId": "r1", "properties": {"brightness": 40, "colour": "red"}});
    lamp.publish_json("/properties/report", &report);
    eventually("it is stored", || latest(&node, "l1", "brightness") == 40);
    assert_eq!(latest(&node, "l1", "colour"), "red");
    // It does not subscribe, and is told all the same.
    let read = asking(
        &node,
        "devices/l1/properties/read",
        json!({"keys": ["brightness"]}),
    );
    let (topic, message) = lamp.receive_json();
    assert_eq!(
        (topic.as_str(), &message["properties"]),
        ("/properties/read", &json!(["brightness"]))
    );
    assert_eq!(message["deviceId"], "l1");
    let reply = json!({"messageId": message["messageId"], "deviceId": "l1", "success": true,
        "properties": {"brightness": 41}});
    lamp.publish_json("/properties/read/reply", &reply);
    assert_eq!(read.join().unwrap()["result"], json!({"brightness": 41}));
    eventually("it is stored", || latest(&node, "l1", "brightness") == 41);
    // Firmware that cannot spell.
    let write = asking(
        &node,
        "devices/l1/properties/write",
        json!({"values": {"brightness": 80}}),
    );
    let (topic, message) = lamp.receive_json();
    assert_eq!(
        (topic.as_str(), &message["properties"]),
        ("/properties/write", &json!({"brightness": 80}))
    );
    let reply = json!({"messageId": message["messageId"], "properties": {"brightness": 80}});
    lamp.publish_json("/properties/wirte/reply", &reply);
    assert_eq!(write.join().unwrap()["state"], "success");
    // One that does not say which call it answers, and says that it failed.
    let call = asking(
        &node,
        "devices/l1/functions/blink",
        json!({"params": {"times": 3}}),
    );
    let (topic, message) = lamp.receive_json();
    assert_eq!(
        (topic.as_str(), &message["functionId"]),
        ("/function/invoke", &json!("blink"))
    );
    assert_eq!(message["inputs"], json!([{"name": "times", "value": 3}]));
    let reply = json!({"success": false, "code": "burnt", "message": "no light"});
    lamp.publish_json("/function/invoke/reply", &reply);
    let ended = call.join().unwrap();
    assert_eq!(
        [&ended["state"], &ended["code"], &ended["message"]],
        ["failed", "burnt", "no light"]
    );
    // An event that is a report, as version 1.0 has it.
    let event = json!({"data": {"brightness": 81}, "headers": {"report-properties": true}});
    lamp.publish_json("/event/anything", &event);
    eventually("it is stored", || latest(&node, "l1", "brightness") == 81);
    lamp.publish_json(
        "/event/fire",
        &json!({"messageId": "e1", "data": {"where": "kitchen"}}),
    );
    lamp.publish_json("/tags", &json!({"tags": {"floor": "2"}}));
    eventually("the tag is there", || {
        get(&node, "devices/l1")["tags"]["floor"] == "2"
    });
}

#[test]
fn devices_behind_a_gateway_made_for_jetlinks_report_and_receive_commands() {
    let node = Node::start(&[]);
    lamps(&node);
    secure(&node, "g");
    let mut gateway = JetLinks::connect(&node, "lamp", "g", "sk");
    // It brings a device along.
    let register = json!({"headers": {"productId": "lamp", "deviceName": "Desk lamp"}});
    gateway.publish_json("/child/c1/register", &register);
    eventually("it is registered", || {
        api(&node, "GET", "devices/c1", &Value::Null).0 == 200
    });
    let shown = get(&node, "devices/c1");
    assert_eq!([&shown["name"], &shown["parent"]], ["Desk lamp", "g"]);
    gateway.publish_json("/child/c1/online", &Value::Null);
    gateway.publish_json(
        "/child/c1/properties/report",
        &json!({"properties": {"brightness": 7}}),
    );
    eventually("it is stored", || latest(&node, "c1", "brightness") == 7);
    assert_eq!(super::state(&node, "c1"), "online");
    let call = asking(&node, "devices/c1/functions/blink", json!({}));
    let (topic, message) = gateway.receive_json();
    assert_eq!(topic, "/child/c1/function/invoke");
    assert_eq!(
        [&message["deviceId"], &message["function"]],
        ["c1", "blink"]
    );
    let reply = json!({"messageId": message["messageId"], "success": true, "output": 3});
    gateway.publish_json("/child-reply/c1/function/invoke/reply", &reply);
    assert_eq!(call.join().unwrap()["result"], 3);
    let read = asking(
        &node,
        "devices/c1/properties/read",
        json!({"keys": ["brightness"]}),
    );
    let (topic, message) = gateway.receive_json();
    assert_eq!(topic, "/child/c1/properties/read");
    let reply = json!({"messageId": message["messageId"], "properties": {"brightness": 7}});
    gateway.publish_json("/child/c1/properties/read/reply", &reply);
    assert_eq!(read.join().unwrap()["result"], json!({"brightness": 7}));
    // As version 1.0 says it.
    gateway.publish_json("/child/c1/disconnect", &Value::Null);
    eventually("it has gone", || super::state(&node, "c1") == "offline");
    gateway.publish_json("/child/c1/connected", &Value::Null);
    eventually("it is here", || super::state(&node, "c1") == "online");
    gateway.publish_json("/child/c1/offline", &Value::Null);
    eventually("it has gone", || super::state(&node, "c1") == "offline");
    // What was meant for it meanwhile it gets when it comes.
    let body = json!({"values": {"brightness": 9}, "timeout_ms": 60_000});
    let (status, taken) = api(&node, "POST", "devices/c1/properties/write", &body);
    assert_eq!(status, 202, "{taken}");
    gateway.publish_json("/child/c1/online", &Value::Null);
    let (topic, message) = gateway.receive_json();
    assert_eq!(topic, "/child/c1/properties/write");
    assert_eq!(message["messageId"], taken["id"].to_string());
    // The gateway goes, and with it whoever is behind it.
    gateway.raw.cut();
    eventually("both have gone", || {
        super::state(&node, "g") == "offline" && super::state(&node, "c1") == "offline"
    });
}
