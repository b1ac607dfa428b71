//! `GET /api/v1/devices/{id}/events`: what devices have reported, the newest first, by event, time and number.

use serde_json::{Value, json};

use super::{api, connect, get, product, with_token};
use crate::support::{Node, eventually};

const START_MS: u64 = 1_750_000_000_000;

fn events(node: &Node, query: &str) -> Vec<Value> {
    let answer = get(node, &format!("devices/l1/events{query}"));
    assert_eq!(answer["device"], "l1");
    answer["events"].as_array().unwrap().clone()
}

/// The value `n` of each event.
fn numbers(node: &Node, query: &str) -> Vec<u64> {
    let events = events(node, query);
    let numbers = events.iter().map(|event| event["data"]["n"].as_u64());
    numbers.collect::<Option<_>>().unwrap()
}

#[test]
fn events_of_a_device_are_listed_by_event_time_and_page_and_survive() {
    let mut node = Node::start(&["--set", "devices.max_events_per_device=10"]);
    let event =
        |id: &str| json!({"id": id, "name": id, "valueType": {"type": "object", "properties": []}});
    product(
        &node,
        "lamp",
        json!({"mode": "sync", "model": {"events": [event("fire"), event("door")]}}),
    );
    for id in ["l1", "l2"] {
        with_token(&node, id, "lamp", json!({}));
    }
    let report = |node: &Node, id: &str, numbers: std::ops::Range<u64>| {
        let mut raw = connect(node, id);
        for n in numbers {
            let event = if n % 3 == 0 { "door" } else { "fire" };
            let payload = json!({"timestamp": START_MS + n * 1000, "data": {"n": n}});
            let topic = format!("/lamp/{id}/event/{event}");
            raw.publish_qos1(&topic, payload.to_string(), 1);
        }
    };
    report(&node, "l1", 0..6);
    report(&node, "l2", 100..102);
    eventually("all are stored", || events(&node, "").len() == 6);
    assert_eq!(numbers(&node, ""), [5, 4, 3, 2, 1, 0]);
    let newest = &events(&node, "")[0];
    assert_eq!(
        (&newest["event"], &newest["ts_ms"]),
        (&json!("fire"), &json!(START_MS + 5000))
    );
    assert_eq!(numbers(&node, "?event=door"), [3, 0]);
    assert_eq!(numbers(&node, "?event=none"), [0_u64; 0]);
    let (from, to) = (START_MS + 2000, START_MS + 4000);
    let between = numbers(&node, &format!("?from_ms={from}&to_ms={to}"));
    assert!(between.contains(&3) && between.contains(&2), "{between:?}");
    assert!(
        !between.contains(&1) && !between.contains(&5),
        "{between:?}"
    );
    // Page by page, each once.
    let mut paged = Vec::new();
    let mut query = "?count=4".to_owned();
    loop {
        let page = events(&node, &query);
        let Some(last) = page.last() else { break };
        query = format!("?count=4&before={}", last["number"]);
        paged.extend(
            page.iter()
                .map(|event| event["data"]["n"].as_u64().unwrap()),
        );
    }
    assert_eq!(paged, [5, 4, 3, 2, 1, 0]);
    for (path, expected) in [
        ("devices/none/events", 404),
        ("devices/l1/events?count=0", 400),
        ("devices/l1/events?count=1001", 400),
        ("devices/l1/events?before=x", 400),
    ] {
        let (status, answer) = api(&node, "GET", path, &Value::Null);
        assert_eq!(status, expected, "{path}: {answer}");
    }
    let shown = events(&node, "");
    node.restart();
    assert_eq!(events(&node, ""), shown);
    // The oldest go.
    report(&node, "l1", 6..20);
    eventually("the last is stored", || numbers(&node, "?count=1") == [19]);
    eventually("the oldest have gone", || {
        numbers(&node, "?count=1000") == (10..20).rev().collect::<Vec<_>>()
    });
}
