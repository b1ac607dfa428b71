//! Redis source: nothing is lost when the server or the node ends, or another consumer dies.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use connect::connector::BoxFuture;
use connect::{SourceMessage, SourceMessageHandler};
use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use crate::node::ConnectorNode;

const PATIENCE: Duration = Duration::from_secs(60);

/// Accepts a number of messages, and no more.
struct Rules {
    taken: Mutex<Vec<SourceMessage>>,
    room: AtomicUsize,
}

impl SourceMessageHandler for Rules {
    fn handle<'a>(
        &'a self,
        kind: &'a str,
        name: &'a str,
        message: SourceMessage,
    ) -> BoxFuture<'a, ()> {
        assert_eq!((kind, name), ("redis", "in"));
        Box::pin(async move {
            let room = self
                .room
                .fetch_update(SeqCst, SeqCst, |room| room.checked_sub(1));
            if room.is_err() {
                std::future::pending::<()>().await;
            }
            self.taken.lock().unwrap().push(message);
        })
    }
}

impl Rules {
    fn with_room(room: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            room: AtomicUsize::new(room),
        })
    }

    fn numbers(&self) -> Vec<i64> {
        let taken = self.taken.lock().unwrap();
        let payloads = taken.iter().map(|message| &message.payload);
        payloads
            .map(|payload| serde_json::from_slice::<Value>(payload).unwrap())
            .map(|payload| payload["n"].as_str().unwrap().parse().unwrap())
            .collect()
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A node with the source `in` and this handler.
fn node(server: &TestServer, source: &Value, rules: &Arc<Rules>) -> ConnectorNode {
    let node = ConnectorNode::start(None);
    let connector = json!({
        "type": "redis", "server": server.address().to_string(), "username": testkit::USER,
        "password": testkit::PASSWORD
    });
    node.service.set_connector("c", &connector).unwrap();
    node.service.check_source(source).unwrap();
    node.service.set_source("in", source).unwrap();
    node.service.set_source_handler(rules.clone());
    node
}

fn add(server: &TestServer, stream: &str, numbers: std::ops::Range<i64>) {
    for n in numbers {
        server.redis(&["XADD", stream, "*", "n", &n.to_string()]);
    }
}

/// Number of entries delivered to a consumer and not acknowledged.
fn pending(server: &TestServer, stream: &str) -> String {
    let answer = server.try_redis(&["XPENDING", stream, "g"]);
    let first = answer.ok().and_then(|values| values.into_iter().next());
    first.flatten().unwrap_or_default()
}

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[test]
fn entries_of_streams_are_received_and_acknowledged() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    add(&server, "a", 0..250);
    let rules = Rules::with_room(usize::MAX);
    let source = json!({"connector": "c", "streams": ["a", "b"], "group": "g"});
    let node = node(&server, &source, &rules);
    until("what was there is received", || {
        rules.taken.lock().unwrap().len() == 250
    });
    assert!(rules.numbers().is_sorted());
    add(&server, "b", 250..260);
    until("what is new is received", || {
        rules.taken.lock().unwrap().len() == 260
    });
    until("all are acknowledged", || {
        pending(&server, "a") == "0" && pending(&server, "b") == "0"
    });
    {
        let taken = rules.taken.lock().unwrap();
        let message = &taken[259];
        assert_eq!(message.topic, "b");
        assert!(message.fields["timestamp"].as_u64() > Some(1_600_000_000_000));
        assert!(message.fields["id"].as_str().unwrap().contains('-'));
    }
    // One field is the message.
    let source = json!({"connector": "c", "streams": ["p"], "group": "g", "payload": "body"});
    node.service.set_source("in", &source).unwrap();
    server.redis(&["XADD", "p", "*", "kind", "hot", "body", "31 \u{b0}C"]);
    until("it is received", || {
        rules.taken.lock().unwrap().len() == 261
    });
    let message = rules.taken.lock().unwrap().pop().unwrap();
    assert_eq!(message.payload, "31 \u{b0}C".as_bytes());
    assert_eq!(message.properties, [("kind".into(), "hot".into())]);
    let wrong = json!({"connector": "c", "streams": [], "group": "g"});
    let error = node.service.check_source(&wrong).unwrap_err();
    assert_eq!(error.field, "streams");
}

#[test]
fn a_killed_server_costs_no_entry() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    let rules = Rules::with_room(usize::MAX);
    let source = json!({"connector": "c", "streams": ["a"], "group": "g"});
    let node = node(&server, &source, &rules);
    for round in 0..3 {
        let first = round * 200;
        add(&server, "a", first..first + 200);
        server.kill();
        let status = || node.service.sources().remove(0);
        until("it notices", || status().failures > 0);
        server.start();
        until("it receives again", || {
            sorted(rules.numbers()).len() as i64 == first + 200
        });
    }
    let numbers = rules.numbers();
    let mut seen = std::collections::BTreeSet::new();
    let firsts: Vec<i64> = numbers.into_iter().filter(|n| seen.insert(*n)).collect();
    assert!(firsts.is_sorted());
}

#[test]
fn what_a_node_did_not_take_is_there_after_its_restart() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    add(&server, "a", 0..100);
    let source = json!({"connector": "c", "streams": ["a"], "group": "g", "batch": 20});
    let rules = Rules::with_room(50);
    let before = node(&server, &source, &rules);
    until("it is full", || rules.taken.lock().unwrap().len() == 50);
    before.stop();
    drop(before);
    assert_ne!(pending(&server, "a"), "0");
    let after_rules = Rules::with_room(usize::MAX);
    let _after = node(&server, &source, &after_rules);
    until("the rest is received", || {
        let both = [rules.numbers(), after_rules.numbers()].concat();
        sorted(both).len() == 100
    });
    // Entries of the interrupted part are delivered again.
    let again = after_rules.numbers();
    assert!(again.is_sorted() && again.len() <= 70, "{again:?}");
    until("all are acknowledged", || pending(&server, "a") == "0");
}

#[test]
fn what_a_dead_consumer_was_given_is_claimed() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    add(&server, "a", 0..30);
    server.redis(&["XGROUP", "CREATE", "a", "g", "0"]);
    let given = [
        "XREADGROUP",
        "GROUP",
        "g",
        "dead",
        "COUNT",
        "10",
        "STREAMS",
        "a",
        ">",
    ];
    server.redis(&given);
    let rules = Rules::with_room(usize::MAX);
    let source = json!({"connector": "c", "streams": ["a"], "group": "g", "claim_after_ms": 300, "batch": 4});
    let _node = node(&server, &source, &rules);
    until("all are received", || rules.numbers().len() == 30);
    assert_eq!(sorted(rules.numbers()), (0..30).collect::<Vec<_>>());
    until("all are acknowledged", || pending(&server, "a") == "0");
    // A deleted group is created again.
    server.redis(&["XGROUP", "DESTROY", "a", "g"]);
    until("it begins anew", || rules.numbers().len() == 60);
}
