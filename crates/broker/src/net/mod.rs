//! Input and output of the shards: threads, sockets, pipes in memory, TLS, WebSocket, QUIC, the clock.

mod accept;
pub(crate) mod byte_stream;
pub(crate) mod clock;
mod compressed_messages;
pub(crate) mod connection_task;
pub(crate) mod flusher;
pub(crate) mod gateway_listener;
pub(crate) mod inbox;
pub(crate) mod layers;
pub(crate) mod listener;
pub(crate) mod memory_listener;
pub(crate) mod node_router_thread;
pub(crate) mod peer_node_transport;
pub(crate) mod proxy_protocol;
pub(crate) mod quic;
mod relay_connection;
pub(crate) mod reserved_connection;
pub(crate) mod shard_io;
pub(crate) mod shard_thread;
mod socket_pair;
pub(crate) mod store_reader;
pub(crate) mod tls;
mod tunnel_exits;
