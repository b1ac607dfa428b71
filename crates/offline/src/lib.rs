//! Session queues in Redis or MySQL/MariaDB: implementations of `store::QueueBackend`.
//!
//! A server's queues belong to one data directory, which writes numbered groups. The group number is written in the
//! same transaction as the group. A late transaction of an abandoned connection finds a different number and fails.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "redis")]
mod redis;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use store::QueueBackend;

/// Bodies up to this size with a single entry are stored in that entry; larger and shared bodies are stored once,
/// separately.
#[cfg(any(feature = "mysql", feature = "redis"))]
const MAX_INLINE_BYTES: usize = 4096;

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueBackendKind {
    Redis,
    MySql,
}

/// How to reach the server, and limits.
#[derive(Clone)]
pub struct QueueBackendOptions {
    /// `redis://`, `rediss://` or `mysql://`, with user and password.
    pub url: String,
    /// Prefix of the names of keys and tables: letters, digits and `_`.
    pub prefix: String,
    /// PEM file of certificate authorities to trust instead of those of the system.
    pub tls_ca: Option<PathBuf>,
    pub connect_timeout: Duration,
    /// Time limit of one command or one group of commands.
    pub command_timeout: Duration,
    /// Size of the largest message.
    pub max_body_bytes: u64,
}

impl fmt::Debug for QueueBackendOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL is omitted because it contains a password.
        f.debug_struct("Options")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// Creates a backend without connecting. The error names the invalid option, without its value.
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
        #[allow(
            unreachable_patterns,
            reason = "unreachable if both features are enabled"
        )]
        _ => Err(
            "this program was built without this backend (Cargo features `redis`, `mysql`)".into(),
        ),
    }
}
