//! The node as a member of a cluster: connects the node router of the broker with the other nodes over NATS.

mod backend;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use broker::{BrokerHandle, ClusterAttachment, NODE_PROTOCOL, OLDEST_NODE_PROTOCOL, PeerNodeInbox};
use bytes::Bytes;
use cluster::{
    ClusterLease, ClusterNode, Member, MembershipConfig, NodeLinks as _, NodeName, NodeRequests,
    PeerNodeId, ReplicatedObjects, RequestLimits, SendMessage,
};
use cluster_nats::{ManagedNats, NatsFabric, NatsServerMonitor, NatsSettings, NatsState};
use devices::alarm::Alarms;
use devices::command::Commands;
use devices::platform::Reporter;
use devices::pull::{PullScheduler, ReadingIntake};
use devices::retention::Retention;
use devices::{DeviceStates, Registry};
use firmware::FirmwareService;
use relay::RelayService;
use ring::rand::{SecureRandom as _, SystemRandom};
use standby::{SessionCopies, SessionCopiesParts};
use store::{Store, StoreConfig};
use telemetry_copy::{CopiedSeries, TelemetryCopies, TelemetryCopiesParts};
use tokio::runtime::{Handle, Runtime};
use transfer::FileService;

use super::blocking_stage::run_blocking;
use super::cluster_alarms::{ClusterAlarms, SharedClusterAlarms};
use super::cluster_commands::ClusterCommands;
use super::cluster_drain::NodeDrain;
use super::cluster_firmware::ClusterFirmware;
use super::cluster_objects::{self, ClusterReplication, NodeObjects};
use super::cluster_observer::{BrokerObserver, ClusterTransport};
use super::cluster_pulls::{ClusterReadings, LeasedTurn};
use super::cluster_requests::{
    ALARM_PLACES, BrokerRequests, COMMANDS, FIRMWARE, READINGS, RELAY_TEXTS, RelayText,
};
use super::cluster_standby::BrokerSessions;
use super::cluster_telemetry_copy::{RegisteredDevices, RequestPeers, copy_config};
use super::node_rebalance::NodeRebalance;
use super::replicated_records::ReplicatedRecords;
use crate::config::{ClusterServers, ClusterSettings, Config, IngestSettings, StandbyUse};
use crate::managed_server::{copies_directory, server_directory, start_server};

/// Threads for the messages between nodes. HTTP has its own ones, so that neither delays the other.
const CLUSTER_THREADS: usize = 2;
/// A member that is silent for so long counts as unreachable.
const LEASE: Duration = Duration::from_secs(5);
/// Time for which a node that starts waits for the others before it adopts sessions of which it has copies.
const RETURN_TIME: Duration = Duration::from_secs(15);
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
    /// The threads that exchange the devices, their attributes, what they install and their alarms.
    record_threads: std::sync::Mutex<Vec<std::thread::JoinHandle<()>>>,
    store: Store,
    fabric: NatsFabric,
    managed: Option<ManagedNats>,
    /// Asks for the servers; connected when somebody wants to see them.
    server_monitor: tokio::sync::OnceCell<NatsServerMonitor>,
    /// `None` after the stop.
    runtime: std::sync::Mutex<Option<Runtime>>,
}

fn random_number() -> u64 {
    let mut bytes = [0; 8];
    // Only uniqueness is needed; without a source of randomness the time provides it.
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => wall_clock::now_ms().wrapping_mul(0x9e37_79b9_7f4a_7c15),
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
            api_url: settings.api_url.clone(),
            server_reference: config.broker.server_reference.clone(),
            ..Member::new(
                settings.node.clone(),
                random_number(),
                env!("CARGO_PKG_VERSION"),
                OLDEST_NODE_PROTOCOL..=NODE_PROTOCOL,
            )
        };
        let rebalance = NodeRebalance::new(settings.drain_rate, runtime.handle().clone());
        let rebalance = Arc::new(rebalance);
        let drain = NodeDrain::new(settings.drain_rate, runtime.handle().clone());
        let drain = Arc::new(drain);
        let observer = Arc::new(BrokerObserver {
            inbox: PeerNodeInbox::default(),
            requests: NodeRequests::new(RequestLimits::default()),
            records: ReplicatedRecords::new(),
            session_copies: SessionCopies::default(),
            drain: drain.clone(),
            rebalance: rebalance.clone(),
            reporter: OnceLock::new(),
            broker: OnceLock::new(),
            api: OnceLock::new(),
            commands: OnceLock::new(),
            images: OnceLock::new(),
            device_places: OnceLock::new(),
            telemetry_copies: OnceLock::new(),
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
                server_monitor: tokio::sync::OnceCell::new(),
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
        let records = &self.shared.observer.records;
        let devices = Arc::new(registry.clone());
        let attributes = Arc::new(changes.shared_attributes);
        let threads = [
            records
                .devices
                .start(devices, changes.devices, self.send_message()),
            records
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
        let thread =
            (observer.records.firmware).start(records, shared.changes, self.send_message());
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

    /// Exchanges the alarms of devices with the other nodes. To be called after [`share_devices`](Self::share_devices) and before
    /// [`start`](Self::start). Reads all alarms.
    ///
    /// # Errors
    /// If the store fails, or a thread cannot be started.
    pub(super) fn share_alarms(
        &self,
        alarms: &Alarms,
        registry: &Registry,
        states: &DeviceStates,
    ) -> anyhow::Result<()> {
        let observer = &self.shared.observer;
        let shared = alarms
            .share(&self.shared.settings.node)
            .context("cannot read the alarms of the devices")?;
        let records = Arc::new(shared.records);
        let thread = (observer.records.alarms).start(records, shared.changes, self.send_message());
        let thread = thread.context("cannot start a thread that exchanges alarms")?;
        self.record_threads().push(thread);
        if let Some(runtime) = &*self.runtime() {
            let places = Arc::new(ClusterAlarms {
                registry: registry.clone(),
                states: states.clone(),
                requests: observer.requests.clone(),
                subject: ALARM_PLACES,
                runtime: runtime.handle().clone(),
            });
            alarms.set_places(Arc::new(SharedClusterAlarms(places.clone())));
            // Set once.
            let _ = observer.device_places.set(places);
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

    /// Copies telemetry to another node from now on, and keeps copies of that of others. Opens the copies. To be called before
    /// [`start`](Self::start).
    ///
    /// # Errors
    /// If files cannot be read or written, or a thread cannot be started.
    pub(super) fn start_telemetry_copies(
        &self,
        (series, retention): (CopiedSeries, Retention),
        registry: &Registry,
        (directory, settings): (PathBuf, IngestSettings),
    ) -> anyhow::Result<Option<TelemetryCopies>> {
        let Some(runtime) = self
            .runtime()
            .as_ref()
            .map(|runtime| runtime.handle().clone())
        else {
            return Ok(None);
        };
        let requests = self.shared.observer.requests.clone();
        let copies = TelemetryCopies::start(TelemetryCopiesParts {
            node: self.shared.settings.node.to_string(),
            series,
            devices: Arc::new(RegisteredDevices(registry.clone())),
            peers: Arc::new(RequestPeers { requests, runtime }),
            directory,
            config: Box::new(move || copy_config(&settings, retention.assignment())),
            random: random_number,
        });
        let copies = copies.context("cannot open the copies of telemetry of other nodes")?;
        // Set once.
        let _ = self.shared.observer.telemetry_copies.set(copies.clone());
        Ok(Some(copies))
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
            if let Some(copies) = this.shared.observer.telemetry_copies.get() {
                copies.stop();
            }
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
        self.shared.observer.records.stop();
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
