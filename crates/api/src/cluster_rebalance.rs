//! How the connections are distributed over the nodes of a cluster, and how a rebalancing changes that.

use std::pin::Pin;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The distribution of the connections.
pub type RebalanceFuture<'a> = Pin<Box<dyn Future<Output = ClusterRebalance> + Send + 'a>>;

/// The outcome of the start or the end of a rebalancing.
pub type RebalanceChangeFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, RebalanceError>> + Send + 'a>>;

/// Why a rebalancing was not started or cancelled. Contains the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RebalanceError {
    /// There is nothing to do, or it is being done.
    Conflict(String),
    /// A node has not done it.
    Unavailable(String),
}

/// The distribution of the connections over the nodes of a cluster. Nodes with more than the average disconnect clients when
/// a rebalancing is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterRebalance {
    /// Average number of connections of the nodes that take part, rounded up.
    pub average: u64,
    /// Whether a node is disconnecting clients.
    pub is_running: bool,
    /// Why a rebalancing would not be started now; `null`: it would.
    pub obstacle: Option<String>,
    /// All members, sorted by name.
    pub nodes: Vec<RebalanceNode>,
}

/// A node of a cluster before and after a rebalancing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RebalanceNode {
    pub node: String,
    pub connections: u64,
    /// Connections that would stay: of clients whose durable session is at this node, of clients on its machine, and those
    /// that other nodes pass on. `null`: not known.
    pub bound: Option<u64>,
    /// Number of connections down to which the node disconnects clients; `null`: it disconnects none.
    pub target: Option<u64>,
    /// Expected number of connections afterwards, if the clients connect to the nodes that have fewer than the average.
    pub after: u64,
    /// Why the node takes no part; `null`: it does.
    pub exclusion: Option<RebalanceExclusion>,
    /// Why the node has not answered; `null`: it has.
    pub error: Option<String>,
    /// The last rebalancing of the node since its start.
    pub run: Option<RebalanceRun>,
}

/// Why a node neither disconnects clients nor counts for the average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebalanceExclusion {
    Unreachable,
    Draining,
}

/// A rebalancing at one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RebalanceRun {
    pub since_ms: u64,
    /// Number of connections down to which it disconnects clients.
    pub target: u64,
    /// Clients that it has disconnected.
    pub disconnected: u64,
    pub state: RebalanceState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebalanceState {
    /// Clients are being disconnected, or may still return.
    Running,
    /// The node has as many connections as it should have.
    Reached,
    /// All connections that are left would stay.
    OnlyBound,
    /// Clients have returned to the node again and again.
    ClientsReturned,
    Cancelled,
    /// A drain of the node has taken its place.
    Drained,
}
