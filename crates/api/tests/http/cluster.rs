//! Clients, sessions and subscriptions of several nodes, asked for at one of them.

use std::sync::Arc;

use serde_json::json;

use crate::client::{delete, get, request};
use crate::fake::{FakeCluster, FakeState, Server, client, subscription};
use crate::{column, pages};

fn node(clients: &[(&str, bool)]) -> Arc<FakeState> {
    let state = FakeState::with_clients(0);
    let rows = clients.iter().map(|(id, connected)| client(id, *connected));
    *state.clients.lock().unwrap() = rows.collect();
    state
}

/// Asks `node-2`, whose peers are `node-1` and `node-3`.
async fn start(
    own: &Arc<FakeState>,
    first: Option<&Arc<FakeState>>,
    third: Option<&Arc<FakeState>>,
) -> Server {
    let others = vec![("node-1", first.cloned()), ("node-3", third.cloned())];
    let cluster = FakeCluster::new("node-2", others);
    assert!(own.cluster.set(cluster).is_ok());
    Server::start(own).await
}

#[tokio::test]
async fn lists_contain_the_rows_of_all_nodes_in_order() {
    let first = node(&[("a", true), ("e", true), ("f", false)]);
    let own = node(&[("b", true), ("g", true)]);
    let third = node(&[("c", true), ("d", true)]);
    for (state, rows) in [
        (&first, ["a", "e"]),
        (&own, ["b", "b"]),
        (&third, ["c", "d"]),
    ] {
        let rows = rows.iter().zip(["x/1", "x/2"]);
        let rows = rows.map(|(client, filter)| subscription(client, filter));
        *state.subscriptions.lock().unwrap() = rows.collect();
    }
    let server = start(&own, Some(&first), Some(&third)).await;

    for limit in 1..=7 {
        let path = format!("/api/v1/clients?limit={limit}");
        let rows = pages(&server, &path).await;
        assert!(rows.iter().all(|page| page.len() <= limit));
        assert_eq!(
            column(&rows, "client_id").concat(),
            "abcdeg",
            "limit {limit}"
        );
        let nodes = ["node-1", "node-2", "node-3", "node-3", "node-1", "node-2"];
        assert_eq!(column(&rows, "node"), nodes);

        let path = format!("/api/v1/sessions?sort=-client_id&limit={limit}");
        let rows = pages(&server, &path).await;
        assert_eq!(
            column(&rows, "client_id").concat(),
            "gfedcba",
            "limit {limit}"
        );
        let path = format!("/api/v1/sessions?sort=node&limit={limit}");
        let rows = pages(&server, &path).await;
        assert_eq!(
            column(&rows, "client_id").concat(),
            "aefbgcd",
            "limit {limit}"
        );

        let path = format!("/api/v1/subscriptions?limit={limit}");
        let rows = pages(&server, &path).await;
        assert_eq!(
            column(&rows, "client_id").concat(),
            "abbcde",
            "limit {limit}"
        );
        let filters = ["x/1", "x/1", "x/2", "x/1", "x/2", "x/2"];
        assert_eq!(column(&rows, "topic_filter"), filters);
    }
    let page = get(server.address, "/api/v1/clients").await.json();
    assert_eq!(page["missing_nodes"], json!([]));
}

#[tokio::test]
async fn nodes_without_an_answer_are_named() {
    let own = node(&[("b", true)]);
    let third = node(&[("c", false)]);
    let server = start(&own, None, Some(&third)).await;
    for path in ["/api/v1/sessions", "/api/v1/sessions?sort=username"] {
        let page = get(server.address, path).await.json();
        assert_eq!(page["missing_nodes"], json!(["node-1"]));
        assert_eq!(page["data"].as_array().unwrap().len(), 2);
    }
    let page = get(server.address, "/api/v1/subscriptions").await.json();
    assert_eq!(page["missing_nodes"], json!(["node-1"]));

    // A client that is known somewhere is found; any other one may be at the node that does not answer.
    let known = get(server.address, "/api/v1/sessions/c").await;
    assert_eq!(
        (known.status, &known.json()["node"]),
        (200, &json!("node-3"))
    );
    for path in ["/api/v1/sessions/x", "/api/v1/clients/x"] {
        for answer in [
            get(server.address, path).await,
            delete(server.address, path).await,
        ] {
            assert_eq!(answer.status, 503, "{}", answer.body);
            assert!(answer.problem().contains("node-1"), "{}", answer.body);
        }
    }
}

#[tokio::test]
async fn clients_and_sessions_of_other_nodes_are_ended() {
    let first = node(&[("a", true), ("s", false)]);
    let own = node(&[("b", true)]);
    let third = node(&[("s", true)]);
    let server = start(&own, Some(&first), Some(&third)).await;

    let found = get(server.address, "/api/v1/clients/a").await;
    assert_eq!(found.json()["node"], "node-1");
    assert_eq!(
        delete(server.address, "/api/v1/clients/a").await.status,
        204
    );
    assert_eq!(
        delete(server.address, "/api/v1/clients/a").await.status,
        404
    );
    assert_eq!(first.clients.lock().unwrap().len(), 1);

    // While two nodes have a session of the client, that of the connection counts.
    let connected = delete(server.address, "/api/v1/sessions/s").await;
    assert_eq!(connected.status, 409, "{}", connected.body);
    assert_eq!(
        delete(server.address, "/api/v1/clients/s").await.status,
        204
    );
    assert!(third.clients.lock().unwrap().is_empty());
    assert_eq!(
        delete(server.address, "/api/v1/sessions/s").await.status,
        204
    );
    assert!(first.clients.lock().unwrap().is_empty());
    assert_eq!(get(server.address, "/api/v1/sessions/s").await.status, 404);
    assert_eq!(own.clients.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn other_requests_for_a_session_name_its_node() {
    let own = node(&[("b", true)]);
    let first = node(&[("a", true)]);
    let third = node(&[]);
    let server = start(&own, Some(&first), Some(&third)).await;
    let subscriptions = "/api/v1/sessions/a/subscriptions";
    let body = json!({"topic_filter": "x"}).to_string();
    let fields = "Content-Type: application/json\r\n";
    for answer in [
        request(server.address, "POST", subscriptions, fields, &body).await,
        delete(server.address, &format!("{subscriptions}/x")).await,
        get(server.address, "/api/v1/sessions/a/queue").await,
        delete(server.address, "/api/v1/sessions/a/queue").await,
        delete(server.address, "/api/v1/sessions/a/queue/1").await,
    ] {
        assert_eq!(answer.status, 409, "{}", answer.body);
        assert!(answer.problem().contains("node-1"), "{}", answer.body);
    }
    let unknown = get(server.address, "/api/v1/sessions/x/queue").await;
    assert_eq!(unknown.status, 404, "{}", unknown.body);
}

#[tokio::test]
async fn a_rebalancing_is_refused_with_the_reason_and_cancelled() {
    let own = node(&[]);
    let server = start(&own, None, None).await;
    const PATH: &str = "/api/v1/cluster/rebalance";
    let refused = request(server.address, "POST", PATH, "", "").await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert_eq!(refused.problem(), "Nothing is to be done.");
    let cancelled = delete(server.address, PATH).await;
    assert_eq!(cancelled.status, 204, "{}", cancelled.body);
    let audit = get(server.address, "/api/v1/audit-log?action=cluster.").await;
    let audit = audit.json();
    let entries = audit["data"].as_array().unwrap().iter();
    let actions: Vec<_> = entries.map(|entry| &entry["action"]).collect();
    // What was refused is not in it.
    assert_eq!(actions, ["cluster.cancel_rebalance"]);

    let alone = Server::start(&node(&[])).await;
    assert_eq!(get(alone.address, PATH).await.status, 404);
}
