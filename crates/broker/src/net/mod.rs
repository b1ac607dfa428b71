//! The shards' contact with the world: threads, sockets, TLS, WebSocket, the clock.

pub(crate) mod connection;
pub(crate) mod flush;
pub(crate) mod inbox;
pub(crate) mod layers;
pub(crate) mod listener;
pub(crate) mod proxy;
pub(crate) mod shard_thread;
pub(crate) mod tls;
