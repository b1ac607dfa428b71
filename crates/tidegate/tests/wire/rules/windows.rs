//! Windows over the messages of all shards.

use std::time::Duration;

use serde_json::{Value, json};

use super::{api, count, next, republish};
use crate::support::{Connect, Node, Raw, eventually, temporary_directory};

#[test]
fn a_window_counts_what_all_shards_see() {
    let node = Node::start(&["--shards", "2", "--set", "rules.window_lateness_ms=50"]);
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("out", 0);
    republish(
        &node,
        "r",
        "SELECT topic, count(*) AS n, sum(payload.v) AS v, window_end() - window_start() AS ms FROM \"t/#\" \
         GROUP BY topic, tumbling(1s) HAVING count(*) > 0",
        "out",
    );
    let mut devices: Vec<Raw> = (0..4)
        .map(|n| Raw::connect(&node, &Connect::new(4, format!("device-{n}"))))
        .collect();
    for (n, device) in devices.iter_mut().enumerate() {
        for packet_id in 1..=5 {
            device.publish_qos1("t/1", format!("{{\"v\": {n}}}"), packet_id);
        }
    }
    // They may lie in two windows.
    let (mut events, mut sum) = (0, 0);
    while events < 20 {
        let (_, row) = next(&mut watcher);
        assert_eq!(
            (&row["topic"], &row["ms"]),
            (&json!("t/1"), &json!(1000)),
            "{row}"
        );
        events += row["n"].as_u64().unwrap();
        sum += row["v"].as_u64().unwrap();
    }
    assert_eq!((events, sum), (20, 30));
}

#[test]
fn a_window_of_events_closes_at_once_and_its_output_is_met_by_others() {
    let node = Node::start(&[]);
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("out", 0);
    let sql = "SELECT avg(payload.v) AS v, collect(payload.v) AS all FROM \"t\" GROUP BY clientid, count(3)";
    republish(&node, "three", sql, "mean");
    republish(
        &node,
        "high",
        "SELECT payload.v AS v, payload.all AS all FROM \"mean\" WHERE payload.v > 10",
        "out",
    );
    let mut device = Raw::client(&node, 4);
    for value in [1, 2, 3, 10, 20, 30] {
        device.publish("t", format!("{{\"v\": {value}}}"));
    }
    let (_, row) = next(&mut watcher);
    assert_eq!(row["v"].as_f64(), Some(20.0), "{row}");
    assert_eq!(row["all"], json!([10, 20, 30]));
    assert_eq!(watcher.ping_for_packets().len(), 0);
    assert_ne!(row, Value::Null);
}

#[test]
fn windows_go_by_the_time_that_events_say_through_a_restart() {
    let mut node = Node::spawn(temporary_directory(), &[], "");
    node.wait_until_it_listens().unwrap();
    let rule = json!({
        "name": "r",
        "sql": "SELECT sum(payload.v) AS v, window_start() AS since FROM \"t\" GROUP BY tumbling(10s)",
        "window": {"event_time": "payload.ts", "lateness_ms": 5000},
        "actions": [{"kind": "republish", "topic": "out"}],
    });
    let (status, answer) = api(&node, "POST", "rules", &rule);
    assert_eq!(status, 201, "{answer}");
    let send = |node: &Node, rows: &[(u64, u64)]| {
        let mut device = Raw::connect(node, &Connect::new(4, "device"));
        for (n, (ts, v)) in rows.iter().enumerate() {
            device.publish_qos1("t", format!("{{\"ts\": {ts}, \"v\": {v}}}"), n as u16 + 1);
        }
    };
    // Seconds of long ago, out of order.
    send(&node, &[(1_000_003, 1), (1_000_012, 2), (1_000_009, 4)]);
    assert!(node.terminate(Duration::from_secs(10)).success());
    node.start_again();
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("out", 0);
    send(&node, &[(1_000_008, 8), (1_000_016, 16)]);
    let expected = json!({"v": 13, "since": 1_000_000_000});
    assert_eq!(next(&mut watcher).1, expected);
    // Late, without a time, and of a time to come.
    send(&node, &[(1_000_007, 1)]);
    let mut device = Raw::client(&node, 4);
    device.publish("t", "{\"v\": 1}");
    device.publish("t", "{\"v\": 1, \"ts\": \"2999-01-01T00:00:00Z\"}");
    for counter in ["window_late", "window_untimed", "window_ahead"] {
        eventually(counter, || count(&node, "r", counter) == 1);
    }
}
