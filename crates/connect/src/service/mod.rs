//! All connectors, sinks and sources of a node: shards push rows into sinks, the control plane changes settings.

mod checks;
mod discarded_content;
mod inspection;
mod sink;
mod source;
mod status;
mod unsettled_rows;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::batch::SinkBatch;
use crate::connector::{Connector, ConnectorContext, ConnectorKind};
use crate::content::{ContentPort, ContentPortCell};
use crate::kinds;
use crate::push::{PushError, RequestHead, SourcePush};
use crate::row::SinkRowWriter;
use crate::settings::{SettingsError, SinkSettings};
use crate::sink_machine::dead_letters::DeadLetterObserver;
use crate::sink_machine::memory_queue::PushOutcome;
use crate::sink_machine::sink_files::SinkInventory;
use sink::ManagedSink;
use source::ManagedSource;
pub use source::{SourceMessageHandler, SourceSettings, SourceState, SourceStatus};
pub use status::{ConnectorStatus, SinkState, SinkStatus};

const MAX_CONNECTORS: usize = 10_000;
const MAX_SINKS: usize = 10_000;
const MAX_SOURCES: usize = 10_000;
/// How long a deleted sink may continue to write its rows.
const DELETED_SINK_GRACE: Duration = Duration::from_secs(5);

/// Identifies a sink for shards; constant while the process runs, also when the sink is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkId(u32);

impl SinkId {
    pub fn number(self) -> u32 {
        self.0
    }

    /// The id with this [`number`](Self::number). Unknown numbers yield the id of no sink.
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// The connectors, sinks and sources of a node.
#[derive(Clone)]
pub struct ConnectorService {
    inner: Arc<ConnectorServiceInner>,
}

pub struct ConnectorServiceOptions {
    /// The node's data directory. Without it there are no disk queues, and dead letters are lost when the process ends.
    pub directory: Option<PathBuf>,
    /// Number of threads that push.
    pub shards: usize,
}

struct ConnectorServiceInner {
    options: ConnectorServiceOptions,
    inventory: Option<Arc<SinkInventory>>,
    runtime: Handle,
    table: ArcSwap<SinkTable>,
    control: Mutex<ServiceState>,
    dead_letter_observer: Arc<OnceLock<Arc<dyn DeadLetterObserver>>>,
    content_port: ContentPortCell,
    /// The name of the node in its cluster.
    node: OnceLock<String>,
    /// For each pushing thread, the sinks with rows of it that are not in their files yet.
    unsettled: Box<[UnsettledSinks]>,
}

/// Aligned to a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct UnsettledSinks {
    is_any: AtomicBool,
    sinks: Mutex<Vec<SinkId>>,
}

impl UnsettledSinks {
    fn lock(&self) -> MutexGuard<'_, Vec<SinkId>> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the state that shards read.
#[derive(Clone, Default)]
struct SinkTable {
    sinks: Vec<Option<Arc<ManagedSink>>>,
    names: HashMap<String, SinkId>,
}

#[derive(Default)]
struct ServiceState {
    connectors: BTreeMap<String, OpenConnector>,
    sinks: BTreeMap<String, Arc<ManagedSink>>,
    sources: BTreeMap<String, ManagedSource>,
    source_handler: Option<Arc<dyn SourceMessageHandler>>,
    /// An id is never assigned to another name.
    ids: HashMap<String, SinkId>,
    /// Machines of changed or deleted sinks that are still ending; the next machine of that name waits for them.
    ending: HashMap<String, JoinHandle<Vec<SinkBatch>>>,
    is_stopping: bool,
}

struct OpenConnector {
    kind: &'static ConnectorKind,
    connector: Arc<dyn Connector>,
    description: String,
}

impl ConnectorServiceInner {
    fn control(&self) -> MutexGuard<'_, ServiceState> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes `type` and `description` from a connector's settings and returns the kind.
fn split(
    connector: &Value,
) -> Result<(&'static ConnectorKind, String, Map<String, Value>), SettingsError> {
    let mut fields = connector
        .as_object()
        .cloned()
        .ok_or_else(|| SettingsError::new("", "expected an object"))?;
    let known = || {
        let names: Vec<_> = kinds::CONNECTOR_KINDS
            .iter()
            .map(|kind| kind.name)
            .collect();
        names.join(", ")
    };
    let kind = match fields.remove("type") {
        Some(Value::String(name)) => kinds::find_kind(&name).ok_or_else(|| {
            let names = kinds::CONNECTOR_KINDS.iter().map(|kind| kind.name);
            let near = rules::nearest_name(&name, names);
            let near = near.map(|near| format!("; did you mean {near:?}?"));
            let near = near.unwrap_or_default();
            let detail = format!("unknown type {name:?}{near}; there are {}", known());
            SettingsError::new("type", detail)
        })?,
        Some(_) => return Err(SettingsError::new("type", "expected a text")),
        None => {
            let detail = format!("missing; there are {}", known());
            return Err(SettingsError::new("type", detail));
        }
    };
    let description = match fields.remove("description") {
        None => String::new(),
        Some(Value::String(text)) if text.chars().count() <= 1000 => text,
        Some(_) => {
            let detail = "expected a text of at most 1000 characters";
            return Err(SettingsError::new("description", detail));
        }
    };
    Ok((kind, description, fields))
}

impl ConnectorService {
    /// Blocking and asynchronous work runs on `runtime`, which must not be a shard's. Logs lost files of sinks.
    pub fn new(runtime: Handle, options: ConnectorServiceOptions) -> Self {
        let shards = options.shards;
        let inventory = options.directory.as_deref().map(SinkInventory::open);
        Self {
            inner: Arc::new(ConnectorServiceInner {
                options,
                inventory,
                runtime,
                table: ArcSwap::default(),
                control: Mutex::default(),
                dead_letter_observer: Arc::default(),
                content_port: Arc::default(),
                node: OnceLock::new(),
                unsettled: (0..shards.max(1))
                    .map(|_| UnsettledSinks::default())
                    .collect(),
            }),
        }
    }

    /// Registers the observer of rows that fail permanently; callable once.
    pub fn set_dead_letter_observer(&self, observer: Arc<dyn DeadLetterObserver>) {
        if self.inner.dead_letter_observer.set(observer).is_err() {
            tracing::error!(
                "dead letter observer is set twice; ignoring the second one; this is a bug"
            );
        }
    }

    /// Sets the name of this node in its cluster; callable once, before connectors are opened.
    pub fn set_node(&self, name: String) {
        if self.inner.node.set(name).is_err() {
            tracing::error!("second name of the node ignored; this is a bug");
        }
    }

    /// Sets the files that sinks export; callable once.
    pub fn set_content_port(&self, port: Arc<dyn ContentPort>) {
        if self.inner.content_port.set(port).is_err() {
            tracing::error!("content port is set twice; ignoring the second one; this is a bug");
        }
    }

    /// Whether a sink exports files; `None`: there is no such sink.
    pub fn exports_files(&self, sink: &str) -> Option<bool> {
        let control = self.inner.control();
        control.sinks.get(sink).map(|sink| sink.exports_files())
    }

    /// The present sink of this name.
    pub fn sink(&self, name: &str) -> Option<SinkId> {
        self.inner.table.load().names.get(name).copied()
    }

    /// Pushes a row, which `fill` writes, into a sink. Never waits; for shards.
    pub fn push(
        &self,
        sink: SinkId,
        shard: u16,
        fill: impl FnOnce(&mut SinkRowWriter<'_>),
    ) -> PushOutcome {
        let table = self.inner.table.load();
        match table.sinks.get(sink.0 as usize) {
            Some(Some(to)) => {
                let pushed = to.push(shard, fill);
                if to.queue.is_spooled() {
                    self.note_unsettled(shard, sink);
                }
                pushed
            }
            _ => PushOutcome::Unknown,
        }
    }

    /// Whether a sink with `on_full = "block"` is full.
    pub fn is_full(&self, sink: SinkId) -> bool {
        let table = self.inner.table.load();
        let sink = table.sinks.get(sink.0 as usize);
        matches!(sink, Some(Some(sink)) if sink.queue.is_blocking())
    }

    /// Resolves when the sink has room or no longer exists. For callers that received [`PushOutcome::Blocked`].
    pub async fn wait_for_room(&self, sink: SinkId) {
        loop {
            let room = match self.inner.table.load().sinks.get(sink.0 as usize) {
                Some(Some(sink)) => sink.queue.room_notify(),
                _ => return,
            };
            let notified = room.notified();
            if !self.is_full(sink) {
                return;
            }
            // A sink deleted in the meantime sends no notification.
            let _ = tokio::time::timeout(Duration::from_secs(1), notified).await;
        }
    }

    /// Creates or replaces a connector; its sinks continue with the new one.
    pub fn set_connector(&self, name: &str, settings: &Value) -> Result<(), SettingsError> {
        let (kind, description, fields) = split(settings)?;
        let connector = self.open(name, kind, fields)?;
        let mut control = self.inner.control();
        if !control.connectors.contains_key(name) && control.connectors.len() >= MAX_CONNECTORS {
            let detail = format!("there are {MAX_CONNECTORS} connectors already");
            return Err(SettingsError::new("", detail));
        }
        control.connectors.insert(
            name.to_owned(),
            OpenConnector {
                kind,
                connector,
                description,
            },
        );
        self.restart_sinks_of(&mut control, name);
        Ok(())
    }

    /// Removes a connector; its sinks keep their rows until a connector of that name exists again.
    pub fn remove_connector(&self, name: &str) {
        let mut control = self.inner.control();
        if control.connectors.remove(name).is_some() {
            self.restart_sinks_of(&mut control, name);
        }
    }

    fn restart_sinks_of(&self, control: &mut ServiceState, connector: &str) {
        let sinks = control.sinks.values().cloned();
        let concerned: Vec<_> = sinks.filter(|sink| sink.connector() == connector).collect();
        for sink in concerned {
            self.start(control, &sink);
        }
        let sources = control.sources.values();
        for source in sources.filter(|source| source.connector() == connector) {
            self.start_source(control, source);
        }
    }

    /// Registers the handler of received messages; sources do not start without one.
    pub fn set_source_handler(&self, handler: Arc<dyn SourceMessageHandler>) {
        let mut control = self.inner.control();
        control.source_handler = Some(handler);
        for source in control.sources.values() {
            self.start_source(&control, source);
        }
    }

    fn start_source(&self, control: &ServiceState, source: &ManagedSource) {
        if control.is_stopping {
            return;
        }
        let _runtime = self.inner.runtime.enter();
        let opened = control.connectors.get(&source.connector());
        let connector = opened.map(|opened| (opened.kind, opened.connector.clone()));
        source.start(connector, control.source_handler.clone());
    }

    /// Creates or replaces a source. It waits for its connector if that does not exist yet.
    pub fn set_source(&self, name: &str, settings: &Value) -> Result<(), SettingsError> {
        let (common, own) = SourceSettings::split(settings)?;
        let mut control = self.inner.control();
        if !control.sources.contains_key(name) && control.sources.len() >= MAX_SOURCES {
            let detail = format!("there are {MAX_SOURCES} sources already");
            return Err(SettingsError::new("", detail));
        }
        match control.sources.get(name) {
            Some(source) => source.set_settings(common, own),
            None => {
                let source = ManagedSource::new(name, common, own);
                control.sources.insert(name.to_owned(), source);
            }
        }
        if let Some(source) = control.sources.get(name) {
            self.start_source(&control, source);
        }
        Ok(())
    }

    pub fn remove_source(&self, name: &str) {
        self.inner.control().sources.remove(name);
    }

    /// Checks whether a source accepts a posted request with this head.
    pub fn admit(&self, source: &str, head: &RequestHead) -> Result<SourcePush, PushError> {
        let control = self.inner.control();
        let source = control.sources.get(source).ok_or(PushError::Unknown)?;
        source.admit(head)
    }

    pub fn sources(&self) -> Vec<SourceStatus> {
        let control = self.inner.control();
        control
            .sources
            .values()
            .map(ManagedSource::status)
            .collect()
    }

    fn connector_of(&self, name: &str) -> Result<Arc<dyn Connector>, SettingsError> {
        let control = self.inner.control();
        let opened = control.connectors.get(name);
        let opened = opened.ok_or_else(|| {
            SettingsError::new("connector", format!("there is no connector {name:?}"))
        })?;
        Ok(opened.connector.clone())
    }

    fn open(
        &self,
        name: &str,
        kind: &'static ConnectorKind,
        fields: Map<String, Value>,
    ) -> Result<Arc<dyn Connector>, SettingsError> {
        let context = ConnectorContext {
            name: name.to_owned(),
            directory: self.inner.options.directory.clone(),
            node: self.inner.node.get().cloned(),
        };
        let _runtime = self.inner.runtime.enter();
        (kind.open)(fields, &context)
    }

    /// Creates or replaces a sink. Queued rows stay in it. Without its connector, a sink keeps its rows.
    pub fn set_sink(&self, name: &str, settings: &Value) -> Result<SinkId, SettingsError> {
        let (common, own) = SinkSettings::split(settings)?;
        let mut control = self.inner.control();
        if !control.sinks.contains_key(name) && control.sinks.len() >= MAX_SINKS {
            return Err(SettingsError::new(
                "",
                format!("there are {MAX_SINKS} sinks already"),
            ));
        }
        let next = SinkId(control.ids.len() as u32);
        let id = *control.ids.entry(name.to_owned()).or_insert(next);
        let sink = match control.sinks.get(name) {
            Some(sink) => sink.clone(),
            None => {
                let sink = ManagedSink::new(
                    name,
                    &common,
                    self.inner.options.shards,
                    self.inner.inventory.as_ref().map(|all| all.files(name)),
                    self.inner.dead_letter_observer.clone(),
                    self.inner.content_port.clone(),
                    self.inner.runtime.clone(),
                )?;
                let sink = Arc::new(sink);
                control.sinks.insert(name.to_owned(), sink.clone());
                sink
            }
        };
        sink.set_settings(common, own);
        self.start(&mut control, &sink);
        self.inner.table.rcu(|table| {
            let mut table = SinkTable::clone(table);
            let slots = (id.0 as usize + 1).max(table.sinks.len());
            table.sinks.resize(slots, None);
            table.sinks[id.0 as usize] = Some(sink.clone());
            table.names.insert(name.to_owned(), id);
            table
        });
        Ok(id)
    }

    fn start(&self, control: &mut ServiceState, sink: &Arc<ManagedSink>) {
        if control.is_stopping {
            return;
        }
        let _runtime = self.inner.runtime.enter();
        let before = control.ending.remove(sink.name());
        let opened = control.connectors.get(&sink.connector());
        let connector = opened.map(|opened| (opened.kind, opened.connector.clone()));
        sink.start_task(connector, before);
    }

    /// Removes a sink. It continues to write for a few seconds; then its remaining rows and its dead letters are deleted.
    pub fn remove_sink(&self, name: &str) {
        let mut control = self.inner.control();
        let Some(sink) = control.sinks.remove(name) else {
            return;
        };
        self.inner.table.rcu(|table| {
            let mut table = SinkTable::clone(table);
            if let Some(id) = table.names.remove(name) {
                table.sinks[id.0 as usize] = None;
            }
            table
        });
        let _runtime = self.inner.runtime.enter();
        let warn = |name: &str, error: std::io::Error| {
            tracing::warn!(sink = name, %error, "files of a deleted sink could not be removed");
        };
        // At once: a new sink of this name begins a file of its own.
        if let Err(error) = sink.remove_dead_letters() {
            warn(name, error);
        }
        let content_port = self.inner.content_port.clone();
        let ending = tokio::spawn(async move {
            sink.end(DELETED_SINK_GRACE).await;
            let removing = tokio::task::spawn_blocking(move || {
                if let Some(port) = content_port.get() {
                    port.sink_removed(sink.name());
                }
                if let Err(error) = sink.remove_queue() {
                    warn(sink.name(), error);
                }
            });
            // A panic was logged.
            let _ = removing.await;
            Vec::new()
        });
        control.ending.insert(name.to_owned(), ending);
    }

    /// Stops all sinks. They continue to write until the time is over; then remaining rows stay in files if there are any, and
    /// become dead letters otherwise.
    pub async fn stop(&self, within: Duration) {
        let (sinks, ending) = {
            let mut control = self.inner.control();
            control.is_stopping = true;
            for source in control.sources.values() {
                source.stop();
            }
            let sinks: Vec<_> = control.sinks.values().cloned().collect();
            (sinks, std::mem::take(&mut control.ending))
        };
        self.inner.table.store(Arc::default());
        let ends = sinks.into_iter().map(|sink| {
            self.inner.runtime.spawn(async move {
                sink.end(within).await;
            })
        });
        let ends: Vec<_> = ends.collect();
        for end in ends {
            let _ = end.await;
        }
        for (_, end) in ending {
            let _ = tokio::time::timeout(within, end).await;
        }
    }
}
