//! Elasticsearch connector against a real OpenSearch.

use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use crate::bench::{ConnectorFixture, until};

fn count(server: &TestServer, index: &str) -> u64 {
    server.http("POST", &format!("/{index}/_refresh"), "");
    let response = server.http("GET", &format!("/{index}/_count"), "");
    serde_json::from_str::<Value>(&response).unwrap()["count"]
        .as_u64()
        .unwrap()
}

#[test]
fn everything_is_there_once_though_the_server_is_killed() {
    let Some(server) = TestServer::start_or_skip(ServerKind::OpenSearch) else {
        return;
    };
    let connector =
        json!({"type": "elasticsearch", "urls": [format!("http://{}", server.address())]});
    let sink = json!({"index": "kit-%Y.%m", "batch": {"max_rows": 200}});
    let bench = ConnectorFixture::new(connector, sink);
    let answer = bench.test().unwrap();
    assert!(answer.starts_with("OpenSearch 2."), "{answer}");
    let row = |n: u64| json!({"n": n, "timestamp": 1_000_000_000_000_u64});
    (0..5000).for_each(|n| bench.push(row(n)));
    until("some are there", || {
        (bench.metrics().sent > 1000).then_some(())
    })
    .unwrap();
    server.kill();
    (5000..6000).for_each(|n| bench.push(row(n)));
    until("it is noticed", || {
        (bench.metrics().retried > 100).then_some(())
    })
    .unwrap();
    server.start();
    assert_eq!(bench.until_settled(6000).failed, 0, "{:?}", bench.letters());
    assert_eq!(count(&server, "kit-2001.09"), 6000);

    // One row does not fit the mapping; the others of its batch are written nevertheless.
    bench.push(row(6000));
    bench.push(json!({"n": {"not": "a number"}, "timestamp": 1_000_000_000_000_u64}));
    bench.push(row(6001));
    let metrics = bench.until_settled(6003);
    assert_eq!((metrics.sent, metrics.failed), (6002, 1));
    let letters = bench.letters();
    assert!(
        letters[0]
            .0
            .contains("status 400: mapper_parsing_exception"),
        "{letters:?}"
    );
    assert_eq!(count(&server, "kit-2001.09"), 6002);
    bench.stop();
}
