//! Sinks against real servers that are killed, suspended and restarted under load: no row is lost, the configured order is
//! kept, and rows are duplicated only if the result of a write was unknown.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod disk;
mod file;
mod http;
mod mysql;
mod node;
#[cfg(feature = "parquet")]
mod parquet;
mod postgres;
mod redis;
mod redis_cluster;
mod redis_source;
