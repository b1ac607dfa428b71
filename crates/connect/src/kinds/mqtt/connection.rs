//! One connection to an MQTT broker. It is never reopened: after an error a new one replaces it, so that no packet in flight on the
//! old one arrives after a retry.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use mqtt::{
    Ack, ConnAck, Connect, Direction, Packet, Properties, PropertiesBuf, Property, QoS, ReasonCode,
    SubscribeBuf, SubscriptionOptions, Version, split_frame,
};
use outbound::stream::{self, OutboundStream};
use rustls::ClientConfig;
use secret::Secret;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::message::source_message;
use crate::connector::{ConnectorError, SourceMessage};

const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
const KEEP_ALIVE_S: u16 = 30;
/// Ping interval; after another interval without any packet, the broker is considered unreachable.
const PING_EVERY: Duration = Duration::from_secs(15);
/// The largest packet that MQTT allows.
const MAX_PACKET_BYTES: u32 = 268_435_460;
/// Receive maximum towards us, and in-flight limit towards a broker that does not state its own.
const IN_FLIGHT: u16 = 1000;

/// A broker, and the credentials for it.
pub(super) struct MqttServer {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) version: Version,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl MqttServer {
    fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Options of the session.
pub(super) struct SessionOptions<'a> {
    pub(super) client_id: &'a str,
    /// How long the broker keeps subscriptions and messages while disconnected; 0 for a clean session.
    pub(super) expiry_s: u32,
}

/// A message from the broker, and the packet id to acknowledge once it is processed.
pub(super) type IncomingMessage = (SourceMessage, Option<u16>);

pub(super) struct MqttConnection {
    version: Version,
    /// The largest packet that the broker accepts.
    pub(super) max_packet: usize,
    pub(super) max_qos: QoS,
    pub(super) supports_retain: bool,
    writer: Arc<tokio::sync::Mutex<WriteHalf<OutboundStream>>>,
    shared: Arc<SharedConnectionState>,
    window: Arc<Semaphore>,
    incoming: Mutex<Option<mpsc::Receiver<IncomingMessage>>>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct SharedConnectionState {
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    /// Why the connection ended.
    close_reason: Option<String>,
    last_id: u16,
    next_batch: u64,
    /// For each packet id in flight, its batch and its position in it.
    in_flight: HashMap<u16, (u64, usize)>,
    batches: HashMap<u64, PendingBatch>,
    /// Callers that wait for PINGRESP, in order.
    pings: VecDeque<oneshot::Sender<()>>,
    subscribed: Option<oneshot::Sender<Vec<u8>>>,
}

struct PendingBatch {
    codes: Vec<ReasonCode>,
    missing: usize,
    done: oneshot::Sender<Vec<ReasonCode>>,
}

impl SharedConnectionState {
    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionState {
    /// An unused packet id; one always exists, because far fewer are in flight.
    fn allocate_packet_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.in_flight.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }

    fn close(&mut self, why: &str) {
        self.close_reason.get_or_insert_with(|| why.to_owned());
        // Waiting callers find their sender dropped.
        self.in_flight.clear();
        self.batches.clear();
        self.pings.clear();
        self.subscribed = None;
    }
}

impl MqttConnection {
    /// Connects and logs in.
    pub(super) async fn open(
        remote: &MqttServer,
        wish: &SessionOptions<'_>,
    ) -> Result<Self, ConnectorError> {
        let opening = tokio::time::timeout(GREETING_TIMEOUT, Self::handshake(remote, wish));
        match opening.await {
            Ok(result) => result,
            Err(_) => {
                let s = GREETING_TIMEOUT.as_secs();
                let what = format!(
                    "{} did not accept the login within {s} seconds",
                    remote.address()
                );
                Err(ConnectorError::transient(what))
            }
        }
    }

    async fn handshake(
        remote: &MqttServer,
        wish: &SessionOptions<'_>,
    ) -> Result<Self, ConnectorError> {
        let tcp = stream::connect(&remote.host, remote.port).await?;
        let mut stream = match &remote.tls {
            Some(config) => stream::wrap_tls(tcp, &remote.host, config).await?,
            None => OutboundStream::Plain(tcp),
        };
        let version = remote.version;
        let mut properties = PropertiesBuf::new();
        properties.push(Property::ReceiveMaximum(IN_FLIGHT));
        if wish.expiry_s > 0 {
            properties.push(Property::SessionExpiryInterval(wish.expiry_s));
        }
        let hello = Packet::Connect(Connect {
            version,
            clean_start: wish.expiry_s == 0,
            keep_alive_s: KEEP_ALIVE_S,
            client_id: wish.client_id,
            username: remote.username.as_deref(),
            password: remote.password.as_ref().map(|p| p.reveal().as_bytes()),
            will: None,
            properties: properties.as_properties(),
            is_bridge: false,
        });
        let mut bytes = Vec::new();
        hello.encode(version, &mut bytes);
        stream
            .write_all(&bytes)
            .await
            .map_err(ConnectorError::transient)?;
        stream.flush().await.map_err(ConnectorError::transient)?;

        let mut buffer = BytesMut::new();
        let welcome = loop {
            let read = stream.read_buf(&mut buffer).await;
            if read.map_err(ConnectorError::transient)? == 0 {
                let what = format!("{} closed the connection at once", remote.address());
                return Err(ConnectorError::transient(what));
            }
            if let Some(welcome) = read_connack(&mut buffer, version)? {
                break welcome;
            }
        };
        let (reader, writer) = tokio::io::split(stream);
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let shared = Arc::new(SharedConnectionState::default());
        let window = Arc::new(Semaphore::new(welcome.window.into()));
        let (sender, incoming) = mpsc::channel(IN_FLIGHT.into());
        let reading = PacketReader {
            version,
            shared: shared.clone(),
            window: window.clone(),
            incoming: sender,
        };
        let tasks = [
            tokio::spawn(reading.run(reader, buffer)),
            tokio::spawn(run_ping(writer.clone(), shared.clone())),
        ];
        Ok(Self {
            version,
            max_packet: welcome.max_packet,
            max_qos: welcome.max_qos,
            supports_retain: welcome.retains,
            writer,
            shared,
            window,
            incoming: Mutex::new(Some(incoming)),
            tasks,
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.state().close_reason.is_some()
    }

    pub(super) fn close(&self, why: &str) {
        self.shared.state().close(why);
        self.window.close();
        for task in &self.tasks {
            task.abort();
        }
    }

    pub(super) fn close_reason(&self) -> ConnectorError {
        let ended = self.shared.state().close_reason.clone();
        ConnectorError::transient(ended.unwrap_or_else(|| "the connection is over".into()))
    }

    async fn write(&self, bytes: &[u8]) -> Result<(), ConnectorError> {
        let mut writer = self.writer.lock().await;
        let mut written = writer.write_all(bytes).await;
        if written.is_ok() {
            written = writer.flush().await;
        }
        written.map_err(|error| {
            self.close(&format!("the connection broke: {error}"));
            self.close_reason()
        })
    }

    /// Publishes with QoS 1, in order; `encode` appends the message at an index with the given packet id. Returns the reason
    /// code of each message.
    pub(super) async fn publish(
        &self,
        count: usize,
        encode: impl Fn(usize, u16, &mut Vec<u8>),
    ) -> Result<Vec<ReasonCode>, ConnectorError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (done, answered) = oneshot::channel();
        let batch = {
            let mut state = self.shared.state();
            state.next_batch += 1;
            let batch = state.next_batch;
            let waiting = PendingBatch {
                codes: vec![ReasonCode::SUCCESS; count],
                missing: count,
                done,
            };
            if state.close_reason.is_none() {
                state.batches.insert(batch, waiting);
            }
            batch
        };
        let whole = WriteGuard::arm(self);
        let mut at = 0;
        while at < count {
            // The broker limits the number in flight.
            let permit = self
                .window
                .acquire()
                .await
                .map_err(|_| self.close_reason())?;
            permit.forget();
            let mut allowed = 1;
            while at + allowed < count && allowed < usize::from(IN_FLIGHT) {
                match self.window.try_acquire() {
                    Ok(permit) => permit.forget(),
                    Err(_) => break,
                }
                allowed += 1;
            }
            let mut bytes = Vec::new();
            {
                let mut state = self.shared.state();
                if state.close_reason.is_some() {
                    break;
                }
                for place in at..at + allowed {
                    let id = state.allocate_packet_id();
                    state.in_flight.insert(id, (batch, place));
                    encode(place, id, &mut bytes);
                }
            }
            self.write(&bytes).await?;
            at += allowed;
        }
        let answered = answered.await;
        whole.disarm();
        answered.map_err(|_| self.close_reason())
    }

    /// Sends packets without acknowledgement, and waits until the broker has read them.
    pub(super) async fn send(&self, mut bytes: Vec<u8>) -> Result<(), ConnectorError> {
        Packet::PingReq.encode(self.version, &mut bytes);
        let (pong, answered) = oneshot::channel();
        let whole = WriteGuard::arm(self);
        {
            // Answers come in the order of requests: queue entry and write must not be separated.
            let mut writer = self.writer.lock().await;
            {
                let mut state = self.shared.state();
                if state.close_reason.is_none() {
                    state.pings.push_back(pong);
                }
            }
            let mut written = writer.write_all(&bytes).await;
            if written.is_ok() {
                written = writer.flush().await;
            }
            if let Err(error) = written {
                self.close(&format!("the connection broke: {error}"));
            }
        }
        let answered = answered.await;
        whole.disarm();
        answered.map_err(|_| self.close_reason())
    }

    /// Subscribes; [`MqttConnection::take_incoming`] yields the messages.
    pub(super) async fn subscribe(
        &self,
        filters: &[(String, SubscriptionOptions)],
    ) -> Result<(), ConnectorError> {
        let (sender, answered) = oneshot::channel();
        self.shared.state().subscribed = Some(sender);
        let mut packet = SubscribeBuf::new(1);
        for (filter, options) in filters {
            packet.push(filter, *options);
        }
        let mut bytes = Vec::new();
        packet.encode(Properties::EMPTY, self.version, &mut bytes);
        self.write(&bytes).await?;
        let answered = tokio::time::timeout(GREETING_TIMEOUT, answered).await;
        let codes = match answered {
            Ok(Ok(codes)) => codes,
            Ok(Err(_)) => return Err(self.close_reason()),
            Err(_) => {
                return Err(ConnectorError::transient(
                    "the broker does not answer a SUBSCRIBE",
                ));
            }
        };
        let refused = filters.iter().zip(&codes).find(|(_, code)| **code >= 0x80);
        match refused {
            None if codes.len() == filters.len() => Ok(()),
            None => Err(ConnectorError::transient(
                "the broker answers some subscriptions only",
            )),
            Some(((filter, _), code)) => {
                let what = format!("subscription {filter:?}: {}", ReasonCode(*code));
                Err(ConnectorError::transient(what))
            }
        }
    }

    /// The messages of the subscriptions; the channel closes with the connection. Can be taken once.
    pub(super) fn take_incoming(&self) -> Option<mpsc::Receiver<IncomingMessage>> {
        let mut slot = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take()
    }

    pub(super) async fn acknowledge(&self, packet_id: u16) -> Result<(), ConnectorError> {
        let mut bytes = Vec::new();
        let ack = Packet::PubAck(Ack {
            packet_id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        });
        ack.encode(self.version, &mut bytes);
        self.write(&bytes).await
    }

    /// Sends DISCONNECT.
    pub(super) async fn disconnect(&self) {
        let mut bytes = Vec::new();
        let bye = Packet::Disconnect(mqtt::Disconnect {
            reason: ReasonCode::NORMAL_DISCONNECTION,
            properties: Properties::EMPTY,
        });
        bye.encode(self.version, &mut bytes);
        let _ = self.write(&bytes).await;
        self.close("disconnected by this node");
    }
}

impl Drop for MqttConnection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Closes the connection if a write is abandoned: a partial packet would corrupt what follows.
struct WriteGuard<'a>(Option<&'a MqttConnection>);

impl<'a> WriteGuard<'a> {
    fn arm(link: &'a MqttConnection) -> Self {
        Self(Some(link))
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            link.close("a write was interrupted");
        }
    }
}

/// Limits of the broker from CONNACK.
struct ConnackLimits {
    window: u16,
    max_packet: usize,
    max_qos: QoS,
    retains: bool,
}

/// Removes CONNACK from the buffer, if complete.
fn read_connack(
    buffer: &mut BytesMut,
    version: Version,
) -> Result<Option<ConnackLimits>, ConnectorError> {
    let wrong = |error: mqtt::Error| {
        ConnectorError::transient(format!("not an MQTT broker: {}", error.detail))
    };
    let Some(frame) = split_frame(buffer, MAX_PACKET_BYTES).map_err(wrong)? else {
        return Ok(None);
    };
    let length = frame.len;
    let packet = Packet::decode(frame, version, Direction::FromServer).map_err(wrong)?;
    let Packet::ConnAck(ConnAck {
        code, properties, ..
    }) = packet
    else {
        return Err(ConnectorError::transient(
            "not an MQTT broker: the first packet is not CONNACK",
        ));
    };
    if code.is_error() {
        return Err(ConnectorError::transient(format!(
            "the broker refused the connection: {code}"
        )));
    }
    let max_packet = properties.maximum_packet_size();
    let max_qos = properties.maximum_qos().map(QoS::try_from);
    let welcome = ConnackLimits {
        window: properties
            .receive_maximum()
            .unwrap_or(IN_FLIGHT)
            .min(10 * IN_FLIGHT),
        max_packet: max_packet.unwrap_or(MAX_PACKET_BYTES) as usize,
        max_qos: max_qos.and_then(Result::ok).unwrap_or(QoS::ExactlyOnce),
        retains: properties.retain_available().unwrap_or(true),
    };
    buffer.advance(length);
    Ok(Some(welcome))
}

async fn run_ping(
    writer: Arc<tokio::sync::Mutex<WriteHalf<OutboundStream>>>,
    shared: Arc<SharedConnectionState>,
) {
    loop {
        tokio::time::sleep(PING_EVERY).await;
        let mut writer = writer.lock().await;
        // Nothing waits for this answer.
        shared.state().pings.push_back(oneshot::channel().0);
        let mut bytes = Vec::new();
        Packet::PingReq.encode(Version::V311, &mut bytes);
        let _ = writer.write_all(&bytes).await;
        let _ = writer.flush().await;
    }
}

/// Reads packets from the broker.
struct PacketReader {
    version: Version,
    shared: Arc<SharedConnectionState>,
    window: Arc<Semaphore>,
    incoming: mpsc::Sender<IncomingMessage>,
}

impl PacketReader {
    async fn run(self, mut reader: ReadHalf<OutboundStream>, mut buffer: BytesMut) {
        let why = loop {
            match self.handle(&mut buffer).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(why) => break why,
            }
            match tokio::time::timeout(PING_EVERY * 2, reader.read_buf(&mut buffer)).await {
                Ok(Ok(0)) => break "the broker closed the connection".into(),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => break format!("the connection broke: {error}"),
                Err(_) => break "the broker does not answer any more".to_owned(),
            }
        };
        self.shared.state().close(&why);
        // Callers that wait for room are notified that there will be none.
        self.window.close();
    }

    /// Removes one packet from the buffer and handles it; returns whether there was a complete one.
    async fn handle(&self, buffer: &mut BytesMut) -> Result<bool, String> {
        let wrong = |error: mqtt::Error| format!("the broker sent invalid MQTT: {}", error.detail);
        let Some(frame) = split_frame(buffer, MAX_PACKET_BYTES).map_err(wrong)? else {
            return Ok(false);
        };
        let length = frame.len;
        let packet = Packet::decode(frame, self.version, Direction::FromServer).map_err(wrong)?;
        let mut received = None;
        match packet {
            Packet::PubAck(ack) => self.handle_ack(ack),
            Packet::PingResp => {
                if let Some(asker) = self.shared.state().pings.pop_front() {
                    let _ = asker.send(());
                }
            }
            Packet::SubAck(answer) => {
                if let Some(asker) = self.shared.state().subscribed.take() {
                    let _ = asker.send(answer.codes.to_vec());
                }
            }
            Packet::Publish(publish) => {
                let id = (publish.qos != QoS::AtMostOnce).then_some(publish.packet_id);
                received = Some((source_message(&publish), id));
            }
            Packet::Disconnect(bye) => {
                return Err(format!("the broker ended the connection: {}", bye.reason));
            }
            // All other packets need no handling.
            _ => {}
        }
        buffer.advance(length);
        if let Some(incoming) = received {
            // A closed channel means that the receiver was dropped.
            let _ = self.incoming.send(incoming).await;
        }
        Ok(true)
    }

    fn handle_ack(&self, ack: Ack<'_>) {
        let mut state = self.shared.state();
        let Some((batch, place)) = state.in_flight.remove(&ack.packet_id) else {
            return;
        };
        self.window.add_permits(1);
        let Some(waiting) = state.batches.get_mut(&batch) else {
            return;
        };
        waiting.codes[place] = ack.reason;
        waiting.missing -= 1;
        if waiting.missing == 0
            && let Some(waiting) = state.batches.remove(&batch)
        {
            let _ = waiting.done.send(waiting.codes);
        }
    }
}
