//! MQTT over several streams of one QUIC connection, as in EMQX: a control stream, and data streams for messages and
//! subscriptions.

use std::time::Duration;

use super::quic::QuicNode;
use super::{greet, own_node};
use crate::quic_client::QuicClient;
use crate::support::{
    Connect, Packet, Props, Publish, Raw, Subscribe, Unsubscribe, ack, eventually, kind, unique,
};

const TOPIC_ALIAS: u8 = 0x23;
const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
/// Data streams that may be open at the same time.
const DATA_STREAMS: usize = 16;

/// A data stream of a client that has logged in.
fn data_stream(client: &QuicClient, version: u8) -> Raw {
    Raw::over(client.open(), version)
}

#[test]
fn answers_come_on_the_stream_of_the_request_with_its_packet_identifier() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    for version in [4, 5] {
        let (client, mut control) = quic.client(version);
        let mut streams: Vec<Raw> = (0..3).map(|_| data_stream(&client, version)).collect();
        let mut tcp = super::client(&quic.node, "mqtt", 5);
        let topic = unique("streams");
        tcp.subscribe(&topic, 0);
        // All use the same identifier at the same time.
        for stream in streams.iter_mut().chain([&mut control]) {
            stream.send_publish(&Publish::new(&topic, "once").qos(2, 1));
        }
        for stream in streams.iter_mut().chain([&mut control]) {
            assert_eq!(stream.recv(kind::PUBREC).id(), 1);
            stream.send(&ack(kind::PUBREL, 1));
            assert_eq!(stream.recv(kind::PUBCOMP).id(), 1);
            stream.publish_qos1(&topic, "at least once", 1);
        }
        let received: Vec<Packet> = (0..8).map(|_| tcp.recv(kind::PUBLISH)).collect();
        let once = received.iter().filter(|packet| packet.payload == b"once");
        assert_eq!(once.count(), 4);
        control.ping();
    }
}

#[test]
fn messages_come_on_the_stream_of_their_subscription() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let client = quic.connect();
    let mut control = Raw::over(client.open(), 5);
    // The node uses aliases where it may.
    let maximum = Props::new().u16(TOPIC_ALIAS_MAXIMUM, 10);
    let connect = Connect::new(5, unique("streams")).properties(maximum);
    assert_eq!(control.hand_shake(&connect).reason, 0);
    let (mut a, mut b) = (data_stream(&client, 5), data_stream(&client, 5));
    control.subscribe("control", 1);
    a.subscribe("a/#", 2);
    b.subscribe("b/+", 2);
    let mut tcp = super::client(&quic.node, "mqtt", 5);
    for round in 0..3 {
        for (topic, stream) in [
            ("control", &mut control),
            ("a/1/2", &mut a),
            ("b/1", &mut b),
        ] {
            for qos in [0, 1, 2] {
                let payload = format!("{topic} {round} {qos}");
                let id = if qos == 0 { 0 } else { 1 };
                match qos {
                    0 => tcp.publish(topic, &payload),
                    1 => tcp.publish_qos1(topic, &payload, id),
                    _ => tcp.publish_qos2(topic, &payload, id),
                }
                let message = stream.recv(kind::PUBLISH);
                assert_eq!(message.payload, payload.as_bytes());
                stream.acknowledge(&message);
            }
        }
    }
    // Data streams get the topic itself.
    tcp.publish("a/1/2", "last");
    let last = a.recv(kind::PUBLISH);
    assert_eq!(
        (last.topic.as_str(), last.property(TOPIC_ALIAS)),
        ("a/1/2", None)
    );
    // A subscription that is made again on another stream moves there; each stream can end it.
    b.subscribe("a/#", 0);
    tcp.publish("a/1/2", "moved");
    b.recv_message("a/1/2", "moved");
    a.send(&Unsubscribe::new(1).filter("a/#").bytes(5));
    assert_eq!(a.recv(kind::UNSUBACK).reason, 0);
    tcp.publish("a/1/2", "nobody");
    tcp.ping();
    for stream in [&mut a, &mut b] {
        stream.publish_qos1("nobody", "in order", 1);
    }
    control.ping();
}

#[test]
fn topic_aliases_belong_to_their_stream() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let (client, mut control) = quic.client(5);
    let (mut a, mut b) = (data_stream(&client, 5), data_stream(&client, 5));
    let mut tcp = super::client(&quic.node, "mqtt", 5);
    tcp.subscribe("alias/#", 0);
    let alias = || Props::new().u16(TOPIC_ALIAS, 1);
    let mut publish = |stream: &mut Raw, topic: &str, expected: &str| {
        stream.send_publish(&Publish::new(topic, "x").qos(1, 5).properties(alias()));
        assert_eq!(stream.recv(kind::PUBACK).id(), 5);
        tcp.recv_message(expected, "x");
    };
    publish(&mut a, "alias/a", "alias/a");
    publish(&mut b, "alias/b", "alias/b");
    publish(&mut control, "alias/control", "alias/control");
    publish(&mut a, "", "alias/a");
    publish(&mut b, "", "alias/b");
    publish(&mut control, "", "alias/control");
}

#[test]
fn a_large_or_incomplete_packet_delays_no_other_stream() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let (client, mut control) = quic.client(5);
    let (mut slow, mut fast) = (data_stream(&client, 5), data_stream(&client, 5));
    // A packet of the control stream that began before the first data stream comes first.
    slow.publish_qos1("open", "now", 1);
    let mut tcp = super::client(&quic.node, "mqtt", 5);
    tcp.subscribe("large/#", 0);
    let payload = vec![9; 300_000];
    let large = Publish::new("large/slow", &payload).bytes(5);
    slow.send(&large[..200_000]);
    let of_control = Publish::new("large/control", &payload).bytes(5);
    control.send(&of_control[..200_000]);
    fast.publish_qos1("large/fast", "now", 1);
    tcp.recv_message("large/fast", "now");
    slow.send(&large[200_000..]);
    tcp.recv_message("large/slow", &payload);
    control.send(&of_control[200_000..]);
    tcp.recv_message("large/control", &payload);
}

#[test]
fn a_closed_stream_ends_its_subscriptions_and_nothing_else() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let (client, mut control) = quic.client(5);
    control.subscribe("stays", 0);
    let mut tcp = super::client(&quic.node, "mqtt", 5);
    let no_subscribers = |tcp: &mut Raw, topic: &str| {
        eventually("the subscription has ended", || {
            tcp.send_publish(&Publish::new(topic, "x").qos(1, 1));
            tcp.recv(kind::PUBACK).reason == 0x10
        });
    };
    for is_reset in [false, true] {
        let mut stream = client.open();
        if is_reset {
            let mut raw = Raw::over(stream, 5);
            raw.subscribe("ends", 1);
            tcp.publish_qos1("ends", "unacknowledged", 1);
            raw.recv(kind::PUBLISH);
            raw.cut();
        } else {
            use std::io::Write;
            // The last answer comes although the client sends no more.
            stream
                .write_all(&Subscribe::new(7).filter("ends", 0).bytes(5))
                .unwrap();
            stream.finish();
            let mut raw = Raw::over(stream, 5);
            assert_eq!(raw.recv(kind::SUBACK).id(), 7);
            raw.expect_closed();
        }
        no_subscribers(&mut tcp, "ends");
        tcp.publish("stays", "here");
        // Messages to the stream that were under way come here.
        let mut message = control.recv(kind::PUBLISH);
        while message.topic == "ends" {
            control.acknowledge(&message);
            message = control.recv(kind::PUBLISH);
        }
        assert_eq!(message.topic, "stays");
    }
    // The control stream ends everything.
    let mut other = data_stream(&client, 5);
    other.subscribe("ends too", 0);
    control.disconnect();
    no_subscribers(&mut tcp, "ends too");
    eventually("the connection has ended", || quic.connections() == 0);
}

#[test]
fn an_invalid_packet_closes_only_its_stream() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "max_packet_size = \"10KiB\"");
    let (client, mut control) = quic.client(5);
    let mut other = data_stream(&client, 5);
    let too_large = Publish::new("large", vec![0; 20_000]).bytes(5);
    let disconnect = [0xe0, 0];
    let connect = Connect::new(5, unique("again")).bytes();
    let unknown_alias = Publish::new("", "x")
        .properties(Props::new().u16(TOPIC_ALIAS, 3))
        .bytes(5);
    let invalid: [&[u8]; 5] = [&[0; 10], &too_large, &disconnect, &connect, &unknown_alias];
    for bytes in invalid {
        let mut stream = data_stream(&client, 5);
        stream.send(bytes);
        stream.expect_closed();
        other.publish_qos1("topic", "payload", 1);
        control.ping();
    }
    // PINGREQ belongs to the control stream, too, but does no harm.
    other.send(&[0xc0, 0]);
    other.publish_qos1("topic", "payload", 1);
}

#[test]
fn data_streams_are_limited_and_wait_for_the_login() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let client = quic.connect();
    let mut control = Raw::over(client.open(), 5);
    let early = client.try_open(Duration::from_millis(200));
    assert!(early.is_none(), "before CONNACK");
    greet(&mut control);
    let open = || {
        let mut stream = data_stream(&client, 5);
        stream.publish_qos1("topic", "payload", 1);
        stream
    };
    let mut streams: Vec<Raw> = (0..DATA_STREAMS).map(|_| open()).collect();
    // Room for others comes in steps, so a few more are permitted at times.
    for _ in 0..2 * DATA_STREAMS {
        streams.pop().unwrap().cut();
        streams.push(open());
    }
    let limit = Duration::from_millis(200);
    let more: Vec<_> = std::iter::from_fn(|| client.try_open(limit))
        .take(DATA_STREAMS)
        .collect();
    assert!(more.len() <= DATA_STREAMS / 4, "{} more", more.len());
    control.ping();
}

#[test]
fn a_session_receives_on_the_control_stream_what_a_lost_stream_has_not_acknowledged() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let session_expiry = || Props::new().u32(0x11, 60);
    let connect = Connect::new(5, unique("resumed"))
        .persistent()
        .properties(session_expiry());
    let client = quic.connect();
    let mut control = Raw::over(client.open(), 5);
    assert_eq!(control.hand_shake(&connect).reason, 0);
    let mut stream = data_stream(&client, 5);
    stream.subscribe("resumed", 1);
    let mut tcp = super::client(&quic.node, "mqtt", 5);
    tcp.publish_qos1("resumed", "first", 1);
    stream.recv_message("resumed", "first");
    // An exchange of QoS 2 that is never completed.
    stream.send_publish(&Publish::new("other", "once").qos(2, 1));
    stream.recv(kind::PUBREC);
    client.connection.close(quinn::VarInt::from_u32(0), b"");
    eventually("the connection is lost", || quic.connections() == 0);
    tcp.publish_qos1("resumed", "second", 1);

    let client = quic.connect();
    let mut control = Raw::over(client.open(), 5);
    assert!(control.hand_shake(&connect).session_present);
    for payload in ["first", "second"] {
        let message = control.recv_message("resumed", payload);
        control.acknowledge(&message);
    }
    // The identifier is free again, so this is no duplicate.
    tcp.subscribe("other", 0);
    let mut stream = data_stream(&client, 5);
    stream.publish_qos2("other", "new", 1);
    tcp.recv_message("other", "new");
}
