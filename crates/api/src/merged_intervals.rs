//! Merges the intervals of telemetry that several nodes have.
//!
//! Values of one interval are at several nodes if the device has moved meanwhile. The functions of both parts are combined;
//! `first` and `last` are those of one of the parts, because the times of these values are not known.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use axum::body::Bytes;
use serde_json::{Map, Value, json};
use series::Aggregate;

use crate::merged_answers::NodeAnswer;
use crate::query_parameters::QueryParameters;
use crate::telemetry_backend::{IntervalLength, IntervalQuery};

pub(crate) struct MergedIntervals {
    functions: Vec<Aggregate>,
    /// All values of a key are one interval, which begins at the first value of a node.
    is_open: bool,
    /// The parameters are members of the body, not of the query.
    pub(crate) is_in_body: bool,
}

impl MergedIntervals {
    /// Of a request whose parameters are in its path.
    pub(crate) fn from_query(query: &QueryParameters) -> Self {
        let functions = query.text_value("functions").unwrap_or("avg").split(',');
        let is_absent = |name: &str| query.text_value(name).is_none();
        Self {
            functions: functions.filter_map(Aggregate::from_name).collect(),
            is_open: ["from_ms", "interval", "interval_ms"]
                .into_iter()
                .all(is_absent),
            is_in_body: false,
        }
    }

    /// Of a query of this node.
    pub(crate) fn of_query(query: &IntervalQuery) -> Self {
        Self {
            functions: query.functions.clone(),
            is_open: query.from_ms.is_none() && query.length == IntervalLength::All,
            is_in_body: false,
        }
    }

    /// Of a request whose parameters are members of its body; also returns the body to send to each node. `None`: the body
    /// is invalid.
    pub(crate) fn from_body(body: &[u8]) -> Option<(Self, Bytes)> {
        let mut query: Value = serde_json::from_slice(body).ok()?;
        let names = match query.get("functions") {
            None => &[][..],
            Some(names) => names.as_array()?,
        };
        let names = names.iter();
        let mut functions: Vec<Aggregate> = names
            .map(|name| Aggregate::from_name(name.as_str()?))
            .collect::<Option<_>>()?;
        if functions.is_empty() {
            functions.push(Aggregate::Avg);
        }
        let merged = Self {
            functions,
            // The begin is required.
            is_open: false,
            is_in_body: true,
        };
        query.as_object_mut()?.insert(
            "functions".to_owned(),
            merged.functions().split(',').collect(),
        );
        Some((merged, query.to_string().into()))
    }

    /// The functions to ask each node for.
    pub(crate) fn needed_functions(&self) -> Vec<Aggregate> {
        let mut functions = self.functions.clone();
        // The average of several parts needs them.
        for needed in [Aggregate::Count, Aggregate::Sum] {
            if self.functions.contains(&Aggregate::Avg) && !self.functions.contains(&needed) {
                functions.push(needed);
            }
        }
        functions
    }

    /// The same as names, separated by commas.
    pub(crate) fn functions(&self) -> String {
        let functions = self.needed_functions();
        let names: Vec<&str> = functions.iter().map(|one| one.name()).collect();
        names.join(",")
    }

    pub(crate) fn merge(&self, answers: Vec<NodeAnswer>) -> Value {
        // In the order of the devices and keys in the answers.
        let mut series: Vec<BTreeMap<i64, Value>> = Vec::new();
        let mut places = HashMap::new();
        for mut answer in answers {
            let Value::Array(rows) = answer.body["data"].take() else {
                continue;
            };
            for row in rows {
                let (Some(key), Some(ts_ms)) = (row["key"].as_str(), row["ts_ms"].as_i64()) else {
                    continue;
                };
                // `None`: all devices, merged.
                let device = row["device"].as_str().map(str::to_owned);
                let at = *places.entry((device, key.to_owned())).or_insert_with(|| {
                    series.push(BTreeMap::new());
                    series.len() - 1
                });
                let intervals = &mut series[at];
                let known = match self.is_open {
                    true => intervals.pop_first(),
                    false => intervals.remove(&ts_ms).map(|known| (ts_ms, known)),
                };
                let (ts_ms, row) = match known {
                    None => (ts_ms, row),
                    Some((known_ms, known)) => (ts_ms.min(known_ms), combine(known, row)),
                };
                intervals.insert(ts_ms, row);
            }
        }
        let rows = series.into_iter().flatten();
        let rows = rows.map(|(ts_ms, mut row)| {
            row["ts_ms"] = ts_ms.into();
            let all = row["values"].take();
            let names = self.functions.iter().map(|function| function.name());
            let values = names.map(|name| (name.to_owned(), all[name].clone()));
            row["values"] = Value::Object(values.collect());
            row
        });
        json!({"data": rows.collect::<Vec<_>>()})
    }
}

/// Two parts of an interval.
fn combine(mut one: Value, other: Value) -> Value {
    let (Some(left), Some(right)) = (one["values"].as_object(), other["values"].as_object()) else {
        return one;
    };
    let mut values = Map::new();
    for (name, left) in left {
        let right = right.get(name).unwrap_or(&Value::Null);
        values.insert(name.clone(), combine_values(name, left, right));
    }
    if let (Some(sum), Some(count), true) = (
        values.get("sum").and_then(Value::as_f64),
        values.get("count").and_then(Value::as_f64),
        values.contains_key("avg"),
    ) {
        values.insert("avg".to_owned(), json!(sum / count));
    }
    one["values"] = Value::Object(values);
    one
}

fn combine_values(function: &str, left: &Value, right: &Value) -> Value {
    let (Some(left_number), Some(right_number)) = (left.as_f64(), right.as_f64()) else {
        let known = if left.is_null() { right } else { left };
        return known.clone();
    };
    let kept = |wanted: Ordering| match left_number.total_cmp(&right_number) == wanted {
        true => left.clone(),
        false => right.clone(),
    };
    match function {
        "min" => kept(Ordering::Less),
        "max" => kept(Ordering::Greater),
        "count" | "sum" => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => left
                .checked_add(right)
                .map_or_else(|| json!(left_number + right_number), Value::from),
            _ => json!(left_number + right_number),
        },
        _ => left.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query_parameters::{Parameter, text_parameter};

    const KNOWN: [Parameter; 3] = [
        text_parameter("functions", ""),
        text_parameter("from_ms", ""),
        text_parameter("interval_ms", ""),
    ];

    fn intervals(query: &str) -> MergedIntervals {
        let uri = format!("/x?{query}").parse().unwrap();
        MergedIntervals::from_query(&QueryParameters::read(&uri, &KNOWN).unwrap())
    }

    fn answer(rows: &[(i64, Value)]) -> NodeAnswer {
        let rows = rows.iter().map(
            |(ts_ms, values)| json!({"device": "d", "key": "t", "ts_ms": ts_ms, "values": values}),
        );
        NodeAnswer {
            node: "a".to_owned(),
            body: json!({"data": rows.collect::<Vec<_>>()}),
        }
    }

    #[test]
    fn intervals_of_nodes_are_combined() {
        let merged = intervals("functions=avg,min,max&from_ms=0&interval_ms=10");
        assert_eq!(merged.functions(), "avg,min,max,count,sum");
        let merged = merged.merge(vec![
            answer(&[
                (
                    0,
                    json!({"avg": 2.0, "min": 1, "max": 3, "count": 2, "sum": 4}),
                ),
                (
                    10,
                    json!({"avg": 5.0, "min": 5, "max": 5, "count": 1, "sum": 5}),
                ),
            ]),
            answer(&[
                (
                    10,
                    json!({"avg": 8.0, "min": 8, "max": 8, "count": 2, "sum": 16}),
                ),
                (
                    20,
                    json!({"avg": 1.0, "min": 1, "max": 1, "count": 1, "sum": 1}),
                ),
            ]),
        ]);
        let rows: Vec<_> = merged["data"].as_array().unwrap().iter().collect();
        let times: Vec<_> = rows.iter().map(|row| &row["ts_ms"]).collect();
        assert_eq!(times, [0, 10, 20]);
        assert_eq!(rows[0]["values"], json!({"avg": 2.0, "min": 1, "max": 3}));
        assert_eq!(rows[1]["values"], json!({"avg": 7.0, "min": 5, "max": 8}));
    }

    #[test]
    fn intervals_of_several_devices_are_combined() {
        let query = json!({"devices": ["d", "e"], "keys": ["t"], "from_ms": 0, "interval_ms": 10});
        let (merged, body) = MergedIntervals::from_body(query.to_string().as_bytes()).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["functions"], json!(["avg", "count", "sum"]));
        assert_eq!(body["devices"], query["devices"]);
        let row = |device: Option<&str>, ts_ms: i64, value: f64| {
            json!({"device": device, "key": "t", "ts_ms": ts_ms,
                "values": {"avg": value, "count": 1, "sum": value}})
        };
        let answer = |rows: Value| NodeAnswer {
            node: "a".to_owned(),
            body: json!({"data": rows}),
        };
        let combined = merged.merge(vec![
            answer(json!([row(Some("d"), 0, 1.0), row(Some("e"), 0, 5.0)])),
            answer(json!([row(Some("d"), 0, 3.0), row(Some("d"), 10, 7.0)])),
        ]);
        let rows = combined["data"].as_array().unwrap().iter();
        let rows: Vec<_> = rows
            .map(|row| json!([row["device"], row["ts_ms"], row["values"]]))
            .collect();
        assert_eq!(
            rows,
            [
                json!(["d", 0, {"avg": 2.0}]),
                json!(["d", 10, {"avg": 7.0}]),
                json!(["e", 0, {"avg": 5.0}]),
            ]
        );
        let combined = merged.merge(vec![
            answer(json!([row(None, 0, 1.0)])),
            answer(json!([row(None, 0, 2.0)])),
        ]);
        assert_eq!(combined["data"][0]["values"]["avg"], 1.5);
        assert!(MergedIntervals::from_body(br#"{"functions": ["mode"]}"#).is_none());
        assert!(MergedIntervals::from_body(br#"{"functions": "max"}"#).is_none());
        assert!(MergedIntervals::from_body(b"[]").is_none());
    }

    #[test]
    fn an_interval_of_everything_begins_at_the_first_value() {
        let merged = intervals("functions=sum");
        let merged = merged.merge(vec![
            answer(&[(7, json!({"sum": 1}))]),
            answer(&[(5, json!({"sum": 2}))]),
        ]);
        assert_eq!(merged["data"][0]["ts_ms"], 5);
        assert_eq!(merged["data"][0]["values"]["sum"], 3);
        assert_eq!(merged["data"].as_array().unwrap().len(), 1);
    }
}
