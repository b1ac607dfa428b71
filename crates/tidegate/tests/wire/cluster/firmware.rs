//! Firmware packages and campaigns of a cluster: created at one node, installed by devices at another one, and controlled from a
//! third one.

use std::time::Duration;

use serde_json::{Value, json};

use super::devices::{connected, device, login, name, product, put};
use super::support::{Cluster, get};
use crate::api::{ApiResponse, send};
use crate::devices::{api_at, ask_at};
use crate::support::{Node, Raw, eventually, kind};

/// More than one piece of a copy between nodes.
const IMAGE_BYTES: usize = 1_300_000;

fn image() -> String {
    let digits =
        (0..IMAGE_BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 % 26 + b'a');
    digits.map(char::from).collect()
}

fn read(node: &Node, path: &str) -> Value {
    let answer = get(node, &format!("/api/v1/{path}"));
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

fn change(node: &Node, method: &str, path: &str) -> ApiResponse {
    send(node, "", method, &format!("/api/v1/{path}"), &Value::Null)
}

/// Uploads a file to a node and returns its id.
fn upload(node: &Node, content: &str) -> Value {
    let path = format!("/api/v1/uploads/{}.bin", name("image"));
    let (status, _, file) = ask_at(node.address("http"), ("PUT", &path), "", content);
    assert_eq!(status, 201, "{file}");
    file["id"].clone()
}

/// Creates a package at a node, and waits until all have it with its image.
fn package(nodes: &[Node], at: &Node, product: &str, file: &Value) -> String {
    let id = name("package");
    let package = json!({
        "title": "pump", "firmware_version": "v2", "product": product, "file": file,
    });
    let created = put(at, &format!("firmware/{id}"), &package);
    assert_eq!(created.status, 201, "{}", created.body);
    for node in nodes {
        eventually("all nodes have the image", || {
            let images = get(node, &format!("/api/v1/firmware/{id}/image"));
            let images = images.body["data"].as_array().cloned().unwrap_or_default();
            let is_present = |image: &Value| image["state"] == "present";
            images.len() == nodes.len() && images.iter().all(is_present)
        });
    }
    id
}

fn begin_campaign(node: &Node, package: &str) -> Value {
    let campaign = json!({"package": package, "max_devices_per_minute": 0});
    let (status, made) = api_at(
        node.address("http"),
        "POST",
        "firmware-campaigns",
        &campaign,
    );
    assert_eq!(status, 201, "{made}");
    made
}

fn firmware_of(node: &Node, device: &str) -> Value {
    read(node, &format!("devices/{device}/firmware"))["data"][0].clone()
}

/// Waits until every node shows the campaign, which is at `home`, as completed.
fn assert_completed(nodes: &[Node], campaign: &Value, device: &str, home: &str) {
    let path = format!("firmware-campaigns/{}", campaign["id"]);
    for node in nodes {
        eventually("the campaign completes", || {
            read(node, &path)["status"] == "completed"
        });
        let found = read(node, &path);
        assert_eq!(
            (&found["node"], &found["counts"]["succeeded"]),
            (&json!(home), &json!(1))
        );
        let row = read(node, &format!("{path}/devices"))["data"][0].clone();
        assert_eq!(
            (&row["device"], &row["state"], &row["attempts"]),
            (&json!(device), &json!("succeeded"), &json!(1)),
            "{row}"
        );
        let listed = read(node, "firmware-campaigns");
        let listed: Vec<&Value> = listed["data"].as_array().unwrap().iter().collect();
        let mut same = listed.iter().filter(|row| row["id"] == campaign["id"]);
        assert_eq!(same.next().map(|row| &row["node"]), Some(&json!(home)));
        assert!(same.next().is_none(), "{listed:?}");
        eventually("the state of the device is known", || {
            firmware_of(node, device)["state"] == "updated"
        });
    }
}

fn receive(raw: &mut Raw) -> (String, Vec<u8>) {
    let packet = raw.recv(kind::PUBLISH);
    raw.acknowledge(&packet);
    (packet.topic.clone(), packet.payload.to_vec())
}

fn receive_json(raw: &mut Raw, topic: &str) -> Value {
    let (received, payload) = receive(raw);
    assert_eq!(received, topic);
    serde_json::from_slice(&payload).unwrap()
}

#[test]
fn a_thingsboard_device_at_another_node_installs_the_package_of_a_campaign() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let nodes = &cluster.nodes;
    let [a, b, c] = &nodes[..] else {
        panic!("expected three nodes");
    };
    let (product, id, content) = (product(nodes, &json!({})), name("tb"), image());
    assert_eq!(device(a, &id, &product).status, 201);
    let package = package(nodes, a, &product, &upload(a, &content));
    let mut raw = connected(b, &id);
    raw.subscribe("v2/fw/response/+/chunk/+", 0);
    raw.subscribe("v1/devices/me/attributes", 1);
    let campaign = begin_campaign(a, &package);
    assert_eq!(campaign["node"], "node-1");
    let told = receive_json(&mut raw, "v1/devices/me/attributes");
    assert_eq!(
        (&told["fw_title"], &told["fw_version"], &told["fw_size"]),
        (&json!("pump"), &json!("v2"), &json!(IMAGE_BYTES))
    );
    // All nodes show what the device is to install.
    for node in nodes {
        eventually("the attributes are at all nodes", || {
            let shared = read(node, &format!("devices/{id}/attributes/shared"));
            let mut shared = shared["data"].as_array().unwrap().iter();
            shared.any(|it| it["key"] == "fw_version" && it["value"] == "v2")
        });
        let target = firmware_of(node, &id);
        assert_eq!(
            (&target["assigned_to"], &target["target"]),
            (&json!("campaign"), &json!(campaign["id"].to_string()))
        );
    }
    // Another node controls the campaign.
    let path = format!("firmware-campaigns/{}", campaign["id"]);
    for (action, status) in [("pause", "paused"), ("resume", "running")] {
        let changed = change(c, "POST", &format!("{path}/{action}"));
        assert_eq!(
            (changed.status, &changed.body["status"]),
            (200, &json!(status))
        );
    }
    let removal = change(c, "DELETE", &format!("firmware/{package}"));
    assert_eq!(removal.status, 409, "{}", removal.body);
    let mut received = Vec::new();
    for index in 0..IMAGE_BYTES.div_ceil(500_000) {
        raw.publish(&format!("v2/fw/request/1/chunk/{index}"), "500000");
        let (topic, chunk) = receive(&mut raw);
        assert_eq!(topic, format!("v2/fw/response/1/chunk/{index}"));
        received.extend(chunk);
    }
    assert!(received == content.as_bytes());
    let (status, _, downloaded) = ask_at(
        c.address("http"),
        (
            "GET",
            &format!("/api/v1/token-{id}/firmware?title=pump&version=v2"),
        ),
        "",
        "",
    );
    assert_eq!((status, downloaded == content.as_str()), (200, true));
    for fields in [
        json!({"fw_state": "UPDATING"}),
        json!({"current_fw_title": "pump", "current_fw_version": "v2"}),
    ] {
        raw.publish("v1/devices/me/telemetry", fields.to_string());
    }
    assert_completed(nodes, &campaign, &id, "node-1");
    // A device that moves is not notified again.
    drop(raw);
    let mut raw = connected(c, &id);
    raw.subscribe("v1/devices/me/attributes", 1);
    raw.ping();
    eventually("the device is at the other node", || {
        read(a, &format!("devices/{id}"))["node"] == "node-3"
    });
    assert!(raw.ping_for_packets().is_empty());
    assert_eq!(firmware_of(a, &id)["state"], "updated");
    assert_eq!(change(b, "DELETE", &path).status, 204);
    eventually("the campaign is gone everywhere", || {
        nodes
            .iter()
            .all(|node| get(node, &format!("/api/v1/{path}")).status == 404)
    });
    // The package is deleted at another node than that of its file.
    let mut removal = 0;
    eventually("nothing uses the package any more", || {
        removal = change(b, "DELETE", &format!("firmware/{package}")).status;
        removal == 204
    });
    eventually("the package is gone everywhere", || {
        nodes
            .iter()
            .all(|node| get(node, &format!("/api/v1/firmware/{package}")).status == 404)
    });
}

#[test]
fn a_jetlinks_device_downloads_from_any_node_by_the_link_of_its_node() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let nodes = &cluster.nodes;
    let [a, b, c] = &nodes[..] else {
        panic!("expected three nodes");
    };
    let content = image();
    let product = product(nodes, &json!({"protocols": ["jetlinks"]}));
    let id = name("jl");
    assert_eq!(device(a, &id, &product).status, 201);
    // The file is at another node than that which creates the package.
    let package = package(nodes, c, &product, &upload(a, &content));
    let (mut raw, reason) = login(b, &id);
    assert_eq!(reason, 0);
    let campaign = begin_campaign(c, &package);
    let prefix = format!("/{product}/{id}/firmware");
    let upgrade = receive_json(&mut raw, &format!("{prefix}/upgrade"));
    assert_eq!(
        (&upgrade["version"], &upgrade["size"]),
        (&json!("v2"), &json!(IMAGE_BYTES))
    );
    let link = upgrade["url"].as_str().unwrap();
    for node in nodes {
        let (status, _, body) = ask_at(
            node.address("http"),
            ("GET", link),
            "range: bytes=1000-1999\r\n",
            "",
        );
        assert_eq!((status, body), (206, json!(content[1000..2000])));
    }
    let progress = json!({"progress": 100, "complete": true, "version": "v2", "success": true});
    raw.publish(&format!("{prefix}/upgrade/progress"), progress.to_string());
    assert_completed(nodes, &campaign, &id, "node-3");
}

/// A file that was uploaded to a node is on the disks of the others as long as a package needs it.
#[test]
fn images_arrive_after_a_node_was_away() {
    let Some(mut cluster) = Cluster::start_or_skip(2) else {
        return;
    };
    let content = image();
    let product = product(&cluster.nodes, &json!({}));
    let id = name("late");
    assert_eq!(device(&cluster.nodes[0], &id, &product).status, 201);
    cluster.nodes[1].terminate(Duration::from_secs(30));
    let file = upload(&cluster.nodes[0], &content);
    let package = name("package");
    let fields = json!({
        "title": "pump", "firmware_version": "v2", "product": product, "file": file,
    });
    let created = put(&cluster.nodes[0], &format!("firmware/{package}"), &fields);
    assert_eq!(created.status, 201, "{}", created.body);
    let campaign = begin_campaign(&cluster.nodes[0], &package);
    cluster.nodes[1].start_again();
    cluster.wait_until_connected();
    let [a, b] = &cluster.nodes[..] else {
        panic!("expected two nodes");
    };
    let mut raw = connected(b, &id);
    raw.subscribe("v2/fw/response/+/chunk/+", 0);
    eventually("the image has arrived", || {
        let images = read(b, &format!("firmware/{package}/image"));
        images["data"][0]["state"] == "present"
    });
    eventually("the device is notified", || {
        firmware_of(a, &id)["state"] == "initiated"
    });
    raw.publish("v2/fw/request/1/chunk/2", "500000");
    assert_eq!(receive(&mut raw).1, &content.as_bytes()[1_000_000..]);
    let path = format!("firmware-campaigns/{}", campaign["id"]);
    let cancelled = change(b, "POST", &format!("{path}/cancel"));
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    eventually("it is withdrawn", || {
        firmware_of(b, &id) == Value::Null && firmware_of(a, &id) == Value::Null
    });
    assert_eq!(change(b, "DELETE", &path).status, 204);
    // While the node of a campaign is away, others say so.
    let campaign = begin_campaign(a, &package);
    eventually("the campaign is known", || {
        get(b, &format!("/api/v1/firmware-campaigns/{}", campaign["id"])).status == 200
    });
    cluster.nodes[0].terminate(Duration::from_secs(30));
    let b = &cluster.nodes[1];
    let unavailable = get(b, &format!("/api/v1/firmware-campaigns/{}", campaign["id"]));
    assert_eq!(unavailable.status, 503, "{}", unavailable.body);
    let detail = unavailable.body["detail"].to_string();
    assert!(
        detail.contains("node-1") && detail.contains("continues"),
        "{detail}"
    );
}
