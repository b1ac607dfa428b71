//! The interface between the API and the cluster that the node is a member of.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cluster_rebalance::{ClusterRebalance, RebalanceChangeFuture, RebalanceFuture};

/// The outcome of a change of the members.
pub type EvictFuture<'a> =
    Pin<Box<dyn Future<Output = Result<(), ClusterChangeError>> + Send + 'a>>;

/// The answer of another node, or why there is none.
pub type NodeAnswerFuture<'a> = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send + 'a>>;

/// The answer to a call of another node, or the reason why there is none.
pub type NodeCallFuture = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>>;

/// Executes the calls of other nodes.
pub trait NodeCallHandler: Send + Sync + 'static {
    fn answer(&self, request: Bytes) -> NodeCallFuture;
}

/// The NATS servers, or why they are not known.
pub type ClusterServersFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ClusterServers, ClusterServersError>> + Send + 'a>>;

/// The cluster of the node.
pub trait ClusterBackend: Send + Sync {
    /// Name of this node.
    fn node(&self) -> &str;

    fn status(&self) -> ClusterStatus;

    /// Asks the leader of the NATS servers for all of them. Waits for a few seconds at most.
    fn servers(&self) -> ClusterServersFuture<'_>;

    /// Names of the other members, sorted, whether they can be reached or not.
    fn other_nodes(&self) -> Vec<String>;

    /// Sends a request to another member, which executes it with [`answer_node_request`](crate::answer_node_request).
    /// Waits for a few seconds at most.
    fn request<'a>(&'a self, node: &'a str, request: Vec<u8>) -> NodeAnswerFuture<'a>;

    /// Answers calls of other nodes with this API from now on.
    fn attach_api(&self, api: Arc<dyn NodeCallHandler>);

    /// Passes a call to another member, whose [`NodeCallHandler`] answers it. Waits at most as long as the API does for a request.
    fn call<'a>(&'a self, node: &'a str, request: Vec<u8>) -> NodeAnswerFuture<'a>;

    /// Starts or cancels the drain of a member: it accepts no new clients, and disconnects those that it has.
    fn set_draining<'a>(&'a self, node: &'a str, is_draining: bool) -> EvictFuture<'a>;

    /// How the connections are distributed, and what a rebalancing would do or is doing. Asks all members.
    fn rebalance(&self) -> RebalanceFuture<'_>;

    /// Lets the members with too many connections disconnect clients.
    fn start_rebalance(&self) -> RebalanceChangeFuture<'_, ClusterRebalance>;

    /// Lets all members that do so stop it.
    fn cancel_rebalance(&self) -> RebalanceChangeFuture<'_, ()>;

    /// Where copies of the telemetry of nodes are, one place for each copy. Only those at nodes that can be reached.
    fn telemetry_copies(&self) -> Vec<TelemetryCopyPlace> {
        Vec::new()
    }

    /// Removes a member that has ended without leaving.
    fn evict<'a>(&'a self, node: &'a str) -> EvictFuture<'a>;
}

/// A copy of the telemetry of a node at another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryCopyPlace {
    /// Names the copy; see [`TelemetryBackend::copy`](crate::TelemetryBackend::copy).
    pub key: String,
    /// Whose telemetry it is.
    pub node: String,
    /// The node with the copy.
    pub holder: String,
    /// The node has begun again with empty time series: what it had before is only here.
    pub is_orphan: bool,
    /// When the node has last sent something, by its clock.
    pub sent_ms: u64,
}

/// Why the members of the cluster were not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterChangeError {
    NotFound,
    /// The member can be reached. It leaves the cluster when it is stopped.
    Reachable,
    /// The NATS servers did not do it; contains the reason.
    Unavailable(String),
}

/// Why the NATS servers are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterServersError {
    /// The nodes run no servers themselves.
    External,
    /// No server has a majority, for example; contains the reason.
    Unavailable(String),
}

/// The managed NATS servers of the cluster. Configuration can be changed, and sessions of a node that fails can be adopted, while more
/// than half of them run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterServers {
    /// Sorted by name.
    pub data: Vec<ClusterNatsServer>,
}

/// A NATS server that counts for the majority, as the leader of the servers sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterNatsServer {
    /// The name of its node or witness.
    pub name: String,
    /// Whether a node with this name is known. Otherwise it is a witness, or the server of a node that was lost.
    pub has_node: bool,
    /// Whether it decides about changes.
    pub is_leader: bool,
    /// Whether the leader has heard of it within 5 s.
    pub is_connected: bool,
    /// Whether it has all changes.
    pub is_current: bool,
    /// Changes that it does not have yet.
    pub missing_changes: u64,
    /// Time since the leader has heard of it, in milliseconds; 0 for the leader.
    pub silent_ms: u64,
}

/// The cluster as one of its nodes sees it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ClusterStatus {
    pub name: String,
    /// The node that answers.
    pub node: String,
    /// Whether the subscriptions of all members that could be reached at the start are known.
    pub is_complete: bool,
    /// What prevents this node from being a member; `null`: nothing.
    pub problem: Option<String>,
    pub nats: ClusterNats,
    /// Sorted by name; this node is among them.
    pub members: Vec<ClusterMember>,
    pub messages: ClusterMessages,
    pub objects: ClusterObjects,
    /// The drain of this node; `null`: none.
    pub drain: Option<ClusterDrain>,
    pub standby: ClusterStandby,
    pub telemetry_copy: ClusterTelemetryCopy,
}

/// The copy of the telemetry of this node at another one, and copies of that of other nodes here. Only products with
/// `storage.replicated` are copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterTelemetryCopy {
    pub state: TelemetryCopyState,
    /// The node with the copy.
    pub node: Option<String>,
    /// Bytes that wait to be sent.
    pub queued_bytes: u64,
    /// Age of the first row that waits, in milliseconds.
    pub lag_ms: u64,
    /// Rows sent since the start.
    pub sent_rows: u64,
    /// Why the last request to the other node failed; `null`: it did not.
    pub last_error: Option<String>,
    /// Copies at this node, sorted by key.
    pub copies: Vec<ClusterKeptTelemetry>,
}

/// The state of the copy of the telemetry of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TelemetryCopyState {
    /// No product has telemetry that is to be copied.
    NotWanted,
    /// There is no other node.
    NoStandby,
    /// The node with the copy cannot be reached.
    Interrupted,
    /// The copy lacks rows, which are being sent.
    Completing,
    /// The copy has everything but what was stored in the last moments.
    Complete,
}

/// The copy of the telemetry of another node at this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterKeptTelemetry {
    /// Names the copy.
    pub key: String,
    pub node: String,
    pub is_complete: bool,
    /// Whether the node has begun again with empty time series, so that what it had before is only here.
    pub is_orphan: bool,
    /// Size of its files.
    pub bytes: u64,
    /// When the node has last sent something, by its clock.
    pub sent_ms: u64,
}

/// The copy of the durable sessions of this node at another one, its standby, and copies of those of other nodes here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterStandby {
    pub state: StandbyState,
    /// The standby, or the node that has adopted the sessions.
    pub node: Option<String>,
    /// Bytes on their way to the standby.
    pub unconfirmed_bytes: u64,
    /// Bytes sent to standbys since the start.
    pub sent_bytes: u64,
    /// Why the last copy ended, or why the cluster does not know the state yet.
    pub last_error: Option<String>,
    /// Copies at this node, sorted by name.
    pub copies: Vec<ClusterSessionCopy>,
    /// Nodes whose sessions this one has adopted since its start.
    pub adoptions: u64,
    /// Sessions that this node has adopted since its start.
    pub adopted_sessions: u64,
}

/// Where the copy of the durable sessions of a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StandbyState {
    /// There is no other node that could keep a copy, or `cluster.standby` is off.
    NoStandby,
    /// The standby is receiving the sessions. Answers to clients do not wait for it.
    Copying,
    /// The standby has everything that was acknowledged.
    Current,
    /// The standby was lost. Answers to clients wait until the cluster knows that.
    RemovingStandby,
    /// The node does not know yet whether another one has adopted its sessions. Answers to clients wait.
    Examining,
    /// Another node adopts the sessions of this one, and this one ends them.
    Adopted,
}

/// The copy of the durable sessions of another node at this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterSessionCopy {
    pub node: String,
    /// Whether this node adopts the sessions when the other one fails.
    pub is_standby: bool,
    /// `null`: they are not being adopted.
    pub adoption: Option<ClusterAdoption>,
    pub received_bytes: u64,
}

/// How far the adoption of the sessions of a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterAdoption {
    pub processed_sessions: u64,
    /// 0 until they are counted.
    pub sessions: u64,
}

/// The drain of a node, which disconnects its clients so that they connect to other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterDrain {
    pub since_ms: u64,
    /// Clients that it has disconnected.
    pub disconnected: u64,
}

/// The connection to the NATS servers.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ClusterNats {
    pub state: NatsConnectionState,
    /// When the state began.
    pub since_ms: u64,
    /// The server that the node is connected to.
    pub server_name: Option<String>,
    pub server_version: Option<String>,
    /// The last error, with its remedy.
    pub last_error: Option<String>,
    pub round_trip_ms: Option<f64>,
    pub reconnects: u64,
    /// The server that this node runs itself; `null` with external servers.
    pub managed: Option<ClusterServer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NatsConnectionState {
    Disconnected,
    /// The servers are reachable, but too old or without JetStream, for example.
    Unusable,
    Ready,
}

/// The NATS server that a node runs itself.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ClusterServer {
    pub is_running: bool,
    pub pid: Option<u32>,
    pub version: String,
    pub restarts: u64,
    pub last_error: Option<String>,
    pub resident_bytes: Option<u64>,
    pub cpu_seconds: Option<f64>,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ClusterMember {
    pub node: String,
    /// Whether it is the node that answers.
    pub is_self: bool,
    /// Whether messages are exchanged with it.
    pub is_reachable: bool,
    /// The version of the program.
    pub version: String,
    pub started_ms: u64,
    /// Time since it was last heard of, in milliseconds.
    pub silent_ms: u64,
    pub round_trip_ms: Option<u64>,
    /// Messages to it that wait or are not acknowledged.
    pub queued_bytes: u64,
    /// Frames that were sent to it again because no acknowledgement arrived.
    pub repeated_frames: u64,
    /// Whether it is drained: it accepts no new clients, and disconnects those that it has.
    pub is_draining: bool,
    /// Number of connections down to which it disconnects clients, because it has more than others; `null`: it does not.
    pub rebalance_target: Option<u64>,
    pub connections: u64,
    pub sessions: u64,
    /// Where people reach its HTTP API, if that is configured.
    pub api_url: Option<String>,
    /// Where clients reach it (`host:port`), if that is configured.
    pub server_reference: Option<String>,
}

/// The configuration objects that all nodes have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterObjects {
    /// Whether this node has the objects of the cluster, so that they can be changed over it.
    pub is_synchronized: bool,
    /// Number of objects of the cluster.
    pub count: u64,
    /// Objects (`kind/id`) of this node that were replaced by different ones of the cluster when it joined, at most 100.
    pub conflicts: Vec<String>,
    /// Objects (`kind/id`) that only this node has, because they are too large for the cluster.
    pub local_only: Vec<String>,
    /// Why the objects cannot be kept equal now.
    pub error: Option<String>,
}

/// Messages between this node and the others since its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterMessages {
    pub sent: u64,
    pub received: u64,
    /// QoS 0 messages that were dropped because a node or a shard was behind.
    pub dropped_behind: u64,
    /// Messages for a shared subscription that had no member any more.
    pub dropped_no_member: u64,
    /// Messages of other nodes that could not be read.
    pub invalid: u64,
    /// Frames that were lost and sent again.
    pub lost_frames: u64,
}
