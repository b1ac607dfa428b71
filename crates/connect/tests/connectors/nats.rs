//! NATS and JetStream connector against a real server.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{NatsClient, PASSWORD, ServerKind, TestServer, USER};

use crate::bench::{ConnectorFixture, RunningSource, until};

const SOON: Duration = Duration::from_secs(10);

fn connector(server: &TestServer) -> Value {
    let servers = [format!("127.0.0.1:{}", server.port())];
    json!({"type": "nats", "servers": servers, "username": USER, "password": PASSWORD})
}

fn make_stream(client: &mut NatsClient, more: Value) {
    let mut config = json!({"name": "rows", "subjects": ["rows.>"], "storage": "file"});
    let fields = config.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    let made = client.request("$JS.API.STREAM.CREATE.rows", &config.to_string());
    assert!(!made.contains("\"error\""), "{made}");
}

/// The numbers of the messages of a stream, in its order.
fn stored(client: &mut NatsClient) -> Vec<u64> {
    let info = client.request("$JS.API.STREAM.INFO.rows", "");
    let info: Value = serde_json::from_str(&info).unwrap();
    let last = info["state"]["last_seq"].as_u64();
    let last = last.unwrap_or_else(|| panic!("{info}"));
    client.subscribe("own.rows");
    let consumer = json!({"stream_name": "rows", "config": {
        "deliver_subject": "own.rows", "ack_policy": "none", "deliver_policy": "all"}});
    let made = client.request("$JS.API.CONSUMER.CREATE.rows", &consumer.to_string());
    assert!(!made.contains("\"error\""), "{made}");
    let mut numbers = Vec::new();
    while (numbers.len() as u64) < last {
        let (_, body) = client.next(SOON).expect("a message of the stream");
        let row = &body[body.find('{').unwrap()..];
        let row: Value = serde_json::from_str(row).unwrap();
        numbers.push(row["n"].as_u64().unwrap_or_else(|| panic!("{body}")));
    }
    numbers
}

#[test]
fn rows_are_published_with_headers() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    let mut client = server.nats();
    client.subscribe("mqtt.>");
    let sink = json!({
        "subject": "mqtt.${topic}", "payload": "n=${n}", "headers": {"Topic": "${topic}", "Line": "a\nb"}
    });
    let bench = ConnectorFixture::new(connector(&server), sink);
    let answer = bench.test().unwrap();
    assert!(
        answer.starts_with("NATS 2.") && answer.ends_with("with JetStream"),
        "{answer}"
    );
    bench.push(json!({"topic": "t/1", "n": 7}));
    let (subject, body) = client.next(SOON).unwrap();
    assert_eq!(subject, "mqtt.t.1");
    assert_eq!(body, "NATS/1.0\r\nLine: a b\r\nTopic: t/1\r\n\r\nn=7");
    // Rows without a valid subject: only these are dead letters.
    bench.push(json!({"topic": "a//b", "n": 8}));
    bench.push(json!({"topic": "a b", "n": 9}));
    bench.push(json!({"topic": "x", "n": 10}));
    let metrics = bench.until_settled(4);
    assert_eq!((metrics.sent, metrics.failed), (2, 2));
    assert!(
        bench.letters()[0].0.contains("not a valid subject"),
        "{:?}",
        bench.letters()
    );
    bench.stop();
}

#[test]
fn a_wrong_password_is_reported_and_waited_out() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    let mut connector = connector(&server);
    connector["password"] = "wrong-password".into();
    let bench = ConnectorFixture::new(connector.clone(), json!({"subject": "a"}));
    let why = bench.test().unwrap_err();
    assert!(why.contains("Authorization Violation"), "{why}");
    bench.push(json!({"n": 1}));
    until("it says why", || {
        bench.problem().contains("Authorization").then_some(())
    })
    .unwrap();
    connector["password"] = PASSWORD.into();
    bench.service.set_connector("c", &connector).unwrap();
    assert_eq!(bench.until_settled(1).sent, 1);
    bench.stop();
}

#[test]
fn a_stream_gets_everything_once_and_in_order_though_the_server_is_killed() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    make_stream(&mut server.nats(), json!({}));
    let sink = json!({
        "subject": "rows.${key}", "jetstream": true, "order": "all", "batch": {"max_rows": 100}
    });
    let bench = ConnectorFixture::new(connector(&server), sink);
    for round in 0..3 {
        bench.push_numbers(round * 3000..round * 3000 + 3000);
        // In the middle of it.
        until("some are sent", || {
            (bench.metrics().sent > round * 3000 + 200).then_some(())
        });
        server.kill();
        server.start();
    }
    assert_eq!(bench.until_settled(9000).failed, 0);
    let stored = stored(&mut server.nats());
    assert_eq!(stored, (0..9000).collect::<Vec<_>>());
    bench.stop();
}

#[test]
fn without_a_stream_nothing_is_lost_that_the_server_did_not_lose() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    let bench = ConnectorFixture::new(
        connector(&server),
        json!({"subject": "x", "batch": {"max_rows": 50}}),
    );
    server.kill();
    bench.push_numbers(0..1000);
    until("it is tried", || {
        (bench.metrics().batches > 2).then_some(())
    })
    .unwrap();
    server.start();
    let mut client = server.nats();
    client.subscribe("x");
    // Messages sent before the subscription are lost; the rest arrives.
    assert_eq!(bench.until_settled(1000).failed, 0);
    bench.push_numbers(1000..1100);
    let mut last = 0;
    while last < 1099 {
        let (_, body) = client.next(SOON).unwrap();
        let row: Value = serde_json::from_str(&body).unwrap();
        last = last.max(row["n"].as_u64().unwrap());
    }
    bench.stop();
}

#[test]
fn what_a_stream_rejects_is_a_dead_letter_and_a_missing_stream_is_waited_for() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    // Without an order, batches may overtake each other.
    let sink = json!({"subject": "rows.a", "jetstream": true, "order": "all"});
    let bench = ConnectorFixture::new(connector(&server), sink);
    bench.push(json!({"n": 0}));
    until("it says what is missing", || {
        bench.problem().contains("no stream captures").then_some(())
    })
    .unwrap();
    let mut client = server.nats();
    make_stream(&mut client, json!({"max_msg_size": 200}));
    assert_eq!(bench.until_settled(1).sent, 1);
    bench.push(json!({"n": 1}));
    bench.push(json!({"n": 2, "long": "x".repeat(500)}));
    bench.push(json!({"n": 3}));
    let metrics = bench.until_settled(4);
    assert_eq!((metrics.sent, metrics.failed), (3, 1));
    let letters = bench.letters();
    assert!(letters[0].0.contains("exceeds maximum"), "{letters:?}");
    assert_eq!(stored(&mut client), [0, 1, 3]);
    bench.stop();
}

#[test]
fn a_source_receives_subjects() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    let source = json!({"subjects": ["a.*", "b"], "queue_group": "nodes"});
    let source = RunningSource::start(connector(&server), source);
    let mut client = server.nats();
    // Until the source is connected, nothing receives it.
    let publish = |client: &mut NatsClient| client.publish("a.x", "first");
    until("the source is there", || {
        publish(&mut client);
        (source.count() > 0).then_some(())
    })
    .unwrap();
    server.kill();
    server.start();
    let mut client = server.nats();
    until("the source is there again", || {
        client.publish("b", "second");
        let received = source.received.0.lock().unwrap();
        received
            .iter()
            .any(|m| m.topic == "b" && m.payload == b"second")
            .then_some(())
    })
    .unwrap();
    assert!(!source.failures.lock().unwrap().is_empty());
}

#[test]
fn a_source_receives_all_of_a_stream_though_the_server_is_killed() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    let mut client = server.nats();
    make_stream(&mut client, json!({}));
    for n in 0..499 {
        client.publish("rows.a", &n.to_string());
    }
    // A killed server loses what it has not stored; it stores this one last.
    let answer = client.request("rows.a", "499");
    assert!(answer.contains("\"seq\""), "{answer}");
    let source = json!({"stream": "rows", "consumer": "tidegate", "batch": 50});
    let source = RunningSource::start(connector(&server), source);
    until("some arrive", || (source.count() > 100).then_some(())).unwrap();
    server.kill();
    server.start();
    let mut client = server.nats();
    for n in 500..600 {
        let answer = client.request("rows.a", &n.to_string());
        assert!(answer.contains("\"seq\""), "{answer}");
    }
    let received = until("all arrive", || {
        let received = source.received.0.lock().unwrap();
        let mut numbers: Vec<u64> = received
            .iter()
            .map(|m| String::from_utf8_lossy(&m.payload).parse().unwrap())
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        (numbers == (0..600).collect::<Vec<_>>()).then(|| received.clone())
    });
    let received = received.unwrap_or_else(|| panic!("{:?}", source.failures.lock().unwrap()));
    assert_eq!(received[0].fields["stream"], "rows");
    assert_eq!(received[0].fields["sequence"], 1);
}
