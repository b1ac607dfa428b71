//! What others try with devices: to command them past the API, to take over their identity, to stay when they may not.

use serde_json::{Value, json};

use super::{api, ask, by_token, connect, device, get, login, product, with_token};
use crate::support::{Connect, Node, Publish, Raw, Will, eventually, kind, unique};

const NOT_AUTHORIZED: u8 = 0x87;
const RPC: &str = "v1/devices/me/rpc/request/1";

/// Publishes with QoS 1; the reason code of the answer.
fn publish_for_code(client: &mut Raw, publish: Publish) -> u8 {
    client.send_publish(&publish.qos(1, 7));
    client.recv(kind::PUBACK).reason
}

#[test]
fn nobody_but_the_platform_sends_messages_to_devices() {
    let arguments = ["--set", "devices.downlink_topic_publishers=backend"];
    let node = Node::start(&arguments);
    let user = json!({"username": "backend", "password": "pencil-2"});
    let (status, answer) = api(&node, "POST", "users", &user);
    assert_eq!(status, 201, "{answer}");
    let mut other = Raw::client(&node, 5);
    // Before there are devices, it is a topic like others.
    let retained = Publish::new(RPC, "{\"method\":\"before\"}").retain();
    assert_ne!(publish_for_code(&mut other, retained), NOT_AUTHORIZED);
    product(&node, "meter", json!({}));
    with_token(&node, "d", "meter", json!({}));
    let mut victim = connect(&node, "d");
    for filter in [
        "v1/devices/me/rpc/request/+",
        "v1/devices/me/attributes",
        "tg/d/down/#",
        "/meter/d/#",
    ] {
        victim.subscribe(filter, 1);
    }
    for topic in [
        RPC,
        "v1/devices/me/attributes",
        "v1/devices/me/attributes/response/1",
        "v1/gateway/rpc",
        "tg/d/down/command/1",
        "/meter/d/function/invoke",
        "/meter/d/properties/write",
    ] {
        let code = publish_for_code(&mut other, Publish::new(topic, "{}").retain());
        assert_eq!(code, NOT_AUTHORIZED, "{topic}");
    }
    // A will, a rule, the API.
    let will = Connect::new(5, unique("c")).will(Will::new(RPC, "{}"));
    Raw::connect(&node, &will).cut();
    let rule = json!({"name": "relay", "sql": "SELECT 1 AS n FROM \"in\"",
        "actions": [{"kind": "republish", "topic": RPC, "payload": "{}"}]});
    let (status, answer) = api(&node, "POST", "rules", &rule);
    assert_eq!(status, 201, "{answer}");
    other.publish_qos1("in", "{}", 8);
    let by_api = json!({"topic": RPC, "payload": "{}"});
    let (status, problem) = api(&node, "POST", "publish", &by_api);
    assert_eq!(status, 403, "{problem}");
    // Another device, whose user name is its own choice.
    let named = json!({"id": "e", "product": "meter",
        "credentials": [{"type": "password", "username": "backend2", "password": "pw"}]});
    device(&node, named);
    let login_of_e = Connect::new(5, unique("c"))
        .username("backend2")
        .password("pw");
    let (mut sibling, _) = login(&node, &login_of_e);
    let code = publish_for_code(&mut sibling, Publish::new("tg/d/down/command/1", "{}"));
    assert_eq!(code, NOT_AUTHORIZED);
    assert!(victim.ping_for_packets().is_empty());
    // The setting names who may.
    let login_of_backend = Connect::new(5, unique("c"))
        .username("backend")
        .password("pencil-2");
    let (mut backend, _) = login(&node, &login_of_backend);
    assert_eq!(publish_for_code(&mut backend, Publish::new(RPC, "{}")), 0);
    victim.recv_message(RPC, "{}");
}

#[test]
fn the_key_of_a_product_takes_no_device_over() {
    let node = Node::start(&[]);
    let provisioning = |mode: &str| json!({"mode": mode, "key": format!("key-{mode}"), "secret": "0123456789abcdef"});
    product(
        &node,
        "old",
        json!({"provisioning": provisioning("check_existing")}),
    );
    product(
        &node,
        "new",
        json!({"provisioning": provisioning("allow_new")}),
    );
    with_token(&node, "used", "old", json!({}));
    with_token(&node, "fresh", "old", json!({}));
    let _used = connect(&node, "used");
    let provision = |mode: &str, mut fields: Value| {
        fields["provisionDeviceKey"] = format!("key-{mode}").into();
        fields["provisionDeviceSecret"] = "0123456789abcdef".into();
        let (_, answer) = api(&node, "POST", "provision", &fields);
        answer["status"].as_str().unwrap().to_owned()
    };
    let check = |id: &str| provision("check_existing", json!({"deviceName": id}));
    assert_eq!(check("used"), "FAILURE");
    assert_eq!(check("fresh"), "SUCCESS");
    // What it had before does not hold any more.
    let before = ("POST", "token-fresh/telemetry");
    assert_eq!(ask(&node, before, "", "{}").0, 401);
    for token in ["provision", "x", "token-used"] {
        let body = json!({"deviceName": "n", "token": token});
        assert_eq!(provision("allow_new", body), "FAILURE", "{token}");
    }
    let body = json!({"deviceName": "n", "token": "a-token-of-24-characters"});
    assert_eq!(provision("allow_new", body), "SUCCESS");
    let entries = get(&node, "audit-log?action=device.provision");
    let entries = entries["data"].as_array().unwrap();
    let subjects: Vec<_> = entries.iter().map(|entry| &entry["subject"]).collect();
    assert_eq!(subjects, ["n", "fresh"]);
    assert_eq!(entries[1]["after"]["result"], "replace_credentials");
    assert_eq!(entries[1]["actor"], "provisioning:old");
}

#[test]
fn connections_and_long_polls_end_with_the_token_or_the_product() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({}));
    let change = |path: &str, value: &Value| {
        let (status, answer) = api(&node, "PUT", path, value);
        assert_eq!(status, 200, "{answer}");
    };
    let poll = |token: &str, change: &dyn Fn()| {
        let paths =
            ["rpc", "attributes/updates"].map(|kind| format!("{token}/{kind}?timeout=60000"));
        std::thread::scope(|scope| {
            let polls = paths.each_ref();
            let polls = polls.map(|path| scope.spawn(|| ask(&node, ("GET", path), "", "")));
            // Whenever they come, they have no answer but this.
            change();
            polls.map(|poll| poll.join().unwrap().0)
        })
    };
    with_token(&node, "a", "meter", json!({}));
    with_token(&node, "b", "meter", json!({}));
    let (mut a, mut b) = (connect(&node, "a"), connect(&node, "b"));
    let rotated = json!({"product": "meter", "credentials": [{"type": "token", "token": "other"}]});
    let status = poll("token-a", &|| change("devices/a", &rotated));
    assert_eq!(status, [401; 2]);
    a.packets_until_closed();
    assert!(b.ping_for_packets().is_empty());
    let disabled = json!({"enabled": false});
    let status = poll("token-b", &|| change("products/meter", &disabled));
    assert_eq!(status, [401; 2]);
    b.packets_until_closed();
    assert_eq!(login(&node, &by_token("token-b")).1, super::WRONG);
    eventually("it is offline", || super::state(&node, "b") == "offline");
}

#[test]
fn the_secret_of_a_claim_reaches_no_subscriber() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({}));
    with_token(&node, "d", "meter", json!({}));
    with_token(&node, "g", "meter", json!({"gateway": true}));
    let mut other = Raw::client(&node, 5);
    for filter in ["#", "v1/devices/me/claim", "v1/+/claim", "$share/g/#"] {
        other.subscribe(filter, 1);
    }
    let mut victim = connect(&node, "d");
    let mut gateway = connect(&node, "g");
    let claim = json!({"secretKey": "hidden", "durationMs": 60_000}).to_string();
    victim.publish_qos1("v1/devices/me/claim", &claim, 1);
    let retained = Publish::new("v1/devices/me/claim", &claim).retain();
    publish_for_code(&mut victim, retained);
    let behind = json!({"a": {"secretKey": "hidden"}}).to_string();
    gateway.publish_qos1("v1/gateway/claim", &behind, 1);
    // Messages of one publisher keep their order: nothing of the claims came before these.
    let telemetry = "v1/devices/me/telemetry";
    victim.publish_qos1(telemetry, r#"{"t": 1}"#, 2);
    gateway.publish_qos1(telemetry, r#"{"t": 2}"#, 2);
    let mut topics = Vec::new();
    while topics.len() < 4 {
        let packet = other.recv_packet();
        other.acknowledge(&packet);
        topics.push(packet.topic);
    }
    assert_eq!(topics, [telemetry; 4]);
    // Nor whoever subscribes later.
    let mut late = Raw::client(&node, 5);
    late.subscribe("#", 1);
    victim.publish_qos1(telemetry, r#"{"t": 3}"#, 3);
    assert_eq!(late.recv_packet().topic, telemetry);
    // And it is offered all the same.
    let path = "devices/d/claim";
    let wanted = json!({"secret": "hidden", "group": "anna"});
    eventually("it is claimed", || {
        api(&node, "POST", path, &wanted).0 == 200
    });
}
