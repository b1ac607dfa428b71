//! A running broker: the threads of its shards, its listeners, and the handle for the control plane.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread::JoinHandle;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hooks::{HookChain, HooksFactory};
use store::Store;

use crate::config::{
    BindAddress, BrokerConfig, DEFAULT_STOP_TIMEOUT_S, ListenerConfig, MAX_ADDED_LISTENERS,
    MAX_SHARDS,
};
use crate::core::directory::NodeDirectory;
use crate::core::node::{NodeListener, NodeState};
use crate::core::recovery::recover_from_store;
use crate::core::retained_store::RetainedStore;
use crate::events::EventStream;
use crate::handle::{BrokerHandle, OpenListeners, OpenedListener};
use crate::info::ListenerInfo;
use crate::metrics::ShardMetrics;
use crate::net::clock::NodeClock;
use crate::net::gateway_listener::GatewayListener;
use crate::net::inbox::{InboxItem, ShardInbox, StoreOwner};
use crate::net::listener::{self, ListenerContext, ListenerSocket};
use crate::net::memory_listener::MemoryListener;
use crate::net::node_router_thread::{self, ClusterAttachment, PeerNodeInbox, RouterSetup};
use crate::net::quic::QuicThreads;
use crate::net::shard_thread::{self, ShardRecovery, ShardSetup};
use crate::net::store_reader::{PendingStoreRead, StoreReader};
use crate::net::tls::ListenerTls;
use crate::start_error::StartError;
use scram::{DecoyCredentials, ScramCredential};

/// Iterations of a credential made by `tidegate password`; the decoy for unknown users takes as long.
const DEFAULT_CREDENTIAL_ITERATIONS: u32 = 15_000;

pub struct Broker {
    handle: BrokerHandle,
    threads: Vec<JoinHandle<()>>,
    quic: QuicThreads,
    /// The thread of the node router, and its inbox.
    router: Option<(JoinHandle<()>, PeerNodeInbox)>,
}

impl Broker {
    /// Opens the listeners and starts the shards. With a store, sessions with an expiry, retained and delayed messages
    /// outlive the node; the stored ones are recovered first. The store's owner closes it after [`Broker::stop`].
    pub fn start(
        config: BrokerConfig,
        hooks: HookChain,
        store: Option<Store>,
    ) -> Result<Self, StartError> {
        Self::start_in_cluster(config, hooks, store, None)
    }

    /// As [`Broker::start`], as one of several nodes that route messages to each other. Listeners open when the
    /// subscriptions of the other nodes are known here.
    pub fn start_in_cluster(
        config: BrokerConfig,
        hooks: HookChain,
        store: Option<Store>,
        cluster: Option<ClusterAttachment>,
    ) -> Result<Self, StartError> {
        let shards = config.shard_count();
        // The node router takes the number behind the last shard.
        let most = MAX_SHARDS - usize::from(cluster.is_some());
        if shards > most {
            return Err(StartError::TooManyShards { shards, most });
        }
        let clock = NodeClock::new();
        let events = EventStream::new();
        let hooks: Arc<dyn HooksFactory> = Arc::new(hooks.with(Arc::new(events.clone())));
        let sockets = open_listener_sockets(&config, shards)?;
        let node = Arc::new(NodeState {
            limits: Arc::new(config.limits.clone()),
            max_connections: AtomicU32::new(config.limits.max_connections),
            listeners: listener_places(&config.listeners),
            users: parse_users(&config)?,
            decoy: DecoyCredentials::random(DEFAULT_CREDENTIAL_ITERATIONS)
                .map_err(|_| StartError::NoRandomness)?,
            directory: NodeDirectory::default(),
            retained: Arc::new(match &cluster {
                Some(_) => RetainedStore::in_cluster(),
                None => RetainedStore::default(),
            }),
            server_reference: config.server_reference.clone(),
            is_draining: AtomicBool::new(false),
            are_sessions_held: AtomicBool::new(false),
            has_successions: AtomicBool::new(false),
            metrics: (0..shards)
                .map(|_| Arc::new(ShardMetrics::default()))
                .collect(),
            started_ms: clock.now_ms(),
            is_clustered: cluster.is_some(),
            events,
            relay: hooks.relay_service(),
        });
        let inboxes: Arc<[ShardInbox]> = (0..shards)
            .map(|_| ShardInbox::new(clock.now_ms()))
            .collect();
        let mut quic = QuicThreads::new(sockets.quic.len(), shards).map_err(StartError::Thread)?;
        for socket in sockets.quic {
            quic.add_listener(socket, node.clone(), inboxes.clone())?;
        }
        let gateways = sockets
            .gateways
            .into_iter()
            .map(|socket| GatewayListener::new(socket, node.clone(), inboxes.clone()));
        let in_memory = sockets
            .in_memory
            .into_iter()
            .map(|context| MemoryListener::new(context, node.clone(), inboxes.clone()));
        let handle = BrokerHandle::new(
            node.clone(),
            inboxes.clone(),
            OpenListeners {
                opened: sockets.opened,
                quic: quic.listeners.clone(),
                gateways: gateways.collect(),
                in_memory: in_memory.collect(),
            },
            store.clone().map(|store| StoreReader::new(store, shards)),
            clock,
        );
        let stop_timeout = match config.stop_timeout_s {
            0 => DEFAULT_STOP_TIMEOUT_S,
            given => given,
        };
        let mut durable = match &store {
            Some(store) => recover_shards(
                store,
                &node,
                &inboxes,
                handle.pending_store_read(),
                clock.now_ms(),
            )?,
            None => Vec::new(),
        };
        let router = match &cluster {
            Some(cluster) => Some(spawn_node_router(RouterSetup {
                attachment: cluster.clone(),
                inboxes: inboxes.clone(),
                is_durable: store.is_some(),
                node: node.clone(),
                clock,
                max_queued_bytes: config.limits.max_cross_shard_bytes as usize,
            })?),
            None => None,
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let mut threads = Vec::new();
        for (id, listeners) in sockets.per_shard.into_iter().enumerate() {
            threads.push(spawn_shard(ShardSetup {
                id: id as u16,
                node: node.clone(),
                inboxes: inboxes.clone(),
                cluster: cluster.clone(),
                listeners,
                hooks: hooks.clone(),
                clock,
                stop_timeout: Duration::from_secs(stop_timeout.into()),
                sys_interval_s: config.sys_interval_s,
                durable: durable.get_mut(id).and_then(Option::take),
                ready: ready.clone(),
            })?);
        }
        drop(ready);
        for tls in handle.listener_tls() {
            handle.watch_certificates(tls).map_err(StartError::Thread)?;
        }
        // Ends early if a shard could not run, which has been logged.
        for () in is_ready.iter().take(shards) {}
        quic.start_accepting();
        handle.set_ready();
        Ok(Self {
            handle,
            threads,
            quic,
            router: router.zip(cluster.map(|cluster| cluster.inbox)),
        })
    }

    pub fn handle(&self) -> BrokerHandle {
        self.handle.clone()
    }

    pub fn listeners(&self) -> Vec<ListenerInfo> {
        self.handle.listeners()
    }

    /// Stops gracefully within the configured time: no new connections, DISCONNECT 0x8B to every client, all pending
    /// output written. Blocks until the broker has stopped.
    pub fn stop(self) {
        self.handle.set_stopping();
        let unix_sockets = self.handle.unix_sockets();
        self.quic.stop_accepting();
        for gateway in self.handle.gateway_listeners() {
            gateway.close();
        }
        for inbox in self.handle.inboxes() {
            inbox.push(InboxItem::Stop);
        }
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("shard thread ended with a panic; this is a bug");
            }
        }
        // Last answers may wait for other nodes until the shards have stopped.
        if let Some((thread, inbox)) = self.router {
            inbox.stop();
            if thread.join().is_err() {
                tracing::error!("the node router ended with a panic; this is a bug");
            }
        }
        self.quic.stop();
        for path in unix_sockets {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Recovers the sessions and messages from the store, starts its writer, and gives each shard its part.
fn recover_shards(
    store: &Store,
    node: &NodeState,
    inboxes: &Arc<[ShardInbox]>,
    looks: Arc<PendingStoreRead>,
    now_ms: u64,
) -> Result<Vec<Option<ShardRecovery>>, StartError> {
    let recovery = recover_from_store(store, node, inboxes.len(), now_ms)?;
    let owner = StoreOwner {
        inboxes: inboxes.clone(),
        pending_store_read: looks,
    };
    store.start(Arc::new(owner)).map_err(StartError::Thread)?;
    let restored = Arc::new(AtomicU32::new(0));
    let durable = |recovered| {
        Some(ShardRecovery {
            store: store.clone(),
            first_number: recovery.first_number,
            recovered,
            restored_shards: restored.clone(),
        })
    };
    Ok(recovery.shards.into_iter().map(durable).collect())
}

fn parse_users(
    config: &BrokerConfig,
) -> Result<HashMap<String, ScramCredential, RandomState>, StartError> {
    let parse = |user: &hooks::UserConfig| match user.credential.parse::<ScramCredential>() {
        Ok(credential) => Ok((user.username.clone(), credential)),
        Err(_) => Err(StartError::Credential {
            username: user.username.clone(),
        }),
    };
    config.users.iter().map(parse).collect()
}

/// The places of the listeners that are opened now, and of those that may be added while the node runs.
fn listener_places(configured: &[ListenerConfig]) -> Vec<NodeListener> {
    let unused = ListenerConfig::new("", BindAddress::Unix(PathBuf::new()));
    let used = (configured.iter().cloned()).map(|config| NodeListener::new(config, true));
    let free = (0..MAX_ADDED_LISTENERS).map(|_| NodeListener::new(unused.clone(), false));
    used.chain(free).collect()
}

/// The open sockets of the configured listeners.
struct ListenerSockets {
    /// All listeners, in the order of the configuration.
    opened: Vec<OpenedListener>,
    /// A socket of each MQTT listener for each shard.
    per_shard: Vec<Vec<ListenerSocket>>,
    quic: Vec<ListenerSocket>,
    gateways: Vec<ListenerSocket>,
    /// Listeners without sockets.
    in_memory: Vec<Arc<ListenerContext>>,
}

/// Opens the sockets of all configured listeners.
fn open_listener_sockets(
    config: &BrokerConfig,
    shards: usize,
) -> Result<ListenerSockets, StartError> {
    let mut open = ListenerSockets {
        opened: Vec::new(),
        per_shard: (0..shards).map(|_| Vec::new()).collect(),
        quic: Vec::new(),
        gateways: Vec::new(),
        in_memory: Vec::new(),
    };
    for (index, listener) in config.listeners.iter().enumerate() {
        let context = Arc::new(ListenerContext::new(
            index as u16,
            listener,
            load_tls(listener)?,
        ));
        let cannot_listen = |source| StartError::Listen {
            listener: listener.name.clone(),
            address: listener::listener_address(listener),
            source,
        };
        if listener.in_memory {
            listener::check_in_memory(listener).map_err(cannot_listen)?;
            open.opened.push(OpenedListener {
                info: listener::listener_info(listener, None),
                context: context.clone(),
            });
            open.in_memory.push(context);
            continue;
        }
        let quic_address = match &listener.bind {
            BindAddress::Tcp(address) if listener.quic => Some(*address),
            _ => None,
        };
        let count = if listener.link { 1 } else { shards };
        let sockets = match quic_address {
            Some(address) => listener::open_udp(address).map(|socket| vec![socket]),
            None => listener::open_sockets(listener, count),
        };
        let sockets = sockets.map_err(cannot_listen)?;
        open.opened.push(OpenedListener {
            info: listener::listener_info(listener, Some(&sockets[0])),
            context: context.clone(),
        });
        let mut sockets = sockets.into_iter().map(|socket| ListenerSocket {
            context: context.clone(),
            socket,
        });
        if quic_address.is_some() {
            open.quic.extend(sockets.next());
        } else if listener.link {
            open.gateways.extend(sockets.next());
        } else {
            for (socket, shard) in sockets.zip(&mut open.per_shard) {
                shard.push(socket);
            }
        }
    }
    Ok(open)
}

fn spawn_shard(setup: ShardSetup) -> Result<JoinHandle<()>, StartError> {
    let thread = std::thread::Builder::new().name(format!("shard-{}", setup.id));
    let run = move || {
        if let Err(error) = shard_thread::run_shard(setup) {
            tracing::error!(%error, "shard failed to run");
        }
    };
    thread.spawn(run).map_err(StartError::Thread)
}

fn spawn_node_router(setup: RouterSetup) -> Result<JoinHandle<()>, StartError> {
    let thread = std::thread::Builder::new().name("node-router".to_owned());
    let run = move || {
        if let Err(error) = node_router_thread::run_node_router(&setup) {
            tracing::error!(%error, "the node router failed to run");
        }
    };
    thread.spawn(run).map_err(StartError::Thread)
}

fn load_tls(listener: &ListenerConfig) -> Result<Option<Arc<ListenerTls>>, StartError> {
    let Some(files) = &listener.tls else {
        return Ok(None);
    };
    let loaded = ListenerTls::load(files).map_err(|source| StartError::Tls {
        listener: listener.name.clone(),
        source,
    })?;
    Ok(Some(Arc::new(loaded)))
}
