//! The client's side of an MQTT connection without I/O: bytes in, events out, bytes to send in `out`.
//!
//! Acknowledges by itself: PUBACK and PUBREC when a message is handed out, PUBREL when PUBREC comes. The state
//! of QoS 2 messages that are coming in outlives a connection, so that a resumed session delivers them once.

use std::collections::{BTreeMap, HashMap, HashSet};

use mqtt::{
    Ack, Direction, Disconnect, Packet, PacketType, Properties, PropertiesBuf, Property, Publish,
    QoS, ReasonCode, SubscribeBuf, SubscriptionOptions, UnsubscribeBuf, Version,
};

/// What came from the broker.
#[derive(Debug)]
pub(crate) enum Event {
    Connected(Connected),
    /// The next step of an enhanced authentication.
    Auth {
        reason: ReasonCode,
        data: Vec<u8>,
    },
    Message(Message),
    /// A message we published is done, well or not.
    Published {
        packet_id: u16,
        answer: Answer,
    },
    Subscribed {
        codes: Vec<ReasonCode>,
        reason_string: Option<String>,
    },
    Unsubscribed {
        codes: Vec<ReasonCode>,
        reason_string: Option<String>,
    },
    Pong,
    /// The broker ends the connection.
    Disconnected {
        answer: Answer,
        server_reference: Option<String>,
    },
}

/// A reason code and what the broker says about it.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) reason: ReasonCode,
    pub(crate) reason_string: Option<String>,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.reason)?;
        match &self.reason_string {
            Some(text) => write!(f, ", {text:?}"),
            None => Ok(()),
        }
    }
}

/// What CONNACK said.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) answer: Answer,
    pub(crate) session_present: bool,
    pub(crate) assigned_client_id: Option<String>,
    pub(crate) server_keep_alive_s: Option<u16>,
    pub(crate) server_reference: Option<String>,
    pub(crate) authentication_data: Vec<u8>,
    pub(crate) max_qos: u8,
}

/// A message that was delivered to us.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The real one, also if the packet had an alias.
    pub(crate) topic: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) dup: bool,
    pub(crate) properties: PropertiesBuf,
}

/// A message to publish.
pub(crate) struct Outgoing<'a> {
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) properties: &'a PropertiesBuf,
    /// Use this alias: the topic goes along the first time only.
    pub(crate) topic_alias: Option<u16>,
}

/// What of a message we published is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaits {
    PubAck,
    PubRec,
    PubComp,
    SubAck,
    UnsubAck,
}

pub(crate) struct Session {
    version: Version,
    /// Bytes to send.
    pub(crate) out: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that are done with.
    consumed: usize,
    max_packet_size: u32,
    /// Topic aliases the broker may use, and those it has set.
    topic_alias_maximum: u16,
    incoming_aliases: HashMap<u16, String>,
    /// Aliases we have told the broker about.
    outgoing_aliases: HashMap<u16, String>,
    /// Packet identifiers in use.
    waiting: BTreeMap<u16, Awaits>,
    /// Those of messages.
    in_flight: usize,
    last_packet_id: u16,
    /// QoS 2 messages handed out whose PUBREL has not come.
    incoming_qos2: HashSet<u16>,
    /// What the broker allows.
    send_quota: u16,
    server_topic_alias_maximum: u16,
    server_max_packet_size: u32,
}

type Result<T> = std::result::Result<T, String>;

impl Session {
    /// `max_packet_size` and `topic_alias_maximum` are what we told the broker.
    pub(crate) fn new(version: Version, max_packet_size: u32, topic_alias_maximum: u16) -> Self {
        Self {
            version,
            out: Vec::new(),
            input: Vec::new(),
            consumed: 0,
            max_packet_size,
            topic_alias_maximum,
            incoming_aliases: HashMap::new(),
            outgoing_aliases: HashMap::new(),
            waiting: BTreeMap::new(),
            in_flight: 0,
            last_packet_id: 0,
            incoming_qos2: HashSet::new(),
            send_quota: u16::MAX,
            server_topic_alias_maximum: 0,
            server_max_packet_size: u32::MAX,
        }
    }

    /// Forgets everything that belongs to a connection, not what belongs to the session.
    pub(crate) fn start_connection(&mut self) {
        self.out.clear();
        self.input.clear();
        self.consumed = 0;
        self.incoming_aliases.clear();
        self.outgoing_aliases.clear();
        self.waiting.clear();
        self.in_flight = 0;
    }

    /// Bytes to send, and where bytes from the broker go.
    pub(crate) fn buffers(&mut self) -> (&mut Vec<u8>, &mut Vec<u8>) {
        (&mut self.out, &mut self.input)
    }

    /// Sends a packet that needs no bookkeeping.
    pub(crate) fn send(&mut self, packet: &Packet<'_>) {
        packet.encode(self.version, &mut self.out);
    }

    /// Messages of QoS 1 and 2 published and not yet done.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether the broker takes one more message of QoS 1 or 2 now.
    pub(crate) fn has_quota(&self) -> bool {
        self.in_flight < usize::from(self.send_quota)
    }

    /// Sends a message; the answer is its packet identifier (0 at QoS 0). The caller heeds
    /// [`has_quota`](Self::has_quota).
    pub(crate) fn publish(&mut self, message: &Outgoing<'_>) -> Result<u16> {
        let mut properties = message.properties.clone();
        let mut topic = message.topic;
        if let Some(alias) = message.topic_alias {
            if alias > self.server_topic_alias_maximum {
                return Err(format!(
                    "topic alias {alias} is more than the broker allows ({})",
                    self.server_topic_alias_maximum
                ));
            }
            properties.push(Property::TopicAlias(alias));
            if self
                .outgoing_aliases
                .get(&alias)
                .is_some_and(|known| known == topic)
            {
                topic = "";
            } else {
                self.outgoing_aliases.insert(alias, topic.to_owned());
            }
        }
        let packet_id = match message.qos {
            QoS::AtMostOnce => 0,
            QoS::AtLeastOnce => self.claim_packet_id(Awaits::PubAck)?,
            QoS::ExactlyOnce => self.claim_packet_id(Awaits::PubRec)?,
        };
        let before = self.out.len();
        self.send(&Packet::Publish(Publish {
            dup: false,
            qos: message.qos,
            retain: message.retain,
            topic,
            packet_id,
            properties: properties.as_properties(),
            payload: message.payload,
        }));
        let packet_bytes = self.out.len() - before;
        if packet_bytes as u64 > u64::from(self.server_max_packet_size) {
            self.out.truncate(before);
            if packet_id != 0 {
                self.waiting.remove(&packet_id);
            }
            return Err(format!(
                "the message makes a packet of {packet_bytes} bytes, the broker takes {} at most",
                self.server_max_packet_size
            ));
        }
        self.in_flight += usize::from(packet_id != 0);
        Ok(packet_id)
    }

    pub(crate) fn subscribe(
        &mut self,
        filters: &[(String, SubscriptionOptions)],
        properties: &PropertiesBuf,
    ) -> Result<()> {
        let packet_id = self.claim_packet_id(Awaits::SubAck)?;
        let mut packet = SubscribeBuf::new(packet_id);
        for (filter, options) in filters {
            packet.push(filter, *options);
        }
        packet.encode(properties.as_properties(), self.version, &mut self.out);
        Ok(())
    }

    pub(crate) fn unsubscribe(
        &mut self,
        filters: &[String],
        properties: &PropertiesBuf,
    ) -> Result<()> {
        let packet_id = self.claim_packet_id(Awaits::UnsubAck)?;
        let mut packet = UnsubscribeBuf::new(packet_id);
        for filter in filters {
            packet.push(filter);
        }
        packet.encode(properties.as_properties(), self.version, &mut self.out);
        Ok(())
    }

    /// Says good-bye. Before MQTT 5 there are no reasons.
    pub(crate) fn disconnect(&mut self, reason: ReasonCode, properties: &PropertiesBuf) {
        self.send(&Packet::Disconnect(Disconnect {
            reason,
            properties: properties.as_properties(),
        }));
    }

    fn claim_packet_id(&mut self, awaits: Awaits) -> Result<u16> {
        for _ in 0..u16::MAX {
            self.last_packet_id = self.last_packet_id.checked_add(1).unwrap_or(1);
            if !self.waiting.contains_key(&self.last_packet_id) {
                self.waiting.insert(self.last_packet_id, awaits);
                return Ok(self.last_packet_id);
            }
        }
        Err("all 65535 packet identifiers are in use".into())
    }

    /// The next event of what has arrived; `None`: more bytes are needed. The error says how the broker broke
    /// the protocol.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            let input = std::mem::take(&mut self.input);
            let step = self.step(&input[self.consumed..]);
            self.input = input;
            let (consumed, event) = step?;
            self.consumed += consumed;
            if event.is_some() {
                return Ok(event);
            }
            if consumed == 0 {
                self.input.drain(..self.consumed);
                self.consumed = 0;
                return Ok(None);
            }
        }
    }

    /// Takes one packet off the front: how long it was and what it means to the user.
    fn step(&mut self, input: &[u8]) -> Result<(usize, Option<Event>)> {
        let frame = mqtt::split_frame(input, self.max_packet_size).map_err(|e| e.to_string())?;
        let Some(frame) = frame else {
            return Ok((0, None));
        };
        let consumed = frame.len;
        let packet = Packet::decode(frame, self.version, Direction::FromServer)
            .map_err(|error| error.to_string())?;
        Ok((consumed, self.handle(packet)?))
    }

    fn handle(&mut self, packet: Packet<'_>) -> Result<Option<Event>> {
        Ok(match packet {
            Packet::ConnAck(connack) => {
                let properties = connack.properties;
                self.send_quota = properties.receive_maximum().unwrap_or(u16::MAX);
                self.server_topic_alias_maximum = properties.topic_alias_maximum().unwrap_or(0);
                self.server_max_packet_size = properties.maximum_packet_size().unwrap_or(u32::MAX);
                if !connack.session_present {
                    self.incoming_qos2.clear();
                }
                Some(Event::Connected(Connected {
                    answer: answer(connack.code, properties),
                    session_present: connack.session_present,
                    assigned_client_id: properties.assigned_client_identifier().map(str::to_owned),
                    server_keep_alive_s: properties.server_keep_alive(),
                    server_reference: properties.server_reference().map(str::to_owned),
                    authentication_data: properties
                        .authentication_data()
                        .unwrap_or_default()
                        .to_owned(),
                    max_qos: properties.maximum_qos().unwrap_or(2),
                }))
            }
            Packet::Auth(auth) => Some(Event::Auth {
                reason: auth.reason,
                data: auth
                    .properties
                    .authentication_data()
                    .unwrap_or_default()
                    .to_owned(),
            }),
            Packet::Publish(publish) => self.handle_publish(&publish)?.map(Event::Message),
            Packet::PubAck(ack) => Some(self.published(Awaits::PubAck, &ack)?),
            Packet::PubRec(ack) if ack.reason.is_error() => {
                Some(self.published(Awaits::PubRec, &ack)?)
            }
            Packet::PubRec(ack) => {
                self.expect(ack.packet_id, Awaits::PubRec, "PUBREC")?;
                self.waiting.insert(ack.packet_id, Awaits::PubComp);
                self.acknowledge(PacketType::PubRel, ack.packet_id, ReasonCode::SUCCESS);
                None
            }
            Packet::PubComp(ack) => Some(self.published(Awaits::PubComp, &ack)?),
            Packet::PubRel(ack) => {
                // An identifier we do not know is answered too: the broker may have lost our PUBCOMP.
                let known = self.incoming_qos2.remove(&ack.packet_id);
                let reason = match known {
                    true => ReasonCode::SUCCESS,
                    false => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
                };
                self.acknowledge(PacketType::PubComp, ack.packet_id, reason);
                None
            }
            Packet::SubAck(ack) => {
                self.expect(ack.packet_id, Awaits::SubAck, "SUBACK")?;
                self.waiting.remove(&ack.packet_id);
                Some(Event::Subscribed {
                    codes: ack.codes.iter().copied().map(ReasonCode).collect(),
                    reason_string: ack.properties.reason_string().map(str::to_owned),
                })
            }
            Packet::UnsubAck(ack) => {
                self.expect(ack.packet_id, Awaits::UnsubAck, "UNSUBACK")?;
                self.waiting.remove(&ack.packet_id);
                Some(Event::Unsubscribed {
                    codes: ack.codes.iter().copied().map(ReasonCode).collect(),
                    reason_string: ack.properties.reason_string().map(str::to_owned),
                })
            }
            Packet::PingResp => Some(Event::Pong),
            Packet::Disconnect(disconnect) => Some(Event::Disconnected {
                answer: answer(disconnect.reason, disconnect.properties),
                server_reference: disconnect.properties.server_reference().map(str::to_owned),
            }),
            other => return Err(format!("a server sends no {:?}", other.packet_type())),
        })
    }

    /// Acknowledges a message; `None` if it was handed out before.
    fn handle_publish(&mut self, publish: &Publish<'_>) -> Result<Option<Message>> {
        let topic = match publish.properties.topic_alias() {
            None => publish.topic.to_owned(),
            Some(alias) if alias > self.topic_alias_maximum => {
                return Err(format!(
                    "topic alias {alias}, but {} are allowed",
                    self.topic_alias_maximum
                ));
            }
            Some(alias) if publish.topic.is_empty() => {
                let known = self.incoming_aliases.get(&alias);
                known
                    .ok_or_else(|| format!("topic alias {alias} was never set"))?
                    .clone()
            }
            Some(alias) => {
                self.incoming_aliases
                    .insert(alias, publish.topic.to_owned());
                publish.topic.to_owned()
            }
        };
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => {
                self.acknowledge(PacketType::PubAck, publish.packet_id, ReasonCode::SUCCESS);
            }
            QoS::ExactlyOnce => {
                let is_new = self.incoming_qos2.insert(publish.packet_id);
                self.acknowledge(PacketType::PubRec, publish.packet_id, ReasonCode::SUCCESS);
                if !is_new {
                    return Ok(None);
                }
            }
        }
        let mut properties = PropertiesBuf::new();
        properties.extend(publish.properties);
        Ok(Some(Message {
            topic,
            payload: publish.payload.to_owned(),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
            properties,
        }))
    }

    fn published(&mut self, awaits: Awaits, ack: &Ack<'_>) -> Result<Event> {
        self.expect(ack.packet_id, awaits, "an acknowledgement")?;
        self.waiting.remove(&ack.packet_id);
        self.in_flight -= 1;
        Ok(Event::Published {
            packet_id: ack.packet_id,
            answer: answer(ack.reason, ack.properties),
        })
    }

    fn expect(&self, packet_id: u16, awaits: Awaits, what: &str) -> Result<()> {
        match self.waiting.get(&packet_id) {
            Some(waiting) if *waiting == awaits => Ok(()),
            _ => Err(format!(
                "{what} for packet identifier {packet_id}, which waits for none"
            )),
        }
    }

    fn acknowledge(&mut self, kind: PacketType, packet_id: u16, reason: ReasonCode) {
        let ack = Ack {
            packet_id,
            reason,
            properties: Properties::EMPTY,
        };
        ack.encode(kind, self.version, &mut self.out);
    }
}

fn answer(reason: ReasonCode, properties: Properties<'_>) -> Answer {
    Answer {
        reason,
        reason_string: properties.reason_string().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let mut session = Session::new(Version::V5, 1024, 2);
        connack(
            &mut session,
            false,
            &[Property::ReceiveMaximum(2), Property::TopicAliasMaximum(1)],
        );
        session
    }

    /// Lets the broker say something, byte by byte.
    fn hear(session: &mut Session, packet: &Packet<'_>) -> Result<Vec<Event>> {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes);
        let mut events = Vec::new();
        for byte in bytes {
            session.buffers().1.push(byte);
            events.extend(session.next_event()?);
        }
        Ok(events)
    }

    fn connack(session: &mut Session, session_present: bool, properties: &[Property<'_>]) {
        let mut buf = PropertiesBuf::new();
        properties.iter().for_each(|property| buf.push(*property));
        let packet = Packet::ConnAck(mqtt::ConnAck {
            session_present,
            code: ReasonCode::SUCCESS,
            properties: buf.as_properties(),
        });
        let events = hear(session, &packet).unwrap();
        assert!(matches!(&events[..], [Event::Connected(_)]), "{events:?}");
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

    /// What the session has to say, taken out.
    fn said(session: &mut Session) -> Vec<(PacketType, u16, ReasonCode)> {
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

    fn outgoing<'a>(qos: QoS, properties: &'a PropertiesBuf) -> Outgoing<'a> {
        Outgoing {
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
            let events = hear(&mut session, &publish("t", qos, Properties::EMPTY)).unwrap();
            let [Event::Message(message)] = &events[..] else {
                panic!("{events:?}")
            };
            assert_eq!(
                (message.topic.as_str(), &message.payload[..]),
                ("t", &b"hi"[..])
            );
            let answers: Vec<_> = answer.into_iter().map(|kind| (kind, 9, OK)).collect();
            assert_eq!(said(&mut session), answers);
        }
        // The same message again, in a resumed session too, then its end.
        let again = publish("t", QoS::ExactlyOnce, Properties::EMPTY);
        assert!(hear(&mut session, &again).unwrap().is_empty());
        session.start_connection();
        connack(&mut session, true, &[]);
        assert!(hear(&mut session, &again).unwrap().is_empty());
        assert_eq!(said(&mut session), [(PacketType::PubRec, 9, OK)]);
        hear(&mut session, &Packet::PubRel(ack(9, OK))).unwrap();
        hear(&mut session, &Packet::PubRel(ack(9, OK))).unwrap();
        let unknown = ReasonCode::PACKET_IDENTIFIER_NOT_FOUND;
        assert_eq!(
            said(&mut session),
            [
                (PacketType::PubComp, 9, OK),
                (PacketType::PubComp, 9, unknown)
            ]
        );
        assert_eq!(hear(&mut session, &again).unwrap().len(), 1);
    }

    #[test]
    fn without_a_session_an_unfinished_message_is_a_new_one() {
        let mut session = session();
        let message = publish("t", QoS::ExactlyOnce, Properties::EMPTY);
        assert_eq!(hear(&mut session, &message).unwrap().len(), 1);
        session.start_connection();
        connack(&mut session, false, &[]);
        assert_eq!(hear(&mut session, &message).unwrap().len(), 1);
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
        said(&mut session);

        let events = hear(&mut session, &Packet::PubAck(ack(first, OK))).unwrap();
        assert!(matches!(&events[..], [Event::Published { packet_id, .. }] if *packet_id == first));
        assert!(
            hear(&mut session, &Packet::PubRec(ack(second, OK)))
                .unwrap()
                .is_empty()
        );
        assert_eq!(said(&mut session), [(PacketType::PubRel, second, OK)]);
        assert_eq!(session.in_flight(), 1);
        let events = hear(&mut session, &Packet::PubComp(ack(second, OK))).unwrap();
        assert!(
            matches!(&events[..], [Event::Published { packet_id, .. }] if *packet_id == second)
        );
        assert_eq!(session.in_flight(), 0);

        // A PUBREC that refuses is the end too.
        let third = session.publish(&outgoing(QoS::ExactlyOnce, &none)).unwrap();
        let refusal = ack(third, ReasonCode::NOT_AUTHORIZED);
        let events = hear(&mut session, &Packet::PubRec(refusal)).unwrap();
        let [Event::Published { answer, .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(answer.to_string(), "not authorized (0x87)");
        assert_eq!(session.in_flight(), 0);
        let unasked = hear(&mut session, &Packet::PubAck(ack(77, OK))).unwrap_err();
        assert_eq!(
            unasked,
            "an acknowledgement for packet identifier 77, which waits for none"
        );
    }

    #[test]
    fn a_packet_larger_than_the_broker_takes_is_not_sent() {
        let mut session = Session::new(Version::V5, 1024, 0);
        connack(&mut session, false, &[Property::MaximumPacketSize(20)]);
        let none = PropertiesBuf::new();
        let message = Outgoing {
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
        let message = |alias| Outgoing {
            topic_alias: Some(alias),
            ..outgoing(QoS::AtMostOnce, &none)
        };
        session.publish(&message(1)).unwrap();
        session.publish(&message(1)).unwrap();
        let lengths: Vec<_> = said(&mut session).iter().map(|said| said.2.0).collect();
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
        let heard = |session: &mut Session, topic, number| {
            let properties = alias(number);
            let packet = publish(topic, QoS::AtMostOnce, properties.as_properties());
            hear(session, &packet).map(|mut events| match events.remove(0) {
                Event::Message(message) => message.topic,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(heard(&mut session, "x/y", 2).unwrap(), "x/y");
        assert_eq!(heard(&mut session, "", 2).unwrap(), "x/y");
        assert_eq!(
            heard(&mut session, "", 1).unwrap_err(),
            "topic alias 1 was never set"
        );
        let mut session = self::session();
        assert_eq!(
            heard(&mut session, "x", 3).unwrap_err(),
            "topic alias 3, but 2 are allowed"
        );
    }
}
