//! Several streams of one client as one sequence of MQTT packets, and back. Sans-io.
//!
//! The first stream is the control stream; the client may open data streams for PUBLISH, SUBSCRIBE, UNSUBSCRIBE and
//! acknowledgements. Each stream has packet identifiers and topic aliases of its own, while the session behind all of
//! them has one set. A subscription belongs to the stream that made it: its messages go there, and it ends with it.
//!
//! [`StreamMultiplexer::receive`] takes complete packets of a stream and appends packets for the session.
//! [`StreamMultiplexer::send`] takes packets of the session and returns the stream of each.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use mqtt::{
    Ack, Direction, Frame, Packet, PacketType, Properties, PropertiesBuf, Property, Publish, QoS,
    ReasonCode, UnsubscribeBuf, Version, filter_matches, split_frame,
};

use super::exchanges::{ExchangeKind, Exchanges};
use super::packet_ids::{packet_id_position, read_id, write_id};
use super::stream_number::{CONTROL_STREAM, StreamNumber};

/// Topics whose stream is remembered.
const MAX_CACHED_TOPICS: usize = 1024;
/// Filters in one UNSUBSCRIBE.
const FILTERS_PER_UNSUBSCRIBE: usize = 64;

type FoldHashMap<K, V> = HashMap<K, V, RandomState>;

/// Why a data stream is closed. The connection and its other streams stay.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamError(pub(super) &'static str);

impl From<mqtt::Error> for StreamError {
    fn from(error: mqtt::Error) -> Self {
        Self(error.detail)
    }
}

/// Where a packet of the session goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Stream(StreamNumber),
    /// To no stream: it answers a packet that the multiplexer has sent itself.
    Nowhere,
}

/// A message of QoS 1 or 2 that was sent on a data stream and is not acknowledged.
struct SentMessage {
    stream: StreamNumber,
    qos: QoS,
    /// The client has sent PUBREC.
    is_received: bool,
    /// It was acknowledged in place of the client, when its stream was closed.
    is_dropped: bool,
}

#[derive(Default)]
struct DataStream {
    aliases: FoldHashMap<u16, Box<str>>,
    /// Exchanges that the session has not answered completely.
    exchanges: usize,
    /// The client sends no more.
    is_closing: bool,
}

pub(super) struct StreamMultiplexer {
    max_packet_size: u32,
    max_topic_bytes: u16,
    version: Version,
    /// Topic aliases that the client may use.
    topic_alias_maximum: u16,
    is_connected: bool,
    next_stream: StreamNumber,
    streams: FoldHashMap<StreamNumber, DataStream>,
    exchanges: Exchanges,
    sent: FoldHashMap<u16, SentMessage>,
    /// The topics that the session has given aliases, and whether the control stream knows them.
    outgoing_aliases: FoldHashMap<u16, (Box<str>, bool)>,
    /// The data streams of filters.
    subscriptions: FoldHashMap<Box<str>, StreamNumber>,
    cached_routes: FoldHashMap<Box<str>, StreamNumber>,
    /// Data streams that are complete in both directions.
    finished: Vec<StreamNumber>,
}

impl StreamMultiplexer {
    pub(super) fn new(max_packet_size: u32, max_topic_bytes: u16) -> Self {
        Self {
            max_packet_size,
            max_topic_bytes,
            version: Version::V5,
            topic_alias_maximum: 0,
            is_connected: false,
            next_stream: CONTROL_STREAM,
            streams: FoldHashMap::default(),
            exchanges: Exchanges::new(),
            sent: FoldHashMap::default(),
            outgoing_aliases: FoldHashMap::default(),
            subscriptions: FoldHashMap::default(),
            cached_routes: FoldHashMap::default(),
            finished: Vec::new(),
        }
    }

    /// Whether the client has logged in. Data streams are opened only then.
    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Adds a data stream.
    pub(super) fn open_stream(&mut self) -> StreamNumber {
        self.next_stream += 1;
        self.streams.insert(self.next_stream, DataStream::default());
        self.next_stream
    }

    /// Data streams whose last answer has been sent; each is returned once.
    pub(super) fn take_finished(&mut self) -> Vec<StreamNumber> {
        std::mem::take(&mut self.finished)
    }

    /// Records the version of CONNECT, the first packet of the control stream.
    pub(super) fn record_connect(&mut self, packet: &[u8]) {
        if let Ok(Some(frame)) = split_frame(packet, u32::MAX)
            && let Ok(Packet::Connect(connect)) =
                Packet::decode(frame, self.version, Direction::FromClient)
        {
            self.version = connect.version;
        }
    }

    /// Whether the beginning of a packet of the control stream can be passed on before the packet is complete: no other
    /// stream waits for its end, and its packet identifier is there.
    pub(super) fn may_pass_in_parts(&self, beginning: &[u8]) -> bool {
        let is_publish = beginning[0] >> 4 == PacketType::Publish as u8;
        let has_id = match packet_id_position(beginning) {
            Some((_, at)) => read_id(beginning, at).is_some(),
            // QoS 0 has none.
            None => beginning[0] & 0b0110 == 0,
        };
        self.streams.is_empty() && is_publish && has_id
    }

    /// Takes the beginning of a packet of the control stream, with at least its packet identifier, or all of it.
    /// Packets that are not valid are left to the session.
    pub(super) fn receive_control(&mut self, packet: &mut [u8]) {
        let Some((kind, at)) = packet_id_position(packet) else {
            return;
        };
        let Some(client_id) = read_id(packet, at).filter(|id| *id != 0) else {
            return;
        };
        let exchange = match kind {
            PacketType::Publish if packet[0] & 0b0110 == 0b0010 => ExchangeKind::Publish,
            PacketType::Publish => ExchangeKind::PublishOnce { is_released: false },
            PacketType::Subscribe | PacketType::Unsubscribe => {
                let filters = match self.subscriptions.is_empty() {
                    true => Vec::new(),
                    false => self.filters_of(packet),
                };
                match kind {
                    PacketType::Subscribe => {
                        // A subscription that is made again on the control stream moves there.
                        for filter in &filters {
                            self.subscriptions.remove(filter);
                        }
                        self.cached_routes.clear();
                        ExchangeKind::Subscribe(Vec::new())
                    }
                    _ => ExchangeKind::Unsubscribe(filters),
                }
            }
            PacketType::PubRel => {
                if let Some(id) = self.exchanges.release(CONTROL_STREAM, client_id) {
                    write_id(packet, at, id);
                    return;
                }
                if self.exchanges.get_mut(client_id).is_none() {
                    return;
                }
                // It is of an earlier connection, and a data stream uses its identifier.
                ExchangeKind::PublishOnce { is_released: true }
            }
            _ => return self.record_acknowledgement(kind, packet),
        };
        // Without a free identifier the session rejects the packet for its own reasons.
        if let Some((id, _)) = self.begin_exchange(CONTROL_STREAM, client_id, exchange) {
            write_id(packet, at, id);
        }
    }

    /// Takes complete packets of a data stream, and appends packets for the session.
    ///
    /// # Errors
    /// If a packet is not valid on a data stream. The caller must close the stream.
    pub(super) fn receive(
        &mut self,
        stream: StreamNumber,
        mut packets: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), StreamError> {
        let stream_state = self.streams.get(&stream);
        if stream_state.is_none_or(|state| state.is_closing) {
            return Ok(());
        }
        while let Some(frame) = split_frame(packets, self.max_packet_size)? {
            let (bytes, rest) = packets.split_at(frame.len);
            self.receive_packet(stream, frame, bytes, out)?;
            packets = rest;
        }
        Ok(())
    }

    fn receive_packet(
        &mut self,
        stream: StreamNumber,
        frame: Frame<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), StreamError> {
        let packet = Packet::decode(frame, self.version, Direction::FromClient)?;
        let at = out.len();
        let (client_id, exchange) = match packet {
            Packet::Publish(publish) => {
                return self.receive_publish(stream, publish, bytes, out);
            }
            Packet::Subscribe(subscribe) => {
                let filters = subscribe.filters.iter().map(|filter| filter.filter.into());
                let filters: Vec<Box<str>> = filters.collect();
                (subscribe.packet_id, ExchangeKind::Subscribe(filters))
            }
            Packet::Unsubscribe(unsubscribe) => {
                let filters = unsubscribe.filters.iter().map(Into::into).collect();
                (unsubscribe.packet_id, ExchangeKind::Unsubscribe(filters))
            }
            Packet::PubRel(ack) => {
                // The session answers a PUBREL without PUBLISH; the exchange leads the answer to this stream.
                let kind = ExchangeKind::PublishOnce { is_released: true };
                let id = match self.exchanges.release(stream, ack.packet_id) {
                    Some(id) => Some(id),
                    None => self
                        .begin_exchange(stream, ack.packet_id, kind)
                        .map(|(id, _)| id),
                };
                let id = id.ok_or(NO_PACKET_ID)?;
                let ack = Ack {
                    packet_id: id,
                    ..ack
                };
                ack.encode(PacketType::PubRel, self.version, out);
                return Ok(());
            }
            Packet::PubAck(_) | Packet::PubRec(_) | Packet::PubComp(_) => {
                self.record_acknowledgement(packet.packet_type(), bytes);
                out.extend_from_slice(bytes);
                return Ok(());
            }
            // The keep-alive is a matter of the control stream; as in EMQX, there is no answer.
            Packet::PingReq => return Ok(()),
            _ => {
                return Err(StreamError(
                    "CONNECT, DISCONNECT and AUTH belong to the control stream",
                ));
            }
        };
        let filters = match &exchange {
            ExchangeKind::Subscribe(filters) => filters.clone(),
            _ => Vec::new(),
        };
        let (id, _) = self
            .begin_exchange(stream, client_id, exchange)
            .ok_or(NO_PACKET_ID)?;
        // Retained messages may come before SUBACK.
        for filter in filters {
            self.subscriptions.insert(filter, stream);
            self.cached_routes.clear();
        }
        out.extend_from_slice(bytes);
        write_id(&mut out[at..], frame.len - frame.body.len(), id);
        Ok(())
    }

    fn receive_publish(
        &mut self,
        stream: StreamNumber,
        mut publish: Publish<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), StreamError> {
        let exchange = match publish.qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce => Some(ExchangeKind::Publish),
            QoS::ExactlyOnce => Some(ExchangeKind::PublishOnce { is_released: false }),
        };
        let alias = publish.properties.topic_alias();
        if let Some(alias) = alias {
            if alias == 0 || alias > self.topic_alias_maximum {
                return Err(StreamError("PUBLISH: topic alias out of range"));
            }
            if publish.topic.len() > usize::from(self.max_topic_bytes) {
                return Err(StreamError("PUBLISH: the topic name is too long"));
            }
            if let Some(stream) = self.streams.get_mut(&stream)
                && !publish.topic.is_empty()
            {
                stream.aliases.insert(alias, publish.topic.into());
            }
        }
        let has_alias = alias.is_some();
        if let Some(kind) = exchange {
            let is_once = publish.qos == QoS::ExactlyOnce;
            let begun = self.begin_exchange(stream, publish.packet_id, kind);
            let (id, is_new) = begun.ok_or(NO_PACKET_ID)?;
            if is_new && is_once && self.exchanges.is_first_pass() {
                // An earlier connection of the session may have left this identifier unreleased, which would make
                // this message a duplicate.
                put_ack(PacketType::PubRel, id, self.version, out);
                if let Some(exchange) = self.exchanges.get_mut(id) {
                    exchange.expects_release = true;
                }
            }
            publish.packet_id = id;
        }
        if !has_alias {
            let at = out.len();
            out.extend_from_slice(bytes);
            if publish.qos != QoS::AtMostOnce
                && let Some((_, position)) = packet_id_position(bytes)
            {
                write_id(&mut out[at..], position, publish.packet_id);
            }
            return Ok(());
        }
        let known = self.streams.get(&stream);
        let known = known.and_then(|stream| stream.aliases.get(&alias.unwrap_or(0)));
        let topic = known.ok_or(StreamError("PUBLISH: unknown topic alias"))?;
        let properties = without_alias(publish.properties);
        let resolved = Publish {
            topic,
            properties: properties.as_properties(),
            ..publish
        };
        resolved.encode(self.version, out);
        Ok(())
    }

    /// Takes a complete packet of the session. Its bytes for the stream are appended to `out`.
    pub(super) fn send(&mut self, packet: &mut [u8], out: &mut Vec<u8>) -> Destination {
        let Some(kind) = PacketType::from_first_byte(packet[0]) else {
            out.extend_from_slice(packet);
            return Destination::Stream(CONTROL_STREAM);
        };
        let destination = match kind {
            PacketType::ConnAck => {
                self.record_connack(packet);
                Destination::Stream(CONTROL_STREAM)
            }
            PacketType::Publish => return self.send_publish(packet, out),
            PacketType::PubRel => self.route_release(packet),
            PacketType::PubAck
            | PacketType::PubRec
            | PacketType::PubComp
            | PacketType::SubAck
            | PacketType::UnsubAck => self.complete_exchange(kind, packet),
            _ => Destination::Stream(CONTROL_STREAM),
        };
        if destination != Destination::Nowhere {
            out.extend_from_slice(packet);
        }
        destination
    }

    fn record_connack(&mut self, packet: &[u8]) {
        if let Some(Packet::ConnAck(connack)) = self.decode_own(packet) {
            self.is_connected = connack.code == ReasonCode::SUCCESS;
            self.topic_alias_maximum = connack.properties.topic_alias_maximum().unwrap_or(0);
        }
    }

    fn send_publish(&mut self, packet: &[u8], out: &mut Vec<u8>) -> Destination {
        let may_have_alias = self.version == Version::V5;
        if self.streams.is_empty() && !may_have_alias {
            out.extend_from_slice(packet);
            return Destination::Stream(CONTROL_STREAM);
        }
        let Some(Packet::Publish(publish)) = self.decode_own(packet) else {
            out.extend_from_slice(packet);
            return Destination::Stream(CONTROL_STREAM);
        };
        let alias = publish.properties.topic_alias();
        if let Some(alias) = alias
            && !publish.topic.is_empty()
        {
            self.outgoing_aliases
                .insert(alias, (publish.topic.into(), false));
        }
        if alias.is_none() && self.subscriptions.is_empty() {
            self.sent.remove(&publish.packet_id);
            out.extend_from_slice(packet);
            return Destination::Stream(CONTROL_STREAM);
        }
        let topic: Box<str> = match alias.and_then(|alias| self.outgoing_aliases.get(&alias)) {
            Some((topic, _)) => topic.clone(),
            None => publish.topic.into(),
        };
        let stream = self.stream_of(&topic);
        if stream == CONTROL_STREAM {
            self.sent.remove(&publish.packet_id);
        } else if publish.qos != QoS::AtMostOnce {
            let sent = SentMessage {
                stream,
                qos: publish.qos,
                is_received: false,
                is_dropped: false,
            };
            self.sent.insert(publish.packet_id, sent);
        }
        let Some(alias) = alias else {
            out.extend_from_slice(packet);
            return Destination::Stream(stream);
        };
        if stream == CONTROL_STREAM {
            let known = self.outgoing_aliases.get_mut(&alias);
            let is_known = known.is_some_and(|(_, is_known)| std::mem::replace(is_known, true));
            match is_known || !publish.topic.is_empty() {
                true => out.extend_from_slice(packet),
                // The alias was introduced on a data stream.
                false => Publish {
                    topic: &topic,
                    ..publish
                }
                .encode(self.version, out),
            }
            return Destination::Stream(stream);
        }
        let properties = without_alias(publish.properties);
        let complete = Publish {
            topic: &topic,
            properties: properties.as_properties(),
            ..publish
        };
        complete.encode(self.version, out);
        Destination::Stream(stream)
    }

    /// The data stream whose subscription a topic matches; of several, the one that was opened last.
    fn stream_of(&mut self, topic: &str) -> StreamNumber {
        if self.subscriptions.is_empty() {
            return CONTROL_STREAM;
        }
        if let Some(stream) = self.cached_routes.get(topic) {
            return *stream;
        }
        let matching = self.subscriptions.iter();
        let matching = matching.filter(|(filter, _)| filter_matches(topic_part(filter), topic));
        let stream = matching.map(|(_, stream)| *stream).max();
        let stream = stream.unwrap_or(CONTROL_STREAM);
        if self.cached_routes.len() >= MAX_CACHED_TOPICS {
            self.cached_routes.clear();
        }
        self.cached_routes.insert(topic.into(), stream);
        stream
    }

    /// PUBREL follows its PUBLISH.
    fn route_release(&mut self, packet: &[u8]) -> Destination {
        let id = packet_id_position(packet).and_then(|(_, at)| read_id(packet, at));
        let sent = id.and_then(|id| self.sent.get(&id));
        match sent.map(|sent| (sent.stream, sent.is_dropped)) {
            None => Destination::Stream(CONTROL_STREAM),
            Some((stream, false)) => Destination::Stream(stream),
            Some((_, true)) => {
                self.sent.remove(&id.unwrap_or(0));
                Destination::Nowhere
            }
        }
    }

    /// Assigns an answer of the session to the stream of the request.
    fn complete_exchange(&mut self, kind: PacketType, packet: &mut [u8]) -> Destination {
        let position = packet_id_position(packet);
        let found = position.and_then(|(_, at)| Some((at, read_id(packet, at)?)));
        let Some((at, id)) = found else {
            return Destination::Stream(CONTROL_STREAM);
        };
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return Destination::Stream(CONTROL_STREAM);
        };
        if kind == PacketType::PubComp && std::mem::take(&mut exchange.expects_release) {
            return Destination::Nowhere;
        }
        let (stream, client_id) = (exchange.stream, exchange.client_id);
        let is_rejected_pubrec = || {
            let reason = packet.get(at + 2).copied().unwrap_or(0);
            ReasonCode(reason).is_error()
        };
        if kind != PacketType::PubRec || is_rejected_pubrec() {
            self.end_exchange(id, packet);
        }
        match stream {
            None => Destination::Nowhere,
            Some(stream) => {
                write_id(packet, at, client_id);
                Destination::Stream(stream)
            }
        }
    }

    fn end_exchange(&mut self, id: u16, answer: &[u8]) {
        let Some(exchange) = self.exchanges.end(id) else {
            return;
        };
        match exchange.kind {
            ExchangeKind::Subscribe(filters) => {
                if let Some(Packet::SubAck(suback)) = self.decode_own(answer) {
                    for (filter, code) in filters.iter().zip(suback.codes) {
                        if *code >= 0x80
                            && self.subscriptions.get(filter).copied() == exchange.stream
                        {
                            self.subscriptions.remove(filter);
                        }
                    }
                    self.cached_routes.clear();
                }
            }
            ExchangeKind::Unsubscribe(filters) => {
                for filter in &filters {
                    self.subscriptions.remove(filter);
                }
                self.cached_routes.clear();
            }
            ExchangeKind::Publish | ExchangeKind::PublishOnce { .. } => {}
        }
        let Some(number) = exchange.stream else {
            return;
        };
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.exchanges -= 1;
            if stream.is_closing && stream.exchanges == 0 {
                self.streams.remove(&number);
                self.finished.push(number);
            }
        }
    }

    /// The client sends no more on a data stream. Its subscriptions end, and its unacknowledged messages are dropped.
    /// Appends packets for the session.
    pub(super) fn close_stream(&mut self, number: StreamNumber, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        if std::mem::replace(&mut stream.is_closing, true) {
            return;
        }
        let is_idle = stream.exchanges == 0;
        self.release_exchanges(number, out);
        self.acknowledge_sent(number, out);
        let owned = self.subscriptions.iter();
        let owned = owned.filter(|(_, owner)| **owner == number);
        let filters: Vec<Box<str>> = owned.map(|(filter, _)| filter.clone()).collect();
        for filters in filters.chunks(FILTERS_PER_UNSUBSCRIBE) {
            let Some(id) = self.exchanges.begin_unsubscribe() else {
                break;
            };
            let mut unsubscribe = UnsubscribeBuf::new(id);
            for filter in filters {
                // Messages that are under way go to the control stream.
                self.subscriptions.remove(filter);
                unsubscribe.push(filter);
            }
            unsubscribe.encode(Properties::EMPTY, self.version, out);
        }
        self.cached_routes.clear();
        if is_idle {
            self.streams.remove(&number);
            self.finished.push(number);
        }
    }

    /// The connection is lost. Appends packets for the session, after which no identifier of a data stream is in use.
    pub(super) fn close_connection(&mut self, out: &mut Vec<u8>) {
        let streams: Vec<StreamNumber> = self.streams.keys().copied().collect();
        for stream in streams {
            self.release_exchanges(stream, out);
        }
    }

    /// Sends the PUBREL that the client has not sent.
    fn release_exchanges(&mut self, stream: StreamNumber, out: &mut Vec<u8>) {
        for id in self.exchanges.release_all(stream) {
            put_ack(PacketType::PubRel, id, self.version, out);
        }
    }

    /// Acknowledges messages that were sent on a stream that has ended: its client cannot acknowledge them any more.
    fn acknowledge_sent(&mut self, stream: StreamNumber, out: &mut Vec<u8>) {
        let version = self.version;
        self.sent.retain(|id, sent| {
            if sent.stream != stream || sent.is_dropped {
                return true;
            }
            sent.is_dropped = true;
            if sent.qos == QoS::AtLeastOnce {
                put_ack(PacketType::PubAck, *id, version, out);
                return false;
            }
            if !sent.is_received {
                put_ack(PacketType::PubRec, *id, version, out);
            }
            put_ack(PacketType::PubComp, *id, version, out);
            // The session's PUBREL goes nowhere.
            !sent.is_received
        });
    }

    /// The session's identifier for one of a stream, and whether it is new. `None`: too much waits for an answer.
    fn begin_exchange(
        &mut self,
        stream: StreamNumber,
        client_id: u16,
        kind: ExchangeKind,
    ) -> Option<(u16, bool)> {
        let begun = self.exchanges.begin(stream, client_id, kind)?;
        if let (Some(stream), (_, true)) = (self.streams.get_mut(&stream), begun) {
            stream.exchanges += 1;
        }
        Some(begun)
    }

    /// The client has acknowledged a message of the session.
    fn record_acknowledgement(&mut self, kind: PacketType, packet: &[u8]) {
        if self.sent.is_empty() {
            return;
        }
        let Some((_, at)) = packet_id_position(packet) else {
            return;
        };
        let is_error = || ReasonCode(packet.get(at + 2).copied().unwrap_or(0)).is_error();
        let Some(id) = read_id(packet, at) else {
            return;
        };
        if kind != PacketType::PubRec || is_error() {
            self.sent.remove(&id);
        } else if let Some(sent) = self.sent.get_mut(&id) {
            sent.is_received = true;
        }
    }

    fn filters_of(&self, packet: &[u8]) -> Vec<Box<str>> {
        let frame = split_frame(packet, u32::MAX).ok().flatten();
        let decode = |frame| Packet::decode(frame, self.version, Direction::FromClient).ok();
        match frame.and_then(decode) {
            Some(Packet::Subscribe(it)) => it.filters.iter().map(|it| it.filter.into()).collect(),
            Some(Packet::Unsubscribe(it)) => it.filters.iter().map(Into::into).collect(),
            _ => Vec::new(),
        }
    }

    fn decode_own<'a>(&self, packet: &'a [u8]) -> Option<Packet<'a>> {
        let frame = split_frame(packet, u32::MAX).ok()??;
        Packet::decode(frame, self.version, Direction::FromServer).ok()
    }
}

const NO_PACKET_ID: StreamError = StreamError("too many packets wait for an acknowledgement");

/// The part of a filter that topics match.
fn topic_part(filter: &str) -> &str {
    if let Some(shared) = filter.strip_prefix("$share/") {
        return shared.split_once('/').map_or(shared, |(_, filter)| filter);
    }
    let rest = filter.strip_prefix("$queue/");
    rest.or_else(|| filter.strip_prefix("$exclusive/"))
        .unwrap_or(filter)
}

fn without_alias(properties: Properties<'_>) -> PropertiesBuf {
    let mut kept = PropertiesBuf::new();
    for property in properties.iter() {
        if !matches!(property, Property::TopicAlias(_)) {
            kept.push(property);
        }
    }
    kept
}

fn put_ack(kind: PacketType, packet_id: u16, version: Version, out: &mut Vec<u8>) {
    let ack = Ack {
        packet_id,
        reason: ReasonCode::SUCCESS,
        properties: Properties::EMPTY,
    };
    ack.encode(kind, version, out);
}
