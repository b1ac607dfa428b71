//! Elasticsearch connector against a simulated server that answers bulk requests as documented.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::bench::ConnectorFixture;
use crate::http::{HttpServer, ReceivedRequest, Reply};

/// Documents by index and id.
type StoredDocuments = Arc<Mutex<BTreeMap<(String, String), Value>>>;

fn bulk(
    asked: &ReceivedRequest,
    documents: &StoredDocuments,
    seen: &Mutex<BTreeSet<String>>,
) -> Reply {
    if asked.method == "GET" {
        let version = json!({"version": {"number": "2.19.1", "distribution": "opensearch"}});
        return (200, Vec::new(), version.to_string());
    }
    assert_eq!(
        (asked.path.as_str(), asked.header("content-type")),
        ("/_bulk", "application/x-ndjson")
    );
    if asked.header("authorization") != "Basic dGlkZTpnYXRl" {
        return (401, Vec::new(), "no".into());
    }
    let mut lines = asked.body.lines();
    let mut items = Vec::new();
    let mut has_errors = false;
    while let Some(action) = lines.next() {
        let action: Value = serde_json::from_str(action).unwrap();
        let (name, target) = action.as_object().unwrap().iter().next().unwrap();
        let document: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let key = (text(&target["_index"]), text(&target["_id"]));
        let is_busy = document["n"].as_u64().is_some_and(|n| n % 10 == 3)
            && seen.lock().unwrap().insert(key.1.clone());
        let mut documents = documents.lock().unwrap();
        let result = if document["n"].is_string() {
            json!({"status": 400, "error": {"type": "mapper_parsing_exception", "reason": "failed to parse field [n]"}})
        } else if is_busy {
            json!({"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "busy"}})
        } else if name == "create" && documents.contains_key(&key) {
            json!({"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "exists"}})
        } else {
            documents.insert(key, document);
            json!({"status": 201, "result": "created"})
        };
        has_errors |= result.get("error").is_some();
        items.push(json!({name.as_str(): result}));
    }
    let answer = json!({"took": 1, "errors": has_errors, "items": items});
    (200, Vec::new(), answer.to_string())
}

fn start() -> (HttpServer, StoredDocuments) {
    let documents = StoredDocuments::default();
    let shared = documents.clone();
    let seen = Mutex::default();
    (
        HttpServer::start(move |asked| bulk(asked, &shared, &seen)),
        documents,
    )
}

fn connector(server: &HttpServer) -> Value {
    json!({"type": "elasticsearch", "urls": [server.url()], "username": "tide", "password": "gate"})
}

#[test]
fn items_are_settled_one_by_one() {
    let (server, documents) = start();
    let sink = json!({"index": "Logs-%Y.%m.%d", "id": "${id}", "batch": {"max_rows": 50}});
    let bench = ConnectorFixture::new(connector(&server), sink);
    assert_eq!(bench.test().unwrap(), "OpenSearch 2.19.1");
    for n in 0..20 {
        bench.push(json!({"n": n, "id": format!("d{n}"), "timestamp": 1_000_000_000_000_u64}));
    }
    bench.push(json!({"n": "no number", "id": "bad"}));
    let metrics = bench.until_settled(21);
    assert_eq!((metrics.sent, metrics.failed), (20, 1));
    let letters = bench.letters();
    assert!(
        letters[0].0.contains("mapper_parsing_exception"),
        "{letters:?}"
    );
    assert_eq!(letters[0].1["id"], "bad");
    let documents = documents.lock().unwrap();
    let key = |n| ("logs-2001.09.09".to_owned(), format!("d{n}"));
    assert!((0..20).all(|n| documents[&key(n)]["n"] == n));
    drop(documents);
    bench.stop();
}

#[test]
fn everything_is_there_once_though_answers_are_lost_and_the_server_is_down() {
    for action in ["index", "create"] {
        let (server, documents) = start();
        server.lose_every(5);
        let sink = json!({"index": "t", "action": action, "batch": {"max_rows": 100}});
        let bench = ConnectorFixture::new(connector(&server), sink);
        bench.push_during_outage(&server, 500);
        let documents = documents.lock().unwrap();
        let numbers: BTreeSet<_> = documents
            .values()
            .map(|d| d["n"].as_u64().unwrap())
            .collect();
        assert_eq!((documents.len(), numbers.len()), (3000, 3000));
        drop(documents);
        bench.stop();
    }
}

#[test]
fn rows_that_would_spoil_a_request_are_dead_letters() {
    let (server, documents) = start();
    let sink = json!({"index": "${topic}", "document": "{\"n\": ${n},\n \"t\": 1}"});
    let bench = ConnectorFixture::new(connector(&server), sink);
    bench.push(json!({"n": 1, "topic": "good"}));
    bench.push(json!({"n": "1}\n{", "topic": "good"}));
    bench.push(json!({"n": 1, "topic": "_bad"}));
    bench.push(json!({"n": 2, "topic": "good"}));
    let metrics = bench.until_settled(4);
    assert_eq!((metrics.sent, metrics.failed), (2, 2));
    assert_eq!(documents.lock().unwrap().len(), 2);
    bench.stop();
}
