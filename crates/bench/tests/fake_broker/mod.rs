//! A small, slow, obviously right broker in this process, with faults on demand: a thread for each connection, every
//! message matched against every filter.

#![allow(clippy::unwrap_used)] // it is a test, though no `#[test]` function

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mqtt::{
    Ack, ConnAck, Direction, Packet, PacketType, Properties, Publish, QoS, ReasonCode, SubAck,
    Version,
};

/// What the broker does wrong; 0 is never.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Every so many messages, one is lost.
    pub(crate) lose_every: u64,
    /// Every so many messages, one is delivered twice.
    pub(crate) repeat_every: u64,
    /// Every so many messages, one is held back until the next has been delivered.
    pub(crate) delay_every: u64,
    /// Every so many connections, one is refused.
    pub(crate) refuse_every: u64,
    /// After so many messages, the publisher's connection is closed.
    pub(crate) close_after: u64,
    /// Acknowledges with a reason code that says no, in version 5.
    pub(crate) deny: bool,
}

/// How clients reach it.
#[derive(Clone)]
pub(crate) enum Transport {
    Tcp,
    Tls(Arc<rustls::ServerConfig>),
    WebSocket,
}

struct FakeBrokerState {
    faults: Faults,
    transport: Transport,
    stop: AtomicBool,
    connections: AtomicU64,
    messages: AtomicU64,
    clients: Mutex<HashMap<u64, Client>>,
    /// Sessions of clients that are away, by client identifier.
    away: Mutex<HashMap<String, AbsentSession>>,
    delayed: Mutex<Option<Message>>,
}

struct Client {
    filters: Vec<(String, QoS)>,
    inbox: Sender<Message>,
}

struct AbsentSession {
    filters: Vec<(String, QoS)>,
    queue: Vec<Message>,
}

#[derive(Clone)]
struct Message {
    topic: String,
    payload: Arc<[u8]>,
    qos: QoS,
}

/// A running broker; stops accepting when dropped.
pub(crate) struct FakeBroker {
    pub(crate) address: SocketAddr,
    shared: Arc<FakeBrokerState>,
}

impl FakeBroker {
    pub(crate) fn start(faults: Faults, transport: Transport) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(FakeBrokerState {
            faults,
            transport,
            stop: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            clients: Mutex::default(),
            away: Mutex::default(),
            delayed: Mutex::default(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stop.load(Ordering::Relaxed) {
                    return;
                }
                let (shared, stream) = (accepting.clone(), stream.unwrap());
                std::thread::spawn(move || {
                    let number = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
                    // How a connection ends is the client's business.
                    let mut connection = Connection::new(shared.clone(), stream, number);
                    if let Ok(connection) = &mut connection {
                        let _ = connection.run();
                        connection.go_away();
                    }
                    shared.clients.lock().unwrap().remove(&number);
                });
            }
        });
        Self { address, shared }
    }
}

impl Drop for FakeBroker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

struct Connection {
    shared: Arc<FakeBrokerState>,
    stream: Box<dyn Stream>,
    websocket: Option<ws::Decoder>,
    number: u64,
    version: Version,
    inbox: Receiver<Message>,
    client_id: String,
    next_id: u16,
    out: Vec<u8>,
    /// The client's identifier, if its session is to stay.
    lasting: Option<String>,
}

fn invalid(reason: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}

impl Connection {
    fn new(shared: Arc<FakeBrokerState>, mut stream: TcpStream, number: u64) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (sender, inbox) = channel();
        let client = Client {
            filters: Vec::new(),
            inbox: sender,
        };
        shared.clients.lock().unwrap().insert(number, client);
        let is_websocket = matches!(shared.transport, Transport::WebSocket);
        if is_websocket {
            open_websocket(&mut stream)?;
        }
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        let stream: Box<dyn Stream> = match &shared.transport {
            Transport::Tls(config) => {
                let tls = rustls::ServerConnection::new(config.clone()).map_err(invalid)?;
                Box::new(rustls::StreamOwned::new(tls, stream))
            }
            Transport::Tcp | Transport::WebSocket => Box::new(stream),
        };
        let options = ws::DecoderOptions::byte_stream(ws::Role::Server);
        Ok(Self {
            shared,
            stream,
            websocket: is_websocket.then(|| ws::Decoder::new(options)),
            number,
            version: Version::V311,
            inbox,
            client_id: String::new(),
            next_id: 0,
            out: Vec::new(),
            lasting: None,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let (mut raw, mut plain) = (Vec::new(), Vec::new());
        let mut buf = vec![0; 65_536];
        loop {
            self.deliver();
            self.write()?;
            match self.stream.read(&mut buf) {
                Ok(0) => return Ok(()),
                Ok(read) => raw.extend_from_slice(&buf[..read]),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    if self.shared.stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            self.unwrap(&mut raw, &mut plain)?;
            let mut at = 0;
            while let Some(frame) = mqtt::split_frame(&plain[at..], u32::MAX).map_err(invalid)? {
                at += frame.len;
                let packet =
                    Packet::decode(frame, self.version, Direction::FromClient).map_err(invalid)?;
                self.handle(packet)?;
            }
            plain.drain(..at);
        }
    }

    /// Moves MQTT bytes from `raw` to `plain`.
    fn unwrap(&mut self, raw: &mut Vec<u8>, plain: &mut Vec<u8>) -> io::Result<()> {
        let Some(decoder) = &mut self.websocket else {
            plain.append(raw);
            return Ok(());
        };
        let mut at = 0;
        loop {
            let step = decoder.decode(&mut raw[at..]).map_err(invalid)?;
            at += step.consumed;
            match step.event {
                Some(ws::DecoderEvent::Data { chunk, .. }) => plain.extend_from_slice(chunk),
                Some(_) => {}
                None => break,
            }
        }
        raw.drain(..at);
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.out);
        if self.websocket.is_some() {
            // Several frames, so that packets are cut anywhere, and a ping in between.
            let mut framed = Vec::new();
            for chunk in bytes.chunks(1000) {
                ws::encode_frame(ws::Opcode::Binary, chunk, None, &mut framed);
                ws::encode_frame(ws::Opcode::Ping, b"?", None, &mut framed);
            }
            bytes = framed;
        }
        self.stream.write_all(&bytes)?;
        self.stream.flush()
    }

    fn send(&mut self, packet: Packet<'_>) {
        packet.encode(self.version, &mut self.out);
    }

    fn ack(&mut self, kind: PacketType, packet_id: u16) {
        let denies = self.shared.faults.deny
            && self.version == Version::V5
            && matches!(kind, PacketType::PubAck | PacketType::PubRec);
        let ack = Ack {
            packet_id,
            reason: if denies {
                ReasonCode::NOT_AUTHORIZED
            } else {
                ReasonCode::SUCCESS
            },
            properties: Properties::EMPTY,
        };
        self.send(match kind {
            PacketType::PubAck => Packet::PubAck(ack),
            PacketType::PubRec => Packet::PubRec(ack),
            PacketType::PubRel => Packet::PubRel(ack),
            _ => Packet::PubComp(ack),
        });
    }

    fn handle(&mut self, packet: Packet<'_>) -> io::Result<()> {
        match packet {
            Packet::Connect(connect) => {
                self.version = connect.version;
                self.client_id = connect.client_id.to_owned();
                let every = self.shared.faults.refuse_every;
                let is_refused = every > 0 && self.number.is_multiple_of(every);
                let returning = self.begin_session(&connect);
                self.send(Packet::ConnAck(ConnAck {
                    session_present: returning,
                    code: if is_refused {
                        ReasonCode::NOT_AUTHORIZED
                    } else {
                        ReasonCode::SUCCESS
                    },
                    properties: Properties::EMPTY,
                }));
                if is_refused {
                    self.write()?;
                    return Err(invalid("refused"));
                }
            }
            Packet::Subscribe(subscribe) => {
                let filters: Vec<(String, QoS)> = subscribe
                    .filters
                    .iter()
                    .map(|f| (f.filter.to_owned(), f.options.qos))
                    .collect();
                let codes: Vec<u8> = filters.iter().map(|(_, qos)| *qos as u8).collect();
                let mut clients = self.shared.clients.lock().unwrap();
                if let Some(client) = clients.get_mut(&self.number) {
                    client.filters.extend(filters);
                }
                drop(clients);
                self.send(Packet::SubAck(SubAck {
                    packet_id: subscribe.packet_id,
                    properties: Properties::EMPTY,
                    codes: &codes,
                }));
            }
            Packet::Publish(publish) => self.publish(publish)?,
            Packet::PubRec(ack) => self.ack(PacketType::PubRel, ack.packet_id),
            Packet::PubRel(ack) => self.ack(PacketType::PubComp, ack.packet_id),
            Packet::PubAck(_) | Packet::PubComp(_) => {}
            Packet::PingReq => self.send(Packet::PingResp),
            Packet::Disconnect(_) => return Err(invalid("the client left")),
            _ => return Err(invalid("not expected from a load generator")),
        }
        Ok(())
    }

    /// Takes up the session there is, or forgets it; whether there was one to take up.
    fn begin_session(&mut self, connect: &mqtt::Connect<'_>) -> bool {
        let client_id = connect.client_id.to_owned();
        let away = self.shared.away.lock().unwrap().remove(&client_id);
        if connect.clean_start {
            return false;
        }
        self.lasting = Some(client_id);
        let Some(away) = away else {
            return false;
        };
        let mut clients = self.shared.clients.lock().unwrap();
        let client = clients.get_mut(&self.number).unwrap();
        client.filters = away.filters;
        for message in away.queue {
            client.inbox.send(message).unwrap();
        }
        true
    }

    /// Keeps a lasting session with what has not been delivered.
    fn go_away(&mut self) {
        let Some(client_id) = self.lasting.take() else {
            return;
        };
        let mut clients = self.shared.clients.lock().unwrap();
        let filters = clients.remove(&self.number).unwrap().filters;
        let queue = self.inbox.try_iter().collect();
        let mut away = self.shared.away.lock().unwrap();
        away.insert(client_id, AbsentSession { filters, queue });
    }

    fn publish(&mut self, publish: Publish<'_>) -> io::Result<()> {
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.ack(PacketType::PubAck, publish.packet_id),
            QoS::ExactlyOnce => self.ack(PacketType::PubRec, publish.packet_id),
        }
        let faults = self.shared.faults;
        if faults.deny && publish.qos != QoS::AtMostOnce {
            return Ok(());
        }
        let number = self.shared.messages.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = |every: u64| every > 0 && number.is_multiple_of(every);
        if faults.close_after > 0 && number > faults.close_after {
            return Err(invalid("enough"));
        }
        if is_due(faults.lose_every) {
            return Ok(());
        }
        let mut message = Message {
            topic: publish.topic.to_owned(),
            payload: publish.payload.into(),
            qos: publish.qos,
        };
        // As a rule does that publishes what it hears of sensors.
        if publish.topic.starts_with("sensor/") {
            let payload = String::from_utf8(publish.payload.to_vec()).map_err(invalid)?;
            let output = serde_json::json!({"topic": publish.topic, "payload": payload});
            message.topic = format!("bench/out/{}", self.client_id);
            message.payload = output.to_string().into_bytes().into();
        }
        if is_due(faults.delay_every) {
            *self.shared.delayed.lock().unwrap() = Some(message);
            return Ok(());
        }
        let delayed = self.shared.delayed.lock().unwrap().take();
        self.route(&message);
        if is_due(faults.repeat_every) {
            self.route(&message);
        }
        if let Some(delayed) = delayed {
            self.route(&delayed);
        }
        Ok(())
    }

    fn route(&self, message: &Message) {
        self.keep(message);
        for client in self.shared.clients.lock().unwrap().values() {
            let granted = client
                .filters
                .iter()
                .filter(|(filter, _)| mqtt::filter_matches(filter, &message.topic))
                .map(|(_, qos)| *qos)
                .max();
            if let Some(qos) = granted {
                let mut message = message.clone();
                message.qos = message.qos.min(qos);
                // A client that has just gone gets nothing.
                let _ = client.inbox.send(message);
            }
        }
    }

    /// Also for those who are away, at QoS 1 and 2.
    fn keep(&self, message: &Message) {
        for away in self.shared.away.lock().unwrap().values_mut() {
            let mut filters = away.filters.iter();
            if filters.any(|(filter, _)| mqtt::filter_matches(filter, &message.topic)) {
                away.queue.push(message.clone());
            }
        }
    }

    fn deliver(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            let mut packet_id = 0;
            if message.qos != QoS::AtMostOnce {
                self.next_id = self.next_id.checked_add(1).unwrap_or(1);
                packet_id = self.next_id;
            }
            self.send(Packet::Publish(Publish {
                dup: false,
                qos: message.qos,
                retain: false,
                topic: &message.topic,
                packet_id,
                properties: Properties::EMPTY,
                payload: &message.payload,
            }));
        }
    }
}

fn open_websocket(stream: &mut TcpStream) -> io::Result<()> {
    let options = ws::ServerOptions::mqtt("/mqtt");
    let mut handshake = ws::ServerHandshake::new();
    let mut seen = Vec::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        seen.push(byte[0]);
        match handshake.feed(&options, &seen) {
            ws::ServerHandshakeStep::Accepted(accepted) => {
                return stream.write_all(&accepted.response);
            }
            ws::ServerHandshakeStep::Rejected(rejected) => return Err(invalid(rejected.reason)),
            _ => {}
        }
    }
}
