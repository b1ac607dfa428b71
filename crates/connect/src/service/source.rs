//! Sources: messages received from outside systems, passed to a handler, which runs rules with `FROM "$bridges/TYPE:NAME"`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wall_clock::now_ms;

use crate::connector::{
    BoxFuture, Connector, ConnectorError, ConnectorKind, SourceMessage, SourcePort, SourceReader,
};
use crate::push::{PushError, RequestHead, SourcePush};
use crate::settings::{RetrySettings, SettingsError, parse_settings};
use crate::sink_machine::circuit_breaker::backoff;

/// Fields of a source that are the same for all kinds of connectors.
const COMMON_FIELDS: [&str; 3] = ["connector", "description", "enabled"];

/// The part of a source's settings that is the same for all kinds of connectors.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceSettings {
    /// The connector it receives from, by name.
    #[schemars(length(min = 1, max = 256))]
    pub connector: String,
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub description: String,
    #[serde(default = "default_enabled")]
    pub enabled: bool,
}

fn default_enabled() -> bool {
    true
}

impl SourceSettings {
    /// Splits the settings of a source into the common ones and those of the connector's kind.
    pub fn split(source: &Value) -> Result<(Self, Map<String, Value>), SettingsError> {
        let fields = source
            .as_object()
            .ok_or_else(|| SettingsError::new("", "expected an object"))?;
        let (common, own): (Map<_, _>, Map<_, _>) = fields
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .partition(|(name, _)| COMMON_FIELDS.contains(&name.as_str()));
        Ok((parse_settings(common)?, own))
    }
}

/// Handles the messages of all sources.
pub trait SourceMessageHandler: Send + Sync {
    /// `kind` and `name` are those of `$bridges/KIND:NAME`. Resolves once the message is processed; only then is it acknowledged
    /// to its system.
    fn handle<'a>(
        &'a self,
        kind: &'a str,
        name: &'a str,
        message: SourceMessage,
    ) -> BoxFuture<'a, ()>;
}

/// Status of a source.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SourceStatus {
    pub name: String,
    pub connector: String,
    /// Type of its connector, if that exists.
    #[serde(rename = "type")]
    pub kind: Option<&'static str>,
    pub state: SourceState,
    /// Messages received since the node started.
    pub received: u64,
    /// Consecutive failures.
    pub failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_at_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// Receives, or retries.
    Running,
    Disabled,
    NoConnector,
    /// The settings do not match the connector.
    Invalid,
}

pub(super) struct ManagedSource {
    shared: Arc<SharedSourceState>,
    state: Mutex<ManagedSourceState>,
}

struct SharedSourceState {
    name: String,
    received: AtomicU64,
    failures: AtomicU64,
    has_received: AtomicBool,
    last_error: Mutex<Option<(u64, String)>>,
}

struct ManagedSourceState {
    common_settings: SourceSettings,
    kind_settings: Map<String, Value>,
    kind: Option<&'static ConnectorKind>,
    state: SourceState,
    task: Option<SourceTask>,
}

struct SourceTask {
    reader: Arc<dyn SourceReader>,
    inlet: Arc<CountingSourcePort>,
    task: JoinHandle<()>,
}

impl Drop for SourceTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SharedSourceState {
    fn record_error(&self, error: String) {
        let mut last = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some((now_ms(), error));
    }
}

impl ManagedSource {
    pub(super) fn new(name: &str, common: SourceSettings, own: Map<String, Value>) -> Self {
        Self {
            shared: Arc::new(SharedSourceState {
                name: name.to_owned(),
                received: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                has_received: AtomicBool::new(false),
                last_error: Mutex::default(),
            }),
            state: Mutex::new(ManagedSourceState {
                common_settings: common,
                kind_settings: own,
                kind: None,
                state: SourceState::NoConnector,
                task: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ManagedSourceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_settings(&self, common: SourceSettings, own: Map<String, Value>) {
        let mut state = self.lock();
        state.common_settings = common;
        state.kind_settings = own;
    }

    pub(super) fn connector(&self) -> String {
        self.lock().common_settings.connector.clone()
    }

    /// Starts receiving with the present settings.
    pub(super) fn start(
        &self,
        connector: Option<(&'static ConnectorKind, Arc<dyn Connector>)>,
        handler: Option<Arc<dyn SourceMessageHandler>>,
    ) {
        let mut state = self.lock();
        state.task = None;
        state.kind = connector.as_ref().map(|(kind, _)| *kind);
        let reader = connector.map(|(kind, connector)| {
            let reader = connector.reader(state.kind_settings.clone());
            reader.map(|reader| (kind, reader))
        });
        state.state = match (&reader, state.common_settings.enabled) {
            (None, _) => SourceState::NoConnector,
            (Some(Err(error)), _) => {
                self.shared.record_error(error.to_string());
                SourceState::Invalid
            }
            (_, false) => SourceState::Disabled,
            (Some(Ok(_)), true) => SourceState::Running,
        };
        if let (Some(Ok((kind, reader))), Some(handler), SourceState::Running) =
            (reader, handler, state.state)
        {
            let inlet = Arc::new(CountingSourcePort {
                shared: self.shared.clone(),
                kind: kind.name,
                source_handler: handler,
            });
            state.task = Some(SourceTask {
                task: tokio::spawn(receive(reader.clone(), inlet.clone())),
                reader,
                inlet,
            });
        }
    }

    pub(super) fn stop(&self) {
        self.lock().task = None;
    }

    /// Checks whether a posted request is accepted.
    pub(super) fn admit(&self, head: &RequestHead) -> Result<SourcePush, PushError> {
        let state = self.lock();
        let Some(running) = &state.task else {
            return Err(PushError::Closed(match state.state {
                SourceState::Disabled => "the source is disabled",
                SourceState::NoConnector => "the source has no connector",
                SourceState::Invalid => "the settings of the source do not fit its connector",
                SourceState::Running => "the node starts or stops",
            }));
        };
        let admitted = running.reader.admit(head);
        if let Err(PushError::Credentials(why)) = &admitted {
            let problem_text = format!("a request was rejected: {why}");
            self.shared.record_error(problem_text);
        }
        Ok(SourcePush {
            admitted: admitted?,
            inlet: running.inlet.clone(),
        })
    }

    pub(super) fn status(&self) -> SourceStatus {
        let state = self.lock();
        let last_error = self.shared.last_error.lock();
        let last_error = last_error.unwrap_or_else(PoisonError::into_inner).clone();
        let (last_error_at_ms, last_error) = last_error.unzip();
        SourceStatus {
            name: self.shared.name.clone(),
            connector: state.common_settings.connector.clone(),
            kind: state.kind.map(|kind| kind.name),
            state: state.state,
            received: self.shared.received.load(Relaxed),
            failures: self.shared.failures.load(Relaxed),
            last_error,
            last_error_at_ms,
        }
    }
}

/// Receives forever; after a failure it pauses, for longer after each further failure without a message in between.
async fn receive(reader: Arc<dyn SourceReader>, inlet: Arc<CountingSourcePort>) {
    let retry = RetrySettings::default();
    let shared = inlet.shared.clone();
    loop {
        shared.has_received.store(false, Relaxed);
        let failure = catch_reader_panic(reader.read(&*inlet)).await;
        if shared.has_received.load(Relaxed) {
            shared.failures.store(0, Relaxed);
        }
        let failures = shared.failures.fetch_add(1, Relaxed) + 1;
        if failures == 1 {
            tracing::warn!(source_name = shared.name, error = %failure, "source failed to receive; retrying");
        }
        shared.record_error(failure.message.clone());
        let wait = backoff(&retry, u32::try_from(failures).unwrap_or(u32::MAX))
            .max(failure.retry_after.unwrap_or_default());
        tokio::time::sleep_until(Instant::now() + wait).await;
    }
}

/// Turns a panic of the reader into an error, so that the source does not end silently.
async fn catch_reader_panic(mut reading: BoxFuture<'_, ConnectorError>) -> ConnectorError {
    std::future::poll_fn(move |context| {
        let polled = AssertUnwindSafe(|| reading.as_mut().poll(context));
        catch_unwind(polled).unwrap_or_else(|_| {
            let what = "the connector panicked; this is a bug, please report it";
            Poll::Ready(ConnectorError::transient(what))
        })
    })
    .await
}

/// Counts the messages it passes on.
struct CountingSourcePort {
    shared: Arc<SharedSourceState>,
    kind: &'static str,
    source_handler: Arc<dyn SourceMessageHandler>,
}

impl SourcePort for CountingSourcePort {
    fn accept<'a>(&'a self, message: SourceMessage) -> BoxFuture<'a, ()> {
        self.shared.received.fetch_add(1, Relaxed);
        self.shared.has_received.store(true, Relaxed);
        self.source_handler
            .handle(self.kind, &self.shared.name, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::{ConnectorError, SinkWriter};
    use crate::kinds::CONNECTOR_KINDS;
    use serde_json::json;
    use std::time::Duration;

    /// Test reader that receives a message and then loses its connection.
    struct FailingReader;

    impl Connector for FailingReader {
        fn writer(
            self: Arc<Self>,
            _: Map<String, Value>,
        ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
            Err(SettingsError::new("", "nothing is written here"))
        }

        fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
            Box::pin(std::future::ready(Ok("here".into())))
        }

        fn reader(
            self: Arc<Self>,
            _: Map<String, Value>,
        ) -> Result<Arc<dyn SourceReader>, SettingsError> {
            Ok(self)
        }
    }

    impl SourceReader for FailingReader {
        fn read<'a>(&'a self, inlet: &'a dyn SourcePort) -> BoxFuture<'a, ConnectorError> {
            Box::pin(async move {
                inlet.accept(SourceMessage::default()).await;
                ConnectorError::transient("cut")
            })
        }
    }

    #[derive(Default)]
    struct RecordingHandler(Mutex<Vec<String>>);

    impl SourceMessageHandler for RecordingHandler {
        fn handle<'a>(
            &'a self,
            kind: &'a str,
            name: &'a str,
            _: SourceMessage,
        ) -> BoxFuture<'a, ()> {
            self.0.lock().unwrap().push(format!("{kind}:{name}"));
            Box::pin(std::future::ready(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_goes_on_after_its_connection_broke() {
        let (common, own) =
            SourceSettings::split(&json!({"connector": "c", "topic": "x"})).unwrap();
        assert_eq!(own.len(), 1);
        let source = ManagedSource::new("s", common, own);
        let handler = Arc::new(RecordingHandler::default());
        source.start(None, Some(handler.clone()));
        assert_eq!(source.status().state, SourceState::NoConnector);
        source.start(
            Some((CONNECTOR_KINDS[0], Arc::new(FailingReader))),
            Some(handler.clone()),
        );
        tokio::time::timeout(Duration::from_secs(60), async {
            while source.status().received < 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("it receives again and again");
        assert_eq!(source.status().last_error.as_deref(), Some("cut"));
        let expected = format!("{}:s", CONNECTOR_KINDS[0].name);
        assert!(
            handler
                .0
                .lock()
                .unwrap()
                .iter()
                .all(|from| *from == expected)
        );
        source.stop();
    }

    #[test]
    fn errors_name_the_field() {
        let error = SourceSettings::split(&json!({"connector": 1})).unwrap_err();
        assert_eq!(error.field, "connector");
    }
}
