//! One connection to a NATS server. It is never reopened: after an error a new one replaces it, so that no message waiting in the
//! old one arrives after a retry.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use data_encoding::HEXLOWER;
use outbound::stream::{self, OutboundStream};
use outbound::write_guard::WriteGuard;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::credentials::NatsCredentials;
use super::protocol::{self, NatsMessage, ServerOp};
use crate::connector::ConnectorError;

/// A server silent for this long is pinged, and after the same time again considered unreachable.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REJECTED: usize = 1000;
/// Limit on received messages that wait for processing. Beyond it the connection is not read, and the server waits or disconnects.
const MAX_WAITING_MESSAGES: usize = 1024;

/// The content of INFO.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServerInfo {
    pub(super) server_name: String,
    pub(super) version: String,
    pub(super) max_payload: usize,
    pub(super) headers: bool,
    pub(super) jetstream: bool,
    tls_required: bool,
    tls_available: bool,
    nonce: Option<String>,
}

pub(super) struct NatsConnection {
    pub(super) info: ServerInfo,
    writer: Arc<tokio::sync::Mutex<WriteHalf<OutboundStream>>>,
    shared: Arc<SharedNatsReceivers>,
    /// Prefix of the subjects for replies to requests.
    inbox: String,
    next_number: AtomicU64,
    reading: JoinHandle<()>,
}

/// Shared by callers and the task that reads.
#[derive(Default)]
struct SharedNatsReceivers {
    state: Mutex<NatsReceivers>,
}

/// Who receives what the server sends: callers that wait, and subscriptions.
#[derive(Default)]
struct NatsReceivers {
    /// Why the connection ended.
    close_reason: Option<String>,
    /// Callers that wait for PONG, in the order of the PINGs. Each receives the rejections since the previous one.
    pings: VecDeque<oneshot::Sender<Vec<String>>>,
    /// Errors of the server that did not end the connection.
    rejections: Vec<String>,
    pending_requests: HashMap<u64, PendingRequests>,
    subscriptions: HashMap<u64, mpsc::Sender<NatsMessage>>,
}

/// Requests that were sent together.
struct PendingRequests {
    answers: Vec<Option<NatsMessage>>,
    missing: usize,
    done: oneshot::Sender<Vec<Option<NatsMessage>>>,
}

impl SharedNatsReceivers {
    fn state(&self) -> MutexGuard<'_, NatsReceivers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, why: &str) {
        let mut state = self.state();
        state.close_reason.get_or_insert_with(|| why.to_owned());
        // Waiting callers find their sender dropped.
        state.pings.clear();
        state.pending_requests.clear();
        state.subscriptions.clear();
    }
}

impl NatsConnection {
    /// Connects, optionally with TLS, and logs in.
    pub(super) async fn open(
        login: &NatsCredentials,
        host: &str,
        port: u16,
    ) -> Result<Self, ConnectorError> {
        let opening = tokio::time::timeout(GREETING_TIMEOUT, Self::handshake(login, host, port));
        match opening.await {
            Ok(result) => result,
            Err(_) => {
                let s = GREETING_TIMEOUT.as_secs();
                let what = format!("{host}:{port} did not accept the login within {s} seconds");
                Err(ConnectorError::transient(what))
            }
        }
    }

    async fn handshake(
        login: &NatsCredentials,
        host: &str,
        port: u16,
    ) -> Result<Self, ConnectorError> {
        let mut tcp = stream::connect(host, port).await?;
        let mut buffer = BytesMut::new();
        let info = loop {
            if let Some(op) = protocol::parse(&mut buffer).map_err(ConnectorError::transient)? {
                match op {
                    ServerOp::Info(text) => break text,
                    ServerOp::Error(why) => return Err(ConnectorError::transient(why)),
                    _ => continue,
                }
            }
            let read = tcp
                .read_buf(&mut buffer)
                .await
                .map_err(ConnectorError::transient)?;
            if read == 0 {
                return Err(ConnectorError::transient(
                    "it closed the connection at once",
                ));
            }
        };
        let info: ServerInfo = serde_json::from_str(&info)
            .map_err(|error| ConnectorError::transient(format!("not a NATS server: {error}")))?;
        let stream = match &login.tls {
            Some(config) => {
                if !info.tls_required && !info.tls_available {
                    let what = "the server has no TLS; leave out tls, or switch it on there";
                    return Err(ConnectorError::transient(what));
                }
                stream::wrap_tls(tcp, host, config).await?
            }
            None if info.tls_required => {
                return Err(ConnectorError::transient(
                    "the server requires TLS; set tls = {}",
                ));
            }
            None => OutboundStream::Plain(tcp),
        };
        let (reader, mut writer) = tokio::io::split(stream);
        let hello = format!("CONNECT {}\r\nPING\r\n", login.connect_body(&info));
        let written = writer.write_all(hello.as_bytes()).await;
        written.map_err(ConnectorError::transient)?;
        writer.flush().await.map_err(ConnectorError::transient)?;

        let shared = Arc::new(SharedNatsReceivers::default());
        let (pong, answered) = oneshot::channel();
        shared.state().pings.push_back(pong);
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let reading = tokio::spawn(run_reader(reader, buffer, shared.clone(), writer.clone()));
        let session = Self {
            info,
            writer,
            shared,
            inbox: new_inbox()?,
            next_number: AtomicU64::new(1),
            reading,
        };
        match answered.await {
            Ok(rejected) if rejected.is_empty() => {}
            Ok(rejected) => return Err(ConnectorError::transient(rejected.join("; "))),
            Err(_) => return Err(session.close_reason()),
        }
        // One subscription receives all replies.
        let subscribe = format!("SUB {}.* 0\r\n", session.inbox);
        session.write(subscribe.as_bytes()).await?;
        Ok(session)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.state().close_reason.is_some()
    }

    /// Closes the connection and notifies waiting callers.
    pub(super) fn close(&self, why: &str) {
        self.shared.close(why);
        self.reading.abort();
    }

    fn close_reason(&self) -> ConnectorError {
        let ended = self.shared.state().close_reason.clone();
        ConnectorError::transient(ended.unwrap_or_else(|| "the connection is over".into()))
    }

    async fn write(&self, bytes: &[u8]) -> Result<(), ConnectorError> {
        if self.is_closed() {
            return Err(self.close_reason());
        }
        let whole = WriteGuard::arm(|why| self.close(why));
        let mut writer = self.writer.lock().await;
        let mut written = writer.write_all(bytes).await;
        if written.is_ok() {
            written = writer.flush().await;
        }
        whole.disarm();
        written.map_err(|error| {
            self.close(&format!("the connection broke: {error}"));
            self.close_reason()
        })
    }

    /// Sends, and waits until the server has read everything. Returns what it rejected.
    pub(super) async fn send(&self, mut bytes: Vec<u8>) -> Result<Vec<String>, ConnectorError> {
        bytes.extend_from_slice(b"PING\r\n");
        let (pong, answered) = oneshot::channel();
        let whole = WriteGuard::arm(|why| self.close(why));
        {
            if self.is_closed() {
                return Err(self.close_reason());
            }
            // PONGs come in the order of PINGs: queue entry and write must not be separated.
            let mut writer = self.writer.lock().await;
            self.shared.state().pings.push_back(pong);
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

    /// Sends several requests at once; `fill` writes each with its reply subject. The replies are in the order of
    /// the requests; those that did not arrive in time are missing.
    pub(super) async fn request_all(
        &self,
        count: usize,
        within: Duration,
        fill: impl FnOnce(&dyn Fn(usize) -> String, &mut Vec<u8>),
    ) -> Result<Vec<Option<NatsMessage>>, ConnectorError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let number = self.next_number.fetch_add(1, Relaxed);
        let (done, mut answered) = oneshot::channel();
        {
            let mut state = self.shared.state();
            if state.close_reason.is_some() {
                drop(state);
                return Err(self.close_reason());
            }
            let pending = PendingRequests {
                answers: vec![None; count],
                missing: count,
                done,
            };
            state.pending_requests.insert(number, pending);
        }
        let _forget = PendingRequestGuard(&self.shared, number);
        let mut bytes = Vec::new();
        fill(&|at| format!("{}.{number}-{at}", self.inbox), &mut bytes);
        self.write(&bytes).await?;
        match tokio::time::timeout(within, &mut answered).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) => Err(self.close_reason()),
            Err(_) => {
                let mut state = self.shared.state();
                let rejected = std::mem::take(&mut state.rejections);
                if !rejected.is_empty() {
                    return Err(ConnectorError::transient(rejected.join("; ")));
                }
                match state.pending_requests.remove(&number) {
                    Some(pending) => Ok(pending.answers),
                    None => {
                        drop(state);
                        answered.try_recv().map_err(|_| self.close_reason())
                    }
                }
            }
        }
    }

    /// Sends one request.
    pub(super) async fn request(
        &self,
        subject: &str,
        body: &[u8],
        within: Duration,
    ) -> Result<NatsMessage, ConnectorError> {
        let fill = |reply: &dyn Fn(usize) -> String, out: &mut Vec<u8>| {
            protocol::put_publish(out, subject, Some(&reply(0)), &[], body);
        };
        let mut answers = self.request_all(1, within, fill).await?;
        let answer = answers.pop().flatten();
        answer.ok_or_else(|| ConnectorError::transient(format!("no reply to {subject}")))
    }

    /// Subscribes; the returned channel receives the messages and closes with the connection.
    pub(super) async fn subscribe(
        &self,
        subject: &str,
        group: Option<&str>,
    ) -> Result<mpsc::Receiver<NatsMessage>, ConnectorError> {
        let number = self.next_number.fetch_add(1, Relaxed);
        let (sender, messages) = mpsc::channel(MAX_WAITING_MESSAGES);
        self.shared.state().subscriptions.insert(number, sender);
        let (space, group) = group.map_or(("", ""), |group| (" ", group));
        let line = format!("SUB {subject}{space}{group} {number}\r\n");
        let rejected = self.send(line.into_bytes()).await?;
        match rejected.is_empty() {
            true => Ok(messages),
            false => Err(ConnectorError::transient(rejected.join("; "))),
        }
    }

    /// Sends without waiting for the server.
    pub(super) async fn publish(&self, subject: &str, body: &[u8]) -> Result<(), ConnectorError> {
        let mut bytes = Vec::new();
        protocol::put_publish(&mut bytes, subject, None, &[], body);
        self.write(&bytes).await
    }

    /// A unique subject below the inbox, for messages that arrive one by one.
    pub(super) fn new_inbox_subject(&self) -> String {
        let number = self.next_number.fetch_add(1, Relaxed);
        format!("{}.own.{number}", self.inbox)
    }

    /// Why a subscription ended.
    pub(super) fn subscription_error(&self) -> ConnectorError {
        self.close_reason()
    }
}

impl Drop for NatsConnection {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Removes a request whose caller was dropped.
struct PendingRequestGuard<'a>(&'a SharedNatsReceivers, u64);

impl Drop for PendingRequestGuard<'_> {
    fn drop(&mut self) {
        self.0.state().pending_requests.remove(&self.1);
    }
}

/// A unique inbox name.
fn new_inbox() -> Result<String, ConnectorError> {
    use ring::rand::SecureRandom as _;
    let mut random = [0; 12];
    let filled = ring::rand::SystemRandom::new().fill(&mut random);
    filled.map_err(|_| ConnectorError::transient("the system has no random numbers"))?;
    Ok(format!("_INBOX.{}", HEXLOWER.encode(&random)))
}

impl NatsCredentials {
    /// The JSON body of CONNECT.
    fn connect_body(&self, info: &ServerInfo) -> String {
        let mut hello = json!({
            "verbose": false, "pedantic": false, "lang": "rust", "name": self.name,
            "version": env!("CARGO_PKG_VERSION"), "protocol": 1, "echo": true, "headers": true,
            "no_responders": true, "tls_required": self.tls.is_some(),
        });
        let texts = [
            ("user", self.user.as_deref()),
            ("pass", self.password.as_ref().map(|secret| secret.reveal())),
            (
                "auth_token",
                self.token.as_ref().map(|secret| secret.reveal()),
            ),
            ("jwt", self.jwt.as_ref().map(|secret| secret.reveal())),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                hello[name] = text.into();
            }
        }
        if let (Some(key), Some(nonce)) = (&self.nkey, &info.nonce) {
            hello["sig"] = key.sign(nonce).into();
            if self.jwt.is_none() {
                hello["nkey"] = key.public().into();
            }
        }
        hello.to_string()
    }
}

async fn run_reader(
    mut reader: ReadHalf<OutboundStream>,
    mut buffer: BytesMut,
    shared: Arc<SharedNatsReceivers>,
    writer: Arc<tokio::sync::Mutex<WriteHalf<OutboundStream>>>,
) {
    let mut is_asked = false;
    let why = loop {
        let op = match protocol::parse(&mut buffer) {
            Ok(Some(op)) => op,
            Err(why) => break format!("the server sent an invalid message: {why}"),
            Ok(None) => {
                match tokio::time::timeout(PING_INTERVAL, reader.read_buf(&mut buffer)).await {
                    Ok(Ok(0)) => break "the server closed the connection".into(),
                    Ok(Ok(_)) => is_asked = false,
                    Ok(Err(error)) => break format!("the connection broke: {error}"),
                    Err(_) if is_asked => break "the server does not answer any more".into(),
                    Err(_) => {
                        is_asked = true;
                        let mut writer = writer.lock().await;
                        // Nothing waits for this PONG.
                        shared.state().pings.push_back(oneshot::channel().0);
                        let _ = writer.write_all(b"PING\r\n").await;
                        let _ = writer.flush().await;
                    }
                }
                continue;
            }
        };
        match op {
            ServerOp::Ping => {
                let mut writer = writer.lock().await;
                let _ = writer.write_all(b"PONG\r\n").await;
                let _ = writer.flush().await;
            }
            ServerOp::Pong => {
                let mut state = shared.state();
                let rejected = std::mem::take(&mut state.rejections);
                if let Some(waiter) = state.pings.pop_front() {
                    let _ = waiter.send(rejected);
                }
            }
            // These errors leave the connection open; all others close it.
            ServerOp::Error(why)
                if why.starts_with("Permissions Violation")
                    || why.starts_with("Invalid Subject") =>
            {
                let mut state = shared.state();
                if state.rejections.len() < MAX_REJECTED {
                    state.rejections.push(why);
                }
            }
            ServerOp::Error(why) => break why,
            ServerOp::Message(message) => dispatch_message(&shared, message).await,
            ServerOp::Info(_) | ServerOp::Other => {}
        }
    };
    shared.close(&why);
}

async fn dispatch_message(shared: &SharedNatsReceivers, message: NatsMessage) {
    if message.subscription == 0 {
        complete_request(&mut shared.state(), message);
        return;
    }
    let subscription = shared
        .state()
        .subscriptions
        .get(&message.subscription)
        .cloned();
    if let Some(subscription) = subscription {
        let number = message.subscription;
        if subscription.send(message).await.is_err() {
            shared.state().subscriptions.remove(&number);
        }
    }
}

/// Subjects have the form `INBOX.NUMBER-INDEX`.
fn complete_request(state: &mut NatsReceivers, message: NatsMessage) {
    let last = message.subject.rsplit('.').next().unwrap_or_default();
    let Some((number, at)) = last.split_once('-') else {
        return;
    };
    let (Ok(number), Ok(at)) = (number.parse::<u64>(), at.parse::<usize>()) else {
        return;
    };
    let Some(request) = state.pending_requests.get_mut(&number) else {
        return;
    };
    let Some(slot @ None) = request.answers.get_mut(at) else {
        return;
    };
    *slot = Some(message);
    request.missing -= 1;
    if request.missing == 0
        && let Some(request) = state.pending_requests.remove(&number)
    {
        let _ = request.done.send(request.answers);
    }
}
