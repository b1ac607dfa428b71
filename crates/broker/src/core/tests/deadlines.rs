//! What happens after protocol time: keep-alive, expiry of sessions and of messages, will delay, delayed messages, no
//! repetition on an open connection. The simulated clock passes at once; `tests/wire` contains one test of each subject
//! with real time.

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
fn mqtt5_4_1_0_1_the_session_lives_while_the_connection_is_open() {
    // The interval counts from the end of the connection, not from its start.
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(10)));
    sim.subscribe(&mut connection, "t", QoS::AtLeastOnce);
    pass(&mut sim, 30_000);
    sim.take_bytes(connection);
    let mut publisher = client(&mut sim, "publisher");
    publish(&mut sim, &mut publisher, "t", "still here", 100);
    assert_eq!(payloads(&take(&mut sim, connection)), ["still here"]);
    sim.drop_connection(connection);
    pass(&mut sim, 9_900);
    let (_, present, _) = open(&mut sim, &connect("c", &session_expiry(10)));
    assert!(present);
}

#[test]
fn mqtt5_4_1_0_2_an_expired_session_is_discarded_with_all_its_state() {
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(10)));
    sim.subscribe(&mut connection, "t", QoS::ExactlyOnce);
    let mut publisher = client(&mut sim, "publisher");
    publish(&mut sim, &mut publisher, "t", "in flight", 100);
    assert_eq!(payloads(&take(&mut sim, connection)), ["in flight"]);
    // An identifier the server has seen and not yet released.
    sim.publish(&mut connection, "other", b"x", QoS::ExactlyOnce, 77);
    sim.drop_connection(connection);
    publish(&mut sim, &mut publisher, "t", "queued", 100);
    pass(&mut sim, 10_100);
    let (mut connection, present, messages) = open(&mut sim, &connect("c", &session_expiry(0)));
    assert!(!present);
    assert_eq!(messages, []);
    publish(&mut sim, &mut publisher, "t", "not subscribed", 100);
    // Neither its subscription nor the identifier are known.
    assert!(take(&mut sim, connection).is_empty());
    let reason = release(&mut sim, &mut connection, 77);
    assert_eq!(reason, ReasonCode::PACKET_IDENTIFIER_NOT_FOUND);
}

#[test]
fn mqtt5_section_3_14_2_2_2_a_session_expiry_replaces_the_one_of_connect() {
    let mut sim = sim();
    for (client_id, at_first, at_end) in [("longer", 10, 60), ("shorter", 60, 10)] {
        let (connection, _, _) = open(&mut sim, &connect(client_id, &session_expiry(at_first)));
        let expiry = [Property::SessionExpiryInterval(at_end)];
        disconnect(&mut sim, connection, ReasonCode::SUCCESS, &expiry);
    }
    pass(&mut sim, 20_000);
    for (client_id, expected) in [("longer", true), ("shorter", false)] {
        let (_, present, _) = open(&mut sim, &connect(client_id, &session_expiry(0)));
        assert_eq!(present, expected, "{client_id}");
    }
}

#[test]
fn a_session_expiry_that_was_cut_is_kept_to() {
    let limits = BrokerLimits {
        max_session_expiry_s: 10,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 1);
    // Nor can a DISCONNECT wish for more.
    for at_end in [None, Some(3600)] {
        let (connection, _, _) = open(&mut sim, &connect("c", &session_expiry(u32::MAX)));
        let expiry = at_end.map(Property::SessionExpiryInterval);
        disconnect(&mut sim, connection, ReasonCode::SUCCESS, expiry.as_slice());
        pass(&mut sim, 10_100);
        let (connection, present, _) = open(&mut sim, &connect("c", &session_expiry(0)));
        assert!(!present);
        sim.drop_connection(connection);
    }
}

#[test]
fn a_message_expires_behind_a_full_window() {
    let mut sim = sim();
    let window = properties(&[Property::ReceiveMaximum(1)]);
    let (mut connection, _, _) = open(&mut sim, &connect("c", &window));
    sim.subscribe(&mut connection, "t", QoS::AtLeastOnce);
    let mut publisher = client(&mut sim, "publisher");
    for (payload, expiry_s) in [("first", 100), ("expires", 10), ("stays", 100)] {
        publish(&mut sim, &mut publisher, "t", payload, expiry_s);
    }
    let first = take(&mut sim, connection);
    assert_eq!(payloads(&first), ["first"]);
    pass(&mut sim, 20_000);
    let ack = Packet::PubAck(ack(first[0].packet_id));
    send(&mut sim, &mut connection, &ack, Version::V5);
    let rest = take(&mut sim, connection);
    assert_eq!(payloads(&rest), ["stays"]);
    assert_eq!(rest[0].expiry_s, Some(80));
}

#[test]
fn mqtt5_3_3_2_6_the_expiry_is_counted_down_while_the_message_waits() {
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(60)));
    sim.subscribe(&mut connection, "t", QoS::ExactlyOnce);
    sim.drop_connection(connection);
    let mut publisher = client(&mut sim, "publisher");
    publish(&mut sim, &mut publisher, "t", "aged", 100);
    publish(&mut sim, &mut publisher, "t", "expired", 20);
    pass(&mut sim, 20_000);
    let (_, present, messages) = open(&mut sim, &connect("c", &session_expiry(0)));
    assert!(present);
    assert_eq!(payloads(&messages), ["aged"]);
    assert_eq!(messages[0].expiry_s, Some(80));
}

#[test]
fn what_is_in_flight_keeps_its_place_but_counts_down() {
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(60)));
    sim.subscribe(&mut connection, "t", QoS::AtLeastOnce);
    let mut publisher = client(&mut sim, "publisher");
    publish(&mut sim, &mut publisher, "t", "sent", 100);
    let sent = take(&mut sim, connection);
    sim.drop_connection(connection);
    pass(&mut sim, 20_000);
    let (_, _, again) = open(&mut sim, &connect("c", &session_expiry(0)));
    let expected = ReceivedMessage {
        dup: true,
        expiry_s: Some(80),
        ..sent[0].clone()
    };
    assert_eq!(again, [expected]);
}

/// A message of QoS 2 that expires after 10 s, and the answer of the node.
fn publish_qos2(sim: &mut Sim, publisher: &mut SimConnection, topic: &str) {
    let expiry = properties(&[Property::MessageExpiryInterval(10)]);
    let packet = Packet::Publish(Publish {
        dup: false,
        qos: QoS::ExactlyOnce,
        retain: false,
        topic,
        packet_id: 5,
        properties: expiry.as_properties(),
        payload: b"brief",
    });
    send(sim, publisher, &packet, Version::V5);
    assert!(sim.has(*publisher, PacketType::PubRec));
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

#[test]
fn mqtt5_4_3_3_7_a_qos_2_message_once_sent_does_not_expire() {
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(60)));
    sim.subscribe(&mut connection, "t", QoS::ExactlyOnce);
    let mut publisher = client(&mut sim, "publisher");
    publish_qos2(&mut sim, &mut publisher, "t");
    release(&mut sim, &mut publisher, 5);
    let sent = take(&mut sim, connection);
    assert_eq!(payloads(&sent), ["brief"]);
    sim.drop_connection(connection);
    pass(&mut sim, 20_000);
    let (_, _, again) = open(&mut sim, &connect("c", &session_expiry(60)));
    assert_eq!(payloads(&again), ["brief"]);
    assert_eq!(
        (again[0].packet_id, again[0].dup),
        (sent[0].packet_id, true)
    );
}

#[test]
fn mqtt5_4_3_3_13_the_exchange_goes_on_after_the_message_has_expired() {
    let mut sim = sim();
    let mut publisher = client(&mut sim, "publisher");
    publish_qos2(&mut sim, &mut publisher, "t");
    pass(&mut sim, 20_000);
    assert_eq!(release(&mut sim, &mut publisher, 5), ReasonCode::SUCCESS);
}

#[test]
fn mqtt5_3_3_2_6_the_expiry_of_a_retained_message_is_counted_down() {
    let mut sim = sim();
    let mut publisher = client(&mut sim, "publisher");
    // What an expired message replaced does not come back.
    for (topic, expiry_s) in [("kept/short", 100), ("kept/short", 10), ("kept/long", 100)] {
        let expiry = properties(&[Property::MessageExpiryInterval(expiry_s)]);
        publish_packet(&mut sim, &mut publisher, topic, topic, true, &expiry);
    }
    pass(&mut sim, 20_000);
    let mut subscriber = client(&mut sim, "subscriber");
    sim.subscribe(&mut subscriber, "kept/#", QoS::AtMostOnce);
    let messages = take(&mut sim, subscriber);
    assert_eq!(payloads(&messages), ["kept/long"]);
    assert_eq!(messages[0].expiry_s, Some(80));
}

#[test]
fn retained_messages_expire_by_the_nodes_rule_too() {
    let limits = BrokerLimits {
        retained_expiry_s: 10,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 1);
    let mut publisher = client(&mut sim, "publisher");
    let none = PropertiesBuf::new();
    let own = properties(&[Property::MessageExpiryInterval(100)]);
    publish_packet(&mut sim, &mut publisher, "kept/plain", "plain", true, &none);
    publish_packet(&mut sim, &mut publisher, "kept/own", "own", true, &own);
    pass(&mut sim, 9_000);
    for expected in [&["own", "plain"][..], &["own"]] {
        let mut subscriber = client(&mut sim, "subscriber");
        sim.subscribe(&mut subscriber, "kept/#", QoS::AtMostOnce);
        let messages = take(&mut sim, subscriber);
        let mut found = payloads(&messages);
        found.sort_unstable();
        assert_eq!(found, expected);
        sim.drop_connection(subscriber);
        pass(&mut sim, 1_000);
    }
}

/// A subscriber to wills, and the properties of a session of an hour with a will after `delay_s`.
fn will_watcher(sim: &mut Sim, delay_s: u32) -> (SimConnection, PropertiesBuf, PropertiesBuf) {
    let mut watcher = client(sim, "watcher");
    sim.subscribe(&mut watcher, "will", QoS::AtMostOnce);
    sim.take_bytes(watcher);
    let delay = properties(&[Property::WillDelayInterval(delay_s)]);
    (watcher, session_expiry(3600), delay)
}

#[test]
fn a_session_expiry_shortened_on_disconnect_brings_the_will_forward() {
    let mut sim = sim();
    let (watcher, hour, delay) = will_watcher(&mut sim, 3600);
    let with_will = Connect {
        will: will("will", &delay),
        ..connect("c", &hour)
    };
    let (connection, _, _) = open(&mut sim, &with_will);
    let expiry = [Property::SessionExpiryInterval(10)];
    let reason = ReasonCode::DISCONNECT_WITH_WILL;
    disconnect(&mut sim, connection, reason, &expiry);
    pass(&mut sim, 9_900);
    assert!(take(&mut sim, watcher).is_empty());
    pass(&mut sim, 100);
    assert_eq!(payloads(&take(&mut sim, watcher)), ["will"]);
}

#[test]
fn the_will_delay_counts_from_the_end_of_the_connection() {
    let mut sim = sim();
    let (watcher, hour, delay) = will_watcher(&mut sim, 10);
    let with_will = Connect {
        will: will("will", &delay),
        ..connect("c", &hour)
    };
    let (connection, _, _) = open(&mut sim, &with_will);
    // Longer than the delay, with the connection open.
    pass(&mut sim, 20_000);
    sim.drop_connection(connection);
    pass(&mut sim, 9_900);
    assert!(take(&mut sim, watcher).is_empty());
    pass(&mut sim, 100);
    assert_eq!(payloads(&take(&mut sim, watcher)), ["will"]);
}

#[test]
fn mqtt5_3_1_3_9_a_new_connection_before_the_delay_keeps_the_will_back() {
    // With the first connection lost, and taken over.
    for is_lost in [true, false] {
        let mut sim = sim();
        let (watcher, hour, delay) = will_watcher(&mut sim, 10);
        let with_will = Connect {
            will: will("never", &delay),
            ..connect("c", &hour)
        };
        let (first, _, _) = open(&mut sim, &with_will);
        if is_lost {
            sim.drop_connection(first);
            pass(&mut sim, 9_900);
        }
        let (_, present, _) = open(&mut sim, &connect("c", &hour));
        assert!(present);
        if !is_lost {
            assert!(sim.has(first, PacketType::Disconnect));
        }
        pass(&mut sim, 20_000);
        assert!(take(&mut sim, watcher).is_empty());
    }
}

#[test]
fn the_will_of_the_new_connection_takes_the_place_of_the_old_one() {
    let mut sim = sim();
    let (watcher, hour, delay) = will_watcher(&mut sim, 10);
    let none = PropertiesBuf::new();
    let old = Connect {
        will: will("old", &delay),
        ..connect("c", &hour)
    };
    let (connection, _, _) = open(&mut sim, &old);
    sim.drop_connection(connection);
    let new = Connect {
        will: will("new", &none),
        ..old
    };
    let (connection, _, _) = open(&mut sim, &new);
    pass(&mut sim, 20_000);
    assert!(take(&mut sim, watcher).is_empty());
    sim.drop_connection(connection);
    pass(&mut sim, 20_000);
    assert_eq!(payloads(&take(&mut sim, watcher)), ["new"]);
}

#[test]
fn a_connection_without_a_will_leaves_none() {
    let mut sim = sim();
    let (watcher, hour, delay) = will_watcher(&mut sim, 10);
    let with_will = Connect {
        will: will("never", &delay),
        ..connect("c", &hour)
    };
    for connect in [with_will, connect("c", &hour)] {
        let (connection, _, _) = open(&mut sim, &connect);
        sim.drop_connection(connection);
    }
    pass(&mut sim, 20_000);
    assert!(take(&mut sim, watcher).is_empty());
}

#[test]
fn the_message_expiry_of_a_will_counts_from_its_publication() {
    let mut sim = sim();
    let (watcher, hour, _) = will_watcher(&mut sim, 0);
    let late = properties(&[
        Property::WillDelayInterval(20),
        Property::MessageExpiryInterval(10),
    ]);
    let with_will = Connect {
        will: will("fresh", &late),
        ..connect("c", &hour)
    };
    let (connection, _, _) = open(&mut sim, &with_will);
    sim.drop_connection(connection);
    pass(&mut sim, 20_000);
    let messages = take(&mut sim, watcher);
    assert_eq!(payloads(&messages), ["fresh"]);
    assert_eq!(messages[0].expiry_s, Some(10));
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
