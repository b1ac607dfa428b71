//! MQTT bridge against mosquitto.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};
use testkit::{PASSWORD, ServerKind, TestServer, USER};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::bench::{ConnectorFixture, RunningSource, until};

fn connector(address: &str, client_id: &str, protocol: &str) -> Value {
    json!({
        "type": "mqtt", "server": address, "client_id": client_id, "protocol": protocol,
        "username": USER, "password": PASSWORD
    })
}

fn at(server: &TestServer, client_id: &str) -> Value {
    connector(&server.address().to_string(), client_id, "5.0")
}

/// The received numbers in order of their first arrival.
fn numbers(source: &RunningSource) -> Vec<u64> {
    let received = source.received.0.lock().unwrap();
    let mut seen = BTreeSet::new();
    let all = received.iter().filter_map(|message| {
        let row: Value = serde_json::from_slice(&message.payload).ok()?;
        row["n"].as_u64()
    });
    all.filter(|n| seen.insert(*n)).collect()
}

/// Publishes until the source is connected.
fn until_it_receives(bench: &ConnectorFixture, source: &RunningSource) {
    until("the source is there", || {
        bench.push(json!({"topic": "t/hello", "hello": true}));
        (source.count() > 0).then_some(())
    })
    .unwrap_or_else(|| panic!("{:?} {}", source.failures.lock(), bench.problem()));
}

#[test]
fn messages_go_both_ways_and_not_round_in_circles() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Mosquitto) else {
        return;
    };
    let sink = json!({
        "topic": "site/${topic}", "payload": "${payload}", "user_properties": {"from": "${who}"}
    });
    let bench = ConnectorFixture::new(at(&server, "one"), sink);
    assert_eq!(bench.test().unwrap(), "MQTT 5.0 broker");
    let source = json!({"topics": ["site/#"], "local_topic": "there/${topic}"});
    let other = RunningSource::start(at(&server, "two"), source.clone());
    let own = RunningSource::start(at(&server, "one"), source);
    until("the other is there", || {
        bench.push(json!({"topic": "t/hello", "payload": "hello"}));
        (other.count() > 0).then_some(())
    })
    .unwrap();
    bench.push(json!({"topic": "t/1", "payload": "some bytes", "who": "me"}));
    let message = until("it arrives", || {
        let received = other.received.0.lock().unwrap();
        received.iter().find(|m| m.topic == "site/t/1").cloned()
    });
    let message = message.unwrap();
    assert_eq!(message.payload, b"some bytes");
    assert_eq!((message.qos, message.retain), (1, false));
    assert_eq!(message.local_topic.as_deref(), Some("there/site/t/1"));
    let from = ("from".to_owned(), "me".to_owned());
    assert!(message.properties.contains(&from), "{message:?}");
    // Messages of a third client reach both; after them, all earlier messages have arrived or never will.
    let third = ConnectorFixture::new(
        at(&server, "three"),
        json!({"topic": "site/third", "qos": 0}),
    );
    until("the third topic is subscribed", || {
        third.push(json!({"n": 1}));
        let has_third = |r: &RunningSource| {
            r.received
                .0
                .lock()
                .unwrap()
                .iter()
                .any(|m| m.topic == "site/third")
        };
        (has_third(&own) && has_third(&other)).then_some(())
    })
    .unwrap();
    let received = own.received.0.lock().unwrap();
    assert!(
        received.iter().all(|m| m.topic == "site/third"),
        "{received:?}"
    );
    drop(received);
    // Rows without a valid topic.
    let before = bench.metrics().failed;
    bench.push(json!({"topic": "a/#", "payload": ""}));
    until("it is rejected", || {
        (bench.metrics().failed > before).then_some(())
    })
    .unwrap();
    assert!(
        bench.letters()[0].0.contains("a/#"),
        "{:?}",
        bench.letters()
    );
    third.stop();
    bench.stop();
}

#[test]
fn nothing_is_lost_and_order_is_kept_though_the_broker_goes_and_comes() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Mosquitto) else {
        return;
    };
    for protocol in ["5.0", "3.1.1"] {
        let address = server.address().to_string();
        let sink = json!({"topic": "${topic}", "order": "all", "batch": {"max_rows": 100}});
        let sender = connector(&address, &format!("out {protocol}"), protocol);
        let bench = ConnectorFixture::new(sender, sink);
        let receiver = connector(&address, &format!("in {protocol}"), protocol);
        let source = RunningSource::start(receiver, json!({"topics": ["t/+"]}));
        until_it_receives(&bench, &source);
        let before = bench.metrics().sent;
        for round in 0..3 {
            bench.push_numbers(round * 2000..round * 2000 + 2000);
            until("some are sent", || {
                (bench.metrics().sent > before + round * 2000 + 200).then_some(())
            })
            .unwrap();
            server.stop();
            server.start();
        }
        until("all arrive", || {
            (numbers(&source).len() == 6000).then_some(())
        })
        .unwrap_or_else(|| panic!("{} {:?}", source.count(), bench.metrics()));
        assert_eq!(
            numbers(&source),
            (0..6000).collect::<Vec<_>>(),
            "{protocol}"
        );
        assert_eq!(bench.metrics().failed, 0);
        bench.stop();
    }
}

#[test]
fn a_killed_broker_is_waited_for() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Mosquitto) else {
        return;
    };
    let bench = ConnectorFixture::new(at(&server, "one"), json!({"topic": "t", "qos": 0}));
    bench.push_numbers(0..100);
    assert_eq!(bench.until_settled(100).sent, 100);
    server.kill();
    bench.push_numbers(100..200);
    until("it is tried again", || {
        (bench.metrics().retried > 0).then_some(())
    })
    .unwrap();
    server.start();
    assert_eq!(bench.until_settled(200).failed, 0);
    bench.stop();
}

#[test]
fn a_wrong_password_is_reported() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Mosquitto) else {
        return;
    };
    for protocol in ["5.0", "3.1.1"] {
        let mut connector = connector(&server.address().to_string(), "x", protocol);
        connector["password"] = "wrong-password".into();
        let bench = ConnectorFixture::new(connector, json!({"topic": "t"}));
        let why = bench.test().unwrap_err();
        assert!(
            why.contains("rejected the connection: not authorized"),
            "{why}"
        );
        bench.stop();
    }
}

/// Terminates TLS and forwards the connections.
fn with_tls(runtime: &Runtime, to: SocketAddr) -> (u16, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await.ok()?;
                let mut inside = tokio::net::TcpStream::connect(to).await.ok()?;
                tokio::io::copy_bidirectional(&mut outside, &mut inside)
                    .await
                    .ok()
            });
        }
    });
    (port, made.cert.pem())
}

#[test]
fn tls_is_spoken_to_whom_we_trust() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Mosquitto) else {
        return;
    };
    let runtime = Runtime::new().unwrap();
    let (port, pem) = with_tls(&runtime, server.address());
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, pem).unwrap();
    let mut trusting = connector(&format!("localhost:{port}"), "x", "5.0");
    trusting["tls"] = json!({"ca": ca});
    let bench = ConnectorFixture::new(trusting.clone(), json!({"topic": "t"}));
    assert_eq!(bench.test().unwrap(), "MQTT 5.0 broker");
    bench.push(json!({"n": 1}));
    assert_eq!(bench.until_settled(1).sent, 1);
    bench.stop();
    // The certificate names the host.
    trusting["server"] = format!("127.0.0.1:{port}").into();
    let bench = ConnectorFixture::new(trusting, json!({"topic": "t"}));
    let why = bench.test().unwrap_err();
    assert!(why.contains("TLS"), "{why}");
    bench.stop();
}
