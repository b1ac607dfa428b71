//! ClickHouse connector against a simulated server that answers inserts as documented.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::bench::{ConnectorFixture, until};
use crate::http::{HttpServer, ReceivedRequest, Reply};

#[derive(Default)]
struct ClickHouseTable {
    rows: Vec<Value>,
    tokens: BTreeSet<String>,
}

fn insert(asked: &ReceivedRequest, table: &Mutex<ClickHouseTable>) -> Reply {
    let error = |status, code: u32, text: &str| {
        let header = format!("X-ClickHouse-Exception-Code: {code}");
        (
            status,
            vec![header],
            format!("Code: {code}. DB::Exception: {text}"),
        )
    };
    if asked.header("x-clickhouse-user") != "tide" || asked.header("x-clickhouse-key") != "gate" {
        return error(403, 516, "Authentication failed");
    }
    if asked.query("query") == "SELECT version()" {
        return (200, Vec::new(), "25.8.1.1\n".into());
    }
    let statement = asked.query("query");
    if !statement.starts_with("INSERT INTO `t`") {
        return error(404, 60, "Table default.x does not exist");
    }
    if statement.contains("`m`") {
        return error(404, 16, "No such column m in table d.t");
    }
    assert_eq!(
        (
            asked.query("database"),
            asked.query("date_time_input_format")
        ),
        ("d", "best_effort")
    );
    let rows: Vec<Value> = asked
        .body
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    if let Some(at) = rows.iter().position(|row| row["n"].is_string()) {
        return error(400, 27, &format!("Cannot parse input: (at row {})", at + 1));
    }
    let mut table = table.lock().unwrap();
    if table
        .tokens
        .insert(asked.query("insert_deduplication_token").to_owned())
    {
        table.rows.extend(rows);
    }
    (200, Vec::new(), String::new())
}

fn start() -> (HttpServer, Arc<Mutex<ClickHouseTable>>) {
    let table = Arc::<Mutex<ClickHouseTable>>::default();
    let shared = table.clone();
    (
        HttpServer::start(move |asked| insert(asked, &shared)),
        table,
    )
}

fn connector(server: &HttpServer) -> Value {
    json!({
        "type": "clickhouse", "urls": [server.url()], "username": "tide", "password": "gate", "database": "d"
    })
}

#[test]
fn columns_keep_their_types_and_bad_rows_are_found() {
    let (server, table) = start();
    let sink = json!({
        "table": "t", "columns": {"n": "${n}", "who": "<${who}>", "gone": "${gone}"},
        "batch": {"max_rows": 64, "max_wait_ms": 50}
    });
    let bench = ConnectorFixture::new(connector(&server), sink);
    assert_eq!(bench.test().unwrap(), "ClickHouse 25.8.1.1");
    for n in 0..60 {
        bench.push(json!({"n": n, "who": "a\"b"}));
    }
    bench.push(json!({"n": "x", "who": "bad"}));
    bench.push(json!({"n": 60, "who": "last"}));
    let metrics = bench.until_settled(62);
    assert_eq!((metrics.sent, metrics.failed), (61, 1));
    assert!(bench.letters()[0].0.contains("Cannot parse input"));
    let rows = &table.lock().unwrap().rows;
    assert_eq!(rows.len(), 61);
    assert!(rows.contains(&json!({"n": 7, "who": "<a\"b>", "gone": null})));
    bench.stop();
}

#[test]
fn everything_is_there_once_though_answers_are_lost_and_the_server_is_down() {
    let (server, table) = start();
    server.lose_every(4);
    let sink = json!({"table": "t", "order": "all", "batch": {"max_rows": 100, "max_wait_ms": 5}});
    let bench = ConnectorFixture::new(connector(&server), sink);
    bench.push_during_outage(&server, 100);
    let rows = &table.lock().unwrap().rows;
    let numbers: Vec<_> = rows.iter().map(|row| row["n"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
    bench.stop();
}

#[test]
fn a_missing_table_is_reported_and_waited_for() {
    let (server, _) = start();
    let bench = ConnectorFixture::new(
        connector(&server),
        json!({"table": "x`; DROP", "batch": {"max_wait_ms": 1}}),
    );
    bench.push(json!({"n": 1}));
    until("it says what is missing", || {
        bench.problem().contains("does not exist").then_some(())
    })
    .unwrap();
    assert_eq!(bench.metrics().failed, 0);
}

#[test]
fn a_wrong_table_or_column_is_found_when_the_sink_is_made() {
    let (server, table) = start();
    let bench = ConnectorFixture::new(connector(&server), json!({"table": "t"}));
    let probe = |sink: Value| {
        let mut sink = sink;
        sink["connector"] = "c".into();
        bench.runtime.block_on(bench.service.probe_sink(&sink))
    };
    assert_eq!(probe(json!({"table": "t"})), Ok(()));
    assert_eq!(
        probe(json!({"table": "t", "columns": {"n": "${n}"}})),
        Ok(())
    );
    let error = probe(json!({"table": "nothing"})).unwrap_err();
    assert_eq!(error.field, "table", "{error}");
    let message = "Table default.x does not exist";
    assert!(error.detail.contains(message), "{error}");
    let error = probe(json!({"table": "t", "columns": {"m": "${n}"}})).unwrap_err();
    assert_eq!(error.field, "table", "{error}");
    assert!(error.detail.contains("No such column m"), "{error}");
    // A check writes nothing, and a server that cannot be reached says nothing about a table.
    assert!(table.lock().unwrap().rows.is_empty());
    server.set_down(true);
    assert_eq!(probe(json!({"table": "nothing"})), Ok(()));
    bench.stop();
}
