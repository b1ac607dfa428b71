//! The history of the node's own metrics, and limits with their use.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::client::get;
use crate::fake::{FakeState, Server};

async fn read(server: &Server, path: &str) -> Value {
    let answer = get(server.address, path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

#[tokio::test]
async fn metrics_are_recorded_from_the_start() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let listed = async {
        while read(&server, "/api/v1/node/metrics").await["data"] == json!([]) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), listed)
        .await
        .expect("the first sample");
    let metrics = read(&server, "/api/v1/node/metrics").await;
    let names: Vec<_> = metrics["data"].as_array().unwrap().iter().collect();
    assert!(
        names.iter().any(|metric| metric["name"] == "connections"),
        "{metrics}"
    );
    assert!(
        names
            .iter()
            .any(|metric| metric["name"] == "rules_matched_per_s"),
        "{metrics}"
    );
    let path = "/api/v1/node/history?metrics=connections,rules_matched_per_s&interval_ms=60000";
    let table = read(&server, path).await;
    assert_eq!(table["interval_ms"], 60_000);
    let connections = table["columns"][0]["avg"].as_array().unwrap();
    assert_eq!(connections.len(), table["ts_ms"].as_array().unwrap().len());
    assert!(connections.iter().any(|value| *value == 3.0), "{table}");
    for (status, query) in [
        (400, ""),
        (400, "?metrics=connections&from_ms=0&interval_ms=1000"),
        (400, "?metrics=connections&from_ms=5&to_ms=4"),
        (404, "?metrics=none"),
    ] {
        let answer = get(server.address, &format!("/api/v1/node/history{query}")).await;
        assert_eq!(answer.status, status, "{query}: {}", answer.body);
    }
}

#[tokio::test]
async fn limits_have_their_utilisation() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let limits = read(&server, "/api/v1/limits").await;
    let rows = limits["data"].as_array().unwrap();
    let listener = rows
        .iter()
        .find(|row| row["setting"] == "listener.mqtt.max_connections");
    let listener = listener.unwrap_or_else(|| panic!("{limits}"));
    assert_eq!(
        (&listener["used"], &listener["limit"]),
        (&json!(7.0), &json!(10.0))
    );
    assert_eq!(listener["utilisation"], 0.7);
}
