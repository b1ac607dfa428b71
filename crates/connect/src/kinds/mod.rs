//! All kinds of connectors: one file and one line each.

mod file;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use crate::connector::Kind;

/// The table of kinds.
pub const KINDS: &[&Kind] = &[
    &file::KIND,
    #[cfg(feature = "http")]
    &http::KIND,
    #[cfg(feature = "mysql")]
    &mysql::KIND,
    #[cfg(feature = "postgres")]
    &postgres::KIND,
    #[cfg(feature = "redis")]
    &redis::KIND,
];

/// The kind of this name.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|kind| kind.name == name)
}
