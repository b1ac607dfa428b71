//! Commands to devices over HTTP, and what devices of each protocol get and answer.

use std::thread::{JoinHandle, spawn};

use serde_json::{Value, json};

use super::{api, by_token, device, login, product};
use crate::support::{Connect, Node, Packet, Raw, Subscribe, eventually, kind, unique};

/// Asks in a thread of its own, since the answer waits for the device.
fn asking(node: &Node, path: &str, body: Value) -> JoinHandle<(u16, Value)> {
    let (address, path) = (node.address("http").to_owned(), path.to_owned());
    spawn(move || super::api_at(&address, "POST", &path, &body))
}

fn command(node: &Node, id: u64) -> Value {
    let (status, command) = api(node, "GET", &format!("commands/{id}"), &Value::Null);
    assert_eq!(status, 200, "{command}");
    command
}

/// Subscribes; what waits for the client may come before the answer to that.
fn listen(raw: &mut Raw, filter: &str, qos: u8) {
    raw.send(&Subscribe::new(1).filter(filter, qos).bytes(raw.version));
}

fn next(raw: &mut Raw) -> (String, Value, Packet) {
    let packet = loop {
        match raw.recv_packet() {
            packet if packet.kind == kind::SUBACK => {}
            packet => break packet,
        }
    };
    assert_eq!(packet.kind, kind::PUBLISH, "{packet:?}");
    raw.acknowledge(&packet);
    let payload = serde_json::from_slice(&packet.payload).expect("JSON");
    (packet.topic.clone(), payload, packet)
}

fn with_token(node: &Node, id: &str, product: &str, token: &str) -> Value {
    let credentials = json!([{"type": "token", "token": token}]);
    device(
        node,
        json!({"id": id, "product": product, "credentials": credentials}),
    )
}

const RPC: &str = "v1/devices/me/rpc/request/+";

#[test]
fn a_device_of_thingsboard_answers_a_call() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({}));
    with_token(&node, "d", "meter", "T");
    let (mut raw, _) = login(&node, &by_token("T"));
    raw.subscribe(RPC, 1);
    let call = json!({"method": "reboot", "params": {"delay_s": 3}, "timeout_ms": 20_000});
    let caller = asking(&node, "devices/d/commands", call);
    let (topic, payload, _) = next(&mut raw);
    assert_eq!(topic, "v1/devices/me/rpc/request/1");
    assert_eq!(
        payload,
        json!({"method": "reboot", "params": {"delay_s": 3}})
    );
    eventually("the client has it", || {
        command(&node, 1)["state"] == "acknowledged"
    });
    raw.publish("v1/devices/me/rpc/response/1", r#"{"ok":true}"#);
    let (status, ended) = caller.join().unwrap();
    assert_eq!(
        (status, &ended["state"]),
        (200, &json!("success")),
        "{ended}"
    );
    assert_eq!(ended["result"], json!({"ok": true}));
    // One that nobody answers.
    let call = json!({"method": "silence", "timeout_ms": 300});
    let (status, ended) = api(&node, "POST", "devices/d/commands", &call);
    assert_eq!(
        (status, &ended["state"]),
        (200, &json!("timeout")),
        "{ended}"
    );
    // One way, it is enough that the client has it.
    let call = json!({"method": "beep", "one_way": true});
    let caller = asking(&node, "devices/d/commands", call);
    next(&mut raw);
    next(&mut raw);
    let (status, ended) = caller.join().unwrap();
    assert_eq!(
        (status, &ended["state"]),
        (200, &json!("success")),
        "{ended}"
    );
    let (_, listed) = api(&node, "GET", "devices/d/commands?limit=2", &Value::Null);
    let ids: Vec<_> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["id"])
        .collect();
    assert_eq!(ids, [&json!(3), &json!(2)]);
    let (_, _, metrics) = super::ask_at(node.address("http"), ("GET", "/metrics"), "", "");
    let metrics = metrics.as_str().expect("text");
    assert!(
        metrics.contains("tidegate_commands_ended_total{state=\"success\"} 2"),
        "{metrics}"
    );
}

#[test]
fn commands_to_a_device_that_is_away_survive_kills_and_arrive_in_order() {
    let mut node = Node::start(&[]);
    product(&node, "meter", json!({}));
    with_token(&node, "d", "meter", "T");
    for number in 1..=20 {
        let call = json!({"method": format!("m{number}"), "params": number, "timeout_ms": 60_000});
        let (status, taken) = api(&node, "POST", "devices/d/commands", &call);
        assert_eq!(
            (status, &taken["state"]),
            (202, &json!("pending")),
            "{taken}"
        );
        if number % 7 == 0 {
            node.crash();
        }
    }
    let (status, cancelled) = api(&node, "POST", "commands/5/cancel", &json!({}));
    assert_eq!((status, &cancelled["state"]), (200, &json!("cancelled")));
    node.crash();
    // It is here, and does not listen yet.
    let connect = Connect::new(4, "client").username("T").persistent();
    let (mut raw, _) = login(&node, &connect);
    raw.ping();
    assert_eq!(command(&node, 1)["state"], "pending");
    listen(&mut raw, RPC, 1);
    for number in (1..=20).filter(|number| *number != 5) {
        let (topic, payload, _) = next(&mut raw);
        assert_eq!(topic, format!("v1/devices/me/rpc/request/{number}"));
        assert_eq!(payload["params"], number);
    }
    eventually("the last is acknowledged", || {
        command(&node, 20)["state"] == "acknowledged"
    });
    // Its session is kept: it hears without subscribing again. A server may send messages before the SUBACK (3.1.1, section
    // 3.8.4), which waits until the subscription is durable.
    raw.send(&[0xe0, 0x00]);
    let packets = raw.packets_until_closed();
    assert!(
        packets.iter().all(|packet| packet.kind == kind::SUBACK),
        "{packets:?}"
    );
    eventually("it has gone", || super::state(&node, "d") == "offline");
    let call = json!({"method": "late", "timeout_ms": 60_000});
    let (status, _) = api(&node, "POST", "devices/d/commands", &call);
    assert_eq!(status, 202);
    let (mut raw, _) = login(&node, &connect);
    let (topic, _, _) = next(&mut raw);
    assert_eq!(topic, "v1/devices/me/rpc/request/21");
    // An answer after a kill is one, too.
    eventually("it is noted", || command(&node, 21)["state"] != "pending");
    node.crash();
    let (mut raw, _) = login(&node, &connect);
    raw.publish("v1/devices/me/rpc/response/21", "done");
    eventually("it is answered", || {
        command(&node, 21)["state"] == "success"
    });
    assert_eq!(command(&node, 21)["result"], "done");
}

#[test]
fn a_device_of_the_tidegate_protocol_receives_calls_and_attributes() {
    let node = Node::start(&[]);
    let model = json!({
        "properties": [{"id": "rate", "name": "rate", "valueType": {"type": "int", "max": 9}}],
        "functions": [{"id": "open", "name": "open", "inputs": [
            {"id": "slowly", "name": "slowly", "valueType": {"type": "boolean"}}]}],
    });
    product(
        &node,
        "lock",
        json!({"model": model, "unknown_keys": "reject"}),
    );
    with_token(&node, "d", "lock", "T");
    let (mut raw, _) = login(&node, &by_token("T"));
    raw.subscribe("tg/d/down/#", 0);
    let body = json!({"params": {"slowly": true}});
    let caller = asking(&node, "devices/d/functions/open", body);
    let (topic, payload, _) = next(&mut raw);
    assert_eq!(topic, "tg/d/down/command/1");
    assert_eq!(
        payload,
        json!({"method": "open", "params": {"slowly": true}})
    );
    let failed = json!({"success": false, "code": "jammed", "message": "it is stuck"});
    raw.publish("tg/d/up/command/1", failed.to_string());
    let (_, ended) = caller.join().unwrap();
    assert_eq!(ended["state"], "failed");
    assert_eq!(
        (&ended["code"], &ended["message"]),
        (&json!("jammed"), &json!("it is stuck"))
    );
    for (path, body, wanted, part) in [
        ("functions/shut", json!({}), 404, "has no function"),
        (
            "functions/open",
            json!({"params": {"slow": 1}}),
            422,
            "params.slow",
        ),
        (
            "properties/write",
            json!({"values": {"rate": 10}}),
            422,
            "above the greatest",
        ),
        ("properties/read", json!({"keys": ["x"]}), 422, "keys[0]"),
        (
            "commands",
            json!({"method": "shut"}),
            422,
            "has no function",
        ),
        (
            "commands",
            json!({"method": "open", "timeout": 3}),
            422,
            "timeout",
        ),
        (
            "commands",
            json!({"method": "open", "timeout_ms": 99_999_999}),
            422,
            "at most 600000",
        ),
    ] {
        let (status, answer) = api(&node, "POST", &format!("devices/d/{path}"), &body);
        assert_eq!(status, wanted, "{path}: {answer}");
        assert!(
            answer["detail"].as_str().unwrap().contains(part),
            "{answer}"
        );
    }
    let set = json!({"limit": 5, "name": "x"});
    assert_eq!(
        api(&node, "PUT", "devices/d/attributes/shared", &set).0,
        204
    );
    let (topic, payload, _) = next(&mut raw);
    assert_eq!((topic.as_str(), payload), ("tg/d/down/attributes", set));
    let set = json!({"limit": null});
    assert_eq!(
        api(&node, "PUT", "devices/d/attributes/shared", &set).0,
        204
    );
    assert_eq!(next(&mut raw).1, json!({"deleted": ["limit"]}));
    assert_eq!(
        api(&node, "PUT", "devices/d/attributes/server", &set).0,
        204
    );
    assert!(
        raw.ping_for_packets().is_empty(),
        "they are not its business"
    );
    let (status, _) = api(
        &node,
        "POST",
        "devices/nobody/commands",
        &json!({"method": "x"}),
    );
    assert_eq!(status, 404);
    assert_eq!(api(&node, "POST", "commands/1/cancel", &json!({})).0, 409);
    assert_eq!(api(&node, "GET", "commands/99", &Value::Null).0, 404);
}

#[test]
fn devices_behind_a_gateway_get_theirs_by_it() {
    let node = Node::start(&[]);
    product(&node, "hub", json!({"gateway": true}));
    product(&node, "meter", json!({}));
    with_token(&node, "g", "hub", "T");
    device(&node, json!({"id": "c", "product": "meter", "parent": "g"}));
    let call = json!({"method": "reset", "timeout_ms": 20_000});
    let (status, _) = api(&node, "POST", "devices/c/commands", &call);
    assert_eq!(status, 202);
    let (mut raw, _) = login(&node, &Connect::new(4, unique("g")).username("T"));
    raw.subscribe("v1/gateway/rpc", 1);
    raw.subscribe("v1/gateway/attributes", 1);
    raw.ping();
    assert_eq!(
        command(&node, 1)["state"],
        "pending",
        "nobody said it is here"
    );
    raw.publish("v1/gateway/connect", r#"{"device":"c"}"#);
    let (topic, payload, _) = next(&mut raw);
    assert_eq!(topic, "v1/gateway/rpc");
    let expected = json!({"device": "c", "data": {"id": 1, "method": "reset", "params": null}});
    assert_eq!(payload, expected);
    raw.publish("v1/gateway/rpc", r#"{"device":"c","id":1,"data":{"ok":1}}"#);
    eventually("it is answered", || command(&node, 1)["state"] == "success");
    assert_eq!(command(&node, 1)["result"], json!({"ok": 1}));
    let set = json!({"limit": 5});
    assert_eq!(
        api(&node, "PUT", "devices/c/attributes/shared", &set).0,
        204
    );
    let (topic, payload, _) = next(&mut raw);
    assert_eq!(topic, "v1/gateway/attributes");
    assert_eq!(payload, json!({"device": "c", "data": {"limit": 5}}));
    raw.publish("v1/gateway/disconnect", r#"{"device":"c"}"#);
    eventually("it has gone", || super::state(&node, "c") == "offline");
    let (status, _) = api(&node, "POST", "devices/c/commands", &call);
    assert_eq!(status, 202);
    // One that subscribes after it has said who is there.
    raw.disconnect();
    let (mut raw, _) = login(&node, &Connect::new(4, unique("g")).username("T"));
    raw.publish("v1/gateway/connect", r#"{"device":"c"}"#);
    eventually("it is here", || super::state(&node, "c") == "online");
    listen(&mut raw, "v1/gateway/rpc", 0);
    assert_eq!(next(&mut raw).1["data"]["id"], 2);
}

#[test]
fn messages_to_downlink_topics_reach_no_other_device() {
    let node = Node::start(&[]);
    product(&node, "hub", json!({"gateway": true}));
    let mut clients = ["one", "two"].map(|id| {
        with_token(&node, id, "hub", id);
        let (mut raw, _) = login(&node, &by_token(id));
        for filter in [
            "v1/devices/me/attributes",
            RPC,
            "v1/devices/me/rpc/response/+",
            "v1/gateway/rpc",
            "v1/gateway/attributes",
        ] {
            raw.subscribe(filter, 1);
        }
        raw
    });
    let [one, two] = &mut clients;
    one.publish_qos1("v1/devices/me/attributes", r#"{"pin": 1234}"#, 1);
    one.publish(
        "v1/devices/me/rpc/request/1",
        r#"{"method": "getCurrentTime"}"#,
    );
    one.publish("v1/devices/me/rpc/response/1", "1");
    one.publish("v1/gateway/rpc", r#"{"device": "x", "id": 1, "data": 1}"#);
    one.publish("v1/gateway/attributes", r#"{"x": {"a": 1}}"#);
    let (topic, now, _) = next(one);
    assert_eq!(topic, "v1/devices/me/rpc/response/1");
    assert!(now.is_u64(), "{now}");
    for raw in [one, two] {
        assert!(raw.ping_for_packets().is_empty());
    }
}

#[test]
fn a_device_may_fetch_its_commands_over_http() {
    let node = Node::start(&[]);
    let provisioning =
        json!({"mode": "allow_new", "key": "new-meters", "secret": "0123456789abcdef"});
    product(&node, "meter", json!({"provisioning": provisioning}));
    let request_body = json!({"provisionDeviceKey": "new-meters",
        "provisionDeviceSecret": "0123456789abcdef", "deviceName": "d"});
    let (status, made) = api(&node, "POST", "provision", &request_body);
    assert_eq!(
        (status, &made["status"]),
        (200, &json!("SUCCESS")),
        "{made}"
    );
    let token = made["credentialsValue"].as_str().unwrap();
    let rpc = format!("{token}/rpc");
    let (status, _) = api(&node, "GET", &format!("{rpc}?timeout=50"), &Value::Null);
    assert_eq!(status, 408);
    let (status, now) = api(&node, "POST", &rpc, &json!({"method": "getCurrentTime"}));
    assert!(status == 200 && now.is_u64(), "{now}");
    // It waits, then there is one.
    let (address, path) = (node.address("http").to_owned(), rpc.clone());
    let fetched = spawn(move || super::api_at(&address, "GET", &path, &Value::Null));
    let call = json!({"method": "reboot", "params": [1], "timeout_ms": 20_000, "wait": false});
    assert_eq!(api(&node, "POST", "devices/d/commands", &call).0, 202);
    let (status, command) = fetched.join().unwrap();
    let expected = json!({"id": 1, "method": "reboot", "params": [1]});
    assert_eq!((status, command), (200, expected));
    let (status, _) = api(&node, "POST", &format!("{rpc}/1"), &json!({"ok": true}));
    assert_eq!(status, 200);
    eventually("it is answered", || {
        self::command(&node, 1)["state"] == "success"
    });
    let offer = json!({"secretKey": "mine"});
    assert_eq!(api(&node, "POST", &format!("{token}/claim"), &offer).0, 200);
    let claim = json!({"secret": "mine", "group": "anna"});
    assert_eq!(api(&node, "POST", "devices/d/claim", &claim).0, 200);
    assert_eq!(api(&node, "GET", "nobody/rpc", &Value::Null).0, 401);
}
