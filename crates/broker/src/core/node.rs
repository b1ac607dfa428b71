//! State shared by all shards of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use scram::{DecoyCredentials, ScramCredential};

use super::directory::NodeDirectory;
use super::retained_store::RetainedStore;
use crate::config::{BrokerLimits, ListenerConfig};
use crate::events::EventStream;
use crate::metrics::ShardMetrics;
use hooks::relay::RelayService;

/// A listener as seen by all shards.
pub(crate) struct NodeListener {
    pub(crate) config: ListenerConfig,
    pub(crate) connections: AtomicU64,
    /// Whether the listener accepts new connections.
    pub(crate) is_running: AtomicBool,
}

/// State shared by all shards of a node.
pub(crate) struct NodeState {
    /// The limits at the start of the node; each shard has its own current copy.
    pub(crate) limits: Arc<BrokerLimits>,
    /// The current value of the limit, which is checked before a connection is assigned to a shard.
    pub(crate) max_connections: AtomicU32,
    pub(crate) listeners: Vec<NodeListener>,
    pub(crate) users: HashMap<String, ScramCredential, RandomState>,
    pub(crate) decoy: DecoyCredentials,
    pub(crate) directory: NodeDirectory,
    pub(crate) retained: Arc<RetainedStore>,
    pub(crate) server_reference: Option<String>,
    pub(crate) metrics: Vec<Arc<ShardMetrics>>,
    pub(crate) started_ms: u64,
    pub(crate) events: EventStream,
    /// `None`: the node has no relay endpoints.
    pub(crate) relay: Option<Arc<dyn RelayService>>,
}
