//! Towards servers of others, which are asked or written to: whom to trust, who we are, and PostgreSQL over it.

#[cfg(feature = "postgres")]
pub mod postgres;
pub mod tls;
