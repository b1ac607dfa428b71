//! Kafka connector against one real broker, shared by all tests of this file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use connect::SourceMessage;
use serde_json::{Value, json};
use testkit::{CertificateAuthority, PASSWORD, ServerKind, TestServer, USER, processes};

use crate::bench::{ConnectorFixture, RunningSource, until};

struct Broker {
    server: TestServer,
    authority: CertificateAuthority,
}

/// The broker, for one test at a time: some kill it.
fn broker() -> Option<(MutexGuard<'static, ()>, &'static Broker)> {
    static TURN: Mutex<()> = Mutex::new(());
    static BROKER: OnceLock<Option<Broker>> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let broker = BROKER.get_or_init(|| {
        let authority = CertificateAuthority::new(processes::temporary_directory());
        let identity = authority.issue_server("broker");
        let server = TestServer::start_with_tls_or_skip(ServerKind::Kafka, &identity)?;
        Some(Broker { server, authority })
    });
    match broker {
        Some(broker) => Some((turn, broker)),
        None => {
            testkit::report_skipped("there is no Kafka; run `cargo xtask test`");
            None
        }
    }
}

fn connector(server: &TestServer) -> Value {
    json!({"type": "kafka", "servers": [server.address().to_string()]})
}

/// All messages of a topic, received by a source without a group, once a number of them has arrived.
fn all_of(server: &TestServer, topic: &str, count: usize) -> Vec<SourceMessage> {
    let source = json!({"topics": [topic], "start": "earliest"});
    let source = RunningSource::start(connector(server), source);
    let enough = until("all are there", || (source.count() >= count).then_some(()));
    let received = source.received.0.lock().unwrap().clone();
    assert!(
        enough.is_some(),
        "{} of {count}: {:?}",
        received.len(),
        source.failures.lock().unwrap()
    );
    received
}

fn row_of(message: &SourceMessage) -> Value {
    serde_json::from_slice(&message.payload).unwrap()
}

fn number_of(message: &SourceMessage) -> u64 {
    row_of(message)["n"].as_u64().unwrap()
}

#[test]
fn rows_are_written_with_keys_headers_and_partitions() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    server.create_topic("plain.a", 4, &[]);
    let sink = json!({
        "topic": "plain.${topic}", "key": "${key}", "value": "n=${n}", "timestamp": "${n}",
        "headers": {"Topic": "${topic}"}
    });
    let bench = ConnectorFixture::new(connector(server), sink);
    let answer = bench.test().unwrap();
    assert!(answer.ends_with("with 1 broker"), "{answer}");
    for n in 0..20 {
        bench.push(json!({"topic": "a", "key": format!("k{}", n % 10), "n": n}));
    }
    // An invalid topic name: only this row is a dead letter.
    bench.push(json!({"topic": "a b", "n": 99}));
    let metrics = bench.until_settled(21);
    assert_eq!((metrics.sent, metrics.failed), (20, 1));
    let received = all_of(server, "plain.a", 20);
    assert_eq!(received.len(), 20);
    let mut partitions: BTreeMap<Vec<u8>, BTreeSet<u64>> = BTreeMap::new();
    for message in &received {
        assert_eq!(message.topic, "plain.a");
        assert_eq!(message.properties, [("Topic".into(), "a".into())]);
        let n = message.fields["ts"].as_u64().unwrap();
        assert_eq!(message.payload, format!("n={n}").into_bytes());
        let key = message.key.clone().unwrap();
        assert_eq!(key, format!("k{}", n % 10).into_bytes());
        let partition = message.fields["partition"].as_u64().unwrap();
        partitions.entry(key).or_default().insert(partition);
    }
    assert!(partitions.values().all(|all| all.len() == 1));
    let used: BTreeSet<_> = partitions.values().flatten().collect();
    assert!(used.len() > 1, "{partitions:?}");
    bench.stop();
}

/// Pushes rows, kills the broker in between, and returns the messages of the topic.
fn written_while_killed(
    server: &TestServer,
    topic: &str,
    order: Value,
    kills: u64,
) -> Vec<SourceMessage> {
    server.create_topic(topic, 4, &[]);
    let sink = json!({
        "topic": topic, "key": "${key}", "order": order, "batch": {"max_rows": 100}
    });
    let bench = ConnectorFixture::new(connector(server), sink);
    for round in 0..kills {
        bench.push_numbers(round * 3000..round * 3000 + 3000);
        // In the middle of it.
        until("some are sent", || {
            (bench.metrics().sent > round * 3000 + 200).then_some(())
        });
        server.kill();
        server.start();
    }
    let count = kills * 3000;
    assert_eq!(
        bench.until_settled(count).failed,
        0,
        "{:?}",
        bench.letters()
    );
    bench.stop();
    let count = count as usize;
    let received = all_of(server, topic, count);
    let numbers: BTreeSet<u64> = received.iter().map(number_of).collect();
    assert_eq!(numbers.len(), count, "each is there");
    assert_eq!(received.len(), count, "each is there once");
    received
}

#[test]
fn everything_is_there_once_and_in_order_though_the_broker_is_killed() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    let received = written_while_killed(server, "killed", json!({"by": "${key}"}), 3);
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let by_offset: BTreeMap<_, _> = received
        .iter()
        .map(|m| {
            let at = |field: &str| m.fields[field].as_u64().unwrap();
            ((at("partition"), at("offset")), m)
        })
        .collect();
    for message in by_offset.values() {
        let row = row_of(message);
        let n = row["n"].as_u64().unwrap();
        let before = last.insert(row["key"].to_string(), n);
        assert!(before.is_none_or(|before| before < n), "{before:?} {n}");
    }
}

#[test]
fn without_an_order_everything_is_there_once_too() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    written_while_killed(server, "killed-too", json!("none"), 1);
}

#[test]
fn a_broker_that_does_not_answer_in_time_gets_nothing_twice() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    server.create_topic("frozen", 2, &[]);
    let mut connector = connector(server);
    connector["request_timeout_ms"] = 300.into();
    let sink = json!({
        "topic": "frozen", "key": "${key}", "batch": {"max_rows": 50}, "write_timeout_ms": 400
    });
    let bench = ConnectorFixture::new(connector, sink);
    bench.push_numbers(0..2000);
    until("some are sent", || {
        (bench.metrics().sent > 100).then_some(())
    });
    server.freeze();
    until("it is noticed", || {
        (bench.metrics().retried > 0).then_some(())
    });
    server.resume();
    bench.push_numbers(2000..4000);
    assert_eq!(bench.until_settled(4000).failed, 0);
    bench.stop();
    let received = all_of(server, "frozen", 4000);
    let numbers: BTreeSet<u64> = received.iter().map(number_of).collect();
    assert_eq!((numbers.len(), received.len()), (4000, 4000));
}

#[test]
fn a_row_that_is_too_large_is_the_only_dead_letter() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    server.create_topic("small", 1, &[("max.message.bytes", "2000")]);
    let bench = ConnectorFixture::new(
        connector(server),
        json!({"topic": "small", "max_message_bytes": 50_000}),
    );
    // Together they are too large, but each alone is not.
    for n in 0..100 {
        let length = match n {
            30 => 5000,
            60 => 60_000,
            _ => 100,
        };
        bench.push(json!({"n": n, "long": "x".repeat(length)}));
    }
    let metrics = bench.until_settled(100);
    assert_eq!((metrics.sent, metrics.failed), (98, 2));
    let letters = bench.letters();
    let why = |n: u64| {
        let letter = letters.iter().find(|(_, row)| row["n"] == n);
        letter
            .unwrap_or_else(|| panic!("{n} of {letters:?}"))
            .0
            .clone()
    };
    assert!(why(30).contains("max.message.bytes"), "{}", why(30));
    assert!(why(60).contains("max_message_bytes"), "{}", why(60));
    let numbers: Vec<u64> = all_of(server, "small", 98).iter().map(number_of).collect();
    assert_eq!(numbers.len(), 98);
    assert!(!numbers.contains(&30) && !numbers.contains(&60));
    bench.stop();
}

#[test]
fn every_compression_is_read_by_the_broker_and_from_it() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    for kind in ["none", "gzip", "snappy", "lz4", "zstd"] {
        // Compressed by the sink, and by the broker, which repacks what it receives.
        let by_broker = if kind == "none" { "uncompressed" } else { kind };
        for (topic, ours, brokers) in [
            (format!("ours-{kind}"), kind, "producer"),
            (format!("theirs-{kind}"), "none", by_broker),
        ] {
            server.create_topic(&topic, 1, &[("compression.type", brokers)]);
            let sink = json!({"topic": topic, "compression": ours});
            let bench = ConnectorFixture::new(connector(server), sink);
            bench.push_numbers(0..1000);
            assert_eq!(bench.until_settled(1000).failed, 0, "{:?}", bench.letters());
            bench.stop();
            let received = all_of(server, &topic, 1000);
            let numbers: BTreeSet<u64> = received.iter().map(number_of).collect();
            assert_eq!(numbers, (0..1000).collect(), "{topic}");
        }
    }
}

#[test]
fn fewer_acks_write_too_and_idempotence_needs_all() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    for acks in ["none", "leader"] {
        let topic = format!("acks-{acks}");
        server.create_topic(&topic, 2, &[]);
        let bench = ConnectorFixture::new(
            connector(server),
            json!({"topic": topic, "acks": acks, "partition": "${n % 2}"}),
        );
        bench.push_numbers(0..100);
        assert_eq!(bench.until_settled(100).failed, 0);
        for message in all_of(server, &topic, 100) {
            assert_eq!(message.fields["partition"], number_of(&message) % 2);
        }
        let wrong = json!({"connector": "c", "topic": topic, "acks": acks, "idempotence": true});
        let error = bench.service.check_sink(&wrong).unwrap_err();
        assert_eq!(error.field, "idempotence");
        bench.stop();
    }
}

#[test]
fn a_password_lets_in_by_every_mechanism() {
    let Some((_turn, Broker { server, authority })) = broker() else {
        return;
    };
    server.create_topic("secret", 1, &[]);
    for (mechanism, n) in [("plain", 1), ("scram-sha-256", 2), ("scram-sha-512", 3)] {
        let mut connector = json!({
            "type": "kafka", "servers": [server.tls_address().to_string()], "sasl_mechanism": mechanism,
            "username": USER, "password": "wrong-password", "tls": {"ca": authority.certificate_path()}
        });
        let bench = ConnectorFixture::new(connector.clone(), json!({"topic": "secret"}));
        let why = bench.test().unwrap_err();
        assert!(why.contains("user or password are wrong"), "{why}");
        assert!(!why.contains("wrong-password"), "{why}");
        bench.push(json!({"n": n}));
        connector["password"] = PASSWORD.into();
        bench.service.set_connector("c", &connector).unwrap();
        bench.test().unwrap();
        assert_eq!(bench.until_settled(1).sent, 1);
        bench.stop();
    }
    assert_eq!(all_of(server, "secret", 3).len(), 3);
    // Without TLS this port is invalid, without a login it rejects clients.
    let connection_error = |connector: Value| {
        let bench = ConnectorFixture::new(connector, json!({"topic": "secret"}));
        let why = bench.test().unwrap_err();
        bench.stop();
        why
    };
    let plain = json!({"type": "kafka", "servers": [server.tls_address().to_string()]});
    let why = connection_error(plain.clone());
    assert!(why.contains("TLS") || why.contains("closed"), "{why}");
    let mut no_login = plain;
    no_login["tls"] = json!({"ca": authority.certificate_path()});
    assert!(connection_error(no_login).contains("closed the connection"));
}

#[test]
fn a_source_goes_on_where_its_group_was() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    server.create_topic("resumed", 4, &[]);
    let bench = ConnectorFixture::new(
        connector(server),
        json!({"topic": "resumed", "key": "${n}"}),
    );
    bench.push_numbers(0..1000);
    bench.until_settled(1000);
    let source = json!({"topics": ["resumed"], "group": "resuming", "start": "earliest"});
    let first = RunningSource::start(connector(server), source.clone());
    until("all arrive", || (first.count() >= 1000).then_some(())).unwrap();
    first.stop();
    bench.push_numbers(1000..1500);
    bench.until_settled(1500);
    let second = RunningSource::start(connector(server), source);
    until("the rest arrives", || (second.count() >= 500).then_some(())).unwrap();
    let received = second.stop();
    let numbers: BTreeSet<u64> = received.iter().map(number_of).collect();
    assert_eq!(numbers, (1000..1500).collect());
    assert_eq!(received.len(), 500);
    bench.stop();
}

#[test]
fn sources_of_a_group_share_partitions() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    server.create_topic("shared", 4, &[]);
    let bench = ConnectorFixture::new(
        connector(server),
        json!({"topic": "shared", "partition": "${n % 4}"}),
    );
    let source = json!({
        "topics": ["shared"], "group": "sharing", "start": "earliest", "session_timeout_ms": 6000
    });
    let partitions = |source: &RunningSource, from: u64| -> BTreeSet<u64> {
        let received = source.received.0.lock().unwrap();
        let late = received.iter().filter(|m| number_of(m) >= from);
        late.map(|m| m.fields["partition"].as_u64().unwrap())
            .collect()
    };
    let one = RunningSource::start(connector(server), source.clone());
    bench.push_numbers(0..8);
    until("one has all", || {
        (partitions(&one, 0).len() == 4).then_some(())
    })
    .unwrap();
    let two = RunningSource::start(connector(server), source);
    let mut next = 8;
    let mut both = |what: &str, is_it: &dyn Fn(&BTreeSet<u64>, &BTreeSet<u64>) -> bool| {
        until(what, || {
            let from = next;
            bench.push_numbers(from..from + 4);
            next += 4;
            // Each of the four arrives in one place only.
            until("they arrive", || {
                let (a, b) = (partitions(&one, from), partitions(&two, from));
                (a.union(&b).count() == 4).then_some((a, b))
            })
            .filter(|(a, b)| is_it(a, b))
        })
        .unwrap_or_else(|| panic!("{what}: {:?}", two.failures.lock().unwrap()));
    };
    both("each has two", &|a, b| {
        a.len() == 2 && b.len() == 2 && a.is_disjoint(b)
    });
    let rest = one.stop();
    assert!(!rest.is_empty());
    let from = next;
    bench.push_numbers(from..from + 4);
    until("the other has all", || {
        (partitions(&two, from).len() == 4).then_some(())
    })
    .unwrap_or_else(|| panic!("{:?}", two.failures.lock().unwrap()));
    bench.stop();
}

#[test]
fn a_source_receives_everything_though_the_broker_is_killed() {
    let Some((_turn, Broker { server, .. })) = broker() else {
        return;
    };
    for group in [None, Some("killed")] {
        let topic = format!("read-{}", group.unwrap_or("alone"));
        server.create_topic(&topic, 2, &[]);
        let bench =
            ConnectorFixture::new(connector(server), json!({"topic": topic, "key": "${n}"}));
        bench.push_numbers(0..500);
        bench.until_settled(500);
        let mut source = json!({"topics": [topic], "start": {"offset": 0}});
        if let Some(group) = group {
            source["group"] = group.into();
        }
        let source = RunningSource::start(connector(server), source);
        until("some arrive", || (source.count() >= 500).then_some(())).unwrap();
        server.kill();
        server.start();
        bench.push_numbers(500..600);
        bench.until_settled(600);
        until("all arrive", || {
            let received = source.received.0.lock().unwrap();
            let numbers: BTreeSet<u64> = received.iter().map(number_of).collect();
            (numbers == (0..600).collect()).then_some(())
        })
        .unwrap_or_else(|| panic!("{:?}", source.failures.lock().unwrap()));
        assert!(!source.failures.lock().unwrap().is_empty());
        if group.is_none() {
            assert_eq!(source.count(), 600, "its position survives the connection");
        }
        bench.stop();
    }
}
