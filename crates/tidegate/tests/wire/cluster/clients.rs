//! Clients of all nodes, listed and ended at one of them.

use serde_json::{Value, json};

use super::support::{Cluster, get};
use crate::api::{ApiResponse, send};
use crate::support::{Connect, Node, Props, Raw, Subscribe, eventually, kind, unique};

const SESSION_EXPIRY_INTERVAL: u8 = 0x11;

fn delete(node: &Node, path: &str) -> ApiResponse {
    send(node, "", "DELETE", path, &Value::Null)
}

fn rows(node: &Node, path: &str) -> Vec<Value> {
    let answer = get(node, path);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["missing_nodes"], json!([]));
    answer.body["data"].as_array().unwrap().clone()
}

#[test]
fn any_node_lists_and_ends_the_clients_of_all_nodes() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let prefix = unique("everywhere-");
    let mut clients: Vec<Raw> = Vec::new();
    for (index, node) in cluster.nodes.iter().enumerate() {
        let mut connect = Connect::new(5, format!("{prefix}-{}", index + 1));
        if index == 1 {
            connect = connect.properties(Props::new().u32(SESSION_EXPIRY_INTERVAL, 600));
        }
        let mut raw = Raw::connect(node, &connect);
        raw.subscribe_for_codes(&Subscribe::new(1).filter("everywhere/+", 1));
        clients.push(raw);
    }
    let names = ["node-1", "node-2", "node-3"];
    for node in &cluster.nodes {
        for path in [
            format!("/api/v1/clients?client_id_contains={prefix}"),
            format!("/api/v1/sessions?client_id_contains={prefix}&sort=node"),
            format!("/api/v1/subscriptions?client_id_contains={prefix}"),
        ] {
            let nodes: Vec<_> = rows(node, &path)
                .iter()
                .map(|row| row["node"].clone())
                .collect();
            assert_eq!(nodes, names, "{path}");
        }
    }
    // A client of node 3, ended at node 1.
    let path = format!("/api/v1/clients/{prefix}-3");
    assert_eq!(get(&cluster.nodes[1], &path).body["node"], "node-3");
    let ended = delete(&cluster.nodes[0], &path);
    assert_eq!(ended.status, 204, "{}", ended.body);
    assert_eq!(clients[2].recv_packet().kind, kind::DISCONNECT);
    assert_eq!(delete(&cluster.nodes[0], &path).status, 404);

    // A session of node 2 without a connection, discarded at node 3.
    drop(clients.remove(1));
    let path = format!("/api/v1/sessions/{prefix}-2");
    eventually("the client of node 2 is disconnected", || {
        get(&cluster.nodes[2], &path).body["connected"] == false
    });
    let queue = get(&cluster.nodes[2], &format!("{path}/queue"));
    assert_eq!(queue.status, 409, "{}", queue.body);
    assert_eq!(delete(&cluster.nodes[2], &path).status, 204);
    assert_eq!(get(&cluster.nodes[1], &path).status, 404);
}
