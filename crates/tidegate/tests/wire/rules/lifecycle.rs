//! Rules come, change and go while messages are routed, and outlive the node.

use std::time::Duration;

use serde_json::{Value, json};

use super::{api, change, count, make, next, republish, status};
use crate::support::{Node, Raw, temporary_directory};

#[test]
fn a_rule_is_changed_switched_and_deleted_at_run_time() {
    let node = Node::start(&[]);
    let mut client = Raw::client(&node, 4);
    client.subscribe("out/#", 0);
    republish(&node, "r", "SELECT 1 AS n FROM \"t\"", "out/1");
    client.publish("t", "");
    assert_eq!(next(&mut client).1, json!({"n": 1}));
    let rule = |n: u8, enabled: bool| {
        let sql = format!("SELECT {n} AS n FROM \"t\"");
        json!({"sql": sql, "enabled": enabled, "actions": [{"kind": "republish", "topic": "out/2"}]})
    };
    assert_eq!(change(&node, "r", &rule(2, true)).0, 200);
    client.publish("t", "");
    assert_eq!(next(&mut client), ("out/2".into(), json!({"n": 2})));
    assert_eq!(change(&node, "r", &rule(3, false)).0, 200);
    assert_eq!(status(&node, "r")["state"], "disabled");
    client.publish("t", "");
    assert!(client.ping_for_packets().is_empty());
    assert_eq!(change(&node, "r", &rule(4, true)).0, 200);
    client.publish("t", "");
    assert_eq!(next(&mut client).1, json!({"n": 4}));
    assert_eq!(
        count(&node, "r", "passed"),
        3,
        "the counters outlive changes"
    );
    assert_eq!(api(&node, "DELETE", "rules/r", &Value::Null).0, 204);
    client.publish("t", "");
    assert!(client.ping_for_packets().is_empty());
    assert_eq!(api(&node, "GET", "rules/r/status", &Value::Null).0, 404);
}

#[test]
fn a_bad_rule_is_rejected_and_the_running_one_stays() {
    let node = Node::start(&[]);
    let mut client = Raw::client(&node, 4);
    client.subscribe("out", 0);
    republish(&node, "r", "SELECT 1 AS n FROM \"t\"", "out");
    for (rule, field) in [
        (json!({"sql": "SELECT nonsense( FROM \"t\""}), "sql"),
        (
            json!({"sql": "SELECT uppper(topic) AS x FROM \"t\""}),
            "sql",
        ),
        (
            json!({"sql": "SELECT * FROM \"t\"", "actions": [{"kind": "republish", "topic": "a/+"}]}),
            "actions[0].topic",
        ),
        (
            json!({"sql": "SELECT * FROM \"t\"", "colour": "red"}),
            "colour",
        ),
    ] {
        let (status, problem) = change(&node, "r", &rule);
        assert_eq!(status, 422, "{problem}");
        assert!(problem.to_string().contains(field), "{problem}");
    }
    let (_, problem) = change(
        &node,
        "r",
        &json!({"sql": "SELECT uppper(topic) AS x FROM \"t\""}),
    );
    assert!(
        problem.to_string().contains("upper"),
        "the nearest name is suggested: {problem}"
    );
    client.publish("t", "");
    assert_eq!(next(&mut client).1, json!({"n": 1}));
}

#[test]
fn rules_and_open_windows_outlive_the_node() {
    let mut node = Node::spawn(temporary_directory(), &[], "");
    node.wait_until_it_listens().unwrap();
    republish(&node, "plain", "SELECT 1 AS n FROM \"t\"", "out/plain");
    republish(
        &node,
        "counting",
        "SELECT clientid, count(*) AS events FROM \"t\" GROUP BY clientid, count(5)",
        "out/counted",
    );
    let send = |node: &Node, times: u16| {
        let mut device = Raw::connect(node, &crate::support::Connect::new(4, "device"));
        for n in 1..=times {
            device.publish_qos1("t", "x", n);
        }
    };
    send(&node, 3);
    assert!(node.terminate(Duration::from_secs(10)).success());
    node.start_again();
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("out/counted", 0);
    send(&node, 2);
    let expected = json!({"clientid": "device", "events": 5});
    assert_eq!(next(&mut watcher), ("out/counted".into(), expected));
    assert_eq!(count(&node, "plain", "passed"), 2);
}

#[test]
fn what_a_rule_keeps_outlives_the_node() {
    let mut node = Node::spawn(temporary_directory(), &[], "");
    node.wait_until_it_listens().unwrap();
    let sql = "SELECT kv_store_get('last', 'none') AS before, kv_store_put('last', payload) AS kept FROM \"t\"";
    republish(&node, "r", sql, "out");
    let published = |node: &Node, payload: &str| {
        let mut client = Raw::client(node, 4);
        client.subscribe("out", 0);
        client.publish("t", payload);
        next(&mut client).1["before"].clone()
    };
    assert_eq!(published(&node, "a"), "none");
    assert_eq!(published(&node, "b"), "a");
    assert!(node.terminate(Duration::from_secs(10)).success());
    node.start_again();
    assert_eq!(published(&node, "c"), "b");
    // Changed otherwise than in its statement, it goes on.
    let rule = |sql: &str| json!({"sql": sql, "description": "new", "actions": [{"kind": "republish", "topic": "out"}]});
    assert_eq!(change(&node, "r", &rule(sql)).0, 200);
    assert_eq!(published(&node, "d"), "c");
    assert_eq!(change(&node, "r", &rule(&format!("{sql} LIMIT 1"))).0, 200);
    assert_eq!(published(&node, "e"), "none");
}

#[test]
fn rules_of_the_configuration_run_and_cannot_be_changed_over_the_api() {
    let config = "[[rule]]\nname = \"declared\"\nsql = '''SELECT qos FROM \"t\"'''\n\
                  actions = [{ kind = \"republish\", topic = \"out\" }]\n";
    let node = Node::start_with_config(&[], config);
    let mut client = Raw::client(&node, 4);
    client.subscribe("out", 0);
    client.publish("t", "");
    assert_eq!(next(&mut client).1, json!({"qos": 0}));
    assert_eq!(status(&node, "declared")["is_declared"], true);
    let rule = json!({"name": "declared", "sql": "SELECT 1 AS n FROM \"t\""});
    let (status, problem) = api(&node, "POST", "rules", &rule);
    assert_eq!(status, 409, "{problem}");
    let bad = config.replace("SELECT qos", "SELECT qos,,");
    let Err(why) = Node::try_start(&[], &bad) else {
        panic!("a node with a bad rule has started");
    };
    assert!(
        why.contains("declared") && why.contains("tidegate.toml:1"),
        "{why}"
    );
}

#[test]
fn what_one_rule_keeps_another_cannot_see() {
    let node = Node::start(&[]);
    let mut client = Raw::client(&node, 4);
    client.subscribe("out/#", 0);
    for name in ["a", "b"] {
        let sql = format!(
            "SELECT kv_store_put('k', coalesce(kv_store_get('k'), 0) + 1) AS put, kv_store_get('k') AS n FROM \"{name}\""
        );
        make(
            &node,
            name,
            &sql,
            json!([{"kind": "republish", "topic": format!("out/{name}"), "payload": "${n}"}]),
        );
    }
    for (name, expected) in [("a", 1), ("a", 2), ("b", 1), ("a", 3)] {
        client.publish(name, "");
        assert_eq!(next(&mut client), (format!("out/{name}"), json!(expected)));
    }
}
