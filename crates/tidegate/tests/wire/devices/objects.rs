//! Chains, groups, storage by product, sinks and pull sources: objects that say what becomes of telemetry.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use testkit::{DATABASE, PASSWORD, ServerKind, TestServer, USER};

use super::{api, connect, device, get, latest, product};
use crate::support::{Node, Raw, eventually, temporary_directory};

/// The beginning of an hour that is over.
fn hour_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (now.as_secs() as i64 / 3600 - 1) * 3_600_000
}

fn put(node: &Node, path: &str, body: Value) {
    let (status, answer) = api(node, "PUT", path, &body);
    assert!(matches!(status, 200 | 201), "{path}: {answer}");
}

/// The field that a PUT is rejected for, and why.
fn rejected(node: &Node, path: &str, body: Value) -> (String, String) {
    let (status, answer) = api(node, "PUT", path, &body);
    assert_eq!(status, 422, "{path}: {answer}");
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    (text("parameter"), text("detail"))
}

fn with_token(node: &Node, id: &str, product: &str, tags: Value) {
    let credentials = json!([{"type": "token", "token": format!("token-{id}")}]);
    let wanted = json!({"id": id, "product": product, "credentials": credentials, "tags": tags});
    device(node, wanted);
}

fn publish_values(raw: &mut Raw, values: Value) {
    raw.publish_qos1("v1/devices/me/telemetry", values.to_string(), 1);
}

#[test]
fn a_chain_of_a_product_acts_and_so_do_its_changes() {
    let node = Node::start(&[]);
    let (field, detail) = rejected(&node, "products/p", json!({"rule_chain": "warm"}));
    assert_eq!(field, "rule_chain", "{detail}");
    let chain = |condition: &str| {
        json!({
            "nodes": [
                {"id": "warm", "type": "filter", "condition": condition},
                {"id": "both", "type": "transform", "select": "t, t * 1.8 + 32 AS f"},
                {"id": "save", "type": "save_telemetry"},
            ],
            "relations": [
                {"from": "warm", "on": "true", "to": "both"},
                {"from": "both", "to": "save"},
            ],
        })
    };
    put(&node, "rule-chains/warm", chain("t > 20"));
    let mut unknown = chain("t > 20");
    unknown["nodes"][2] = json!({"id": "save", "type": "sink", "sink": "nowhere"});
    let (field, _) = rejected(&node, "rule-chains/warm", unknown);
    assert_eq!(field, "nodes[2].sink");
    let (field, _) = rejected(&node, "rule-chains/warm", chain("t >"));
    assert_eq!(field, "nodes[0].condition");

    product(&node, "p", json!({"rule_chain": "warm", "mode": "sync"}));
    with_token(&node, "d", "p", json!({}));
    let mut raw = connect(&node, "d");
    publish_values(&mut raw, json!({"t": 19}));
    publish_values(&mut raw, json!({"t": 30}));
    assert_eq!(latest(&node, "d"), json!({"t": 30, "f": 86.0}));
    let (status, answer) = api(&node, "DELETE", "rule-chains/warm", &Value::Null);
    assert_eq!(status, 409, "{answer}");

    // The same connection, another chain.
    put(&node, "rule-chains/warm", chain("t > 40"));
    publish_values(&mut raw, json!({"t": 35}));
    assert_eq!(latest(&node, "d")["t"], 30);
    publish_values(&mut raw, json!({"t": 45}));
    assert_eq!(latest(&node, "d")["t"], 45);

    // Without a chain of its own: the root chain, which can be replaced and comes back.
    put(&node, "products/p", json!({"mode": "sync"}));
    publish_values(&mut raw, json!({"t": 1}));
    assert_eq!(latest(&node, "d")["t"], 1);
    put(&node, "rule-chains/root", chain("t > 40"));
    publish_values(&mut raw, json!({"t": 2}));
    assert_eq!(latest(&node, "d")["t"], 1);
    let (status, _) = api(&node, "DELETE", "rule-chains/root", &Value::Null);
    assert_eq!(status, 204);
    publish_values(&mut raw, json!({"t": 3}));
    assert_eq!(latest(&node, "d")["t"], 3);
    let (status, _) = api(&node, "DELETE", "rule-chains/warm", &Value::Null);
    assert_eq!(status, 204);
}

#[test]
fn a_group_has_members_counts_and_telemetry() {
    let node = Node::start(&[]);
    product(&node, "p", json!({"mode": "sync"}));
    product(&node, "q", json!({"mode": "sync"}));
    for (number, product) in ["p", "p", "q", "p"].into_iter().enumerate() {
        let floor = if number == 3 { "3" } else { "2" };
        with_token(
            &node,
            &format!("d{number}"),
            product,
            json!({"floor": floor}),
        );
        let mut raw = connect(&node, &format!("d{number}"));
        publish_values(&mut raw, json!({"ts": hour_ms(), "values": {"t": number}}));
    }
    let (field, _) = rejected(&node, "device-groups/g", json!({"product": "none"}));
    assert_eq!(field, "product");
    put(
        &node,
        "device-groups/g",
        json!({"product": "p", "tags": {"floor": "2"}, "devices": ["d3"]}),
    );
    let ids = |path: &str| {
        let page = get(&node, path);
        let rows = page["data"].as_array().unwrap().iter();
        let ids: Vec<_> = rows
            .map(|row| row["id"].as_str().unwrap().to_owned())
            .collect();
        (ids.join(" "), page["next"].as_str().map(str::to_owned))
    };
    assert_eq!(ids("device-groups/g/devices").0, "d0 d1 d3");
    let (first, next) = ids("device-groups/g/devices?limit=2");
    assert_eq!(first, "d0 d1");
    let path = format!("device-groups/g/devices?limit=2&after={}", next.unwrap());
    assert_eq!(ids(&path), ("d3".to_owned(), None));
    let counts = get(&node, "device-groups/g/counts");
    assert_eq!(
        (&counts["devices"], &counts["is_truncated"]),
        (&json!(3), &json!(false))
    );
    let query = json!({
        "device_group": "g", "keys": ["t"], "from_ms": hour_ms(), "to_ms": hour_ms() + 3_600_000,
        "interval_ms": 3_600_000, "functions": ["count", "max"], "merged": true,
    });
    let (status, answer) = api(&node, "POST", "telemetry/query", &query);
    assert_eq!(status, 200, "{answer}");
    let intervals = answer["data"].as_array().unwrap();
    assert_eq!(intervals.len(), 1, "{answer}");
    assert_eq!(intervals[0]["values"], json!({"count": 3, "max": 3}));
    let mut one_by_one = query.clone();
    one_by_one["merged"] = false.into();
    let (_, answer) = api(&node, "POST", "telemetry/query", &one_by_one);
    assert_eq!(answer["data"].as_array().unwrap().len(), 3, "{answer}");
    let mut both = query.clone();
    both["devices"] = json!(["d0"]);
    assert_eq!(api(&node, "POST", "telemetry/query", &both).0, 422);
    let mut unknown = query;
    unknown["device_group"] = "none".into();
    assert_eq!(api(&node, "POST", "telemetry/query", &unknown).0, 404);
}

#[test]
fn storage_of_a_product_is_checked_with_its_fields() {
    let node = Node::start(&[]);
    let storage = |storage: Value| rejected(&node, "products/p", json!({"storage": storage})).0;
    let step = |after_days: u32, interval_s: u32| json!({"after_days": after_days, "interval_s": interval_s});
    assert_eq!(storage(json!({"sinks": ["none"]})), "storage.sinks[0]");
    assert_eq!(
        storage(json!({"log_sinks": ["none"]})),
        "storage.log_sinks[0]"
    );
    let downsampling = |steps: Value| storage(json!({ "downsampling": steps }));
    assert_eq!(
        downsampling(json!([step(1, 7)])),
        "storage.downsampling[0].interval_s"
    );
    let twice = json!([step(2, 60), step(2, 120)]);
    assert_eq!(downsampling(twice), "storage.downsampling[1].after_days");
    let uneven = json!([step(2, 120), step(3, 180)]);
    assert_eq!(downsampling(uneven), "storage.downsampling[1].interval_s");
    let steps = json!([step(2, 60), step(30, 3600)]);
    put(
        &node,
        "products/p",
        json!({"storage": {"retention_days": 400, "downsampling": steps}}),
    );
}

#[test]
fn products_of_the_configuration_are_there_and_stay_as_they_are() {
    let folder = temporary_directory();
    let model = json!({"properties": [{"id": "t", "name": "t", "valueType": {"type": "float", "max": "50"}}]});
    let file = folder.join("meter.json");
    std::fs::write(&file, model.to_string()).unwrap();
    let config = format!("[[product]]\nid = \"meter\"\nmodel_file = {file:?}\nmode = \"sync\"\n");
    let node = Node::start_with_config(&[], &config);
    with_token(&node, "d", "meter", json!({}));
    let mut raw = connect(&node, "d");
    publish_values(&mut raw, json!({"t": 20}));
    publish_values(&mut raw, json!({"t": 51}));
    assert_eq!(latest(&node, "d"), json!({"t": 20.0}));
    let (status, answer) = api(&node, "PUT", "products/meter", &json!({}));
    assert_eq!(status, 409, "{answer}");
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains("tidegate.toml:1;"), "{detail}");
    assert_eq!(get(&node, "device-counts")["products"]["meter"], 1);
}

#[test]
fn rows_and_messages_go_to_postgresql() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    server.sql(
        "CREATE TABLE telemetry (at timestamptz NOT NULL, device text NOT NULL, product text, data jsonb);
         CREATE TABLE log (at timestamptz, device text, topic text, payload text);
         GRANT ALL ON telemetry, log TO PUBLIC",
    );
    let node = Node::start(&[]);
    let address = server.address().to_string();
    let connector = json!({
        "type": "postgres", "server": address, "username": USER, "password": PASSWORD, "database": DATABASE,
    });
    put(&node, "connectors/db", connector);
    let sink = |sql: &str| json!({"connector": "db", "sql": sql, "queue": {"on_full": "block"}});
    put(
        &node,
        "sinks/rows",
        sink(
            "INSERT INTO telemetry (at, device, product, data) VALUES (to_timestamp(${timestamp} / 1000.0), ${deviceId}, ${productId}, ${values}::jsonb)",
        ),
    );
    put(
        &node,
        "sinks/log",
        sink(
            "INSERT INTO log (at, device, topic, payload) VALUES (to_timestamp(${timestamp} / 1000.0), ${deviceId}, ${topic}, ${payload})",
        ),
    );
    let begin_ms = hour_ms();
    for mode in ["sync", "actor"] {
        let storage = json!({"sinks": ["rows"], "log_sinks": ["log"], "device_log": true});
        product(&node, mode, json!({"mode": mode, "storage": storage}));
        with_token(&node, &format!("d-{mode}"), mode, json!({}));
        let mut raw = connect(&node, &format!("d-{mode}"));
        for number in 0..20 {
            let ts = begin_ms + number * 1000;
            publish_values(
                &mut raw,
                json!({"ts": ts, "values": {"t": number, "state": "on", "at": {"x": 1}}}),
            );
        }
    }
    eventually("all rows are there", || {
        let count =
            |table: &str| server.sql(&format!("SELECT count(*) FROM {table}"))[0][0].clone();
        count("telemetry").as_deref() == Some("40") && count("log").as_deref() == Some("40")
    });
    let rows = server.sql(
        "SELECT sum((data->>'t')::int), min(data->>'state'), min(data->'at'->>'x'), count(distinct product),
                extract(epoch from max(at))::bigint FROM telemetry",
    );
    let row: Vec<_> = rows[0]
        .iter()
        .map(|value| value.as_deref().unwrap())
        .collect();
    let last_s = (begin_ms / 1000 + 19).to_string();
    assert_eq!(row, ["380", "on", "1", "2", &last_s]);
    let rows = server.sql("SELECT min(topic), min(payload::jsonb->'values'->>'state') FROM log");
    assert_eq!(
        rows[0],
        [
            Some("v1/devices/me/telemetry".to_owned()),
            Some("on".to_owned())
        ]
    );
}

#[test]
fn rows_and_messages_go_to_opensearch() {
    let Some(server) = TestServer::start_or_skip(ServerKind::OpenSearch) else {
        return;
    };
    let node = Node::start(&[]);
    let connector =
        json!({"type": "elasticsearch", "urls": [format!("http://{}", server.address())]});
    put(&node, "connectors/search", connector);
    put(
        &node,
        "sinks/search",
        json!({"connector": "search", "index": "devices-${kind}-%Y.%m"}),
    );
    product(
        &node,
        "p",
        json!({"storage": {"sinks": ["search"], "device_log": true}}),
    );
    with_token(&node, "d", "p", json!({}));
    let mut raw = connect(&node, "d");
    let begin_ms = hour_ms();
    for number in 0..50 {
        publish_values(
            &mut raw,
            json!({"ts": begin_ms + number, "values": {"t": number}}),
        );
    }
    // One that was just made cannot be searched.
    eventually("both indexes are there", || {
        let indexes = server.http("GET", "/_cat/indices/devices-*?h=index,health", "");
        let mut lines = indexes.lines();
        lines.clone().count() == 2 && lines.all(|line| !line.contains("red"))
    });
    let search = |kind: &str, query: &str| -> Value {
        let refreshed = format!("/devices-{kind}-*/_refresh");
        server.http("POST", &refreshed, "");
        let path = format!("/devices-{kind}-*/_search?{query}");
        serde_json::from_str(&server.http("GET", &path, "")).unwrap()
    };
    eventually("both kinds of documents are there", || {
        ["telemetry", "log"]
            .iter()
            .all(|kind| search(kind, "size=0")["hits"]["total"]["value"] == 50)
    });
    let found = search("telemetry", "q=values.t:7");
    let document = &found["hits"]["hits"][0]["_source"];
    assert_eq!(
        (&document["deviceId"], &document["values"]["t"]),
        (&json!("d"), &json!(7))
    );
    let found = search("log", "size=1");
    assert_eq!(
        found["hits"]["hits"][0]["_source"]["topic"],
        "v1/devices/me/telemetry"
    );
}

/// An HTTP server that says the same to everybody.
struct ConstantServer {
    address: std::net::SocketAddr,
    is_ended: Arc<AtomicBool>,
}

impl ConstantServer {
    fn start(body: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_ended = Arc::<AtomicBool>::default();
        let ended = is_ended.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = stream.unwrap();
                let mut request = [0; 4096];
                if stream.read(&mut request).is_ok() {
                    let _ = write!(
                        stream,
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                        body.len()
                    );
                }
            }
        });
        Self { address, is_ended }
    }
}

impl Drop for ConstantServer {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(self.address);
    }
}

#[test]
fn what_is_pulled_goes_through_the_thing_model_and_the_chain() {
    let rooms = ConstantServer::start(
        r#"[{"id": "a", "t": "21.5", "x": 1}, {"id": "b", "t": 99}, {"id": "c", "t": 1}]"#,
    );
    let node = Node::start(&[]);
    let model = json!({"properties": [{"id": "t", "name": "t", "valueType": {"type": "float", "max": "50"}}]});
    let nodes = json!([
        {"id": "twice", "type": "transform", "select": "t * 2 AS t"},
        {"id": "save", "type": "save_telemetry"},
    ]);
    put(
        &node,
        "rule-chains/twice",
        json!({"nodes": nodes, "relations": [{"from": "twice", "to": "save"}]}),
    );
    // Its devices use another protocol, which makes no difference here.
    let room = json!({"model": model, "unknown_keys": "reject", "rule_chain": "twice", "protocols": ["jetlinks"]});
    product(&node, "room", room);
    with_token(&node, "room-a", "room", json!({}));
    with_token(&node, "room-b", "room", json!({}));
    let url = format!("http://{}/", rooms.address);
    let source = json!({
        "interval_s": 1,
        "http": {"server": {"url": url, "token": "s3cret"}, "items": "", "device": "room-${id}"},
    });
    let (field, _) = rejected(&node, "pull-sources/rooms", json!({"interval_s": 1}));
    assert_eq!(field, "");
    put(&node, "pull-sources/rooms", source);
    eventually("the room has a temperature", || {
        latest(&node, "room-a") == json!({"t": 43.0})
    });
    // Too warm for the model.
    assert_eq!(latest(&node, "room-b"), json!({}));
    // The row is in the store before the device is heard of, and both before the round ends.
    eventually("the room is online", || {
        get(&node, "devices/room-a")["state"] == "online"
    });
    eventually("the round has ended", || {
        let status = get(&node, "pull-sources/rooms/status");
        let error = status["last_error"].as_str().unwrap_or_default();
        status["is_ok"] == true && status["type"] == "http" && error.contains("\"room-c\"")
    });
    assert_eq!(get(&node, "pull-source-status")["data"][0]["name"], "rooms");
    let shown = get(&node, "pull-sources/rooms");
    assert!(!shown.to_string().contains("s3cret"), "{shown}");
    let (status, tested) = api(&node, "POST", "pull-sources/rooms/test", &Value::Null);
    assert_eq!((status, &tested["rows"]), (200, &json!(3)), "{tested}");
    assert_eq!(
        api(&node, "DELETE", "pull-sources/rooms", &Value::Null).0,
        204
    );
    assert_eq!(
        api(&node, "GET", "pull-sources/rooms/status", &Value::Null).0,
        404
    );
}

#[test]
fn a_provisioning_key_that_another_product_has_is_a_conflict() {
    let node = Node::start(&[]);
    let with_key =
        json!({"provisioning": {"mode": "allow_new", "key": "meter-key", "secret": "long enough"}});
    let (status, answer) = api(&node, "PUT", "products/meter", &with_key);
    assert_eq!(status, 201, "{answer}");
    for (method, path, body) in [
        ("PUT", "products/pump", with_key.clone()),
        ("POST", "products", {
            let mut named = with_key.clone();
            named["id"] = "pump".into();
            named
        }),
    ] {
        let (status, answer) = api(&node, method, path, &body);
        assert_eq!(status, 409, "{method}: {answer}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(
            detail.contains("provisioning.key") && detail.contains("\"meter\""),
            "{detail}"
        );
        assert!(!detail.contains("long enough"), "{detail}");
    }
    // Its own key is no conflict.
    let (status, answer) = api(&node, "PUT", "products/meter", &with_key);
    assert_eq!(status, 200, "{answer}");
}
