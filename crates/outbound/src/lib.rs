//! Connections to external servers: target policy, TLS configuration and client identity, with HTTP, MySQL,
//! PostgreSQL and Redis clients on top.

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "http")]
pub mod request_body;
#[cfg(feature = "stream")]
pub mod stream;
pub mod target_policy;
pub mod tls;
pub mod url_encoding;
#[cfg(feature = "stream")]
pub mod write_guard;
