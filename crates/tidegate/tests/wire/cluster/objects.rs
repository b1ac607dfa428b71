//! Configuration objects are the same on all nodes.

use serde_json::{Value, json};

use super::support::{Cluster, get, status};
use crate::api::{ApiResponse, send};
use crate::support::{Node, eventually, unique};

pub(super) fn put_rule(node: &Node, name: &str, sql: &str) -> ApiResponse {
    let rule = json!({"sql": sql, "actions": []});
    send(node, "", "PUT", &format!("/api/v1/rules/{name}"), &rule)
}

fn rule(node: &Node, name: &str) -> ApiResponse {
    get(node, &format!("/api/v1/rules/{name}"))
}

#[test]
fn an_object_changed_at_any_node_is_the_same_at_all() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let name = unique("r").replace('/', "-");
    let created = put_rule(&cluster.nodes[0], &name, "SELECT * FROM \"a\"");
    assert_eq!(created.status, 201, "{}", created.body);
    for node in &cluster.nodes {
        eventually("the node has the rule", || rule(node, &name).status == 200);
        assert_eq!(rule(node, &name).body["version"], created.body["version"]);
    }
    let changed = put_rule(&cluster.nodes[2], &name, "SELECT * FROM \"b\"");
    assert_eq!(changed.status, 200, "{}", changed.body);
    eventually("the first node has the change", || {
        rule(&cluster.nodes[0], &name).body["sql"] == "SELECT * FROM \"b\""
    });
    let path = format!("/api/v1/rules/{name}");
    let deleted = send(&cluster.nodes[1], "", "DELETE", &path, &Value::Null);
    assert_eq!(deleted.status, 204, "{}", deleted.body);
    for node in &cluster.nodes {
        eventually("the rule is gone", || rule(node, &name).status == 404);
    }
}

/// A client without preconditions replaces what the object is now (RFC 9110, 15.5.13: 412 is for conditions of the request).
#[test]
fn changes_at_several_nodes_at_once_wait_for_each_other() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let name = unique("r").replace('/', "-");
    std::thread::scope(|scope| {
        for node in &cluster.nodes {
            let name = &name;
            scope.spawn(move || {
                for number in 0..5 {
                    let changed = put_rule(node, name, &format!("SELECT {number} FROM \"a\""));
                    assert!(matches!(changed.status, 200 | 201), "{}", changed.body);
                }
            });
        }
    });
    let path = format!("/api/v1/rules/{name}");
    let deleted = send(&cluster.nodes[0], "", "DELETE", &path, &Value::Null);
    assert_eq!(deleted.status, 204, "{}", deleted.body);
}

#[test]
fn an_object_is_created_once_although_all_nodes_are_asked_at_once() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let name = unique("r").replace('/', "-");
    let rule = json!({"name": name, "sql": "SELECT * FROM \"a\"", "actions": []});
    let mut statuses: Vec<u16> = std::thread::scope(|scope| {
        let requests = cluster.nodes.iter().map(|node| {
            let rule = &rule;
            scope.spawn(move || send(node, "", "POST", "/api/v1/rules", rule).status)
        });
        let requests: Vec<_> = requests.collect();
        let answers = requests.into_iter().map(|request| request.join().unwrap());
        answers.collect()
    });
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409]);
}

#[test]
fn a_fresh_cluster_has_one_first_operator() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    for node in &cluster.nodes {
        eventually("the node has the objects of the cluster", || {
            status(node)["objects"]["is_synchronized"] == true
        });
        let operators = get(node, "/api/v1/operators");
        let names: Vec<_> = operators.body["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|operator| operator["username"].clone())
            .collect();
        assert_eq!(names, ["admin"], "{}", operators.body);
        assert_eq!(status(node)["objects"]["conflicts"], json!([]));
    }
}
