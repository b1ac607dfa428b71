//! The MQTT broker: shards, connections, sessions, subscription tree, delivery, retained messages, listeners.

pub mod config;
pub mod info;
pub mod scram;
