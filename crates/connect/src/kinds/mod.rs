//! All kinds of connectors: one file and one line each.

#[cfg(feature = "http")]
mod clickhouse;
#[cfg(feature = "http")]
mod elasticsearch;
#[cfg(feature = "email")]
mod email;
mod file;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod influxdb;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "http")]
mod s3;

use crate::connector::ConnectorKind;

/// The table of connector kinds.
pub const CONNECTOR_KINDS: &[&ConnectorKind] = &[
    #[cfg(feature = "http")]
    &clickhouse::KIND,
    #[cfg(feature = "http")]
    &elasticsearch::KIND,
    #[cfg(feature = "email")]
    &email::KIND,
    &file::KIND,
    #[cfg(feature = "http")]
    &http::KIND,
    #[cfg(feature = "http")]
    &influxdb::KIND,
    #[cfg(feature = "kafka")]
    &kafka::KIND,
    #[cfg(feature = "mqtt")]
    &mqtt::KIND,
    #[cfg(feature = "mysql")]
    &mysql::KIND,
    #[cfg(feature = "nats")]
    &nats::KIND,
    #[cfg(feature = "postgres")]
    &postgres::KIND,
    #[cfg(feature = "redis")]
    &redis::KIND,
    #[cfg(feature = "http")]
    &s3::KIND,
];

/// The connector kind with this name.
pub fn find_kind(name: &str) -> Option<&'static ConnectorKind> {
    CONNECTOR_KINDS
        .iter()
        .copied()
        .find(|kind| kind.name == name)
}
