//! Sinks and real servers, which are killed, frozen and brought back under load: nothing is lost, order is kept where it is
//! promised, and rows are there twice only because they are written again when it is not known whether they were.
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
