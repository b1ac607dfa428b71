//! Measures rows per second through a sink, from `push` to the server's answer. It is compared with a minimal client
//! that writes the same batches in alternating runs:
//! `cargo run --release --example sink_speed --all-features -- SERVER... [ROWS]`, with SERVER one of `mysql`,
//! `postgres`, `redis` or `opensearch` (which is started for it).
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement that fails may panic, and says what it found"
)]

mod bulk;

use std::time::{Duration, Instant};

use connect::{ConnectorService, ConnectorServiceOptions, PushOutcome};
use mysql_async::prelude::Queryable as _;
use serde_json::json;
use testkit::{DATABASE, PASSWORD, ServerKind, TestServer, USER};
use tokio::runtime::{Builder, Runtime};

const BATCH: usize = 500;
const IN_FLIGHT: usize = 4;
const ROUNDS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rows = arguments.iter().find_map(|text| text.parse().ok());
    let rows: usize = rows.unwrap_or(200_000);
    let runtime = || {
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    };
    push_cost();
    println!("{rows} rows in batches of {BATCH}, {IN_FLIGHT} at a time; rows/s, best of {ROUNDS}");
    for (name, kind) in [
        ("mysql", ServerKind::MariaDb),
        ("postgres", ServerKind::Postgres),
        ("redis", ServerKind::Redis),
        ("opensearch", ServerKind::OpenSearch),
    ] {
        let is_asked = arguments.iter().any(|text| text == name);
        if !is_asked && arguments.iter().any(|text| text.parse::<usize>().is_err()) {
            continue;
        }
        let Some(server) = TestServer::start_or_skip(kind) else {
            continue;
        };
        prepare(&server);
        let mut best = (0.0_f64, 0.0_f64);
        for _ in 0..ROUNDS {
            clear(&server);
            let bare = speed(rows, || bare(&runtime(), &server, rows));
            clear(&server);
            let sink = speed(rows, || sink(&runtime(), &server, rows));
            assert_eq!(count(&server), rows, "rows are missing");
            best = (best.0.max(bare), best.1.max(sink));
        }
        let (bare, sink) = best;
        println!(
            "{name:10} bare {bare:9.0}  sink {sink:9.0}  ratio {:.2}",
            sink / bare
        );
    }
}

/// Cost per row on the pushing shard: into a queue that is not drained, and into one of each of two shards.
fn push_cost() {
    const ROWS: usize = 1_000_000;
    for shards in [1, 2] {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let service = ConnectorService::new(
            runtime.handle().clone(),
            ConnectorServiceOptions {
                directory: None,
                shards,
            },
        );
        let sink = json!({
            "connector": "none", "queue": {"max_rows": 100_000_000_usize, "max_bytes": 1_usize << 33}
        });
        let id = service.set_sink("s", &sink).unwrap();
        let start = Instant::now();
        std::thread::scope(|scope| {
            for shard in 0..shards {
                let service = &service;
                scope.spawn(move || {
                    for n in 0..ROWS {
                        service.push(id, shard as u16, |row| {
                            row.int("n", n as i64);
                            row.text("device", "device-00042");
                            row.float("v", 21.5);
                        });
                    }
                });
            }
        });
        let ns = start.elapsed().as_nanos() as f64 / ROWS as f64;
        println!("push on {shards} shards at once: {ns:.0} ns a row");
    }
}

/// Rows per second, for a function that returns its duration.
fn speed(rows: usize, run: impl FnOnce() -> Duration) -> f64 {
    rows as f64 / run().as_secs_f64()
}

fn prepare(server: &TestServer) {
    match server.kind() {
        ServerKind::MariaDb => drop(server.sql("CREATE TABLE t (n BIGINT, device VARCHAR(32), v DOUBLE)")),
        ServerKind::Postgres => drop(server.sql(&format!(
            "CREATE TABLE t (n bigint, device varchar(32), v double precision); GRANT ALL ON t TO {USER}"
        ))),
        ServerKind::Redis => {}
        ServerKind::OpenSearch => bulk::prepare(server),
        other => panic!("{other:?} is not measured"),
    }
}

fn clear(server: &TestServer) {
    match server.kind() {
        ServerKind::Redis => drop(server.redis(&["FLUSHALL"])),
        ServerKind::OpenSearch => bulk::clear(server),
        _ => drop(server.sql("TRUNCATE TABLE t")),
    }
}

fn count(server: &TestServer) -> usize {
    let text = match server.kind() {
        ServerKind::OpenSearch => return bulk::count(server),
        ServerKind::Redis => server.redis(&["LLEN", "all"])[0].clone(),
        _ => server.sql("SELECT COUNT(*) FROM t")[0][0].clone(),
    };
    text.unwrap().parse().unwrap()
}

fn device(n: usize) -> String {
    format!("device-{:05}", n % 10_000)
}

/// The fields of the sink's row: a number, a name, and a value within a JSON payload.
fn value(n: usize) -> f64 {
    (n % 1000) as f64 + 0.5
}

fn sink(runtime: &Runtime, server: &TestServer, rows: usize) -> Duration {
    let service = ConnectorService::new(
        runtime.handle().clone(),
        ConnectorServiceOptions {
            directory: None,
            shards: 1,
        },
    );
    let mut connector = json!({
        "server": server.address().to_string(), "username": USER, "password": PASSWORD
    });
    let mut sink = json!({
        "connector": "c", "batches_in_flight": IN_FLIGHT, "batch": {"max_rows": BATCH}
    });
    let insert = "INSERT INTO t (n, device, v) VALUES (${n}, ${device}, ${v})";
    match server.kind() {
        ServerKind::Redis => {
            connector["type"] = "redis".into();
            sink["command"] = "RPUSH all ${n}:${device}:${v}".into();
        }
        ServerKind::OpenSearch => {
            connector = json!({
                "type": "elasticsearch", "urls": [format!("http://{}", server.address())]
            });
            sink["index"] = bulk::INDEX.into();
        }
        kind => {
            let name = if kind == ServerKind::MariaDb {
                "mysql"
            } else {
                "postgres"
            };
            connector["type"] = name.into();
            connector["database"] = DATABASE.into();
            sink["sql"] = insert.into();
        }
    }
    service.set_connector("c", &connector).unwrap();
    let id = service.set_sink("s", &sink).unwrap();
    let tested = runtime.block_on(service.test_connector("c"));
    tested.unwrap().unwrap();
    let start = Instant::now();
    for n in 0..rows {
        let device = device(n);
        let pushed = service.push(id, 0, |row| {
            row.int("n", n as i64);
            row.text("device", &device);
            row.float("v", value(n));
        });
        match pushed {
            PushOutcome::Queued => {}
            PushOutcome::Blocked => runtime.block_on(service.wait_for_room(id)),
            other => panic!("{other:?}"),
        }
    }
    while service.sink_status("s").unwrap().metrics.sent < rows as u64 {
        std::thread::sleep(Duration::from_micros(200));
    }
    let took = start.elapsed();
    runtime.block_on(service.stop(Duration::from_secs(10)));
    took
}

/// Writes the same batches, with the same concurrency, in a minimal client.
fn bare(runtime: &Runtime, server: &TestServer, rows: usize) -> Duration {
    let address = server.address();
    match server.kind() {
        ServerKind::MariaDb => runtime.block_on(async {
            let options = mysql_async::Opts::from_url(&server.url()).unwrap();
            let groups = (0..BATCH).map(|_| "(?, ?, ?)");
            let groups: Vec<_> = groups.collect();
            let statement = format!("INSERT INTO t (n, device, v) VALUES {}", groups.join(","));
            let mut connections = Vec::new();
            for _ in 0..IN_FLIGHT {
                connections.push(mysql_async::Conn::new(options.clone()).await.unwrap());
            }
            let start = Instant::now();
            let tasks = connections.into_iter().enumerate().map(|(at, mut connection)| {
                let statement = statement.clone();
                tokio::spawn(async move {
                    for first in (at * BATCH..rows).step_by(BATCH * IN_FLIGHT) {
                        let values = (first..first + BATCH).flat_map(|n| {
                            [
                                mysql_async::Value::Int(n as i64),
                                mysql_async::Value::Bytes(device(n).into_bytes()),
                                mysql_async::Value::Double(value(n)),
                            ]
                        });
                        let values = mysql_async::Params::Positional(values.collect());
                        connection.exec_drop(&statement, values).await.unwrap();
                    }
                    connection
                })
            });
            let tasks: Vec<_> = tasks.collect();
            let mut ended = Vec::new();
            for task in tasks {
                ended.push(task.await.unwrap());
            }
            let took = start.elapsed();
            for connection in ended {
                connection.disconnect().await.unwrap();
            }
            took
        }),
        ServerKind::Postgres => runtime.block_on(async {
            let statement =
                "INSERT INTO t (n, device, v) SELECT * FROM UNNEST($1::bigint[], $2::varchar[], $3::float8[])";
            let mut clients = Vec::new();
            for _ in 0..IN_FLIGHT {
                let config = format!(
                    "host={} port={} user={USER} password={PASSWORD} dbname={DATABASE}",
                    address.ip(),
                    address.port()
                );
                let (client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls)
                    .await
                    .unwrap();
                tokio::spawn(connection);
                let prepared = client.prepare(statement).await.unwrap();
                clients.push((client, prepared));
            }
            let start = Instant::now();
            let tasks = clients.into_iter().enumerate().map(|(at, (client, prepared))| {
                tokio::spawn(async move {
                    for first in (at * BATCH..rows).step_by(BATCH * IN_FLIGHT) {
                        let numbers: Vec<i64> = (first..first + BATCH).map(|n| n as i64).collect();
                        let devices: Vec<String> = (first..first + BATCH).map(device).collect();
                        let values: Vec<f64> = (first..first + BATCH).map(value).collect();
                        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                            [&numbers, &devices, &values];
                        let written = client.execute(&prepared, &values);
                        written.await.unwrap();
                    }
                })
            });
            let tasks: Vec<_> = tasks.collect();
            for task in tasks {
                task.await.unwrap();
            }
            start.elapsed()
        }),
        ServerKind::Redis => runtime.block_on(async {
            let client = redis::Client::open(server.url()).unwrap();
            let connection = client.get_multiplexed_async_connection().await.unwrap();
            let start = Instant::now();
            let tasks = (0..IN_FLIGHT).map(|at| {
                let mut connection = connection.clone();
                tokio::spawn(async move {
                    for first in (at * BATCH..rows).step_by(BATCH * IN_FLIGHT) {
                        let mut pipeline = redis::pipe();
                        for n in first..first + BATCH {
                            let element = format!("{n}:{}:{}", device(n), value(n));
                            pipeline.cmd("RPUSH").arg("all").arg(element).ignore();
                        }
                        pipeline.exec_async(&mut connection).await.unwrap();
                    }
                })
            });
            let tasks: Vec<_> = tasks.collect();
            for task in tasks {
                task.await.unwrap();
            }
            start.elapsed()
        }),
        ServerKind::OpenSearch => bulk::bare(runtime, server, rows),
        other => panic!("{other:?} is not measured"),
    }
}
