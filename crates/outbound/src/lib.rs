//! Towards servers of others, which are asked or written to: whom to trust, who we are, and HTTP and PostgreSQL over it.

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod tls;
