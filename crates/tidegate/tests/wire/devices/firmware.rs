//! Firmware over MQTT and HTTP: ThingsBoard's own client, chunks of all sizes, limits of clients, and states.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use serde_json::{Value, json};

use super::{api, ask, connect, get, login, product, state, with_token};
use crate::interop::client::Client;
use crate::interop::{find_program, installed, report_skipped};
use crate::support::{Connect, DEADLINE, Node, Props, Publish, Raw, eventually, kind};

const MAXIMUM_PACKET_SIZE: u8 = 0x27;

/// An image without a short period.
fn image(len: usize) -> String {
    let digits = (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 % 26 + b'a');
    digits.map(char::from).collect()
}

/// Uploads an image and creates a package of the product `pump`.
fn package(node: &Node, version: &str, more: Value, content: &str) {
    let path = format!("uploads/{version}.bin");
    let (status, _, file) = ask(node, ("PUT", &path), "", content);
    assert_eq!(status, 201, "{file}");
    let mut package = json!({
        "id": format!("pump-{version}"), "title": "pump", "firmware_version": version, "product": "pump", "file": file["id"],
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        package[name] = value.clone();
    }
    let (status, made) = api(node, "POST", "firmware", &package);
    assert_eq!(status, 201, "{made}");
}

fn assign(node: &Node, id: &str, assignment: Value) {
    let path = format!("firmware-assignments/{id}");
    let (status, answer) = api(node, "PUT", &path, &assignment);
    assert!(status < 300, "{answer}");
}

/// What a device is to install.
fn target(node: &Node, device: &str) -> Value {
    get(node, &format!("devices/{device}/firmware"))["data"][0].clone()
}

fn shared(node: &Node, device: &str, key: &str) -> Value {
    attribute(node, device, "shared", key)
}

fn attribute(node: &Node, device: &str, scope: &str, key: &str) -> Value {
    let listed = get(node, &format!("devices/{device}/attributes/{scope}"));
    let mut listed = listed["data"].as_array().unwrap().iter();
    let found = listed.find(|attribute| attribute["key"] == key);
    found.map_or(Value::Null, |attribute| attribute["value"].clone())
}

/// A node with the product `pump` and devices with tokens.
fn node(devices: &[&str]) -> Node {
    let node = Node::start(&[]);
    product(&node, "pump", json!({}));
    for id in devices {
        with_token(&node, id, "pump", json!({}));
    }
    node
}

/// The metrics that begin with `tidegate_firmware_`, without this prefix.
fn metrics(node: &Node) -> Vec<String> {
    let (_, _, text) = super::ask_at(node.address("http"), ("GET", "/metrics"), "", "");
    let lines = text.as_str().unwrap().lines();
    let found = lines.filter_map(|line| line.strip_prefix("tidegate_firmware_"));
    found.map(str::to_owned).collect()
}

fn assert_metrics(node: &Node, expected: &[&str]) {
    let metrics = metrics(node);
    for line in expected {
        assert!(
            metrics.iter().any(|metric| metric == line),
            "{line}: {metrics:#?}"
        );
    }
}

fn ready(raw: &mut Raw) {
    raw.subscribe("v2/fw/response/+/chunk/+", 0);
    raw.subscribe("v2/fw/error", 0);
}

fn request(raw: &mut Raw, index: u64, size: &str) -> (String, Vec<u8>) {
    raw.publish(&format!("v2/fw/request/7/chunk/{index}"), size);
    let answer = raw.recv(kind::PUBLISH);
    (answer.topic.clone(), answer.payload.to_vec())
}

#[test]
fn thingsboards_client_installs_an_image() {
    let packages = installed("TIDEGATE_TEST_THINGSBOARD", "thingsboard")
        .filter(|dir| dir.join("tb_device_mqtt.py").is_file() && find_program("python3").is_some());
    let Some(packages) = packages else {
        return report_skipped("ThingsBoard's client for Python is not installed");
    };
    let node = node(&["p1"]);
    let content = image(100_001);
    for (version, algorithm, chunk) in [
        ("v1", "sha256", "65536"),
        ("v2", "sha512", "5000"),
        ("v3", "md5", "0"),
        ("v4", "crc32", "100001"),
        ("v5", "murmur3_32", "50000"),
        ("v6", "murmur3_128", "50000"),
    ] {
        package(
            &node,
            version,
            json!({"digest_algorithm": algorithm}),
            &content,
        );
        assign(
            &node,
            "a",
            json!({"package": format!("pump-{version}"), "product": "pump"}),
        );
        eventually("it is notified", || {
            shared(&node, "p1", "fw_version") == version
        });
        let (host, port) = node.address("mqtt").rsplit_once(':').unwrap();
        let mut command = Command::new("python3");
        command
            .env("PYTHONPATH", &packages)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // It would install what it misses.
            .env("PIP_NO_INDEX", "1")
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/wire/devices/thingsboard_firmware.py"
            ))
            .args([host, port, "token-p1", chunk]);
        let mut client = Client::start(&mut command);
        let received = client.wait_for("received");
        assert_eq!(received, format!("received {version} {}", content.len()));
        eventually("it is updated", || {
            target(&node, "p1")["state"] == "updated"
        });
        assert_eq!(target(&node, "p1")["current_version"], version);
        client.feed("");
        assert_eq!(client.finish(), ["done"]);
    }
}

#[test]
fn chunks_of_any_size_are_served_and_nobody_is_disconnected() {
    let node = node(&["p1", "p2"]);
    let content = image(1_500_000);
    package(&node, "v1", json!({}), &content);
    let mut raw = connect(&node, "p1");
    ready(&mut raw);
    let bytes = content.as_bytes();
    let error = |answer: (String, Vec<u8>), expected: &str| {
        let text = String::from_utf8_lossy(&answer.1).into_owned();
        assert_eq!(answer.0, "v2/fw/error");
        assert!(text.contains(expected), "{text}");
    };
    error(request(&mut raw, 0, "1000"), "no firmware is assigned");
    assign(&node, "a", json!({"package": "pump-v1", "device": "p1"}));
    for (index, size, range) in [
        (0, "1", 0..1),
        (3, "65536", 196_608..262_144),
        // The size that was used before.
        (22, "", 1_441_792..1_500_000),
        (1, "1000000", 1_000_000..1_500_000),
        (0, "1048000", 0..1_048_000),
        (1, "1500000", 0..0),
        (u64::MAX, "65536", 0..0),
    ] {
        let (topic, chunk) = request(&mut raw, index, size);
        assert_eq!(topic, format!("v2/fw/response/7/chunk/{index}"));
        assert!(
            chunk == bytes[range.clone()],
            "{index} {size}: {} bytes",
            chunk.len()
        );
    }
    error(request(&mut raw, 0, "1500000"), "ask for chunks of at most");
    error(request(&mut raw, 0, "0"), "ask for chunks of at most");
    error(request(&mut raw, 0, "many"), "expected a number of bytes");
    raw.publish("v2/fw/request/7/chunk/x", "10");
    let answer = raw.recv(kind::PUBLISH);
    error(
        (answer.topic.clone(), answer.payload.to_vec()),
        "expected the topic",
    );
    raw.ping();
    // A client that accepts small packets only.
    let small = Props::new().u32(MAXIMUM_PACKET_SIZE, 1000);
    let small = Connect::new(5, "small")
        .username("token-p1")
        .properties(small);
    let (mut raw, reason) = login(&node, &small);
    assert_eq!(reason, 0);
    ready(&mut raw);
    error(request(&mut raw, 0, "2000"), "Maximum Packet Size");
    assert!(request(&mut raw, 1, "900").1 == bytes[900..1800]);
    // Another device of the product has nothing to install, and no client answers in the node's name.
    let mut other = connect(&node, "p2");
    ready(&mut other);
    error(request(&mut other, 0, "10"), "no firmware is assigned");
    other.send_publish(&Publish::new("v2/fw/error", "lie").qos(1, 9));
    assert_eq!(other.recv(kind::PUBACK).reason, 0x87);
    assert!(raw.ping_for_packets().is_empty());
    assert_metrics(
        &node,
        &[
            "chunks_total{transport=\"mqtt\"} 9",
            "chunk_bytes_total{transport=\"mqtt\"} 1674645",
            "chunk_requests_rejected_total 7",
            "chunk_requests_dropped_total 0",
        ],
    );
}

#[test]
fn reports_of_a_device_change_its_state() {
    let node = node(&["p1"]);
    package(&node, "v1", json!({}), &image(1000));
    let mut raw = connect(&node, "p1");
    ready(&mut raw);
    raw.subscribe("v1/devices/me/attributes", 1);
    assign(&node, "a", json!({"package": "pump-v1", "product": "pump"}));
    let notification = raw.recv(kind::PUBLISH);
    raw.acknowledge(&notification);
    let notification: Value = serde_json::from_slice(&notification.payload).unwrap();
    assert_eq!(
        (
            &notification["fw_title"],
            &notification["fw_version"],
            &notification["fw_size"]
        ),
        (&json!("pump"), &json!("v1"), &json!(1000))
    );
    eventually("it was notified", || {
        target(&node, "p1")["state"] == "initiated"
    });
    request(&mut raw, 0, "500");
    eventually("it downloads", || {
        let target = target(&node, "p1");
        (&target["state"], &target["progress"]) == (&json!("downloading"), &json!(50))
    });
    let mut report = |fields: Value, state: &str| {
        raw.publish("v1/devices/me/telemetry", fields.to_string());
        eventually(state, || target(&node, "p1")["state"] == state);
    };
    report(json!({"fw_state": "VERIFIED"}), "verified");
    report(
        json!({"fw_state": "FAILED", "fw_error": "no space"}),
        "failed",
    );
    assert_eq!(target(&node, "p1")["error"], "no space");
    report(json!({"fw_state": "UPDATING"}), "updating");
    report(
        json!({"current_fw_title": "pump", "current_fw_version": "v1"}),
        "updated",
    );
    let (status, _) = api(&node, "DELETE", "firmware-assignments/a", &Value::Null);
    assert_eq!(status, 204);
    eventually("it is withdrawn", || {
        shared(&node, "p1", "fw_title") == Value::Null
    });
}

#[test]
fn attributes_name_tag_link_and_target() {
    let node = node(&["p1"]);
    let link = "https://mirror.example.com/pump.bin";
    package(&node, "v1", json!({}), &image(1000));
    package(
        &node,
        "v2",
        json!({"tag": "pump spring", "url": link}),
        &image(2000),
    );
    let mut raw = connect(&node, "p1");
    ready(&mut raw);
    raw.subscribe("v1/devices/me/attributes", 1);
    let notify = |raw: &mut Raw, version: &str| {
        let assignment = json!({"package": format!("pump-{version}"), "product": "pump"});
        assign(&node, "a", assignment);
        let notification = raw.recv(kind::PUBLISH);
        raw.acknowledge(&notification);
        serde_json::from_slice::<Value>(&notification.payload).unwrap()
    };
    let target = |name: &str| attribute(&node, "p1", "server", &format!("target_fw_{name}"));
    let first = notify(&mut raw, "v1");
    assert_eq!(first["fw_tag"], "pump v1");
    // Nothing is said about a link that the device does not know.
    assert!(
        first.get("fw_url").is_none() && first.get("deleted").is_none(),
        "{first}"
    );
    assert_eq!(
        (target("title"), target("version")),
        (json!("pump"), json!("v1"))
    );
    let second = notify(&mut raw, "v2");
    assert_eq!(
        (&second["fw_tag"], &second["fw_url"], &second["fw_size"]),
        (&json!("pump spring"), &json!(link), &json!(2000))
    );
    assert_eq!(target("tag"), "pump spring");
    assert!(
        target("ts")
            .as_u64()
            .is_some_and(|ts| ts > 1_700_000_000_000)
    );
    // Chunks are served all the same.
    assert_eq!(request(&mut raw, 0, "2000").1, image(2000).as_bytes());
    notify(&mut raw, "v1");
    assert_eq!(shared(&node, "p1", "fw_url"), Value::Null);
    let (status, _) = api(&node, "DELETE", "firmware-assignments/a", &Value::Null);
    assert_eq!(status, 204);
    eventually("the target is withdrawn", || {
        shared(&node, "p1", "fw_tag") == Value::Null && target("version") == Value::Null
    });
}

#[test]
fn the_state_survives_a_crash_and_an_absent_device_is_started_later() {
    let mut node = node(&["p1"]);
    package(&node, "v1", json!({}), &image(1000));
    assign(&node, "a", json!({"package": "pump-v1", "device": "p1"}));
    eventually("it is notified", || {
        shared(&node, "p1", "fw_version") == "v1"
    });
    let mut raw = connect(&node, "p1");
    raw.publish(
        "v1/devices/me/telemetry",
        json!({"fw_state": "DOWNLOADED"}).to_string(),
    );
    eventually("it is recorded", || {
        target(&node, "p1")["state"] == "downloaded"
    });
    node.crash();
    assert_eq!(target(&node, "p1")["state"], "downloaded");
    let mut raw = connect(&node, "p1");
    ready(&mut raw);
    assert_eq!(request(&mut raw, 0, "1000").1, image(1000).as_bytes());
}

/// A node with the product `pump` and the device `p1`, which use JetLinks' protocol.
fn jetlinks_node() -> Node {
    let node = Node::start(&[]);
    product(&node, "pump", json!({"protocols": ["jetlinks"]}));
    with_token(&node, "p1", "pump", json!({}));
    node
}

/// The kind and content of the next message to the device of [`jetlinks_node`].
fn receive_any(raw: &mut Raw) -> (String, Value) {
    let packet = raw.recv(kind::PUBLISH);
    raw.acknowledge(&packet);
    let kind = packet.topic.strip_prefix("/pump/p1/firmware/").unwrap();
    let content = serde_json::from_slice(&packet.payload).unwrap();
    (kind.to_owned(), content)
}

/// The next message, which must have this kind.
fn receive_jetlinks(raw: &mut Raw, kind: &str) -> Value {
    let (received, content) = receive_any(raw);
    assert_eq!(received, kind);
    content
}

/// What a device is sent that connects before it has installed its package and reported its version, in any order.
fn receive_upgrade_and_read(raw: &mut Raw) -> (Value, Value) {
    let mut received = [receive_any(raw), receive_any(raw)];
    received.sort_by(|(kind, _), (other, _)| other.cmp(kind));
    let [(first, upgrade), (second, read)] = received;
    assert_eq!([first.as_str(), second.as_str()], ["upgrade", "read"]);
    (upgrade, read)
}

#[test]
fn a_device_made_for_jetlinks_upgrades_by_a_signed_link() {
    let node = jetlinks_node();
    let content = image(5000);
    let parameters = json!({"slot": "b", "restart": {"delay_s": 5}});
    package(&node, "v1", json!({"parameters": parameters}), &content);
    let mut raw = connect(&node, "p1");
    let receive = receive_jetlinks;
    let pull = json!({"messageId": "m1", "currentVersion": "v0", "requestVersion": ""});
    raw.publish("/pump/p1/firmware/pull", pull.to_string());
    let none = receive(&mut raw, "pull/reply");
    assert_eq!(
        (&none["messageId"], &none["success"]),
        (&json!("m1"), &json!(false))
    );
    assign(&node, "a", json!({"package": "pump-v1", "product": "pump"}));
    let upgrade = receive(&mut raw, "upgrade");
    assert_eq!(
        (
            &upgrade["version"],
            &upgrade["size"],
            &upgrade["signMethod"]
        ),
        (&json!("v1"), &json!(5000), &json!("SHA256"))
    );
    assert_eq!(upgrade["firmwareId"], "pump-v1");
    assert_eq!(upgrade["parameters"], parameters);
    let path = upgrade["url"]
        .as_str()
        .unwrap()
        .strip_prefix("/api/v1/")
        .unwrap();
    let (status, _, body) = ask(&node, ("GET", path), "range: bytes=1000-1999\r\n", "");
    assert_eq!((status, body), (206, json!(content[1000..2000])));
    raw.publish("/pump/p1/firmware/pull", pull.to_string());
    let described = receive(&mut raw, "pull/reply");
    assert_eq!(
        (&described["version"], &described["success"]),
        (&json!("v1"), &json!(true))
    );
    let mut report = |suffix: &str, fields: Value, state: &str| {
        raw.publish(&format!("/pump/p1/firmware/{suffix}"), fields.to_string());
        eventually(state, || target(&node, "p1")["state"] == state);
    };
    report(
        "upgrade/progress",
        json!({"progress": 40, "complete": false, "version": "v1", "success": true}),
        "downloading",
    );
    assert_eq!(target(&node, "p1")["progress"], 40);
    let failed =
        json!({"progress": 40, "complete": false, "success": false, "errorReason": "no space"});
    report("upgrade/progress", failed, "failed");
    assert_eq!(target(&node, "p1")["error"], "no space");
    let properties = json!({"bootloader": "u-boot 2026.07", "flash_kib": 512});
    let reported = json!({"version": "v1", "properties": properties});
    report("report", reported, "updated");
    assert_eq!(target(&node, "p1")["current_properties"], properties);
    let rejections = get(&node, "devices/p1/telemetry/rejections");
    assert_eq!(
        rejections["count"], 0,
        "evaluated messages are listed as ignored: {rejections}"
    );
}

#[test]
fn a_device_made_for_jetlinks_is_asked_for_its_version_until_it_has_answered() {
    let node = jetlinks_node();
    package(&node, "v1", json!({}), &image(1000));
    assign(&node, "a", json!({"package": "pump-v1", "product": "pump"}));
    let is = |state: &str, version: Value| {
        let target = target(&node, "p1");
        (&target["state"], &target["current_version"]) == (&json!(state), &version)
    };
    eventually("it is assigned", || is("initiated", Value::Null));
    let mut raw = connect(&node, "p1");
    let (_, read) = receive_upgrade_and_read(&mut raw);
    assert_eq!(read["deviceId"], "p1");
    assert!(read["timestamp"].is_u64(), "{read}");
    let id = read["messageId"].as_str().unwrap().to_owned();
    assert!(!id.is_empty());
    let properties = json!({"chip": "a7"});
    let reply = json!({
        "messageId": id, "deviceId": "p1", "success": true, "version": "v0", "properties": properties,
    });
    raw.publish("/pump/p1/firmware/read/reply", reply.to_string());
    eventually("the version is known", || is("initiated", json!("v0")));
    assert_eq!(target(&node, "p1")["current_properties"], properties);
    raw.cut();
    let mut raw = connect(&node, "p1");
    receive_jetlinks(&mut raw, "upgrade");
    // Had it been asked again, that would come before this answer.
    let pull = json!({"messageId": "m1", "currentVersion": "v0", "requestVersion": ""});
    raw.publish("/pump/p1/firmware/pull", pull.to_string());
    receive_jetlinks(&mut raw, "pull/reply");
    let reply = json!({"messageId": "m2", "deviceId": "p1", "success": true, "version": "v1"});
    raw.publish("/pump/p1/firmware/read/reply", reply.to_string());
    eventually("it is updated", || is("updated", json!("v1")));
    let rejections = get(&node, "devices/p1/telemetry/rejections");
    assert_eq!(rejections["count"], 0, "{rejections}");
}

/// Begins the campaign 1 of the package `pump-v1`, and waits until the device `p1` is notified.
fn begin_campaign(node: &Node) {
    let campaign = json!({"package": "pump-v1", "max_devices_per_minute": 0});
    let (status, made) = api(node, "POST", "firmware-campaigns", &campaign);
    assert_eq!(status, 201, "{made}");
    eventually("it is notified", || {
        target(node, "p1")["state"] == "initiated"
    });
}

/// Waits until the campaign 1 has completed; the device `p1` was notified once.
fn assert_updated_at_the_first_attempt(node: &Node) {
    eventually("the campaign completes", || {
        get(node, "firmware-campaigns/1")["status"] == "completed"
    });
    let row = get(node, "firmware-campaigns/1/devices")["data"][0].clone();
    assert_eq!(
        (&row["device"], &row["state"], &row["attempts"]),
        (&json!("p1"), &json!("succeeded"), &json!(1)),
        "{row}"
    );
    let target = target(node, "p1");
    assert_eq!(
        (&target["state"], &target["current_version"]),
        (&json!("updated"), &json!("v1"))
    );
}

#[test]
fn a_thingsboard_device_that_restarts_during_a_download_continues_with_the_next_chunk() {
    let node = node(&["p1"]);
    let content = image(3000);
    package(&node, "v1", json!({}), &content);
    let mut raw = connect(&node, "p1");
    ready(&mut raw);
    begin_campaign(&node);
    let mut received = request(&mut raw, 0, "1000").1;
    eventually("it downloads", || {
        target(&node, "p1")["state"] == "downloading"
    });
    raw.cut();
    let mut raw = connect(&node, "p1");
    let wanted = json!({"sharedKeys": "fw_title,fw_version,fw_size"});
    raw.publish("v1/devices/me/attributes/request/1", wanted.to_string());
    let answer = raw.recv(kind::PUBLISH);
    raw.acknowledge(&answer);
    assert_eq!(answer.topic, "v1/devices/me/attributes/response/1");
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    let expected = json!({"fw_title": "pump", "fw_version": "v1", "fw_size": 3000});
    assert_eq!(answer["shared"], expected);
    ready(&mut raw);
    for index in 1..3 {
        received.extend(request(&mut raw, index, "1000").1);
    }
    assert!(received == content.as_bytes());
    for fields in [
        json!({"fw_state": "UPDATING"}),
        json!({"current_fw_title": "pump", "current_fw_version": "v1"}),
    ] {
        raw.publish("v1/devices/me/telemetry", fields.to_string());
    }
    assert_updated_at_the_first_attempt(&node);
}

#[test]
fn a_jetlinks_device_that_restarts_during_a_download_is_sent_the_upgrade_again() {
    let node = jetlinks_node();
    let content = image(3000);
    package(&node, "v1", json!({}), &content);
    let start = || {
        let (raw, reason) = login(&node, &Connect::new(5, "p1").username("token-p1"));
        assert_eq!(reason, 0);
        raw
    };
    let mut raw = start();
    begin_campaign(&node);
    let first = receive_jetlinks(&mut raw, "upgrade");
    let progress = |percent: u8| {
        let is_complete = percent == 100;
        let fields =
            json!({"progress": percent, "complete": is_complete, "version": "v1", "success": true});
        fields.to_string()
    };
    let progress_topic = "/pump/p1/firmware/upgrade/progress";
    raw.publish(progress_topic, progress(40));
    eventually("it downloads", || {
        target(&node, "p1")["state"] == "downloading"
    });
    raw.cut();
    eventually("it is offline", || state(&node, "p1") == "offline");
    let mut raw = start();
    receive_upgrade_and_read(&mut raw);
    // The node does not notice the end of a device without power before the device is back.
    let _former = raw;
    let mut raw = start();
    let (again, _) = receive_upgrade_and_read(&mut raw);
    for field in ["version", "size", "sign", "firmwareId"] {
        assert_eq!(again[field], first[field], "{field}");
    }
    let path = again["url"].as_str().unwrap();
    let path = path.strip_prefix("/api/v1/").unwrap();
    let (status, _, rest) = ask(&node, ("GET", path), "range: bytes=1200-\r\n", "");
    assert_eq!((status, rest), (206, json!(content[1200..])));
    raw.publish(progress_topic, progress(100));
    assert_updated_at_the_first_attempt(&node);
}

/// Waits until the stream of a campaign contains a text.
fn read_until(stream: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let mut some = [0; 4096];
        let count = stream.read(&mut some).unwrap();
        let shown = String::from_utf8_lossy(&seen);
        assert_ne!(count, 0, "the stream ends before {text:?}: {shown}");
        seen.extend_from_slice(&some[..count]);
    }
}

#[test]
fn waves_of_groups_are_notified_one_after_the_other_and_the_progress_is_streamed() {
    let ids = ["p0", "p1", "p2", "p3", "p4"];
    let node = node(&ids);
    package(&node, "v1", json!({}), &image(1000));
    let group = |id: &str, members: &[&str]| {
        let (status, answer) = api(
            &node,
            "PUT",
            &format!("device-groups/{id}"),
            &json!({"devices": members}),
        );
        assert!(status < 300, "{answer}");
    };
    group("lab", &["p3"]);
    group("office", &["p1", "p4"]);
    let campaign = json!({
        "package": "pump-v1", "max_devices_per_minute": 0,
        "waves": [{"group": "lab"}, {"group": "office"}],
    });
    let (status, made) = api(&node, "POST", "firmware-campaigns", &campaign);
    assert_eq!(status, 201, "{made}");
    let mut stream = TcpStream::connect(node.address("http")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let request = "GET /api/v1/firmware-campaigns/1/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    read_until(&mut stream, "event: campaign");
    let started = || -> Vec<String> {
        let listed = get(&node, "firmware-campaigns/1/devices");
        let listed = listed["data"].as_array().unwrap().iter();
        let started = listed.filter(|row| row["state"] == "started");
        let mut ids: Vec<_> = started
            .map(|row| row["device"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids
    };
    // The devices of no group are the last wave.
    for wave in [&["p3"][..], &["p1", "p4"], &["p0", "p2"]] {
        eventually("the wave is notified", || started() == wave);
        for id in wave {
            let updated = json!({"current_fw_title": "pump", "current_fw_version": "v1"});
            assert_eq!(
                api(&node, "POST", &format!("token-{id}/telemetry"), &updated).0,
                200
            );
        }
    }
    read_until(&mut stream, "\"status\":\"completed\"");
    assert_eq!(
        api(&node, "DELETE", "firmware-campaigns/1", &Value::Null).0,
        204
    );
    // The stream ends with the campaign.
    read_until(&mut stream, "0\r\n\r\n");
}

#[test]
fn a_campaign_halts_survives_a_crash_and_is_resumed() {
    let ids: Vec<String> = (0..12).map(|n| format!("p{n:02}")).collect();
    let mut node = node(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    package(&node, "v1", json!({}), &image(1000));
    let campaign = json!({
        "package": "pump-v1", "waves": [{"percent": 50}], "max_devices_per_minute": 0,
        "min_success_percent": 80, "min_ended": 6, "max_attempts": 1,
    });
    let (status, made) = api(&node, "POST", "firmware-campaigns", &campaign);
    assert_eq!(
        (status, &made["counts"]["waiting"]),
        (201, &json!(12)),
        "{made}"
    );
    let devices = |node: &Node, state: &str| -> Vec<String> {
        let listed = get(node, "firmware-campaigns/1/devices");
        let listed = listed["data"].as_array().unwrap().iter();
        let selected = listed.filter(|row| row["state"] == state);
        selected
            .map(|row| row["device"].as_str().unwrap().to_owned())
            .collect()
    };
    eventually("the first wave is notified", || {
        devices(&node, "started").len() == 6
    });
    // Nothing beyond the wave is notified.
    let started = devices(&node, "started");
    for id in &ids {
        let is_started = started.contains(id);
        eventually("its target", || {
            (shared(&node, id, "fw_version") == "v1") == is_started
        });
    }
    let report = |node: &Node, id: &str, fields: &Value| {
        let path = format!("token-{id}/telemetry");
        assert_eq!(api(node, "POST", &path, fields).0, 200);
    };
    for (at, id) in started.iter().enumerate() {
        match at % 3 {
            0 => report(
                &node,
                id,
                &json!({"fw_state": "FAILED", "fw_error": "broken"}),
            ),
            _ => report(
                &node,
                id,
                &json!({"fw_state": "UPDATED", "current_fw_title": "pump", "current_fw_version": "v1"}),
            ),
        }
    }
    let status = |node: &Node| get(node, "firmware-campaigns/1")["status"].clone();
    eventually("it halts", || status(&node) == "halted");
    let before = get(&node, "firmware-campaigns/1");
    assert_eq!(
        (&before["counts"]["failed"], &before["counts"]["waiting"]),
        (&json!(2), &json!(6))
    );
    assert_metrics(
        &node,
        &[
            "campaigns{status=\"halted\"} 1",
            "campaign_devices{state=\"waiting\"} 6",
            "campaign_devices{state=\"succeeded\"} 4",
            "campaign_devices{state=\"failed\"} 2",
            "reported_states_total{state=\"updated\"} 4",
            "reported_states_total{state=\"failed\"} 2",
        ],
    );
    node.crash();
    assert_eq!(get(&node, "firmware-campaigns/1"), before);
    let (rejected, _) = api(&node, "DELETE", "firmware/pump-v1", &Value::Null);
    assert_eq!(rejected, 409);
    assert_eq!(
        api(&node, "POST", "firmware-campaigns/1/resume", &json!({})).0,
        200
    );
    eventually("the last wave is notified", || {
        devices(&node, "started").len() == 6
    });
    for id in devices(&node, "started") {
        report(
            &node,
            &id,
            &json!({"current_fw_title": "pump", "current_fw_version": "v1"}),
        );
    }
    eventually("it completes", || status(&node) == "completed");
    assert_eq!(target(&node, "p00")["assigned_to"], "campaign");
    assert_eq!(
        api(&node, "DELETE", "firmware-campaigns/1", &Value::Null).0,
        204
    );
    eventually("nothing is assigned", || {
        target(&node, "p00") == Value::Null
    });
    let audit = get(&node, "audit-log?action=firmware.campaign");
    assert_eq!(audit["data"].as_array().unwrap().len(), 3);
}

#[test]
fn deleted_devices_of_a_campaign_are_cancelled_at_once() {
    let mut node = node(&["p1", "p2", "p3"]);
    package(&node, "v1", json!({}), &image(1000));
    let campaign = json!({
        "package": "pump-v1", "waves": [{"percent": 30}], "max_devices_per_minute": 0,
        "min_success_percent": 0, "max_attempts": 1,
    });
    let (status, made) = api(&node, "POST", "firmware-campaigns", &campaign);
    assert_eq!(status, 201, "{made}");
    let shown = |node: &Node| get(node, "firmware-campaigns/1");
    eventually("the first wave is notified", || {
        shown(&node)["counts"]["started"] == 1
    });
    for id in ["p1", "p2", "p3"] {
        let path = format!("devices/{id}");
        assert_eq!(api(&node, "DELETE", &path, &Value::Null).0, 204);
    }
    // The time-out is an hour.
    eventually("it completes", || shown(&node)["status"] == "completed");
    let devices = |node: &Node| get(node, "firmware-campaigns/1/devices")["data"].clone();
    let before = devices(&node);
    let mut ids: Vec<&str> = Vec::new();
    for row in before.as_array().unwrap() {
        ids.push(row["device"].as_str().unwrap());
        assert_eq!(row["state"], "cancelled", "{row}");
        assert_eq!(row["error"], "the device was deleted", "{row}");
    }
    ids.sort_unstable();
    assert_eq!(ids, ["p1", "p2", "p3"]);
    node.crash();
    assert_eq!(devices(&node), before);
}

#[test]
fn a_device_sends_a_file_by_its_token_and_reads_only_its_own() {
    let node = node(&["p1", "p2"]);
    let content = image(300_000);
    let (status, _, sent) = ask(&node, ("PUT", "token-p1/uploads/log.txt"), "", &content);
    assert_eq!(
        (status, &sent["owner"]["id"]),
        (201, &json!("p1")),
        "{sent}"
    );
    let read = |token: &str| {
        let path = format!("{token}/files/{}/content", sent["id"].as_str().unwrap());
        ask(&node, ("GET", &path), "", "")
    };
    assert_eq!(read("token-p1").2, json!(content));
    assert_eq!((read("token-p2").0, read("nobody").0), (404, 401));
    let (status, _, _) = ask(&node, ("PUT", "nobody/uploads/log.txt"), "", &content);
    assert_eq!(status, 401);
}

#[test]
fn an_image_is_downloaded_over_http() {
    let node = node(&["p1"]);
    let content = image(10_000);
    let fetch = |path: &str, fields: &str| {
        let path = format!("token-p1/firmware{path}");
        let (status, head, body) = ask(&node, ("GET", &path), fields, "");
        (status, head.to_ascii_lowercase(), body)
    };
    assert_eq!(fetch("?title=pump&version=v1", "").0, 404);
    package(&node, "v1", json!({}), &content);
    assign(&node, "a", json!({"package": "pump-v1", "product": "pump"}));
    let (status, head, body) = fetch("?title=pump&version=v1", "");
    assert_eq!((status, body), (200, json!(content)));
    assert!(
        head.contains("x-filename: pump") && head.contains("content-disposition: "),
        "{head}"
    );
    let (status, head, body) = fetch("?title=pump&version=v1", "range: bytes=9000-\r\n");
    assert_eq!((status, body), (206, json!(content[9000..])));
    assert!(
        head.contains("content-range: bytes 9000-9999/10000"),
        "{head}"
    );
    let (status, _, body) = fetch("?title=pump&version=v1&size=3000&chunk=3", "");
    assert_eq!((status, body), (200, json!(content[9000..])));
    assert_eq!(fetch("?title=pump&version=v2", "").0, 400);
    let (status, _, _) = ask(
        &node,
        ("GET", "token-p1/software?title=pump&version=v1"),
        "",
        "",
    );
    assert_eq!(status, 404);
    let (status, _, _) = ask(
        &node,
        ("GET", "nobody/firmware?title=pump&version=v1"),
        "",
        "",
    );
    assert_eq!(status, 401);
}
