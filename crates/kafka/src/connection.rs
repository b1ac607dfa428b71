//! One connection to a broker. It is never reopened: after an error a new one replaces it, so that requests waiting on the
//! old one are not confused with retries.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbound::stream::{self, OutboundStream};
use outbound::write_guard::WriteGuard;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::error::KafkaError;
use crate::options::KafkaConnectionOptions;
use crate::protocol::{API_VERSIONS, ApiRequest, DecodeError, Decoder, ErrorCode, encode_request};

/// Larger than any response to our requests; a server of another protocol appears to send larger ones.
const MAX_ANSWER_BYTES: usize = 128 << 20;

pub(crate) struct BrokerConnection {
    /// The write half, and the number of the next request.
    writer: tokio::sync::Mutex<(WriteHalf<OutboundStream>, i32)>,
    shared: Arc<SharedPendingResponses>,
    /// Minimum and maximum version of each request that the broker supports.
    versions: HashMap<i16, (i16, i16)>,
    client_id: String,
    /// `HOST:PORT`, for errors.
    peer: String,
    timeout: Duration,
    /// The broker closes the connection unless reauthenticated by then.
    reauthenticate_by: Option<Instant>,
    reading: JoinHandle<()>,
}

/// Shared by callers and the task that reads.
#[derive(Default)]
struct SharedPendingResponses {
    state: Mutex<PendingResponses>,
}

/// The callers that wait for responses.
#[derive(Default)]
struct PendingResponses {
    /// Why the connection ended.
    close_reason: Option<String>,
    /// Requests waiting for a response: brokers answer in the order of requests.
    waiting: VecDeque<(i32, oneshot::Sender<Vec<u8>>)>,
}

impl SharedPendingResponses {
    fn state(&self) -> MutexGuard<'_, PendingResponses> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, why: &str) {
        let mut state = self.state();
        state.close_reason.get_or_insert_with(|| why.to_owned());
        // Waiting callers find their sender dropped.
        state.waiting.clear();
    }
}

/// A response, and the version of its request.
pub(crate) struct KafkaResponse {
    pub(crate) version: i16,
    bytes: Vec<u8>,
    peer: String,
}

impl KafkaResponse {
    /// Decodes the whole response.
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&mut Decoder<'_>, i16) -> Result<T, DecodeError>,
    ) -> Result<T, KafkaError> {
        let peer = &self.peer;
        let read = read(&mut Decoder(&self.bytes), self.version);
        read.map_err(|error| KafkaError::transient(format!("{peer}: {error}")))
    }
}

impl BrokerConnection {
    /// Connects, optionally with TLS, and fetches the supported versions.
    pub(crate) async fn open(
        login: &KafkaConnectionOptions,
        host: &str,
        port: u16,
    ) -> Result<Self, KafkaError> {
        let tcp = stream::connect(host, port).await?;
        let stream = match &login.tls {
            Some(config) => stream::wrap_tls(tcp, host, config).await?,
            None => OutboundStream::Plain(tcp),
        };
        let (reader, writer) = tokio::io::split(stream);
        let shared = Arc::new(SharedPendingResponses::default());
        let mut session = Self {
            writer: tokio::sync::Mutex::new((writer, 0)),
            reading: tokio::spawn(run_reader(reader, shared.clone())),
            shared,
            versions: HashMap::new(),
            client_id: login.client_id.clone(),
            peer: format!("{host}:{port}"),
            timeout: login.request_timeout,
            reauthenticate_by: None,
        };
        session.versions = session.request_versions().await?;
        Ok(session)
    }

    /// Replaces the connection shortly before this lifetime of its login ends.
    pub(crate) fn set_login_lifetime(&mut self, lifetime: Option<Duration>) {
        self.reauthenticate_by = lifetime.map(|lifetime| Instant::now() + lifetime * 9 / 10);
    }

    async fn request_versions(&self) -> Result<HashMap<i16, (i16, i16)>, KafkaError> {
        let answer = self
            .request_version(API_VERSIONS, 0, &[], self.timeout)
            .await?;
        let (code, versions) = answer.read(|take, _| {
            let code = ErrorCode::take(take)?;
            let count = take.count()?;
            let versions = (0..count).map(|_| Ok((take.i16()?, (take.i16()?, take.i16()?))));
            Ok((code, versions.collect::<Result<_, DecodeError>>()?))
        })?;
        match code.is_error() {
            true => Err(self.failure(&format!("ApiVersions: {code}"))),
            false => Ok(versions),
        }
    }

    pub(crate) fn failure(&self, what: &str) -> KafkaError {
        KafkaError::transient(format!("{}: {what}", self.peer))
    }

    /// Whether it must not be used for new requests.
    pub(crate) fn is_closed(&self) -> bool {
        let is_old = self
            .reauthenticate_by
            .is_some_and(|until| Instant::now() >= until);
        is_old || self.shared.state().close_reason.is_some()
    }

    /// Closes the connection and notifies waiting callers.
    fn close(&self, why: &str) {
        self.shared.close(why);
        self.reading.abort();
    }

    fn close_reason(&self) -> KafkaError {
        let ended = self.shared.state().close_reason.clone();
        self.failure(ended.as_deref().unwrap_or("the connection is over"))
    }

    /// The newest version of a request that both sides support.
    fn negotiated_version(&self, api: ApiRequest) -> Result<i16, KafkaError> {
        let ApiRequest {
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

    /// Sends a request and waits for the response. `fill` writes the request in the given version.
    pub(crate) async fn request(
        &self,
        api: ApiRequest,
        fill: impl FnOnce(i16, &mut Vec<u8>),
    ) -> Result<KafkaResponse, KafkaError> {
        self.request_with_timeout(api, self.timeout, fill).await
    }

    /// As [`BrokerConnection::request`], with a longer time-out.
    pub(crate) async fn request_with_timeout(
        &self,
        api: ApiRequest,
        timeout: Duration,
        fill: impl FnOnce(i16, &mut Vec<u8>),
    ) -> Result<KafkaResponse, KafkaError> {
        let version = self.negotiated_version(api)?;
        let mut body = Vec::new();
        fill(version, &mut body);
        self.request_version(api, version, &body, timeout).await
    }

    async fn request_version(
        &self,
        api: ApiRequest,
        version: i16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<KafkaResponse, KafkaError> {
        let (sender, answered) = oneshot::channel();
        let asking = async {
            self.write(api, version, body, Some(sender)).await?;
            answered.await.map_err(|_| self.close_reason())
        };
        match tokio::time::timeout(timeout, asking).await {
            Ok(answered) => Ok(KafkaResponse {
                version,
                bytes: answered?,
                peer: self.peer.clone(),
            }),
            Err(_) => {
                let ms = timeout.as_millis();
                self.close(&format!("no answer to {} within {ms} ms", api.name));
                Err(self.close_reason())
            }
        }
    }

    /// Sends a request that has no response.
    pub(crate) async fn send_without_response(
        &self,
        api: ApiRequest,
        fill: impl FnOnce(i16, &mut Vec<u8>),
    ) -> Result<(), KafkaError> {
        let version = self.negotiated_version(api)?;
        let mut body = Vec::new();
        fill(version, &mut body);
        let telling = self.write(api, version, &body, None);
        match tokio::time::timeout(self.timeout, telling).await {
            Ok(written) => written,
            Err(_) => {
                self.close("the broker does not read");
                Err(self.close_reason())
            }
        }
    }

    async fn write(
        &self,
        api: ApiRequest,
        version: i16,
        body: &[u8],
        answer: Option<oneshot::Sender<Vec<u8>>>,
    ) -> Result<(), KafkaError> {
        let mut writer = self.writer.lock().await;
        let (writer, number) = &mut *writer;
        *number = number.wrapping_add(1) & i32::MAX;
        let bytes = encode_request(api, version, *number, &self.client_id, body);
        // Responses come in the order of requests: queue entry and write must not be separated.
        {
            let mut state = self.shared.state();
            if state.close_reason.is_some() {
                drop(state);
                return Err(self.close_reason());
            }
            state.waiting.extend(answer.map(|answer| (*number, answer)));
        }
        let whole = WriteGuard::arm(|why| self.close(why));
        let mut written = writer.write_all(&bytes).await;
        if written.is_ok() {
            written = writer.flush().await;
        }
        whole.disarm();
        written.map_err(|error| {
            self.close(&format!("the connection broke: {error}"));
            self.close_reason()
        })
    }
}

impl Drop for BrokerConnection {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn run_reader(mut reader: ReadHalf<OutboundStream>, shared: Arc<SharedPendingResponses>) {
    let why = loop {
        match read_response(&mut reader).await {
            Ok((number, bytes)) => {
                let waiting = shared.state().waiting.pop_front();
                match waiting {
                    // The caller may have stopped waiting.
                    Some((expected, answer)) if expected == number => drop(answer.send(bytes)),
                    _ => break "the broker sent an unexpected response".to_owned(),
                }
            }
            Err(why) => break why,
        }
    };
    shared.close(&why);
}

/// Reads a response with the number of its request.
async fn read_response(reader: &mut ReadHalf<OutboundStream>) -> Result<(i32, Vec<u8>), String> {
    let broken = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the broker closed the connection".to_owned(),
        _ => format!("the connection broke: {error}"),
    };
    let length = reader.read_i32().await.map_err(broken)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if !(4..=MAX_ANSWER_BYTES).contains(&length) {
        return Err("the server is not a Kafka broker, or it requires TLS".into());
    }
    let number = reader.read_i32().await.map_err(broken)?;
    // Grows with the data that really arrives.
    let mut bytes = Vec::with_capacity((length - 4).min(1 << 20));
    let mut body = reader.take(length as u64 - 4);
    body.read_to_end(&mut bytes).await.map_err(broken)?;
    match bytes.len() == length - 4 {
        true => Ok((number, bytes)),
        false => Err("the broker closed the connection".into()),
    }
}
