//! Tests of connectors against their real systems, or against small servers that simulate them.

// The workspace allows unwrap in `#[test]` functions; this binary consists of tests and their support code.
#![allow(clippy::unwrap_used)]

mod bench;
mod clickhouse;
mod content;
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
