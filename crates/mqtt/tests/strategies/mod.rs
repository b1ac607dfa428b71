//! Strategies for valid packets of any version and direction.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

pub(crate) mod properties;

use mqtt::{
    Ack, Auth, ConnAck, Connect, Direction, Disconnect, Packet, PacketType, Publish, QoS,
    ReasonCode, SubAck, SubscribeBuf, SubscriptionOptions, UnsubAck, UnsubscribeBuf, Version, Will,
};
use properties::{Properties, encoded};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// A valid packet that owns its data.
#[derive(Debug, Clone)]
pub(crate) struct SamplePacket {
    pub(crate) version: Version,
    pub(crate) direction: Direction,
    pub(crate) model: PacketModel,
}

#[derive(Debug, Clone)]
pub(crate) enum PacketModel {
    Connect {
        clean_start: bool,
        keep_alive: u16,
        client_id: String,
        username: Option<String>,
        password: Option<Vec<u8>>,
        will: Option<WillModel>,
        properties: Properties,
        bridge: bool,
    },
    ConnAck(bool, ReasonCode, Properties),
    Publish {
        dup: bool,
        qos: QoS,
        retain: bool,
        topic: String,
        packet_id: u16,
        properties: Properties,
        payload: Vec<u8>,
    },
    Ack(PacketType, u16, ReasonCode, Properties),
    Subscribe(u16, Properties, Vec<(String, SubscriptionOptions)>),
    /// SUBACK or UNSUBACK.
    Answer(PacketType, u16, Properties, Vec<u8>),
    Unsubscribe(u16, Properties, Vec<String>),
    Ping(PacketType),
    Disconnect(ReasonCode, Properties),
    Auth(ReasonCode, Properties),
}

#[derive(Debug, Clone)]
pub(crate) struct WillModel {
    topic: String,
    payload: Vec<u8>,
    qos: QoS,
    retain: bool,
    properties: Properties,
}

impl SamplePacket {
    /// The expected properties of the packet; those of the will are separate.
    pub(crate) fn properties(&self) -> &[properties::OwnedProperty] {
        match &self.model {
            PacketModel::Connect { properties, .. }
            | PacketModel::Publish { properties, .. }
            | PacketModel::ConnAck(_, _, properties)
            | PacketModel::Ack(_, _, _, properties)
            | PacketModel::Subscribe(_, properties, _)
            | PacketModel::Answer(_, _, properties, _)
            | PacketModel::Unsubscribe(_, properties, _)
            | PacketModel::Disconnect(_, properties)
            | PacketModel::Auth(_, properties) => properties,
            PacketModel::Ping(_) => &[],
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.with_packet(|packet| packet.encode(self.version, &mut out));
        out
    }

    /// Calls `each` with the packet, which borrows from `self`.
    pub(crate) fn with_packet(&self, each: impl FnOnce(Packet<'_>)) {
        let buf = encoded(self.properties());
        let properties = buf.as_properties();
        match &self.model {
            PacketModel::Connect {
                clean_start,
                keep_alive,
                client_id,
                username,
                password,
                will,
                bridge,
                ..
            } => {
                let will_buf = encoded(will.as_ref().map_or(&[], |will| &will.properties));
                each(Packet::Connect(Connect {
                    version: self.version,
                    clean_start: *clean_start,
                    keep_alive_s: *keep_alive,
                    client_id,
                    username: username.as_deref(),
                    password: password.as_deref(),
                    will: will.as_ref().map(|will| Will {
                        topic: &will.topic,
                        payload: &will.payload,
                        qos: will.qos,
                        retain: will.retain,
                        properties: will_buf.as_properties(),
                    }),
                    properties,
                    is_bridge: *bridge,
                }));
            }
            &PacketModel::ConnAck(session_present, code, _) => each(Packet::ConnAck(ConnAck {
                session_present,
                code,
                properties,
            })),
            PacketModel::Publish {
                dup,
                qos,
                retain,
                topic,
                packet_id,
                payload,
                ..
            } => each(Packet::Publish(Publish {
                dup: *dup,
                qos: *qos,
                retain: *retain,
                topic,
                packet_id: *packet_id,
                properties,
                payload,
            })),
            &PacketModel::Ack(kind, packet_id, reason, _) => {
                let ack = Ack {
                    packet_id,
                    reason,
                    properties,
                };
                each(match kind {
                    PacketType::PubAck => Packet::PubAck(ack),
                    PacketType::PubRec => Packet::PubRec(ack),
                    PacketType::PubRel => Packet::PubRel(ack),
                    _ => Packet::PubComp(ack),
                });
            }
            PacketModel::Subscribe(packet_id, _, filters) => {
                let mut subscribe = SubscribeBuf::new(*packet_id);
                for (filter, options) in filters {
                    subscribe.push(filter, *options);
                }
                let mut bytes = Vec::new();
                subscribe.encode(properties, self.version, &mut bytes);
                let Ok(Packet::Subscribe(subscribe)) = self.decode(&bytes) else {
                    panic!("{self:?} does not read as SUBSCRIBE");
                };
                assert_eq!(subscribe.filters.len(), filters.len());
                for (found, (filter, options)) in subscribe.filters.iter().zip(filters) {
                    assert_eq!((found.filter, found.options), (filter.as_str(), *options));
                }
                each(Packet::Subscribe(subscribe));
            }
            PacketModel::Unsubscribe(packet_id, _, filters) => {
                let mut unsubscribe = UnsubscribeBuf::new(*packet_id);
                for filter in filters {
                    unsubscribe.push(filter);
                }
                let mut bytes = Vec::new();
                unsubscribe.encode(properties, self.version, &mut bytes);
                let Ok(Packet::Unsubscribe(unsubscribe)) = self.decode(&bytes) else {
                    panic!("{self:?} does not read as UNSUBSCRIBE");
                };
                assert_eq!(unsubscribe.filters.len(), filters.len());
                assert!(unsubscribe.filters.iter().eq(filters));
                each(Packet::Unsubscribe(unsubscribe));
            }
            &PacketModel::Answer(PacketType::SubAck, packet_id, _, ref codes) => {
                each(Packet::SubAck(SubAck {
                    packet_id,
                    properties,
                    codes,
                }));
            }
            &PacketModel::Answer(_, packet_id, _, ref codes) => each(Packet::UnsubAck(UnsubAck {
                packet_id,
                properties,
                codes,
            })),
            PacketModel::Ping(PacketType::PingReq) => each(Packet::PingReq),
            PacketModel::Ping(_) => each(Packet::PingResp),
            &PacketModel::Disconnect(reason, _) => {
                each(Packet::Disconnect(Disconnect { reason, properties }));
            }
            &PacketModel::Auth(reason, _) => each(Packet::Auth(Auth { reason, properties })),
        }
    }

    pub(crate) fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Packet<'a>, mqtt::Error> {
        let frame = mqtt::split_frame(bytes, u32::MAX)?.expect("the packet is whole");
        assert_eq!(frame.len, bytes.len());
        Packet::decode(frame, self.version, self.direction)
    }
}

/// A string without U+0000.
pub(crate) fn text() -> impl Strategy<Value = String> {
    text_without(&['\0'], 0..=12)
}

/// A topic name with at least one character and no wildcards.
pub(crate) fn topic_name() -> impl Strategy<Value = String> {
    text_without(&['\0', '+', '#'], 1..=20)
}

fn text_without(
    forbidden: &'static [char],
    len: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = String> {
    let char = prop_oneof![
        5 => select(vec!['a', 'b', '/', '$', ' ', '\u{1}', '\u{7f}', 'ä', '\u{feff}']),
        1 => any::<char>(),
    ];
    let char = char.prop_map(|char| if forbidden.contains(&char) { 'x' } else { char });
    vec(char, len).prop_map(|chars| chars.into_iter().collect())
}

pub(crate) fn binary() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=20)
}

/// Mostly short; sometimes with a remaining length of two or three bytes.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![8 => binary(), 2 => vec(any::<u8>(), 90..=300), 1 => vec(any::<u8>(), 16_000..=17_000)]
}

fn packet_id() -> impl Strategy<Value = u16> {
    prop_oneof![1..=u16::MAX, Just(1), Just(u16::MAX)]
}

fn qos() -> impl Strategy<Value = QoS> {
    select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn reason(codes: &'static [u8]) -> impl Strategy<Value = ReasonCode> {
    select(codes).prop_map(ReasonCode)
}

/// Properties for version 5, none before.
fn only_v5(version: Version, properties: BoxedStrategy<Properties>) -> BoxedStrategy<Properties> {
    if version == Version::V5 {
        properties
    } else {
        Just(Vec::new()).boxed()
    }
}

fn with(version: Version, ids: &'static [u8]) -> BoxedStrategy<Properties> {
    only_v5(version, properties::some_of(ids))
}

/// Any packet.
pub(crate) fn sample() -> impl Strategy<Value = SamplePacket> {
    (
        select(vec![Version::V31, Version::V311, Version::V5]),
        select(vec![Direction::FromClient, Direction::FromServer]),
    )
        .prop_flat_map(|(version, direction)| sample_of(version, direction))
}

/// Any packet of this version and direction.
pub(crate) fn sample_of(
    version: Version,
    direction: Direction,
) -> impl Strategy<Value = SamplePacket> {
    let mut models = vec![publish(version, direction), ack(version)];
    match direction {
        Direction::FromClient => models.extend([
            connect(version),
            subscribe(version),
            unsubscribe(version),
            Just(PacketModel::Ping(PacketType::PingReq)).boxed(),
            disconnect(version, direction),
        ]),
        Direction::FromServer => models.extend([
            connack(version),
            answer(version),
            Just(PacketModel::Ping(PacketType::PingResp)).boxed(),
        ]),
    }
    if version == Version::V5 {
        models.extend([auth(direction), disconnect(version, direction)]);
    }
    proptest::strategy::Union::new(models).prop_map(move |model| SamplePacket {
        version,
        direction,
        model,
    })
}

fn connect(version: Version) -> BoxedStrategy<PacketModel> {
    let will = (
        topic_name(),
        payload(),
        qos(),
        any::<bool>(),
        with(version, properties::WILL),
    )
        .prop_map(|(topic, payload, qos, retain, properties)| WillModel {
            topic,
            payload,
            qos,
            retain,
            properties,
        });
    (
        (any::<bool>(), any::<u16>(), text(), any::<bool>()),
        (option::of(text()), option::of(binary()), option::of(will)),
        with(version, properties::CONNECT),
    )
        .prop_map(move |(fixed, (username, password, will), properties)| {
            let (clean_start, keep_alive, client_id, bridge) = fixed;
            // Only version 5 has a password without a user name.
            let password = password.filter(|_| username.is_some() || version == Version::V5);
            PacketModel::Connect {
                clean_start,
                keep_alive,
                client_id,
                username,
                password,
                will,
                properties,
                bridge,
            }
        })
        .boxed()
}

fn connack(version: Version) -> BoxedStrategy<PacketModel> {
    let codes: &[u8] = match version {
        Version::V5 => &[
            0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8c, 0x90,
            0x95, 0x97, 0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9f,
        ],
        // The reason codes to which the five return codes are decoded.
        _ => &[0x00, 0x84, 0x85, 0x88, 0x86, 0x87],
    };
    (
        any::<bool>(),
        reason(codes),
        with(version, properties::CONNACK),
    )
        .prop_map(move |(session_present, code, properties)| {
            let may_be = code == ReasonCode::SUCCESS && version != Version::V31;
            PacketModel::ConnAck(session_present && may_be, code, properties)
        })
        .boxed()
}

fn publish(version: Version, direction: Direction) -> BoxedStrategy<PacketModel> {
    let properties = properties::of_publish(direction == Direction::FromServer);
    (
        (any::<bool>(), qos(), any::<bool>(), any::<bool>()),
        (topic_name(), packet_id(), payload()),
        only_v5(version, properties),
    )
        .prop_map(
            |((dup, qos, retain, by_alias), (topic, packet_id, payload), properties)| {
                let has_alias = properties.iter().any(|property| property.id() == 0x23);
                let is_qos_0 = qos == QoS::AtMostOnce;
                PacketModel::Publish {
                    dup: dup && !is_qos_0,
                    qos,
                    retain,
                    topic: if has_alias && by_alias {
                        String::new()
                    } else {
                        topic
                    },
                    packet_id: if is_qos_0 { 0 } else { packet_id },
                    properties,
                    payload,
                }
            },
        )
        .boxed()
}

fn ack(version: Version) -> BoxedStrategy<PacketModel> {
    use PacketType::*;
    select(vec![PubAck, PubRec, PubRel, PubComp])
        .prop_flat_map(move |kind| {
            let codes: &[u8] = match kind {
                _ if version != Version::V5 => &[0x00],
                PubAck | PubRec => &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
                _ => &[0x00, 0x92],
            };
            (
                Just(kind),
                packet_id(),
                reason(codes),
                with(version, properties::ACK),
            )
        })
        .prop_map(|(kind, packet_id, reason, properties)| {
            PacketModel::Ack(kind, packet_id, reason, properties)
        })
        .boxed()
}

fn subscribe(version: Version) -> BoxedStrategy<PacketModel> {
    let options = (qos(), any::<bool>(), any::<bool>(), 0..=2_u8).prop_map(move |options| {
        let (qos, no_local, retain_as_published, retain_handling) = options;
        match version {
            Version::V5 => SubscriptionOptions {
                qos,
                no_local,
                retain_as_published,
                retain_handling,
            },
            _ => SubscriptionOptions::new(qos),
        }
    });
    let shared = text().prop_map(|text| format!("$share/{text}"));
    let filter = prop_oneof![4 => text(), 1 => shared];
    let filters = vec((filter, options), 1..=5).prop_map(|mut filters| {
        for (filter, options) in &mut filters {
            options.no_local &= !filter.starts_with("$share/");
        }
        filters
    });
    (packet_id(), with(version, properties::SUBSCRIBE), filters)
        .prop_map(|(packet_id, properties, filters)| {
            PacketModel::Subscribe(packet_id, properties, filters)
        })
        .boxed()
}

fn unsubscribe(version: Version) -> BoxedStrategy<PacketModel> {
    (
        packet_id(),
        with(version, properties::UNSUBSCRIBE),
        vec(text(), 1..=5),
    )
        .prop_map(|(packet_id, properties, filters)| {
            PacketModel::Unsubscribe(packet_id, properties, filters)
        })
        .boxed()
}

fn answer(version: Version) -> BoxedStrategy<PacketModel> {
    use PacketType::{SubAck, UnsubAck};
    select(vec![SubAck, UnsubAck])
        .prop_flat_map(move |kind| {
            let codes: &[u8] = match (kind, version) {
                (SubAck, Version::V5) => &[
                    0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8f, 0x91, 0x97, 0x9e, 0xa1, 0xa2,
                ],
                (SubAck, _) => &[0x00, 0x01, 0x02, 0x80],
                _ => &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8f, 0x91],
            };
            // UNSUBACK has no codes before version 5.
            let has_codes = kind == SubAck || version == Version::V5;
            let count = if has_codes { 1..=5 } else { 0..=0 };
            let codes = vec(select(codes), count);
            (
                Just(kind),
                packet_id(),
                with(version, properties::ACK),
                codes,
            )
        })
        .prop_map(|(kind, packet_id, properties, codes)| {
            PacketModel::Answer(kind, packet_id, properties, codes)
        })
        .boxed()
}

fn disconnect(version: Version, direction: Direction) -> BoxedStrategy<PacketModel> {
    let (codes, ids): (&[u8], _) = match direction {
        _ if version != Version::V5 => (&[0x00], &[][..]),
        Direction::FromClient => (
            &[0x00, 0x04, 0x80, 0x82, 0x90, 0x93, 0x99],
            properties::DISCONNECT_OF_CLIENT,
        ),
        Direction::FromServer => (
            &[0x00, 0x80, 0x87, 0x8b, 0x8c, 0x8e, 0x9c, 0xa2],
            properties::DISCONNECT_OF_SERVER,
        ),
    };
    (reason(codes), with(version, ids))
        .prop_map(|(reason, properties)| PacketModel::Disconnect(reason, properties))
        .boxed()
}

fn auth(direction: Direction) -> BoxedStrategy<PacketModel> {
    let codes: &[u8] = match direction {
        Direction::FromClient => &[0x18, 0x19],
        Direction::FromServer => &[0x00, 0x18],
    };
    (reason(codes), properties::of_auth())
        .prop_map(|(reason, properties)| PacketModel::Auth(reason, properties))
        .boxed()
}
