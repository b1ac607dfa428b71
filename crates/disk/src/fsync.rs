//! The fsync policy.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// When written data is forced to disk. The policy decides what a power failure can lose. If only the process is
/// killed, nothing acknowledged is lost under any policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Before each acknowledgement. A power failure loses nothing acknowledged.
    Always,
    /// At this interval. A power failure may lose what was acknowledged since the last sync.
    Every(Duration),
    /// When the operating system writes the data back, usually within 30 seconds.
    Never,
}

impl Default for Fsync {
    fn default() -> Self {
        Fsync::Every(Duration::from_millis(100))
    }
}

/// A text that is not an fsync policy.
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
