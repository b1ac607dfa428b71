//! Messages of endpoints in rules: rows of sinks, and the action `relay` in place of an action that fails.

use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use super::{BINARY, RelayClient, ask, new_endpoint};
use crate::api::own_node;
use crate::support::{Node, Raw, eventually};

fn create(node: &Node, path: &str, object: Value) {
    let (status, answer) = ask(node, "PUT", path, object);
    assert_eq!(status, 201, "{path}: {answer}");
}

#[test]
fn messages_of_endpoints_are_rows_of_a_database() {
    if !own_node() {
        return;
    }
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    server.sql("CREATE TABLE m (endpoint TEXT, sender TEXT, body TEXT, at_ms BIGINT)");
    for shards in ["1", "2"] {
        server.sql("TRUNCATE m");
        let node = Node::start(&["--shards", shards]);
        let database = json!({
            "type": "postgres", "server": server.address().to_string(), "database": testkit::DATABASE,
            "username": testkit::USER, "password": testkit::PASSWORD,
        });
        create(&node, "connectors/db", database);
        let sql = "INSERT INTO m (endpoint, sender, body, at_ms) VALUES (${endpoint}, ${clientid}, ${body}, ${timestamp})";
        create(
            &node,
            "sinks/messages",
            json!({"connector": "db", "sql": sql}),
        );
        let rule = json!({
            "sql": "SELECT nth(2, split(topic, '/')) AS endpoint, clientid, bin2hexstr(payload) AS body, timestamp \
                    FROM \"$relay/+\"",
            "actions": [{"kind": "sink", "sink": "messages"}],
        });
        create(&node, "rules/keep", rule);
        // The mode concerns receivers only: rows contain what was sent.
        let one = new_endpoint(&node, json!({"mode": "json"}));
        let other = new_endpoint(&node, json!({"mode": "custom_header", "header": "> "}));
        let mut sender = RelayClient::join(&node, &one);
        let mut receiver = RelayClient::join(&node, &one);
        let mut stranger = RelayClient::join(&node, &other);
        sender.send_text("text");
        assert_eq!(receiver.expect_json()["data"], "text");
        sender.0.send_frame(BINARY, &[0xff, 0]);
        receiver.receive().expect("the binary message");
        stranger.send_text("x");
        stranger.synchronise();
        let topic = format!("$relay/{one}");
        let message = json!({"topic": topic, "payload": "by HTTP"});
        assert_eq!(ask(&node, "POST", "publish", message).0, 200);
        // Devices are answered, and neither that nor other topics are messages of an endpoint.
        sender.send_text(r#"{"type":"identify","deviceId":"d"}"#);
        Raw::client(&node, 5).publish("relay/x", "no endpoint");
        let (_, page) = ask(
            &node,
            "GET",
            &format!("endpoints/{one}/connections"),
            Value::Null,
        );
        let connections = page["data"].to_string();
        let mut expected = vec![
            (one.clone(), "74657874".to_owned()),
            (one.clone(), "FF00".to_owned()),
            (other.clone(), "78".to_owned()),
            (one.clone(), "62792048545450".to_owned()),
        ];
        expected.sort();
        let mut rows = Vec::new();
        eventually("all messages are rows", || {
            rows = server.sql("SELECT endpoint, body, sender, at_ms FROM m ORDER BY 1, 2");
            rows.len() >= expected.len()
        });
        let text = |row: &[Option<String>], at: usize| row[at].clone().unwrap_or_default();
        let mut found: Vec<_> = rows
            .iter()
            .map(|row| (text(row, 0), text(row, 1)))
            .collect();
        found.sort();
        assert_eq!(found, expected, "{shards} shards");
        for row in &rows {
            let (body, sender) = (text(row, 1), text(row, 2));
            let at_ms: u64 = text(row, 3).parse().unwrap();
            assert!(at_ms > 1_700_000_000_000, "{row:?}");
            if ["74657874", "FF00"].contains(&&*body) {
                let connection = sender.strip_prefix(&format!("$relay/{one}/"));
                let connection = connection.unwrap_or_else(|| panic!("{row:?}"));
                assert!(connections.contains(connection), "{row:?}: {connections}");
            }
        }
    }
}

#[test]
fn the_action_relay_takes_the_place_of_an_action_that_fails() {
    if !own_node() {
        return;
    }
    // Over the API, a rule cannot name a sink that does not exist.
    let config = r#"
        [[rule]]
        name = "no-sink"
        sql = 'SELECT payload FROM "orders"'
        [[rule.actions]]
        kind = "sink"
        sink = "nobody"
        fallback = [{ kind = "relay", endpoint = "operators", payload = "not stored: ${payload}" }]
        [[endpoint]]
        id = "operators"
        mode = "direct"
    "#;
    let node = Node::start_with_config(&[], config);
    let mut operators = RelayClient::join(&node, "operators");
    let mut client = Raw::client(&node, 5);
    client.publish("orders", "1 pump");
    assert_eq!(operators.expect_text(), "not stored: 1 pump");

    // A page that takes no rows: the row fails later, when the event is gone.
    let url = format!("http://{}", node.address("http"));
    create(&node, "connectors/web", json!({"type": "http", "url": url}));
    let sink = json!({"connector": "web", "path": "/metrics", "batch": {"max_wait_ms": 1}});
    create(&node, "sinks/page", sink);
    let relay = json!({"kind": "relay", "endpoint": "${room}", "payload": "${body} failed at ${sink}: ${error}"});
    let rule = json!({
        "sql": "SELECT 'operators' AS room, payload AS body FROM \"$relay/+\" WHERE topic != '$relay/operators'",
        "actions": [{"kind": "sink", "sink": "page", "fallback": [relay]}],
    });
    create(&node, "rules/failing", rule);
    let workshop = new_endpoint(&node, json!({"mode": "direct"}));
    let mut sender = RelayClient::join(&node, &workshop);
    sender.send_text("a message");
    let text = operators.expect_text();
    assert!(text.starts_with("a message failed at page: "), "{text}");
    assert!(text.contains("405"), "{text}");
    // It was relayed to nobody else.
    sender.synchronise();
    let (_, status) = ask(&node, "GET", "rules/failing/status", Value::Null);
    assert_eq!(status["counters"]["actions_succeeded"], 1, "{status}");
    assert_eq!(status["counters"]["actions_failed"], 0, "{status}");
}
