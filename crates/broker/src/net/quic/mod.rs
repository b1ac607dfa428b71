//! MQTT over QUIC: one UDP socket per listener, on threads of their own.
//!
//! A UDP socket cannot be divided among the shards: after a client has changed its address, the system would deliver its
//! datagrams to another shard. So threads of QUIC decrypt them, and pass the bytes of a connection through a pair of
//! connected sockets to a shard, where it is a connection like any other, with all limits.

mod bridge;
mod control_packets;
mod exchanges;
mod listener;
mod multiplexer;
#[cfg(test)]
mod multiplexer_tests;
mod packet_ids;
mod shared;
mod stream_number;
mod streams;
mod threads;

pub(crate) use listener::QuicListener;
pub(crate) use threads::QuicThreads;
