//! The MQTT broker: shards, connections, sessions, subscription tree, delivery, retained messages, listeners.
//!
//! [`Broker::start`] opens the listeners and starts one thread per shard. The heart of a shard is sans-io (`core`);
//! `net` gives it sockets and a clock. Whoever wants to know or to decide what happens implements
//! [`Hooks`](hooks::Hooks); whoever wants to look or to steer has a [`Handle`].

mod broker;
pub mod config;
pub mod control;
mod core;
mod events;
mod handle;
pub mod hooks;
pub mod info;
pub mod metrics;
mod net;
pub mod scram;
mod sys;

pub use broker::{Broker, MAX_SHARDS, StartError};
pub use handle::{Handle, NotReady};
pub use net::listener::open_unix;
pub use net::proxy::{Parsed as ProxyHeader, parse as parse_proxy_header};
pub use net::tls::{ListenerTls, TlsError, check_tls};
