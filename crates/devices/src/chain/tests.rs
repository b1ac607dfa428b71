use std::sync::Mutex;

use bumpalo::Bump;
use rules::{EvaluationResources, EvaluationScratch};
use serde_json::json;
use series::{KeyId, Point, PointValue};

use super::*;
use crate::ingest::PipelineOutputs;

const KEYS: [&str; 5] = ["temperature", "humidity", "status", "double", "label"];

#[derive(Default)]
struct RecordingOutputs(Mutex<Vec<String>>);

impl PipelineOutputs for RecordingOutputs {
    fn republish(&self, topic: &str, payload: &[u8], qos: u8, _: bool) {
        let payload = String::from_utf8_lossy(payload);
        let said = format!("{topic} {qos} {payload}");
        self.0.lock().unwrap().push(said);
    }

    fn write_to_sink(&self, name: &str, row: rules::Value<'_>) {
        let mut json = Vec::new();
        row.write_json(&mut json);
        let said = format!("{name} < {}", String::from_utf8_lossy(&json));
        self.0.lock().unwrap().push(said);
    }
}

struct RecordingEffects<'a> {
    arena: &'a Bump,
    outside: RecordingOutputs,
    done: Vec<String>,
}

fn show(points: &[Point<'_>]) -> String {
    let show = |point: &Point<'_>| format!("{}={:?}", KEYS[point.key.0 as usize], point.value);
    points.iter().map(show).collect::<Vec<_>>().join(" ")
}

impl<'a> ChainEffects<'a> for RecordingEffects<'a> {
    fn arena(&self) -> &'a Bump {
        self.arena
    }

    fn key_name(&self, key: KeyId) -> &str {
        // Keys that the device has reported; a transform may create others.
        KEYS[..3].get(key.0 as usize).unwrap_or(&"")
    }

    fn register_key(&self, name: &str) -> Result<KeyId, Box<str>> {
        let at = KEYS.iter().position(|known| *known == name);
        let at = at.ok_or("the key dictionary is full")?;
        Ok(KeyId(at as u32))
    }

    fn save_row(&mut self, points: &[Point<'a>]) {
        self.done.push(format!("save {}", show(points)));
    }

    fn evaluate_alarms(&mut self, ts_ms: i64, points: &[Point<'a>]) {
        self.done.push(format!("alarm {ts_ms} {}", show(points)));
    }

    fn republish(&mut self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        self.outside.republish(topic, payload, qos, retain);
    }

    fn outputs(&self) -> &dyn PipelineOutputs {
        &self.outside
    }
}

fn compile(definition: serde_json::Value) -> Result<Chain, String> {
    let definition = serde_json::from_value(definition).map_err(|error| error.to_string())?;
    Chain::compile(&definition).map_err(|error| error.to_string())
}

/// Returns the effects of a chain on a row with a temperature, a humidity and a status.
fn run(definition: serde_json::Value, temperature: PointValue<'_>) -> Vec<String> {
    let chain = compile(definition).unwrap_or_else(|error| panic!("{error}"));
    let arena = Bump::new();
    let scratch = EvaluationScratch::new(EvaluationResources::new([0; 32], 0), 1 << 10);
    let mut stops = RecordingEffects {
        arena: &arena,
        outside: RecordingOutputs::default(),
        done: Vec::new(),
    };
    let keys: Vec<_> = chain
        .keys()
        .iter()
        .filter_map(|name| stops.register_key(name).ok())
        .collect();
    let point = |key, value| Point {
        key: KeyId(key),
        value,
    };
    let points = [
        point(0, temperature),
        point(1, PointValue::Int(40)),
        point(2, PointValue::Text("on")),
    ];
    let row = ChainRow {
        device: "d",
        product: "p",
        ts_ms: 1000,
        points: &points,
        names: &[],
    };
    let ran = chain.run(&row, &keys, &scratch, &mut stops);
    let mut done = stops.done;
    done.append(&mut stops.outside.0.lock().unwrap());
    done.extend(ran.err().map(|error| error.to_string()));
    done
}

fn filtered(condition: &str) -> serde_json::Value {
    json!({
        "nodes": [
            {"id": "f", "type": "filter", "condition": condition},
            {"id": "hot", "type": "save_telemetry"},
            {"id": "cold", "type": "alarm"},
        ],
        "relations": [
            {"from": "f", "on": "true", "to": "hot"},
            {"from": "f", "on": "false", "to": "cold"},
        ],
    })
}

#[test]
fn simple_and_expression_filters_split_rows() {
    for (condition, value, is_hot) in [
        ("temperature > 20", PointValue::Float(20.5), true),
        ("temperature > 20", PointValue::Int(20), false),
        (
            "temperature >= 20 AND humidity < 50",
            PointValue::Int(20),
            true,
        ),
        (
            "temperature >= 20 AND humidity < 40",
            PointValue::Int(20),
            false,
        ),
        ("temperature * 2 > 40", PointValue::Float(20.5), true),
        (
            "temperature > 20 and status = 'on'",
            PointValue::Float(20.5),
            true,
        ),
        (
            "temperature > 20 and status = 'off'",
            PointValue::Float(20.5),
            false,
        ),
        (
            "deviceId = 'd' and productId = 'p' and ts = 1000",
            PointValue::Int(0),
            true,
        ),
        ("missing > 20", PointValue::Int(0), false),
    ] {
        let done = run(filtered(condition), value);
        assert_eq!(done.len(), 1, "{condition}: {done:?}");
        assert_eq!(
            done[0].starts_with("save temperature="),
            is_hot,
            "{condition}: {done:?}"
        );
    }
}

#[test]
fn simple_conditions_agree_with_the_expression_evaluator() {
    for operator in ["<", "<=", ">", ">="] {
        for value in [
            PointValue::Int(3),
            PointValue::Int(4),
            PointValue::Float(4.0),
            PointValue::Float(4.1),
            PointValue::Int(i64::MAX),
            PointValue::Bool(true),
            PointValue::Text("5"),
        ] {
            let simple = run(filtered(&format!("temperature {operator} 4")), value);
            let expression = run(filtered(&format!("(temperature {operator} 4)")), value);
            assert_eq!(simple, expression, "{value:?} {operator} 4");
        }
    }
}

#[test]
fn a_transform_changes_what_follows_it_and_nothing_else() {
    let definition = json!({
        "nodes": [
            {"id": "t", "type": "transform", "select": "temperature * 2 AS double, upper(status) AS label, missing AS x"},
            {"id": "s", "type": "save_telemetry"},
            {"id": "raw", "type": "save_telemetry"},
        ],
        "relations": [{"from": "t", "to": "s"}],
    });
    assert_eq!(
        run(definition.clone(), PointValue::Int(4)),
        [r#"save double=Int(8) label=Text("ON")"#]
    );
    let mut both = definition;
    both["nodes"][2] = json!({"id": "raw", "type": "validate"});
    both["relations"] =
        json!([{"from": "raw", "to": "t"}, {"from": "raw", "to": "s"}, {"from": "t", "to": "s"}]);
    both["first"] = json!("raw");
    let done = run(both, PointValue::Int(4));
    assert_eq!(
        done,
        [
            r#"save double=Int(8) label=Text("ON")"#,
            r#"save temperature=Int(4) humidity=Int(40) status=Text("on")"#
        ]
    );
}

#[test]
fn rows_go_to_topics_and_sinks() {
    let definition = json!({
        "nodes": [
            {"id": "r", "type": "republish", "topic": "hot/${deviceId}", "payload": "{\"t\": ${temperature}}", "qos": 1},
            {"id": "s", "type": "sink", "sink": "db"},
            {"id": "l", "type": "log", "message": "${deviceId} has ${temperature}"},
        ],
        "relations": [{"from": "r", "to": "s"}, {"from": "s", "to": "l"}],
    });
    assert_eq!(
        run(definition, PointValue::Float(4.5)),
        [
            r#"hot/d 1 {"t": 4.5}"#,
            r#"db < {"deviceId":"d","productId":"p","ts":1000,"temperature":4.5,"humidity":40,"status":"on"}"#
        ]
    );
}

#[test]
fn a_failure_is_followed_or_returned() {
    let mut definition = json!({
        "nodes": [
            {"id": "r", "type": "republish", "topic": "a/${status}/#"},
            {"id": "s", "type": "save_telemetry"},
        ],
    });
    let effects = run(definition.clone(), PointValue::Int(4));
    assert!(
        effects[0].starts_with("node \"r\": \"a/on/#\" is not a topic"),
        "{effects:?}"
    );
    definition["relations"] = json!([{"from": "r", "on": "failure", "to": "s"}]);
    assert!(run(definition, PointValue::Int(4))[0].starts_with("save"));
}

#[test]
fn chain_errors_name_the_node() {
    for (definition, expected) in [
        (json!({"nodes": []}), "expected 1 to 64 nodes, found 0"),
        (
            json!({"nodes": [{"id": "a", "type": "alarm"}, {"id": "a", "type": "alarm"}]}),
            "there are two nodes with the id \"a\"",
        ),
        (
            json!({"nodes": [{"id": "a", "type": "alarm"}], "relations": [{"from": "a", "to": "b"}]}),
            "a relation from \"a\" refers to the node \"b\", which does not exist",
        ),
        (
            json!({"nodes": [{"id": "a", "type": "alarm"}], "first": "b"}),
            "\"first\" refers to the node \"b\", which does not exist",
        ),
        (
            json!({"nodes": [{"id": "a", "type": "alarm"}, {"id": "b", "type": "validate"}],
                "relations": [{"from": "a", "to": "b"}, {"from": "b", "to": "a"}]}),
            "node \"a\" is part of a cycle through \"b\"",
        ),
        (
            json!({"nodes": [{"id": "a", "type": "alarm"}, {"id": "b", "type": "validate"}],
                "relations": [{"from": "a", "on": "true", "to": "b"}]}),
            "node \"a\" of type alarm has no outcome \"true\"; expected success or failure",
        ),
        (
            json!({"nodes": [{"id": "a", "type": "republish", "topic": "t", "qos": 3}]}),
            "node \"a\", qos: expected 0, 1 or 2, not 3",
        ),
    ] {
        assert_eq!(compile(definition).err().as_deref(), Some(expected));
    }
    let wrong = compile(json!({"nodes": [{"id": "a", "type": "filter", "condition": "1 +"}]}));
    assert!(wrong.err().unwrap().starts_with("node \"a\", condition: "));
    let windowed = filtered("1 = 1) GROUP BY (tumblingwindow('s', 1)");
    assert!(compile(windowed).is_err());
    assert!(compile(json!({"nodes": [{"id": "a", "type": "script"}]})).is_err());
}

#[test]
fn steps_are_bounded() {
    // Each node leads to both of the next two, so the number of paths doubles.
    let nodes: Vec<_> = (0..40)
        .map(|at| json!({"id": format!("n{at}"), "type": "validate"}))
        .collect();
    let relations: Vec<_> = (0..38)
        .flat_map(|at| {
            [at + 1, at + 2].map(|to| json!({"from": format!("n{at}"), "to": format!("n{to}")}))
        })
        .collect();
    let done = run(
        json!({"nodes": nodes, "relations": relations}),
        PointValue::Int(4),
    );
    assert!(done[0].contains("at most 256 nodes"), "{done:?}");
}

#[test]
fn nodes_behind_a_transform_see_its_columns_by_name() {
    let chain = json!({
        "nodes": [
            {"id": "t", "type": "transform", "select": "temperature * 2 AS double"},
            {"id": "r", "type": "republish", "topic": "out", "payload": "${.}", "qos": 0},
            {"id": "s", "type": "sink", "sink": "rows"},
            {"id": "f", "type": "filter", "condition": "double + 0 = 86"},
            {"id": "u", "type": "transform", "select": "double + 1 AS label"},
            {"id": "k", "type": "save_telemetry"},
            {"id": "v", "type": "republish", "topic": "out", "payload": "${label}", "qos": 0},
        ],
        "relations": [
            {"from": "t", "to": "r"},
            {"from": "r", "to": "s"},
            {"from": "s", "to": "f"},
            {"from": "f", "on": "true", "to": "u"},
            {"from": "u", "to": "k"},
            {"from": "k", "to": "v"},
        ],
    });
    let done = run(chain, PointValue::Float(43.0));
    assert_eq!(
        done,
        [
            "save label=Float(87.0)",
            "out 0 {\"deviceId\":\"d\",\"productId\":\"p\",\"ts\":1000,\"double\":86.0}",
            "rows < {\"deviceId\":\"d\",\"productId\":\"p\",\"ts\":1000,\"double\":86.0}",
            "out 0 87.0",
        ]
    );
}

#[test]
fn errors_of_conditions_name_the_column_of_the_condition() {
    for (condition, place) in [
        ("temperature >> 20", "line 1, column 14"),
        ("temperature > 20 AND", "line 1, column 21"),
        ("temperature > 20\n AND humidity >> 5", "line 2, column 16"),
    ] {
        let error = compile(filtered(condition)).err().unwrap_or_default();
        assert!(error.contains(place), "{condition}: {error}");
    }
}
