//! Configuration of a broker: limits, listeners, users. Plain data with defaults; the program reads it from a file, the
//! environment or flags.
//!
//! This file contains every bound that the broker enforces. Sizes are in bytes, times in the unit of the name's suffix.

use std::net::SocketAddr;
use std::path::PathBuf;

use hooks::UserConfig;

/// Largest number of shards: filters carry sets of shards with this many bits.
pub const MAX_SHARDS: usize = 64;

/// Largest number of other nodes in a cluster, for the same reason.
pub const MAX_PEER_NODES: usize = 64;

/// The whole configuration of a broker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BrokerConfig {
    /// Number of shards (threads that route messages), at most 64; 0 means one per core the process may use.
    pub shards: usize,
    pub limits: BrokerLimits,
    pub listeners: Vec<ListenerConfig>,
    /// Users that may log in with a password or by SCRAM-SHA-256.
    pub users: Vec<UserConfig>,
    /// Seconds a graceful stop may take before the remaining connections are closed; 0 means
    /// [`DEFAULT_STOP_TIMEOUT_S`].
    pub stop_timeout_s: u32,
    /// If set (`host:port`), a graceful stop sends DISCONNECT 0x9C with this Server Reference instead of 0x8B.
    pub server_reference: Option<String>,
    /// Seconds between two publications of the `$SYS` topics; 0 turns them off.
    pub sys_interval_s: u32,
}

impl BrokerConfig {
    /// The number of shards of a broker with this configuration.
    pub fn shard_count(&self) -> usize {
        match self.shards {
            0 => std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(MAX_SHARDS),
            given => given,
        }
    }
}

pub const DEFAULT_STOP_TIMEOUT_S: u32 = 10;

/// What happens to another message for a session whose queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueuePolicy {
    /// The oldest queued message is dropped.
    #[default]
    DropOldest,
    /// The new message is dropped.
    DropNewest,
    /// The client is disconnected with 0x97 (quota exceeded) and the new message is dropped.
    Disconnect,
}

/// What happens when a client connects with the client id of a session that another user created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionOwnerConflict {
    /// The client is rejected with 0x85 (client identifier not valid); the session and its connection stay.
    #[default]
    RejectClient,
    /// The session ends, with its connection if it has one, and the client gets a new session.
    EndSession,
}

/// How a shared subscription selects the member that receives a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum SharedSubscriptionStrategy {
    #[default]
    RoundRobin,
    Random,
    /// The same member until it leaves.
    Sticky,
    HashClientId,
    HashTopic,
    /// A member on the publisher's shard if there is one, otherwise round robin.
    Local,
}

/// Bounds for every client of the node.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerLimits {
    /// Connections of the whole node.
    pub max_connections: u32,
    /// Sessions of the whole node, with and without a connection.
    pub max_sessions: u32,
    /// Largest packet accepted, fixed header included; a listener may set a smaller limit.
    pub max_packet_size: u32,
    /// Largest CONNECT accepted, will included; never larger than `max_packet_size`.
    pub max_connect_bytes: u32,
    /// Bytes of incomplete packets on all connections of a shard; a connection that exceeds the limit is closed.
    pub max_partial_packet_bytes_per_shard: u64,
    /// The same for all shards together, checked in steps of 64 KiB.
    pub max_partial_packet_bytes: u64,
    /// Seconds within which an incomplete packet has to be completed.
    pub packet_timeout_s: u32,
    pub max_topic_bytes: u16,
    pub max_topic_levels: u16,
    pub max_client_id_bytes: u16,
    /// Required prefix of the client id of a client with a user name; `${username}` stands for that name. Empty: no
    /// requirement.
    pub client_id_prefix: String,
    pub session_owner_conflict: SessionOwnerConflict,
    pub max_username_bytes: u16,
    /// Highest QoS granted and accepted: 0, 1 or 2.
    pub max_qos: u8,
    pub retain_available: bool,
    pub wildcard_subscription_available: bool,
    pub shared_subscription_available: bool,
    pub exclusive_subscription_available: bool,
    pub max_subscriptions_per_session: u32,
    /// Bytes of topic filters, plus 64 for each subscription.
    pub max_subscription_bytes_per_session: u64,
    /// The same for all sessions of a shard.
    pub max_subscription_bytes_per_shard: u64,
    /// Seconds a session may outlive its connection. A larger value requested by a client is reduced to this.
    pub max_session_expiry_s: u32,
    /// QoS 1 and 2 messages a client may have in flight towards the broker.
    pub receive_maximum: u16,
    /// Upper bound on QoS 1 and 2 messages in flight towards a client, whatever the client allows.
    pub max_inflight: u16,
    /// Topic aliases a client may use towards the broker.
    pub topic_alias_maximum: u16,
    /// Upper bound on topic aliases the broker uses towards a client, whatever the client allows; 0 turns them off.
    pub max_outgoing_topic_aliases: u16,
    /// QoS 1 and 2 messages waiting for one session.
    pub max_queued_messages: u32,
    /// Bytes waiting for one session; also the bound on bytes in flight to one client.
    pub max_queued_bytes: u32,
    pub queue_policy: QueuePolicy,
    /// Whether QoS 0 messages are queued for a session without a connection.
    pub queue_qos0_messages: bool,
    /// Bytes waiting for one socket; beyond, QoS 0 messages are dropped, and QoS 1 and 2 wait in the session.
    pub max_outbox_bytes: u32,
    /// Bytes waiting for all sockets of one shard; beyond, the shard stops reading from publishers.
    pub max_buffered_bytes_per_shard: u64,
    /// Bytes waiting for slow receivers of relay endpoints, per shard; a message counts once for all of them. Beyond half of it,
    /// receivers with more than an equal part lose their oldest messages. Beyond all of it, the shard stops reading
    /// from clients of relay endpoints.
    pub max_relay_backlog_bytes_per_shard: u64,
    /// Bytes in all session queues of one shard; beyond, messages are dropped instead of queued.
    pub max_queued_bytes_per_shard: u64,
    /// Seconds a message may wait for a session; 0: as long as its expiry and the session last.
    pub max_queued_age_s: u32,
    /// Bytes waiting between two shards; beyond, the sending shard stops reading from publishers.
    pub max_cross_shard_bytes: u32,
    /// Messages that may derive from one message, directly and indirectly, by rules that publish; beyond, they are
    /// dropped.
    pub max_derived_messages: u32,
    /// Milliseconds of work on derived messages after the first turn; beyond, they are dropped.
    pub max_derived_processing_ms: u32,
    pub max_retained_messages: u32,
    pub max_retained_bytes: u64,
    pub max_retained_payload_bytes: u32,
    /// Seconds after which a retained message without an expiry of its own is removed; 0 means never.
    pub retained_expiry_s: u32,
    pub max_delayed_messages: u32,
    pub max_delayed_bytes: u64,
    pub max_publish_delay_s: u32,
    /// Keep-alive in seconds: a client that requests 0 or more than this gets this value; 0 means no limit.
    pub max_keep_alive_s: u16,
    /// Whether a payload marked as UTF-8 is checked (0x99 if it is not valid).
    pub validate_payload_format: bool,
    /// Whether answers to clients that allow them contain reason strings.
    pub send_reason_strings: bool,
    pub shared_subscription_strategy: SharedSubscriptionStrategy,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            max_connections: 1_000_000,
            max_sessions: 2_000_000,
            max_packet_size: 1 << 20,
            max_connect_bytes: 16 << 10,
            max_partial_packet_bytes_per_shard: 64 << 20,
            max_partial_packet_bytes: 512 << 20,
            packet_timeout_s: 60,
            max_topic_bytes: 4096,
            max_topic_levels: 128,
            max_client_id_bytes: 1024,
            client_id_prefix: String::new(),
            session_owner_conflict: SessionOwnerConflict::default(),
            max_username_bytes: 4096,
            max_qos: 2,
            retain_available: true,
            wildcard_subscription_available: true,
            shared_subscription_available: true,
            exclusive_subscription_available: true,
            max_subscriptions_per_session: 10_000,
            max_subscription_bytes_per_session: 4 << 20,
            max_subscription_bytes_per_shard: 1 << 30,
            max_session_expiry_s: 7 * 24 * 3600,
            receive_maximum: 1024,
            max_inflight: 1024,
            topic_alias_maximum: 64,
            max_outgoing_topic_aliases: 16,
            max_queued_messages: 10_000,
            max_queued_bytes: 16 << 20,
            queue_policy: QueuePolicy::DropOldest,
            queue_qos0_messages: false,
            max_outbox_bytes: 1 << 20,
            max_buffered_bytes_per_shard: 1 << 30,
            max_relay_backlog_bytes_per_shard: 256 << 20,
            max_queued_bytes_per_shard: 2 << 30,
            max_queued_age_s: 0,
            max_cross_shard_bytes: 16 << 20,
            max_derived_messages: 1000,
            max_derived_processing_ms: 1000,
            max_retained_messages: 1_000_000,
            max_retained_bytes: 1 << 30,
            max_retained_payload_bytes: 1 << 20,
            retained_expiry_s: 0,
            max_delayed_messages: 100_000,
            max_delayed_bytes: 256 << 20,
            max_publish_delay_s: 7 * 24 * 3600,
            max_keep_alive_s: 0,
            validate_payload_format: true,
            send_reason_strings: true,
            shared_subscription_strategy: SharedSubscriptionStrategy::RoundRobin,
        }
    }
}

/// Address of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindAddress {
    /// Port 0 lets the system choose a port; `BrokerHandle::listeners` returns the address in use.
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl BindAddress {
    /// Whether only this machine can reach the address: a loopback address or a Unix socket.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl From<SocketAddr> for BindAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl std::fmt::Display for BindAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// TLS settings of a listener, including client certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// PEM files. They are read again when they change and on SIGHUP; open connections stay.
    pub certificate: PathBuf,
    pub private_key: PathBuf,
    /// PEM file of the authorities that sign client certificates; `None`: no client certificate is requested.
    pub client_ca: Option<PathBuf>,
    /// With `client_ca`: reject clients without a certificate.
    pub require_client_certificate: bool,
    /// Use the certificate's common name as the user name.
    pub common_name_as_username: bool,
}

/// Listeners that can exist beside those of the configuration.
pub const MAX_ADDED_LISTENERS: usize = 64;

/// One listener. `tls` and `websocket_path` combine freely with TCP; a Unix socket supports only `websocket_path`, and
/// QUIC requires `tls` and excludes `websocket_path` and `proxy_protocol`; connections in memory exclude all four.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerConfig {
    /// Unique name; shown in metrics and the API.
    pub name: String,
    pub bind: BindAddress,
    pub tls: Option<TlsConfig>,
    /// Whether clients connect by QUIC, at the UDP port of `bind`.
    pub quic: bool,
    /// Whether peers connect with links, which another part of the program accepts.
    pub link: bool,
    /// Whether clients are in this process and connect by a [`MemoryListener`](crate::MemoryListener); `bind` is not used.
    pub in_memory: bool,
    /// `Some(path)` such as `/mqtt`: MQTT in WebSocket binary frames at that path.
    pub websocket_path: Option<String>,
    /// With `websocket_path`: the prefix of the paths of relay endpoints, such as `/ws/`; `None`: none are reachable.
    pub relay_path: Option<String>,
    /// With `websocket_path`: the origins of web pages that may connect; empty: all.
    pub allowed_origins: Vec<String>,
    /// With `websocket_path`: whether messages are compressed for clients that offer permessage-deflate.
    pub compression: bool,
    /// Whether each connection must begin with a PROXY protocol header (version 1 or 2).
    pub proxy_protocol: bool,
    /// `None`: anonymous clients are accepted on loopback, on Unix sockets and in memory only, and not from behind a proxy.
    pub allow_anonymous: Option<bool>,
    pub max_connections: u32,
    /// New connections per second (a burst of one second is allowed); 0 means no limit.
    pub max_new_connections_per_s: u32,
    /// PUBLISH packets per second and client; 0 means no limit.
    pub max_client_messages_per_s: u32,
    /// Bytes per second and client; 0 means no limit.
    pub max_client_bytes_per_s: u32,
    /// Largest packet accepted; 0 means the node's `max_packet_size`; never larger than that.
    pub max_packet_size: u32,
    /// Bytes of incomplete packets on all connections of this listener on a shard; 0 means half of the node's limit.
    pub max_partial_packet_bytes_per_shard: u64,
    /// Keep-alive bounds in seconds for clients of this listener; 0 means no bound.
    pub min_keep_alive_s: u16,
    pub max_keep_alive_s: u16,
    /// Seconds from accept to a complete CONNECT (TLS and WebSocket handshake included).
    pub connect_timeout_s: u16,
    /// Length of the kernel's queue of pending connections.
    pub backlog: u32,
}

impl ListenerConfig {
    /// Returns a plain MQTT listener with the defaults.
    pub fn new(name: impl Into<String>, bind: BindAddress) -> Self {
        Self {
            name: name.into(),
            bind,
            tls: None,
            quic: false,
            link: false,
            in_memory: false,
            websocket_path: None,
            relay_path: None,
            allowed_origins: Vec::new(),
            compression: false,
            proxy_protocol: false,
            allow_anonymous: None,
            max_connections: 1_000_000,
            max_new_connections_per_s: 0,
            max_client_messages_per_s: 0,
            max_client_bytes_per_s: 0,
            max_packet_size: 0,
            max_partial_packet_bytes_per_shard: 0,
            min_keep_alive_s: 0,
            max_keep_alive_s: 0,
            connect_timeout_s: 10,
            backlog: 4096,
        }
    }

    /// Returns a listener for clients in this process with the defaults.
    pub fn in_memory(name: impl Into<String>) -> Self {
        Self {
            in_memory: true,
            ..Self::new(name, BindAddress::Unix(PathBuf::new()))
        }
    }

    /// Whether this listener accepts clients without credentials.
    pub fn allows_anonymous(&self) -> bool {
        self.allow_anonymous.unwrap_or(match &self.bind {
            _ if self.proxy_protocol => false,
            BindAddress::Tcp(address) => address.ip().is_loopback(),
            BindAddress::Unix(_) => true,
        })
    }
}
