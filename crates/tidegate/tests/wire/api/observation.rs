//! What a node shows of its messages and of clients that it rejects.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{own_node, send};
use crate::support::{Connect, DEADLINE, Node, Props, Raw, eventually};

fn data(node: &Node, path: &str) -> Value {
    let answer = send(node, "", "GET", path, &Value::Null);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

/// The messages of a stream of live messages.
struct LiveStream(BufReader<TcpStream>);

impl LiveStream {
    fn open(node: &Node, query: &str) -> Self {
        let mut socket = TcpStream::connect(node.address("http")).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let target = format!("/api/v1/messages/live?{query}");
        write!(socket, "GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut stream = Self(BufReader::new(socket));
        stream.line_with(": connected");
        stream
    }

    fn line_with(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.0.read_line(&mut line).unwrap(),
                0,
                "ended before {part:?}"
            );
            if line.contains(part) {
                return line;
            }
        }
    }

    fn message(&mut self) -> Value {
        let line = self.line_with("data: ");
        serde_json::from_str(line.trim_start_matches("data: ")).unwrap()
    }
}

#[test]
fn messages_are_seen_live_and_as_a_tree() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--set", "node.shards=2"]);
    let mut pump = Raw::connect(&node, &Connect::new(5, "pump-1"));
    let mut screen = Raw::connect(&node, &Connect::new(5, "screen"));
    screen.subscribe("plant/#", 0);
    assert_eq!(data(&node, "/api/v1/published-topics")["recorded"], 0);
    let mut live = LiveStream::open(&node, "topic_filter=plant/%2B/t");
    let mut of_screen = LiveStream::open(&node, "client_id=screen");
    pump.publish("office", "no");
    pump.publish("plant/1/t", "21.5");
    let message = live.message();
    assert_eq!(
        (
            &message["topic"],
            &message["payload"],
            &message["publisher"]
        ),
        (&"plant/1/t".into(), &"21.5".into(), &"pump-1".into())
    );
    let delivered = of_screen.message();
    assert_eq!(
        (&delivered["direction"], &delivered["topic"]),
        (&"delivered".into(), &"plant/1/t".into())
    );
    eventually("both topics are in the tree", || {
        data(&node, "/api/v1/published-topics")["recorded"] == 2
    });
    let tree = data(&node, "/api/v1/published-topics?parent=plant/1");
    assert_eq!(tree["data"][0]["topic"], "plant/1/t");
    assert_eq!(tree["data"][0]["last"]["payload"], "21.5");
}

#[test]
fn a_recording_shows_what_happened_to_a_message() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--set", "node.shards=2"]);
    let rule = json!({"name": "hot", "sql": "SELECT payload FROM \"plant/#\""});
    assert_eq!(send(&node, "", "POST", "/api/v1/rules", &rule).status, 201);
    let mut here = Raw::connect(&node, &Connect::new(5, "here"));
    here.subscribe("plant/#", 1);
    let away = Connect::new(5, "away").properties(Props::new().u32(0x11, 3600));
    let mut away = Raw::connect(&node, &away);
    away.subscribe("plant/#", 1);
    away.disconnect();
    let mut pump = Raw::connect(&node, &Connect::new(5, "pump"));
    let body = json!({"topic_filter": "plant/#"});
    let started = send(&node, "", "PUT", "/api/v1/message-recording", &body);
    assert_eq!(started.status, 200, "{}", started.body);
    pump.publish_qos1("plant/1", "21.5", 1);
    let received = here.recv_message("plant/1", "21.5");
    here.acknowledge(&received);
    let mut steps = Vec::new();
    eventually("all steps are logged", || {
        let log = data(&node, "/api/v1/message-trace");
        let rows = log["data"].as_array().unwrap().clone();
        let of = |row: &Value| {
            let subscriber = row["subscriber"].as_str().unwrap_or_default().to_owned();
            (row["step"].as_str().unwrap().to_owned(), subscriber)
        };
        steps = rows.iter().map(of).collect();
        steps.len() >= 5
    });
    for (step, subscriber) in [
        ("received", ""),
        ("rules", ""),
        ("sent", "here"),
        ("acknowledged", "here"),
        ("queued", "away"),
    ] {
        let expected = (step.to_owned(), subscriber.to_owned());
        assert!(steps.contains(&expected), "{expected:?}: {steps:?}");
    }
    let log = data(&node, "/api/v1/message-trace");
    let rows = log["data"].as_array().unwrap();
    assert!(
        rows.iter()
            .all(|row| row["message_id"] == rows[0]["message_id"]),
        "{log}"
    );
}

#[test]
fn the_node_records_its_own_metrics_and_keeps_them() {
    if !own_node() {
        return;
    }
    let mut node = Node::start(&[]);
    let _client = Raw::connect(&node, &Connect::new(5, "pump-1"));
    eventually("there is a sample", || {
        data(&node, "/api/v1/node/metrics")["data"] != Value::Array(Vec::new())
    });
    let recorded = |node: &Node| {
        let path = "/api/v1/node/history?metrics=connections,process_resident_memory_bytes";
        let table = data(node, path);
        let values = table["columns"][1]["max"].as_array().unwrap().clone();
        values
            .iter()
            .any(|value| value.as_f64().is_some_and(|bytes| bytes > 1e6))
    };
    assert!(recorded(&node));
    node.restart();
    assert!(recorded(&node));
    let limits = data(&node, "/api/v1/limits");
    let rows = limits["data"].as_array().unwrap();
    for setting in [
        "limits.max_connections",
        "limits.max_retained_bytes",
        "telemetry.max_keys",
    ] {
        let row = rows.iter().find(|row| row["setting"] == setting);
        let row = row.unwrap_or_else(|| panic!("{setting}: {limits}"));
        assert!(row["limit"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn a_client_that_cannot_connect_is_listed_with_the_reason() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let user = json!({"username": "ann", "password": "a long password"});
    assert_eq!(send(&node, "", "POST", "/api/v1/users", &user).status, 201);
    for _ in 0..2 {
        let connect = Connect::new(5, "pump-1").username("ann").password("wrong");
        let connack = Raw::open(&node, 5).hand_shake(&connect);
        assert_eq!(connack.reason, 0x86);
    }
    let mut rows = Value::Null;
    eventually("the attempts are listed", || {
        rows = data(
            &node,
            "/api/v1/rejected-connections?client_id_contains=pump",
        )["data"]
            .take();
        rows[0]["count"] == 2
    });
    assert_eq!(
        (
            &rows[0]["step"],
            &rows[0]["username"],
            &rows[0]["reason_code"]
        ),
        (&"authentication".into(), &"ann".into(), &134.into()),
        "{rows}"
    );
    assert_eq!(rows[0]["reason"], "the credentials were not accepted");
    assert_eq!(rows.as_array().unwrap().len(), 1);
}
