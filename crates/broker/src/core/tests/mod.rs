//! The core under test without sockets: shards in memory, words between them delivered when the test says so.

mod matching;
mod qos;
mod shards;
mod sim;
