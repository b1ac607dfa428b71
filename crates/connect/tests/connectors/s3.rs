//! S3 connector against a small store that verifies each signature with its own implementation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ring::{digest, hmac};
use serde_json::{Value, json};

use crate::bench::ConnectorFixture;
use crate::http::{HttpServer, ReceivedRequest, Reply, decoded};

type StoredObjects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(body: &[u8]) -> &str {
    std::str::from_utf8(body).unwrap()
}

pub(crate) fn is_signed(asked: &ReceivedRequest, secret: &str) -> bool {
    let authorization = asked.header("authorization");
    let part = |name: &str| {
        let rest = authorization.split(name).nth(1).unwrap();
        rest.split(',').next().unwrap().to_owned()
    };
    let (credential, names) = (part("Credential="), part("SignedHeaders="));
    let (id, scope) = credential.split_once('/').unwrap();
    assert_eq!(id, "tide");
    let hash = hex(digest::digest(&digest::SHA256, &asked.bytes).as_ref());
    assert_eq!(asked.header("x-amz-content-sha256"), hash);
    let mut canonical = format!("{}\n{}\n{}\n", asked.method, asked.path, asked.raw_query);
    for name in names.split(';') {
        canonical.push_str(&format!("{name}:{}\n", asked.header(name)));
    }
    canonical.push_str(&format!("\n{names}\n{hash}"));
    let canonical = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let date = asked.header("x-amz-date");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{canonical}");
    let mut key = format!("AWS4{secret}").into_bytes();
    for step in scope.split('/').chain([text.as_str()]) {
        let signing = hmac::Key::new(hmac::HMAC_SHA256, &key);
        key = hmac::sign(&signing, step.as_bytes()).as_ref().to_vec();
    }
    scope.ends_with("/eu-west-1/s3/aws4_request") && part("Signature=") == hex(&key)
}

fn store(asked: &ReceivedRequest, objects: &StoredObjects) -> Reply {
    if !is_signed(asked, "gate") {
        let what = "<Error><Code>SignatureDoesNotMatch</Code></Error>";
        return (403, Vec::new(), what.into());
    }
    let Some(key) = asked.path.strip_prefix("/bucket/") else {
        return (
            404,
            Vec::new(),
            "<Error><Code>NoSuchBucket</Code></Error>".into(),
        );
    };
    if asked.method == "PUT" {
        let expected = match key.ends_with(".parquet") {
            true => "application/vnd.apache.parquet",
            false => "application/x-ndjson",
        };
        assert_eq!(asked.header("content-type"), expected);
        objects
            .lock()
            .unwrap()
            .insert(decoded(key), asked.bytes.clone());
    }
    (200, Vec::new(), String::new())
}

fn start() -> (HttpServer, StoredObjects) {
    let objects = StoredObjects::default();
    let shared = objects.clone();
    (
        HttpServer::start(move |asked| store(asked, &shared)),
        objects,
    )
}

fn connector(server: &HttpServer) -> Value {
    json!({
        "type": "s3", "endpoint": server.url(), "region": "eu-west-1", "bucket": "bucket",
        "access_key_id": "tide", "secret_access_key": "gate", "path_style": true
    })
}

#[test]
fn rows_are_put_together_by_key() {
    let (server, objects) = start();
    let sink = json!({"key": "a b/%Y/${key}/", "line": "${n}", "batch": {"max_rows": 100, "max_wait_ms": 300}});
    let bench = ConnectorFixture::new(connector(&server), sink);
    assert_eq!(bench.test().unwrap(), "the bucket exists");
    for n in 0..100 {
        bench.push(json!({"n": n, "key": n % 2, "timestamp": 1_000_000_000_000_u64}));
    }
    assert_eq!(bench.until_settled(100).sent, 100);
    let objects = objects.lock().unwrap();
    for (key, parity) in [("a b/2001/0/", 0), ("a b/2001/1/", 1)] {
        let own = objects.iter().filter(|(name, _)| name.starts_with(key));
        let numbers: Vec<u64> = own
            .flat_map(|(name, body)| {
                assert!(name.ends_with(".jsonl"), "{name}");
                text(body)
                    .lines()
                    .map(|line| line.parse().unwrap())
                    .collect::<Vec<_>>()
            })
            .collect();
        let expected: Vec<u64> = (0..100).filter(|n| n % 2 == parity).collect();
        assert_eq!(numbers, expected, "{:?}", objects.keys());
    }
    drop(objects);
    bench.stop();
}

#[test]
fn everything_is_there_once_though_answers_are_lost_and_the_store_is_down() {
    let (server, objects) = start();
    server.lose_every(4);
    let sink = json!({"batch": {"max_rows": 100, "max_wait_ms": 5}});
    let bench = ConnectorFixture::new(connector(&server), sink);
    bench.push_during_outage(&server, 300);
    let objects = objects.lock().unwrap();
    let lines = objects.values().flat_map(|body| text(body).lines());
    let mut numbers: Vec<u64> = lines
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["n"]
                .as_u64()
                .unwrap()
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
    drop(objects);
    bench.stop();
}

#[test]
fn a_wrong_key_is_reported_without_showing_it() {
    let (server, _) = start();
    let mut connector = connector(&server);
    connector["secret_access_key"] = "wrong-secret".into();
    let bench = ConnectorFixture::new(connector, json!({}));
    let why = bench.test().unwrap_err();
    assert!(
        why.contains("SignatureDoesNotMatch") && !why.contains("secret"),
        "{why}"
    );
    bench.stop();
}

#[cfg(feature = "parquet")]
#[test]
fn objects_are_parquet_files() {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    let (server, objects) = start();
    let sink = json!({
        "key": "t/", "format": "parquet", "batch": {"max_rows": 100, "max_wait_ms": 300},
        "columns": [{"name": "n", "type": "int", "value": "${n}"}, {"name": "k", "value": "${key}"}]
    });
    let bench = ConnectorFixture::new(connector(&server), sink);
    bench.push_numbers(0..500);
    bench.push(json!({"n": "no number"}));
    let metrics = bench.until_settled(501);
    assert_eq!((metrics.sent, metrics.failed), (500, 1));
    let objects = objects.lock().unwrap();
    let mut numbers = Vec::new();
    for (key, body) in objects.iter() {
        assert!(key.ends_with(".parquet"), "{key}");
        let reader = SerializedFileReader::new(bytes::Bytes::from(body.clone())).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let n = row.get_long(0).unwrap();
            assert_eq!(row.get_string(1).unwrap(), &(n % 5).to_string());
            numbers.push(n);
        }
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
    drop(objects);
    bench.stop();
}
