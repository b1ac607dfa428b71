//! Every kind of event with its fields, told by real clients.

use serde_json::{Value, json};

use super::{api, next, republish};
use crate::support::{Connect, Node, Props, Publish, Raw, Subscribe, Will, eventually, kind};

/// A node, and a client that gets what comes of the statement's event.
fn watched(sql: &str) -> (Node, Raw) {
    let node = Node::start(&[]);
    let mut watcher = Raw::connect(&node, &Connect::new(4, "watcher"));
    watcher.subscribe("out", 0);
    republish(&node, "r", sql, "out");
    (node, watcher)
}

fn receive_json(raw: &mut Raw) -> Value {
    next(raw).1
}

#[test]
fn publish_has_both_spellings() {
    let (node, mut watcher) = watched(
        "SELECT topic, qos, retain, payload, msg, clientId, clientid, messageId, clientIp, peerhost, timestamp \
         FROM \"$EVENT.PUBLISH\" WHERE topic =~ 't/#'",
    );
    let mut device = Raw::connect(&node, &Connect::new(5, "device"));
    device.send_publish(&Publish::new("t/1", "hello").qos(1, 7));
    device.recv(kind::PUBACK);
    let received_event = receive_json(&mut watcher);
    for (field, expected) in [
        ("topic", json!("t/1")),
        ("qos", json!(1)),
        ("payload", json!("hello")),
        ("msg", json!("hello")),
        ("clientId", json!("device")),
        ("clientid", json!("device")),
        ("messageId", json!(7)),
        ("peerhost", json!("127.0.0.1")),
    ] {
        assert_eq!(
            received_event[field], expected,
            "{field} of {received_event}"
        );
    }
    assert!(
        received_event["clientIp"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1"),
        "{received_event}"
    );
    assert!(
        received_event["timestamp"].as_u64().unwrap() > 1_700_000_000_000,
        "{received_event}"
    );
}

#[test]
fn delivered_and_acked() {
    let (node, mut watcher) = watched(
        "SELECT event, topic, payload, clientid, from_clientid FROM \"$events/message/delivered\", \"$events/message/acked\" \
         WHERE topic = 't'",
    );
    let mut receiver = Raw::connect(&node, &Connect::new(4, "receiver"));
    receiver.subscribe("t", 1);
    let mut sender = Raw::connect(&node, &Connect::new(4, "sender"));
    sender.publish_qos1("t", "x", 1);
    let message = receiver.recv(kind::PUBLISH);
    receiver.acknowledge(&message);
    for event in ["message.delivered", "message.acked"] {
        let expected = json!({
            "event": event, "topic": "t", "payload": "x", "clientid": "receiver", "from_clientid": "sender",
        });
        assert_eq!(receive_json(&mut watcher), expected);
    }
}

#[test]
fn the_end_of_a_qos_2_delivery_is_an_event_with_its_message() {
    let (node, mut watcher) =
        watched("SELECT desc, topic, payload, clientId FROM \"$EVENT.ACK\" WHERE topic = 't'");
    // A session that stays, whose messages are in the store.
    let mut receiver = Raw::connect(&node, &Connect::new(4, "receiver").persistent());
    receiver.subscribe("t", 2);
    let mut sender = Raw::connect(&node, &Connect::new(4, "sender"));
    for (payload, id) in [("x", 1), ("y", 2)] {
        sender.send_publish(&Publish::new("t", payload).qos(2, id));
        sender.recv(kind::PUBREC);
        sender.send(&crate::support::ack(kind::PUBREL, id));
        sender.recv(kind::PUBCOMP);
        let message = receiver.recv(kind::PUBLISH);
        receiver.acknowledge(&message);
        for desc in ["rec", "comp"] {
            let expected =
                json!({"desc": desc, "topic": "t", "payload": payload, "clientId": "receiver"});
            assert_eq!(receive_json(&mut watcher), expected);
        }
    }
}

#[test]
fn dropped_and_offline() {
    let (node, mut watcher) = watched(
        "SELECT topic, clientid, qos FROM \"$EVENT.DROP\", \"$EVENT.OFFLINE\" WHERE topic =~ 't/#'",
    );
    let away = Connect::new(5, "away").properties(Props::new().u32(0x11, 100));
    let mut receiver = Raw::connect(&node, &away);
    receiver.subscribe("t/kept", 1);
    receiver.disconnect();
    eventually("it is away", || {
        let (_, client) = api(&node, "GET", "clients/away", &Value::Null);
        client["connected"] != json!(true)
    });
    let mut sender = Raw::connect(&node, &Connect::new(4, "sender"));
    sender.publish_qos1("t/kept", "x", 1);
    assert_eq!(
        receive_json(&mut watcher),
        json!({"topic": "t/kept", "clientid": "away", "qos": 1})
    );
    sender.publish("t/nobody", "x");
    assert_eq!(
        receive_json(&mut watcher),
        json!({"topic": "t/nobody", "clientid": "sender", "qos": 0})
    );
}

#[test]
fn a_client_comes_and_goes() {
    let (node, mut watcher) = watched(
        "SELECT event, clientid, keepalive, clean_start, proto_ver, reason, sockname \
         FROM \"$EVENT.CONNECT\", \"$EVENT.DISCONNECT\" \
         WHERE clientid = 'device'",
    );
    let will = Will::new("will/topic", "gone").qos(1);
    let mut device = Raw::connect(&node, &Connect::new(5, "device").keep_alive(77).will(will));
    let connected = receive_json(&mut watcher);
    assert_eq!(connected["event"], "client.connected", "{connected}");
    assert_eq!(
        (&connected["keepalive"], &connected["clean_start"]),
        (&json!(77), &json!(true))
    );
    assert_eq!(connected["proto_ver"], 5, "{connected}");
    assert_eq!(connected["sockname"], node.address("mqtt"), "{connected}");
    device.ping();
    device.disconnect();
    let end_event = receive_json(&mut watcher);
    assert_eq!(
        (&end_event["event"], &end_event["reason"]),
        (&json!("client.disconnected"), &json!("normal"))
    );
    assert_eq!(end_event["sockname"], node.address("mqtt"), "{end_event}");
}

#[test]
fn an_event_contains_the_will_of_a_client_but_not_its_password() {
    let (node, mut watcher) = watched(
        "SELECT will.willTopic AS will_topic, will.willQos AS will_qos, auth.password AS password \
         FROM \"$EVENT.CONNECT\" WHERE clientId = 'device'",
    );
    let will = Will::new("will/topic", "gone").qos(1);
    let connect = Connect::new(4, "device")
        .will(will)
        .username("ann")
        .password("s3cret");
    let _device = Raw::connect(&node, &connect);
    let expected = json!({"will_topic": "will/topic", "will_qos": 1, "password": null});
    assert_eq!(receive_json(&mut watcher), expected);
}

#[test]
fn subscriptions_and_pings() {
    let (node, mut watcher) = watched(
        "SELECT event, clientid, topic, qos, sub_props.'User-Property'.room AS room \
         FROM \"$EVENT.SUBSCRIBE\", \"$EVENT.UNSUBSCRIBE\", \"$EVENT.PING\" WHERE clientid = 'device'",
    );
    let mut device = Raw::connect(&node, &Connect::new(5, "device"));
    let properties = Props::new().pair(0x26, "room", "kitchen");
    device.subscribe_for_codes(&Subscribe::new(1).filter("a/+", 1).properties(properties));
    device.ping();
    device.unsubscribe("a/+");
    let of = |event: &str, topic: Value, qos: Value, room: Value| json!({"event": event, "clientid": "device", "topic": topic, "qos": qos, "room": room});
    assert_eq!(
        receive_json(&mut watcher),
        of(
            "session.subscribed",
            json!("a/+"),
            json!(1),
            json!("kitchen")
        )
    );
    assert_eq!(
        receive_json(&mut watcher),
        of("client.ping", Value::Null, Value::Null, Value::Null)
    );
    assert_eq!(receive_json(&mut watcher)["event"], "session.unsubscribed");
}

#[test]
fn who_comes_in_and_who_does_not() {
    let config = "[[auth.rule]]\npermission = \"deny\"\naction = \"publish\"\ntopics = [\"secret/#\"]\n\
                  [[auth.rule]]\npermission = \"allow\"\n";
    let node = Node::start_with_config(&[], config);
    let mut watcher = Raw::connect(&node, &Connect::new(4, "watcher"));
    watcher.subscribe("out/#", 0);
    republish(
        &node,
        "connack",
        "SELECT clientid, reason_code, is_superuser FROM \"$events/client/connack\", \
         \"$events/auth/check_authn_complete\"",
        "out/in",
    );
    republish(
        &node,
        "authz",
        "SELECT clientid, topic, action, result, authz_source FROM \"$events/auth/check_authz_complete\" \
         WHERE topic = 'secret/1'",
        "out/may",
    );
    let mut device = Raw::connect(&node, &Connect::new(4, "device"));
    let success = json!({"clientid": "device", "reason_code": "success", "is_superuser": false});
    for _ in 0..2 {
        assert_eq!(next(&mut watcher), ("out/in".into(), success.clone()));
    }
    device.publish("secret/1", "x");
    let decided = |client_id: &str, result: &str, source: &str| {
        json!({
            "clientid": client_id, "topic": "secret/1", "action": "publish", "result": result, "authz_source": source,
        })
    };
    let denied = decided("device", "deny", "file");
    assert_eq!(next(&mut watcher), ("out/may".into(), denied));
    let user = json!({"username": "root", "password": "secret", "is_superuser": true});
    let (status, answer) = api(&node, "POST", "users", &user);
    assert_eq!(status, 201, "{answer}");
    let root = Connect::new(4, "root").username("root").password("secret");
    let mut root = Raw::connect(&node, &root);
    for _ in 0..2 {
        let success = json!({"clientid": "root", "reason_code": "success", "is_superuser": true});
        assert_eq!(next(&mut watcher), ("out/in".into(), success));
    }
    root.publish("secret/1", "x");
    let allowed = decided("root", "allow", "superuser");
    assert_eq!(next(&mut watcher), ("out/may".into(), allowed));
}

#[test]
fn all_events_about_a_message_have_its_id() {
    let (node, mut watcher) = watched(
        "SELECT event, id, desc, pub_props FROM \"$EVENT.PUBLISH\", \"$EVENT.DELIVERED\", \"$EVENT.ACK\", \
         \"$events/message/acked\" WHERE topic = 't'",
    );
    let mut receiver = Raw::connect(&node, &Connect::new(5, "receiver"));
    receiver.subscribe("t", 2);
    let mut sender = Raw::connect(&node, &Connect::new(5, "sender"));
    let properties = Props::new().pair(0x26, "k", "1").pair(0x26, "k", "2");
    sender.send_publish(&Publish::new("t", "x").qos(2, 1).properties(properties));
    sender.recv(kind::PUBREC);
    sender.send(&crate::support::ack(kind::PUBREL, 1));
    sender.recv(kind::PUBCOMP);
    let message = receiver.recv(kind::PUBLISH);
    receiver.acknowledge(&message);
    let events: Vec<Value> = (0..5).map(|_| receive_json(&mut watcher)).collect();
    let count = |event: &str| {
        events
            .iter()
            .filter(|received_event| received_event["event"] == event)
            .count()
    };
    assert_eq!(count("message.publish"), 1, "{events:?}");
    assert_eq!(count("message.delivered"), 1, "{events:?}");
    // Two of $EVENT.ACK, and one of EMQX's event.
    assert_eq!(count("message.acked"), 3, "{events:?}");
    let id = &events[0]["id"];
    assert_eq!(id.as_str().map(str::len), Some(32), "{events:?}");
    assert!(
        events
            .iter()
            .all(|received_event| received_event["id"] == *id),
        "{events:?}"
    );
    let mut published = events.iter();
    let published = published.find(|received_event| received_event["event"] == "message.publish");
    let published = published.unwrap();
    let properties = json!({
        "User-Property": {"k": "2"},
        "User-Property-Pairs": [{"key": "k", "value": "1"}, {"key": "k", "value": "2"}],
    });
    assert_eq!(published["pub_props"], properties);
}

#[test]
fn equal_messages_of_one_millisecond_have_different_ids() {
    let (node, mut watcher) = watched("SELECT id FROM \"t\"");
    let mut sender = Raw::connect(&node, &Connect::new(5, "sender"));
    let mut packets = Vec::new();
    for _ in 0..50 {
        packets.extend(Publish::new("t", "x").bytes(5));
    }
    sender.send(&packets);
    let ids: std::collections::HashSet<String> = (0..50)
        .map(|_| {
            receive_json(&mut watcher)["id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 50);
}

#[test]
fn dropped_for_all_and_for_one_are_two_events() {
    let (node, mut watcher) = watched(
        "SELECT event, clientid, from_clientid, reason FROM \"$events/message/dropped\", \
         \"$events/message/delivery_dropped\" WHERE topic =~ 't/#'",
    );
    let mut device = Raw::connect(&node, &Connect::new(5, "device"));
    // No local.
    device.subscribe_for_codes(&Subscribe::new(1).filter("t/own", 0x04));
    device.publish("t/own", "x");
    let told_of_one = receive_json(&mut watcher);
    assert_eq!(
        told_of_one,
        json!({"event": "delivery.dropped", "clientid": "device", "from_clientid": "device", "reason": "no_local"})
    );
    device.publish("t/nobody", "x");
    let told_of_all = receive_json(&mut watcher);
    assert_eq!(
        (&told_of_all["event"], &told_of_all["reason"]),
        (&json!("message.dropped"), &json!("no_subscribers"))
    );
}

#[test]
fn a_disconnect_event_has_the_connect_time_and_the_reasons_of_emqx() {
    let (node, mut watcher) = watched(
        "SELECT event, reason, connected_at, disconnected_at, keepalive, clean_start, nodeIp, username \
         FROM \"$events/client/disconnected\", \"$events/client/ping\" WHERE clientid = 'device'",
    );
    let connect = Connect::new(5, "device").keep_alive(77);
    let mut device = Raw::connect(&node, &connect);
    device.ping();
    let ping = receive_json(&mut watcher);
    assert_eq!(
        (&ping["keepalive"], &ping["clean_start"], &ping["nodeIp"]),
        (&json!(77), &json!(true), &json!("127.0.0.1"))
    );
    let _other = Raw::connect(&node, &connect);
    let end_event = receive_json(&mut watcher);
    assert_eq!(end_event["reason"], "discarded", "{end_event}");
    let at = |field: &str| end_event[field].as_u64().unwrap_or(0);
    assert!(at("connected_at") > 1_700_000_000_000, "{end_event}");
    assert!(at("disconnected_at") >= at("connected_at"), "{end_event}");
}

#[test]
fn subscriptions_have_the_identifier_of_their_packet() {
    let (node, mut watcher) = watched(
        "SELECT event, messageId, topic, qos FROM \"$EVENT.SUBSCRIBE\", \"$EVENT.UNSUBSCRIBE\" \
         WHERE clientId = 'device'",
    );
    let mut device = Raw::connect(&node, &Connect::new(5, "device"));
    device.subscribe_for_codes(&Subscribe::new(321).filter("a/+", 1));
    assert_eq!(
        receive_json(&mut watcher),
        json!({"event": "session.subscribed", "messageId": 321, "topic": "a/+", "qos": 1})
    );
    device.unsubscribe("a/+");
    let ended = receive_json(&mut watcher);
    assert!(ended["messageId"].as_u64().is_some(), "{ended}");
    // EMQX names the QoS that the subscription had.
    assert_eq!(ended["qos"], 1, "{ended}");
}

#[test]
fn drops_say_where_publisher_and_subscriber_are() {
    // With one shard both are on the same one; with four, they usually are not.
    for shards in ["1", "4"] {
        check_drops_of_a_node(shards);
    }
}

fn check_drops_of_a_node(shards: &str) {
    let config = "[[auth.rule]]\npermission = \"deny\"\naction = \"publish\"\ntopics = [\"t/secret\"]\n\
                  [[auth.rule]]\npermission = \"allow\"\n";
    let node = Node::start_with_config(&["--shards", shards], config);
    let mut watcher = Raw::connect(&node, &Connect::new(4, "watcher"));
    watcher.subscribe("out", 0);
    let sql = "SELECT event, clientid, from_clientid, peerhost, messageId, reason FROM \"$events/message/dropped\", \
               \"$events/message/delivery_dropped\" WHERE topic =~ 't/#'";
    republish(&node, "r", sql, "out");
    let of = |event: &str, client: &str, packet: Value, reason: &str| {
        json!({
            "event": event, "clientid": client, "from_clientid": "sender", "peerhost": "127.0.0.1", "messageId": packet,
            "reason": reason,
        })
    };
    let away = Connect::new(5, "away").properties(Props::new().u32(0x11, 100));
    let mut receiver = Raw::connect(&node, &away);
    receiver.subscribe("t/kept", 1);
    receiver.disconnect();
    eventually("it is away", || {
        let (_, client) = api(&node, "GET", "clients/away", &Value::Null);
        client["connected"] != json!(true)
    });
    let mut sender = Raw::connect(&node, &Connect::new(5, "sender"));
    sender.send_publish(&Publish::new("t/nobody", "x").qos(1, 9));
    sender.recv(kind::PUBACK);
    assert_eq!(
        receive_json(&mut watcher),
        of("message.dropped", "sender", json!(9), "no_subscribers")
    );
    // A subscriber that is away had an address.
    sender.publish("t/kept", "x");
    assert_eq!(
        receive_json(&mut watcher),
        of("delivery.dropped", "away", Value::Null, "qos0_msg")
    );
    // What may not be published is not dropped for a subscriber.
    sender.publish("t/secret", "x");
    assert_eq!(
        receive_json(&mut watcher),
        of("message.dropped", "sender", Value::Null, "not_authorized")
    );
}

#[test]
fn acknowledgements_have_properties_of_their_own() {
    let (node, mut watcher) = watched(
        "SELECT pub_props.'User-Property' AS published, puback_props.'User-Property' AS acknowledged, messageId \
         FROM \"$events/message/acked\" WHERE topic = 't'",
    );
    let mut receiver = Raw::connect(&node, &Connect::new(5, "receiver"));
    receiver.subscribe("t", 1);
    let mut sender = Raw::connect(&node, &Connect::new(5, "sender"));
    let properties = Props::new().pair(0x26, "k", "of the message");
    sender.send_publish(&Publish::new("t", "x").qos(1, 1).properties(properties));
    let message = receiver.recv(kind::PUBLISH);
    let id = message.id();
    let properties = Props::new().pair(0x26, "k", "of the PUBACK");
    receiver.send(&crate::support::ack_reason(
        kind::PUBACK,
        id,
        0,
        &properties,
    ));
    assert_eq!(
        receive_json(&mut watcher),
        json!({"published": {"k": "of the message"}, "acknowledged": {"k": "of the PUBACK"}, "messageId": id})
    );
}
