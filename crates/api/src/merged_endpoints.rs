//! Merges what nodes know of relay endpoints, whose connections are at different nodes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::merged_answers::NodeAnswer;
use crate::query_parameters::{PageCursor, QueryParameters};

/// Fields of the state of an endpoint that are added. Others are those of the first node.
const COUNTS: [&str; 7] = [
    "current_connections",
    "total_connections",
    "rejected_connections",
    "total_messages",
    "total_bytes",
    "dropped_messages",
    "messages_per_minute",
];
const LAST_ACTIVE: &str = "last_active_at_ms";

/// Adds the statistics of another node to those of an endpoint.
fn add_statistics(known: &mut Value, other: &Value) {
    for count in COUNTS {
        let sum = known[count].as_u64().unwrap_or_default();
        known[count] = sum
            .saturating_add(other[count].as_u64().unwrap_or_default())
            .into();
    }
    let last = known[LAST_ACTIVE].as_u64().max(other[LAST_ACTIVE].as_u64());
    known[LAST_ACTIVE] = last.unwrap_or_default().into();
}

/// The statistics of one endpoint over all nodes.
pub(crate) fn status(answers: Vec<NodeAnswer>) -> Value {
    let mut answers = answers.into_iter();
    let mut sum = answers.next().map_or(Value::Null, |first| first.body);
    for answer in answers {
        add_statistics(&mut sum, &answer.body);
    }
    sum
}

/// A page of the statistics of endpoints over all nodes.
pub(crate) fn statuses(answers: Vec<NodeAnswer>, query: &QueryParameters) -> Value {
    merge_pages(answers, "id", query.limit(), |known, other| {
        add_statistics(known, &other);
    })
}

/// A page of the connections of an endpoint. A connection id is unique, because it is random.
pub(crate) fn connections(answers: Vec<NodeAnswer>, query: &QueryParameters) -> Value {
    let mut answers = answers;
    for answer in &mut answers {
        add_node(&mut answer.body["data"], &answer.node);
    }
    merge_pages(answers, "connection_id", query.limit(), |_, _| ())
}

/// The last messages of an endpoint, newest first.
pub(crate) fn messages(answers: Vec<NodeAnswer>) -> Value {
    let mut messages = Vec::new();
    for mut answer in answers {
        add_node(&mut answer.body, &answer.node);
        if let Value::Array(of_node) = answer.body {
            messages.extend(of_node);
        }
    }
    // Those of one node keep their order.
    messages.sort_by_key(|message| std::cmp::Reverse(message["at_ms"].as_u64()));
    messages.into()
}

fn add_node(rows: &mut Value, node: &str) {
    for row in rows.as_array_mut().into_iter().flatten() {
        row["node"] = node.into();
    }
}

/// Merges pages that are sorted by a field with a name. `combine` adds a row of another node with the same name.
fn merge_pages(
    answers: Vec<NodeAnswer>,
    name: &str,
    limit: usize,
    combine: impl Fn(&mut Value, Value),
) -> Value {
    let mut rows = BTreeMap::<String, Value>::new();
    // Behind the last row of a page that has a next one, rows of its node are missing.
    let mut end: Option<String> = None;
    for mut answer in answers {
        let Value::Array(page) = answer.body["data"].take() else {
            continue;
        };
        let mut last = None;
        for row in page {
            let id = row[name].as_str().unwrap_or_default().to_owned();
            last = Some(id.clone());
            match rows.get_mut(&id) {
                Some(known) => combine(known, row),
                None => {
                    rows.insert(id, row);
                }
            }
        }
        if answer.body["next"].is_string() {
            end = [end, last].into_iter().flatten().min();
        }
    }
    if let Some(end) = &end {
        rows.retain(|id, _| id <= end);
    }
    let has_more = end.is_some() || rows.len() > limit;
    let rows: Vec<(String, Value)> = rows.into_iter().take(limit).collect();
    let last = rows.last().filter(|_| has_more);
    let next = last.map(|(id, _)| PageCursor::new(id, "").encode());
    let data: Vec<Value> = rows.into_iter().map(|(_, row)| row).collect();
    json!({"data": data, "next": next})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query_parameters::{AFTER, LIMIT};

    fn query(query: &str) -> QueryParameters {
        let uri = format!("/rows?{query}").parse().unwrap();
        QueryParameters::read(&uri, &[LIMIT, AFTER]).unwrap()
    }

    fn answer(node: &str, body: Value) -> NodeAnswer {
        NodeAnswer {
            node: node.to_owned(),
            body,
        }
    }

    #[test]
    fn statistics_of_nodes_are_added() {
        let of = |node: &str, connections: u64, last: u64| {
            answer(
                node,
                json!({"id": "e", "is_enabled": true, "current_connections": connections, "last_active_at_ms": last}),
            )
        };
        let sum = status(vec![of("a", 2, 5), of("b", 1, 9)]);
        assert_eq!(
            (
                &sum["current_connections"],
                &sum["last_active_at_ms"],
                &sum["is_enabled"]
            ),
            (&json!(3), &json!(9), &json!(true))
        );
    }

    #[test]
    fn pages_of_endpoints_are_merged_by_their_ids() {
        let page = |node: &str, ids: &[&str], has_next: bool| {
            let rows = ids
                .iter()
                .map(|id| json!({"id": id, "total_messages": 1, "current_connections": 0}));
            let next = has_next.then_some("cursor");
            answer(
                node,
                json!({"data": rows.collect::<Vec<_>>(), "next": next}),
            )
        };
        let counts = |merged: &Value| -> Vec<(String, u64)> {
            let rows = merged["data"].as_array().unwrap().iter();
            rows.map(|row| {
                let id = row["id"].as_str().unwrap().to_owned();
                (id, row["total_messages"].as_u64().unwrap())
            })
            .collect()
        };
        let merged = statuses(
            vec![page("a", &["x", "y"], false), page("b", &["x", "z"], false)],
            &query("limit=5"),
        );
        let expected = [("x", 2), ("y", 1), ("z", 1)].map(|(id, count)| (id.to_owned(), count));
        assert_eq!(counts(&merged), expected);
        assert_eq!(merged["next"], Value::Null);
        // What follows x at node a is not known.
        let merged = statuses(
            vec![page("a", &["x"], true), page("b", &["x", "z"], false)],
            &query("limit=5"),
        );
        assert_eq!(counts(&merged), expected[..1]);
        let next = merged["next"].as_str().unwrap();
        assert_eq!(next, PageCursor::new("x", "").encode());
    }

    #[test]
    fn connections_and_messages_have_their_node() {
        let page = |node: &str, id: &str| {
            let rows = json!([{"connection_id": id, "connected_at_ms": 1}]);
            answer(node, json!({"data": rows, "next": null}))
        };
        let merged = connections(vec![page("a", "2"), page("b", "1")], &query("limit=1"));
        assert_eq!(merged["data"][0]["node"], "b");
        assert!(merged["next"].is_string());
        let list = |node: &str, times: &[u64]| {
            let rows = times
                .iter()
                .map(|at_ms| json!({"at_ms": at_ms, "text": node}));
            answer(node, rows.collect())
        };
        let merged = messages(vec![list("a", &[5, 3]), list("b", &[4])]);
        let rows = merged.as_array().unwrap().iter();
        let nodes: Vec<_> = rows.map(|row| row["node"].clone()).collect();
        assert_eq!(nodes, ["a", "b", "a"]);
    }
}
