//! Tests of [`StreamMultiplexer`].

use mqtt::{
    Ack, ConnAck, Connect, Direction, Packet, Properties, PropertiesBuf, Property, Publish, QoS,
    ReasonCode, SubAck, SubscribeBuf, SubscriptionOptions, UnsubAck, Version, split_frame,
};

use super::multiplexer::{Destination, StreamMultiplexer};
use super::packet_ids::{packet_id_position, read_id};
use super::stream_number::{CONTROL_STREAM, StreamNumber};

const MAX_PACKET: u32 = 1 << 16;

struct Harness {
    multiplexer: StreamMultiplexer,
    version: Version,
}

impl Harness {
    /// A client that has logged in.
    fn new(version: Version) -> Self {
        let mut multiplexer = StreamMultiplexer::new(MAX_PACKET, 4096);
        let mut connect = Vec::new();
        Connect {
            version,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "client",
            username: None,
            password: None,
            will: None,
            properties: Properties::EMPTY,
            is_bridge: false,
        }
        .encode(&mut connect);
        multiplexer.record_connect(&connect);
        let mut harness = Self {
            multiplexer,
            version,
        };
        let mut properties = PropertiesBuf::new();
        properties.push(Property::TopicAliasMaximum(4));
        let connack = Packet::ConnAck(ConnAck {
            session_present: false,
            code: ReasonCode::SUCCESS,
            properties: properties.as_properties(),
        });
        assert_eq!(
            harness.send(&connack).0,
            Destination::Stream(CONTROL_STREAM)
        );
        assert!(harness.multiplexer.is_connected());
        harness
    }

    fn encode(&self, packet: &Packet<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        packet.encode(self.version, &mut bytes);
        bytes
    }

    /// A packet of the session; returns where it goes, and its bytes there.
    fn send(&mut self, packet: &Packet<'_>) -> (Destination, Vec<u8>) {
        let mut bytes = self.encode(packet);
        let mut out = Vec::new();
        let destination = self.multiplexer.send(&mut bytes, &mut out);
        (destination, out)
    }

    /// A packet of the client; returns what the session receives.
    fn receive(&mut self, stream: StreamNumber, packet: &Packet<'_>) -> Vec<u8> {
        let mut bytes = self.encode(packet);
        if stream == CONTROL_STREAM {
            self.multiplexer.receive_control(&mut bytes);
            return bytes;
        }
        let mut out = Vec::new();
        let received = self.multiplexer.receive(stream, &bytes, &mut out);
        received.expect("the packet is valid");
        out
    }

    fn subscribe(&mut self, stream: StreamNumber, filter: &str) {
        let mut subscribe = SubscribeBuf::new(1);
        subscribe.push(filter, SubscriptionOptions::new(QoS::ExactlyOnce));
        let mut bytes = Vec::new();
        subscribe.encode(Properties::EMPTY, self.version, &mut bytes);
        let mut out = Vec::new();
        if stream == CONTROL_STREAM {
            self.multiplexer.receive_control(&mut bytes);
            out = bytes;
        } else {
            let received = self.multiplexer.receive(stream, &bytes, &mut out);
            received.expect("the packet is valid");
        }
        let suback = Packet::SubAck(SubAck {
            packet_id: id_of(&out),
            codes: &[2],
            properties: Properties::EMPTY,
        });
        let (destination, bytes) = self.send(&suback);
        assert_eq!(destination, Destination::Stream(stream));
        assert_eq!(id_of(&bytes), 1, "the identifier of the stream");
    }

    fn close(&mut self, stream: StreamNumber) -> Vec<u8> {
        let mut out = Vec::new();
        self.multiplexer.close_stream(stream, &mut out);
        out
    }

    /// Where a message of the session goes.
    fn stream_of(&mut self, topic: &str) -> Destination {
        self.send(&message(topic, QoS::AtMostOnce, 0)).0
    }
}

fn message(topic: &str, qos: QoS, packet_id: u16) -> Packet<'_> {
    Packet::Publish(Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id,
        properties: Properties::EMPTY,
        payload: b"payload",
    })
}

fn ack(kind: fn(Ack<'static>) -> Packet<'static>, packet_id: u16) -> Packet<'static> {
    kind(Ack {
        packet_id,
        reason: ReasonCode::SUCCESS,
        properties: Properties::EMPTY,
    })
}

fn id_of(packet: &[u8]) -> u16 {
    let (_, at) = packet_id_position(packet).expect("a packet with an identifier");
    read_id(packet, at).expect("it is complete")
}

/// The types of the packets.
fn types(mut packets: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while let Some(frame) = split_frame(packets, MAX_PACKET).unwrap() {
        types.push(frame.first_byte >> 4);
        packets = &packets[frame.len..];
    }
    types
}

#[test]
fn streams_use_the_same_packet_identifier_for_different_packets() {
    for version in [Version::V311, Version::V5] {
        let mut harness = Harness::new(version);
        let streams = [
            CONTROL_STREAM,
            harness.multiplexer.open_stream(),
            harness.multiplexer.open_stream(),
        ];
        let publish = message("topic", QoS::AtLeastOnce, 7);
        let ids = streams.map(|stream| id_of(&harness.receive(stream, &publish)));
        assert_eq!(ids[0], 7, "that of the control stream stays");
        assert_ne!(ids[1], ids[2]);
        // A repeated packet keeps its identifier.
        assert_eq!(id_of(&harness.receive(streams[1], &publish)), ids[1]);
        for (stream, id) in streams.into_iter().zip(ids).rev() {
            let (destination, bytes) = harness.send(&ack(Packet::PubAck, id));
            assert_eq!(destination, Destination::Stream(stream));
            assert_eq!(id_of(&bytes), 7);
        }
    }
}

#[test]
fn an_identifier_of_the_control_stream_that_is_taken_is_replaced() {
    let mut harness = Harness::new(Version::V5);
    let stream = harness.multiplexer.open_stream();
    let taken = id_of(&harness.receive(stream, &message("topic", QoS::AtLeastOnce, 1)));
    let publish = message("topic", QoS::AtLeastOnce, taken);
    let id = id_of(&harness.receive(CONTROL_STREAM, &publish));
    assert_ne!(id, taken);
    let (destination, bytes) = harness.send(&ack(Packet::PubAck, id));
    assert_eq!(destination, Destination::Stream(CONTROL_STREAM));
    assert_eq!(id_of(&bytes), taken);
    // A PUBREL of an earlier connection does not release the message of the data stream.
    let release = harness.receive(CONTROL_STREAM, &ack(Packet::PubRel, taken));
    assert_ne!(id_of(&release), taken);
    let (destination, bytes) = harness.send(&ack(Packet::PubComp, id_of(&release)));
    assert_eq!(destination, Destination::Stream(CONTROL_STREAM));
    assert_eq!(id_of(&bytes), taken);
}

#[test]
fn messages_of_qos_2_begin_with_an_identifier_that_is_free() {
    let mut harness = Harness::new(Version::V5);
    let stream = harness.multiplexer.open_stream();
    let out = harness.receive(stream, &message("topic", QoS::ExactlyOnce, 1));
    assert_eq!(
        types(&out),
        [6, 3],
        "PUBREL, in case an earlier connection used it"
    );
    let id = id_of(&out);
    let (destination, _) = harness.send(&ack(Packet::PubComp, id));
    assert_eq!(destination, Destination::Nowhere);
    let stream_of = |(destination, bytes): (Destination, Vec<u8>)| (destination, id_of(&bytes));
    let expected = (Destination::Stream(stream), 1);
    assert_eq!(stream_of(harness.send(&ack(Packet::PubRec, id))), expected);
    let release = harness.receive(stream, &ack(Packet::PubRel, 1));
    assert_eq!((types(&release), id_of(&release)), (vec![6], id));
    assert_eq!(stream_of(harness.send(&ack(Packet::PubComp, id))), expected);
    // A PUBREL without PUBLISH is answered on its stream.
    let release = harness.receive(stream, &ack(Packet::PubRel, 9));
    let answer = harness.send(&ack(Packet::PubComp, id_of(&release)));
    assert_eq!(stream_of(answer), (Destination::Stream(stream), 9));
}

#[test]
fn messages_go_to_the_stream_of_the_subscription() {
    let mut harness = Harness::new(Version::V5);
    let (a, b) = (
        harness.multiplexer.open_stream(),
        harness.multiplexer.open_stream(),
    );
    harness.subscribe(CONTROL_STREAM, "control");
    harness.subscribe(a, "a/+");
    harness.subscribe(b, "$share/group/b/#");
    for (topic, stream) in [("control", 0), ("a/1", a), ("b/1/2", b), ("other", 0)] {
        // Twice, since the answer is remembered.
        for _ in 0..2 {
            assert_eq!(harness.stream_of(topic), Destination::Stream(stream));
        }
    }
    // A subscription that is made again moves.
    harness.subscribe(b, "a/+");
    assert_eq!(harness.stream_of("a/1"), Destination::Stream(b));
    harness.subscribe(CONTROL_STREAM, "a/+");
    assert_eq!(
        harness.stream_of("a/1"),
        Destination::Stream(CONTROL_STREAM)
    );
}

#[test]
fn a_rejected_subscription_leads_nowhere() {
    let mut harness = Harness::new(Version::V5);
    let stream = harness.multiplexer.open_stream();
    let mut subscribe = SubscribeBuf::new(1);
    subscribe.push("a", SubscriptionOptions::new(QoS::AtMostOnce));
    subscribe.push("b", SubscriptionOptions::new(QoS::AtMostOnce));
    let mut bytes = Vec::new();
    subscribe.encode(Properties::EMPTY, Version::V5, &mut bytes);
    let mut out = Vec::new();
    harness
        .multiplexer
        .receive(stream, &bytes, &mut out)
        .unwrap();
    harness.send(&Packet::SubAck(SubAck {
        packet_id: id_of(&out),
        codes: &[0x87, 0],
        properties: Properties::EMPTY,
    }));
    assert_eq!(harness.stream_of("a"), Destination::Stream(CONTROL_STREAM));
    assert_eq!(harness.stream_of("b"), Destination::Stream(stream));
}

#[test]
fn a_closed_stream_ends_its_subscriptions_and_messages() {
    for version in [Version::V311, Version::V5] {
        let mut harness = Harness::new(version);
        let stream = harness.multiplexer.open_stream();
        harness.subscribe(stream, "down");
        harness.send(&message("down", QoS::AtLeastOnce, 1));
        harness.send(&message("down", QoS::ExactlyOnce, 2));
        harness.send(&message("down", QoS::ExactlyOnce, 3));
        harness.receive(stream, &ack(Packet::PubRec, 3));
        harness.receive(stream, &message("up", QoS::ExactlyOnce, 1));
        let out = harness.close(stream);
        let mut kinds = types(&out);
        kinds.sort_unstable();
        // PUBACK; PUBREC and PUBCOMP; PUBCOMP; PUBREL of the own message; UNSUBSCRIBE.
        assert_eq!(kinds, [4, 5, 6, 7, 7, 10]);
        let destination = harness.send(&ack(Packet::PubRel, 2)).0;
        assert_eq!(destination, Destination::Nowhere);
        let last = {
            let mut rest = &out[..];
            let mut last = rest;
            while let Some(frame) = split_frame(rest, MAX_PACKET).unwrap() {
                (last, rest) = rest.split_at(frame.len);
            }
            id_of(last)
        };
        let unsuback = Packet::UnsubAck(UnsubAck {
            packet_id: last,
            codes: if version == Version::V5 { &[0] } else { &[] },
            properties: Properties::EMPTY,
        });
        assert_eq!(harness.send(&unsuback).0, Destination::Nowhere);
        assert_eq!(
            harness.stream_of("down"),
            Destination::Stream(CONTROL_STREAM)
        );
        assert!(harness.close(stream).is_empty(), "only once");
    }
}

#[test]
fn a_closed_stream_receives_its_last_answers() {
    let mut harness = Harness::new(Version::V5);
    let stream = harness.multiplexer.open_stream();
    let id = id_of(&harness.receive(stream, &message("topic", QoS::AtLeastOnce, 1)));
    assert!(harness.close(stream).is_empty());
    assert!(harness.multiplexer.take_finished().is_empty());
    let (destination, _) = harness.send(&ack(Packet::PubAck, id));
    assert_eq!(destination, Destination::Stream(stream));
    assert_eq!(harness.multiplexer.take_finished(), [stream]);
}

#[test]
fn each_stream_has_topic_aliases_of_its_own() {
    let mut harness = Harness::new(Version::V5);
    let (a, b) = (
        harness.multiplexer.open_stream(),
        harness.multiplexer.open_stream(),
    );
    let alias = |number| {
        let mut properties = PropertiesBuf::new();
        properties.push(Property::TopicAlias(number));
        properties.push(Property::UserProperty("key", "value"));
        properties
    };
    let one = alias(1);
    let publish = |topic| {
        Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: true,
            topic,
            packet_id: 1,
            properties: one.as_properties(),
            payload: b"payload",
        })
    };
    harness.receive(a, &publish("topic/a"));
    harness.receive(b, &publish("topic/b"));
    for (stream, expected) in [(a, "topic/a"), (b, "topic/b")] {
        let bytes = harness.receive(stream, &publish(""));
        let frame = split_frame(&bytes, MAX_PACKET).unwrap().unwrap();
        let decoded = Packet::decode(frame, Version::V5, Direction::FromClient).unwrap();
        let Packet::Publish(publish) = decoded else {
            panic!("{decoded:?}");
        };
        assert_eq!(publish.topic, expected);
        assert_eq!(publish.properties.topic_alias(), None);
        assert_eq!(publish.properties.user_properties().count(), 1);
        assert!(publish.retain);
    }
    // Out of range, and unknown.
    for number in [0, 5, 2] {
        let properties = alias(number);
        let bytes = harness.encode(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "",
            packet_id: 0,
            properties: properties.as_properties(),
            payload: b"",
        }));
        let received = harness.multiplexer.receive(a, &bytes, &mut Vec::new());
        assert!(received.is_err(), "{number}");
    }
}

#[test]
fn aliases_of_the_session_are_resolved_on_data_streams() {
    let mut harness = Harness::new(Version::V5);
    let stream = harness.multiplexer.open_stream();
    harness.subscribe(stream, "data");
    let mut alias = PropertiesBuf::new();
    alias.push(Property::TopicAlias(1));
    let message = |topic| {
        Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: 0,
            properties: alias.as_properties(),
            payload: b"payload",
        })
    };
    let topic_and_alias = |bytes: &[u8]| {
        let frame = split_frame(bytes, MAX_PACKET).unwrap().unwrap();
        match Packet::decode(frame, Version::V5, Direction::FromServer).unwrap() {
            Packet::Publish(publish) => {
                (publish.topic.to_owned(), publish.properties.topic_alias())
            }
            other => panic!("{other:?}"),
        }
    };
    for topic in ["data", ""] {
        let (destination, bytes) = harness.send(&message(topic));
        assert_eq!(destination, Destination::Stream(stream));
        assert_eq!(topic_and_alias(&bytes), ("data".into(), None));
    }
    harness.close(stream);
    // The control stream has not seen the alias yet.
    let (_, bytes) = harness.send(&message(""));
    assert_eq!(topic_and_alias(&bytes), ("data".into(), Some(1)));
    let (_, bytes) = harness.send(&message(""));
    assert_eq!(topic_and_alias(&bytes), (String::new(), Some(1)));
}

#[test]
fn packets_of_the_control_stream_are_violations_on_data_streams() {
    let mut harness = Harness::new(Version::V5);
    let stream = harness.multiplexer.open_stream();
    let mut out = Vec::new();
    for bytes in [&b"\xe0\0"[..], b"\xf0\0", b"\0\0", b"\x32\x01\x01"] {
        assert!(
            harness
                .multiplexer
                .receive(stream, bytes, &mut out)
                .is_err(),
            "{bytes:?}"
        );
    }
    let ping = harness.receive(stream, &Packet::PingReq);
    assert!(ping.is_empty() && out.is_empty());
}

#[test]
fn a_lost_connection_leaves_no_identifier_unreleased() {
    let mut harness = Harness::new(Version::V5);
    let stream = harness.multiplexer.open_stream();
    harness.receive(stream, &message("topic", QoS::ExactlyOnce, 1));
    harness.receive(stream, &message("topic", QoS::ExactlyOnce, 2));
    harness.receive(stream, &ack(Packet::PubRel, 2));
    let mut out = Vec::new();
    harness.multiplexer.close_connection(&mut out);
    assert_eq!(types(&out), [6]);
}
