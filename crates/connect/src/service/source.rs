//! Sources: what outside systems send, handed to whoever listens, which are rules with `FROM "$bridges/TYPE:NAME"`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connector::{Connector, Doing, Failure, Inlet, Kind, Reader, Received};
use crate::machine::circuit::pause;
use crate::machine::now_ms;
use crate::post::{Head, Post, Refused};
use crate::settings::{Invalid, Retry, read};

/// Fields of a source that are the same for all kinds of connectors.
const COMMON: [&str; 3] = ["connector", "description", "enabled"];

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
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn yes() -> bool {
    true
}

impl SourceSettings {
    /// Splits the settings of a source into these and those of the connector's kind.
    pub fn split(source: &Value) -> Result<(Self, Map<String, Value>), Invalid> {
        let fields = source
            .as_object()
            .ok_or_else(|| Invalid::new("", "expected an object"))?;
        let (common, own): (Map<_, _>, Map<_, _>) = fields
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .partition(|(name, _)| COMMON.contains(&name.as_str()));
        Ok((read(common)?, own))
    }
}

/// Who hears what sources receive.
pub trait Listener: Send + Sync {
    /// `kind` and `name` are those of `$bridges/KIND:NAME`. Resolves once the message has been taken: only then is it
    /// acknowledged to the system it came from.
    fn take<'a>(&'a self, kind: &'a str, name: &'a str, message: Received) -> Doing<'a, ()>;
}

/// How a source is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SourceStatus {
    pub name: String,
    pub connector: String,
    /// The type of its connector, if there is one.
    #[serde(rename = "type")]
    pub kind: Option<&'static str>,
    pub state: SourceState,
    /// Messages since the node started.
    pub received: u64,
    /// Failures in a row.
    pub failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_at_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// It receives, or tries to.
    Running,
    Disabled,
    NoConnector,
    /// Its settings do not fit its connector.
    Invalid,
}

pub(super) struct Source {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

struct Shared {
    name: String,
    received: AtomicU64,
    failures: AtomicU64,
    has_received: AtomicBool,
    last_error: Mutex<Option<(u64, String)>>,
}

struct State {
    common: SourceSettings,
    own: Map<String, Value>,
    kind: Option<&'static Kind>,
    state: SourceState,
    running: Option<Running>,
}

struct Running {
    reader: Arc<dyn Reader>,
    inlet: Arc<Counted>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn note(&self, error: String) {
        let mut last = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some((now_ms(), error));
    }
}

impl Source {
    pub(super) fn new(name: &str, common: SourceSettings, own: Map<String, Value>) -> Self {
        Self {
            shared: Arc::new(Shared {
                name: name.to_owned(),
                received: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                has_received: AtomicBool::new(false),
                last_error: Mutex::default(),
            }),
            state: Mutex::new(State {
                common,
                own,
                kind: None,
                state: SourceState::NoConnector,
                running: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, common: SourceSettings, own: Map<String, Value>) {
        let mut state = self.lock();
        state.common = common;
        state.own = own;
    }

    pub(super) fn connector(&self) -> String {
        self.lock().common.connector.clone()
    }

    /// Receives with the settings there are now.
    pub(super) fn start(
        &self,
        connector: Option<(&'static Kind, Arc<dyn Connector>)>,
        listener: Option<Arc<dyn Listener>>,
    ) {
        let mut state = self.lock();
        state.running = None;
        state.kind = connector.as_ref().map(|(kind, _)| *kind);
        let reader = connector.map(|(kind, connector)| {
            let reader = connector.reader(state.own.clone());
            reader.map(|reader| (kind, reader))
        });
        state.state = match (&reader, state.common.enabled) {
            (None, _) => SourceState::NoConnector,
            (Some(Err(error)), _) => {
                self.shared.note(error.to_string());
                SourceState::Invalid
            }
            (_, false) => SourceState::Disabled,
            (Some(Ok(_)), true) => SourceState::Running,
        };
        if let (Some(Ok((kind, reader))), Some(listener), SourceState::Running) =
            (reader, listener, state.state)
        {
            let inlet = Arc::new(Counted {
                shared: self.shared.clone(),
                kind: kind.name,
                listener,
            });
            state.running = Some(Running {
                task: tokio::spawn(receive(reader.clone(), inlet.clone())),
                reader,
                inlet,
            });
        }
    }

    pub(super) fn stop(&self) {
        self.lock().running = None;
    }

    /// Whether what somebody posts may come in.
    pub(super) fn admit(&self, head: &Head) -> Result<Post, Refused> {
        let state = self.lock();
        let Some(running) = &state.running else {
            return Err(Refused::Closed(match state.state {
                SourceState::Disabled => "the source is disabled",
                SourceState::NoConnector => "the source has no connector",
                SourceState::Invalid => "the settings of the source do not fit its connector",
                SourceState::Running => "the node starts or stops",
            }));
        };
        let admitted = running.reader.admit(head);
        if let Err(Refused::Credentials(why)) = &admitted {
            let told = format!("a request was refused: {why}");
            self.shared.note(told);
        }
        Ok(Post {
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
            connector: state.common.connector.clone(),
            kind: state.kind.map(|kind| kind.name),
            state: state.state,
            received: self.shared.received.load(Relaxed),
            failures: self.shared.failures.load(Relaxed),
            last_error,
            last_error_at_ms,
        }
    }
}

/// Receives for ever; after a failure it waits, for longer after each further one without a message in between.
async fn receive(reader: Arc<dyn Reader>, inlet: Arc<Counted>) {
    let retry = Retry::default();
    let shared = inlet.shared.clone();
    loop {
        shared.has_received.store(false, Relaxed);
        let failure = caught(reader.read(&*inlet)).await;
        if shared.has_received.load(Relaxed) {
            shared.failures.store(0, Relaxed);
        }
        let failures = shared.failures.fetch_add(1, Relaxed) + 1;
        if failures == 1 {
            tracing::warn!(source_name = shared.name, error = %failure, "a source cannot receive; it is tried again");
        }
        shared.note(failure.message.clone());
        let wait = pause(&retry, u32::try_from(failures).unwrap_or(u32::MAX))
            .max(failure.retry_after.unwrap_or_default());
        tokio::time::sleep_until(Instant::now() + wait).await;
    }
}

/// A panic of a reader is a failure like others: it must not end the source in silence.
async fn caught(mut reading: Doing<'_, Failure>) -> Failure {
    std::future::poll_fn(move |context| {
        let polled = AssertUnwindSafe(|| reading.as_mut().poll(context));
        catch_unwind(polled).unwrap_or_else(|_| {
            let what = "the connector panicked; this is a bug, please report it";
            Poll::Ready(Failure::passing(what))
        })
    })
    .await
}

/// Counts what it passes on.
struct Counted {
    shared: Arc<Shared>,
    kind: &'static str,
    listener: Arc<dyn Listener>,
}

impl Inlet for Counted {
    fn take<'a>(&'a self, message: Received) -> Doing<'a, ()> {
        self.shared.received.fetch_add(1, Relaxed);
        self.shared.has_received.store(true, Relaxed);
        self.listener.take(self.kind, &self.shared.name, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::{Failure, Writer};
    use crate::kinds::KINDS;
    use serde_json::json;
    use std::time::Duration;

    /// Receives a message, and loses its connection.
    struct Fickle;

    impl Connector for Fickle {
        fn writer(self: Arc<Self>, _: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
            Err(Invalid::new("", "nothing is written here"))
        }

        fn test(&self) -> Doing<'_, Result<String, Failure>> {
            Box::pin(std::future::ready(Ok("here".into())))
        }

        fn reader(self: Arc<Self>, _: Map<String, Value>) -> Result<Arc<dyn Reader>, Invalid> {
            Ok(self)
        }
    }

    impl Reader for Fickle {
        fn read<'a>(&'a self, inlet: &'a dyn Inlet) -> Doing<'a, Failure> {
            Box::pin(async move {
                inlet.take(Received::default()).await;
                Failure::passing("cut")
            })
        }
    }

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Listener for Heard {
        fn take<'a>(&'a self, kind: &'a str, name: &'a str, _: Received) -> Doing<'a, ()> {
            self.0.lock().unwrap().push(format!("{kind}:{name}"));
            Box::pin(std::future::ready(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_goes_on_after_its_connection_broke() {
        let (common, own) =
            SourceSettings::split(&json!({"connector": "c", "topic": "x"})).unwrap();
        assert_eq!(own.len(), 1);
        let source = Source::new("s", common, own);
        let heard = Arc::new(Heard::default());
        source.start(None, Some(heard.clone()));
        assert_eq!(source.status().state, SourceState::NoConnector);
        source.start(Some((KINDS[0], Arc::new(Fickle))), Some(heard.clone()));
        tokio::time::timeout(Duration::from_secs(60), async {
            while source.status().received < 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("it receives again and again");
        assert_eq!(source.status().last_error.as_deref(), Some("cut"));
        let expected = format!("{}:s", KINDS[0].name);
        assert!(heard.0.lock().unwrap().iter().all(|from| *from == expected));
        source.stop();
    }

    #[test]
    fn errors_name_the_field() {
        let error = SourceSettings::split(&json!({"connector": 1})).unwrap_err();
        assert_eq!(error.field, "connector");
    }
}
