//! File connector, and behaviour of the service that is independent of the system.

use std::path::Path;

use connect::{PushOutcome, SinkState};
use serde_json::{Value, json};

use crate::node::{ConnectorNode, push};

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn rows_are_lines() {
    let directory = tempfile::tempdir().unwrap();
    let node = ConnectorNode::start(Some(directory.path()));
    let connector = json!({"type": "file", "directory": "out"});
    node.service.set_connector("c", &connector).unwrap();
    assert_eq!(node.test().unwrap(), "the directory can be written");
    let json_lines = json!({"connector": "c", "file": "all.jsonl", "order": "all"});
    let sink = node.service.set_sink("s", &json_lines).unwrap();
    let csv = json!({
        "connector": "c", "file": "all.csv", "format": "csv", "order": "all",
        "columns": [{"name": "n", "value": "${n}"}, {"name": "s", "value": "${payload.s}, ${topic}"}]
    });
    let csv = node.service.set_sink("csv", &csv).unwrap();
    node.push(sink, 0..1000);
    node.push(csv, 0..10);
    node.stop();
    let out = directory.path().join("files/out");
    let written = lines(&out.join("all.jsonl"));
    assert_eq!(written.len(), 1000);
    let row: Value = serde_json::from_str(&written[999]).unwrap();
    assert_eq!(
        (&row["n"], &row["payload"]["v"]),
        (&json!(999), &json!(99.5))
    );
    let written = lines(&out.join("all.csv"));
    assert_eq!(written[..2], ["n,s", "0,\"it's, t/0\""]);
    assert_eq!(written.len(), 11);
}

#[test]
fn a_file_is_below_the_folder_of_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let node = ConnectorNode::start(Some(directory.path()));
    for bad in ["../x", "/etc", "a/../../b"] {
        let error = node
            .service
            .set_connector("c", &json!({"type": "file", "directory": bad}));
        assert_eq!(error.unwrap_err().field, "directory", "{bad}");
    }
    node.service
        .set_connector("c", &json!({"type": "file"}))
        .unwrap();
    for bad in ["../x", "a/b", "", ".x"] {
        let error = node
            .service
            .check_sink(&json!({"connector": "c", "file": bad}));
        assert_eq!(error.unwrap_err().field, "file", "{bad}");
    }
}

#[test]
fn mistakes_are_reported_with_the_field() {
    let node = ConnectorNode::start(None);
    let field = |value: Value| node.service.set_connector("c", &value).unwrap_err().field;
    assert_eq!(field(json!({"server": "x"})), "type");
    assert_eq!(field(json!({"type": "mysq"})), "type");
    assert_eq!(
        field(json!({"type": "redis", "server": "h", "database": "x"})),
        "database"
    );
    assert_eq!(field(json!({"type": "redis", "server": ":1"})), "server");
    assert_eq!(
        field(json!({"type": "redis", "server": "h", "user": "x"})),
        "user"
    );
    assert_eq!(
        field(json!({"type": "redis", "server": "h", "tls": {"ca": "/nowhere"}})),
        "tls.ca"
    );
    assert_eq!(field(json!({"type": "http", "url": "ftp://x"})), "url");
    let redis = json!({"type": "redis", "server": "h"});
    node.service.set_connector("c", &redis).unwrap();
    let field = |value: Value| node.service.check_sink(&value).unwrap_err().field;
    assert_eq!(
        field(json!({"connector": "d", "command": "GET x"})),
        "connector"
    );
    assert_eq!(
        field(json!({"connector": "c", "command": "SUBSCRIBE x"})),
        "command"
    );
    assert_eq!(
        field(json!({"connector": "c", "command": "SET ${"})),
        "command"
    );
    assert_eq!(
        field(json!({"connector": "c", "command": "SET a b", "order": {"by": "${"}})),
        "order.by"
    );
    let on_disk = json!({"connector": "c", "command": "SET a b", "queue": {"disk": {}}});
    assert_eq!(field(on_disk), "queue.disk");
}

#[test]
fn a_sink_waits_for_its_connector_and_changes_without_loss() {
    let directory = tempfile::tempdir().unwrap();
    let node = ConnectorNode::start(Some(directory.path()));
    let settings = |file: &str| json!({"connector": "c", "file": file, "order": "all", "batch": {"max_rows": 7}});
    let sink = node.service.set_sink("s", &settings("a")).unwrap();
    assert_eq!(node.status().state, SinkState::NoConnector);
    node.push(sink, 0..100);
    node.service
        .set_connector("c", &json!({"type": "file"}))
        .unwrap();
    node.until("they are written", |status| status.metrics.sent == 100);
    for round in 0..20 {
        node.push(sink, 100 + round * 50..150 + round * 50);
        let file = if round % 2 == 0 { "b" } else { "a" };
        assert_eq!(node.service.set_sink("s", &settings(file)), Ok(sink));
    }
    node.service.remove_connector("c");
    node.push(sink, 1100..1110);
    node.service
        .set_connector("c", &json!({"type": "file"}))
        .unwrap();
    node.until("all are written", |status| status.metrics.sent == 1110);
    let mut all = lines(&directory.path().join("files/a"));
    all.extend(lines(&directory.path().join("files/b")));
    assert_eq!(all.len(), 1110);
}

#[test]
fn a_disabled_or_deleted_sink_is_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let node = ConnectorNode::start(Some(directory.path()));
    node.service
        .set_connector("c", &json!({"type": "file"}))
        .unwrap();
    let mut settings = json!({"connector": "c", "file": "a", "enabled": false});
    let sink = node.service.set_sink("s", &settings).unwrap();
    assert_eq!(push(&node.service, sink, 0, 1), PushOutcome::Unknown);
    assert_eq!(node.status().state, SinkState::Disabled);
    settings["enabled"] = true.into();
    node.service.set_sink("s", &settings).unwrap();
    assert_eq!(node.service.sink("s"), Some(sink));
    assert_eq!(push(&node.service, sink, 0, 1), PushOutcome::Queued);
    node.service.remove_sink("s");
    assert_eq!(push(&node.service, sink, 0, 2), PushOutcome::Unknown);
    assert_eq!(node.service.sink("s"), None);
    assert_eq!(
        node.service.set_sink("s", &settings),
        Ok(sink),
        "the same number"
    );
    node.push(sink, 3..4);
    node.until("it is written", |status| status.metrics.sent == 1);
    node.stop();
    assert_eq!(
        lines(&directory.path().join("files/a")).len(),
        2,
        "what it had was written"
    );
}

#[test]
fn what_is_left_at_the_end_becomes_dead_letters_that_are_there_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    // No server listens there.
    let connector = json!({"type": "redis", "server": "127.0.0.1:9"});
    let sink = json!({"connector": "c", "command": "RPUSH l ${n}"});
    let node = ConnectorNode::start(Some(directory.path()));
    node.service.set_connector("c", &connector).unwrap();
    let id = node.service.set_sink("s", &sink).unwrap();
    node.push(id, 0..10);
    let stopping = node.service.stop(std::time::Duration::from_millis(50));
    node.runtime.block_on(stopping);
    let node = ConnectorNode::start(Some(directory.path()));
    node.service.set_sink("s", &sink).unwrap();
    let letters = node.service.dead_letters("s", 0, 99).unwrap();
    assert_eq!(letters.len(), 10);
    assert_eq!(letters[0].error, "the node stopped before it was written");
}

#[test]
fn a_sink_that_is_created_anew_keeps_its_own_dead_letters() {
    let directory = tempfile::tempdir().unwrap();
    // No server listens there.
    let connector = json!({"type": "redis", "server": "127.0.0.1:9"});
    let sink = json!({
        "connector": "c", "command": "RPUSH l ${n}", "queue": {"disk": {}},
        "retry": {"max_attempts": 1}, "batch": {"max_wait_ms": 1}
    });
    let node = ConnectorNode::start(Some(directory.path()));
    node.service.set_connector("c", &connector).unwrap();
    let id = node.service.set_sink("s", &sink).unwrap();
    node.push(id, 0..3);
    node.until("letters", |status| status.metrics.dead_letters == 3);
    node.service.remove_sink("s");
    // While the deleted one still ends.
    node.service.set_sink("s", &sink).unwrap();
    assert_eq!(node.status().metrics.dead_letters, 0);
    node.push(id, 7..8);
    node.until("a letter", |status| status.metrics.dead_letters == 1);
    node.stop();
    let missing = || connect::check_sink_inventory(directory.path()).unwrap();
    assert_eq!(missing(), Vec::<String>::new());
    let node = ConnectorNode::start(Some(directory.path()));
    node.service.set_sink("s", &sink).unwrap();
    let letters = node.service.dead_letters("s", 0, 99).unwrap();
    assert_eq!(letters.len(), 1);
    // A sink that is deleted is not missed.
    node.service.remove_sink("s");
    node.stop();
    assert!(!directory.path().join("queues/s").exists());
    assert_eq!(missing(), Vec::<String>::new());
}
