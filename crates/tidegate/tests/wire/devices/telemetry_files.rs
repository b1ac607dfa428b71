//! Telemetry as a file of columns, read by DuckDB.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::import_jobs::import;
use super::{api, ask, connect, product, with_token};
use crate::support::Node;

fn export(node: &Node, arguments: &[&str]) -> Output {
    telemetry(node, "export", arguments)
}

fn telemetry(node: &Node, command: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["ctl", "--data-dir"])
        .arg(node.data_dir())
        .args(["telemetry", command])
        .args(arguments)
        .output()
        .unwrap()
}

/// What DuckDB says of a file; `None`: it is not here.
fn duckdb(query: &str, file: &Path) -> Option<Value> {
    let output_text = testkit::query_parquet(query, file)?;
    Some(serde_json::from_str(&output_text).unwrap())
}

#[test]
fn telemetry_is_exported_as_columns() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, "d1", "meter", Value::Null);
    let file = node.data_dir().join("export.parquet");
    let path = file.to_str().unwrap();
    if cfg!(not(feature = "parquet")) {
        let output = export(&node, &["d1", path]);
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output_text.contains("without the feature `parquet`"));
        assert!(!file.exists());
        return;
    }
    let mut raw = connect(&node, "d1");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let begin_ms = now.as_millis() as u64 - 3_600_000;
    let topic = "v1/devices/me/telemetry";
    // More than a group of rows.
    let rows = |from: u64| -> Value {
        (from..from + 1000)
            .map(|n| json!({"ts": begin_ms + n, "values": {"n": n, "half": 0.5}}))
            .collect()
    };
    for from in (0..30_000).step_by(1000) {
        raw.publish_qos1(topic, rows(from).to_string(), 1);
    }
    let mixed = json!({"ts": begin_ms + 100_000, "values": {"half": 2, "big": 9_007_199_254_740_993_u64,
        "on": true, "name": "it's", "at": {"x": [1]}}});
    raw.publish_qos1(topic, mixed.to_string(), 2);
    let output = export(&node, &["d1", path]);
    assert!(output.status.success(), "{output:?}");
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let query = "SELECT count(*), count(DISTINCT time), any_value(typeof(time)), min(epoch_ms(time)), any_value(device), \
        sum(number) FILTER (key = 'n'), avg(number) FILTER (key = 'half' AND time >= make_timestamptz({0} * 1000)), \
        max(integer) FILTER (key = 'big'), bool_or(boolean), max(text), max(json_extract_string(json, '$.x[0]')), \
        count(number), count(integer) FROM read_parquet(?)";
    let groups =
        "SELECT max(row_group_num_rows), count(DISTINCT row_group_id) FROM parquet_metadata(?)";
    let query = query.replace("{0}", &(begin_ms + 29_999).to_string());
    let Some(output_text) = duckdb(&query, &file) else {
        testkit::report_skipped("DuckDB is not here; run `cargo xtask test`");
        return;
    };
    let expected = json!([[
        60_005,
        30_001,
        "TIMESTAMP WITH TIME ZONE",
        begin_ms,
        "d1",
        449_985_000.0,
        1.25,
        9_007_199_254_740_993_u64,
        true,
        "it's",
        "1",
        60_002,
        30_002
    ]]);
    assert_eq!(output_text, expected);
    assert_eq!(duckdb(groups, &file), Some(json!([[50_000, 2]])));

    // Some keys of some time; a format that the name of the file does not say.
    let file = node.data_dir().join("some");
    let to_ms = (begin_ms + 10).to_string();
    let keys = ["--keys", "n,none", "--to-ms", &to_ms, "--format", "parquet"];
    let output = export(
        &node,
        &[&["d1", file.to_str().unwrap()], &keys[..]].concat(),
    );
    assert!(output.status.success(), "{output:?}");
    let query = "SELECT sum(number), any_value(key), count(*) FROM read_parquet(?)";
    assert_eq!(duckdb(query, &file), Some(json!([[45.0, "n", 10]])));

    // Nothing of a device is a file, too; of nobody there is none.
    with_token(&node, "d2", "meter", Value::Null);
    assert!(export(&node, &["d2", path]).status.success());
    let query = "SELECT count(*) FROM read_parquet(?)";
    assert_eq!(duckdb(query, Path::new(path)), Some(json!([[0]])));
    let nobody = "devices/d3/telemetry/export?format=parquet";
    assert_eq!(api(&node, "GET", nobody, &Value::Null).0, 404);
}

#[test]
fn telemetry_of_a_group_is_exported() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({}));
    product(&node, "valve", json!({}));
    // More devices than are read at once; the first, one in the middle and the last have rows.
    let devices: String = (0..2100)
        .map(|nth| format!("{{\"id\": \"m-{nth:04}\", \"product\": \"meter\"}}\n"))
        .chain(["{\"id\": \"other\", \"product\": \"valve\"}\n".to_owned()])
        .collect();
    let job = import(&node, "devices", "application/x-ndjson", &devices);
    assert_eq!(
        (&job["done"], &job["failed"]),
        (&json!(2101), &json!(0)),
        "{job}"
    );
    let begin = now_ms() - 60_000;
    let with_rows = ["m-0000", "m-1001", "m-2099", "other"];
    let rows: String = (0..3)
        .flat_map(|nth| {
            with_rows.map(|id| {
                let values = json!({"n": nth, "text": "a,b\n", "other": 7});
                format!(
                    "{}\n",
                    json!({"device": id, "ts_ms": begin + nth, "values": values})
                )
            })
        })
        .collect();
    let job = import(&node, "telemetry", "application/x-ndjson", &rows);
    assert_eq!(
        (&job["done"], &job["failed"]),
        (&json!(12), &json!(0)),
        "{job}"
    );
    let group = json!({"product": "meter"});
    let (status, answer) = api(&node, "PUT", "device-groups/meters", &group);
    assert_eq!(status, 201, "{answer}");

    let save = |name: &str, more: &[&str]| {
        let file = node.data_dir().join(name);
        let path = file.to_str().unwrap();
        let output = telemetry(&node, "export-group", &[&["meters", path], more].concat());
        (output, file)
    };
    let end = (begin + 2).to_string();
    let (output, file) = save("group.csv", &["--keys", "text,n", "--to-ms", &end]);
    assert!(output.status.success(), "{output:?}");
    let expected: String = with_rows[..3]
        .iter()
        .flat_map(|id| [0, 1].map(|nth| format!("{id},{},\"a,b\n\",{nth}\r\n", begin + nth)))
        .collect();
    let expected = format!("device,ts_ms,text,n\r\n{expected}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), expected);

    // These lines can be imported: the same rows change nothing.
    let second = (begin + 1).to_string();
    let (output, file) = save("group.jsonl", &["--from-ms", &second]);
    assert!(output.status.success(), "{output:?}");
    let lines = std::fs::read_to_string(file).unwrap();
    let job = import(&node, "telemetry", "application/x-ndjson", &lines);
    assert_eq!(
        (&job["done"], &job["failed"]),
        (&json!(6), &json!(0)),
        "{job}"
    );
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let values = json!({"n": 1, "text": "a,b\n", "other": 7});
    let expected = json!({"device": "m-0000", "ts_ms": begin + 1, "values": values});
    assert_eq!(first, expected);

    let unknown = "device-groups/none/telemetry/export";
    assert_eq!(api(&node, "GET", unknown, &Value::Null).0, 404);
    let (status, _, problem) = ask(
        &node,
        ("GET", "device-groups/meters/telemetry/export?format=csv"),
        "",
        "",
    );
    assert_eq!(
        (status, &problem["parameter"]),
        (400, &json!("keys")),
        "{problem}"
    );

    let (output, file) = save("group.parquet", &[]);
    if cfg!(not(feature = "parquet")) {
        let reason = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && reason.contains("without the feature `parquet`"));
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let query = "SELECT device, count(*), sum(number) FILTER (key = 'n') FROM read_parquet(?) \
        GROUP BY device ORDER BY device";
    let Some(found) = duckdb(query, &file) else {
        testkit::report_skipped("DuckDB is not here; run `cargo xtask test`");
        return;
    };
    let expected = json!([["m-0000", 9, 3.0], ["m-1001", 9, 3.0], ["m-2099", 9, 3.0]]);
    assert_eq!(found, expected);
}
