//! Alarms of devices that move between the nodes of a cluster, and of a node that is killed.

use std::time::Duration;

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::device_requests::{post, read};
use super::devices::{connected, device, name, product};
use super::live_streams::event_with;
use super::support::{Cluster, get, reachable, status};
use crate::devices::telemetry::EventStream;
use crate::support::{Node, Raw, eventually};

/// A rule that raises and clears.
fn hot() -> Value {
    json!({
        "id": "hot",
        "raise": [
            {"severity": "MAJOR", "when": {"key": "t", "is": ">", "value": 60}},
            {"severity": "CRITICAL", "when": {"key": "t", "is": ">", "value": 90}},
        ],
        "clear": {"when": {"key": "t", "is": "<", "value": 50}},
    })
}

fn report(raw: &mut Raw, t: u32) {
    let row = json!({"ts": now_ms(), "values": {"t": t}});
    raw.publish_qos1("v1/devices/me/telemetry", row.to_string(), 1);
}

/// The alarms of a device, as a node lists them.
fn alarms_of(node: &Node, device: &str) -> Vec<Value> {
    let listed = read(node, &format!("alarms?device={device}"));
    assert_eq!(listed["missing_nodes"], json!([]), "{listed}");
    listed["data"].as_array().unwrap().clone()
}

/// Waits until the node lists one alarm of the device, in this state.
fn wait_for_alarm(node: &Node, device: &str, state: &str) -> Value {
    eventually(&format!("the node lists the alarm as {state}"), || {
        alarms_of(node, device)
            .iter()
            .any(|alarm| alarm["state"] == state)
    });
    let mut alarms = alarms_of(node, device);
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    alarms.pop().unwrap()
}

#[test]
fn an_alarm_survives_its_node_and_is_cleared_where_the_device_is() {
    let Some(mut cluster) = Cluster::start_or_skip(3) else {
        return;
    };
    let product = product(&cluster.nodes, &json!({"alarms": [hot()]}));
    let [pump, valve] = [name("pump"), name("valve")];
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    for id in [&pump, &valve] {
        assert_eq!(device(b, id, &product).status, 201);
        report(&mut connected(a, id), 70);
    }
    let raised = wait_for_alarm(a, &pump, "ACTIVE_UNACK");
    assert_eq!(raised["node"], "node-1");
    for node in [b, c] {
        for id in [&pump, &valve] {
            wait_for_alarm(node, id, "ACTIVE_UNACK");
        }
        assert_eq!(read(node, "alarm-counts")["active"], json!(2));
    }
    let mut events = EventStream::open(c, &format!("alarm-events?device={pump}"));

    cluster.nodes[0].signal(libc::SIGKILL);
    assert!(cluster.nodes[0].wait(Duration::from_secs(10)).is_some());
    let [_, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    eventually("the end of the node is noticed", || {
        reachable(&status(b)) == ["node-2", "node-3"]
    });
    // Without waiting for the missing node, which has its own alarms.
    assert_eq!(wait_for_alarm(b, &pump, "ACTIVE_UNACK")["id"], raised["id"]);
    let listed = read(b, "alarms");
    assert_eq!(listed["missing_nodes"], json!(["node-1"]));
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    let number = &raised["id"];
    let acknowledged = post(c, &format!("alarms/{number}/acknowledge?node=node-1"));
    assert_eq!(
        acknowledged.body["state"], "ACTIVE_ACK",
        "{}",
        acknowledged.body
    );
    // The device continues at another node: one alarm, which changes and ends there.
    let mut raw = connected(b, &pump);
    report(&mut raw, 95);
    eventually("the severity is higher", || {
        alarms_of(c, &pump)[0]["severity"] == "CRITICAL"
    });
    report(&mut raw, 20);
    let cleared = wait_for_alarm(c, &pump, "CLEARED_ACK");
    assert_eq!(cleared["id"], raised["id"]);
    for change in ["acknowledged", "severity_changed", "cleared"] {
        let event = event_with(&mut events, "event", &json!(change));
        assert_eq!(event["alarm"]["id"], raised["id"], "{event}");
    }
    let valve_alarm = wait_for_alarm(b, &valve, "ACTIVE_UNACK");
    let cleared = post(b, &format!("alarms/{}/clear", valve_alarm["id"]));
    assert_eq!(cleared.body["state"], "CLEARED_UNACK", "{}", cleared.body);

    cluster.nodes[0].start_again();
    cluster.wait_until_connected();
    let a = &cluster.nodes[0];
    let agreed = wait_for_alarm(a, &pump, "CLEARED_ACK");
    assert_eq!(
        (
            &agreed["id"],
            &agreed["severity"],
            &agreed["acknowledged_at_ms"]
        ),
        (
            &raised["id"],
            &json!("CRITICAL"),
            &acknowledged.body["acknowledged_at_ms"]
        )
    );
    wait_for_alarm(a, &valve, "CLEARED_UNACK");
    // The rules of the returned node have learnt it too.
    report(&mut connected(a, &pump), 70);
    for node in &cluster.nodes {
        eventually("all nodes list the next alarm", || {
            alarms_of(node, &pump).len() == 2
        });
        eventually("nothing is counted twice", || {
            let counts = read(node, "alarm-counts");
            counts["alarms"] == json!(3) && counts["active"] == json!(1)
        });
    }
}

#[test]
fn an_alarm_is_acknowledged_at_one_node_while_another_one_updates_it() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({"alarms": [hot()]}));
    let id = name("busy");
    assert_eq!(device(a, &id, &product).status, 201);
    let mut raw = connected(a, &id);
    report(&mut raw, 70);
    let raised = wait_for_alarm(b, &id, "ACTIVE_UNACK");
    let (number, mut events) = (
        raised["id"].clone(),
        EventStream::open(c, &format!("alarm-events?device={id}")),
    );
    // The severity changes with each message.
    for round in 0..100 {
        report(&mut raw, if round % 2 == 0 { 95 } else { 70 });
        if round == 30 {
            let acknowledged = post(b, &format!("alarms/{number}/acknowledge"));
            assert_eq!(acknowledged.status, 200, "{}", acknowledged.body);
        }
        if round == 60 {
            let comment = json!({"text": "on my way"});
            let path = format!("/api/v1/alarms/{number}/comments");
            let commented = crate::api::send(c, "", "POST", &path, &comment);
            assert_eq!(commented.status, 200, "{}", commented.body);
        }
    }
    report(&mut raw, 95);
    report(&mut raw, 20);
    for node in [a, b, c] {
        let alarm = wait_for_alarm(node, &id, "CLEARED_ACK");
        assert_eq!(
            (
                &alarm["id"],
                &alarm["severity"],
                &alarm["comments"][0]["text"]
            ),
            (&number, &json!("CRITICAL"), &json!("on my way"))
        );
    }
    // Each change is told once.
    let mut acknowledged = 0;
    loop {
        let event = events.next();
        acknowledged += usize::from(event["event"] == "acknowledged");
        if event["event"] == "cleared" {
            break;
        }
    }
    assert_eq!(acknowledged, 1);
    // The device is removed at another node, with its alarms.
    drop(raw);
    let path = format!("/api/v1/devices/{id}");
    let deleted = crate::api::send(c, "", "DELETE", &path, &Value::Null);
    assert_eq!(deleted.status, 204, "{}", deleted.body);
    for node in [a, b, c] {
        eventually("the alarm is gone", || {
            get(node, &format!("/api/v1/alarms/{number}")).status == 404
        });
    }
}

#[test]
fn a_device_that_moves_is_neither_silent_nor_offline() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let offline = json!({
        "id": "offline",
        "raise": [{"severity": "MAJOR", "when": {"key": "$online", "is": "=", "value": false}}],
        "clear": {"when": {"key": "$online", "is": "=", "value": true}},
    });
    let silent = json!({
        "id": "silent",
        "raise": [{"severity": "MAJOR", "when": {"key": "t", "is": "silent_for", "value": 3}}],
    });
    let product = product(&cluster.nodes, &json!({"alarms": [offline, silent]}));
    let id = name("moving");
    assert_eq!(device(a, &id, &product).status, 201);
    let mut raw = connected(a, &id);
    report(&mut raw, 1);
    let mut moved = connected(b, &id);
    // Longer than what makes it silent, and than what a node needs to find out where it is.
    for t in 0..14 {
        report(&mut moved, t);
        std::thread::sleep(Duration::from_millis(500));
    }
    for node in [a, b, c] {
        assert_eq!(alarms_of(node, &id), Vec::<Value>::new());
    }
    // It leaves for good.
    drop((raw, moved));
    eventually("the alarms of the device", || {
        let mut kinds: Vec<_> = alarms_of(c, &id)
            .iter()
            .map(|alarm| (alarm["type"].clone(), alarm["node"].clone()))
            .collect();
        kinds.sort_by_key(|(kind, _)| kind.to_string());
        kinds
            == [
                (json!("offline"), json!("node-2")),
                (json!("silent"), json!("node-2")),
            ]
    });
    // Its return to the first node clears what the second one has raised.
    let raw = connected(a, &id);
    eventually("the device is online", || {
        let alarms = alarms_of(c, &id);
        let mut offline = alarms.iter().filter(|alarm| alarm["type"] == "offline");
        offline.all(|alarm| alarm["state"] == "CLEARED_UNACK")
    });
    drop(raw);
}
