//! Tests of the session against a scripted broker.

#![allow(clippy::unwrap_used)]

use mqtt::{
    Ack, Direction, Packet, PacketType, Properties, PropertiesBuf, Property, Publish, QoS,
    ReasonCode, Version,
};

use super::*;

type Result<T> = std::result::Result<T, String>;

fn session() -> ClientSession {
    let mut session = ClientSession::new(Version::V5, AckMode::Automatic, 1024, 2);
    connack(
        &mut session,
        false,
        &[Property::ReceiveMaximum(2), Property::TopicAliasMaximum(1)],
    );
    session
}

/// Passes a packet of the broker to the session, byte by byte.
fn receive_packet(session: &mut ClientSession, packet: &Packet<'_>) -> Result<Vec<SessionEvent>> {
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes);
    let mut events = Vec::new();
    for byte in bytes {
        session.output_and_input().1.push(byte);
        events.extend(session.next_event()?);
    }
    Ok(events)
}

fn connack(session: &mut ClientSession, session_present: bool, properties: &[Property<'_>]) {
    let mut buf = PropertiesBuf::new();
    properties.iter().for_each(|property| buf.push(*property));
    let packet = Packet::ConnAck(mqtt::ConnAck {
        session_present,
        code: ReasonCode::SUCCESS,
        properties: buf.as_properties(),
    });
    let events = receive_packet(session, &packet).unwrap();
    assert!(
        matches!(&events[..], [SessionEvent::Connected(_)]),
        "{events:?}"
    );
}

fn ack(packet_id: u16, reason: ReasonCode) -> Ack<'static> {
    let properties = Properties::EMPTY;
    Ack {
        packet_id,
        reason,
        properties,
    }
}

fn publish<'a>(topic: &'a str, qos: QoS, properties: Properties<'a>) -> Packet<'a> {
    Packet::Publish(Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: if qos == QoS::AtMostOnce { 0 } else { 9 },
        properties,
        payload: b"hi",
    })
}

/// Takes the packets that the session has sent.
fn take_sent_packets(session: &mut ClientSession) -> Vec<(PacketType, u16, ReasonCode)> {
    let out = std::mem::take(&mut session.out);
    let mut rest = &out[..];
    let mut packets = Vec::new();
    while let Some(frame) = mqtt::split_frame(rest, u32::MAX).unwrap() {
        let len = frame.len;
        let packet = Packet::decode(frame, Version::V5, Direction::FromClient).unwrap();
        packets.push(match packet {
            Packet::PubAck(ack)
            | Packet::PubRec(ack)
            | Packet::PubRel(ack)
            | Packet::PubComp(ack) => (packet.packet_type(), ack.packet_id, ack.reason),
            Packet::Publish(publish) => (
                packet.packet_type(),
                publish.packet_id,
                ReasonCode(publish.topic.len() as u8),
            ),
            other => panic!("{other:?}"),
        });
        rest = &rest[len..];
    }
    packets
}

fn outgoing<'a>(qos: QoS, properties: &'a PropertiesBuf) -> OutgoingMessage<'a> {
    OutgoingMessage {
        topic: "a/b",
        payload: b"hi",
        qos,
        retain: false,
        properties,
        topic_alias: None,
    }
}

const OK: ReasonCode = ReasonCode::SUCCESS;

#[test]
fn messages_are_handed_out_once_and_acknowledged() {
    let mut session = session();
    for (qos, answer) in [
        (QoS::AtMostOnce, None),
        (QoS::AtLeastOnce, Some(PacketType::PubAck)),
        (QoS::ExactlyOnce, Some(PacketType::PubRec)),
    ] {
        let events = receive_packet(&mut session, &publish("t", qos, Properties::EMPTY)).unwrap();
        let [SessionEvent::Message(message)] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(
            (message.topic.as_str(), &message.payload[..]),
            ("t", &b"hi"[..])
        );
        let answers: Vec<_> = answer.into_iter().map(|kind| (kind, 9, OK)).collect();
        assert_eq!(take_sent_packets(&mut session), answers);
    }
    // The same message again, also in a resumed session, then its end.
    let again = publish("t", QoS::ExactlyOnce, Properties::EMPTY);
    assert!(receive_packet(&mut session, &again).unwrap().is_empty());
    session.start_connection();
    connack(&mut session, true, &[]);
    assert!(receive_packet(&mut session, &again).unwrap().is_empty());
    assert_eq!(
        take_sent_packets(&mut session),
        [(PacketType::PubRec, 9, OK)]
    );
    receive_packet(&mut session, &Packet::PubRel(ack(9, OK))).unwrap();
    receive_packet(&mut session, &Packet::PubRel(ack(9, OK))).unwrap();
    let unknown = ReasonCode::PACKET_IDENTIFIER_NOT_FOUND;
    assert_eq!(
        take_sent_packets(&mut session),
        [
            (PacketType::PubComp, 9, OK),
            (PacketType::PubComp, 9, unknown)
        ]
    );
    assert_eq!(receive_packet(&mut session, &again).unwrap().len(), 1);
}

#[test]
fn without_a_session_an_unfinished_message_is_a_new_one() {
    let mut session = session();
    let message = publish("t", QoS::ExactlyOnce, Properties::EMPTY);
    assert_eq!(receive_packet(&mut session, &message).unwrap().len(), 1);
    session.start_connection();
    connack(&mut session, false, &[]);
    assert_eq!(receive_packet(&mut session, &message).unwrap().len(), 1);
}

#[test]
fn publishing_heeds_receive_maximum_and_runs_to_its_end() {
    let mut session = session();
    let none = PropertiesBuf::new();
    assert_eq!(session.publish(&outgoing(QoS::AtMostOnce, &none)), Ok(0));
    let first = session.publish(&outgoing(QoS::AtLeastOnce, &none)).unwrap();
    assert!(session.has_quota());
    let second = session.publish(&outgoing(QoS::ExactlyOnce, &none)).unwrap();
    assert!(!session.has_quota());
    take_sent_packets(&mut session);

    let events = receive_packet(&mut session, &Packet::PubAck(ack(first, OK))).unwrap();
    assert!(
        matches!(&events[..], [SessionEvent::Published { packet_id, .. }] if *packet_id == first)
    );
    assert!(
        receive_packet(&mut session, &Packet::PubRec(ack(second, OK)))
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        take_sent_packets(&mut session),
        [(PacketType::PubRel, second, OK)]
    );
    assert_eq!(session.in_flight(), 1);
    let events = receive_packet(&mut session, &Packet::PubComp(ack(second, OK))).unwrap();
    assert!(
        matches!(&events[..], [SessionEvent::Published { packet_id, .. }] if *packet_id == second)
    );
    assert_eq!(session.in_flight(), 0);

    // A PUBREC with an error also completes the message.
    let third = session.publish(&outgoing(QoS::ExactlyOnce, &none)).unwrap();
    let rejection = ack(third, ReasonCode::NOT_AUTHORIZED);
    let events = receive_packet(&mut session, &Packet::PubRec(rejection)).unwrap();
    let [SessionEvent::Published { answer, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(answer.to_string(), "not authorized (0x87)");
    assert_eq!(session.in_flight(), 0);
    let unasked = receive_packet(&mut session, &Packet::PubAck(ack(77, OK))).unwrap_err();
    assert_eq!(
        unasked,
        "an acknowledgement for packet identifier 77, which waits for none"
    );
}

#[test]
fn a_packet_larger_than_the_broker_takes_is_not_sent() {
    let mut session = ClientSession::new(Version::V5, AckMode::Automatic, 1024, 0);
    connack(&mut session, false, &[Property::MaximumPacketSize(20)]);
    let none = PropertiesBuf::new();
    let message = OutgoingMessage {
        payload: &[0; 20],
        ..outgoing(QoS::AtLeastOnce, &none)
    };
    assert_eq!(
        session.publish(&message).unwrap_err(),
        "the message makes a packet of 30 bytes, the broker takes 20 at most"
    );
    assert!(session.out.is_empty());
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn topic_aliases_work_both_ways_within_their_limits() {
    let mut session = session();
    let none = PropertiesBuf::new();
    let message = |alias| OutgoingMessage {
        topic_alias: Some(alias),
        ..outgoing(QoS::AtMostOnce, &none)
    };
    session.publish(&message(1)).unwrap();
    session.publish(&message(1)).unwrap();
    let lengths: Vec<_> = take_sent_packets(&mut session)
        .iter()
        .map(|said| said.2.0)
        .collect();
    assert_eq!(lengths, [3, 0], "the topic goes along the first time only");
    assert_eq!(
        session.publish(&message(2)).unwrap_err(),
        "topic alias 2 is more than the broker allows (1)"
    );

    let alias = |number| {
        let mut properties = PropertiesBuf::new();
        properties.push(Property::TopicAlias(number));
        properties
    };
    let topic_of = |session: &mut ClientSession, topic, number| {
        let properties = alias(number);
        let packet = publish(topic, QoS::AtMostOnce, properties.as_properties());
        receive_packet(session, &packet).map(|mut events| match events.remove(0) {
            SessionEvent::Message(message) => message.topic,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(topic_of(&mut session, "x/y", 2).unwrap(), "x/y");
    assert_eq!(topic_of(&mut session, "", 2).unwrap(), "x/y");
    assert_eq!(
        topic_of(&mut session, "", 1).unwrap_err(),
        "topic alias 1 was never set"
    );
    let mut session = self::session();
    assert_eq!(
        topic_of(&mut session, "x", 3).unwrap_err(),
        "topic alias 3, but 2 are allowed"
    );
}

#[test]
fn manual_acknowledgements_are_sent_on_request() {
    let mut session = ClientSession::new(Version::V311, AckMode::Manual, 1024, 0);
    let receive = |session: &mut ClientSession, qos| {
        let mut bytes = Vec::new();
        publish("a", qos, Properties::EMPTY).encode(Version::V311, &mut bytes);
        session.receive(&bytes);
        session.next_event().unwrap()
    };
    let Some(SessionEvent::Message(message)) = receive(&mut session, QoS::AtLeastOnce) else {
        panic!("a message is expected");
    };
    assert!(session.out.is_empty());
    session.acknowledge(message.pending_ack.unwrap());
    assert_eq!(session.out, [0x40, 2, 0, 9]);
    session.out.clear();

    let Some(SessionEvent::Message(message)) = receive(&mut session, QoS::ExactlyOnce) else {
        panic!("a message is expected");
    };
    assert!(session.out.is_empty());
    session.acknowledge(message.pending_ack.unwrap());
    assert_eq!(session.out, [0x50, 2, 0, 9]);
    session.out.clear();
    // The broker has not read PUBREC.
    assert!(receive(&mut session, QoS::ExactlyOnce).is_none());
    assert_eq!(session.out, [0x50, 2, 0, 9]);
    session.out.clear();
    session.receive(&[0x62, 2, 0, 9]);
    assert!(session.next_event().unwrap().is_none());
    assert_eq!(session.out, [0x70, 2, 0, 9]);

    let Some(SessionEvent::Message(message)) = receive(&mut session, QoS::AtMostOnce) else {
        panic!("a message is expected");
    };
    assert_eq!(message.pending_ack, None);
}
