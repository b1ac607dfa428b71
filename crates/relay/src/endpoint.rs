//! One endpoint at run time: its definition, its connections, its last messages and its counters.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::HashSet;
use hooks::relay::{
    RELAY_TOPIC_PREFIX, RelayClose, RelayConnection, RelayEndpoint, RelayLimits, RelayPayloadKind,
    SlowReceiverPolicy,
};
use hooks::{MessageView, PeerAddress};
use schemars::JsonSchema;
use serde::Serialize;

use crate::access_key::AccessKeyHash;
use crate::definition::{EndpointDefinition, RelayMode, SlowReceivers};
use crate::envelope;
use crate::message_history::{HistoryEntry, KeptPayload, MessageHistory};
use crate::statistics::{EndpointStatistics, StatisticsCounters};

/// A definition prepared for the shards.
pub(crate) struct ActiveDefinition {
    pub(crate) definition: EndpointDefinition,
    pub(crate) access_key: Option<AccessKeyHash>,
    limits: RelayLimits,
}

impl From<EndpointDefinition> for ActiveDefinition {
    fn from(definition: EndpointDefinition) -> Self {
        Self {
            access_key: definition.access_key(),
            limits: RelayLimits {
                max_message_bytes: definition.max_message_bytes,
                max_backlog_bytes: definition.max_backlog_bytes,
                slow_receiver: match definition.slow_receivers {
                    SlowReceivers::DropOldest => SlowReceiverPolicy::DropOldest,
                    SlowReceivers::Disconnect => SlowReceiverPolicy::Disconnect,
                },
                max_messages_per_s: definition.max_messages_per_s,
                max_bytes_per_s: definition.max_bytes_per_s,
                ping_interval_s: definition.ping_interval_s,
            },
            definition,
        }
    }
}

pub(crate) struct Endpoint {
    pub(crate) id: String,
    topic: String,
    active: ArcSwap<ActiveDefinition>,
    /// Whether the mode of `active` is [`RelayMode::Direct`]: then encoding needs nothing else of it.
    is_direct: AtomicBool,
    connections: Mutex<HashSet<ConnectionById, RandomState>>,
    history: Mutex<MessageHistory>,
    pub(crate) counters: StatisticsCounters,
}

const NAME_PREFIX: &str = "connection ";

/// An open connection. Its parts share this, since most connections are idle and there are many.
pub(crate) struct EndpointConnection {
    /// The sender of its messages in the history, unless it is a device: [`NAME_PREFIX`] and its id.
    name: Box<str>,
    pub(crate) handle: Arc<dyn RelayConnection>,
    pub(crate) peer: PeerAddress,
    pub(crate) connected_ms: u64,
}

impl EndpointConnection {
    pub(crate) fn new(
        id: &str,
        handle: Arc<dyn RelayConnection>,
        (peer, connected_ms): (PeerAddress, u64),
    ) -> Arc<Self> {
        Arc::new(Self {
            name: [NAME_PREFIX, id].concat().into(),
            handle,
            peer,
            connected_ms,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn id(&self) -> &str {
        &self.name[NAME_PREFIX.len()..]
    }
}

/// Found by its id.
struct ConnectionById(Arc<EndpointConnection>);

impl Borrow<str> for ConnectionById {
    fn borrow(&self) -> &str {
        self.0.id()
    }
}

impl PartialEq for ConnectionById {
    fn eq(&self, other: &Self) -> bool {
        self.0.id() == other.0.id()
    }
}

impl Eq for ConnectionById {}

impl Hash for ConnectionById {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id().hash(state);
    }
}

/// A connection of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ConnectionSummary {
    pub connection_id: String,
    /// `ip:port`, or `unix`.
    pub peer_address: String,
    /// Milliseconds since the Unix epoch.
    pub connected_at_ms: u64,
}

/// The state of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EndpointStatus {
    pub id: String,
    pub namespace: String,
    /// Whether clients can connect.
    pub is_enabled: bool,
    #[serde(flatten)]
    pub statistics: EndpointStatistics,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Messages and bytes of the history.
fn history_limits(definition: &EndpointDefinition) -> (usize, usize) {
    (
        usize::from(definition.history_messages),
        definition.history_bytes as usize,
    )
}

impl Endpoint {
    pub(crate) fn new(
        id: &str,
        definition: EndpointDefinition,
        counters: StatisticsCounters,
    ) -> Self {
        Self {
            id: id.to_owned(),
            topic: format!("{RELAY_TOPIC_PREFIX}{id}"),
            is_direct: AtomicBool::new(definition.mode == RelayMode::Direct),
            active: ArcSwap::from_pointee(definition.into()),
            connections: Mutex::default(),
            history: Mutex::default(),
            counters,
        }
    }

    /// The broker's client id of a connection: the topic, `/`, and the id of the connection.
    pub(crate) fn client_id(&self, connection_id: &str) -> String {
        format!("{}/{connection_id}", self.topic)
    }

    pub(crate) fn active(&self) -> arc_swap::Guard<Arc<ActiveDefinition>> {
        self.active.load()
    }

    pub(crate) fn set_definition(&self, definition: EndpointDefinition) {
        let is_direct = definition.mode == RelayMode::Direct;
        let limits = history_limits(&definition);
        self.active.store(Arc::new(definition.into()));
        // After the definition, so that messages that other shards keep meanwhile have the new limits, too.
        lock(&self.history).limit_to(limits);
        self.is_direct.store(is_direct, Relaxed);
    }

    pub(crate) fn add_connection(&self, connection: Arc<EndpointConnection>) {
        lock(&self.connections).insert(ConnectionById(connection));
    }

    pub(crate) fn remove_connection(&self, id: &str) {
        lock(&self.connections).remove(id);
        self.counters.disconnect();
    }

    /// Closes all connections.
    pub(crate) fn close_all(&self, close: &RelayClose) {
        let handles: Vec<_> = lock(&self.connections)
            .iter()
            .map(|connection| connection.0.handle.clone())
            .collect();
        for handle in handles {
            handle.close(close.clone());
        }
    }

    /// Sends a text message to all connections and returns their number.
    pub(crate) fn send_to_all(&self, text: &str) -> usize {
        let connections = lock(&self.connections);
        for connection in connections.iter() {
            connection.0.handle.send_text(text.to_owned());
        }
        connections.len()
    }

    /// Sends a text message to one connection; false if there is none with this id.
    pub(crate) fn send_to_connection(&self, id: &str, text: String) -> bool {
        let connections = lock(&self.connections);
        let Some(connection) = connections.get(id) else {
            return false;
        };
        connection.0.handle.send_text(text);
        true
    }

    /// Closes one connection; false if there is none with this id.
    pub(crate) fn close_connection(&self, id: &str, close: RelayClose) -> bool {
        let connections = lock(&self.connections);
        let Some(connection) = connections.get(id) else {
            return false;
        };
        connection.0.handle.close(close);
        true
    }

    /// The connections in the order of their ids, after `after`.
    pub(crate) fn connections(&self, after: Option<&str>, limit: usize) -> Vec<ConnectionSummary> {
        let connections = lock(&self.connections);
        let mut found: Vec<&EndpointConnection> = connections
            .iter()
            .map(|connection| &*connection.0)
            .filter(|connection| after.is_none_or(|after| connection.id() > after))
            .collect();
        found.sort_unstable_by(|one, other| one.id().cmp(other.id()));
        found.truncate(limit);
        let summary = |connection: &EndpointConnection| ConnectionSummary {
            connection_id: connection.id().to_owned(),
            peer_address: connection.peer.to_string(),
            connected_at_ms: connection.connected_ms,
        };
        found.into_iter().map(summary).collect()
    }

    /// Keeps the last ones of these messages.
    pub(crate) fn keep_messages<'p>(
        &self,
        payloads: impl ExactSizeIterator<Item = KeptPayload<'p>>,
        sender: &str,
        at_ms: u64,
    ) {
        if self.active().definition.history_messages == 0 {
            return;
        }
        let mut history = lock(&self.history);
        // Under the lock, so that lower limits that were applied meanwhile are not exceeded.
        let limits = history_limits(&self.active().definition);
        if limits.0 == 0 {
            return;
        }
        let obsolete = payloads.len().saturating_sub(limits.0);
        for (position, payload) in payloads.enumerate() {
            if position >= obsolete {
                history.push(payload, sender, at_ms, limits);
            }
        }
    }

    pub(crate) fn history(&self, limit: usize) -> Vec<HistoryEntry> {
        lock(&self.history).newest(limit)
    }

    pub(crate) fn status(&self) -> EndpointStatus {
        let active = self.active();
        EndpointStatus {
            id: self.id.clone(),
            namespace: active.definition.namespace.clone(),
            is_enabled: active.definition.disabled_reason.is_none(),
            statistics: self.counters.statistics(),
        }
    }
}

impl RelayEndpoint for Endpoint {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn limits(&self) -> RelayLimits {
        self.active().limits
    }

    fn is_direct(&self) -> bool {
        self.is_direct.load(Relaxed)
    }

    fn encode(&self, message: &MessageView<'_>, payload: &mut Vec<u8>) -> RelayPayloadKind {
        if self.is_direct.load(Relaxed) {
            return envelope::encode(RelayMode::Direct, "", message, payload);
        }
        let active = self.active();
        let header = active.definition.header.as_deref().unwrap_or("");
        envelope::encode(active.definition.mode, header, message, payload)
    }

    fn record_dropped(&self, messages: u64) {
        self.counters.dropped(messages);
    }
}
