//! Towards servers of others, which are asked or written to: which addresses may be reached, whom to trust, who we are,
//! and HTTP, MySQL and PostgreSQL over it.

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod target_policy;
pub mod tls;
