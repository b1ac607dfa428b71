//! The connection for objects and members: whether its server can be used, and requests that wait for it.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::jetstream::account::Account;
use async_nats::jetstream::context::RequestErrorKind as ApiRequestErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, HeaderMap, Message, Request};
use bytes::Bytes;
use cluster::ClusterError;
use futures_util::StreamExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::client::{self, ClientEvents, ClientPurpose};
use crate::settings::{NatsSettings, NatsSettingsError};
use crate::status::{NatsState, NatsStatus};
use crate::version::{MIN_SERVER_VERSION, ServerVersion};

/// The connection is looked at this often even if it reports no event, since the library drops events that are not
/// read in time.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long to stay with a server that cannot be used before another one is tried.
const CHANGE_SERVER_INTERVAL: Duration = Duration::from_secs(10);
const ROUND_TRIP_INTERVAL: Duration = Duration::from_secs(5);
/// The default of servers.
const MIN_MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The code of errors of JetStream that pass, as in HTTP.
const SERVICE_UNAVAILABLE: usize = 503;
const COMMAND_CAPACITY: usize = 256;
/// A watch requests at most [`crate::bucket_watch`]'s number of messages at once.
const SUBSCRIPTION_CAPACITY: usize = 4096;

/// Whether there is a usable connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) state: NatsState,
    /// Number of successful connects: differs after each interruption.
    pub(crate) generation: u64,
    error: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) settings: NatsSettings,
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    events: Arc<ClientEvents>,
    readiness: watch::Sender<Readiness>,
    status: Mutex<NatsStatus>,
}

/// An error of the JetStream API.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// An error that JetStream has returned.
    Answer(jetstream::Error),
    Other(ClusterError),
}

impl From<ClusterError> for ApiError {
    fn from(error: ClusterError) -> Self {
        Self::Other(error)
    }
}

impl From<ApiError> for ClusterError {
    fn from(error: ApiError) -> Self {
        match error {
            // Temporary, for example while too few servers run or a leader is elected.
            ApiError::Answer(error)
                if error.code() == SERVICE_UNAVAILABLE
                    || error.error_code() == ErrorCode::CLUSTER_NO_PEERS =>
            {
                Self::Unreachable(error.to_string())
            }
            ApiError::Answer(error) => Self::Rejected(error.to_string()),
            ApiError::Other(error) => error,
        }
    }
}

impl Connection {
    /// Returns at once and connects in the background.
    pub(crate) async fn start(
        settings: NatsSettings,
        name: String,
    ) -> Result<Arc<Self>, NatsSettingsError> {
        let events = Arc::new(ClientEvents::default());
        let purpose = ClientPurpose {
            name,
            command_capacity: COMMAND_CAPACITY,
            subscription_capacity: SUBSCRIPTION_CAPACITY,
        };
        let client = client::start(&settings, purpose, &events).await?;
        let jetstream = jetstream::ContextBuilder::new()
            .timeout(settings.request_timeout)
            .build(client.clone());
        let status = NatsStatus {
            since_ms: wall_clock::now_ms(),
            ..NatsStatus::default()
        };
        Ok(Arc::new(Self {
            settings,
            client,
            jetstream,
            events,
            readiness: watch::Sender::new(Readiness::default()),
            status: Mutex::new(status),
        }))
    }

    /// Ends attempts to connect.
    pub(crate) fn close(&self) {
        self.events.close();
    }

    pub(crate) fn status(&self) -> NatsStatus {
        let mut status = self.status_guard().clone();
        if status.state == NatsState::Disconnected {
            status.last_error = self.events.connect_error();
        }
        status
    }

    fn status_guard(&self) -> MutexGuard<'_, NatsStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    fn set_state(&self, state: NatsState, generation: u64, error: Option<String>) {
        let changed = self.readiness.send_if_modified(|readiness| {
            let changed = Readiness {
                state,
                generation,
                error: error.clone(),
            };
            let is_changed = *readiness != changed;
            *readiness = changed;
            is_changed
        });
        if !changed {
            return;
        }
        let mut status = self.status_guard();
        if status.state != state {
            status.state = state;
            status.since_ms = wall_clock::now_ms();
        }
        status.last_error = error;
    }

    /// Follows the connection as long as the node runs.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut examined = None;
        let mut examine_at = Instant::now();
        let mut round_trip_at = Instant::now();
        let mut change_server_at = None;
        let mut has_warned = false;
        loop {
            let _ = timeout(LOOK_INTERVAL, self.events.changed.notified()).await;
            let generation = self.generation();
            if self.client.connection_state() != State::Connected {
                self.report_disconnected(generation);
                (examined, change_server_at) = (None, None);
                continue;
            }
            let now = Instant::now();
            if examined != Some(generation) {
                self.set_state(NatsState::Examining, generation, None);
                (examined, examine_at, change_server_at) = (Some(generation), now, None);
            }
            if self.readiness.borrow().state != NatsState::Ready && now >= examine_at {
                let outcome = self.examine().await;
                if self.generation() != generation {
                    continue;
                }
                examine_at = Instant::now() + RETRY_INTERVAL;
                self.record_examination(generation, &outcome);
                if outcome.is_ok() && !self.settings.is_managed && !has_warned {
                    has_warned = true;
                    warn!(
                        "NATS servers do not tell clients how often they sync files; set `sync_interval` of JetStream to \
                         at most the interval of this node's `store.fsync`, or a power failure can lose acknowledged data"
                    );
                }
                if matches!(outcome, Err(Refusal::Unusable(_))) {
                    let at = *change_server_at.get_or_insert(now + CHANGE_SERVER_INTERVAL);
                    if now >= at {
                        change_server_at = None;
                        let _ = self.client.force_reconnect().await;
                    }
                }
            }
            if self.readiness.borrow().state == NatsState::Ready && now >= round_trip_at {
                round_trip_at = now + ROUND_TRIP_INTERVAL;
                self.measure_round_trip().await;
            }
        }
    }

    fn generation(&self) -> u64 {
        self.client
            .statistics()
            .connects
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    fn report_disconnected(&self, generation: u64) {
        let error = self.events.connect_error();
        let before = self.readiness.borrow().state;
        self.set_state(NatsState::Disconnected, generation, error.clone());
        if before == NatsState::Disconnected {
            return;
        }
        self.status_guard().round_trip = None;
        warn!("the connection to the NATS server is interrupted; attempts to connect continue");
    }

    fn record_examination(&self, generation: u64, outcome: &Result<(), Refusal>) {
        let server = self.client.server_info();
        {
            let mut status = self.status_guard();
            status.server_name = Some(server.server_name.clone());
            status.server_version = Some(server.version.clone());
            status.reconnects = generation.saturating_sub(1);
        }
        let is_new = |error: &str| self.readiness.borrow().error.as_deref() != Some(error);
        match outcome {
            Ok(()) => {
                self.set_state(NatsState::Ready, generation, None);
                info!(
                    server = server.server_name,
                    version = server.version,
                    max_payload_bytes = server.max_payload,
                    "connected to NATS"
                );
            }
            Err(refusal) => {
                let (state, error) = match refusal {
                    Refusal::Unusable(error) | Refusal::NoJetStream(error) => {
                        (NatsState::Refused, error)
                    }
                    Refusal::NoAnswer(error) => (NatsState::Examining, error),
                };
                if is_new(error) {
                    warn!(error, "the NATS server cannot be used; retrying");
                }
                self.set_state(state, generation, Some(error.clone()));
            }
        }
    }

    /// Checks that JetStream answers, and what the server has told about itself. In this order: the library knows the
    /// properties of a new server only some time after it is connected.
    async fn examine(&self) -> Result<(), Refusal> {
        let request = self.jetstream.request("INFO", &());
        let answer: Result<Result<Response<Account>, _>, _> =
            timeout(self.settings.request_timeout, request).await;
        let server = self.client.server_info();
        let is_new_enough = ServerVersion::parse(&server.version)
            .is_some_and(|version| version >= MIN_SERVER_VERSION);
        let name = &server.server_name;
        if !is_new_enough {
            return Err(Refusal::Unusable(format!(
                "the NATS server {name} has version {}: at least {MIN_SERVER_VERSION} is required; update it",
                server.version
            )));
        }
        if server.max_payload < MIN_MAX_PAYLOAD_BYTES {
            return Err(Refusal::Unusable(format!(
                "the NATS server {name} accepts messages of {} bytes: at least {MIN_MAX_PAYLOAD_BYTES} are required; remove \
                 `max_payload` from its configuration",
                server.max_payload
            )));
        }
        let no_answer = |why: String| {
            Refusal::NoAnswer(format!(
                "JetStream of the NATS server {name} does not answer: {why}; check that more than half of the servers of its cluster are running"
            ))
        };
        match answer {
            Ok(Ok(Response::Ok(_))) => Ok(()),
            Ok(Ok(Response::Err { error })) => match error.error_code() {
                ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                    Err(Refusal::NoJetStream(format!(
                        "the NATS server {name} has JetStream not enabled for this user's account: {error}; \
                         add `jetstream: enabled` to the account"
                    )))
                }
                _ => Err(no_answer(error.to_string())),
            },
            Ok(Err(error)) if error.kind() == ApiRequestErrorKind::NoResponders => {
                Err(Refusal::NoJetStream(format!(
                    "the NATS server {name} has JetStream not enabled; add a block `jetstream {{ store_dir: ... }}` to its configuration"
                )))
            }
            Ok(Err(error)) => Err(no_answer(error.to_string())),
            Err(_) => Err(no_answer("no answer in time".to_owned())),
        }
    }

    async fn measure_round_trip(&self) {
        let began = Instant::now();
        let inbox = self.client.new_inbox();
        let round_trip = async {
            let mut subscriber = self.client.subscribe(inbox.clone()).await.ok()?;
            self.client.publish(inbox, Bytes::new()).await.ok()?;
            subscriber.next().await
        };
        let arrived = timeout(self.settings.request_timeout, round_trip).await;
        let duration = matches!(arrived, Ok(Some(_))).then(|| began.elapsed());
        self.status_guard().round_trip = duration;
    }

    /// Waits for a usable connection and carries out `operation`. It ends with an error as soon as the connection is lost,
    /// at the latest after the request timeout.
    pub(crate) async fn perform<T, E: From<ClusterError>>(
        &self,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let limit = self.settings.request_timeout;
        let mut readiness = self.readiness();
        let work = async {
            let generation = match readiness
                .wait_for(|readiness| readiness.state == NatsState::Ready)
                .await
            {
                Ok(readiness) => readiness.generation,
                Err(_) => return Err(unreachable("the node is stopping").into()),
            };
            let lost = readiness.wait_for(|readiness| {
                readiness.generation != generation || readiness.state != NatsState::Ready
            });
            tokio::select! {
                biased;
                outcome = operation => outcome,
                _ = lost => Err(unreachable("the connection was lost during the request").into()),
            }
        };
        match timeout(limit, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.timeout_error().into()),
        }
    }

    fn timeout_error(&self) -> ClusterError {
        let readiness = self.readiness.borrow().clone();
        match (readiness.state, readiness.error) {
            (NatsState::Refused, Some(error)) => ClusterError::Rejected(error),
            (NatsState::Ready, _) => unreachable(format!(
                "no answer within {} ms",
                self.settings.request_timeout.as_millis()
            )),
            (_, error) => unreachable(
                error
                    .or_else(|| self.events.connect_error())
                    .unwrap_or_else(|| "there is no connection yet".to_owned()),
            ),
        }
    }

    /// A request to the JetStream API, such as `STREAM.INFO.name`.
    pub(crate) async fn api<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        subject: String,
        body: &B,
    ) -> Result<T, ApiError> {
        match self.jetstream.request(subject, body).await {
            Ok(Response::Ok(answer)) => Ok(answer),
            Ok(Response::Err { error }) => Err(ApiError::Answer(error)),
            Err(error) => Err(unreachable(error.to_string()).into()),
        }
    }

    /// Sends a message to a stream and returns its answer; `None` if no server is responsible for the subject now, so
    /// that the message was not stored.
    pub(crate) async fn publish(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Option<Message>, ClusterError> {
        let request = Request::new().headers(headers).payload(payload);
        match self.client.send_request(subject, request).await {
            Ok(message) => Ok(Some(message)),
            Err(error) => match error.kind() {
                RequestErrorKind::NoResponders => Ok(None),
                RequestErrorKind::MaxPayloadExceeded => Err(ClusterError::Rejected(format!(
                    "{error}; remove `max_payload` from the configuration of the NATS servers"
                ))),
                RequestErrorKind::InvalidSubject => Err(ClusterError::Rejected(error.to_string())),
                RequestErrorKind::TimedOut | RequestErrorKind::Other => {
                    Err(unreachable(error.to_string()))
                }
            },
        }
    }

    /// Copies of each bucket, by the setting or the number of known servers.
    pub(crate) fn replicas(&self) -> usize {
        if let Some(replicas) = self.settings.replicas {
            return usize::from(replicas);
        }
        let discovered = self.client.server_info().connect_urls.len();
        let servers = discovered.max(self.settings.urls.len());
        debug!(servers, "number of NATS servers");
        if servers >= 3 { 3 } else { 1 }
    }
}

pub(crate) fn unreachable(why: impl Into<String>) -> ClusterError {
    ClusterError::Unreachable(why.into())
}

/// Why a server is not used.
#[derive(Debug)]
enum Refusal {
    /// Another server of the same cluster may be usable.
    Unusable(String),
    NoJetStream(String),
    /// It may be usable soon.
    NoAnswer(String),
}
