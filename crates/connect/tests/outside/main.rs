//! Connectors against the systems they are for, or against small servers that behave like these.

// The workspace allows unwrap in `#[test]` functions; this binary is tests and what they stand on.
#![allow(clippy::unwrap_used)]

mod bench;
mod clickhouse;
mod elasticsearch;
mod email;
mod http;
mod influxdb;
mod kafka;
mod kafka_brokers;
mod mqtt;
mod nats;
mod opensearch;
mod s3;
mod sources;
