//! State shared by all shards of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use scram::{DecoyCredentials, ScramCredential};

use super::directory::NodeDirectory;
use super::retained_store::RetainedStore;
use crate::config::{BrokerLimits, ListenerConfig};
use crate::events::EventStream;
use crate::metrics::ShardMetrics;
use hooks::relay::RelayService;

/// A listener as seen by all shards. Connections refer to it by its index, so that the index of a removed listener is
/// used again only when its last connection has ended.
pub(crate) struct NodeListener {
    config: ArcSwap<ListenerConfig>,
    pub(crate) connections: AtomicU64,
    /// Whether the listener accepts new connections.
    pub(crate) is_running: AtomicBool,
}

impl NodeListener {
    pub(crate) fn new(config: ListenerConfig, is_running: bool) -> Self {
        Self {
            config: ArcSwap::from_pointee(config),
            connections: AtomicU64::new(0),
            is_running: AtomicBool::new(is_running),
        }
    }

    pub(crate) fn config(&self) -> Arc<ListenerConfig> {
        self.config.load_full()
    }

    /// Gives the place to another listener. It has no connections.
    pub(crate) fn replace(&self, config: ListenerConfig) {
        self.config.store(Arc::new(config));
    }
}

/// State shared by all shards of a node.
pub(crate) struct NodeState {
    /// The limits at the start of the node; each shard has its own current copy.
    pub(crate) limits: Arc<BrokerLimits>,
    /// The current value of the limit, which is checked before a connection is assigned to a shard.
    pub(crate) max_connections: AtomicU32,
    /// Those of the configuration, then [`MAX_ADDED_LISTENERS`](crate::config::MAX_ADDED_LISTENERS) places for others.
    pub(crate) listeners: Vec<NodeListener>,
    pub(crate) users: HashMap<String, ScramCredential, RandomState>,
    pub(crate) decoy: DecoyCredentials,
    pub(crate) directory: NodeDirectory,
    pub(crate) retained: Arc<RetainedStore>,
    pub(crate) server_reference: Option<String>,
    /// Whether clients are referred to other nodes, because this one is to be stopped.
    pub(crate) is_draining: AtomicBool,
    /// Whether the stored sessions of this node may be at another one, so that nothing happens to them.
    pub(crate) are_sessions_held: AtomicBool,
    /// Whether sessions of other nodes are being adopted, here or elsewhere.
    pub(crate) has_successions: AtomicBool,
    pub(crate) metrics: Vec<Arc<ShardMetrics>>,
    pub(crate) started_ms: u64,
    /// Whether a node router connects the shards with other nodes.
    pub(crate) is_clustered: bool,
    pub(crate) events: EventStream,
    /// `None`: the node has no relay endpoints.
    pub(crate) relay: Option<Arc<dyn RelayService>>,
}
