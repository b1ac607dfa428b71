//! The control plane's handle to a running broker. Queries go to the shards as messages and are answered between two
//! turns; counters are read without a query.

mod adoption;
mod client_disconnects;
mod listeners;
mod operations;
mod permissions;
mod queues;
mod retained;

use hooks::MetricFamily;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::control::SHARD_RESPONSE_TIMEOUT;
use crate::core::inspection::{
    OldestQueuedScan, ScanStep, SessionRowScan, ShardScan, TopicScan, client_info,
};
use crate::core::node::NodeState;
use crate::core::shard::Shard;
use crate::info::{ClientInfo, ListQuery, ListenerInfo, SubscriptionInfo, TopicInfo};
use crate::metrics;
use crate::net::clock::NodeClock;
use crate::net::gateway_listener::GatewayListener;
use crate::net::inbox::{InboxItem, ShardInbox};
use crate::net::listener::ListenerContext;
use crate::net::memory_listener::MemoryListener;
use crate::net::quic::QuicListener;
use crate::net::store_reader::{PendingStoreRead, StoreReader};
use crate::net::tls::{ListenerTls, log_reload_result};

pub use adoption::{AdoptionError, AdoptionReport};
pub use client_disconnects::ClientDisconnects;
pub use operations::AcceptedPublication;
pub use permissions::{ClientPermissions, ConnectedDevice};

const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct BrokerHandle {
    shared: Arc<HandleInner>,
}

struct HandleInner {
    node: Arc<NodeState>,
    inboxes: Arc<[ShardInbox]>,
    /// In the order of their indexes in the state of the node.
    listeners: RwLock<Vec<OpenedListener>>,
    quic_listeners: Vec<Arc<QuicListener>>,
    gateway_listeners: Vec<Arc<GatewayListener>>,
    memory_listeners: Vec<Arc<MemoryListener>>,
    /// Held while a listener is started, stopped, added or removed.
    listener_change: tokio::sync::Mutex<()>,
    tls: Mutex<Vec<Arc<ListenerTls>>>,
    /// Whether the thread that reloads certificates exists.
    watches_certificates: AtomicBool,
    /// `None` without a store.
    store_reader: Option<StoreReader>,
    pending_store_read: Arc<PendingStoreRead>,
    lifecycle: NodeLifecycle,
    clock: NodeClock,
    /// How often the node has begun and ended to abandon its sessions; odd: it is doing so.
    abandonments: AtomicU64,
}

/// The listeners that a broker has opened.
pub(crate) struct OpenListeners {
    /// In the order of the configuration.
    pub(crate) opened: Vec<OpenedListener>,
    pub(crate) quic: Vec<Arc<QuicListener>>,
    pub(crate) gateways: Vec<Arc<GatewayListener>>,
    pub(crate) in_memory: Vec<Arc<MemoryListener>>,
}

/// A listener that was opened once; it may have been stopped since.
#[derive(Clone)]
pub(crate) struct OpenedListener {
    /// Without what changes: whether it runs, its connections and its certificate.
    pub(crate) info: ListenerInfo,
    pub(crate) context: Arc<ListenerContext>,
}

/// Lifecycle state of a node.
#[derive(Default)]
struct NodeLifecycle {
    ready: AtomicBool,
    stopping: AtomicBool,
}

impl NodeLifecycle {
    fn is_ready(&self) -> bool {
        self.ready.load(Relaxed) && !self.stopping.load(Relaxed)
    }
}

/// Why a node does not accept clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReadyReason {
    Starting,
    Stopping,
    /// A shard has not completed a turn for seconds.
    Stalled,
    /// Clients are referred to other nodes; see [`BrokerHandle::set_draining`].
    Draining,
}

impl BrokerHandle {
    pub(crate) fn new(
        node: Arc<NodeState>,
        inboxes: Arc<[ShardInbox]>,
        listeners: OpenListeners,
        store_reader: Option<StoreReader>,
        clock: NodeClock,
    ) -> Self {
        let OpenListeners {
            opened: listeners,
            quic: quic_listeners,
            gateways: gateway_listeners,
            in_memory: memory_listeners,
        } = listeners;
        let shared = HandleInner {
            node,
            inboxes,
            listeners: RwLock::new(listeners),
            tls: Mutex::default(),
            watches_certificates: AtomicBool::new(false),
            quic_listeners,
            gateway_listeners,
            memory_listeners,
            listener_change: tokio::sync::Mutex::default(),
            store_reader,
            pending_store_read: Arc::default(),
            lifecycle: NodeLifecycle::default(),
            clock,
            abandonments: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn set_ready(&self) {
        self.shared.lifecycle.ready.store(true, Relaxed);
    }

    pub(crate) fn set_stopping(&self) {
        self.shared.lifecycle.stopping.store(true, Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.shared.lifecycle.stopping.load(Relaxed)
    }

    pub(crate) fn inboxes(&self) -> &[ShardInbox] {
        &self.shared.inboxes
    }

    pub(crate) fn pending_store_read(&self) -> Arc<PendingStoreRead> {
        self.shared.pending_store_read.clone()
    }

    pub(crate) fn listener_tls(&self) -> Vec<Arc<ListenerTls>> {
        let listeners = self.opened_listeners();
        let tls = listeners
            .iter()
            .filter_map(|listener| listener.context.tls.clone());
        tls.collect()
    }

    fn opened_listeners(&self) -> Vec<OpenedListener> {
        let listeners = self.shared.listeners.read();
        listeners.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The listener at this index, if its clients connect by QUIC.
    fn quic_listener(&self, index: usize) -> Option<&Arc<QuicListener>> {
        let mut listeners = self.shared.quic_listeners.iter();
        listeners.find(|listener| listener.index() == index)
    }

    /// Listeners whose connections another part of the program accepts.
    pub fn gateway_listeners(&self) -> &[Arc<GatewayListener>] {
        &self.shared.gateway_listeners
    }

    /// Listeners for clients in this process.
    pub fn memory_listeners(&self) -> &[Arc<MemoryListener>] {
        &self.shared.memory_listeners
    }

    /// The TLS settings that are watched for changes.
    fn all_tls(&self) -> Vec<Arc<ListenerTls>> {
        let tls = self.shared.tls.lock();
        tls.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reloads a listener's TLS files when they change and on [`BrokerHandle::reload_certificates`], until the broker
    /// stops.
    pub fn watch_certificates(&self, tls: Arc<ListenerTls>) -> io::Result<()> {
        let mut all = self
            .shared
            .tls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.push(tls);
        if self.shared.watches_certificates.swap(true, Relaxed) {
            return Ok(());
        }
        // On a separate thread, since file access may be slow.
        let handle = self.clone();
        let watch = move || {
            while !handle.is_stopping() {
                std::thread::sleep(CERTIFICATE_CHECK_INTERVAL);
                for tls in handle.all_tls().iter().filter(|tls| tls.has_changed()) {
                    log_reload_result(tls.reload());
                }
            }
        };
        let thread = std::thread::Builder::new().name("certificates".into());
        thread.spawn(watch).map(drop)
    }

    /// Whether listeners are open, shards run and no stop is in progress.
    pub fn is_ready(&self) -> bool {
        self.shared.lifecycle.is_ready()
    }

    pub fn not_ready_reason(&self) -> Option<NotReadyReason> {
        if self.is_stopping() {
            return Some(NotReadyReason::Stopping);
        }
        if !self.is_ready() {
            return Some(NotReadyReason::Starting);
        }
        let latest_ms = self
            .shared
            .clock
            .now_ms()
            .saturating_sub(SHARD_RESPONSE_TIMEOUT.as_millis() as u64);
        let stalled = self
            .shared
            .inboxes
            .iter()
            .any(|inbox| inbox.last_turn_ms() < latest_ms);
        if stalled {
            return Some(NotReadyReason::Stalled);
        }
        self.is_draining().then_some(NotReadyReason::Draining)
    }

    /// Begins or ends a drain, during which the node accepts no new connections of clients. Sessions stay, and connections
    /// that other nodes pass on to them are accepted.
    pub fn set_draining(&self, is_draining: bool) {
        self.shared.node.is_draining.store(is_draining, Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.shared.node.is_draining.load(Relaxed)
    }

    /// Number of shards.
    fn shard_count(&self) -> usize {
        self.shared.inboxes.len()
    }

    /// Number of connections, and of sessions.
    pub fn load(&self) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        let directory = &self.shared.node.directory;
        (
            directory.connections.load(Relaxed).into(),
            directory.sessions.load(Relaxed).into(),
        )
    }

    /// Reloads the certificates of all listeners.
    pub fn reload_certificates(&self) {
        for tls in self.all_tls() {
            log_reload_result(tls.reload());
        }
    }

    /// Queries one shard; `None` if it has ended or does not answer in time.
    async fn query_shard<T: Send + 'static>(
        &self,
        shard: u16,
        query: impl FnOnce(&mut Shard) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.shared.inboxes[usize::from(shard)].push(InboxItem::Query(Box::new(move |shard| {
            // The caller may have stopped waiting.
            let _ = answer.send(query(shard));
        })));
        tokio::time::timeout(SHARD_RESPONSE_TIMEOUT, answered)
            .await
            .ok()?
            .ok()
    }

    /// Runs a query on one shard that takes several of its turns.
    async fn scan_shard<W: ShardScan>(&self, shard: u16, mut scan: W) -> Option<W::ScanResult> {
        loop {
            match self
                .query_shard(shard, move |shard| scan.step(shard))
                .await?
            {
                ScanStep::Continue(further) => scan = further,
                ScanStep::Done(answer) => return Some(answer),
            }
        }
    }

    /// Returns the answers of all shards, one after the other; a shard that does not answer is left out.
    async fn scan_all_shards<W: ShardScan>(&self, scan: impl Fn() -> W) -> Vec<W::ScanResult> {
        let mut answers = Vec::new();
        for shard in 0..self.shared.inboxes.len() as u16 {
            answers.extend(self.scan_shard(shard, scan()).await);
        }
        answers
    }

    /// Sessions with and without a connection, sorted by client id.
    pub async fn clients(&self, query: ListQuery) -> Vec<ClientInfo> {
        let scan = || SessionRowScan::<ClientInfo>::new(query.clone());
        let mut all = self.scan_all_shards(scan).await.concat();
        all.sort_by(|a, b| a.client_id.cmp(&b.client_id));
        all.truncate(query.limit);
        all
    }

    pub async fn client(&self, client_id: &str) -> Option<ClientInfo> {
        let shard = self.shared.node.directory.shard_of(client_id)?;
        let client_id = client_id.to_owned();
        let find = move |shard: &mut Shard| {
            let &session = shard.by_client_id.get(&*client_id)?;
            Some(client_info(shard, session))
        };
        self.query_shard(shard, find).await.flatten()
    }

    /// Subscriptions, sorted by client id, then topic filter.
    pub async fn subscriptions(&self, query: ListQuery) -> Vec<SubscriptionInfo> {
        let scan = || SessionRowScan::<SubscriptionInfo>::new(query.clone());
        let mut all = self.scan_all_shards(scan).await.concat();
        all.sort_by(|a, b| (&a.client_id, &a.topic_filter).cmp(&(&b.client_id, &b.topic_filter)));
        all.truncate(query.limit);
        all
    }

    /// Topic filters with subscribers, sorted; `after` is a filter here.
    pub async fn topics(&self, query: ListQuery) -> Vec<TopicInfo> {
        let mut merged: BTreeMap<String, TopicInfo> = BTreeMap::new();
        let answers = self.scan_all_shards(|| TopicScan::new(query.clone())).await;
        for topic in answers.into_iter().flatten() {
            match merged.get_mut(&topic.topic_filter) {
                Some(known) => {
                    known.subscribers += topic.subscribers;
                    known.shards.extend(topic.shards);
                }
                None => {
                    merged.insert(topic.topic_filter.clone(), topic);
                }
            }
        }
        merged.into_values().take(query.limit).collect()
    }

    /// Ends a client's connection and its session; false if there is no such client.
    pub async fn terminate_client(&self, client_id: &str) -> bool {
        let Some(shard) = self.shared.node.directory.shard_of(client_id) else {
            return false;
        };
        let client_id = client_id.to_owned();
        self.query_shard(shard, move |shard| shard.terminate_client(&client_id))
            .await
            .unwrap_or(false)
    }

    /// Ends a session that has no connection; false if there is none, or it has one.
    pub async fn discard_session(&self, client_id: &str) -> bool {
        let Some(shard) = self.shared.node.directory.shard_of(client_id) else {
            return false;
        };
        let client_id = client_id.to_owned();
        let discard = move |shard: &mut Shard| {
            let session = shard.by_client_id.get(&*client_id).copied();
            let away = session
                .is_some_and(|session| shard.delivery.sessions[session].connection.is_none());
            away && shard.terminate_client(&client_id)
        };
        self.query_shard(shard, discard).await.unwrap_or(false)
    }

    /// Counters of all shards, and retained messages. Asks no shard.
    pub fn counters(&self) -> Vec<MetricFamily> {
        let mut families = metrics::metric_families(&self.shared.node.metrics);
        let retained = self.shared.node.retained.size();
        families.push(MetricFamily::gauge(
            "retained_messages",
            "Retained messages.",
            retained.count as f64,
        ));
        families.push(MetricFamily::gauge(
            "retained_bytes",
            "Bytes of retained messages.",
            retained.bytes as f64,
        ));
        families
    }

    /// As [`BrokerHandle::counters`], with the age of the oldest queued message, which the shards look for.
    pub async fn metrics(&self) -> Vec<MetricFamily> {
        let mut families = self.counters();
        let oldest_ms = self.scan_all_shards(OldestQueuedScan::default).await;
        let oldest_s = oldest_ms.into_iter().max().unwrap_or(0) as f64 / 1000.0;
        families.push(MetricFamily::gauge(
            "session_queue_oldest_message_age_seconds",
            "Age of the oldest message that waits in a session queue.",
            oldest_s,
        ));
        families
    }
}
