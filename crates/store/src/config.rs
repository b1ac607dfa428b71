//! How much a store may take and how soon it is on disk.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::OpenError;

/// When what was written is forced to disk. It decides what a power failure can lose; a killed process loses nothing
/// acknowledged with any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Before it is acknowledged. A power failure loses nothing acknowledged.
    Always,
    /// At this interval. A power failure may lose what was acknowledged since the last one.
    Every(Duration),
    /// When the operating system sees fit, usually within 30 seconds.
    Never,
}

impl Default for Fsync {
    fn default() -> Self {
        Fsync::Every(Duration::from_millis(100))
    }
}

/// Not an fsync policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected \"always\", \"never\" or an interval from 1ms to 60s such as \"100ms\", not {0:?}"
)]
pub struct ParseFsyncError(String);

impl FromStr for Fsync {
    type Err = ParseFsyncError;

    fn from_str(text: &str) -> Result<Self, ParseFsyncError> {
        let refuse = || ParseFsyncError(text.chars().take(64).collect());
        match text {
            "always" => return Ok(Fsync::Always),
            "never" => return Ok(Fsync::Never),
            _ => {}
        }
        let (digits, unit_ms) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
            (Some(digits), _) => (digits, 1),
            (None, Some(digits)) => (digits, 1000),
            (None, None) => return Err(refuse()),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<u64> = is_number.then(|| digits.parse().ok()).flatten();
        match number.and_then(|number| number.checked_mul(unit_ms)) {
            Some(ms @ 1..=60_000) => Ok(Fsync::Every(Duration::from_millis(ms))),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Fsync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fsync::Always => f.write_str("always"),
            Fsync::Never => f.write_str("never"),
            Fsync::Every(interval) if interval.as_millis().is_multiple_of(1000) => {
                write!(f, "{}s", interval.as_secs())
            }
            Fsync::Every(interval) => write!(f, "{}ms", interval.as_millis()),
        }
    }
}

/// Bounds of a store.
#[derive(Debug, Clone)]
pub struct Config {
    /// When the log is forced to disk.
    pub fsync: Fsync,
    /// Size of one segment of the message log. A batch that is larger gets a segment of its own size.
    pub segment_bytes: u32,
    /// The store is [`Full`](crate::Health::Full) while the file system has less room than this.
    pub min_free_bytes: u64,
    /// The store is [`Full`](crate::Health::Full) while the message log is larger than this.
    pub max_log_bytes: u64,
    /// Shards should take nothing more from clients while [`pending_bytes`](crate::Store::pending_bytes) is above this.
    pub max_pending_bytes: usize,
    /// Memory for blocks of the keyed state and objects that were read.
    pub cache_bytes: u64,
    /// How long a store that is closed goes on trying to write what it has.
    pub max_stopping: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            fsync: Fsync::default(),
            segment_bytes: 64 << 20,
            min_free_bytes: 256 << 20,
            max_log_bytes: 64 << 30,
            max_pending_bytes: 32 << 20,
            cache_bytes: 32 << 20,
            max_stopping: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Whether the bounds fit together.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let refuse = |field, found: String, expected: &str| {
            Err(OpenError::Setting {
                field,
                found,
                expected: expected.to_owned(),
            })
        };
        if !(64 << 10..=2 << 30).contains(&self.segment_bytes) {
            return refuse(
                "segment_bytes",
                self.segment_bytes.to_string(),
                "64 KiB to 2 GiB",
            );
        }
        if self.max_log_bytes < 4 * u64::from(self.segment_bytes) {
            let found = self.max_log_bytes.to_string();
            return refuse("max_log_bytes", found, "at least four segments");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fsync_policies_are_read_and_written() {
        for text in ["always", "never", "100ms", "1ms", "5s", "60s"] {
            assert_eq!(text.parse::<Fsync>().unwrap().to_string(), text);
        }
        assert_eq!("2000ms".parse::<Fsync>().unwrap().to_string(), "2s");
        for text in [
            "",
            "ms",
            "0ms",
            "100",
            "1h",
            "-1s",
            "+1s",
            "61s",
            "99999999999999999999s",
        ] {
            let error = text.parse::<Fsync>().unwrap_err().to_string();
            assert!(error.contains("\"100ms\""), "{text}: {error}");
        }
    }
}
