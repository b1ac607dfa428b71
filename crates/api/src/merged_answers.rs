//! Makes one answer of those of several nodes.

use axum::response::Response;
use serde_json::{Value, json};

use crate::call::json_response;
use crate::problem_details::ProblemDetails;

/// The answer of one node.
#[derive(Debug)]
pub(crate) struct NodeAnswer {
    pub(crate) node: String,
    pub(crate) body: Value,
}

/// The merged answer, with the names of nodes that did not answer.
pub(crate) fn respond(
    mut body: Value,
    missing_nodes: Vec<String>,
) -> Result<Response, ProblemDetails> {
    if let Some(fields) = body.as_object_mut() {
        fields.insert("missing_nodes".to_owned(), json!(missing_nodes));
    }
    json_response(body)
}

/// Adds the numbers of all nodes.
pub(crate) fn add_numbers(answers: Vec<NodeAnswer>) -> Value {
    let mut sum = Value::Null;
    for answer in answers {
        add(&mut sum, answer.body);
    }
    sum
}

fn add(sum: &mut Value, value: Value) {
    match (sum, value) {
        (Value::Object(sum), Value::Object(fields)) => {
            for (name, value) in fields {
                add(sum.entry(name).or_insert(Value::Null), value);
            }
        }
        (sum @ Value::Null, value) => *sum = value,
        (sum, value) => {
            if let (Some(left), Some(right)) = (sum.as_u64(), value.as_u64()) {
                *sum = left.saturating_add(right).into();
            }
        }
    }
}

/// The rows of all nodes, the newest first if `time_field` names their time.
pub(crate) fn lists(answers: Vec<NodeAnswer>, time_field: Option<&str>) -> Value {
    let mut rows = Vec::new();
    for mut answer in answers {
        let Value::Array(of_node) = answer.body["data"].take() else {
            continue;
        };
        rows.extend(of_node.into_iter().map(|mut row| {
            row["node"] = answer.node.as_str().into();
            row
        }));
    }
    if let Some(field) = time_field {
        // Those of one time keep the order of their node.
        rows.sort_by_key(|row| std::cmp::Reverse(row[field].as_u64()));
    }
    json!({"data": rows, "next": null})
}

/// The counts of the first node, which has all devices, with those that are online at all nodes.
pub(crate) fn device_counts(answers: Vec<NodeAnswer>) -> Value {
    let online = answers.iter().map(|answer| answer.body["online"].as_u64());
    let online: u64 = online.flatten().sum();
    let first = answers.into_iter().next();
    let mut counts = first.map_or(Value::Null, |first| first.body);
    counts["online"] = online.into();
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    fn answer(node: &str, body: Value) -> NodeAnswer {
        NodeAnswer {
            node: node.to_owned(),
            body,
        }
    }

    #[test]
    fn lists_of_nodes_are_one_list() {
        let of = |node: &str, rows: Value| answer(node, json!({"data": rows, "next": null}));
        let answers = || {
            vec![
                of("a", json!([{"id": 2, "at": 5}, {"id": 1, "at": 1}])),
                of("b", json!([{"id": 9, "at": 3}])),
            ]
        };
        let ids = |list: &Value| -> Vec<(u64, String)> {
            let rows = list["data"].as_array().unwrap().iter();
            rows.map(|row| (row["id"].as_u64().unwrap(), row["node"].to_string()))
                .collect()
        };
        let [a, b] = ["\"a\"", "\"b\""].map(str::to_owned);
        let newest_first = lists(answers(), Some("at"));
        assert_eq!(
            ids(&newest_first),
            [(2, a.clone()), (9, b.clone()), (1, a.clone())]
        );
        assert_eq!(
            ids(&lists(answers(), None)),
            [(2, a.clone()), (1, a), (9, b)]
        );
    }

    #[test]
    fn devices_online_at_all_nodes_are_counted() {
        let of = |node: &str, online: u64| answer(node, json!({"devices": 5, "online": online}));
        let counts = device_counts(vec![of("a", 2), of("b", 1)]);
        assert_eq!(counts, json!({"devices": 5, "online": 3}));
    }

    #[test]
    fn numbers_of_nodes_are_added() {
        let sum = add_numbers(vec![
            answer("a", json!({"alarms": 1, "by_state": {"x": 2}})),
            answer("b", json!({"alarms": 3, "by_state": {"x": 4, "y": 1}})),
        ]);
        assert_eq!(sum, json!({"alarms": 4, "by_state": {"x": 6, "y": 1}}));
    }
}
