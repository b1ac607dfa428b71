//! Information about the broker: clients, sessions, subscriptions, topics, listeners. Read-only snapshots for the
//! control plane; field names are those of the HTTP API.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// One connected client, or one session without a connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientInfo {
    pub client_id: String,
    /// The node of the cluster that has the session; `null`: the node is not a member of a cluster.
    pub node: Option<String>,
    /// `device:ID` for a registered device, whatever credential it presents.
    pub username: Option<String>,
    /// The device and its product, if this node knows them: from the device's first connection after a start.
    pub device: Option<String>,
    pub product: Option<String>,
    pub connected: bool,
    /// `3.1`, `3.1.1` or `5.0`.
    pub protocol_version: Cow<'static, str>,
    pub listener: Option<String>,
    /// `ip:port`, or `unix`.
    pub peer_address: Option<String>,
    pub shard: u16,
    pub clean_start: bool,
    pub keep_alive_s: u16,
    /// Milliseconds since the Unix epoch.
    pub connected_at_ms: Option<u64>,
    pub disconnected_at_ms: Option<u64>,
    /// Why the last connection ended, as in `$events/client_disconnected`; `null` with a connection, and if it ended before
    /// the node was started.
    pub disconnect_reason: Option<Cow<'static, str>>,
    pub session_created_at_ms: u64,
    pub session_expiry_s: u32,
    pub subscriptions: usize,
    /// Messages sent to the client and not yet acknowledged.
    pub inflight: usize,
    pub queued_messages: usize,
    pub queued_bytes: usize,
    /// Milliseconds the oldest queued message has waited; 0 if there is none.
    pub queue_age_ms: u64,
    /// Bytes waiting for the socket.
    pub outbox_bytes: usize,
    pub messages_received: u64,
    pub messages_sent: u64,
    pub messages_dropped: u64,
}

/// One subscription of one session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubscriptionInfo {
    pub client_id: String,
    /// The node of the cluster that has the session; `null`: the node is not a member of a cluster.
    pub node: Option<String>,
    /// As the client wrote it, `$share/...` included.
    pub topic_filter: String,
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: u8,
    pub subscription_identifier: Option<u32>,
    pub shard: u16,
}

/// One topic filter and its number of subscribers on the whole node.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopicInfo {
    pub topic_filter: String,
    pub subscribers: usize,
    pub shards: Vec<u16>,
}

/// A listener of the configuration, or one that was added while the node runs.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListenerInfo {
    pub name: String,
    /// `mqtt`, `mqtts`, `ws`, `wss`, `unix` or `quic`.
    pub protocol: &'static str,
    /// The address in use (the chosen port if port 0 was configured), or the path of the Unix socket.
    pub address: String,
    /// Whether it accepts connections; it can be stopped and started at run time.
    pub running: bool,
    pub connections: u64,
    pub max_connections: u32,
    /// Whether clients without credentials may connect.
    pub allows_anonymous: bool,
    /// The certificate for new connections; `null` without TLS.
    pub certificate: Option<ListenerCertificate>,
}

/// A certificate of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListenerCertificate {
    /// Distinguished name of its owner.
    pub subject: String,
    /// Distinguished name of the authority.
    pub issuer: String,
    /// Host names and addresses that it is valid for.
    pub names: Vec<String>,
    pub not_before_ms: u64,
    /// When it expires.
    pub not_after_ms: u64,
    /// The file that it was read from.
    pub file: String,
}

/// Selects rows: all that match every given condition, sorted by client id (then topic filter).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListQuery {
    /// Exact client id.
    pub client_id: Option<String>,
    /// Substring of the client id.
    pub client_id_contains: Option<String>,
    pub username: Option<String>,
    pub connected: Option<bool>,
    /// Exact topic filter.
    pub topic_filter: Option<String>,
    /// Only filters that match this topic name.
    pub matches_topic: Option<String>,
    /// Only rows after this client id (exclusive), for paging.
    pub after: Option<String>,
    /// Maximum number of rows.
    pub limit: usize,
}
