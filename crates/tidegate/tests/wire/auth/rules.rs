//! Rules of the configuration.

use serde_json::{Value, json};

use super::{NOT_AUTHORIZED, log_in_as, may_publish, may_subscribe};
use crate::api::send;
use crate::support::{Connect, Node, Publish, Raw, Will, kind, unique};

const RULES: &str = "
[[auth.rule]]
permission = \"deny\"
topics = [\"d/${clientid}/secret\", \"eq all/#\"]

[[auth.rule]]
permission = \"allow\"
topics = [\"d/${clientid}/#\", \"all/#\"]

[[auth.rule]]
permission = \"allow\"
action = \"publish\"
topic = \"plain\"
qos = [0, 1]
retain = false

[[auth.rule]]
permission = \"allow\"
topic = \"here\"
address = [\"127.0.0.0/8\", \"10.0.0.0/8\"]

[[auth.rule]]
permission = \"allow\"
topic = \"elsewhere\"
address = \"10.0.0.0/8\"
";

fn client(node: &Node, client_id: &str) -> Raw {
    Raw::connect(node, &Connect::new(5, client_id))
}

#[test]
fn the_first_matching_rule_decides_and_without_a_match_access_is_denied() {
    let node = Node::start_with_config(&[], RULES);
    let mut c1 = client(&node, "c1");
    assert!(may_publish(&mut c1, "d/c1/x"));
    assert!(!may_publish(&mut c1, "d/c1/secret"));
    assert!(!may_publish(&mut c1, "d/c2/x"));
    assert!(may_publish(&mut c1, "all/x"));
    assert!(may_publish(&mut c1, "here"));
    assert!(!may_publish(&mut c1, "elsewhere"));
    assert!(!may_publish(&mut c1, "nowhere"));
    assert!(may_subscribe(&mut c1, "all/+"));
    assert!(may_subscribe(&mut c1, "$share/g/all/x"));
    assert!(
        !may_subscribe(&mut c1, "all/#"),
        "that very filter is denied"
    );
    assert!(!may_subscribe(&mut c1, "d/c1/#"), "it reaches the secret");
    assert!(!may_subscribe(&mut c1, "#"));
    // A client id that could be taken for a wildcard or for more levels gets nothing of others.
    for client_id in ["+", "#", "c1/secret"] {
        let mut sly = client(&node, client_id);
        assert!(!may_publish(&mut sly, "d/c1/x"), "{client_id}");
        assert!(!may_subscribe(&mut sly, "d/+/x"), "{client_id}");
    }
}

#[test]
fn quality_of_service_and_retain_are_conditions() {
    let node = Node::start_with_config(&[], RULES);
    let mut c1 = client(&node, "c1");
    assert!(may_publish(&mut c1, "plain"));
    c1.send_publish(&Publish::new("plain", "x").qos(2, 7));
    assert_eq!(c1.recv(kind::PUBREC).reason, NOT_AUTHORIZED);
    c1.send_publish(&Publish::new("plain", "x").qos(1, 8).retain());
    assert_eq!(c1.recv(kind::PUBACK).reason, NOT_AUTHORIZED);
}

#[test]
fn a_client_the_node_named_has_the_rules_of_its_name() {
    let node = Node::start_with_config(&[], RULES);
    let (mut raw, connack) = log_in_as(&node, &Connect::new(5, ""));
    let assigned = connack.property(0x12).cloned();
    let Some(crate::support::Value::String(name)) = assigned else {
        panic!("{connack:?}");
    };
    assert!(may_publish(&mut raw, &format!("d/{name}/x")));
    assert!(!may_publish(&mut raw, "d/c1/x"));
}

#[test]
fn a_denial_can_end_the_connection() {
    let node = Node::start_with_config(&["--set", "auth.deny_action=disconnect"], RULES);
    let mut c1 = client(&node, "c1");
    c1.publish("nowhere", "x");
    c1.expect_disconnect(NOT_AUTHORIZED);
}

#[test]
fn rules_can_be_observed_before_they_deny() {
    let node = Node::start_with_config(&["--set", "auth.deny_action=observe"], RULES);
    let mut c1 = client(&node, "c1");
    assert!(may_publish(&mut c1, "nowhere"));
    assert!(may_subscribe(&mut c1, "#"));
    let denied = send(&node, "", "GET", "/api/v1/denied-actions", &Value::Null).body;
    let rows = denied["data"].as_array().unwrap();
    let row = |action: &str| {
        let row = rows.iter().find(|row| row["action"] == action);
        row.unwrap_or_else(|| panic!("{action}: {denied}")).clone()
    };
    let published = row("publish");
    assert_eq!(
        (&published["topic"], &published["source"]),
        (&json!("nowhere"), &json!("default"))
    );
    assert_eq!(
        (&published["client_id"], &published["enforced"]),
        (&json!("c1"), &json!(false))
    );
    assert_eq!(row("subscribe")["rule"], "file-rule-1");
}

#[test]
fn a_check_names_what_decides_about_a_connected_client() {
    let node = Node::start_with_config(&[], RULES);
    let mut c1 = client(&node, "c1");
    assert!(!may_publish(&mut c1, "d/c1/secret"));
    let body = json!({"client_id": "c1", "actions": [
        {"action": "publish", "topic": "d/c1/x"},
        {"action": "publish", "topic": "d/c1/secret"},
        {"action": "publish", "topic": "here"},
        {"action": "publish", "topic": "nowhere"},
    ]});
    let check = send(&node, "", "POST", "/api/v1/access-check", &body).body;
    assert_eq!(check["basis"], "session", "{check}");
    let decided: Vec<_> = check["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["allowed"].as_bool().unwrap(), row["rule"].as_str()))
        .collect();
    assert_eq!(
        decided,
        [
            (true, Some("file-rule-2")),
            (false, Some("file-rule-1")),
            (true, Some("file-rule-4")),
            (false, None),
        ]
    );
    let denied = send(
        &node,
        "",
        "GET",
        "/api/v1/denied-actions?client_id=c1",
        &Value::Null,
    )
    .body;
    assert_eq!(denied["data"][0]["rule"], "file-rule-1", "{denied}");
    assert_eq!(denied["data"][0]["enforced"], true);
}

#[test]
fn a_will_goes_only_where_its_client_may_publish() {
    let node = Node::start_with_config(&["--set", "auth.default_permission=deny"], RULES);
    let mut watcher = client(&node, &unique("w"));
    watcher.subscribe("all/+", 0);
    for (topic, client_id) in [("d/c9/secret", "c9"), ("all/will", "c8")] {
        let will = Will::new(topic, "gone");
        Raw::connect(&node, &Connect::new(5, client_id).will(will)).cut();
    }
    watcher.recv_message("all/will", "gone");
}
