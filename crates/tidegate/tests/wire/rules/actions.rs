//! What is done with outputs: published again, chained, bounded.

use serde_json::json;

use super::{api, count, make, next, republish};
use crate::support::{Connect, Node, Props, Publish, Raw, eventually, kind};

#[test]
fn an_output_is_published_as_the_templates_say() {
    let node = Node::start(&[]);
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe("alarms/#", 2);
    make(
        &node,
        "hot",
        "SELECT payload.t AS t, clientid, qos FROM \"s/+/data\" WHERE payload.t > 30",
        json!([{
            "kind": "republish", "topic": "alarms/${clientid}", "payload": "t=${t}", "qos": "${qos}",
            "retain": true, "user_properties": {"from": "${clientid}"},
        }]),
    );
    let mut device = Raw::connect(&node, &Connect::new(5, "device-1"));
    device.publish("s/1/data", r#"{"t": 12}"#);
    device.publish("s/1/data", "no JSON");
    device.publish_qos1("s/1/data", r#"{"t": 31}"#, 1);
    let alarm = watcher.recv(kind::PUBLISH);
    assert_eq!(
        (&*alarm.topic, &*alarm.payload),
        ("alarms/device-1", &b"t=31"[..])
    );
    assert_eq!(alarm.flags >> 1 & 3, 1, "QoS 1 as the message had");
    let pair = crate::support::Value::Pair("from".into(), "device-1".into());
    assert!(
        alarm.properties.iter().any(|(_, value)| *value == pair),
        "{alarm:?}"
    );
    watcher.acknowledge(&alarm);
    let mut late = Raw::client(&node, 4);
    late.subscribe("alarms/#", 0);
    assert_eq!(late.recv(kind::PUBLISH).payload, b"t=31", "it is retained");
    let counts = [
        "matched",
        "passed",
        "no_result",
        "failed",
        "actions_succeeded",
    ];
    // What is no JSON is a failure in EMQX's dialect.
    eventually("it is counted", || {
        counts.map(|name| count(&node, "hot", name)) == [3, 1, 1, 1, 1]
    });
}

#[test]
fn rules_follow_rules_and_each_output_of_foreach_is_one() {
    let node = Node::start(&[]);
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("out/#", 0);
    make(
        &node,
        "each",
        "FOREACH payload.list AS item DO item.n AS n FROM \"in\"",
        json!([]),
    );
    republish(
        &node,
        "even",
        "SELECT n FROM \"$rule/each\" WHERE n mod 2 = 0",
        "out/${n}",
    );
    let mut device = Raw::client(&node, 4);
    device.publish("in", r#"{"list": [{"n": 1}, {"n": 2}, {"n": 4}]}"#);
    assert_eq!(next(&mut watcher), ("out/2".into(), json!({"n": 2})));
    assert_eq!(next(&mut watcher), ("out/4".into(), json!({"n": 4})));
    assert!(watcher.ping_for_packets().is_empty());
}

#[test]
fn loops_of_rules_end() {
    let node = Node::start(&["--set", "rules.max_republish_depth=4"]);
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("#", 0);
    republish(
        &node,
        "itself",
        "SELECT 1 AS n FROM \"self/#\"",
        "self/again",
    );
    republish(&node, "ping", "SELECT 1 AS n FROM \"ping\"", "pong");
    republish(&node, "pong", "SELECT 1 AS n FROM \"pong\"", "ping");
    // Told of what becomes of its own messages.
    republish(
        &node,
        "echo",
        "SELECT topic FROM \"$events/message/delivered\"",
        "echo",
    );
    let mut device = Raw::client(&node, 4);
    device.publish("self/start", "");
    device.publish("ping", "");
    eventually("the loop is ended by its depth", || {
        count(&node, "ping", "actions_failed") == 1
    });
    // 2 in one loop, 5 in the other; and the echo of the two that no rule has made.
    let topics: Vec<String> = (0..9).map(|_| next(&mut watcher).0).collect();
    let of = |name: &str| {
        topics
            .iter()
            .filter(|topic| topic.starts_with(name))
            .count()
    };
    assert_eq!(["self", "p", "echo"].map(of), [2, 5, 2], "{topics:?}");
    assert!(watcher.ping_for_packets().is_empty());
}

#[test]
fn an_action_that_cannot_be_done_has_others_in_its_place() {
    // Over the API a rule cannot name a sink that is not there.
    let config = r#"
        [[rule]]
        name = "r"
        sql = 'SELECT * FROM "t"'
        [[rule.actions]]
        kind = "sink"
        sink = "nobody"
        fallback = [{ kind = "republish", topic = "out/fallback", payload = "${clientid}" }]
        [[rule.actions]]
        kind = "republish"
        topic = "out/${payload}/x"
        fallback = ["console"]
    "#;
    let node = Node::start_with_config(&[], config);
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("out/#", 0);
    let mut device = Raw::connect(&node, &Connect::new(4, "device-2"));
    device.publish("t", "a#b");
    assert_eq!(
        next(&mut watcher),
        ("out/fallback".into(), json!("device-2"))
    );
    eventually("both are counted", || {
        count(&node, "r", "actions_failed") == 2
    });
    eventually("the log has the output", || {
        node.log().contains("\"device-2\"")
    });
    device.publish("t", "fine");
    assert_eq!(next(&mut watcher).0, "out/fallback");
    assert_eq!(next(&mut watcher).0, "out/fine/x");
}

#[test]
fn an_error_in_one_rule_touches_no_other_and_no_client() {
    let node = Node::start(&["--set", "rules.max_output_bytes=4KiB"]);
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("out/#", 0);
    republish(
        &node,
        "overflows",
        "SELECT 9223372036854775807 + qos + 1 AS n FROM \"t\"",
        "out/never",
    );
    republish(
        &node,
        "large",
        "SELECT repeat(topic, 100000) AS n FROM \"t\"",
        "out/never",
    );
    republish(&node, "well", "SELECT qos FROM \"t\"", "out/well");
    let mut device = Raw::client(&node, 4);
    for n in 1..=3 {
        device.publish_qos1("t", "x", n);
        assert_eq!(next(&mut watcher).0, "out/well");
    }
    assert_eq!(count(&node, "overflows", "failed_other"), 3);
    assert_eq!(count(&node, "large", "failed_limit"), 3);
    assert_eq!(count(&node, "well", "passed"), 3);
}

#[test]
fn a_row_that_a_sink_cannot_write_later_falls_back() {
    let node = Node::start(&[]);
    // A page that takes no rows.
    let url = format!("http://{}", node.address("http"));
    let connector = json!({"name": "web", "type": "http", "url": url});
    let batch = json!({"max_wait_ms": 1});
    let sink = json!({"name": "page", "connector": "web", "path": "/metrics", "batch": batch});
    for (path, body) in [("connectors", connector), ("sinks", sink)] {
        let (status, answer) = api(&node, "POST", path, &body);
        assert_eq!(status, 201, "{answer}");
    }
    let other = json!({"kind": "republish", "topic": "out/${n}", "payload": "${sink} ${attempts} ${error}"});
    let actions = json!([{"kind": "sink", "sink": "page", "fallback": [other]}]);
    make(&node, "r", "SELECT payload.n AS n FROM \"t\"", actions);
    let mut client = Raw::client(&node, 4);
    client.subscribe("out/#", 0);
    client.publish("t", "{\"n\": 7}");
    let (topic, metrics_text) = next(&mut client);
    assert_eq!(topic, "out/7");
    let metrics_text = metrics_text.as_str().unwrap();
    assert!(
        metrics_text.starts_with("page 1 ") && metrics_text.contains("405"),
        "{metrics_text}"
    );
}

#[test]
fn a_rule_object_of_emqx_is_taken_as_it_is_and_its_json_stays_json() {
    let node = Node::start(&[]);
    let rule = json!({
        "id": "emqx1", "name": "From elsewhere", "enable": true, "description": "", "metadata": {"created_at": 1},
        "sql": "SELECT payload.name AS name, payload, qos FROM \"t/#\"",
        "actions": [
            {"function": "console"},
            {"function": "republish", "args": {
                "topic": "out/json", "payload": "{\"name\": \"${name}\", \"none\": ${none}, \"all\": ${payload}}", "qos": 0,
                "retain": false, "direct_dispatch": false, "user_properties": "${pub_props.'User-Property'}",
                "mqtt_properties": {"Content-Type": "application/json"},
            }},
            {"function": "republish", "args": {"topic": "out/same"}},
            {"function": "republish", "args": {"topic": "out/${none}"}},
        ],
    });
    let (status, answer) = api(&node, "POST", "rules", &rule);
    assert_eq!(status, 201, "{answer}");
    assert_eq!(
        (&answer["name"], &answer["description"]),
        (&json!("emqx1"), &json!("From elsewhere"))
    );
    let (status, answer) = api(&node, "PUT", "rules/emqx1", &rule);
    assert_eq!(status, 200, "{answer}");
    let mut watcher = Raw::connect(&node, &Connect::new(5, "watcher"));
    watcher.subscribe("out/#", 1);
    let mut device = Raw::connect(&node, &Connect::new(5, "device"));
    let payload = json!({"name": "a\", \"admin\": true, \"b\": \""});
    let properties = Props::new().pair(0x26, "k", "v");
    let publish = Publish::new("t/1", payload.to_string()).qos(1, 1);
    device.send_publish(&publish.properties(properties));
    device.recv(kind::PUBACK);
    let (topic, metrics_text) = next(&mut watcher);
    assert_eq!(topic, "out/json");
    assert_eq!(
        metrics_text,
        json!({"name": payload["name"], "none": null, "all": payload})
    );
    let (topic, metrics_text) = next(&mut watcher);
    assert_eq!((topic.as_str(), metrics_text), ("out/same", payload));
    let status = super::status(&node, "emqx1");
    assert_eq!(status["last_error"]["text"], "topic: ${none} is null");
    assert_eq!(
        (
            &status["last_error"]["kind"],
            &status["last_error"]["action"]
        ),
        (&json!("action"), &json!(3))
    );
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("${none} is always null"), "{warnings}");
}
