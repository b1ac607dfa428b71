//! Rows of published reports that write to servers of other systems, or need a node that has started again, at small scale.

use serde_json::Value;
use testkit::{DATABASE, PASSWORD, ServerKind, TestServer, USER};

use crate::program::run;

/// Measures rows of a report; their results by id.
fn measure(report: &str, rows: &[&str], server: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let directory = folder.path().join("nodes");
    std::fs::create_dir(&directory).unwrap();
    let mut arguments = vec!["bench", "report", report, "--output", output];
    arguments.extend(["--directory", directory.to_str().unwrap()]);
    if !server.is_empty() {
        arguments.extend(["--server", server]);
    }
    arguments.extend(rows.iter().flat_map(|row| ["--row", *row]));
    run(&arguments).succeeded();
    let results = std::fs::read(folder.path().join(format!("{report}.json"))).unwrap();
    serde_json::from_slice::<Value>(&results).unwrap()["rows"].clone()
}

fn value(rows: &Value, row: &str, figure: &str) -> f64 {
    assert_eq!(rows[row]["outcome"], "measured", "{rows:#}");
    let value = rows[row]["values"][figure].as_f64();
    value.unwrap_or_else(|| panic!("{row} has no {figure}: {rows:#}"))
}

#[test]
fn rows_without_their_server_are_not_measured() {
    let rows = measure("002", &["redis-set"], "");
    assert_eq!(rows["redis-set"]["outcome"], "not-measured");
    let reason = rows["redis-set"]["reason"].to_string();
    assert!(reason.contains("--server redis="), "{reason}");
}

#[test]
fn writes_to_redis_are_measured() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    let login = format!("redis={USER}:{PASSWORD}@{}", server.address());
    let rows = measure(
        "002",
        &["redis-set", "redis-batch", "offline-redis"],
        &login,
    );
    assert!(value(&rows, "offline-redis", "stored_per_s") > 0.0);
    assert!(value(&rows, "redis-set", "operation") > 0.0);
    assert!((value(&rows, "redis-set", "rows_per_write") - 1.0).abs() < 0.01);
    assert!(value(&rows, "redis-batch", "rows_per_write") > 20.0);
    let written = server.redis(&["GET", "bench-0000000"]);
    assert!(written[0].is_some(), "{written:?}");
}

#[test]
fn writes_to_mysql_are_measured() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    server.sql("CREATE TABLE bench_rows (n BIGINT, device VARCHAR(64), v DOUBLE)");
    let login = format!("mysql={USER}:{PASSWORD}@{}/{DATABASE}", server.address());
    let rows = measure(
        "002",
        &["mysql-insert", "mysql-batch", "offline-mysql"],
        &login,
    );
    assert!(value(&rows, "offline-mysql", "stored_per_s") > 0.0);
    assert!((value(&rows, "mysql-insert", "rows_per_write") - 1.0).abs() < 0.01);
    assert!(value(&rows, "mysql-batch", "rows_per_write") > 20.0);
    let count = server.sql("SELECT COUNT(*) FROM bench_rows")[0][0].clone();
    let count: f64 = count.unwrap().parse().unwrap();
    assert!(count > 20_000.0, "{count}");
}

#[test]
fn reports_into_opensearch_are_measured() {
    let Some(server) = TestServer::start_or_skip(ServerKind::OpenSearch) else {
        return;
    };
    let address = format!("opensearch={}", server.address());
    let rows = measure("003", &["reports-opensearch-10k"], &address);
    assert!(value(&rows, "reports-opensearch-10k", "written_per_s") > 0.0);
    assert!(value(&rows, "reports-opensearch-10k", "backlog") >= 0.0);
}

#[test]
fn a_first_round_connects_to_a_node_that_has_started_again() {
    let rows = measure("003", &["connect-100k-cold"], "");
    assert!((value(&rows, "connect-100k-cold", "connected") - 8000.0).abs() < 0.5);
    assert!(value(&rows, "connect-100k-cold", "failures") < 0.5);
}
