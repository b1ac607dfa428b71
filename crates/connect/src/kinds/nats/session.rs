//! One connection to a NATS server. It is never mended: after an error a new one takes its place, so that nothing which
//! waited in the old one arrives behind what is sent again.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Login;
use super::wire::{self, Message, Op};
use crate::connector::Failure;
use crate::net::{self, Stream};

/// A server that is silent for so long is asked whether it is there, and after as long again is not.
const SILENCE: Duration = Duration::from_secs(20);
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REFUSED: usize = 1000;
/// Received messages that wait to be taken; then the connection is not read, and the server waits or gives up.
const MAX_WAITING_MESSAGES: usize = 1024;

/// What the server says about itself.
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

pub(super) struct Session {
    pub(super) info: ServerInfo,
    writer: Arc<tokio::sync::Mutex<WriteHalf<Stream>>>,
    shared: Arc<Shared>,
    /// Answers to what is asked come to subjects that begin so.
    inbox: String,
    next_number: AtomicU64,
    reading: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why it is over.
    ended: Option<String>,
    /// Who waits for which PONG, in the order of the PINGs. Each is told what was refused since the one before.
    pings: VecDeque<oneshot::Sender<Vec<String>>>,
    /// What the server refused without ending the connection.
    refused: Vec<String>,
    asked: HashMap<u64, Asked>,
    subscriptions: HashMap<u64, mpsc::Sender<Message>>,
}

/// Questions that were asked together.
struct Asked {
    answers: Vec<Option<Message>>,
    missing: usize,
    done: oneshot::Sender<Vec<Option<Message>>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, why: &str) {
        let mut state = self.state();
        state.ended.get_or_insert_with(|| why.to_owned());
        // Whoever waits finds its sender gone.
        state.pings.clear();
        state.asked.clear();
        state.subscriptions.clear();
    }
}

impl Session {
    /// Connects, by TLS if wanted, and logs in.
    pub(super) async fn open(login: &Login, host: &str, port: u16) -> Result<Self, Failure> {
        let opening = tokio::time::timeout(GREETING_TIMEOUT, Self::greet(login, host, port));
        match opening.await {
            Ok(result) => result,
            Err(_) => {
                let s = GREETING_TIMEOUT.as_secs();
                let what = format!("{host}:{port} has not let us in after {s} seconds");
                Err(Failure::passing(what))
            }
        }
    }

    async fn greet(login: &Login, host: &str, port: u16) -> Result<Self, Failure> {
        let mut tcp = net::connect(host, port).await?;
        let mut buffer = BytesMut::new();
        let info = loop {
            if let Some(op) = wire::parse(&mut buffer).map_err(Failure::passing)? {
                match op {
                    Op::Info(text) => break text,
                    Op::Error(why) => return Err(Failure::passing(why)),
                    _ => continue,
                }
            }
            let read = tcp.read_buf(&mut buffer).await.map_err(Failure::passing)?;
            if read == 0 {
                return Err(Failure::passing("it closed the connection at once"));
            }
        };
        let info: ServerInfo = serde_json::from_str(&info)
            .map_err(|error| Failure::passing(format!("it is no NATS server: {error}")))?;
        let stream = match &login.tls {
            Some(config) => {
                if !info.tls_required && !info.tls_available {
                    let what = "the server has no TLS; leave out tls, or switch it on there";
                    return Err(Failure::passing(what));
                }
                net::secure(tcp, host, config).await?
            }
            None if info.tls_required => {
                return Err(Failure::passing("the server wants TLS; set tls = {}"));
            }
            None => Stream::Plain(tcp),
        };
        let (reader, mut writer) = tokio::io::split(stream);
        let hello = format!("CONNECT {}\r\nPING\r\n", login.hello(&info));
        let written = writer.write_all(hello.as_bytes()).await;
        written.map_err(Failure::passing)?;
        writer.flush().await.map_err(Failure::passing)?;

        let shared = Arc::new(Shared::default());
        let (pong, answered) = oneshot::channel();
        shared.state().pings.push_back(pong);
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let reading = tokio::spawn(read(reader, buffer, shared.clone(), writer.clone()));
        let session = Self {
            info,
            writer,
            shared,
            inbox: inbox()?,
            next_number: AtomicU64::new(1),
            reading,
        };
        match answered.await {
            Ok(refused) if refused.is_empty() => {}
            Ok(refused) => return Err(Failure::passing(refused.join("; "))),
            Err(_) => return Err(session.why()),
        }
        // All answers come by one subscription.
        let subscribe = format!("SUB {}.* 0\r\n", session.inbox);
        session.write(subscribe.as_bytes()).await?;
        Ok(session)
    }

    pub(super) fn is_over(&self) -> bool {
        self.shared.state().ended.is_some()
    }

    /// Ends it; what waits for an answer is told.
    pub(super) fn end(&self, why: &str) {
        self.shared.end(why);
        self.reading.abort();
    }

    fn why(&self) -> Failure {
        let ended = self.shared.state().ended.clone();
        Failure::passing(ended.unwrap_or_else(|| "the connection is over".into()))
    }

    async fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_over() {
            return Err(self.why());
        }
        let whole = Whole::of(self);
        let mut writer = self.writer.lock().await;
        let mut written = writer.write_all(bytes).await;
        if written.is_ok() {
            written = writer.flush().await;
        }
        whole.done();
        written.map_err(|error| {
            self.end(&format!("the connection broke: {error}"));
            self.why()
        })
    }

    /// Sends, and waits until the server has read all of it. Returns what it refused.
    pub(super) async fn send(&self, mut bytes: Vec<u8>) -> Result<Vec<String>, Failure> {
        bytes.extend_from_slice(b"PING\r\n");
        let (pong, answered) = oneshot::channel();
        let whole = Whole::of(self);
        {
            if self.is_over() {
                return Err(self.why());
            }
            // PONGs come in the order of PINGs: nobody may get between the queue and the wire.
            let mut writer = self.writer.lock().await;
            self.shared.state().pings.push_back(pong);
            let mut written = writer.write_all(&bytes).await;
            if written.is_ok() {
                written = writer.flush().await;
            }
            if let Err(error) = written {
                self.end(&format!("the connection broke: {error}"));
            }
        }
        let answered = answered.await;
        whole.done();
        answered.map_err(|_| self.why())
    }

    /// Asks several questions at once, of which `fill` writes each with the subject it is given for its answer. The
    /// answers are in the order of the questions; what was not answered in time is missing.
    pub(super) async fn ask_all(
        &self,
        count: usize,
        within: Duration,
        fill: impl FnOnce(&dyn Fn(usize) -> String, &mut Vec<u8>),
    ) -> Result<Vec<Option<Message>>, Failure> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let number = self.next_number.fetch_add(1, Relaxed);
        let (done, mut answered) = oneshot::channel();
        {
            let mut state = self.shared.state();
            if state.ended.is_some() {
                drop(state);
                return Err(self.why());
            }
            let asked = Asked {
                answers: vec![None; count],
                missing: count,
                done,
            };
            state.asked.insert(number, asked);
        }
        let _forget = Forget(&self.shared, number);
        let mut bytes = Vec::new();
        fill(&|at| format!("{}.{number}-{at}", self.inbox), &mut bytes);
        self.write(&bytes).await?;
        match tokio::time::timeout(within, &mut answered).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) => Err(self.why()),
            Err(_) => {
                let mut state = self.shared.state();
                let refused = std::mem::take(&mut state.refused);
                if !refused.is_empty() {
                    return Err(Failure::passing(refused.join("; ")));
                }
                match state.asked.remove(&number) {
                    Some(asked) => Ok(asked.answers),
                    None => {
                        drop(state);
                        answered.try_recv().map_err(|_| self.why())
                    }
                }
            }
        }
    }

    /// Asks one question.
    pub(super) async fn ask(
        &self,
        subject: &str,
        body: &[u8],
        within: Duration,
    ) -> Result<Message, Failure> {
        let fill = |reply: &dyn Fn(usize) -> String, out: &mut Vec<u8>| {
            wire::publish(out, subject, Some(&reply(0)), &[], body);
        };
        let mut answers = self.ask_all(1, within, fill).await?;
        let answer = answers.pop().flatten();
        answer.ok_or_else(|| Failure::passing(format!("nobody answers to {subject}")))
    }

    /// Subscribes; messages wait in what is returned, which ends with the connection.
    pub(super) async fn subscribe(
        &self,
        subject: &str,
        group: Option<&str>,
    ) -> Result<mpsc::Receiver<Message>, Failure> {
        let number = self.next_number.fetch_add(1, Relaxed);
        let (sender, messages) = mpsc::channel(MAX_WAITING_MESSAGES);
        self.shared.state().subscriptions.insert(number, sender);
        let (space, group) = group.map_or(("", ""), |group| (" ", group));
        let line = format!("SUB {subject}{space}{group} {number}\r\n");
        let refused = self.send(line.into_bytes()).await?;
        match refused.is_empty() {
            true => Ok(messages),
            false => Err(Failure::passing(refused.join("; "))),
        }
    }

    /// Sends without waiting for the server.
    pub(super) async fn tell(&self, subject: &str, body: &[u8]) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        wire::publish(&mut bytes, subject, None, &[], body);
        self.write(&bytes).await
    }

    /// A subject of our own below the inbox, for messages that come one by one.
    pub(super) fn own_subject(&self) -> String {
        let number = self.next_number.fetch_add(1, Relaxed);
        format!("{}.own.{number}", self.inbox)
    }

    /// Why a subscription ended.
    pub(super) fn over(&self) -> Failure {
        self.why()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Something that, once begun, must come to its end: half a message on the wire would spoil what comes behind it.
struct Whole<'a>(Option<&'a Session>);

impl<'a> Whole<'a> {
    fn of(session: &'a Session) -> Self {
        Self(Some(session))
    }

    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.0 {
            session.end("what was sent was given up halfway");
        }
    }
}

/// Takes a question back whose asker has gone.
struct Forget<'a>(&'a Shared, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.state().asked.remove(&self.1);
    }
}

/// A name nobody else has.
fn inbox() -> Result<String, Failure> {
    use ring::rand::SecureRandom as _;
    let mut random = [0; 12];
    let filled = ring::rand::SystemRandom::new().fill(&mut random);
    filled.map_err(|_| Failure::passing("the system has no random numbers"))?;
    let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("_INBOX.{name}"))
}

impl Login {
    /// The body of CONNECT.
    fn hello(&self, info: &ServerInfo) -> String {
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

async fn read(
    mut reader: ReadHalf<Stream>,
    mut buffer: BytesMut,
    shared: Arc<Shared>,
    writer: Arc<tokio::sync::Mutex<WriteHalf<Stream>>>,
) {
    let mut is_asked = false;
    let why = loop {
        let op = match wire::parse(&mut buffer) {
            Ok(Some(op)) => op,
            Err(why) => break format!("it sent what is no NATS: {why}"),
            Ok(None) => {
                match tokio::time::timeout(SILENCE, reader.read_buf(&mut buffer)).await {
                    Ok(Ok(0)) => break "it closed the connection".into(),
                    Ok(Ok(_)) => is_asked = false,
                    Ok(Err(error)) => break format!("the connection broke: {error}"),
                    Err(_) if is_asked => break "it does not answer any more".into(),
                    Err(_) => {
                        is_asked = true;
                        let mut writer = writer.lock().await;
                        // Its PONG is nobody's.
                        shared.state().pings.push_back(oneshot::channel().0);
                        let _ = writer.write_all(b"PING\r\n").await;
                        let _ = writer.flush().await;
                    }
                }
                continue;
            }
        };
        match op {
            Op::Ping => {
                let mut writer = writer.lock().await;
                let _ = writer.write_all(b"PONG\r\n").await;
                let _ = writer.flush().await;
            }
            Op::Pong => {
                let mut state = shared.state();
                let refused = std::mem::take(&mut state.refused);
                if let Some(asker) = state.pings.pop_front() {
                    let _ = asker.send(refused);
                }
            }
            // These leave the connection as it is; all others close it.
            Op::Error(why)
                if why.starts_with("Permissions Violation")
                    || why.starts_with("Invalid Subject") =>
            {
                let mut state = shared.state();
                if state.refused.len() < MAX_REFUSED {
                    state.refused.push(why);
                }
            }
            Op::Error(why) => break why,
            Op::Message(message) => receive(&shared, message).await,
            Op::Info(_) | Op::Other => {}
        }
    };
    shared.end(&why);
}

async fn receive(shared: &Shared, message: Message) {
    if message.subscription == 0 {
        answer(&mut shared.state(), message);
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

/// `INBOX.NUMBER-PLACE`.
fn answer(state: &mut State, message: Message) {
    let last = message.subject.rsplit('.').next().unwrap_or_default();
    let Some((number, at)) = last.split_once('-') else {
        return;
    };
    let (Ok(number), Ok(at)) = (number.parse::<u64>(), at.parse::<usize>()) else {
        return;
    };
    let Some(asked) = state.asked.get_mut(&number) else {
        return;
    };
    let Some(slot @ None) = asked.answers.get_mut(at) else {
        return;
    };
    *slot = Some(message);
    asked.missing -= 1;
    if asked.missing == 0
        && let Some(asked) = state.asked.remove(&number)
    {
        let _ = asked.done.send(asked.answers);
    }
}
