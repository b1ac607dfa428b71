//! The MQTT broker: shards, connections, sessions, subscription tree, delivery, retained messages, listeners.

pub mod config;
mod core;
pub mod hooks;
pub mod info;
pub mod metrics;
pub mod scram;
