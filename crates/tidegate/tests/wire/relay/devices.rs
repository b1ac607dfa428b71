//! Devices at relay endpoints: identification, data, commands, requests and alerts.

use std::thread::spawn;

use serde_json::{Value, json};

use super::{RelayClient, ask, new_endpoint};
use crate::api::own_node;
use crate::support::{Connect, Node, Raw, eventually};

impl RelayClient {
    fn send_json(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    /// Identifies the connection as a device, and returns the id of the device in the API.
    fn identify(&mut self, device: &str) -> String {
        self.send_json(&json!({"type": "identify", "deviceId": device}));
        let identified = self.expect_json();
        assert_eq!(identified["type"], "identified", "{identified}");
        assert_eq!(identified["deviceId"], device, "{identified}");
        identified["dbDeviceId"].as_str().unwrap().to_owned()
    }

    fn request(&mut self, kind: &str, params: Value) -> Value {
        self.send_json(
            &json!({"type": "request", "requestId": kind, "requestType": kind, "params": params}),
        );
        let response = self.expect_json();
        assert_eq!(response["type"], "response", "{response}");
        assert_eq!(response["requestId"], kind, "{response}");
        response
    }
}

/// The start of a minute that is completely over, in milliseconds.
fn past_minute() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let minutes = now.unwrap().as_secs() / 60 - 2;
    i64::try_from(minutes).unwrap() * 60_000
}

fn get(node: &Node, path: &str) -> Value {
    let (status, answer) = ask(node, "GET", path, json!(null));
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

fn create(node: &Node, path: &str, object: Value) {
    let (status, answer) = ask(node, "PUT", path, object);
    assert!(matches!(status, 200 | 201), "{path}: {answer}");
}

/// The latest values of a device, by key.
fn latest(node: &Node, device: &str) -> Vec<(String, Value)> {
    let latest = get(node, &format!("devices/{device}/telemetry/latest"));
    let values = latest["values"].as_object();
    let values = values.unwrap_or_else(|| panic!("{latest}")).iter();
    values
        .map(|(key, sample)| (key.clone(), sample["value"].clone()))
        .collect()
}

fn state(node: &Node, device: &str) -> Value {
    get(node, &format!("devices/{device}"))["state"].clone()
}

#[test]
fn a_device_is_registered_reports_and_goes_offline() {
    if !own_node() {
        return;
    }
    for mode in ["sync", "actor"] {
        let node = Node::start(&[]);
        create(&node, "products/pump", json!({"mode": mode}));
        let room = new_endpoint(&node, json!({"product": "pump", "mode": "direct"}));
        let other = new_endpoint(&node, json!({}));
        let mut page = RelayClient::connect(&node, &room);
        let mut device = RelayClient::connect(&node, &room);
        let id = device.identify("pump-1");
        assert_eq!(id, format!("{room}:pump-1"));
        let ts_ms = past_minute();
        let timed = format!(r#"{{"type":"data","data":{{"t":21.5}},"timestamp":{ts_ms}}}"#);
        for data in [
            &timed,
            r#"{"data":{"on":true}}"#,
            r#"{"level":"high"}"#,
            r#"{"type":"heartbeat","uptime":7}"#,
        ] {
            device.send_text(data);
            // All are relayed, and identify was not.
            assert_eq!(page.expect_text(), data);
        }
        let expected = [
            ("level".to_owned(), json!("high")),
            ("on".to_owned(), json!(true)),
            ("t".to_owned(), json!(21.5)),
        ];
        eventually("the values are stored", || latest(&node, &id) == expected);
        let shown = get(&node, &format!("devices/{id}"));
        assert_eq!(shown["product"], "pump", "{shown}");
        assert_eq!(shown["name"], "Device pump", "{shown}");
        assert_eq!(shown["state"], "online", "{shown}");

        // The same device id at another endpoint is another device.
        let mut stranger = RelayClient::connect(&node, &other);
        let strange = stranger.identify("pump-1");
        assert_ne!(strange, id);
        let shown = get(&node, &format!("devices/{strange}"));
        assert_eq!(shown["product"], format!("relay-{other}"), "{shown}");

        // Two connections are one device.
        let mut second = RelayClient::connect(&node, &room);
        assert_eq!(second.identify("pump-1"), id);
        drop(device);
        second.send_text(r#"{"more":1}"#);
        eventually("the second connection reports", || {
            latest(&node, &id).len() == 4
        });
        assert_eq!(state(&node, &id), "online");
        drop(second);
        eventually("the device is offline", || state(&node, &id) == "offline");
        assert_eq!(state(&node, &strange), "online");
    }
}

#[test]
fn a_command_is_a_control_message_and_its_reply_ends_it() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let room = new_endpoint(&node, json!({}));
    let mut page = RelayClient::connect(&node, &room);
    let mut older = RelayClient::connect(&node, &room);
    let id = older.identify("lamp");
    let mut lamp = RelayClient::connect(&node, &room);
    lamp.identify("lamp");
    let path = format!("devices/{id}/commands");
    for (has_id, status, state) in [
        (true, "success", "success"),
        (false, "success", "success"),
        (true, "failed", "failed"),
    ] {
        let (address, path) = (node.address("http").to_owned(), path.clone());
        let caller = spawn(move || {
            let body = json!({"method": "switch", "params": {"on": true}, "timeout_ms": 20_000});
            crate::devices::api_at(&address, "POST", &path, &body)
        });
        let control = lamp.expect_json();
        assert_eq!(control["type"], "control", "{control}");
        assert_eq!(control["deviceId"], "lamp", "{control}");
        assert_eq!(control["command"], "switch", "{control}");
        assert_eq!(control["params"], json!({"on": true}), "{control}");
        assert!(control["timestamp"].is_u64(), "{control}");
        let mut ack = json!({"type": "control_ack", "status": status, "message": "m"});
        if has_id {
            ack["commandId"] = control["commandId"].clone();
        }
        lamp.send_json(&ack);
        let (_, ended) = caller.join().unwrap();
        assert_eq!(ended["state"], state, "{ended}");
    }
    // Neither commands nor replies are relayed.
    lamp.send_text("end");
    assert_eq!(page.expect_json()["data"], "end");
    assert_eq!(older.expect_json()["data"], "end");
}

#[test]
fn devices_on_all_shards_report_and_execute_commands() {
    if !own_node() {
        return;
    }
    for shards in ["1", "2"] {
        let node = Node::start(&["--shards", shards]);
        let room = new_endpoint(&node, json!({"mode": "direct"}));
        // The kernel distributes connections over the shards.
        let mut devices: Vec<_> = (0..6)
            .map(|n| {
                let mut device = RelayClient::join(&node, &room);
                let id = device.identify(&format!("d{n}"));
                (device, id)
            })
            .collect();
        for at in 0..devices.len() {
            let data = json!({"type": "data", "data": {"n": at}});
            devices[at].0.send_json(&data);
            for (other, (device, _)) in devices.iter_mut().enumerate() {
                if other != at {
                    assert_eq!(device.expect_json(), data, "{shards} shards");
                }
            }
        }
        for (at, (device, id)) in devices.iter_mut().enumerate() {
            eventually("the value is stored", || {
                latest(&node, id) == [("n".to_owned(), json!(at))]
            });
            let (address, path) = (
                node.address("http").to_owned(),
                format!("devices/{id}/commands"),
            );
            let caller = spawn(move || {
                let body = json!({"method": "blink", "params": {}, "timeout_ms": 20_000});
                crate::devices::api_at(&address, "POST", &path, &body)
            });
            let control = device.expect_json();
            assert_eq!(control["deviceId"], format!("d{at}"), "{control}");
            let id = control["commandId"].clone();
            device.send_json(&json!({"type": "control_ack", "status": "success", "commandId": id}));
            let (_, ended) = caller.join().unwrap();
            assert_eq!(ended["state"], "success", "{ended}");
        }
    }
}

#[test]
fn a_removed_or_disabled_device_loses_its_connection() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let room = new_endpoint(&node, json!({}));
    let mut device = RelayClient::connect(&node, &room);
    let id = device.identify("d");
    let (status, answer) = ask(&node, "DELETE", &format!("devices/{id}"), json!(null));
    assert!(status < 300, "{answer}");
    assert_eq!(
        device.expect_refusal(),
        ("DEVICE_CHANGED".into(), 1008, "Device changed".into())
    );
    let product = json!({"enabled": false, "protocols": ["relay"]});
    create(&node, &format!("products/relay-{room}"), product);
    let mut device = RelayClient::connect(&node, &room);
    device.send_json(&json!({"type": "identify", "deviceId": "d"}));
    let error = device.expect_json();
    assert_eq!(error["code"], "IDENTIFY_FAILED", "{error}");
    // It can still use the endpoint as any other client.
    let mut page = RelayClient::connect(&node, &room);
    device.send_text("hello");
    assert_eq!(page.expect_json()["data"], "hello");
}

#[test]
fn a_client_whose_identification_failed_is_no_device_any_more() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let quotas = json!({"devices": 1, "products": 1});
    create(&node, "namespaces/acme", json!({"quotas": quotas}));
    let definition = json!({"namespace": "acme", "mode": "direct"});
    let room = new_endpoint(&node, definition.clone());
    let mut page = RelayClient::join(&node, &room);
    let mut device = RelayClient::join(&node, &room);
    let id = device.identify("first");
    device.send_text(r#"{"t":1}"#);
    assert_eq!(page.expect_text(), r#"{"t":1}"#);
    eventually("the value is stored", || {
        latest(&node, &id) == [("t".to_owned(), json!(1))]
    });

    device.send_json(&json!({"type": "identify", "deviceId": "second"}));
    let error = device.expect_json();
    assert_eq!(error["code"], "IDENTIFY_FAILED", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("quota devices"), "{message}");
    eventually("the first device is offline", || {
        state(&node, &id) == "offline"
    });
    device.send_text(r#"{"t":2}"#);
    assert_eq!(page.expect_text(), r#"{"t":2}"#);
    let response = device.request("status_sync", json!({}));
    assert_eq!(response["error"]["code"], "DEVICE_NOT_IDENTIFIED");
    // The request was answered after the data would have been stored.
    assert_eq!(latest(&node, &id), [("t".to_owned(), json!(1))]);
    let messages = get(&node, &format!("endpoints/{room}/messages"));
    let sender = |at: usize| messages[at]["sender"].as_str().unwrap().to_owned();
    assert!(sender(0).starts_with("connection "), "{messages}");
    assert_eq!(sender(1), "Device firs", "{messages}");
    // It may identify itself again.
    assert_eq!(device.identify("first"), id);
    eventually("the device is online", || state(&node, &id) == "online");

    // The product of a second endpoint would be one too many.
    let other = new_endpoint(&node, definition);
    let mut client = RelayClient::connect(&node, &other);
    client.send_json(&json!({"type": "identify", "deviceId": "d"}));
    let error = client.expect_json();
    assert_eq!(error["code"], "IDENTIFY_FAILED", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("quota products"), "{message}");
}

#[test]
fn a_connection_may_repeat_its_identification_and_become_another_device() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let room = new_endpoint(&node, json!({"mode": "direct"}));
    let mut page = RelayClient::join(&node, &room);
    let mut device = RelayClient::join(&node, &room);
    let first = device.identify("first");
    assert_eq!(device.identify("first"), first, "again");
    assert_eq!(state(&node, &first), "online");
    // A device id has at most 64 characters.
    let long = "x".repeat(64);
    let second = device.identify(&long);
    assert!(second.starts_with(&format!("{room}:xxx")), "{second}");
    device.send_json(&json!({"type": "identify", "deviceId": "x".repeat(65)}));
    assert_eq!(device.expect_json()["code"], "INVALID_MESSAGE");
    eventually("only the second device is online", || {
        state(&node, &first) == "offline" && state(&node, &second) == "online"
    });
    // `null` is ignored, as for other protocols.
    device.send_text(r#"{"t":1,"u":null}"#);
    assert_eq!(page.expect_text(), r#"{"t":1,"u":null}"#);
    eventually("the value is that of the second device", || {
        latest(&node, &second) == [("t".to_owned(), json!(1))]
    });
    assert_eq!(latest(&node, &first), []);
    // Commands to the first device do not reach the connection.
    let body = json!({"method": "m", "timeout_ms": 100});
    let (_, command) = ask(&node, "POST", &format!("devices/{first}/commands"), body);
    assert_ne!(command["state"], "success", "{command}");
    device.synchronise();
}

#[test]
fn acknowledgements_without_an_id_end_the_newest_command_and_late_ones_none() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let room = new_endpoint(&node, json!({"mode": "direct"}));
    let mut stranger = RelayClient::join(&node, &room);
    let mut device = RelayClient::join(&node, &room);
    let path = format!("devices/{}/commands", device.identify("d"));
    let mut send = |timeout_ms: u32| {
        let body = json!({"method": "m", "timeout_ms": timeout_ms, "wait": false});
        let (status, command) = ask(&node, "POST", &path, body);
        assert!(status < 300, "{command}");
        let control = device.expect_json();
        assert_eq!(control["type"], "control", "{control}");
        (command["id"].clone(), control["commandId"].clone())
    };
    let shown = |id: &Value| get(&node, &format!("commands/{id}"))["state"].clone();
    let ack = json!({"type": "control_ack", "status": "success"});
    let (older, older_id) = send(60_000);
    let (newer, _) = send(60_000);
    let (late, late_id) = send(1);
    eventually("a command times out", || shown(&late) == "timeout");
    // Whose acknowledgement this would be is unknown.
    stranger.send_json(&ack);
    stranger.synchronise();
    assert_eq!(
        (shown(&older), shown(&newer)),
        (json!("sent"), json!("sent"))
    );
    device.send_json(&ack);
    eventually("the newest command ends", || shown(&newer) == "success");
    assert_eq!(shown(&older), "sent");
    for id in [&late_id, &older_id] {
        let mut ack = ack.clone();
        ack["commandId"] = id.clone();
        device.send_json(&ack);
    }
    eventually("the older command ends", || shown(&older) == "success");
    assert_eq!(shown(&late), "timeout");
}

#[test]
fn requests_of_devices_are_answered() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    // The thing model names the unit of one key, the endpoint those of two.
    let properties =
        json!([{"id": "flow", "name": "Flow", "valueType": {"type": "int", "unit": "l/min"}}]);
    let product = json!({"model": {"properties": properties}, "protocols": ["relay"]});
    create(&node, "products/pump", product);
    let units = json!({"N": "pcs", "Flow": "m/s"});
    let room = new_endpoint(
        &node,
        json!({"mode": "direct", "product": "pump", "units": units}),
    );
    let mut page = RelayClient::join(&node, &room);
    let mut device = RelayClient::connect(&node, &room);
    let refused = device.request("status_sync", json!({}));
    assert_eq!(refused["error"]["code"], "DEVICE_NOT_IDENTIFIED");
    let id = device.identify("d");
    let start_ms = past_minute();
    for n in 0..5 {
        let ts_ms = start_ms + n * 1000;
        device.send_json(
            &json!({"type": "data", "data": {"temp": n, "n": n, "flow": n}, "timestamp": ts_ms}),
        );
    }
    eventually("the values are stored", || {
        latest(&node, &id).get(1) == Some(&("n".to_owned(), json!(4)))
    });
    let attributes = json!({"rate": 5, "name": "x"});
    let path = format!("devices/{id}/attributes/shared");
    let (status, answer) = ask(&node, "PUT", &path, attributes);
    assert!(status < 300, "{answer}");

    let response = device.request("config_query", json!({"configKeys": ["rate", "none"]}));
    assert_eq!(response["status"], "success", "{response}");
    assert_eq!(response["data"], json!({"rate": 5}));

    let response = device.request(
        "status_sync",
        json!({"includeHistory": true, "historyLimit": 2}),
    );
    let data = &response["data"];
    assert_eq!(data["status"], "online", "{response}");
    assert_eq!(
        data["values"]["temp"],
        json!({"value": 4, "unit": "°C", "timestamp": start_ms + 4000})
    );
    assert_eq!(data["values"]["n"]["unit"], "pcs", "{response}");
    assert_eq!(data["values"]["flow"]["unit"], "l/min", "{response}");
    let answer = get(&node, &format!("devices/{id}/telemetry/latest"));
    let units = ["temp", "n", "flow"].map(|key| answer["values"][key]["unit"].clone());
    assert_eq!(units, ["°C", "pcs", "l/min"], "{answer}");
    assert_eq!(data["history"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        data["history"][1]["values"],
        json!({"temp": 3, "n": 3, "flow": 3})
    );

    let range =
        json!({"dataKey": "temp", "startTime": start_ms + 1000, "endTime": start_ms + 4000});
    let response = device.request("data_sync", range.clone());
    let values: Vec<_> = response["data"]["points"]
        .as_array()
        .unwrap_or_else(|| panic!("{response}"))
        .iter()
        .map(|point| &point["value"])
        .collect();
    assert_eq!(values, [1, 2, 3]);
    let mut averaged = range;
    averaged["aggregation"] = "minute".into();
    let response = device.request("data_sync", averaged);
    assert_eq!(response["data"]["points"][0]["value"], 2.0, "{response}");

    for (kind, params, code) in [
        ("reboot", json!({}), "INVALID_REQUEST_TYPE"),
        ("data_sync", json!({}), "INVALID_PARAMS"),
        (
            "status_sync",
            json!({"historyLimit": 101}),
            "INVALID_PARAMS",
        ),
        (
            "data_sync",
            json!({"dataKey": "t", "startTime": 0, "endTime": start_ms, "aggregation": "minute"}),
            "INVALID_PARAMS",
        ),
    ] {
        let response = device.request(kind, params);
        assert_eq!(response["status"], "error", "{response}");
        assert_eq!(response["error"]["code"], code, "{response}");
    }
    // Requests and responses are not relayed: only the data were.
    for _ in 0..5 {
        assert_eq!(page.expect_json()["type"], "data");
    }
    device.send_text("end");
    assert_eq!(page.expect_text(), "end");
}

#[test]
fn alarms_are_sent_to_the_connections_of_an_endpoint() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let rule = json!({"id": "hot", "raise": [
        {"severity": "CRITICAL", "when": {"key": "t", "is": ">", "value": 80}},
    ]});
    create(&node, "products/oven", json!({"alarms": [rule]}));
    create(
        &node,
        "endpoints/room",
        json!({"product": "oven", "mode": "direct"}),
    );
    create(
        &node,
        "notifications/room",
        json!({"to": {"endpoint": "room"}}),
    );
    let mut page = RelayClient::connect(&node, "room");
    let mut device = RelayClient::connect(&node, "room");
    device.identify("oven-1");
    device.send_text(r#"{"t":81}"#);
    assert_eq!(page.expect_text(), r#"{"t":81}"#);
    for client in [&mut page, &mut device] {
        let alert = client.expect_json();
        for (field, expected) in [
            ("type", json!("alert")),
            ("ruleId", json!("hot")),
            ("deviceId", json!("oven-1")),
            ("deviceName", json!("Device oven")),
            ("dataKey", json!("t")),
            ("triggeredValue", json!(81)),
            ("threshold", json!(80)),
            ("operator", json!(">")),
            ("alertLevel", json!("critical")),
            ("change", json!("raised")),
        ] {
            assert_eq!(alert[field], expected, "{field}: {alert}");
        }
    }
    let (status, answer) = ask(&node, "DELETE", "endpoints/room", json!(null));
    assert_eq!(status, 409, "a notification uses it: {answer}");
}

#[test]
fn the_action_relay_sends_to_an_endpoint() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let room = new_endpoint(&node, json!({"mode": "direct"}));
    let action = json!({"kind": "relay", "endpoint": "${name}", "payload": "t=${t}"});
    let rule = json!({
        "sql": "SELECT payload.name AS name, payload.t AS t FROM \"to-relay\"",
        "actions": [action],
    });
    create(&node, "rules/forward", rule);
    let shown = get(&node, "rules/forward");
    assert_eq!(shown["actions"][0]["kind"], "relay", "{shown}");
    assert_eq!(shown["actions"][0]["endpoint"], "${name}", "{shown}");
    let mut page = RelayClient::connect(&node, &room);
    let payload = json!({"name": room, "t": 21}).to_string();
    let mut sender = Raw::connect(&node, &Connect::new(5, "sender"));
    sender.publish("to-relay", &payload);
    assert_eq!(page.expect_text(), "t=21");
}
