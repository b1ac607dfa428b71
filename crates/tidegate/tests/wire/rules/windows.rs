//! Windows over the messages of all shards.

use serde_json::{Value, json};

use super::{next, republish};
use crate::support::{Connect, Node, Raw};

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
