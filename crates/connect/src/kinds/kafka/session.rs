//! One connection to a broker. It is never mended: after an error a new one takes its place, so that nothing which waited in
//! the old one is mixed up with what is sent again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::wire::{API_VERSIONS, Api, Code, Malformed, Take, frame};
use super::{Login, sasl};
use crate::connector::Failure;
use crate::net::{self, Stream};

/// Larger than any answer we ask for; what is no Kafka seems to send larger ones.
const MAX_ANSWER_BYTES: usize = 128 << 20;

pub(super) struct Session {
    /// With the number of the next request.
    writer: tokio::sync::Mutex<(WriteHalf<Stream>, i32)>,
    shared: Arc<Shared>,
    /// By request, the oldest and the newest version of it.
    versions: HashMap<i16, (i16, i16)>,
    client_id: String,
    /// `HOST:PORT`, for errors.
    peer: String,
    timeout: Duration,
    /// The broker ends it if we do not log in again before.
    good_until: Option<Instant>,
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
    /// Who waits for the answer to which request: brokers answer in the order of requests.
    waiting: VecDeque<(i32, oneshot::Sender<Vec<u8>>)>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, why: &str) {
        let mut state = self.state();
        state.ended.get_or_insert_with(|| why.to_owned());
        // Whoever waits finds its sender gone.
        state.waiting.clear();
    }
}

/// An answer, and the version in which it was asked for.
pub(super) struct Answer {
    pub(super) version: i16,
    bytes: Vec<u8>,
    peer: String,
}

impl Answer {
    /// Reads the whole answer.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&mut Take<'_>, i16) -> Result<T, Malformed>,
    ) -> Result<T, Failure> {
        let peer = &self.peer;
        let read = read(&mut Take(&self.bytes), self.version);
        read.map_err(|error| Failure::passing(format!("{peer}: {error}")))
    }
}

impl Session {
    /// Connects, by TLS if wanted, asks what the broker can do, and logs in.
    pub(super) async fn open(login: &Login, host: &str, port: u16) -> Result<Self, Failure> {
        let tcp = net::connect(host, port).await?;
        let stream = match &login.tls {
            Some(config) => net::secure(tcp, host, config).await?,
            None => Stream::Plain(tcp),
        };
        let (reader, writer) = tokio::io::split(stream);
        let shared = Arc::new(Shared::default());
        let mut session = Self {
            writer: tokio::sync::Mutex::new((writer, 0)),
            reading: tokio::spawn(read(reader, shared.clone())),
            shared,
            versions: HashMap::new(),
            client_id: login.client_id.clone(),
            peer: format!("{host}:{port}"),
            timeout: login.request_timeout,
            good_until: None,
        };
        session.versions = session.ask_versions().await?;
        if let Some(sasl) = &login.sasl {
            let lifetime = sasl::log_in(&session, sasl).await?;
            session.good_until = lifetime.map(|lifetime| Instant::now() + lifetime * 9 / 10);
        }
        Ok(session)
    }

    async fn ask_versions(&self) -> Result<HashMap<i16, (i16, i16)>, Failure> {
        let answer = self.ask_version(API_VERSIONS, 0, &[], self.timeout).await?;
        let (code, versions) = answer.read(|take, _| {
            let code = Code::take(take)?;
            let count = take.count()?;
            let versions = (0..count).map(|_| Ok((take.i16()?, (take.i16()?, take.i16()?))));
            Ok((code, versions.collect::<Result<_, Malformed>>()?))
        })?;
        match code.is_error() {
            true => Err(self.failure(&format!("ApiVersions: {code}"))),
            false => Ok(versions),
        }
    }

    pub(super) fn failure(&self, what: &str) -> Failure {
        Failure::passing(format!("{}: {what}", self.peer))
    }

    /// Whether it must not be used for something new.
    pub(super) fn is_over(&self) -> bool {
        let is_old = self.good_until.is_some_and(|until| Instant::now() >= until);
        is_old || self.shared.state().ended.is_some()
    }

    /// Ends it; what waits for an answer is told.
    fn end(&self, why: &str) {
        self.shared.end(why);
        self.reading.abort();
    }

    fn why(&self) -> Failure {
        let ended = self.shared.state().ended.clone();
        self.failure(ended.as_deref().unwrap_or("the connection is over"))
    }

    /// The newest version of a request that both sides speak.
    fn version(&self, api: Api) -> Result<i16, Failure> {
        let Api {
            key,
            name,
            min,
            max,
        } = api;
        let Some((oldest, newest)) = self.versions.get(&key) else {
            return Err(self.failure(&format!("the broker has no {name}")));
        };
        let version = max.min(*newest);
        match version >= min && version >= *oldest {
            true => Ok(version),
            false => Err(self.failure(&format!(
                "the broker has versions {oldest} to {newest} of {name}, {min} to {max} are needed; Kafka 2.4 has them"
            ))),
        }
    }

    /// Asks, and waits for the answer. `fill` writes the request in the version it is given.
    pub(super) async fn ask(
        &self,
        api: Api,
        fill: impl FnOnce(i16, &mut Vec<u8>),
    ) -> Result<Answer, Failure> {
        self.ask_within(api, self.timeout, fill).await
    }

    /// As [`Session::ask`], for what takes the broker longer than other things.
    pub(super) async fn ask_within(
        &self,
        api: Api,
        timeout: Duration,
        fill: impl FnOnce(i16, &mut Vec<u8>),
    ) -> Result<Answer, Failure> {
        let version = self.version(api)?;
        let mut body = Vec::new();
        fill(version, &mut body);
        self.ask_version(api, version, &body, timeout).await
    }

    async fn ask_version(
        &self,
        api: Api,
        version: i16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Answer, Failure> {
        let (sender, answered) = oneshot::channel();
        let asking = async {
            self.write(api, version, body, Some(sender)).await?;
            answered.await.map_err(|_| self.why())
        };
        match tokio::time::timeout(timeout, asking).await {
            Ok(answered) => Ok(Answer {
                version,
                bytes: answered?,
                peer: self.peer.clone(),
            }),
            Err(_) => {
                let ms = timeout.as_millis();
                self.end(&format!("no answer to {} within {ms} ms", api.name));
                Err(self.why())
            }
        }
    }

    /// Sends something that is not answered.
    pub(super) async fn tell(
        &self,
        api: Api,
        fill: impl FnOnce(i16, &mut Vec<u8>),
    ) -> Result<(), Failure> {
        let version = self.version(api)?;
        let mut body = Vec::new();
        fill(version, &mut body);
        let telling = self.write(api, version, &body, None);
        match tokio::time::timeout(self.timeout, telling).await {
            Ok(written) => written,
            Err(_) => {
                self.end("the broker does not read");
                Err(self.why())
            }
        }
    }

    async fn write(
        &self,
        api: Api,
        version: i16,
        body: &[u8],
        answer: Option<oneshot::Sender<Vec<u8>>>,
    ) -> Result<(), Failure> {
        let mut writer = self.writer.lock().await;
        let (writer, number) = &mut *writer;
        *number = number.wrapping_add(1) & i32::MAX;
        let bytes = frame(api, version, *number, &self.client_id, body);
        // Answers come in the order of requests: nobody may get between the queue and the wire.
        {
            let mut state = self.shared.state();
            if state.ended.is_some() {
                drop(state);
                return Err(self.why());
            }
            state.waiting.extend(answer.map(|answer| (*number, answer)));
        }
        let whole = Whole(self);
        let mut written = writer.write_all(&bytes).await;
        if written.is_ok() {
            written = writer.flush().await;
        }
        std::mem::forget(whole);
        written.map_err(|error| {
            self.end(&format!("the connection broke: {error}"));
            self.why()
        })
    }
}

/// Ends a connection if somebody stops waiting in the middle of writing: what comes next would be read as the rest.
struct Whole<'s>(&'s Session);

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.0.end("a request was not written whole");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read(mut reader: ReadHalf<Stream>, shared: Arc<Shared>) {
    let why = loop {
        match read_one(&mut reader).await {
            Ok((number, bytes)) => {
                let waiting = shared.state().waiting.pop_front();
                match waiting {
                    // Who asked may have stopped waiting.
                    Some((expected, answer)) if expected == number => drop(answer.send(bytes)),
                    _ => break "it answers what it was not asked".to_owned(),
                }
            }
            Err(why) => break why,
        }
    };
    shared.end(&why);
}

/// An answer with the number of its request.
async fn read_one(reader: &mut ReadHalf<Stream>) -> Result<(i32, Vec<u8>), String> {
    let broken = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the broker closed the connection".to_owned(),
        _ => format!("the connection broke: {error}"),
    };
    let length = reader.read_i32().await.map_err(broken)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if !(4..=MAX_ANSWER_BYTES).contains(&length) {
        return Err("this is no Kafka broker, or it wants TLS".into());
    }
    let number = reader.read_i32().await.map_err(broken)?;
    // Grows with what really comes.
    let mut bytes = Vec::with_capacity((length - 4).min(1 << 20));
    let mut body = reader.take(length as u64 - 4);
    body.read_to_end(&mut bytes).await.map_err(broken)?;
    match bytes.len() == length - 4 {
        true => Ok((number, bytes)),
        false => Err("the broker closed the connection".into()),
    }
}
