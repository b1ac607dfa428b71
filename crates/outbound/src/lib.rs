//! Connections to external servers: target policy, TLS configuration and client identity, with HTTP, MySQL and
//! PostgreSQL clients on top.

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod redaction;
pub mod target_policy;
pub mod tls;
