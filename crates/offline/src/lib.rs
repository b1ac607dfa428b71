//! Session queues in Redis or MySQL/MariaDB: implementations of `store::QueueBackend`.
//!
//! A server's queues belong to one data directory, which writes numbered groups. The group number is written in the
//! same transaction as the group. A late transaction of an abandoned connection finds a different number and fails.

#[cfg(feature = "mysql")]
mod mysql;
mod options;
#[cfg(feature = "redis")]
mod redis;

use store::QueueBackend;

pub use options::QueueBackendOptions;

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueBackendKind {
    Redis,
    MySql,
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
