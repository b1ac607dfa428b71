//! A fake node with fixed lists, the program around it, and a server for them on a port of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use api::{
    AnonymousRole, ApiParts, BackendObjectKind, ClusterBackend, ClusterChangeError,
    ClusterRebalance, ClusterServersError, ClusterServersFuture, ClusterStatus, ConsoleFile,
    ConsoleSite, EvictFuture, HttpConfig, NodeAnswerFuture, NodeBackend, NodeCallHandler,
    NodeFuture, NotReadyReason, ObjectBackend, ObjectValidationError, ProgramBackend,
    RebalanceChangeFuture, RebalanceError, RebalanceFuture, SettingChangeError, SettingInfo,
    TelemetryBackend, TelemetryCopyPlace,
};
use broker::config::BindAddress;
use broker::control::{
    BrokerEvent, BrokerEventKind, ControlError, ListenerError, PublishRequest, PublishResult,
    QueuedMessage, RetainedInfo, RetainedQuery, StoredMessage, SubscriptionRequest,
};
use broker::info::{ClientInfo, ListQuery, ListenerInfo, SubscriptionInfo, TopicInfo};
use connect::{ConnectorService, ConnectorServiceOptions};
use devices::alarm::{AlarmConfig, Alarms, Notifications};
use devices::command::{
    CommandConfig, Commands, DownlinkCompletion, DownlinkTransport, EncodedDownlink,
};
use devices::pull::{PullOptions, PullScheduler};
use devices::{DeviceNo, DeviceStates, Registry, RegistryConfig};
use engine::{Engine, RuleEngineSettings};
use hooks::{MetricFamily, MetricKind, MetricSample, MetricValue};
use namespaces::Namespaces;
use serde_json::{Value, json};
use series::{Series, SeriesConfig};
use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast, oneshot};
use tokio::task::JoinHandle;

use crate::absent::{NoDeviceHttpBackend, NoTelemetryBackend};

#[derive(Default)]
pub(crate) struct FakeState {
    pub(crate) clients: Mutex<Vec<ClientInfo>>,
    pub(crate) subscriptions: Mutex<Vec<SubscriptionInfo>>,
    pub(crate) not_ready: Mutex<Option<NotReadyReason>>,
    /// If set, lists of topics are returned only after a permit here.
    pub(crate) hold_topics: AtomicBool,
    pub(crate) topics_asked: Notify,
    pub(crate) let_topics_go: Notify,
    pub(crate) level: Mutex<String>,
    pub(crate) published: Mutex<Vec<PublishRequest>>,
    pub(crate) retained: Mutex<Vec<StoredMessage>>,
    pub(crate) queue: Mutex<Vec<QueuedMessage>>,
    pub(crate) stopped_listener: AtomicBool,
    pub(crate) max_qos: Mutex<u64>,
    pub(crate) has_console: AtomicBool,
    /// The cluster that the node is a member of.
    pub(crate) cluster: OnceLock<FakeCluster>,
    /// Other nodes cannot reach it.
    pub(crate) is_unreachable: AtomicBool,
    /// `None`: it has no telemetry.
    pub(crate) telemetry: OnceLock<Arc<dyn TelemetryBackend>>,
    events: Mutex<Option<broadcast::Sender<Arc<BrokerEvent>>>>,
}

impl FakeState {
    pub(crate) fn tell(&self, kind: BrokerEventKind) {
        let event = BrokerEvent { at_ms: 1, kind };
        // There may be no subscribers.
        let _ = self.sender().send(Arc::new(event));
    }

    /// The number of open event streams.
    pub(crate) fn listeners_of_events(&self) -> usize {
        self.sender().receiver_count()
    }

    fn sender(&self) -> broadcast::Sender<Arc<BrokerEvent>> {
        let mut events = self.events.lock().unwrap();
        events
            .get_or_insert_with(|| broadcast::channel(8).0)
            .clone()
    }
}

/// Clients `c000`, `c001` and so on, every third one disconnected, preceded by one with an awkward
/// name.
impl FakeState {
    pub(crate) fn with_clients(count: usize) -> Arc<Self> {
        let mut clients: Vec<_> = (0..count)
            .map(|index| client(&format!("c{index:03}"), index % 3 != 2))
            .collect();
        clients.push(client("b/ä \"1\"", true));
        clients.sort_by(|a, b| a.client_id.cmp(&b.client_id));
        Arc::new(Self {
            clients: Mutex::new(clients),
            level: Mutex::new("info".into()),
            ..Self::default()
        })
    }
}

pub(crate) fn client(client_id: &str, connected: bool) -> ClientInfo {
    ClientInfo {
        device: None,
        product: None,
        client_id: client_id.into(),
        node: None,
        username: connected.then(|| "ada".into()),
        connected,
        protocol_version: "5.0".into(),
        listener: connected.then(|| "mqtt".into()),
        peer_address: connected.then(|| "127.0.0.1:5000".into()),
        shard: 0,
        clean_start: true,
        keep_alive_s: 60,
        connected_at_ms: connected.then_some(1_700_000_000_000),
        disconnected_at_ms: None,
        disconnect_reason: None,
        session_created_at_ms: 1_700_000_000_000,
        session_expiry_s: 0,
        subscriptions: 0,
        inflight: 0,
        queued_messages: 0,
        queued_bytes: 0,
        queue_age_ms: 0,
        outbox_bytes: 0,
        messages_received: 0,
        messages_sent: 0,
        messages_dropped: 0,
    }
}

pub(crate) fn subscription(client_id: &str, topic_filter: &str) -> SubscriptionInfo {
    SubscriptionInfo {
        client_id: client_id.into(),
        node: None,
        topic_filter: topic_filter.into(),
        qos: 1,
        no_local: false,
        retain_as_published: false,
        retain_handling: 0,
        subscription_identifier: None,
        shard: 0,
    }
}

fn subscription_of(client_id: &str, new: &SubscriptionRequest) -> SubscriptionInfo {
    SubscriptionInfo {
        qos: new.qos,
        ..subscription(client_id, &new.topic_filter)
    }
}

fn is_asked_for(query: &ListQuery, client_id: &str) -> bool {
    query
        .client_id
        .as_ref()
        .is_none_or(|only| only == client_id)
        && query
            .client_id_contains
            .as_ref()
            .is_none_or(|part| client_id.contains(part))
        && query
            .after
            .as_ref()
            .is_none_or(|after| client_id > after.as_str())
}

#[derive(Clone)]
struct FakeBackend(Arc<FakeState>);

impl NodeBackend for FakeBackend {
    fn not_ready(&self) -> Option<NotReadyReason> {
        *self.0.not_ready.lock().unwrap()
    }

    fn publish(
        &self,
        publication: PublishRequest,
    ) -> NodeFuture<'_, Result<PublishResult, ControlError>> {
        Box::pin(async move {
            if publication.topic.contains('#') {
                return Err(ControlError::InvalidField {
                    field: "topic",
                    expected: "expected a topic without wildcards".into(),
                });
            }
            if publication.topic == "full" {
                return Err(ControlError::StoreUnavailable);
            }
            self.0.published.lock().unwrap().push(publication);
            Ok(PublishResult {
                has_subscribers: true,
            })
        })
    }

    fn subscribe<'a>(
        &'a self,
        client_id: &'a str,
        subscription: SubscriptionRequest,
    ) -> NodeFuture<'a, Option<Result<u8, ControlError>>> {
        Box::pin(async move {
            self.client(client_id).await?;
            let row = subscription_of(client_id, &subscription);
            self.0.subscriptions.lock().unwrap().push(row);
            Some(Ok(subscription.qos))
        })
    }

    fn unsubscribe<'a>(
        &'a self,
        client_id: &'a str,
        topic_filter: &'a str,
    ) -> NodeFuture<'a, bool> {
        Box::pin(async move {
            let mut rows = self.0.subscriptions.lock().unwrap();
            let before = rows.len();
            rows.retain(|row| row.client_id != client_id || row.topic_filter != topic_filter);
            rows.len() < before
        })
    }

    fn retained(&self, query: RetainedQuery) -> NodeFuture<'_, Vec<RetainedInfo>> {
        Box::pin(async move {
            let retained = self.0.retained.lock().unwrap();
            let rows = retained.iter().filter(|message| {
                query
                    .after
                    .as_ref()
                    .is_none_or(|after| message.topic > *after)
            });
            rows.take(query.limit)
                .map(|message| RetainedInfo {
                    topic: message.topic.clone(),
                    qos: message.qos,
                    payload_bytes: message.payload.len(),
                    published_at_ms: 1,
                    expires_at_ms: None,
                    publisher: None,
                })
                .collect()
        })
    }

    fn retained_message<'a>(&'a self, topic: &'a str) -> NodeFuture<'a, Option<StoredMessage>> {
        Box::pin(async move {
            let retained = self.0.retained.lock().unwrap();
            retained
                .iter()
                .find(|message| message.topic == topic)
                .cloned()
        })
    }

    fn delete_retained<'a>(&'a self, topic: &'a str) -> NodeFuture<'a, Result<bool, ControlError>> {
        Box::pin(async move {
            let mut retained = self.0.retained.lock().unwrap();
            let before = retained.len();
            retained.retain(|message| message.topic != topic);
            Ok(retained.len() < before)
        })
    }

    fn delete_queued<'a>(
        &'a self,
        client_id: &'a str,
        position: u64,
    ) -> NodeFuture<'a, Option<bool>> {
        Box::pin(async move {
            self.client(client_id).await?;
            let mut queue = self.0.queue.lock().unwrap();
            let before = queue.len();
            queue.retain(|queued| queued.position != position);
            Some(queue.len() < before)
        })
    }

    fn queued_messages<'a>(
        &'a self,
        client_id: &'a str,
        after: Option<u64>,
        limit: usize,
    ) -> NodeFuture<'a, Option<Vec<QueuedMessage>>> {
        Box::pin(async move {
            self.client(client_id).await?;
            let queue = self.0.queue.lock().unwrap();
            let behind = queue
                .iter()
                .filter(|queued| after.is_none_or(|after| queued.position > after));
            Some(behind.take(limit).cloned().collect())
        })
    }

    fn clear_queue<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, Option<u64>> {
        Box::pin(async move {
            self.client(client_id).await?;
            Some(std::mem::take(&mut *self.0.queue.lock().unwrap()).len() as u64)
        })
    }

    fn start_listener<'a>(&'a self, name: &'a str) -> NodeFuture<'a, Result<(), ListenerError>> {
        let _ = name;
        Box::pin(async move {
            match self.0.stopped_listener.swap(false, Ordering::SeqCst) {
                true => Ok(()),
                false => Err(ListenerError::AlreadyInState("running")),
            }
        })
    }

    fn stop_listener<'a>(
        &'a self,
        name: &'a str,
        disconnect: bool,
    ) -> NodeFuture<'a, Result<(), ListenerError>> {
        let _ = (name, disconnect);
        Box::pin(async move {
            match self.0.stopped_listener.swap(true, Ordering::SeqCst) {
                false => Ok(()),
                true => Err(ListenerError::AlreadyInState("stopped")),
            }
        })
    }

    fn events(&self) -> broadcast::Receiver<Arc<BrokerEvent>> {
        self.0.sender().subscribe()
    }

    fn listeners(&self) -> Vec<ListenerInfo> {
        vec![ListenerInfo {
            name: "mqtt".into(),
            protocol: "mqtt",
            address: "127.0.0.1:1883".into(),
            running: !self.0.stopped_listener.load(Ordering::SeqCst),
            connections: 7,
            max_connections: 10,
            allows_anonymous: true,
            certificate: None,
        }]
    }

    fn clients(&self, query: ListQuery) -> NodeFuture<'_, Vec<ClientInfo>> {
        Box::pin(async move {
            let clients = self.0.clients.lock().unwrap();
            let matching = clients.iter().filter(|client| {
                is_asked_for(&query, &client.client_id)
                    && query
                        .connected
                        .is_none_or(|connected| client.connected == connected)
                    && (query.username.is_none() || client.username == query.username)
            });
            matching.take(query.limit).cloned().collect()
        })
    }

    fn client_permissions<'a>(
        &'a self,
        _: &'a str,
    ) -> NodeFuture<'a, Option<broker::ClientPermissions>> {
        Box::pin(std::future::ready(None))
    }

    fn client<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, Option<ClientInfo>> {
        Box::pin(async move {
            let clients = self.0.clients.lock().unwrap();
            clients
                .iter()
                .find(|client| client.client_id == client_id)
                .cloned()
        })
    }

    fn subscriptions(&self, query: ListQuery) -> NodeFuture<'_, Vec<SubscriptionInfo>> {
        Box::pin(async move {
            let subscriptions = self.0.subscriptions.lock().unwrap();
            let matching = subscriptions.iter().filter(|row| {
                is_asked_for(&query, &row.client_id)
                    && query
                        .topic_filter
                        .as_ref()
                        .is_none_or(|filter| row.topic_filter == *filter)
            });
            matching.take(query.limit).cloned().collect()
        })
    }

    fn topics(&self, query: ListQuery) -> NodeFuture<'_, Vec<TopicInfo>> {
        Box::pin(async move {
            if self.0.hold_topics.load(Ordering::SeqCst) {
                self.0.topics_asked.notify_one();
                self.0.let_topics_go.notified().await;
            }
            let topic = TopicInfo {
                topic_filter: query.matches_topic.unwrap_or_else(|| "a/#".into()),
                subscribers: 2,
                shards: vec![0, 1],
            };
            vec![topic]
        })
    }

    fn terminate_client<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, bool> {
        Box::pin(async move { self.discard_session(client_id).await })
    }

    fn discard_session<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, bool> {
        Box::pin(async move {
            let mut clients = self.0.clients.lock().unwrap();
            let before = clients.len();
            clients.retain(|client| client.client_id != client_id);
            clients.len() < before
        })
    }

    fn counters(&self) -> Vec<MetricFamily> {
        let family = |name, value| MetricFamily {
            name,
            help: "Help.",
            kind: MetricKind::Gauge,
            samples: vec![MetricSample {
                labels: Vec::new(),
                value: MetricValue::Number(value),
            }],
        };
        vec![family("connections", 3.0), family("retained_bytes", 100.0)]
    }

    fn metrics(&self) -> NodeFuture<'_, Vec<MetricFamily>> {
        Box::pin(async move {
            let labels = vec![("listener", "a\"\\\nb".to_owned())];
            let family = |name, kind, value| MetricFamily {
                name,
                help: "What it is.",
                kind,
                samples: vec![MetricSample {
                    labels: labels.clone(),
                    value,
                }],
            };
            vec![
                family(
                    "messages_received_total",
                    MetricKind::Counter,
                    MetricValue::Number(12.0),
                ),
                family("connections", MetricKind::Gauge, MetricValue::Number(3.0)),
                family(
                    "publish_to_socket_seconds",
                    MetricKind::Histogram,
                    MetricValue::Histogram {
                        buckets: vec![(0.0001, 1), (0.001, 4)],
                        sum: 0.01,
                        count: 5,
                    },
                ),
            ]
        })
    }
}

/// A cluster of fake nodes, as one of them sees it.
pub(crate) struct FakeCluster {
    pub(crate) node: &'static str,
    /// Sorted by name; without a state, the node does not answer.
    pub(crate) others: Vec<(&'static str, Option<Arc<FakeState>>)>,
    /// Where copies of telemetry are.
    pub(crate) copies: Mutex<Vec<TelemetryCopyPlace>>,
    /// The API of this node.
    api: OnceLock<Arc<dyn NodeCallHandler>>,
}

impl FakeCluster {
    pub(crate) fn new(
        node: &'static str,
        others: Vec<(&'static str, Option<Arc<FakeState>>)>,
    ) -> Self {
        Self {
            node,
            others,
            copies: Mutex::default(),
            api: OnceLock::new(),
        }
    }

    fn state_of(&self, node: &str) -> Result<Arc<FakeState>, String> {
        let mut others = self.others.iter();
        let (_, state) = others.find(|(name, _)| *name == node).unwrap();
        let state = state.as_ref();
        let state = state.filter(|state| !state.is_unreachable.load(Ordering::SeqCst));
        state
            .cloned()
            .ok_or_else(|| "it cannot be reached".to_owned())
    }
}

impl ClusterBackend for FakeCluster {
    fn node(&self) -> &str {
        self.node
    }

    fn status(&self) -> ClusterStatus {
        unreachable!("no test asks for the status")
    }

    fn servers(&self) -> ClusterServersFuture<'_> {
        Box::pin(async { Err(ClusterServersError::External) })
    }

    fn other_nodes(&self) -> Vec<String> {
        let names = self.others.iter().map(|(name, _)| (*name).to_owned());
        names.collect()
    }

    fn request<'a>(&'a self, node: &'a str, request: Vec<u8>) -> NodeAnswerFuture<'a> {
        Box::pin(async move {
            let state = self.state_of(node)?;
            let answer = api::answer_node_request(&FakeBackend(state), node, &request).await?;
            Ok(answer.into())
        })
    }

    fn telemetry_copies(&self) -> Vec<TelemetryCopyPlace> {
        self.copies.lock().unwrap().clone()
    }

    fn attach_api(&self, api: Arc<dyn NodeCallHandler>) {
        assert!(self.api.set(api).is_ok(), "attached once");
    }

    fn call<'a>(&'a self, node: &'a str, request: Vec<u8>) -> NodeAnswerFuture<'a> {
        Box::pin(async move {
            let state = self.state_of(node)?;
            let api = state.cluster.get().and_then(|cluster| cluster.api.get());
            let answering = api
                .ok_or("its HTTP API is not served")?
                .answer(request.into());
            let mut lost = tokio::time::interval(std::time::Duration::from_millis(5));
            tokio::pin!(answering);
            loop {
                tokio::select! {
                    answer = &mut answering => return Ok(answer?.into()),
                    _ = lost.tick() => {
                        self.state_of(node)?;
                    }
                }
            }
        })
    }

    fn set_draining<'a>(&'a self, _node: &'a str, _is_draining: bool) -> EvictFuture<'a> {
        Box::pin(async { Err(ClusterChangeError::NotFound) })
    }

    fn rebalance(&self) -> RebalanceFuture<'_> {
        unreachable!("no test asks for the distribution")
    }

    fn start_rebalance(&self) -> RebalanceChangeFuture<'_, ClusterRebalance> {
        let reason = "Nothing is to be done.".to_owned();
        Box::pin(async { Err(RebalanceError::Conflict(reason)) })
    }

    fn cancel_rebalance(&self) -> RebalanceChangeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn evict<'a>(&'a self, _node: &'a str) -> EvictFuture<'a> {
        Box::pin(async { Err(ClusterChangeError::NotFound) })
    }
}

impl ProgramBackend for FakeState {
    fn cluster_backend(&self) -> Option<&dyn ClusterBackend> {
        let cluster = self.cluster.get()?;
        Some(cluster)
    }

    fn log_level(&self) -> String {
        self.level.lock().unwrap().clone()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        if !["info", "debug"].contains(&level) {
            return Err("expected info or debug.".into());
        }
        *self.level.lock().unwrap() = level.into();
        Ok(())
    }

    fn settings(&self) -> Vec<SettingInfo> {
        let setting = |key: &str, value: Value, changeable| SettingInfo {
            key: key.into(),
            value,
            origin: "default".into(),
            configured: None,
            changeable,
            expected: "a whole number from 0 to 2".into(),
            help: "What it is.".into(),
        };
        vec![
            setting("limits.max_qos", json!(*self.max_qos.lock().unwrap()), true),
            setting("listener.mqtt.bind", json!("127.0.0.1:1883"), false),
            setting("user.ann.credential", json!("***"), false),
        ]
    }

    fn set_setting(&self, key: &str, value: &Value) -> Result<(), SettingChangeError> {
        if key != "limits.max_qos" {
            return Err(SettingChangeError::Fixed);
        }
        let value = value.as_u64().filter(|value| *value <= 2);
        let value = value.ok_or(SettingChangeError::Invalid(
            "expected a whole number".into(),
        ))?;
        *self.max_qos.lock().unwrap() = value;
        Ok(())
    }

    fn reset_setting(&self, key: &str) -> Result<(), SettingChangeError> {
        self.set_setting(key, &json!(2))
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        vec![MetricFamily {
            name: "allocated_bytes",
            help: "Memory handed out by the allocator.",
            kind: MetricKind::Gauge,
            samples: vec![MetricSample {
                labels: vec![],
                value: MetricValue::Number(1024.0),
            }],
        }]
    }
}

/// Accepts any object with a textual `role`, and hides its `password`.
struct FakeRules;

impl ObjectBackend for FakeRules {
    fn prepare(
        &self,
        kind: BackendObjectKind,
        _id: &str,
        mut input: Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError> {
        if kind == BackendObjectKind::User && input.get("password").is_none() {
            match current {
                Some(current) => input["password"] = current["password"].clone(),
                None => {
                    return Err(ObjectValidationError {
                        field: "password".into(),
                        detail: "a new user needs one.".into(),
                    });
                }
            }
        }
        Ok(input)
    }

    fn public_view(&self, _kind: BackendObjectKind, stored: &Value) -> Value {
        let mut shown = stored.clone();
        shown.as_object_mut().unwrap().remove("password");
        shown
    }

    fn schemas(&self, _kind: BackendObjectKind) -> (Value, Value) {
        (json!({"type": "object"}), json!({"type": "object"}))
    }
}

/// No device is connected.
struct NoClients;

impl DownlinkTransport for NoClients {
    fn client_of(&self, _: DeviceNo) -> Option<Box<str>> {
        None
    }

    fn is_online(&self, _: DeviceNo) -> bool {
        false
    }

    fn send(
        &self,
        _: &str,
        _: EncodedDownlink,
        _: DownlinkCompletion,
        _: Box<dyn FnOnce() + Send>,
    ) {
    }
}

/// The content of the token file.
pub(crate) const LOCAL_TOKEN: &str = "the-local-token";

/// A server that runs until it is stopped.
pub(crate) struct Server {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) objects: store::Objects,
    pub(crate) registry: Registry,
    pub(crate) alarms: Alarms,
    pub(crate) files: transfer::FileService,
    pub(crate) observer: observe::Observer,
    pub(crate) auth: auth::AuthService,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), api::HttpServerError>>,
    _store: Arc<(store::Store, tempfile::TempDir)>,
}

impl Server {
    /// A server that grants everybody the admin role.
    pub(crate) async fn start(state: &Arc<FakeState>) -> Self {
        Self::start_with(state, config()).await
    }

    /// A server that requires credentials.
    pub(crate) async fn closed(state: &Arc<FakeState>) -> Self {
        Self::start_with(state, HttpConfig::new("127.0.0.1:0".parse().unwrap())).await
    }

    pub(crate) async fn start_with(state: &Arc<FakeState>, config: HttpConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = store::Store::open(dir.path(), store::StoreConfig::default()).unwrap();
        let objects = store.objects().clone();
        let listener = api::bind(&config).await.unwrap();
        let address = match listener.local_address().unwrap() {
            BindAddress::Tcp(address) => address,
            BindAddress::Unix(_) => ([127, 0, 0, 1], 0).into(),
        };
        let (stop, stopped) = oneshot::channel();
        let registry = Registry::open(&objects, RegistryConfig::default()).unwrap();
        let own_registry = registry.clone();
        let states = DeviceStates::new(registry.clone());
        let commands = Commands::open(
            objects.tables(),
            registry.clone(),
            Arc::new(NoClients),
            CommandConfig::default(),
        );
        let series_path = dir.path().join("telemetry");
        let (series, _) = Series::open(&series_path, SeriesConfig::default()).unwrap();
        let alarms = Alarms::open(
            objects.tables(),
            registry.clone(),
            series,
            AlarmConfig::default(),
        );
        let raised = alarms.unwrap();
        let alarms = api::AlarmService::new(
            raised.clone(),
            Arc::<Notifications>::default(),
            registry.clone(),
            objects.clone(),
            true,
        );
        let (commands, devices) = (commands.unwrap(), api::DeviceService::new(registry, states));
        let relay = relay::RelayService::new();
        relay::open_endpoints(&relay, &objects, &[]).unwrap();
        let files = transfer::TransferSettings {
            min_free_bytes: 0,
            ..transfer::TransferSettings::default()
        };
        let files = transfer::FileService::open(&dir.path().join("files"), files).unwrap();
        let own_files = files.clone();
        let namespaces = Namespaces::open(&objects, &[]).unwrap();
        files.set_namespaces(namespaces.clone());
        let firmware = firmware::FirmwareService::open(
            &objects,
            own_registry.clone(),
            files.clone(),
            &firmware::FirmwareSettings::default(),
            &[],
        );
        let observer = observe::Observer::default();
        let auth = auth::AuthService::new(&auth::AuthSettings::default(), Handle::current());
        let auth = auth.unwrap();
        let parts = ApiParts {
            firmware: firmware.unwrap(),
            node: Arc::new(FakeBackend(state.clone())),
            program: state.clone(),
            objects: objects.clone(),
            namespaces,
            object_backend: Arc::new(FakeRules),
            auth: auth.clone(),
            tls: None,
            engine: Engine::new(RuleEngineSettings::default(), 1),
            connectors: ConnectorService::new(
                Handle::current(),
                ConnectorServiceOptions {
                    directory: None,
                    shards: 1,
                },
            ),
            commands: api::CommandService::new(commands, devices.clone()),
            devices,
            console: state.clone(),
            telemetry_backend: match state.telemetry.get() {
                Some(telemetry) => telemetry.clone(),
                None => Arc::new(NoTelemetryBackend),
            },
            alarms,
            device_http_backend: Arc::new(NoDeviceHttpBackend),
            relay,
            files,
            observer: observer.clone(),
            history: observe::NodeHistory::open(&dir.path().join("history"), 7).unwrap(),
            pulls: PullScheduler::new(Handle::current(), &PullOptions::default()),
            local_token: Some(LOCAL_TOKEN.into()),
        };
        let running = tokio::spawn(async move {
            let shutdown = async { stopped.await.unwrap_or(()) };
            api::serve(
                listener,
                &api::SharedHttpConfig::new(config),
                parts,
                shutdown,
            )
            .await
        });
        Self {
            address,
            objects,
            registry: own_registry,
            files: own_files,
            observer,
            auth,
            alarms: raised,
            stop,
            running,
            _store: Arc::new((store, dir)),
        }
    }

    /// Stops the server; the handle resolves when it has ended.
    pub(crate) fn stop(self) -> JoinHandle<Result<(), api::HttpServerError>> {
        self.stop.send(()).unwrap();
        self.running
    }
}

pub(crate) fn config() -> HttpConfig {
    HttpConfig {
        anonymous_role: AnonymousRole::Admin,
        ..HttpConfig::new("127.0.0.1:0".parse().unwrap())
    }
}

/// A console of one page and one file, if the test wants one.
impl ConsoleSite for FakeState {
    fn index(&self) -> Option<&'static str> {
        let page = "<meta name=\"csp-nonce\" content=\"__CSP_NONCE__\">\
                    <meta name=\"registration\" content=\"__REGISTRATION__\">";
        self.has_console.load(Ordering::Relaxed).then_some(page)
    }

    fn missing_reason(&self) -> &'static str {
        "it was left out"
    }

    fn find(&self, path: &str) -> Option<ConsoleFile> {
        (path == "assets/app.js").then_some(ConsoleFile {
            content_type: "text/javascript; charset=utf-8",
            etag: "\"1\"",
            is_immutable: true,
            brotli: b"brotli",
            gzip: b"gzip",
        })
    }
}
