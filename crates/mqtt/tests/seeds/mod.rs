//! Valid packets and topics of each kind as seeds for the fuzzer.
//!
//! A stream begins with a version byte: 0 for 3.1, 1 for 3.1.1, 2 for 5.0.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

use mqtt::{
    Ack, Auth, ConnAck, Connect, Direction, Disconnect, Packet, PacketType, Properties,
    PropertiesBuf, Property, Publish, QoS, ReasonCode, SubAck, SubscribeBuf, SubscriptionOptions,
    UnsubAck, UnsubscribeBuf, Version, Will,
};

/// A seed with the names of its fuzz target and file.
pub(crate) struct Seed {
    pub(crate) target: &'static str,
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn target_of(direction: Direction) -> &'static str {
    match direction {
        Direction::FromClient => "mqtt_from_client",
        Direction::FromServer => "mqtt_from_server",
    }
}

pub(crate) const TOPICS: &str = "topics";

/// All seeds; the result is deterministic.
pub(crate) fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for version in [Version::V31, Version::V311, Version::V5] {
        for direction in [Direction::FromClient, Direction::FromServer] {
            let mut session = vec![version as u8];
            for (name, packet) in packets(version, direction) {
                session.extend_from_slice(&packet);
                let mut bytes = vec![version as u8];
                bytes.extend_from_slice(&packet);
                seeds.push(seed(target_of(direction), version, name, bytes));
            }
            seeds.push(seed(target_of(direction), version, "session", session));
        }
    }
    for (at, text) in TOPIC_SEEDS.iter().enumerate() {
        seeds.push(Seed {
            target: TOPICS,
            name: format!("{at:02}"),
            bytes: text.as_bytes().to_vec(),
        });
    }
    seeds
}

fn seed(target: &'static str, version: Version, name: &str, bytes: Vec<u8>) -> Seed {
    let name = format!("v{}_{name}", version.as_str().replace('.', ""));
    Seed {
        target,
        name,
        bytes,
    }
}

/// A filter, a line feed and a topic name.
const TOPIC_SEEDS: [&str; 16] = [
    "a/b/c\na/b/c",
    "a/+/c\na/b/c",
    "a/#\na",
    "#\na/b/c",
    "+/+\n/a",
    "#\n$SYS/broker/uptime",
    "$SYS/#\n$SYS/broker/uptime",
    "$share/group/a/+\na/b",
    "$queue/a/#\na/b",
    "$exclusive/a/b\na/b",
    "a//b/\na//b/",
    "a#/b+\na",
    "#/a\na",
    "$share//a\na",
    "ä/\u{feff}/+\nä/\u{feff}/\u{10ffff}",
    "\0\n\0",
];

type NamedSeed = (&'static str, Vec<u8>);

fn packets(version: Version, direction: Direction) -> Vec<NamedSeed> {
    let is_v5 = version == Version::V5;
    let full = |properties: &[Property<'_>]| {
        let mut buf = PropertiesBuf::new();
        for &property in properties.iter().filter(|_| is_v5) {
            buf.push(property);
        }
        buf
    };
    let mut all = Vec::new();
    let mut add = |name, packet: Packet<'_>| {
        let mut out = Vec::new();
        packet.encode(version, &mut out);
        all.push((name, out));
    };
    let user = Property::UserProperty("name", "value");
    let reason_string = full(&[Property::ReasonString("why"), user]);
    match direction {
        Direction::FromClient => {
            add_connects(version, &full, &mut add);
            add("pingreq", Packet::PingReq);
        }
        Direction::FromServer => {
            add_connacks(version, &full, &mut add);
            add(
                "suback",
                Packet::SubAck(SubAck {
                    packet_id: 1,
                    properties: reason_string.as_properties(),
                    codes: &[0, 1, 2, 0x80],
                }),
            );
            add(
                "unsuback",
                Packet::UnsubAck(UnsubAck {
                    packet_id: 1,
                    properties: reason_string.as_properties(),
                    codes: if is_v5 { &[0, 0x11, 0x80] } else { &[] },
                }),
            );
            add("pingresp", Packet::PingResp);
        }
    }
    add_publishes(version, direction, &full, &mut add);
    let reason = |code| if is_v5 { code } else { ReasonCode::SUCCESS };
    let ack = |reason| Ack {
        packet_id: 7,
        reason,
        properties: reason_string.as_properties(),
    };
    add(
        "puback",
        Packet::PubAck(ack(reason(ReasonCode::NO_MATCHING_SUBSCRIBERS))),
    );
    add(
        "pubrec",
        Packet::PubRec(ack(reason(ReasonCode::QUOTA_EXCEEDED))),
    );
    add(
        "pubrel",
        Packet::PubRel(ack(reason(ReasonCode::PACKET_IDENTIFIER_NOT_FOUND))),
    );
    add(
        "pubcomp",
        Packet::PubComp(Ack {
            properties: Properties::EMPTY,
            ..ack(ReasonCode::SUCCESS)
        }),
    );
    if is_v5 {
        let auth = full(&[
            Property::AuthenticationMethod("SCRAM-SHA-256"),
            Property::AuthenticationData(b"n,,n=user"),
            user,
        ]);
        add(
            "auth",
            Packet::Auth(Auth {
                reason: ReasonCode::CONTINUE_AUTHENTICATION,
                properties: auth.as_properties(),
            }),
        );
    }
    if is_v5 || direction == Direction::FromClient {
        add(
            "disconnect",
            Packet::Disconnect(Disconnect {
                reason: reason(ReasonCode::ADMINISTRATIVE_ACTION),
                properties: reason_string.as_properties(),
            }),
        );
    }
    if direction == Direction::FromClient {
        all.extend(subscribes(
            version,
            &full(&[Property::SubscriptionIdentifier(300), user]),
        ));
    }
    all
}

fn add_connects(
    version: Version,
    full: &impl Fn(&[Property<'_>]) -> PropertiesBuf,
    add: &mut impl FnMut(&'static str, Packet<'_>),
) {
    let least = Connect {
        version,
        clean_start: true,
        keep_alive_s: 60,
        client_id: "client",
        username: None,
        password: None,
        will: None,
        properties: Properties::EMPTY,
        is_bridge: false,
    };
    add("connect", Packet::Connect(least));
    let properties = full(&[
        Property::SessionExpiryInterval(3600),
        Property::ReceiveMaximum(20),
        Property::MaximumPacketSize(1 << 20),
        Property::TopicAliasMaximum(10),
        Property::RequestResponseInformation(true),
        Property::RequestProblemInformation(true),
        Property::AuthenticationMethod("SCRAM-SHA-256"),
        Property::AuthenticationData(b"n,,n=user"),
        Property::UserProperty("name", "value"),
    ]);
    let will = full(&[
        Property::WillDelayInterval(5),
        Property::PayloadFormatIndicator(1),
        Property::MessageExpiryInterval(60),
        Property::ContentType("text/plain"),
        Property::ResponseTopic("reply"),
        Property::CorrelationData(b"\x00\xff"),
        Property::UserProperty("name", "value"),
    ]);
    add(
        "connect_full",
        Packet::Connect(Connect {
            clean_start: false,
            username: Some("user"),
            password: Some(b"password"),
            will: Some(Will {
                topic: "will/topic",
                payload: b"gone",
                qos: QoS::AtLeastOnce,
                retain: true,
                properties: will.as_properties(),
            }),
            properties: properties.as_properties(),
            is_bridge: true,
            ..least
        }),
    );
}

fn add_connacks(
    version: Version,
    full: &impl Fn(&[Property<'_>]) -> PropertiesBuf,
    add: &mut impl FnMut(&'static str, Packet<'_>),
) {
    let properties = full(&[
        Property::SessionExpiryInterval(3600),
        Property::ReceiveMaximum(20),
        Property::MaximumQos(1),
        Property::RetainAvailable(true),
        Property::MaximumPacketSize(1 << 20),
        Property::AssignedClientIdentifier("assigned"),
        Property::TopicAliasMaximum(10),
        Property::ReasonString("welcome"),
        Property::WildcardSubscriptionAvailable(true),
        Property::SubscriptionIdentifierAvailable(true),
        Property::SharedSubscriptionAvailable(false),
        Property::ServerKeepAlive(30),
        Property::ResponseInformation("response/"),
        Property::ServerReference("other:1883"),
        Property::AuthenticationMethod("SCRAM-SHA-256"),
        Property::AuthenticationData(b"v=signature"),
        Property::UserProperty("name", "value"),
    ]);
    add(
        "connack",
        Packet::ConnAck(ConnAck {
            session_present: version != Version::V31,
            code: ReasonCode::SUCCESS,
            properties: properties.as_properties(),
        }),
    );
    add(
        "connack_refused",
        Packet::ConnAck(ConnAck {
            session_present: false,
            code: ReasonCode::NOT_AUTHORIZED,
            properties: Properties::EMPTY,
        }),
    );
}

fn add_publishes(
    version: Version,
    direction: Direction,
    full: &impl Fn(&[Property<'_>]) -> PropertiesBuf,
    add: &mut impl FnMut(&'static str, Packet<'_>),
) {
    let least = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "sensors/1/temperature",
        packet_id: 0,
        properties: Properties::EMPTY,
        payload: b"21.5",
    };
    add("publish_qos0", Packet::Publish(least));
    let mut properties = full(&[
        Property::PayloadFormatIndicator(1),
        Property::MessageExpiryInterval(60),
        Property::TopicAlias(3),
        Property::ResponseTopic("reply"),
        Property::CorrelationData(b"\x00\xff"),
        Property::UserProperty("name", "value"),
        Property::UserProperty("name", "again"),
        Property::ContentType("text/plain"),
    ]);
    if version == Version::V5 && direction == Direction::FromServer {
        properties.push(Property::SubscriptionIdentifier(1));
        properties.push(Property::SubscriptionIdentifier(mqtt::MAX_VARINT));
    }
    add(
        "publish_qos1",
        Packet::Publish(Publish {
            qos: QoS::AtLeastOnce,
            packet_id: 1,
            properties: properties.as_properties(),
            ..least
        }),
    );
    add(
        "publish_qos2",
        Packet::Publish(Publish {
            dup: true,
            retain: true,
            qos: QoS::ExactlyOnce,
            packet_id: u16::MAX,
            payload: &[],
            ..least
        }),
    );
    add(
        "publish_long",
        Packet::Publish(Publish {
            payload: &[b'x'; 200],
            ..least
        }),
    );
    if version == Version::V5 {
        let alias = full(&[Property::TopicAlias(3)]);
        let properties = alias.as_properties();
        add(
            "publish_alias",
            Packet::Publish(Publish {
                topic: "",
                properties,
                ..least
            }),
        );
    }
}

fn subscribes(version: Version, properties: &PropertiesBuf) -> [NamedSeed; 2] {
    let (mut subscribe, mut unsubscribe) = (SubscribeBuf::new(1), UnsubscribeBuf::new(2));
    let filters = ["sensors/+/temperature", "#", "$share/group/a/b", "a#b"];
    for (at, filter) in filters.into_iter().enumerate() {
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][at % 3];
        let mut options = SubscriptionOptions::new(qos);
        if version == Version::V5 {
            options.no_local = at == 0;
            options.retain_as_published = at == 1;
            options.retain_handling = at as u8 % 3;
        }
        subscribe.push(filter, options);
        unsubscribe.push(filter);
    }
    let (mut first, mut second) = (Vec::new(), Vec::new());
    subscribe.encode(properties.as_properties(), version, &mut first);
    let without_identifier = PropertiesBuf::new();
    unsubscribe.encode(without_identifier.as_properties(), version, &mut second);
    [("subscribe", first), ("unsubscribe", second)]
}

/// The packet types that `direction` can send. SUBSCRIBE and UNSUBSCRIBE are created by their
/// builders, other packets by [`Packet::encode`].
pub(crate) fn kinds(direction: Direction) -> &'static [PacketType] {
    use PacketType::*;
    match direction {
        Direction::FromClient => &[
            Connect,
            Publish,
            PubAck,
            PubRec,
            PubRel,
            PubComp,
            Subscribe,
            Unsubscribe,
            PingReq,
            Disconnect,
            Auth,
        ],
        Direction::FromServer => &[
            ConnAck, Publish, PubAck, PubRec, PubRel, PubComp, SubAck, UnsubAck, PingResp,
            Disconnect, Auth,
        ],
    }
}
