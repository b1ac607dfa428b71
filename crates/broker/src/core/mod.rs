//! The sans-io heart of a shard: bytes and the time go in, bytes and words to other shards come out. No socket, no
//! clock, no async.

pub(crate) mod authenticate;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod cross;
pub(crate) mod deliver;
pub(crate) mod derived;
pub(crate) mod directory;
pub(crate) mod discard;
pub(crate) mod encode;
pub(crate) mod estate;
pub(crate) mod foreign;
pub(crate) mod inspect;
pub(crate) mod journal;
pub(crate) mod lifecycle;
pub(crate) mod look;
pub(crate) mod message;
pub(crate) mod outbox;
pub(crate) mod packet_budget;
pub(crate) mod publish;
pub(crate) mod pump;
pub(crate) mod queue;
pub(crate) mod recovery;
mod redelivery;
pub(crate) mod restore;
pub(crate) mod retained;
pub(crate) mod route;
pub(crate) mod session;
pub(crate) mod shard;
pub(crate) mod shared;
pub(crate) mod steer;
pub(crate) mod stored;
pub(crate) mod sublist;
pub(crate) mod subscribe;
pub(crate) mod timers;
pub(crate) mod tree;
pub(crate) mod watched;

#[cfg(test)]
mod tests;
