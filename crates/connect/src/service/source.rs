//! Sources: readers of connectors that run, are started again after an error, and hand on what they receive.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Opened, Service};
use crate::connector::{Doing, Failure, Inlet, Reader, Received};
use crate::machine::circuit::pause;
use crate::settings::{Invalid, Retry, read};

const MAX_SOURCES: usize = 1000;
/// A reader that ran for so long was well; its next failure is the first again.
const WELL_AFTER: Duration = Duration::from_secs(60);
const COMMON: [&str; 3] = ["connector", "description", "enabled"];

/// Takes what sources receive: the node's rules with `FROM "$bridges/TYPE:NAME"`.
pub trait Receiver: Send + Sync + 'static {
    /// `bridge` is `TYPE:NAME`. Resolves once the message was taken; only then is it acknowledged to where it came from.
    fn take<'a>(&'a self, bridge: &'a str, message: Received) -> Doing<'a, ()>;
}

/// The part of a source's settings that is the same for all kinds of connectors.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceSettings {
    /// The connector it receives by, by name.
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

/// How a source is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceStatus {
    pub name: String,
    pub connector: String,
    /// What rules call it: `TYPE:NAME`; none while there is no connector.
    pub bridge: Option<String>,
    /// Whether it receives, as far as is known.
    pub is_running: bool,
    /// Why it does not, or did not the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Messages that were taken.
    pub received: u64,
    /// How often it was started again after an error.
    pub restarts: u64,
}

/// All sources of a service.
#[derive(Default)]
pub(super) struct Sources {
    all: BTreeMap<String, Source>,
    receiver: Option<Arc<dyn Receiver>>,
}

struct Source {
    common: SourceSettings,
    own: Map<String, Value>,
    bridge: Option<String>,
    stats: Arc<Stats>,
    running: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stats {
    is_running: AtomicBool,
    received: AtomicU64,
    restarts: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl Stats {
    fn problem(&self) -> MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn split(source: &Value) -> Result<(SourceSettings, Map<String, Value>), Invalid> {
    let fields = source
        .as_object()
        .cloned()
        .ok_or_else(|| Invalid::new("", "expected an object"))?;
    let (common, own): (Map<_, _>, Map<_, _>) = fields
        .into_iter()
        .partition(|(name, _)| COMMON.contains(&name.as_str()));
    Ok((read(common)?, own))
}

impl Source {
    /// Starts it with the settings there are now, after the reader before has ended.
    fn start(&mut self, name: &str, opened: Option<&Opened>, receiver: Option<&Arc<dyn Receiver>>) {
        let before = self.running.take();
        if let Some(before) = &before {
            before.abort();
        }
        self.stats.is_running.store(false, Relaxed);
        self.bridge = opened.map(|opened| format!("{}:{name}", opened.kind.name));
        let reader = match opened {
            None => {
                let connector = &self.common.connector;
                Err(format!("there is no connector {connector:?}"))
            }
            Some(opened) => {
                let reader = opened.connector.clone().reader(self.own.clone());
                reader.map_err(|error| error.to_string())
            }
        };
        let reader = match reader {
            Ok(reader) => reader,
            Err(why) => {
                *self.stats.problem() = Some(why);
                return;
            }
        };
        *self.stats.problem() = None;
        let (Some(receiver), Some(bridge), true) =
            (receiver, self.bridge.clone(), self.common.enabled)
        else {
            return;
        };
        let inlet = Counting {
            bridge,
            receiver: receiver.clone(),
            stats: self.stats.clone(),
        };
        let name = name.to_owned();
        self.running = Some(tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            run(&name, &*reader, &inlet).await;
        }));
    }

    fn status(&self, name: &str) -> SourceStatus {
        SourceStatus {
            name: name.to_owned(),
            connector: self.common.connector.clone(),
            bridge: self.bridge.clone(),
            is_running: self.stats.is_running.load(Relaxed),
            problem: self.stats.problem().clone(),
            received: self.stats.received.load(Relaxed),
            restarts: self.stats.restarts.load(Relaxed),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

struct Counting {
    bridge: String,
    receiver: Arc<dyn Receiver>,
    stats: Arc<Stats>,
}

impl Inlet for Counting {
    fn take<'a>(&'a self, message: Received) -> Doing<'a, ()> {
        Box::pin(async move {
            self.receiver.take(&self.bridge, message).await;
            self.stats.received.fetch_add(1, Relaxed);
        })
    }
}

/// Reads for ever, with a pause after each error.
async fn run(name: &str, reader: &dyn Reader, inlet: &Counting) {
    let retry = Retry::default();
    let mut failures = 0;
    loop {
        let started = Instant::now();
        inlet.stats.is_running.store(true, Relaxed);
        let failure = caught(reader, inlet).await;
        inlet.stats.is_running.store(false, Relaxed);
        if started.elapsed() > WELL_AFTER {
            failures = 0;
        }
        failures += 1;
        if failures == 1 {
            tracing::warn!(source = name, error = %failure, "a source receives no more; it is started again");
        }
        *inlet.stats.problem() = Some(failure.message.clone());
        let wait = pause(&retry, failures).max(failure.retry_after.unwrap_or_default());
        tokio::time::sleep(wait).await;
        inlet.stats.restarts.fetch_add(1, Relaxed);
    }
}

/// A panic of a reader is a failure.
async fn caught(reader: &dyn Reader, inlet: &Counting) -> Failure {
    let mut reading = reader.read(inlet);
    std::future::poll_fn(move |context| {
        let polled = AssertUnwindSafe(|| reading.as_mut().poll(context));
        std::panic::catch_unwind(polled).unwrap_or_else(|_| {
            let what = "the connector panicked; this is a bug, please report it";
            std::task::Poll::Ready(Failure::passing(what))
        })
    })
    .await
}

impl Service {
    /// Who takes what sources receive; until it is said no source runs.
    pub fn set_receiver(&self, receiver: Arc<dyn Receiver>) {
        let mut control = self.inner.control();
        control.sources.receiver = Some(receiver);
        self.start_sources(&mut control, |_| true);
    }

    /// Whether these are settings of a source.
    pub fn check_source(&self, settings: &Value) -> Result<(), Invalid> {
        let (common, own) = split(settings)?;
        let connector = {
            let control = self.inner.control();
            let opened = control.connectors.get(&common.connector);
            let opened = opened.ok_or_else(|| {
                let detail = format!("there is no connector {:?}", common.connector);
                Invalid::new("connector", detail)
            })?;
            opened.connector.clone()
        };
        let _runtime = self.inner.runtime.enter();
        connector.reader(own).map(drop)
    }

    /// Makes or replaces a source. One whose connector is not there (yet) waits for it.
    pub fn set_source(&self, name: &str, settings: &Value) -> Result<(), Invalid> {
        let (common, own) = split(settings)?;
        let mut control = self.inner.control();
        let all = &mut control.sources.all;
        let count = all.len();
        match all.get_mut(name) {
            Some(source) => {
                source.common = common;
                source.own = own;
            }
            None if count >= MAX_SOURCES => {
                let detail = format!("there are {MAX_SOURCES} sources already");
                return Err(Invalid::new("", detail));
            }
            None => {
                let source = Source {
                    common,
                    own,
                    bridge: None,
                    stats: Arc::default(),
                    running: None,
                };
                all.insert(name.to_owned(), source);
            }
        }
        self.start_source(&mut control, name);
        Ok(())
    }

    pub fn remove_source(&self, name: &str) {
        self.inner.control().sources.all.remove(name);
    }

    pub fn sources(&self) -> Vec<SourceStatus> {
        let control = self.inner.control();
        let all = control.sources.all.iter();
        all.map(|(name, source)| source.status(name)).collect()
    }

    pub fn source_status(&self, name: &str) -> Option<SourceStatus> {
        let control = self.inner.control();
        control.sources.all.get(name).map(|s| s.status(name))
    }

    pub(super) fn start_sources_of(&self, control: &mut super::Control, connector: &str) {
        self.start_sources(control, |common| common.connector == connector);
    }

    fn start_sources(
        &self,
        control: &mut super::Control,
        is_concerned: impl Fn(&SourceSettings) -> bool,
    ) {
        let all = control.sources.all.iter();
        let concerned = all.filter(|(_, source)| is_concerned(&source.common));
        let names: Vec<_> = concerned.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.start_source(control, &name);
        }
    }

    fn start_source(&self, control: &mut super::Control, name: &str) {
        if control.is_stopping {
            return;
        }
        let _runtime = self.inner.runtime.enter();
        let super::Control {
            connectors,
            sources,
            ..
        } = control;
        if let Some(source) = sources.all.get_mut(name) {
            let opened = connectors.get(&source.common.connector);
            source.start(name, opened, sources.receiver.as_ref());
        }
    }
}
