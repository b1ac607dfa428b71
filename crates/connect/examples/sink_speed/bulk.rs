//! A minimal OpenSearch client: bulk requests of the same documents, with ids like those of the sink.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use testkit::TestServer;
use tokio::runtime::Runtime;

use super::{BATCH, IN_FLIGHT, device, value};

pub(super) const INDEX: &str = "t";

pub(super) fn prepare(server: &TestServer) {
    let settings = r#"{"settings": {"number_of_replicas": 0}, "mappings": {"properties": {
        "n": {"type": "long"}, "device": {"type": "keyword"}, "v": {"type": "double"}}}}"#;
    server.http("PUT", &format!("/{INDEX}"), settings);
}

pub(super) fn clear(server: &TestServer) {
    server.http("DELETE", &format!("/{INDEX}"), "");
    prepare(server);
}

pub(super) fn count(server: &TestServer) -> usize {
    server.http("POST", &format!("/{INDEX}/_refresh"), "");
    let answer = server.http("GET", &format!("/{INDEX}/_count"), "");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["count"].as_u64().unwrap() as usize
}

fn batch(first: usize) -> Bytes {
    let mut body = String::new();
    for n in first..first + BATCH {
        let (device, value) = (device(n), value(n));
        let _ = writeln!(
            body,
            r#"{{"index":{{"_id":"0123456789abcdef-{n}","_index":"{INDEX}"}}}}"#
        );
        let _ = writeln!(body, r#"{{"n":{n},"device":"{device}","v":{value}}}"#);
    }
    body.into()
}

pub(super) fn bare(runtime: &Runtime, server: &TestServer, rows: usize) -> Duration {
    let url = format!("http://{}/_bulk", server.address());
    runtime.block_on(async {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(tcp);
        let start = Instant::now();
        let tasks = (0..IN_FLIGHT).map(|at| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move {
                for first in (at * BATCH..rows).step_by(BATCH * IN_FLIGHT) {
                    let request = Request::post(&url)
                        .header("content-type", "application/x-ndjson")
                        .body(Full::new(batch(first)))
                        .unwrap();
                    let answer = client.request(request).await.unwrap();
                    let body = answer.into_body().collect().await.unwrap().to_bytes();
                    // Each document has its own result; a client that ignores it loses rows.
                    let answer: Value = serde_json::from_slice(&body).unwrap();
                    assert_eq!(answer["errors"], false, "{answer}");
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        for task in tasks {
            task.await.unwrap();
        }
        start.elapsed()
    })
}
