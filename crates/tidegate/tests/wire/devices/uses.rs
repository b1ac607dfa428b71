//! Objects that name each other: what is named has to be there, and stays as long as it is.

use serde_json::{Value, json};

use super::{api, connect, device, get, latest, product, with_token};
use crate::support::{Node, Raw};

fn put(node: &Node, path: &str, body: Value) {
    let (status, answer) = api(node, "PUT", path, &body);
    assert!(matches!(status, 200 | 201), "{path}: {answer}");
}

/// The field that a PUT is rejected for.
fn rejected(node: &Node, path: &str, body: Value) -> String {
    let (status, answer) = api(node, "PUT", path, &body);
    assert_eq!(status, 422, "{path}: {answer}");
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains("create it first"), "{path}: {detail}");
    answer["parameter"].as_str().unwrap_or_default().to_owned()
}

/// Why it cannot be removed.
fn stays(node: &Node, path: &str) -> String {
    let (status, answer) = api(node, "DELETE", path, &Value::Null);
    assert_eq!(status, 409, "{path}: {answer}");
    answer["detail"].as_str().unwrap().to_owned()
}

fn remove(node: &Node, path: &str) {
    let (status, answer) = api(node, "DELETE", path, &Value::Null);
    assert_eq!(status, 204, "{path}: {answer}");
}

fn alarm(key: &str, notify: &str) -> Value {
    json!({
        "id": "hot", "notify": [notify],
        "raise": [{"severity": "MAJOR", "when": {"key": key, "is": ">", "value": 1_000_000}}],
    })
}

#[test]
fn what_an_object_names_has_to_be_there() {
    let node = Node::start(&[]);
    let node = &node;
    let rule = |action: Value| json!({"sql": "SELECT * FROM \"t\"", "actions": [action]});
    let to_sink = json!({"kind": "sink", "sink": "none"});
    assert_eq!(
        rejected(node, "rules/r", rule(to_sink.clone())),
        "actions[0].sink"
    );
    assert_eq!(
        rejected(node, "rules/r", rule(json!("mysql:none"))),
        "actions[0].sink"
    );
    let other = json!({"kind": "republish", "topic": "x", "fallback": [to_sink]});
    assert_eq!(
        rejected(node, "rules/r", rule(other)),
        "actions[0].fallback[0].sink"
    );
    let storage = |list: &str| json!({"storage": {list: ["none"]}});
    assert_eq!(
        rejected(node, "products/p", storage("sinks")),
        "storage.sinks[0]"
    );
    assert_eq!(
        rejected(node, "products/p", storage("log_sinks")),
        "storage.log_sinks[0]"
    );
    let alarms = json!({"alarms": [alarm("t", "none")]});
    assert_eq!(rejected(node, "products/p", alarms), "alarms[0].notify[0]");
    assert_eq!(
        rejected(node, "products/p", json!({"rule_chain": "none"})),
        "rule_chain"
    );
    let chain = json!({"nodes": [{"id": "s", "type": "sink", "sink": "none"}]});
    assert_eq!(rejected(node, "rule-chains/c", chain), "nodes[0].sink");
    let to = json!({"to": {"sink": "none"}});
    assert_eq!(rejected(node, "notifications/n", to), "to.sink");
    let products = json!({"to": {"mqtt": {"topic": "t"}}, "products": ["$node", "none"]});
    assert_eq!(rejected(node, "notifications/n", products), "products[1]");
    assert_eq!(
        rejected(node, "device-groups/g", json!({"product": "none"})),
        "product"
    );
    let rules = json!({"rules": [alarm("memory_mb", "none")]});
    assert_eq!(
        rejected(node, "node-alarm-rules", rules),
        "rules[0].notify[0]"
    );
}

#[test]
fn what_others_name_cannot_be_removed() {
    let node = Node::start(&[]);
    let node = &node;
    put(node, "connectors/disk", json!({"type": "file"}));
    put(
        node,
        "sinks/s",
        json!({"connector": "disk", "file": "rows.jsonl"}),
    );
    let why = stays(node, "connectors/disk");
    assert_eq!(
        why,
        "The connector \"disk\" is used by the sink \"s\" (connector); delete or change these first."
    );

    // Each kind by itself, and then all of them.
    let to_sink = json!({"kind": "sink", "sink": "s"});
    put(
        node,
        "rules/r",
        json!({"sql": "SELECT * FROM \"t\"", "actions": ["console", to_sink]}),
    );
    let why = stays(node, "sinks/s");
    assert!(why.contains("the rule \"r\" (actions[1].sink)"), "{why}");
    let chain = json!({"nodes": [{"id": "s", "type": "sink", "sink": "s"}]});
    put(node, "rule-chains/c", chain);
    put(node, "notifications/n", json!({"to": {"sink": "s"}}));
    put(
        node,
        "products/p",
        json!({"rule_chain": "c", "storage": {"log_sinks": ["s"], "device_log": true}, "alarms": [alarm("t", "n")]}),
    );
    let why = stays(node, "sinks/s");
    assert!(
        why.contains(
            "the rule \"r\" (actions[1].sink), the product \"p\" (storage.log_sinks[0]), \
             the rule chain \"c\" (nodes[0].sink) and the notification \"n\" (to.sink);"
        ),
        "{why}"
    );
    let why = stays(node, "rule-chains/c");
    assert!(why.contains("the product \"p\" (rule_chain)"), "{why}");
    let rules = json!({"rules": [alarm("memory_mb", "n")]});
    put(node, "node-alarm-rules", rules);
    let why = stays(node, "notifications/n");
    assert!(
        why.contains("the product \"p\" (alarms[0].notify[0]) and the rules of the node alarms"),
        "{why}"
    );
    device(node, json!({"id": "d", "product": "p"}));
    put(node, "device-groups/g", json!({"product": "p"}));
    // A filter does not keep what it lets through.
    put(
        node,
        "notifications/m",
        json!({"to": {"mqtt": {"topic": "t"}}, "products": ["p"]}),
    );
    let why = stays(node, "products/p");
    assert!(
        why.contains("is used by 1 device and the device group \"g\" (product);"),
        "{why}"
    );
    for number in 0..6 {
        let rule = json!({"sql": "SELECT * FROM \"t\"", "actions": [to_sink]});
        put(node, &format!("rules/more-{number}"), rule);
    }
    let why = stays(node, "sinks/s");
    assert!(why.contains(" and 5 more; delete or change these"), "{why}");

    // From the top down all of it goes.
    for path in [
        "devices/d",
        "device-groups/g",
        "products/p",
        "rule-chains/c",
    ] {
        remove(node, path);
    }
    stays(node, "notifications/n");
    let (status, answer) = api(node, "DELETE", "node-alarm-rules", &Value::Null);
    assert_eq!(status, 200, "{answer}");
    remove(node, "notifications/n");
    for number in 0..6 {
        remove(node, &format!("rules/more-{number}"));
    }
    stays(node, "sinks/s");
    remove(node, "rules/r");
    remove(node, "sinks/s");
    remove(node, "connectors/disk");
    // The built-in chain is there whatever is in the store.
    put(
        node,
        "rule-chains/root",
        json!({"nodes": [{"id": "s", "type": "save_telemetry"}]}),
    );
    product(node, "q", json!({"rule_chain": "root"}));
    remove(node, "rule-chains/root");
}

#[test]
fn objects_of_the_configuration_hold_what_they_name_in_the_store() {
    let config = "[[product]]\nid = \"p\"\nrule_chain = \"c\"\nstorage = { sinks = [\"late\"] }\n";
    let node = Node::start_with_config(&[], config);
    let log = node.log();
    assert!(
        log.contains("storage.sinks[0]") || log.contains("in rule_chain"),
        "{log}"
    );
    put(
        &node,
        "rule-chains/c",
        json!({"nodes": [{"id": "s", "type": "save_telemetry"}]}),
    );
    let why = stays(&node, "rule-chains/c");
    assert!(why.contains("the product \"p\" (rule_chain)"), "{why}");
    // What is declared can be named.
    put(&node, "device-groups/g", json!({"product": "p"}));
}

#[test]
fn chains_groups_pull_sources_and_notifications_of_the_configuration_work_and_stay() {
    // The product and the notification name each other, and nothing stands in the order in which it is needed.
    let config = r#"
        [[device_group]]
        id = "all"
        product = "meter"

        [[product]]
        id = "meter"
        mode = "sync"
        rule_chain = "warm"
        [[product.alarms]]
        id = "hot"
        notify = ["night"]
        raise = [{ severity = "MAJOR", when = { key = "t", is = ">", value = 60 } }]

        [[notification]]
        name = "night"
        all = false
        products = ["meter"]
        to = { mqtt = { topic = "notices/${deviceId}" } }

        [[rule_chain]]
        id = "warm"
        nodes = [
            { id = "warm", type = "filter", condition = "t > 20" },
            { id = "double", type = "transform", select = "t, t * 2 AS twice" },
            { id = "save", type = "save_telemetry" },
            { id = "judge", type = "alarm" },
        ]
        relations = [
            { from = "warm", on = "true", to = "double" },
            { from = "double", to = "save" },
            { from = "save", to = "judge" },
        ]

        [[pull_source]]
        name = "weather"
        enabled = false
        interval_s = 60
        [pull_source.http]
        server = { url = "http://127.0.0.1:9/" }
        device = "d"
    "#;
    let node = Node::start_with_config(&[], config);
    let node = &node;
    assert!(
        !node.log().contains("which does not exist"),
        "{}",
        node.log()
    );
    with_token(node, "d", "meter", json!({}));
    let mut listener = Raw::client(node, 5);
    listener.subscribe("notices/#", 0);
    let mut raw = connect(node, "d");
    for t in [19, 61, 20] {
        let payload_text = json!({"t": t}).to_string();
        raw.publish_qos1("v1/devices/me/telemetry", payload_text, 1);
    }
    assert_eq!(latest(node, "d"), json!({"t": 61, "twice": 122}));
    assert_eq!(listener.recv(3).topic, "notices/d");
    let members = get(node, "device-groups/all/devices");
    assert_eq!(members["data"][0]["id"], "d", "{members}");
    assert_eq!(get(node, "device-groups/all/counts")["devices"], 1);
    let status = get(node, "notification-status");
    assert_eq!(status["data"][0]["name"], "night", "{status}");
    let status = get(node, "pull-source-status");
    assert_eq!(status["data"][0]["name"], "weather", "{status}");

    // They are changed in the file only.
    let chain = json!({"nodes": [{"id": "s", "type": "save_telemetry"}]});
    for (path, body) in [
        ("rule-chains/warm", chain),
        ("device-groups/all", json!({})),
        (
            "notifications/night",
            json!({"to": {"mqtt": {"topic": "t"}}}),
        ),
        (
            "pull-sources/weather",
            json!({"interval_s": 60, "http": {"server": {"url": "http://127.0.0.1:9/"}, "device": "d"}}),
        ),
    ] {
        let (status, answer) = api(node, "PUT", path, &body);
        assert_eq!(status, 409, "{path}: {answer}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.contains("tidegate.toml:"), "{path}: {answer}");
    }
    // And objects of the store name them.
    product(
        node,
        "other",
        json!({"rule_chain": "warm", "alarms": [alarm("t", "night")]}),
    );
}
