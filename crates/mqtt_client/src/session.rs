//! The state machine of one client session.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use mqtt::{
    Ack, Direction, Disconnect, Packet, PacketType, Properties, PropertiesBuf, Property, Publish,
    QoS, ReasonCode, SubscribeBuf, SubscriptionOptions, UnsubscribeBuf, Version,
};

type Result<T> = std::result::Result<T, String>;

/// An event caused by the broker.
#[derive(Debug)]
pub enum SessionEvent {
    Connected(ConnackInfo),
    /// The next step of an enhanced authentication.
    Auth {
        reason: ReasonCode,
        data: Vec<u8>,
    },
    Message(ReceivedMessage),
    /// A published message is complete, successfully or not.
    Published {
        packet_id: u16,
        answer: AckResult,
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
    /// The broker closes the connection with DISCONNECT.
    Disconnected {
        answer: AckResult,
        server_reference: Option<String>,
    },
}

/// A reason code with the broker's explanation.
#[derive(Debug, Clone)]
pub struct AckResult {
    pub reason: ReasonCode,
    pub reason_string: Option<String>,
}

impl std::fmt::Display for AckResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.reason)?;
        match &self.reason_string {
            Some(text) => write!(f, ", {text:?}"),
            None => Ok(()),
        }
    }
}

/// The contents of CONNACK.
#[derive(Debug)]
pub struct ConnackInfo {
    pub answer: AckResult,
    pub session_present: bool,
    pub assigned_client_id: Option<String>,
    pub server_keep_alive_s: Option<u16>,
    pub server_reference: Option<String>,
    pub authentication_data: Vec<u8>,
    pub max_qos: u8,
    /// QoS 1 and 2 messages that the broker accepts at a time; `None`: not stated.
    pub receive_maximum: Option<u16>,
    pub retain_available: bool,
}

/// A received message.
#[derive(Debug, Clone)]
pub struct ReceivedMessage {
    /// The topic name, also if the packet used an alias.
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub properties: PropertiesBuf,
    /// To pass to [`ClientSession::acknowledge`]; `None`: nothing is left to acknowledge.
    pub pending_ack: Option<PendingAck>,
}

/// The acknowledgement that a received message still needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingAck {
    packet_id: u16,
    qos: QoS,
}

/// When received messages are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    /// Before the message is returned to the caller.
    Automatic,
    /// By [`ClientSession::acknowledge`], for callers that process messages first.
    Manual,
}

/// A message to publish.
pub struct OutgoingMessage<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub properties: &'a PropertiesBuf,
    /// Topic alias to use: the topic is sent the first time only.
    pub topic_alias: Option<u16>,
}

/// The packet awaited for a published message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AwaitedPacket {
    PubAck,
    PubRec,
    PubComp,
    SubAck,
    UnsubAck,
}

/// The client side of an MQTT session without I/O.
///
/// For each connection the caller
/// 1. calls [`start_connection`](Self::start_connection) and [`send`](Self::send)s CONNECT,
/// 2. passes received bytes to [`receive`](Self::receive) and takes events from [`next_event`](Self::next_event)
///    until there is none,
/// 3. writes [`out`](Self::out) to the broker after each call, and removes what is written.
///
/// An error of `next_event` is a violation of the protocol: the connection must be closed. Time is the caller's, too: it sends
/// PINGREQ and expects [`SessionEvent::Pong`].
pub struct ClientSession {
    version: Version,
    ack_mode: AckMode,
    /// Output bytes.
    pub out: Vec<u8>,
    input: Vec<u8>,
    /// Number of processed bytes of `input`.
    consumed: usize,
    max_packet_size: u32,
    /// Topic aliases the broker may use, and those it has set.
    topic_alias_maximum: u16,
    incoming_aliases: HashMap<u16, String>,
    /// Aliases sent to the broker.
    outgoing_aliases: HashMap<u16, String>,
    /// Packet identifiers in use.
    waiting: BTreeMap<u16, AwaitedPacket>,
    /// Reason codes other than success in PUBRECs, such as no matching subscribers, kept until
    /// PUBCOMP arrives.
    pubrec_answers: HashMap<u16, AckResult>,
    /// Number of incomplete QoS 1 and 2 messages.
    in_flight: usize,
    last_packet_id: u16,
    /// QoS 2 messages returned to the caller whose PUBREL has not arrived.
    incoming_qos2: HashSet<u16>,
    /// The receive maximum of the broker.
    send_quota: u16,
    server_topic_alias_maximum: u16,
    server_max_packet_size: u32,
}

impl ClientSession {
    /// `max_packet_size` and `topic_alias_maximum` are the values sent to the broker.
    pub fn new(
        version: Version,
        ack_mode: AckMode,
        max_packet_size: u32,
        topic_alias_maximum: u16,
    ) -> Self {
        Self {
            version,
            ack_mode,
            out: Vec::new(),
            input: Vec::new(),
            consumed: 0,
            max_packet_size,
            topic_alias_maximum,
            incoming_aliases: HashMap::new(),
            outgoing_aliases: HashMap::new(),
            waiting: BTreeMap::new(),
            pubrec_answers: HashMap::new(),
            in_flight: 0,
            last_packet_id: 0,
            incoming_qos2: HashSet::new(),
            send_quota: u16::MAX,
            server_topic_alias_maximum: 0,
            server_max_packet_size: u32::MAX,
        }
    }

    /// Resets the state of the connection, but not that of the session.
    pub fn start_connection(&mut self) {
        self.out.clear();
        self.input.clear();
        self.consumed = 0;
        self.incoming_aliases.clear();
        self.outgoing_aliases.clear();
        self.waiting.clear();
        self.pubrec_answers.clear();
        self.in_flight = 0;
    }

    /// Adds bytes from the broker to the input.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The output buffer and the input buffer.
    pub fn output_and_input(&mut self) -> (&mut Vec<u8>, &mut Vec<u8>) {
        (&mut self.out, &mut self.input)
    }

    /// Sends a packet that needs no state.
    pub fn send(&mut self, packet: &Packet<'_>) {
        packet.encode(self.version, &mut self.out);
    }

    /// The number of incomplete QoS 1 and 2 messages.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether the broker accepts another QoS 1 or 2 message now.
    pub fn has_quota(&self) -> bool {
        self.in_flight < usize::from(self.send_quota)
    }

    /// Sends a message and returns its packet identifier (0 at QoS 0). The caller must check
    /// [`has_quota`](Self::has_quota) first.
    pub fn publish(&mut self, message: &OutgoingMessage<'_>) -> Result<u16> {
        let mut properties = Cow::Borrowed(message.properties);
        let mut topic = message.topic;
        if let Some(alias) = message.topic_alias {
            if alias > self.server_topic_alias_maximum {
                return Err(format!(
                    "topic alias {alias} is more than the broker allows ({})",
                    self.server_topic_alias_maximum
                ));
            }
            properties.to_mut().push(Property::TopicAlias(alias));
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
            QoS::AtLeastOnce => self.allocate_packet_id(AwaitedPacket::PubAck)?,
            QoS::ExactlyOnce => self.allocate_packet_id(AwaitedPacket::PubRec)?,
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

    pub fn subscribe(
        &mut self,
        filters: &[(String, SubscriptionOptions)],
        properties: &PropertiesBuf,
    ) -> Result<()> {
        let packet_id = self.allocate_packet_id(AwaitedPacket::SubAck)?;
        let mut packet = SubscribeBuf::new(packet_id);
        for (filter, options) in filters {
            packet.push(filter, *options);
        }
        let before = self.out.len();
        packet.encode(properties.as_properties(), self.version, &mut self.out);
        self.check_request_size(packet_id, before)
    }

    pub fn unsubscribe(&mut self, filters: &[String], properties: &PropertiesBuf) -> Result<()> {
        let packet_id = self.allocate_packet_id(AwaitedPacket::UnsubAck)?;
        let mut packet = UnsubscribeBuf::new(packet_id);
        for filter in filters {
            packet.push(filter);
        }
        let before = self.out.len();
        packet.encode(properties.as_properties(), self.version, &mut self.out);
        self.check_request_size(packet_id, before)
    }

    /// Withdraws a SUBSCRIBE or UNSUBSCRIBE that the broker would not accept.
    fn check_request_size(&mut self, packet_id: u16, before: usize) -> Result<()> {
        let packet_bytes = self.out.len() - before;
        if packet_bytes as u64 <= u64::from(self.server_max_packet_size) {
            return Ok(());
        }
        self.out.truncate(before);
        self.waiting.remove(&packet_id);
        Err(format!(
            "the request makes a packet of {packet_bytes} bytes, the broker takes {} at most",
            self.server_max_packet_size
        ))
    }

    /// Sends DISCONNECT. Before MQTT 5 there are no reason codes.
    pub fn disconnect(&mut self, reason: ReasonCode, properties: &PropertiesBuf) {
        self.send(&Packet::Disconnect(Disconnect {
            reason,
            properties: properties.as_properties(),
        }));
    }

    fn allocate_packet_id(&mut self, awaits: AwaitedPacket) -> Result<u16> {
        for _ in 0..u16::MAX {
            self.last_packet_id = self.last_packet_id.checked_add(1).unwrap_or(1);
            if !self.waiting.contains_key(&self.last_packet_id) {
                self.waiting.insert(self.last_packet_id, awaits);
                return Ok(self.last_packet_id);
            }
        }
        Err("all 65535 packet identifiers are in use".into())
    }

    /// The next event of the received bytes; `None`: more bytes are needed. The error describes the
    /// protocol violation.
    pub fn next_event(&mut self) -> Result<Option<SessionEvent>> {
        loop {
            let input = std::mem::take(&mut self.input);
            let step = self.handle_next(&input[self.consumed..]);
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

    /// Processes the first packet; returns its length and the resulting event.
    fn handle_next(&mut self, input: &[u8]) -> Result<(usize, Option<SessionEvent>)> {
        let frame = mqtt::split_frame(input, self.max_packet_size).map_err(|e| e.to_string())?;
        let Some(frame) = frame else {
            return Ok((0, None));
        };
        let consumed = frame.len;
        let packet = Packet::decode(frame, self.version, Direction::FromServer)
            .map_err(|error| error.to_string())?;
        Ok((consumed, self.handle_packet(packet)?))
    }

    fn handle_packet(&mut self, packet: Packet<'_>) -> Result<Option<SessionEvent>> {
        Ok(match packet {
            Packet::ConnAck(connack) => {
                let properties = connack.properties;
                self.send_quota = properties.receive_maximum().unwrap_or(u16::MAX);
                self.server_topic_alias_maximum = properties.topic_alias_maximum().unwrap_or(0);
                self.server_max_packet_size = properties.maximum_packet_size().unwrap_or(u32::MAX);
                if !connack.session_present {
                    self.incoming_qos2.clear();
                }
                Some(SessionEvent::Connected(ConnackInfo {
                    answer: ack_result(connack.code, properties),
                    session_present: connack.session_present,
                    assigned_client_id: properties.assigned_client_identifier().map(str::to_owned),
                    server_keep_alive_s: properties.server_keep_alive(),
                    server_reference: properties.server_reference().map(str::to_owned),
                    authentication_data: properties
                        .authentication_data()
                        .unwrap_or_default()
                        .to_owned(),
                    max_qos: properties.maximum_qos().unwrap_or(2),
                    receive_maximum: properties.receive_maximum(),
                    retain_available: properties.retain_available().unwrap_or(true),
                }))
            }
            Packet::Auth(auth) => Some(SessionEvent::Auth {
                reason: auth.reason,
                data: auth
                    .properties
                    .authentication_data()
                    .unwrap_or_default()
                    .to_owned(),
            }),
            Packet::Publish(publish) => self.handle_publish(&publish)?.map(SessionEvent::Message),
            Packet::PubAck(ack) => Some(self.complete_publish(AwaitedPacket::PubAck, &ack)?),
            Packet::PubRec(ack) if ack.reason.is_error() => {
                Some(self.complete_publish(AwaitedPacket::PubRec, &ack)?)
            }
            Packet::PubRec(ack) => {
                self.check_awaited(ack.packet_id, AwaitedPacket::PubRec, "PUBREC")?;
                self.waiting.insert(ack.packet_id, AwaitedPacket::PubComp);
                if ack.reason != ReasonCode::SUCCESS {
                    let answer = ack_result(ack.reason, ack.properties);
                    self.pubrec_answers.insert(ack.packet_id, answer);
                }
                self.send_ack(PacketType::PubRel, ack.packet_id, ReasonCode::SUCCESS);
                None
            }
            Packet::PubComp(ack) => Some(self.complete_publish(AwaitedPacket::PubComp, &ack)?),
            Packet::PubRel(ack) => {
                // An unknown identifier is acknowledged too: the broker may have lost our PUBCOMP.
                let known = self.incoming_qos2.remove(&ack.packet_id);
                let reason = match known {
                    true => ReasonCode::SUCCESS,
                    false => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
                };
                self.send_ack(PacketType::PubComp, ack.packet_id, reason);
                None
            }
            Packet::SubAck(ack) => {
                self.check_awaited(ack.packet_id, AwaitedPacket::SubAck, "SUBACK")?;
                self.waiting.remove(&ack.packet_id);
                Some(SessionEvent::Subscribed {
                    codes: ack.codes.iter().copied().map(ReasonCode).collect(),
                    reason_string: ack.properties.reason_string().map(str::to_owned),
                })
            }
            Packet::UnsubAck(ack) => {
                self.check_awaited(ack.packet_id, AwaitedPacket::UnsubAck, "UNSUBACK")?;
                self.waiting.remove(&ack.packet_id);
                Some(SessionEvent::Unsubscribed {
                    codes: ack.codes.iter().copied().map(ReasonCode).collect(),
                    reason_string: ack.properties.reason_string().map(str::to_owned),
                })
            }
            Packet::PingResp => Some(SessionEvent::Pong),
            Packet::Disconnect(disconnect) => Some(SessionEvent::Disconnected {
                answer: ack_result(disconnect.reason, disconnect.properties),
                server_reference: disconnect.properties.server_reference().map(str::to_owned),
            }),
            other => return Err(format!("a server sends no {:?}", other.packet_type())),
        })
    }

    /// Acknowledges a message; `None` if it was returned before.
    fn handle_publish(&mut self, publish: &Publish<'_>) -> Result<Option<ReceivedMessage>> {
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
        let ack = PendingAck {
            packet_id: publish.packet_id,
            qos: publish.qos,
        };
        if publish.qos == QoS::ExactlyOnce && self.incoming_qos2.contains(&publish.packet_id) {
            self.acknowledge(ack);
            return Ok(None);
        }
        let pending_ack = match (publish.qos, self.ack_mode) {
            (QoS::AtMostOnce, _) => None,
            (_, AckMode::Manual) => Some(ack),
            (_, AckMode::Automatic) => {
                self.acknowledge(ack);
                None
            }
        };
        let mut properties = PropertiesBuf::new();
        properties.extend(publish.properties);
        Ok(Some(ReceivedMessage {
            topic,
            payload: publish.payload.to_owned(),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
            properties,
            pending_ack,
        }))
    }

    /// Sends PUBACK or PUBREC for a received message.
    pub fn acknowledge(&mut self, message: PendingAck) {
        let kind = match message.qos {
            QoS::AtMostOnce => return,
            QoS::AtLeastOnce => PacketType::PubAck,
            QoS::ExactlyOnce => {
                self.incoming_qos2.insert(message.packet_id);
                PacketType::PubRec
            }
        };
        self.send_ack(kind, message.packet_id, ReasonCode::SUCCESS);
    }

    fn complete_publish(&mut self, awaits: AwaitedPacket, ack: &Ack<'_>) -> Result<SessionEvent> {
        self.check_awaited(ack.packet_id, awaits, "an acknowledgement")?;
        self.waiting.remove(&ack.packet_id);
        self.in_flight -= 1;
        let of_pubrec = self.pubrec_answers.remove(&ack.packet_id);
        let answer = match of_pubrec {
            Some(answer) if ack.reason == ReasonCode::SUCCESS => answer,
            _ => ack_result(ack.reason, ack.properties),
        };
        Ok(SessionEvent::Published {
            packet_id: ack.packet_id,
            answer,
        })
    }

    fn check_awaited(&self, packet_id: u16, awaits: AwaitedPacket, what: &str) -> Result<()> {
        match self.waiting.get(&packet_id) {
            Some(waiting) if *waiting == awaits => Ok(()),
            _ => Err(format!(
                "{what} for packet identifier {packet_id}, which waits for none"
            )),
        }
    }

    fn send_ack(&mut self, kind: PacketType, packet_id: u16, reason: ReasonCode) {
        let ack = Ack {
            packet_id,
            reason,
            properties: Properties::EMPTY,
        };
        ack.encode(kind, self.version, &mut self.out);
    }
}

fn ack_result(reason: ReasonCode, properties: Properties<'_>) -> AckResult {
    AckResult {
        reason,
        reason_string: properties.reason_string().map(str::to_owned),
    }
}
