//! Queued messages in Redis or in MySQL/MariaDB: what `store::QueueBackend` asks for, said in the words of each server.
//!
//! A server belongs to one data directory, which writes numbered groups; the number is written with the group, in one
//! transaction, and a transaction of a connection that was given up finds another number and fails.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "redis")]
mod redis;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use store::QueueBackend;

/// Bodies up to this size stand with their only entry; larger and shared ones once, beside.
#[cfg(any(feature = "mysql", feature = "redis"))]
const MAX_INLINE_BYTES: usize = 4096;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueBackendKind {
    Redis,
    MySql,
}

/// How to reach it.
#[derive(Clone)]
pub struct QueueBackendOptions {
    /// `redis://`, `rediss://` or `mysql://`, with user and password.
    pub url: String,
    /// Begins the names of keys and tables: letters, digits and `_`.
    pub prefix: String,
    /// PEM file of the authorities to trust instead of the system's.
    pub tls_ca: Option<PathBuf>,
    pub connect_timeout: Duration,
    /// For one command, or one group of them.
    pub command_timeout: Duration,
    /// The largest message there can be.
    pub max_body_bytes: u64,
}

impl fmt::Debug for QueueBackendOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the address, which has a password in it.
        f.debug_struct("Options")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// A backend; nothing is connected yet. The error says which option is wrong, without its value.
pub fn create_backend(
    kind: QueueBackendKind,
    options: &QueueBackendOptions,
) -> Result<Box<dyn QueueBackend>, String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !(1..=32).contains(&options.prefix.len()) || !options.prefix.chars().all(is_fine) {
        return Err("prefix: expected 1 to 32 letters, digits or `_`".into());
    }
    match kind {
        #[cfg(feature = "redis")]
        QueueBackendKind::Redis => {
            redis::RedisQueueBackend::new(options).map(|made| Box::new(made) as _)
        }
        #[cfg(feature = "mysql")]
        QueueBackendKind::MySql => {
            mysql::MySqlQueueBackend::new(options).map(|made| Box::new(made) as _)
        }
        #[allow(unreachable_patterns, reason = "the program may have both")]
        _ => Err("this program was built without it (Cargo features `redis`, `mysql`)".into()),
    }
}
