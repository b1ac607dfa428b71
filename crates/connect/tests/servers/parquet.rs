//! Parquet files, read by DuckDB and by the crate that wrote them.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::RowAccessor as _;
use serde_json::{Value, json};

use crate::node::ConnectorNode;

fn sink(rotate: Value) -> Value {
    let column =
        |name: &str, of: &str, value: &str| json!({"name": name, "type": of, "value": value});
    json!({
        "connector": "c", "file": "t.parquet", "format": "parquet", "order": "all", "rotate": rotate,
        "parquet": {"row_group_rows": 300},
        "columns": [
            column("n", "int", "${n}"), column("v", "float", "${payload.v}"), column("s", "text", "${topic}"),
            column("at", "timestamp_ms", "${1700000000000 + n}"), column("even", "bool", "${n % 2 = 0}"),
            column("payload", "json", "${payload}"), column("nothing", "text", "${missing}")
        ]
    })
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory.join("files")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The numbers in all files, in their order.
fn numbers(directory: &Path) -> Vec<i64> {
    let rows = files(directory).into_iter().flat_map(|path| {
        assert!(
            path.extension().is_some_and(|of| of == "parquet"),
            "{path:?}"
        );
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        assert!(
            reader
                .metadata()
                .row_groups()
                .iter()
                .all(|group| group.num_rows() <= 300)
        );
        let rows = reader.get_row_iter(None).unwrap();
        rows.map(|row| row.unwrap().get_long(0).unwrap())
            .collect::<Vec<_>>()
    });
    rows.collect()
}

/// Output of DuckDB; `None` if it is not installed.
fn duckdb(query: &str, directory: &Path) -> Option<Value> {
    let output = testkit::query_parquet(query, &directory.join("files/*.parquet"))?;
    Some(serde_json::from_str(&output).unwrap())
}

#[test]
fn rows_are_in_files_of_columns() {
    let directory = tempfile::tempdir().unwrap();
    let node = ConnectorNode::start(Some(directory.path()));
    node.service
        .set_connector("c", &json!({"type": "file"}))
        .unwrap();
    let wrong = [
        (json!({"columns": []}), "columns"),
        (json!({"line": "x"}), "line"),
        (
            json!({"parquet": {"row_group_rows": 0}}),
            "parquet.row_group_rows",
        ),
        (json!({"format": "csv"}), "parquet"),
        (json!({"format": "csv", "parquet": null}), "columns"),
    ];
    for (more, field) in wrong {
        let mut sink = sink(json!({}));
        sink.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let error = node.service.check_sink(&sink).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
    let id = node
        .service
        .set_sink("s", &sink(json!({"max_bytes": 100_000, "max_files": 1000})))
        .unwrap();
    node.push(id, 0..3000);
    // This row has no number.
    node.service.push(id, 0, |row| row.text("n", "none"));
    node.until("all are settled", |status| {
        status.metrics.sent == 3000 && status.metrics.failed == 1
    });
    let letters = node.service.dead_letters("s", 0, 10).unwrap();
    let expected = "column n: expected an integer, found a text";
    assert_eq!(letters[0].error, expected);
    node.stop();
    assert!(files(directory.path()).len() > 1);
    assert_eq!(numbers(directory.path()), (0..3000).collect::<Vec<_>>());
    let query = "SELECT count(*), sum(n), max(v), count(DISTINCT s), min(epoch_ms(\"at\")), any_value(typeof(\"at\")), \
        count(*) FILTER (even), any_value(json_extract_string(payload, '$.s')), count(nothing) FROM read_parquet(?)";
    match duckdb(query, directory.path()) {
        None => testkit::report_skipped("DuckDB is not here; run `cargo xtask test`"),
        Some(rows) => assert_eq!(
            rows,
            json!([[
                3000,
                4_498_500,
                99.5,
                10,
                1_700_000_000_000_i64,
                "TIMESTAMP WITH TIME ZONE",
                1500,
                "it's",
                0
            ]])
        ),
    }
}

#[test]
fn rows_outlive_a_node_that_did_not_finish_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let start = |rotate: Value| {
        let node = ConnectorNode::start(Some(directory.path()));
        node.service
            .set_connector("c", &json!({"type": "file"}))
            .unwrap();
        let id = node.service.set_sink("s", &sink(rotate)).unwrap();
        (node, id)
    };
    let (node, id) = start(json!({}));
    node.push(id, 0..100);
    node.until("they are written", |status| status.metrics.sent == 100);
    // The process ends without closing.
    drop(node);
    let left = files(directory.path());
    assert!(
        left.iter().all(|path| path.ends_with("t.parquet.rows")),
        "{left:?}"
    );
    // A file is completed at its maximum age even if no more rows arrive.
    let (node, id) = start(json!({"max_age_s": 1}));
    node.push(id, 100..150);
    node.until("the file is there", |_| {
        let files = files(directory.path());
        files
            .iter()
            .all(|path| path.extension().is_some_and(|of| of == "parquet"))
    });
    assert_eq!(numbers(directory.path()), (0..150).collect::<Vec<_>>());
    node.push(id, 150..160);
    node.stop();
    assert_eq!(numbers(directory.path()), (0..160).collect::<Vec<_>>());
}
