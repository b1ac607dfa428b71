//! Messages between the connections of an endpoint, rules and MQTT clients.

use serde_json::json;

use super::{BINARY, RelayClient, ask, change_endpoint, new_endpoint, statistics};
use crate::api::own_node;
use crate::support::{Connect, Node, Publish, Raw, Subscribe, eventually, kind, masked_frame};

#[test]
fn a_message_reaches_all_other_connections_as_it_was_sent() {
    if !own_node() {
        return;
    }
    for shards in ["1", "2"] {
        let node = Node::start(&["--shards", shards]);
        let id = new_endpoint(&node, json!({"mode": "direct"}));
        let other = new_endpoint(&node, json!({"mode": "direct"}));
        let mut clients: Vec<_> = (0..6).map(|_| RelayClient::connect(&node, &id)).collect();
        let mut stranger = RelayClient::connect(&node, &other);
        for (n, text) in ["first", "grüße", ""].into_iter().enumerate() {
            clients[n].send_text(text);
            for (at, client) in clients.iter_mut().enumerate() {
                if at != n {
                    assert_eq!(client.expect_text(), text, "{shards} shards");
                }
            }
        }
        // Larger than a packet of any network, and no text.
        let large: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        clients[0].0.send_frame(BINARY, &large);
        for client in &mut clients[1..] {
            assert_eq!(client.receive().unwrap(), (BINARY, large.clone()));
        }
        // Nothing was sent back, or to the other endpoint.
        clients[1].send_text("end");
        assert_eq!(clients[0].expect_text(), "end");
        RelayClient::connect(&node, &other).send_text("hello");
        assert_eq!(stranger.expect_text(), "hello");
        let counted = statistics(&node, &id);
        assert_eq!(counted["total_messages"], 5, "{counted}");
        assert_eq!(counted["total_bytes"], 5 + 7 + 300_000 + 3, "{counted}");
        assert_eq!(counted["current_connections"], 6, "{counted}");
        assert_eq!(counted["messages_per_minute"], 5, "{counted}");
        let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now_ms = now_ms.unwrap().as_millis() as u64;
        let last_ms = counted["last_active_at_ms"].as_u64().unwrap();
        assert!((now_ms - 60_000..=now_ms).contains(&last_ms), "{counted}");
    }
}

#[test]
fn a_client_may_send_with_its_upgrade_request() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let id = new_endpoint(node, json!({"mode": "direct"}));
    let mut receiver = RelayClient::connect(node, &id);
    let address = node.address("ws");
    let mut request = format!(
        "GET /ws/{id} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    .into_bytes();
    request.extend(masked_frame(super::TEXT, b"at once"));
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut socket, &request).unwrap();
    assert_eq!(receiver.expect_text(), "at once");
}

#[test]
fn a_change_of_the_mode_applies_to_the_next_message() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let id = new_endpoint(node, json!({}));
    let (mut a, mut b) = (
        RelayClient::connect(node, &id),
        RelayClient::connect(node, &id),
    );
    a.send_text(r#"{"type":"t","data":{"x":1},"timestamp":5,"more":2}"#);
    assert_eq!(
        b.expect_json(),
        json!({"type": "message", "data": {"x": 1}, "timestamp": 5})
    );
    a.send_text("no JSON");
    let wrapped = b.expect_json();
    assert_eq!(wrapped["data"], "no JSON");
    assert!(wrapped["timestamp"].as_u64() > Some(1_700_000_000_000));
    change_endpoint(node, &id, json!({"mode": "custom_header", "header": "H|"}));
    a.send_text("x");
    assert_eq!(b.expect_text(), "H|x");
    change_endpoint(node, &id, json!({"mode": "direct"}));
    a.send_text("x");
    assert_eq!(b.expect_text(), "x");
}

#[test]
fn rules_and_permitted_mqtt_clients_use_the_topic_of_an_endpoint() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let rule = json!({"permission": "allow", "client_id": "insider", "topics": ["$relay/#"]});
    let (status, answer) = ask(&node, "POST", "acl-rules", rule);
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = ask(&node, "PUT", "endpoints/room", json!({"mode": "direct"}));
    assert_eq!(status, 201, "{answer}");
    let mut web = RelayClient::connect(&node, "room");
    let mut insider = Raw::connect(&node, &Connect::new(5, "insider"));
    insider.subscribe("$relay/+", 1);
    web.send_text("from a page");
    let publish = insider.recv(kind::PUBLISH);
    assert_eq!(publish.topic, "$relay/room");
    assert_eq!(publish.payload, b"from a page");
    insider.publish("$relay/room", "from MQTT");
    // The publisher is no connection of the endpoint: it gets its own message, as with any topic.
    assert_eq!(insider.recv(kind::PUBLISH).payload, b"from MQTT");
    assert_eq!(web.expect_text(), "from MQTT");

    let mut outsider = Raw::connect(&node, &Connect::new(5, "outsider"));
    let codes = outsider.subscribe_for_codes(&Subscribe::new(1).filter("$relay/+", 0));
    assert_eq!(codes, [0x87]);
    outsider.publish("$relay/room", "denied");

    let rule = json!({
        "name": "echo",
        "sql": "SELECT payload FROM \"$relay/+\" WHERE payload = 'ping'",
        "actions": [{"kind": "republish", "topic": "$relay/room", "payload": "pong"}],
    });
    let (status, answer) = ask(&node, "POST", "rules", rule);
    assert_eq!(status, 201, "{answer}");
    web.send_text("ping");
    assert_eq!(web.expect_text(), "pong");
    let (_, history) = ask(&node, "GET", "endpoints/room/messages", json!(null));
    let texts: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["text"])
        .collect();
    assert_eq!(texts, ["pong", "ping", "from MQTT", "from a page"]);
    assert_eq!(history[2]["sender"], "insider");
}

#[test]
fn a_receiver_that_does_not_read_loses_the_oldest_messages_and_others_none() {
    if !own_node() {
        return;
    }
    for shards in ["1", "2"] {
        check_slow_receiver(&Node::start(&["--shards", shards]));
    }
}

fn check_slow_receiver(node: &Node) {
    let definition = json!({"mode": "direct", "max_backlog_bytes": 1_000_000});
    let id = new_endpoint(node, definition);
    let (mut sender, mut reader, mut slow) = (
        RelayClient::connect(node, &id),
        RelayClient::connect(node, &id),
        RelayClient::connect(node, &id),
    );
    const COUNT: usize = 4000;
    let text = |n: usize| format!("{n:06}{}", "x".repeat(9_994));
    for first in (0..COUNT).step_by(20) {
        for n in first..first + 20 {
            sender.send_text(&text(n));
        }
        for n in first..first + 20 {
            assert_eq!(&reader.expect_text()[..6], &text(n)[..6]);
        }
    }
    eventually("messages are dropped", || {
        statistics(node, &id)["dropped_messages"].as_u64() > Some(0)
    });
    let mut last = None;
    let mut received = 0_u64;
    let notice = loop {
        let text = slow.expect_text();
        if text.len() != 10_000 {
            break text;
        }
        let n: usize = text[..6].parse().unwrap();
        assert!(last < Some(n), "{n} after {last:?}");
        (last, received) = (Some(n), received + 1);
    };
    assert_eq!(last, Some(COUNT - 1));
    assert!(notice.contains("RATE_LIMIT_WARNING"), "{notice}");
    let dropped = statistics(node, &id)["dropped_messages"].as_u64().unwrap();
    assert_eq!(received + dropped, COUNT as u64);
}

#[test]
fn a_binary_message_stays_binary_in_every_mode_even_if_it_is_text() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    for (definition, header) in [
        (json!({"mode": "direct"}), ""),
        (json!({"mode": "json"}), ""),
        (json!({"mode": "custom_header", "header": "H|"}), "H|"),
    ] {
        let id = new_endpoint(node, definition);
        let mut receiver = RelayClient::join(node, &id);
        let mut sender = RelayClient::join(node, &id);
        let json = br#"{"type":"t","data":1}"#;
        for payload in [&json[..], "grüße".as_bytes(), b"", &[0xff, 0]] {
            sender.0.send_frame(BINARY, payload);
            let expected = [header.as_bytes(), payload].concat();
            assert_eq!(receiver.receive(), Some((BINARY, expected)), "{header}");
        }
    }
}

/// A node with the endpoint `room`, whose topic the client `insider` may use.
fn node_with_insider(arguments: &[&str]) -> (Node, Raw) {
    let node = Node::start(arguments);
    let rule = json!({"permission": "allow", "client_id": "insider", "topics": ["$relay/#"]});
    let (status, answer) = ask(&node, "POST", "acl-rules", rule);
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = ask(&node, "PUT", "endpoints/room", json!({"mode": "direct"}));
    assert_eq!(status, 201, "{answer}");
    let insider = Raw::connect(&node, &Connect::new(5, "insider"));
    (node, insider)
}

#[test]
fn retained_messages_to_an_endpoint_are_refused() {
    if !own_node() {
        return;
    }
    let (node, mut insider) = node_with_insider(&[]);
    let mut web = RelayClient::join(&node, "room");
    for qos in [1, 2] {
        let publish = Publish::new("$relay/room", "kept").qos(qos, 7).retain();
        insider.send_publish(&publish);
        let kind = if qos == 1 { kind::PUBACK } else { kind::PUBREC };
        assert_eq!(insider.recv(kind).reason, 0x83, "QoS {qos}");
    }
    insider.send_publish(&Publish::new("$relay/room", "kept").retain());
    // Versions before 5 have no reasons: the message is acknowledged and dropped.
    let rule = json!({"permission": "allow", "client_id": "old", "topics": ["$relay/#"]});
    assert_eq!(ask(&node, "POST", "acl-rules", rule).0, 201);
    let mut old = Raw::connect(&node, &Connect::new(4, "old"));
    old.send_publish(&Publish::new("$relay/room", "kept").qos(1, 7).retain());
    assert_eq!(old.recv(kind::PUBACK).id(), 7);

    let message = json!({"topic": "$relay/room", "payload": "kept", "retain": true});
    let (status, answer) = ask(&node, "POST", "publish", message.clone());
    assert_eq!(
        (status, &answer["parameter"]),
        (422, &json!("retain")),
        "{answer}"
    );
    assert!(
        answer["detail"]
            .as_str()
            .unwrap()
            .contains("relay endpoints"),
        "{answer}"
    );
    let batch = json!({"messages": [message, {"topic": "$relay/room", "payload": "not kept"}]});
    let (status, answer) = ask(&node, "POST", "publish/batch", batch);
    assert_eq!((status, &answer["published"]), (200, &json!(1)), "{answer}");
    assert_eq!(web.expect_text(), "not kept", "and nothing before it");
    insider.subscribe("$relay/room", 0);
    insider.publish("$relay/room", "end");
    assert_eq!(
        insider.recv(kind::PUBLISH).payload,
        b"end",
        "nothing is retained"
    );
}

#[test]
fn every_kind_of_subscription_to_endpoints_needs_a_permission() {
    if !own_node() {
        return;
    }
    const FILTERS: [&str; 7] = [
        "$relay/room",
        "$relay/+",
        "$relay/#",
        "$share/group/$relay/+",
        "$share/group/$relay/#",
        "$queue/$relay/room",
        "$exclusive/$relay/room",
    ];
    // Without a rule nothing else applies, and a policy that only observes denials lets nobody in either.
    for arguments in [
        &["--set", "auth.default_permission=allow"][..],
        &["--set", "auth.default_permission=deny"],
        &["--set", "auth.deny_action=observe"],
    ] {
        let (node, mut insider) = node_with_insider(arguments);
        let mut outsider = Raw::connect(&node, &Connect::new(5, "outsider"));
        for filter in FILTERS {
            let codes = outsider.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
            assert_eq!(codes, [0x87], "{arguments:?}: {filter}");
        }
        outsider.send_publish(&Publish::new("$relay/room", "denied").qos(1, 7));
        assert_eq!(outsider.recv(kind::PUBACK).reason, 0x87, "{arguments:?}");
        let delayed = Publish::new("$delayed/1/$relay/room", "denied").qos(1, 8);
        outsider.send_publish(&delayed);
        assert_eq!(outsider.recv(kind::PUBACK).reason, 0x87, "{arguments:?}");
        // With a permission, each of them gets the messages.
        let mut web = RelayClient::join(&node, "room");
        for filter in FILTERS {
            let codes = insider.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
            assert_eq!(codes, [0], "{arguments:?}: {filter}");
            web.send_text(filter);
            let message = insider.recv(kind::PUBLISH);
            assert_eq!((&*message.topic, message.text()), ("$relay/room", filter));
            insider.unsubscribe(filter);
        }
        // An overlapping wildcard does not reveal endpoints.
        let codes = outsider.subscribe_for_codes(&Subscribe::new(1).filter("#", 0));
        if codes == [0] {
            web.send_text("secret");
            insider.publish("public", "hello");
            assert_eq!(
                outsider.recv(kind::PUBLISH).topic,
                "public",
                "{arguments:?}"
            );
        }
    }
}

#[test]
fn a_slow_receiver_is_disconnected_if_the_endpoint_wants_it() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "1"]);
    let definition =
        json!({"mode": "direct", "max_backlog_bytes": 1_000_000, "slow_receivers": "disconnect"});
    let id = new_endpoint(&node, definition);
    let mut sender = RelayClient::join(&node, &id);
    let mut reader = RelayClient::join(&node, &id);
    let mut slow = RelayClient::join(&node, &id);
    let text = "x".repeat(100_000);
    let mut sent = 0;
    eventually("the slow receiver is disconnected", || {
        sender.send_text(&text);
        assert_eq!(reader.expect_text().len(), text.len());
        sent += 1;
        statistics(&node, &id)["current_connections"] == 2
    });
    // What was on its way arrives, then the reason.
    let mut received = 0;
    let (first_byte, payload) = loop {
        let frame = slow.receive().expect("a close frame");
        if frame.0 != super::TEXT {
            break frame;
        }
        received += 1;
    };
    assert_eq!(first_byte, super::CLOSE);
    assert_eq!(payload[..2], 1013_u16.to_be_bytes());
    assert_eq!(&payload[2..], b"too many messages wait for this client");
    assert!(received < sent, "{received} of {sent}");
    assert_eq!(slow.receive(), None, "the connection ends");
}
