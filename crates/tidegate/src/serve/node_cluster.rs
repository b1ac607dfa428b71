//! The node as a member of a cluster: connects the node router of the broker with the other nodes over NATS.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::Context as _;
use api::{
    ClusterBackend, ClusterChangeError, ClusterMember, ClusterMessages, ClusterNats,
    ClusterObjects, ClusterRebalance, ClusterServer, ClusterStatus, EvictFuture,
    NatsConnectionState, NodeAnswerFuture, NodeCallHandler, RebalanceChangeFuture, RebalanceFuture,
};
use broker::{
    BrokerHandle, ClusterAttachment, NODE_PROTOCOL, OLDEST_NODE_PROTOCOL, PeerLoss,
    PeerNodeConnection, PeerNodeInbox, PeerNodeIx, PeerNodeTransport,
};
use bytes::Bytes;
use cluster::{
    ATTRIBUTE_RECORDS_KIND, BoxFuture, ClusterError, ClusterLease, ClusterNode,
    DEVICE_RECORDS_KIND, DownReason, FIRMWARE_RECORDS_KIND, FIRST_REQUEST_KIND, Member,
    MembershipConfig, NodeLinks as _, NodeLoad, NodeName, NodeRequests, ObjectName, PeerNodeId,
    PeerNodeInfo, PeerNodeObserver, RecordReplication, ReplicaPhase, ReplicatedObjects,
    RequestHandler, RequestLimits, SendMessage,
};
use cluster_nats::{ManagedNats, ManagedNatsState, NatsFabric, NatsSettings, NatsState};
use devices::command::Commands;
use devices::platform::Reporter;
use devices::pull::{PullScheduler, ReadingIntake};
use devices::{DeviceStates, Registry};
use firmware::FirmwareService;
use hooks::MetricFamily;
use relay::RelayService;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use standby::{SESSION_COPY_KIND, SessionCopies, SessionCopiesParts};
use store::{Store, StoreConfig};
use tokio::runtime::{Handle, Runtime};
use transfer::FileService;

use super::blocking_stage::run_blocking;
use super::cluster_commands::ClusterCommands;
use super::cluster_drain::NodeDrain;
use super::cluster_firmware::ClusterFirmware;
use super::cluster_objects::{self, ClusterReplication, NodeObjects};
use super::cluster_pulls::{self, ClusterReadings, LeasedTurn};
use super::cluster_rebalance::{self, ClusterRebalancing};
use super::cluster_standby::{BrokerSessions, standby_metrics, standby_status};
use super::node_rebalance::NodeRebalance;
use crate::config::{ClusterServers, ClusterSettings, Config, StandbyUse};
use crate::managed_server::{copies_directory, server_directory, start_server};

/// Threads for the messages between nodes. HTTP has its own ones, so that neither delays the other.
const CLUSTER_THREADS: usize = 2;
/// A member that is silent for so long counts as unreachable.
const LEASE: Duration = Duration::from_secs(5);
/// Time for which a node that starts waits for the others before it adopts sessions of which it has copies.
const RETURN_TIME: Duration = Duration::from_secs(15);
/// Received messages between nodes that wait for the router of the broker; no more are read above this size.
const MAX_RECEIVED_BYTES: usize = 64 << 20;
/// Subject of requests that the API executes, see [`api::answer_node_request`].
const CLIENT_REQUESTS: u8 = 1;
/// Subject of texts for the connections of a relay endpoint.
const RELAY_TEXTS: u8 = 2;
/// Subject of the start and the end of a drain.
const DRAINS: u8 = 3;
/// Subject of readings of pull sources for the devices of other nodes.
const READINGS: u8 = 4;
/// Subject of calls of the API, see [`api::NodeCallHandler`].
const API_CALLS: u8 = 5;
/// Subject of commands that wait for devices at other nodes.
const COMMANDS: u8 = 6;
/// Subject of images of firmware that other nodes have.
const FIRMWARE: u8 = 7;
/// Subject of rebalancing, see [`ClusterRebalancing`].
const REBALANCING: u8 = 8;
/// Time for the answer of a call of the API, which has limits of its own.
const API_CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Term of the lease of the node that polls the pull sources.
const PULL_LEASE_TERM: Duration = Duration::from_secs(15);
/// Time to end the managed server.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// The membership of this node. A clone refers to the same one.
#[derive(Clone)]
pub(super) struct NodeCluster {
    shared: Arc<NodeClusterState>,
}

struct NodeClusterState {
    settings: ClusterSettings,
    node: Arc<ClusterNode>,
    observer: Arc<BrokerObserver>,
    objects: Arc<ReplicatedObjects>,
    drain: Arc<NodeDrain>,
    rebalance: Arc<NodeRebalance>,
    pull_lease: Arc<ClusterLease>,
    sessions: Arc<BrokerSessions>,
    /// Where copies of the sessions of other nodes are, and the settings of their stores.
    copies: (PathBuf, StoreConfig),
    /// Whether the store has all of the sessions of this node, so that a standby can copy them.
    has_stored_sessions: bool,
    /// The threads that exchange the devices, their attributes and what they install.
    record_threads: std::sync::Mutex<Vec<std::thread::JoinHandle<()>>>,
    store: Store,
    fabric: NatsFabric,
    managed: Option<ManagedNats>,
    /// `None` after the stop.
    runtime: std::sync::Mutex<Option<Runtime>>,
}

/// Passes what happens at other nodes to the broker, and requests of other nodes to those who answer them.
struct BrokerObserver {
    inbox: PeerNodeInbox,
    requests: Arc<NodeRequests>,
    devices: Arc<RecordReplication>,
    attributes: Arc<RecordReplication>,
    firmware: Arc<RecordReplication>,
    session_copies: SessionCopies,
    drain: Arc<NodeDrain>,
    rebalance: Arc<NodeRebalance>,
    reporter: OnceLock<Arc<Reporter>>,
    broker: OnceLock<BrokerHandle>,
    api: OnceLock<Arc<dyn NodeCallHandler>>,
    commands: OnceLock<Arc<ClusterCommands>>,
    images: OnceLock<Arc<ClusterFirmware>>,
}

fn loss_of(reason: DownReason) -> PeerLoss {
    match reason {
        DownReason::Left | DownReason::Drained => PeerLoss::Left,
        DownReason::Silent => PeerLoss::Silent,
        DownReason::Restarted
        | DownReason::Reopened
        | DownReason::TooSlow
        | DownReason::MessageTooLarge
        | DownReason::Requested => PeerLoss::Reconnecting,
    }
}

impl PeerNodeObserver for BrokerObserver {
    fn peer_up(&self, peer: PeerNodeId, node: &NodeName, protocol: u32) {
        self.inbox
            .peer_up(connection(peer), node.as_str(), protocol);
        self.requests.peer_up(peer, node);
        self.devices.peer_up(peer);
        self.attributes.peer_up(peer);
        self.firmware.peer_up(peer);
        self.session_copies.peer_up(peer, node);
    }

    fn peer_down(&self, peer: PeerNodeId, reason: DownReason) {
        self.inbox.peer_down(index_of(peer), loss_of(reason));
        self.requests.peer_down(peer);
        self.devices.peer_down(peer);
        self.attributes.peer_down(peer);
        self.firmware.peer_down(peer);
        self.session_copies.peer_down(peer, reason);
    }

    fn message(&self, peer: PeerNodeId, message: Bytes) {
        let kind = message.first().copied().unwrap_or_default();
        match kind {
            DEVICE_RECORDS_KIND => self.devices.receive(peer, message),
            ATTRIBUTE_RECORDS_KIND => self.attributes.receive(peer, message),
            FIRMWARE_RECORDS_KIND => self.firmware.receive(peer, message),
            SESSION_COPY_KIND => self.session_copies.receive(peer, message),
            FIRST_REQUEST_KIND.. => self.requests.receive(peer, &message),
            _ => self.inbox.message(index_of(peer), message),
        }
    }

    fn members_known(&self) {
        self.inbox.members_known();
    }

    fn is_full(&self) -> bool {
        self.inbox.queued_bytes() > MAX_RECEIVED_BYTES
    }

    fn load(&self) -> NodeLoad {
        let load = self.broker.get().map(BrokerHandle::load);
        let (connections, sessions) = load.unwrap_or_default();
        NodeLoad {
            connections,
            sessions,
            is_draining: self.drain.is_draining(),
            rebalance_target: self.rebalance.target(),
        }
    }
}

/// A text that the connections of a relay endpoint get as it is, at all nodes.
#[derive(Serialize, Deserialize)]
struct RelayText {
    endpoint: String,
    text: String,
}

/// Starts or cancels the drain of a node.
#[derive(Serialize, Deserialize)]
struct DrainRequest {
    is_draining: bool,
}

/// Answers requests of other nodes.
struct BrokerRequests {
    broker: BrokerHandle,
    relay: RelayService,
    drain: Arc<NodeDrain>,
    rebalance: Arc<NodeRebalance>,
    observer: Weak<BrokerObserver>,
    node: NodeName,
}

impl RequestHandler for BrokerRequests {
    fn answer(
        &self,
        subject: u8,
        body: Bytes,
    ) -> Option<BoxFuture<'static, Result<Bytes, String>>> {
        match subject {
            CLIENT_REQUESTS => {
                let (broker, node) = (self.broker.clone(), self.node.clone());
                Some(Box::pin(async move {
                    let answer = api::answer_node_request(&broker, node.as_str(), &body);
                    answer.await.map(Bytes::from)
                }))
            }
            RELAY_TEXTS => {
                let relay = self.relay.clone();
                Some(Box::pin(async move {
                    let text: RelayText =
                        serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                    // This node may not know a new endpoint yet, and then has no connections of it.
                    let _ = relay.send_to_all(&text.endpoint, &text.text);
                    Ok(Bytes::new())
                }))
            }
            DRAINS => {
                let drain = self.drain.clone();
                Some(Box::pin(async move {
                    let request: DrainRequest =
                        serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                    drain.set_draining(request.is_draining)?;
                    Ok(Bytes::new())
                }))
            }
            REBALANCING => {
                let (rebalance, drain) = (self.rebalance.clone(), self.drain.clone());
                Some(Box::pin(cluster_rebalance::answer(rebalance, drain, body)))
            }
            READINGS => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let store = move || {
                        let reporter = observer.reporter.get().ok_or("it is starting")?;
                        cluster_pulls::store_sent_readings(reporter, &body)
                    };
                    let stored = tokio::task::spawn_blocking(store).await;
                    stored.map_err(|error| error.to_string())?
                }))
            }
            COMMANDS => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let commands = observer.commands.get().cloned();
                    let commands = commands.ok_or("it is starting")?;
                    drop(observer);
                    commands.answer(body).await
                }))
            }
            FIRMWARE => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let images = observer.images.get().cloned();
                    let images = images.ok_or("it is starting")?;
                    drop(observer);
                    images.answer(body).await
                }))
            }
            API_CALLS => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let api = observer.api.get().cloned();
                    // Not set before HTTP is served.
                    let api = api.ok_or("its HTTP API is not served")?;
                    drop(observer);
                    api.answer(body).await.map(Bytes::from)
                }))
            }
            _ => None,
        }
    }

    fn timeout(&self, subject: u8) -> Option<Duration> {
        (subject == API_CALLS).then_some(API_CALL_TIMEOUT)
    }
}

fn random_number() -> u64 {
    let mut bytes = [0; 8];
    // Only uniqueness is needed; without a source of randomness the time provides it.
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => wall_clock::now_ms().wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// There are less than 256 peers.
fn index_of(peer: PeerNodeId) -> PeerNodeIx {
    PeerNodeIx::new(peer.index() as u8)
}

fn connection(peer: PeerNodeId) -> PeerNodeConnection {
    PeerNodeConnection {
        index: index_of(peer),
        channel: peer.channel(),
    }
}

fn peer_id(peer: PeerNodeConnection) -> PeerNodeId {
    PeerNodeId::new(peer.index.get(), peer.channel)
}

/// Carries the messages of the broker.
struct ClusterTransport(Arc<ClusterNode>);

impl PeerNodeTransport for ClusterTransport {
    fn send(&self, peer: PeerNodeConnection, message: Bytes) {
        self.0.send(peer_id(peer), message);
    }

    fn queued_bytes(&self, peer: PeerNodeConnection) -> usize {
        self.0.queued_bytes(peer_id(peer))
    }

    fn reconnect(&self, peer: PeerNodeConnection) {
        self.0.reconnect(peer_id(peer));
    }
}

impl NodeCluster {
    /// Starts the managed server, if there is one, and connects to the servers. Clients of the node do not wait for
    /// that.
    pub(super) async fn open(config: &Config, store: &Store) -> anyhow::Result<Option<Self>> {
        let Some(settings) = config.cluster.clone() else {
            let objects = store.objects().clone();
            let forgotten = run_blocking("reading the record of the cluster", move || {
                cluster_objects::forget_cluster(&objects)
            });
            forgotten.await??;
            return Ok(None);
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(CLUSTER_THREADS)
            .thread_name("cluster")
            .enable_all()
            .build()
            .context("cannot start the threads of the cluster")?;
        let directory = server_directory(&config.data_dir);
        let connecting = settings.clone();
        let connected = runtime
            .spawn(async move { connect(&connecting, directory).await })
            .await;
        let (fabric, managed) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                runtime.shutdown_background();
                return Err(error);
            }
            Err(error) => {
                runtime.shutdown_background();
                return Err(error).context("connecting to the cluster panicked; this is a bug");
            }
        };
        let local = Member {
            node: settings.node.clone(),
            run_id: random_number(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: NODE_PROTOCOL,
            oldest_protocol: OLDEST_NODE_PROTOCOL,
            started_ms: wall_clock::now_ms(),
            api_url: settings.api_url.clone(),
            server_reference: config.broker.server_reference.clone(),
            connections: 0,
            sessions: 0,
            is_draining: false,
            rebalance_target: None,
        };
        let rebalance = NodeRebalance::new(settings.drain_rate, runtime.handle().clone());
        let rebalance = Arc::new(rebalance);
        let drain = NodeDrain::new(settings.drain_rate, runtime.handle().clone());
        let drain = Arc::new(drain);
        let observer = Arc::new(BrokerObserver {
            inbox: PeerNodeInbox::default(),
            requests: NodeRequests::new(RequestLimits::default()),
            devices: RecordReplication::new(DEVICE_RECORDS_KIND),
            attributes: RecordReplication::new(ATTRIBUTE_RECORDS_KIND),
            firmware: RecordReplication::new(FIRMWARE_RECORDS_KIND),
            session_copies: SessionCopies::default(),
            drain: drain.clone(),
            rebalance: rebalance.clone(),
            reporter: OnceLock::new(),
            broker: OnceLock::new(),
            api: OnceLock::new(),
            commands: OnceLock::new(),
            images: OnceLock::new(),
        });
        let mut membership = MembershipConfig {
            lease_ms: LEASE.as_millis() as u64,
            channel: cluster::ChannelLimits::default(),
        };
        let links = fabric.links();
        membership.channel.max_frame_bytes = membership
            .channel
            .max_frame_bytes
            .min(links.max_frame_bytes());
        let holder = (settings.node.clone(), local.run_id);
        let pull_lease =
            ClusterLease::new(fabric.objects(), "pull_sources", holder, PULL_LEASE_TERM);
        let node = ClusterNode::new(
            local,
            membership,
            random_number,
            fabric.members(),
            links,
            observer.clone(),
        );
        let objects = ReplicatedObjects::new(
            settings.node.clone(),
            fabric.objects(),
            Arc::new(NodeObjects(store.objects().downgrade())),
            move || format!("{:016x}{:016x}", random_number(), random_number()),
        );
        let sessions = BrokerSessions::new(observer.inbox.clone(), runtime.handle().clone());
        let copies = copies_directory(&config.data_dir);
        Ok(Some(Self {
            shared: Arc::new(NodeClusterState {
                settings,
                node,
                observer,
                objects,
                drain,
                rebalance,
                pull_lease,
                sessions: Arc::new(sessions),
                copies: (copies, config.store.clone().unwrap_or_default()),
                has_stored_sessions: config.store.is_some() && config.queue.is_none(),
                record_threads: std::sync::Mutex::default(),
                store: store.clone(),
                fabric,
                managed,
                runtime: std::sync::Mutex::new(Some(runtime)),
            }),
        }))
    }

    pub(super) fn name(&self) -> &NodeName {
        &self.shared.settings.node
    }

    /// Exchanges the devices and their attributes with the other nodes. To be called before [`start`](Self::start), and
    /// before anything changes devices. Reads all of them.
    ///
    /// # Errors
    /// If the store fails, or a thread cannot be started.
    pub(super) fn share_devices(&self, registry: &Registry) -> anyhow::Result<()> {
        let changes = registry
            .share(&self.shared.settings.node)
            .context("cannot read the versions of the devices")?;
        let observer = &self.shared.observer;
        let devices = Arc::new(registry.clone());
        let attributes = Arc::new(changes.shared_attributes);
        let threads = [
            observer
                .devices
                .start(devices, changes.devices, self.send_message()),
            observer
                .attributes
                .start(attributes, changes.attributes, self.send_message()),
        ];
        for thread in threads {
            let thread = thread.context("cannot start a thread that exchanges devices")?;
            self.record_threads().push(thread);
        }
        Ok(())
    }

    /// Exchanges what devices install with the other nodes, and copies images from them. To be called after
    /// [`share_devices`](Self::share_devices) and before [`start`](Self::start). Reads all records.
    ///
    /// # Errors
    /// If the store fails, or a thread cannot be started.
    pub(super) fn share_firmware(
        &self,
        firmware: &FirmwareService,
        files: &FileService,
        states: DeviceStates,
    ) -> anyhow::Result<()> {
        let observer = &self.shared.observer;
        let shared = firmware
            .share(
                &self.shared.settings.node,
                self.shared.store.objects().tables(),
                Box::new(move |device| states.is_online(device)),
            )
            .context("cannot read the firmware of the devices")?;
        let records = Arc::new(shared.records);
        let thread = (observer.firmware).start(records, shared.changes, self.send_message());
        let thread = thread.context("cannot start a thread that exchanges firmware")?;
        self.record_threads().push(thread);
        if let Some(runtime) = &*self.runtime() {
            let images = ClusterFirmware::start(
                firmware.clone(),
                files.clone(),
                observer.requests.clone(),
                FIRMWARE,
                runtime.handle(),
            );
            // Set once.
            let _ = observer.images.set(images);
        }
        Ok(())
    }

    fn record_threads(&self) -> std::sync::MutexGuard<'_, Vec<std::thread::JoinHandle<()>>> {
        let lock = self.shared.record_threads.lock();
        lock.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sends messages to other nodes while this one is a member.
    fn send_message(&self) -> SendMessage {
        let node = Arc::downgrade(&self.shared.node);
        Box::new(move |peer: PeerNodeId, message: Bytes| {
            if let Some(node) = node.upgrade() {
                node.send(peer, message);
            }
        })
    }

    /// Takes part in the cluster from now on.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(&self) -> anyhow::Result<ClusterAttachment> {
        if let Some(runtime) = &*self.runtime() {
            // First, so that it is told of all nodes.
            self.start_session_copies(runtime.handle())?;
            let _entered = runtime.enter();
            let requests = &self.shared.observer.requests;
            requests.attach(self.send_message(), runtime.handle().clone());
            // They end with the runtime.
            drop(self.shared.node.start());
            drop(self.shared.objects.start());
            drop(runtime.spawn(self.shared.pull_lease.clone().hold()));
            let replication = ClusterReplication {
                objects: self.shared.objects.clone(),
                runtime: runtime.handle().clone(),
            };
            let objects = self.shared.store.objects();
            objects.set_replication(Arc::new(replication));
        }
        Ok(ClusterAttachment {
            node_name: self.shared.settings.node.as_str().into(),
            transport: Arc::new(ClusterTransport(self.shared.node.clone())),
            inbox: self.shared.observer.inbox.clone(),
            start_timeout: self.shared.settings.start_timeout,
            away_timeout: self.shared.settings.away_timeout,
        })
    }

    /// Copies the sessions of this node to its standby, and keeps copies of those of other nodes.
    fn start_session_copies(&self, runtime: &Handle) -> anyhow::Result<()> {
        let shared = &self.shared;
        let (directory, copy_config) = shared.copies.clone();
        let parts = SessionCopiesParts {
            node: shared.settings.node.clone(),
            store: shared.store.clone(),
            directory,
            copy_config,
            objects: shared.fabric.objects(),
            send: self.send_message(),
            owner: shared.sessions.clone(),
            runtime: runtime.clone(),
            can_keep_copies: shared.has_stored_sessions,
            random: random_number,
            start_delay: RETURN_TIME,
            is_wanted: self.wants_standby(),
        };
        let started = shared.observer.session_copies.start(parts);
        started.context("cannot start a thread for the copies of sessions")
    }

    /// Whether this node wants a standby now.
    fn wants_standby(&self) -> Box<dyn Fn() -> bool + Send> {
        let shared = Arc::downgrade(&self.shared);
        // A server that fails later is known to exist.
        let had_three_servers = AtomicBool::new(false);
        Box::new(move || {
            let Some(shared) = shared.upgrade() else {
                return false;
            };
            let is_safe = || {
                let has_three_servers = shared.fabric.copies() >= 3;
                had_three_servers.fetch_or(has_three_servers, Ordering::Relaxed)
                    || has_three_servers
            };
            match shared.settings.standby {
                _ if !shared.has_stored_sessions => false,
                StandbyUse::Always => true,
                StandbyUse::Never => false,
                StandbyUse::Auto => is_safe(),
            }
        })
    }

    /// Waits until this node has the configuration objects of the cluster, for a limited time.
    pub(super) async fn wait_for_objects(&self) {
        let waiting = self.shared.objects.wait_until_synchronized();
        let timeout = self.shared.settings.start_timeout;
        if tokio::time::timeout(timeout, waiting).await.is_err() {
            tracing::warn!(
                "the configuration objects of the cluster did not arrive in time; this node starts with those that it has"
            );
        }
    }

    /// Reports the load of this broker to the other nodes, and answers their requests.
    pub(super) fn set_broker(&self, broker: BrokerHandle, relay: RelayService) {
        self.shared.drain.set_broker(broker.clone());
        self.shared.rebalance.set_broker(broker.clone());
        self.shared.sessions.set_broker(broker.clone());
        let requests = &self.shared.observer.requests;
        requests.set_handler(Arc::new(BrokerRequests {
            broker: broker.clone(),
            relay,
            drain: self.shared.drain.clone(),
            rebalance: self.shared.rebalance.clone(),
            observer: Arc::downgrade(&self.shared.observer),
            node: self.shared.settings.node.clone(),
        }));
        // Set once.
        let _ = self.shared.observer.broker.set(broker);
    }

    /// Takes waiting commands over from the other nodes when their devices connect to this one.
    pub(super) fn start_moving_commands(&self, commands: Commands, states: DeviceStates) {
        if let Some(runtime) = &*self.runtime() {
            let observer = &self.shared.observer;
            let requests = observer.requests.clone();
            let moving =
                ClusterCommands::start(commands, states, requests, COMMANDS, runtime.handle());
            // Set once.
            let _ = observer.commands.set(moving);
        }
    }

    /// One node polls the pull sources, and each stores the readings of its own devices. To be called within the runtime, before
    /// the sources are started; returns what they pass their readings to.
    pub(super) fn share_pulls(
        &self,
        pulls: &PullScheduler,
        reporter: Reporter,
    ) -> Arc<dyn ReadingIntake> {
        let reporter = Arc::new(reporter);
        let observer = &self.shared.observer;
        // Set once.
        let _ = observer.reporter.set(reporter.clone());
        pulls.set_turn(Arc::new(LeasedTurn(self.shared.pull_lease.clone())));
        Arc::new(ClusterReadings {
            reporter,
            requests: observer.requests.clone(),
            subject: READINGS,
            // That of the cluster ends before the sources.
            runtime: Handle::current(),
        })
    }

    /// Sends a text to the connections of a relay endpoint at all other nodes, without waiting. Nodes that cannot be
    /// reached do not get it.
    pub(super) fn send_to_relay_connections(&self, endpoint: &str, text: &str) {
        let text = RelayText {
            endpoint: endpoint.to_owned(),
            text: text.to_owned(),
        };
        let (Ok(body), Some(runtime)) = (serde_json::to_vec(&text), &*self.runtime()) else {
            return;
        };
        let requests = &self.shared.observer.requests;
        for node in requests.reachable() {
            let answer = requests.request(&node, RELAY_TEXTS, &body);
            runtime.spawn(async move {
                if let Err(error) = answer.await {
                    tracing::debug!(node = %node, %error, "an alert for a relay endpoint was not confirmed");
                }
            });
        }
    }

    fn runtime(&self) -> std::sync::MutexGuard<'_, Option<Runtime>> {
        let lock = self.shared.runtime.lock();
        lock.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Leaves the cluster.
    pub(super) async fn stop(&self) {
        let Some(runtime) = self.runtime().take() else {
            return;
        };
        // Its threads use the runtime.
        let this = self.clone();
        run_blocking("stopping the copies of sessions", move || {
            this.shared.sessions.stop();
            this.shared.observer.session_copies.stop();
        })
        .await
        .unwrap_or_else(|error| tracing::error!(%error, "the copies of sessions are not stopped"));
        let this = self.clone();
        let leaving = runtime.spawn(async move {
            this.shared.pull_lease.release().await;
            this.shared.node.leave().await;
            if let Some(managed) = &this.shared.managed {
                managed.stop().await;
            }
        });
        if tokio::time::timeout(STOP_TIMEOUT, leaving).await.is_err() {
            tracing::warn!(
                "leaving the cluster takes too long; the other nodes notice the end of this node later"
            );
        }
        runtime.shutdown_background();
        // They use the store.
        self.shared.observer.devices.stop();
        self.shared.observer.attributes.stop();
        self.shared.observer.firmware.stop();
        let threads = std::mem::take(&mut *self.record_threads());
        let stopped = run_blocking("stopping the exchange of devices", move || {
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            ended.iter().all(Result::is_ok)
        });
        if !stopped.await.unwrap_or(false) {
            tracing::error!("the exchange of devices panicked; this is a bug");
        }
    }

    /// Why the node is not connected with the others, for `/readyz`.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match self.shared.fabric.status().state {
            NatsState::Ready if self.shared.node.renewal_error().is_none() => None,
            NatsState::Ready => {
                Some("cluster: this node cannot renew its entry in the list of members")
            }
            NatsState::Refused => Some("cluster: the NATS servers cannot be used"),
            NatsState::Disconnected | NatsState::Examining => {
                Some("cluster: the NATS servers are not reachable")
            }
        }
    }

    fn rebalancing(&self) -> ClusterRebalancing<'_> {
        ClusterRebalancing {
            subject: REBALANCING,
            node: &self.shared.node,
            requests: &self.shared.observer.requests,
            rebalance: &self.shared.rebalance,
            drain: &self.shared.drain,
        }
    }

    fn objects_status(&self) -> ClusterObjects {
        let status = self.shared.objects.status();
        let name = |name: &ObjectName| format!("{}/{}", name.kind, name.id);
        ClusterObjects {
            is_synchronized: status.phase == ReplicaPhase::Synchronized,
            count: status.objects as u64,
            conflicts: status.conflicts.iter().map(name).collect(),
            local_only: status.local_only.iter().map(name).collect(),
            error: status.error,
        }
    }

    fn counters(&self) -> ClusterMessages {
        use std::sync::atomic::Ordering::Relaxed;
        let counters = self.shared.observer.inbox.counters();
        let status = self.shared.fabric.status();
        ClusterMessages {
            sent: counters.messages_sent.load(Relaxed),
            received: counters.messages_received.load(Relaxed),
            dropped_behind: counters.dropped_behind.load(Relaxed),
            dropped_no_member: counters.dropped_no_member.load(Relaxed),
            invalid: counters.invalid.load(Relaxed),
            lost_frames: status.dropped_outgoing_frames + status.dropped_incoming_frames,
        }
    }

    pub(super) fn metrics(&self) -> Vec<MetricFamily> {
        let status = self.status();
        let reachable = status.members.iter().filter(|member| member.is_reachable);
        let queued: u64 = status
            .members
            .iter()
            .map(|member| member.queued_bytes)
            .sum();
        let messages = &status.messages;
        let mut families = vec![
            MetricFamily::gauge(
                "cluster_connected",
                "1 while the NATS servers can be used.",
                f64::from(u8::from(status.nats.state == NatsConnectionState::Ready)),
            ),
            MetricFamily::gauge(
                "cluster_members",
                "Members of the cluster, this one included.",
                status.members.len() as f64,
            ),
            MetricFamily::gauge(
                "cluster_reachable_members",
                "Members of the cluster that can be reached, this one included.",
                reachable.count() as f64,
            ),
            MetricFamily::gauge(
                "cluster_queued_bytes",
                "Bytes of messages to other nodes that are queued or not acknowledged yet.",
                queued as f64,
            ),
            MetricFamily::counter(
                "cluster_messages_sent_total",
                "Application messages sent to other nodes.",
                messages.sent,
            ),
            MetricFamily::counter(
                "cluster_messages_received_total",
                "Application messages received from other nodes.",
                messages.received,
            ),
            MetricFamily::counter(
                "cluster_messages_dropped_behind_total",
                "QoS 0 messages dropped because a node or a shard was behind.",
                messages.dropped_behind,
            ),
            MetricFamily::counter(
                "cluster_messages_dropped_no_member_total",
                "Messages for a shared subscription that had no member any more.",
                messages.dropped_no_member,
            ),
            MetricFamily::counter(
                "cluster_invalid_messages_total",
                "Messages of other nodes that could not be read.",
                messages.invalid,
            ),
            MetricFamily::counter(
                "cluster_lost_frames_total",
                "Frames between nodes that were lost and sent again.",
                messages.lost_frames,
            ),
        ];
        families.extend(standby_metrics(
            &self.shared.observer.session_copies.status(),
        ));
        families
    }
}

async fn connect(
    settings: &ClusterSettings,
    directory: PathBuf,
) -> anyhow::Result<(NatsFabric, Option<ManagedNats>)> {
    let (nats, managed) = match &settings.servers {
        ClusterServers::External(nats) => ((**nats).clone(), None),
        ClusterServers::Managed(server) => {
            let managed = start_server(settings, server, directory).await?;
            let nats = NatsSettings {
                prefix: settings.name.clone(),
                ..managed.connection()
            };
            (nats, Some(managed))
        }
    };
    let fabric = NatsFabric::connect(nats, &settings.node).await;
    Ok((fabric.context("cluster")?, managed))
}

impl ClusterBackend for NodeCluster {
    fn node(&self) -> &str {
        self.shared.settings.node.as_str()
    }

    fn other_nodes(&self) -> Vec<String> {
        let members = self.shared.node.members();
        let mut names: Vec<_> = members
            .into_iter()
            .map(|info| info.member.node.to_string())
            .collect();
        names.sort();
        names
    }

    fn request<'a>(&'a self, node: &'a str, request: Vec<u8>) -> NodeAnswerFuture<'a> {
        Box::pin(async move {
            let node = NodeName::new(node).map_err(|error| error.to_string())?;
            let requests = &self.shared.observer.requests;
            let answer = requests.request(&node, CLIENT_REQUESTS, &request);
            answer.await.map_err(|error| error.to_string())
        })
    }

    fn attach_api(&self, api: Arc<dyn NodeCallHandler>) {
        // Set once.
        let _ = self.shared.observer.api.set(api);
    }

    fn call<'a>(&'a self, node: &'a str, request: Vec<u8>) -> NodeAnswerFuture<'a> {
        Box::pin(async move {
            let node = NodeName::new(node).map_err(|error| error.to_string())?;
            let requests = &self.shared.observer.requests;
            let answer = requests.request_within(API_CALL_TIMEOUT, &node, API_CALLS, &request);
            answer.await.map_err(|error| error.to_string())
        })
    }

    fn status(&self) -> ClusterStatus {
        let shared = &*self.shared;
        let status = shared.fabric.status();
        let problem = (shared.node.name_in_use())
            .map(|other| {
                format!(
                    "another running node has the name {}; give each node its own cluster.node",
                    other.node
                )
            })
            .or_else(|| shared.node.renewal_error());
        let load = shared.observer.load();
        let own = Member {
            connections: load.connections,
            sessions: load.sessions,
            is_draining: load.is_draining,
            rebalance_target: load.rebalance_target,
            ..shared.node.local()
        };
        let own = ClusterMember {
            is_self: true,
            ..member(PeerNodeInfo {
                member: own,
                is_reachable: true,
                silent_ms: 0,
                round_trip_ms: None,
                queued_bytes: 0,
                repeated_frames: 0,
            })
        };
        let mut members = vec![own];
        members.extend(shared.node.members().into_iter().map(member));
        members.sort_by(|a, b| a.node.cmp(&b.node));
        ClusterStatus {
            name: shared.settings.name.clone(),
            node: shared.settings.node.to_string(),
            is_complete: shared.observer.inbox.is_ready(),
            problem,
            nats: ClusterNats {
                state: match status.state {
                    NatsState::Ready => NatsConnectionState::Ready,
                    NatsState::Refused => NatsConnectionState::Unusable,
                    NatsState::Disconnected | NatsState::Examining => {
                        NatsConnectionState::Disconnected
                    }
                },
                since_ms: status.since_ms,
                server_name: status.server_name,
                server_version: status.server_version,
                last_error: status.last_error,
                round_trip_ms: status.round_trip.map(|time| time.as_secs_f64() * 1000.0),
                reconnects: status.reconnects,
                managed: shared.managed.as_ref().map(|managed| {
                    let server = managed.status();
                    ClusterServer {
                        is_running: server.state == ManagedNatsState::Running,
                        pid: server.pid,
                        version: server.version,
                        restarts: server.restarts,
                        last_error: server.last_error,
                        resident_bytes: server.resident_bytes,
                        cpu_seconds: server.cpu_ms.map(|ms| ms as f64 / 1000.0),
                    }
                }),
            },
            members,
            messages: self.counters(),
            objects: self.objects_status(),
            drain: shared.drain.status(),
            standby: standby_status(shared.observer.session_copies.status()),
        }
    }

    fn set_draining<'a>(&'a self, node: &'a str, is_draining: bool) -> EvictFuture<'a> {
        Box::pin(async move {
            let Ok(name) = NodeName::new(node) else {
                return Err(ClusterChangeError::NotFound);
            };
            if name == self.shared.settings.node {
                let outcome = self.shared.drain.set_draining(is_draining);
                return outcome.map_err(ClusterChangeError::Unavailable);
            }
            let members = self.shared.node.members();
            if !members.iter().any(|info| info.member.node == name) {
                return Err(ClusterChangeError::NotFound);
            }
            let request = serde_json::to_vec(&DrainRequest { is_draining })
                .map_err(|error| ClusterChangeError::Unavailable(error.to_string()))?;
            let requests = &self.shared.observer.requests;
            match requests.request(&name, DRAINS, &request).await {
                Ok(_) => Ok(()),
                Err(error) => Err(ClusterChangeError::Unavailable(error.to_string())),
            }
        })
    }

    fn rebalance(&self) -> RebalanceFuture<'_> {
        Box::pin(async move { self.rebalancing().read().await })
    }

    fn start_rebalance(&self) -> RebalanceChangeFuture<'_, ClusterRebalance> {
        Box::pin(async move { self.rebalancing().start().await })
    }

    fn cancel_rebalance(&self) -> RebalanceChangeFuture<'_, ()> {
        Box::pin(async move { self.rebalancing().cancel().await })
    }

    fn evict<'a>(&'a self, node: &'a str) -> EvictFuture<'a> {
        Box::pin(async move {
            let Ok(name) = NodeName::new(node) else {
                return Err(ClusterChangeError::NotFound);
            };
            let members = self.shared.node.members();
            let known = members.iter().find(|info| info.member.node == name);
            if name == self.shared.settings.node {
                return Err(ClusterChangeError::NotFound);
            }
            if known.is_some_and(|known| known.is_reachable) {
                return Err(ClusterChangeError::Reachable);
            }
            let names = members.iter().map(|info| info.member.node.clone());
            let names: Vec<_> = names.chain([self.shared.settings.node.clone()]).collect();
            let (this, evicted) = (self.clone(), name.clone());
            let cancelled = tokio::task::spawn_blocking(move || {
                let copies = &this.shared.observer.session_copies;
                copies.cancel_adoptions(&evicted, &names)
            });
            match cancelled.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(ClusterChangeError::Unavailable(error)),
                Err(error) => return Err(ClusterChangeError::Unavailable(error.to_string())),
            }
            let unavailable =
                |error: ClusterError| ClusterChangeError::Unavailable(error.to_string());
            // First, so that the call can be repeated. The server counts for the majority until it is removed, also when
            // the entry of the member has expired.
            let mut had_server = false;
            if let Some(managed) = &self.shared.managed {
                let servers = managed.servers().await.map_err(unavailable)?;
                had_server = servers.iter().any(|server| server.node == name.as_str());
                if had_server {
                    managed.remove_server(&name).await.map_err(unavailable)?;
                }
            }
            if known.is_some() {
                self.shared.node.evict(&name).await.map_err(unavailable)?;
            } else if !had_server {
                return Err(ClusterChangeError::NotFound);
            }
            Ok(())
        })
    }
}

fn member(info: PeerNodeInfo) -> ClusterMember {
    ClusterMember {
        node: info.member.node.to_string(),
        is_self: false,
        is_reachable: info.is_reachable,
        version: info.member.version,
        started_ms: info.member.started_ms,
        silent_ms: info.silent_ms,
        round_trip_ms: info.round_trip_ms,
        queued_bytes: info.queued_bytes as u64,
        repeated_frames: info.repeated_frames,
        connections: info.member.connections,
        sessions: info.member.sessions,
        is_draining: info.member.is_draining,
        rebalance_target: info.member.rebalance_target,
        api_url: info.member.api_url,
        server_reference: info.member.server_reference,
    }
}
