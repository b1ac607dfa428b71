//! What happens after protocol time: keep-alive, expiry of sessions and of messages, will delay, delayed messages, no
//! repetition on an open connection. The simulated clock passes at once; `tests/wire` contains one test of each subject
//! with real time.

mod message_expiry;
mod session_expiry;
mod wills;

use mqtt::{
    Ack, Connect, Direction, Disconnect, Packet, PacketType, Properties, PropertiesBuf, Property,
    Publish, QoS, ReasonCode, Version, Will,
};

use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;
use crate::core::connection::ConnectionPhase;

/// A message as received, with what is left of its expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReceivedMessage {
    payload: String,
    packet_id: u16,
    dup: bool,
    expiry_s: Option<u32>,
}

fn sim() -> Sim {
    Sim::new(1, BrokerLimits::default(), 1)
}

fn properties(list: &[Property<'_>]) -> PropertiesBuf {
    let mut buf = PropertiesBuf::new();
    for property in list {
        buf.push(*property);
    }
    buf
}

fn session_expiry(seconds: u32) -> PropertiesBuf {
    properties(&[Property::SessionExpiryInterval(seconds)])
}

fn connect<'a>(client_id: &'a str, properties: &'a PropertiesBuf) -> Connect<'a> {
    Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive_s: 0,
        client_id,
        username: None,
        password: None,
        will: None,
        properties: properties.as_properties(),
        is_bridge: false,
    }
}

fn will<'a>(payload: &'a str, properties: &'a PropertiesBuf) -> Option<Will<'a>> {
    Some(Will {
        topic: "will",
        payload: payload.as_bytes(),
        qos: QoS::AtMostOnce,
        retain: false,
        properties: properties.as_properties(),
    })
}

/// Connects; the connection, whether it resumed a session, and the messages it received at once.
fn open(sim: &mut Sim, connect: &Connect<'_>) -> (SimConnection, bool, Vec<ReceivedMessage>) {
    let at = sim.shards[0].open_connection(0, hooks::PeerAddress::Unix);
    let mut connection = SimConnection { shard: 0, at };
    let mut bytes = Vec::new();
    connect.encode(&mut bytes);
    sim.send(&mut connection, &bytes);
    let bytes = sim.take_bytes(connection);
    let mut present = None;
    let messages = arrivals(&bytes, connect.version, |packet| {
        if let Packet::ConnAck(connack) = packet {
            assert_eq!(connack.code, ReasonCode::SUCCESS);
            present = Some(connack.session_present);
        }
    });
    (connection, present.expect("a CONNACK"), messages)
}

/// Connects a client whose session ends with its connection.
fn client(sim: &mut Sim, client_id: &str) -> SimConnection {
    sim.connect(0, client_id, true)
}

fn arrivals(
    bytes: &[u8],
    version: Version,
    mut other: impl FnMut(&Packet<'_>),
) -> Vec<ReceivedMessage> {
    let mut rest = bytes;
    let mut messages = Vec::new();
    while let Some(frame) = mqtt::split_frame(rest, u32::MAX).unwrap() {
        rest = &rest[frame.len..];
        match Packet::decode(frame, version, Direction::FromServer).unwrap() {
            Packet::Publish(publish) => messages.push(ReceivedMessage {
                payload: String::from_utf8(publish.payload.to_vec()).unwrap(),
                packet_id: publish.packet_id,
                dup: publish.dup,
                expiry_s: publish.properties.message_expiry_interval(),
            }),
            packet => other(&packet),
        }
    }
    assert!(rest.is_empty());
    messages
}

fn take(sim: &mut Sim, connection: SimConnection) -> Vec<ReceivedMessage> {
    let bytes = sim.take_bytes(connection);
    arrivals(&bytes, Version::V5, |_| {})
}

fn payloads(messages: &[ReceivedMessage]) -> Vec<&str> {
    messages.iter().map(|message| &*message.payload).collect()
}

fn send(sim: &mut Sim, connection: &mut SimConnection, packet: &Packet<'_>, version: Version) {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    sim.send(connection, &bytes);
}

fn ack(packet_id: u16) -> Ack<'static> {
    Ack {
        packet_id,
        reason: ReasonCode::SUCCESS,
        properties: Properties::EMPTY,
    }
}

/// Publishes with QoS 1 and reads the acknowledgement.
fn publish(
    sim: &mut Sim,
    publisher: &mut SimConnection,
    topic: &str,
    payload: &str,
    expiry_s: u32,
) {
    let expiry = properties(&[Property::MessageExpiryInterval(expiry_s)]);
    publish_packet(sim, publisher, topic, payload, false, &expiry);
}

fn publish_packet(
    sim: &mut Sim,
    publisher: &mut SimConnection,
    topic: &str,
    payload: &str,
    retain: bool,
    properties: &PropertiesBuf,
) {
    let packet = Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain,
        topic,
        packet_id: 1,
        properties: properties.as_properties(),
        payload: payload.as_bytes(),
    });
    send(sim, publisher, &packet, Version::V5);
    assert!(sim.has(*publisher, PacketType::PubAck));
}

/// Releases a packet id; the reason code of the PUBCOMP.
fn release(sim: &mut Sim, connection: &mut SimConnection, packet_id: u16) -> ReasonCode {
    send(
        sim,
        connection,
        &Packet::PubRel(ack(packet_id)),
        Version::V5,
    );
    let mut reason = None;
    let bytes = sim.take_bytes(*connection);
    let messages = arrivals(&bytes, Version::V5, |packet| {
        if let Packet::PubComp(ack) = packet {
            assert_eq!(ack.packet_id, packet_id);
            reason = Some(ack.reason);
        }
    });
    assert_eq!(messages, []);
    reason.expect("a PUBCOMP")
}

fn disconnect(
    sim: &mut Sim,
    mut connection: SimConnection,
    reason: ReasonCode,
    list: &[Property<'_>],
) {
    let buf = properties(list);
    let packet = Packet::Disconnect(Disconnect {
        reason,
        properties: buf.as_properties(),
    });
    send(sim, &mut connection, &packet, Version::V5);
    sim.drop_connection(connection);
}

/// Lets time pass in steps, as a node does.
fn pass(sim: &mut Sim, ms: u64) {
    for _ in 0..ms / 100 {
        sim.pass(100);
    }
    sim.pass(ms % 100);
}

fn is_open(sim: &Sim, connection: SimConnection) -> bool {
    sim.shards[connection.shard].delivery.connections[connection.at].phase
        == ConnectionPhase::Connected
}

/// Whether the client is connected `ms` from now, and no longer a second later.
fn expect_end_after(sim: &mut Sim, connection: SimConnection, ms: u64) {
    pass(sim, ms - 100);
    assert!(is_open(sim, connection), "closed too early");
    pass(sim, 1000);
    assert!(!is_open(sim, connection), "still open");
}

#[test]
fn mqtt5_3_1_2_22_a_silent_client_is_closed_after_one_and_a_half_keep_alives() {
    for version in [Version::V311, Version::V5] {
        let mut sim = sim();
        let none = PropertiesBuf::new();
        let silent = Connect {
            version,
            keep_alive_s: 10,
            ..connect("silent", &none)
        };
        let (connection, _, _) = open(&mut sim, &silent);
        expect_end_after(&mut sim, connection, 15_000);
        let mut reason = None;
        let bytes = sim.take_bytes(connection);
        arrivals(&bytes, version, |packet| {
            if let Packet::Disconnect(disconnect) = packet {
                reason = Some(disconnect.reason);
            }
        });
        let expected = (version == Version::V5).then_some(ReasonCode::KEEP_ALIVE_TIMEOUT);
        assert_eq!(reason, expected);
    }
}

#[test]
fn mqtt_3_1_2_24_a_client_that_stops_inside_a_packet_is_disconnected() {
    let mut sim = sim();
    let none = PropertiesBuf::new();
    let slow = Connect {
        version: Version::V311,
        keep_alive_s: 10,
        ..connect("slow", &none)
    };
    let (mut connection, _, _) = open(&mut sim, &slow);
    sim.send(&mut connection, &[0x30, 20, 0, 5]);
    pass(&mut sim, 7_000);
    sim.send(&mut connection, b"topic");
    // Bytes of an incomplete packet are no Control Packet.
    expect_end_after(&mut sim, connection, 8_000);
}

#[test]
fn mqtt_3_1_2_24_single_bytes_of_a_packet_do_not_keep_a_connection() {
    let mut sim = sim();
    let none = PropertiesBuf::new();
    let trickling = Connect {
        version: Version::V311,
        keep_alive_s: 10,
        ..connect("trickling", &none)
    };
    let (mut connection, _, _) = open(&mut sim, &trickling);
    sim.send(&mut connection, &[0x30, 100, 0, 5]);
    for _ in 0..14 {
        pass(&mut sim, 1_000);
        sim.send(&mut connection, b"x");
    }
    expect_end_after(&mut sim, connection, 1_000);
}

#[test]
fn mqtt_3_1_2_24_a_large_packet_on_a_slow_link_is_not_cut() {
    let mut sim = sim();
    let none = PropertiesBuf::new();
    let slow = Connect {
        version: Version::V311,
        keep_alive_s: 10,
        ..connect("slow", &none)
    };
    let (mut connection, _, _) = open(&mut sim, &slow);
    let mut packet = Vec::new();
    let publish = Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: "t",
        packet_id: 1,
        properties: Properties::EMPTY,
        payload: &[0; 200 << 10],
    });
    publish.encode(Version::V311, &mut packet);
    // Longer than the keep-alive and limits.packet_timeout_s.
    for piece in packet.chunks(2 << 10) {
        pass(&mut sim, 1_000);
        assert!(is_open(&sim, connection), "cut");
        sim.send(&mut connection, piece);
    }
    assert!(sim.has(connection, PacketType::PubAck));
    // From now on it may be silent no longer than others.
    expect_end_after(&mut sim, connection, 15_000);
}

#[test]
fn a_connection_without_connect_is_closed_in_time() {
    let mut sim = sim();
    let at = sim.shards[0].open_connection(0, hooks::PeerAddress::Unix);
    let mut connection = SimConnection { shard: 0, at };
    // Bytes of an incomplete CONNECT extend nothing.
    for byte in [0x10, 20, 0, 4, b'M', b'Q', b'T', b'T', 4] {
        pass(&mut sim, 1_000);
        sim.send(&mut connection, &[byte]);
    }
    let phase = |sim: &Sim| sim.shards[0].delivery.connections[at].phase;
    pass(&mut sim, 900);
    assert_eq!(phase(&sim), ConnectionPhase::AwaitConnect);
    pass(&mut sim, 600);
    assert_eq!(phase(&sim), ConnectionPhase::Closing);
}

#[test]
fn mqtt_3_1_2_24_what_the_server_sends_does_not_count() {
    let mut sim = sim();
    let none = PropertiesBuf::new();
    let listening = Connect {
        keep_alive_s: 10,
        ..connect("listening", &none)
    };
    let (mut connection, _, _) = open(&mut sim, &listening);
    sim.subscribe(&mut connection, "t", QoS::AtMostOnce);
    let mut publisher = client(&mut sim, "publisher");
    for _ in 0..14 {
        pass(&mut sim, 1_000);
        publish(&mut sim, &mut publisher, "t", "x", 100);
        assert_eq!(payloads(&take(&mut sim, connection)), ["x"]);
    }
    expect_end_after(&mut sim, connection, 1_000);
}

#[test]
fn mqtt_3_1_2_24_every_packet_of_the_client_counts() {
    let packets: [&[u8]; 5] = [
        &[0xc0, 0],
        // A message to nobody, an acknowledgement of nothing, and UNSUBSCRIBE.
        &[0x30, 6, 0, 3, b'a', b'/', b'b', b'x'],
        &[0x40, 2, 0, 99],
        &[0xa2, 6, 0, 1, 0, 2, b'a', b'b'],
        &[0xc0, 0],
    ];
    let mut sim = sim();
    let none = PropertiesBuf::new();
    let lively = Connect {
        version: Version::V311,
        keep_alive_s: 10,
        ..connect("lively", &none)
    };
    let (mut connection, _, _) = open(&mut sim, &lively);
    for packet in packets {
        pass(&mut sim, 14_000);
        assert!(is_open(&sim, connection));
        sim.send(&mut connection, packet);
    }
    expect_end_after(&mut sim, connection, 15_000);
}

#[test]
fn mqtt_3_1_2_24_a_client_that_went_silent_leaves_its_will() {
    let mut sim = sim();
    let mut watcher = client(&mut sim, "watcher");
    sim.subscribe(&mut watcher, "will", QoS::AtMostOnce);
    let none = PropertiesBuf::new();
    let silent = Connect {
        keep_alive_s: 10,
        will: will("silent", &none),
        ..connect("silent", &none)
    };
    open(&mut sim, &silent);
    pass(&mut sim, 14_900);
    assert!(take(&mut sim, watcher).is_empty());
    pass(&mut sim, 1_000);
    assert_eq!(payloads(&take(&mut sim, watcher)), ["silent"]);
}

#[test]
fn mqtt_3_1_2_10_keep_alive_0_turns_it_off() {
    for version in [Version::V311, Version::V5] {
        let mut sim = sim();
        let none = PropertiesBuf::new();
        let quiet = Connect {
            version,
            ..connect("quiet", &none)
        };
        let (mut connection, _, _) = open(&mut sim, &quiet);
        sim.pass(48 * 3_600_000);
        assert!(is_open(&sim, connection));
        sim.send(&mut connection, &[0xc0, 0]);
        assert!(sim.has(connection, PacketType::PingResp));
    }
}

#[test]
fn delayed_messages_come_in_the_order_of_their_times() {
    let mut sim = sim();
    let mut subscriber = client(&mut sim, "subscriber");
    sim.subscribe(&mut subscriber, "t", QoS::AtMostOnce);
    sim.take_bytes(subscriber);
    let mut publisher = client(&mut sim, "publisher");
    for (delay_s, payload) in [(20, "third"), (10, "first"), (10, "second")] {
        let topic = format!("$delayed/{delay_s}/t");
        sim.publish(
            &mut publisher,
            &topic,
            payload.as_bytes(),
            QoS::AtMostOnce,
            0,
        );
    }
    for expected in [&[][..], &["first", "second"], &["third"]] {
        pass(&mut sim, if expected.is_empty() { 9_900 } else { 10_000 });
        assert_eq!(payloads(&take(&mut sim, subscriber)), expected);
    }
}

/// [MQTT-4.4.0-1], and [MQTT-4.3.2-1] of MQTT 3.1.1.
#[test]
fn mqtt5_4_4_0_1_nothing_is_sent_again_on_an_open_connection() {
    let mut sim = sim();
    let mut subscriber = client(&mut sim, "subscriber");
    sim.subscribe(&mut subscriber, "t", QoS::ExactlyOnce);
    sim.take_bytes(subscriber);
    let mut publisher = client(&mut sim, "publisher");
    let messages = [
        ("one", QoS::AtLeastOnce),
        ("two", QoS::ExactlyOnce),
        ("three", QoS::ExactlyOnce),
    ];
    for (packet_id, (payload, qos)) in (1..).zip(messages) {
        sim.publish(&mut publisher, "t", payload.as_bytes(), qos, packet_id);
    }
    let sent = take(&mut sim, subscriber);
    assert_eq!(payloads(&sent), ["one", "two", "three"]);
    let received = Packet::PubRec(ack(sent[1].packet_id));
    send(&mut sim, &mut subscriber, &received, Version::V5);
    assert!(sim.has(subscriber, PacketType::PubRel));
    sim.pass(48 * 3_600_000);
    assert!(sim.take_bytes(subscriber).is_empty());
}
