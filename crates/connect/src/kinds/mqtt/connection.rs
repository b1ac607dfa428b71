//! One connection to an MQTT broker. It is never reopened. After an error a new one replaces it, so that no packet in
//! flight on the old one arrives after a retry.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mqtt::{
    Connect, Packet, PropertiesBuf, Property, QoS, ReasonCode, SubscriptionOptions, Version,
};
use mqtt_client::{AckMode, ClientSession, ConnackInfo, OutgoingMessage, PendingAck, SessionEvent};
use outbound::stream::{self, OutboundStream};
use outbound::write_guard::WriteGuard;
use rustls::ClientConfig;
use secret::Secret;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::message::source_message;
use crate::connector::{ConnectorError, SourceMessage};

const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
const KEEP_ALIVE_S: u16 = 30;
/// Ping interval; after another interval without any packet, the broker is considered unreachable.
const PING_EVERY: Duration = Duration::from_secs(15);
/// The largest packet that MQTT allows.
const MAX_PACKET_BYTES: u32 = 268_435_460;
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
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

/// A message from the broker, and the acknowledgement to send once it is processed.
pub(super) type IncomingMessage = (SourceMessage, Option<PendingAck>);

type SharedWriter = tokio::sync::Mutex<WriteHalf<OutboundStream>>;

pub(super) struct MqttConnection {
    pub(super) max_qos: QoS,
    pub(super) supports_retain: bool,
    writer: Arc<SharedWriter>,
    shared: Arc<SharedMqttSession>,
    incoming: Mutex<Option<mpsc::Receiver<IncomingMessage>>>,
    tasks: [JoinHandle<()>; 2],
}

/// The session that callers and the two tasks of a connection share.
struct SharedMqttSession {
    state: Mutex<MqttSessionState>,
    /// Room for QoS 1 messages in flight.
    window: Semaphore,
    /// Wakes the task that writes what the reader answers.
    has_output: Notify,
}

/// The session, and the callers that wait for its acknowledgements.
struct MqttSessionState {
    session: ClientSession,
    /// Why the connection ended.
    close_reason: Option<String>,
    next_batch: u64,
    /// For each packet id in flight, its batch and its position in it.
    in_flight: HashMap<u16, (u64, usize)>,
    batches: HashMap<u64, PendingBatch>,
    /// Callers that wait for PINGRESP, in order.
    pings: VecDeque<oneshot::Sender<()>>,
    subscribed: Option<oneshot::Sender<Vec<ReasonCode>>>,
}

struct PendingBatch {
    codes: Vec<ReasonCode>,
    missing: usize,
    done: oneshot::Sender<Vec<ReasonCode>>,
}

impl SharedMqttSession {
    fn new(session: ClientSession, window: u16) -> Self {
        Self {
            state: Mutex::new(MqttSessionState {
                session,
                close_reason: None,
                next_batch: 0,
                in_flight: HashMap::new(),
                batches: HashMap::new(),
                pings: VecDeque::new(),
                subscribed: None,
            }),
            window: Semaphore::new(window.into()),
            has_output: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, MqttSessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, why: &str) {
        self.state().close(why);
        // Callers that wait for room are notified that there will be none.
        self.window.close();
    }
}

impl MqttSessionState {
    fn close(&mut self, why: &str) {
        self.close_reason.get_or_insert_with(|| why.to_owned());
        // Waiting callers find their sender dropped.
        self.in_flight.clear();
        self.batches.clear();
        self.pings.clear();
        self.subscribed = None;
    }

    /// Sends a ping; the receiver learns of its answer.
    fn ping(&mut self) -> oneshot::Receiver<()> {
        let (pong, answered) = oneshot::channel();
        if self.close_reason.is_none() {
            self.pings.push_back(pong);
            self.session.send(&Packet::PingReq);
        }
        answered
    }

    /// Records the result of a message of a batch.
    fn complete(&mut self, (batch, place): (u64, usize), reason: ReasonCode) {
        let Some(waiting) = self.batches.get_mut(&batch) else {
            return;
        };
        waiting.codes[place] = reason;
        waiting.missing -= 1;
        if waiting.missing == 0
            && let Some(waiting) = self.batches.remove(&batch)
        {
            let _ = waiting.done.send(waiting.codes);
        }
    }
}

impl MqttConnection {
    /// Connects and logs in.
    pub(super) async fn open(
        remote: &MqttServer,
        session_options: &SessionOptions<'_>,
    ) -> Result<Self, ConnectorError> {
        let opening =
            tokio::time::timeout(GREETING_TIMEOUT, Self::handshake(remote, session_options));
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
        session_options: &SessionOptions<'_>,
    ) -> Result<Self, ConnectorError> {
        let tcp = stream::connect(&remote.host, remote.port).await?;
        let mut stream = match &remote.tls {
            Some(config) => stream::wrap_tls(tcp, &remote.host, config).await?,
            None => OutboundStream::Plain(tcp),
        };
        let mut session = ClientSession::new(remote.version, AckMode::Manual, MAX_PACKET_BYTES, 0);
        let mut properties = PropertiesBuf::new();
        properties.push(Property::ReceiveMaximum(IN_FLIGHT));
        if session_options.expiry_s > 0 {
            properties.push(Property::SessionExpiryInterval(session_options.expiry_s));
        }
        session.send(&Packet::Connect(Connect {
            version: remote.version,
            clean_start: session_options.expiry_s == 0,
            keep_alive_s: KEEP_ALIVE_S,
            client_id: session_options.client_id,
            username: remote.username.as_deref(),
            password: remote.password.as_ref().map(|p| p.reveal().as_bytes()),
            will: None,
            properties: properties.as_properties(),
            is_bridge: false,
        }));
        let hello = std::mem::take(&mut session.out);
        stream
            .write_all(&hello)
            .await
            .map_err(ConnectorError::transient)?;
        stream.flush().await.map_err(ConnectorError::transient)?;

        let connack = loop {
            let (_, input) = session.output_and_input();
            let read = stream.read_buf(input).await;
            if read.map_err(ConnectorError::transient)? == 0 {
                let what = format!("{} closed the connection at once", remote.address());
                return Err(ConnectorError::transient(what));
            }
            if let Some(connack) = read_connack(&mut session)? {
                break connack;
            }
        };
        let window = connack.receive_maximum.unwrap_or(IN_FLIGHT);
        let shared = SharedMqttSession::new(session, window.min(10 * IN_FLIGHT));
        let shared = Arc::new(shared);
        let (reader, writer) = tokio::io::split(stream);
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let (sender, incoming) = mpsc::channel(IN_FLIGHT.into());
        let tasks = [
            tokio::spawn(run_reader(reader, shared.clone(), sender)),
            tokio::spawn(run_writer(writer.clone(), shared.clone())),
        ];
        Ok(Self {
            max_qos: QoS::try_from(connack.max_qos).unwrap_or(QoS::ExactlyOnce),
            supports_retain: connack.retain_available,
            writer,
            shared,
            incoming: Mutex::new(Some(incoming)),
            tasks,
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.state().close_reason.is_some()
    }

    pub(super) fn close(&self, why: &str) {
        self.shared.close(why);
        for task in &self.tasks {
            task.abort();
        }
    }

    pub(super) fn close_reason(&self) -> ConnectorError {
        let ended = self.shared.state().close_reason.clone();
        ConnectorError::transient(ended.unwrap_or_else(|| "the connection is over".into()))
    }

    /// Writes the output of the session.
    async fn flush(&self) -> Result<(), ConnectorError> {
        let whole = WriteGuard::arm(|why| self.close(why));
        let written = write_output(&self.writer, &self.shared).await;
        whole.disarm();
        written.map_err(|error| {
            self.close(&format!("the connection broke: {error}"));
            self.close_reason()
        })
    }

    /// Publishes with QoS 1, in order; `message` yields the message at an index. Returns the reason code of each message;
    /// a message that exceeds the broker's limit is not sent.
    pub(super) async fn publish<'m>(
        &self,
        count: usize,
        message: impl Fn(usize) -> OutgoingMessage<'m>,
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
        let whole = WriteGuard::arm(|why| self.close(why));
        let window = &self.shared.window;
        let mut at = 0;
        while at < count {
            // The broker limits the number in flight.
            let permit = window.acquire().await.map_err(|_| self.close_reason())?;
            permit.forget();
            let mut allowed = 1;
            while at + allowed < count && allowed < usize::from(IN_FLIGHT) {
                match window.try_acquire() {
                    Ok(permit) => permit.forget(),
                    Err(_) => break,
                }
                allowed += 1;
            }
            {
                let mut state = self.shared.state();
                if state.close_reason.is_some() {
                    break;
                }
                for place in at..at + allowed {
                    match state.session.publish(&message(place)) {
                        Ok(packet_id) => {
                            state.in_flight.insert(packet_id, (batch, place));
                        }
                        Err(_) => {
                            window.add_permits(1);
                            state.complete((batch, place), ReasonCode::PACKET_TOO_LARGE);
                        }
                    }
                }
            }
            self.flush().await?;
            at += allowed;
        }
        let answered = answered.await;
        whole.disarm();
        answered.map_err(|_| self.close_reason())
    }

    /// Publishes with QoS 0 and waits until the broker has read the messages. Returns a reason code for each, as
    /// [`publish`](Self::publish).
    pub(super) async fn publish_unacknowledged<'m>(
        &self,
        messages: impl Iterator<Item = OutgoingMessage<'m>>,
    ) -> Result<Vec<ReasonCode>, ConnectorError> {
        let whole = WriteGuard::arm(|why| self.close(why));
        let (codes, answered) = {
            let mut state = self.shared.state();
            let codes = messages.map(|message| match state.session.publish(&message) {
                Ok(_) => ReasonCode::SUCCESS,
                Err(_) => ReasonCode::PACKET_TOO_LARGE,
            });
            let codes = codes.collect();
            (codes, state.ping())
        };
        self.flush().await?;
        let answered = answered.await;
        whole.disarm();
        answered.map(|()| codes).map_err(|_| self.close_reason())
    }

    /// Subscribes; [`MqttConnection::take_incoming`] yields the messages.
    pub(super) async fn subscribe(
        &self,
        filters: &[(String, SubscriptionOptions)],
    ) -> Result<(), ConnectorError> {
        let (sender, answered) = oneshot::channel();
        {
            let mut state = self.shared.state();
            state.subscribed = Some(sender);
            let sent = state.session.subscribe(filters, &PropertiesBuf::new());
            sent.map_err(ConnectorError::transient)?;
        }
        self.flush().await?;
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
        let rejected = filters.iter().zip(&codes).find(|(_, code)| code.is_error());
        match rejected {
            None if codes.len() == filters.len() => Ok(()),
            None => Err(ConnectorError::transient(
                "the broker answers some subscriptions only",
            )),
            Some(((filter, _), code)) => {
                let what = format!("subscription {filter:?}: {code}");
                Err(ConnectorError::transient(what))
            }
        }
    }

    /// The messages of the subscriptions; the channel closes with the connection. Can be taken once.
    pub(super) fn take_incoming(&self) -> Option<mpsc::Receiver<IncomingMessage>> {
        let mut slot = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take()
    }

    pub(super) async fn acknowledge(&self, message: PendingAck) -> Result<(), ConnectorError> {
        self.shared.state().session.acknowledge(message);
        self.flush().await
    }

    /// Sends DISCONNECT.
    pub(super) async fn disconnect(&self) {
        let (reason, properties) = (ReasonCode::NORMAL_DISCONNECTION, PropertiesBuf::new());
        self.shared.state().session.disconnect(reason, &properties);
        let _ = self.flush().await;
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

/// Takes CONNACK from the session, if it has arrived.
fn read_connack(session: &mut ClientSession) -> Result<Option<ConnackInfo>, ConnectorError> {
    let event = session.next_event();
    let event =
        event.map_err(|error| ConnectorError::transient(format!("not an MQTT broker: {error}")))?;
    match event {
        None => Ok(None),
        Some(SessionEvent::Connected(connack)) if connack.answer.reason.is_error() => {
            let what = format!("the broker rejected the connection: {}", connack.answer);
            Err(ConnectorError::transient(what))
        }
        Some(SessionEvent::Connected(connack)) => Ok(Some(connack)),
        Some(_) => Err(ConnectorError::transient(
            "not an MQTT broker: the first packet is not CONNACK",
        )),
    }
}

/// Writes the output of the session. The holder of the writer takes it, so that packets stay in order.
async fn write_output(writer: &SharedWriter, shared: &SharedMqttSession) -> io::Result<()> {
    let mut writer = writer.lock().await;
    let bytes = std::mem::take(&mut shared.state().session.out);
    writer.write_all(&bytes).await?;
    writer.flush().await
}

/// Pings the broker, and writes what the reader answers.
async fn run_writer(writer: Arc<SharedWriter>, shared: Arc<SharedMqttSession>) {
    let mut next_ping = Instant::now() + PING_EVERY;
    loop {
        tokio::select! {
            () = shared.has_output.notified() => {}
            () = tokio::time::sleep_until(next_ping) => {
                next_ping += PING_EVERY;
                // Nothing waits for this answer.
                drop(shared.state().ping());
            }
        }
        if let Err(error) = write_output(&writer, &shared).await {
            return shared.close(&format!("the connection broke: {error}"));
        }
    }
}

/// Reads packets from the broker until the connection ends.
async fn run_reader(
    mut reader: ReadHalf<OutboundStream>,
    shared: Arc<SharedMqttSession>,
    incoming: mpsc::Sender<IncomingMessage>,
) {
    let mut buffer = Vec::with_capacity(READ_BYTES);
    let why = loop {
        // Some packets may have arrived with CONNACK.
        if let Err(why) = handle_events(&shared, &incoming).await {
            break why;
        }
        buffer.clear();
        match tokio::time::timeout(PING_EVERY * 2, reader.read_buf(&mut buffer)).await {
            Ok(Ok(0)) => break "the broker closed the connection".into(),
            Ok(Ok(_)) => shared.state().session.receive(&buffer),
            Ok(Err(error)) => break format!("the connection broke: {error}"),
            Err(_) => break "the broker does not answer any more".to_owned(),
        }
    };
    shared.close(&why);
}

/// Handles what has been received; the error is the reason why the connection ends.
async fn handle_events(
    shared: &SharedMqttSession,
    incoming: &mpsc::Sender<IncomingMessage>,
) -> Result<(), String> {
    loop {
        let message = {
            let mut state = shared.state();
            let event = state.session.next_event();
            if !state.session.out.is_empty() {
                shared.has_output.notify_one();
            }
            match event.map_err(|error| format!("the broker sent invalid MQTT: {error}"))? {
                None => return Ok(()),
                Some(SessionEvent::Published { packet_id, answer }) => {
                    if let Some(place) = state.in_flight.remove(&packet_id) {
                        shared.window.add_permits(1);
                        state.complete(place, answer.reason);
                    }
                    continue;
                }
                Some(SessionEvent::Pong) => {
                    if let Some(waiter) = state.pings.pop_front() {
                        let _ = waiter.send(());
                    }
                    continue;
                }
                Some(SessionEvent::Subscribed { codes, .. }) => {
                    if let Some(waiter) = state.subscribed.take() {
                        let _ = waiter.send(codes);
                    }
                    continue;
                }
                Some(SessionEvent::Disconnected { answer, .. }) => {
                    return Err(format!("the broker ended the connection: {answer}"));
                }
                Some(SessionEvent::Message(message)) => message,
                // Nothing of this node causes the other events.
                Some(_) => continue,
            }
        };
        let pending_ack = message.pending_ack;
        // A closed channel means that the receiver was dropped.
        let _ = incoming.send((source_message(message), pending_ack)).await;
    }
}
