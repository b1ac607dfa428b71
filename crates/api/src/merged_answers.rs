//! Makes one answer of those of several nodes.

use std::collections::BTreeMap;

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::call::json_response;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::QueryParameters;
use crate::telemetry_backend::DEFAULT_ROWS;

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

/// The latest value of each key.
pub(crate) fn latest_values(answers: Vec<NodeAnswer>) -> Value {
    let mut merged = Value::Null;
    for mut answer in answers {
        if merged.is_null() {
            merged = answer.body;
            continue;
        }
        let (Some(known), Some(values)) = (
            merged["values"].as_object_mut(),
            answer.body["values"].as_object_mut(),
        ) else {
            continue;
        };
        for (key, value) in std::mem::take(values) {
            let is_later = known
                .get(&key)
                .is_none_or(|known| known["ts_ms"].as_i64() < value["ts_ms"].as_i64());
            if is_later {
                known.insert(key, value);
            }
        }
    }
    merged
}

/// Rows by their times. Values of one time that are at several nodes are one row.
pub(crate) fn telemetry_rows(answers: Vec<NodeAnswer>, query: &QueryParameters) -> Value {
    let is_descending = query.text_value("order") == Some("desc");
    let limit = query.text_value("rows").and_then(|rows| rows.parse().ok());
    let limit: usize = limit.unwrap_or(DEFAULT_ROWS);
    // By the time, or the time with the other sign, so that the first ones come first.
    let place = |ts_ms: i64| if is_descending { -ts_ms } else { ts_ms };
    let mut rows = BTreeMap::<i64, Map<String, Value>>::new();
    let mut device = Value::Null;
    // Behind the last row of a truncated answer, rows of its node are missing.
    let mut end: Option<i64> = None;
    for mut answer in answers {
        device = answer.body["device"].take();
        let Value::Array(of_node) = answer.body["rows"].take() else {
            continue;
        };
        let mut last = None;
        for mut row in of_node {
            let Some(ts_ms) = row["ts_ms"].as_i64() else {
                continue;
            };
            last = Some(place(ts_ms));
            if let Value::Object(values) = row["values"].take() {
                rows.entry(place(ts_ms)).or_default().extend(values);
            }
        }
        if answer.body["is_truncated"] == true {
            end = [end, last].into_iter().flatten().min();
        }
    }
    if let Some(end) = end {
        rows.retain(|place, _| *place <= end);
    }
    let is_truncated = end.is_some() || rows.len() > limit;
    let rows = rows.into_iter().take(limit);
    let rows: Vec<Value> = rows
        .map(|(at, values)| json!({"ts_ms": place(at), "values": values}))
        .collect();
    json!({"device": device, "rows": rows, "is_truncated": is_truncated})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query_parameters::{Parameter, ParameterType};

    const ROWS: Parameter = Parameter {
        name: "rows",
        description: "",
        shape: ParameterType::Number(1, 100),
    };
    const ORDER: Parameter = Parameter {
        name: "order",
        description: "",
        shape: ParameterType::Words(&["asc", "desc"]),
    };
    const KNOWN: [Parameter; 2] = [ROWS, ORDER];
    fn query(query: &str) -> QueryParameters {
        QueryParameters::read(&format!("/rows?{query}").parse().unwrap(), &KNOWN).unwrap()
    }

    fn answer(node: &str, body: Value) -> NodeAnswer {
        NodeAnswer {
            node: node.to_owned(),
            body,
        }
    }

    #[test]
    fn telemetry_of_nodes_is_merged_by_time() {
        let part = |node: &str, times: &[i64], is_truncated: bool| {
            let rows = times
                .iter()
                .map(|ts| json!({"ts_ms": ts, "values": {node: ts}}));
            let rows: Vec<_> = rows.collect();
            answer(
                node,
                json!({"device": "d", "rows": rows, "is_truncated": is_truncated}),
            )
        };
        let times = |merged: &Value| -> Vec<i64> {
            let rows = merged["rows"].as_array().unwrap().iter();
            rows.map(|row| row["ts_ms"].as_i64().unwrap()).collect()
        };
        let parts = vec![part("a", &[1, 4, 5], false), part("b", &[2, 4], false)];
        let merged = telemetry_rows(parts, &query("rows=10"));
        assert_eq!(times(&merged), [1, 2, 4, 5]);
        assert_eq!(merged["rows"][2]["values"], json!({"a": 4, "b": 4}));
        assert_eq!(merged["is_truncated"], false);
        // Node b has further rows behind 2, perhaps before 4.
        let parts = vec![part("a", &[1, 4, 5], false), part("b", &[2], true)];
        let merged = telemetry_rows(parts, &query("rows=10"));
        assert_eq!(
            (times(&merged), &merged["is_truncated"]),
            (vec![1, 2], &json!(true))
        );
        let parts = vec![part("a", &[5, 4, 1], false), part("b", &[6, 2], false)];
        let merged = telemetry_rows(parts, &query("rows=3&order=desc"));
        assert_eq!(
            (times(&merged), &merged["is_truncated"]),
            (vec![6, 5, 4], &json!(true))
        );
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
    fn the_latest_value_of_each_key_is_found() {
        let of = |node: &str, values: Value| answer(node, json!({"device": "d", "values": values}));
        let merged = latest_values(vec![
            of(
                "a",
                json!({"x": {"ts_ms": 1, "value": 1}, "y": {"ts_ms": 5, "value": 2}}),
            ),
            of(
                "b",
                json!({"x": {"ts_ms": 2, "value": 3}, "y": {"ts_ms": 4, "value": 4}}),
            ),
        ]);
        assert_eq!(merged["values"]["x"]["value"], 3);
        assert_eq!(merged["values"]["y"]["value"], 2);
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
