//! InfluxDB connector against a simulated server that answers writes as documented.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::bench::ConnectorFixture;
use crate::http::{HttpServer, ReceivedRequest, Reply};

type StoredPoints = Arc<Mutex<BTreeSet<String>>>;

fn write(asked: &ReceivedRequest, points: &StoredPoints) -> Reply {
    if asked.path == "/ping" {
        return (
            204,
            vec!["X-Influxdb-Version: 2.7.11".into()],
            String::new(),
        );
    }
    let (expected, unit) = match asked.path.as_str() {
        "/write" => {
            assert_eq!((asked.query("db"), asked.query("rp")), ("d b", "week"));
            ("Basic dGlkZTpnYXRl", "ms")
        }
        "/api/v2/write" => {
            assert_eq!((asked.query("org"), asked.query("bucket")), ("o", "b"));
            ("Token gate", "ms")
        }
        "/api/v3/write_lp" => {
            assert_eq!(
                (asked.query("db"), asked.query("accept_partial")),
                ("d b", "false")
            );
            ("Bearer gate", "millisecond")
        }
        other => panic!("{other}"),
    };
    assert_eq!(asked.query("precision"), unit);
    if asked.header("authorization") != expected {
        return (
            401,
            Vec::new(),
            r#"{"code":"unauthorized","message":"unauthorized access"}"#.into(),
        );
    }
    if asked.body.is_empty() {
        return (
            400,
            Vec::new(),
            r#"{"message":"writing requires points"}"#.into(),
        );
    }
    if asked.body.contains("n=\"") {
        let what = r#"{"code":"invalid","message":"partial write: field type conflict"}"#;
        return (400, Vec::new(), what.into());
    }
    let lines = asked.body.lines().map(str::to_owned);
    points.lock().unwrap().extend(lines);
    (204, Vec::new(), String::new())
}

fn start() -> (HttpServer, StoredPoints) {
    let points = StoredPoints::default();
    let shared = points.clone();
    (
        HttpServer::start(move |asked| write(asked, &shared)),
        points,
    )
}

fn connector(server: &HttpServer, version: u8) -> Value {
    let mut connector = match version {
        1 => {
            json!({"database": "d b", "retention_policy": "week", "username": "tide", "password": "gate"})
        }
        2 => json!({"organization": "o", "bucket": "b", "token": "gate"}),
        _ => json!({"database": "d b", "token": "gate"}),
    };
    connector["type"] = "influxdb".into();
    connector["urls"] = json!([server.url()]);
    connector["influxdb_version"] = version.into();
    connector
}

#[test]
fn lines_reach_all_three_versions() {
    for version in 1..=3 {
        let (server, points) = start();
        let sink = json!({
            "measurement": "m ${key}", "tags": {"topic": "${topic}", "none": "${none}"},
            "fields": {"n": "${n}", "f": {"value": "${n}", "type": "float"}, "s": "<${n}>"},
            "batch": {"max_wait_ms": 5}
        });
        let bench = ConnectorFixture::new(connector(&server, version), sink);
        assert_eq!(bench.test().unwrap(), "InfluxDB 2.7.11");
        bench.push(json!({"n": 5, "key": 1, "topic": "a,b", "timestamp": 1_700_000_000_000_u64}));
        bench.push(json!({"n": "text", "key": 1, "topic": "a", "timestamp": 1}));
        bench.push(json!({"n": 6, "key": 1, "topic": "a", "timestamp": "soon"}));
        let metrics = bench.until_settled(3);
        assert_eq!(
            (metrics.sent, metrics.failed),
            (1, 2),
            "{:?}",
            bench.letters()
        );
        let points = points.lock().unwrap();
        let line = "m\\ 1,topic=a\\,b f=5.0,n=5i,s=\"<5>\" 1700000000000";
        assert_eq!(points.iter().collect::<Vec<_>>(), [line]);
        drop(points);
        bench.stop();
    }
}

#[test]
fn everything_is_there_though_answers_are_lost_and_the_server_is_down() {
    let (server, points) = start();
    server.lose_every(4);
    let sink = json!({"measurement": "m", "timestamp": "${n}", "batch": {"max_rows": 100, "max_wait_ms": 5}});
    let bench = ConnectorFixture::new(connector(&server, 2), sink);
    bench.push_during_outage(&server, 300);
    assert_eq!(points.lock().unwrap().len(), 3000);
    bench.stop();
}

#[test]
fn a_wrong_token_is_reported_without_showing_it() {
    let (server, _) = start();
    let mut connector = connector(&server, 2);
    connector["token"] = "wrong-secret".into();
    let bench = ConnectorFixture::new(connector, json!({"measurement": "m"}));
    let why = bench.test().unwrap_err();
    assert!(
        why.contains("unauthorized") && !why.contains("secret"),
        "{why}"
    );
    bench.stop();
}
