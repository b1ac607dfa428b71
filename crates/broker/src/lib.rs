//! The MQTT broker: shards, connections, sessions, subscription tree, delivery, retained messages, listeners.
//!
//! [`Broker::start`] opens the listeners and starts one thread per shard. The core of a shard (`core`) is sans-io;
//! `net` connects it to sockets and a clock. Implementations of [`Hooks`](hooks::Hooks) observe and decide what
//! happens; the control plane inspects and operates the broker through a [`BrokerHandle`].

mod broker;
pub mod config;
pub mod control;
mod core;
mod events;
mod handle;
pub mod info;
pub mod metrics;
mod net;
mod start_error;
mod sys_topics;

pub use broker::Broker;
pub use config::{MAX_PEER_NODES, MAX_SHARDS};
pub use core::client_disconnects::DisconnectCause;
pub use core::node_messages::{NODE_PROTOCOL, OLDEST_NODE_PROTOCOL};
pub use core::peer_loss::PeerLoss;
pub use core::peer_node_ix::PeerNodeIx;
pub use core::session::{FIRST_NUMBERS_PROPERTY, NUMBER_PROPERTY, PUBLISHER_PROPERTY};
pub use core::succession::SessionHold;
pub use handle::{
    AcceptedPublication, AdoptionError, AdoptionReport, BrokerHandle, ClientDisconnects,
    ClientPermissions, ConnectedDevice, NotReadyReason,
};
pub use net::gateway_listener::{GatewayConnection, GatewayListener, GatewaySocket};
pub use net::listener::open_unix;
pub use net::memory_listener::MemoryListener;
pub use net::node_router_thread::{ClusterAttachment, ClusterCounters, PeerNodeInbox};
pub use net::peer_node_transport::{PeerNodeConnection, PeerNodeTransport};
pub use net::proxy_protocol::{ProxyHeader, parse_proxy_header};
pub use net::tls::{ListenerTls, TlsError, check_tls, describe_certificate_file};
pub use start_error::StartError;
