//! The options of a backend.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Bodies up to this size with a single entry are stored in that entry; larger and shared bodies are stored once,
/// separately.
#[cfg(any(feature = "mysql", feature = "redis"))]
pub(crate) const MAX_INLINE_BYTES: usize = 4096;

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
