//! The log of a NATS server: split into lines, passed to the log of the node, and searched for reasons of an end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tracing::{debug, error, warn};

const READ_BYTES: usize = 4096;
/// The rest of longer lines is ignored.
const MAX_LINE_BYTES: usize = 2048;

/// What the log of one run of the server tells.
#[derive(Debug, Default)]
pub(super) struct LogFindings {
    /// The last error, and when it was logged.
    pub(super) last_error: Option<(Instant, String)>,
    /// When the server has stopped to store anything, which it does until it is started again.
    pub(super) jetstream_disabled: Option<Instant>,
}

pub(super) type SharedFindings = Arc<Mutex<LogFindings>>;

/// Reads the log until the server closes it.
pub(super) async fn forward(mut log: impl AsyncRead + Unpin, findings: SharedFindings) {
    let mut lines = LineSplitter::default();
    let mut buffer = [0; READ_BYTES];
    while let Ok(bytes) = log.read(&mut buffer).await
        && bytes > 0
    {
        lines.push(&buffer[..bytes], |line| {
            let line = LogLine::parse(line);
            line.report();
            line.record(&mut findings.lock().unwrap_or_else(PoisonError::into_inner));
        });
    }
}

#[derive(Debug, Default)]
struct LineSplitter {
    line: Vec<u8>,
}

impl LineSplitter {
    fn push(&mut self, bytes: &[u8], mut handle: impl FnMut(&str)) {
        for &byte in bytes {
            if byte != b'\n' {
                if self.line.len() < MAX_LINE_BYTES {
                    self.line.push(byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&self.line);
            if !text.trim().is_empty() {
                handle(text.trim());
            }
            self.line.clear();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogLevel {
    Information,
    Warning,
    /// Mostly passing, such as another server that cannot be reached.
    Error,
    /// Why the server ends.
    Fatal,
    /// Written before the log is configured: why the configuration cannot be used.
    None,
}

#[derive(Debug, PartialEq, Eq)]
struct LogLine<'a> {
    level: LogLevel,
    text: &'a str,
}

impl<'a> LogLine<'a> {
    /// Reads a line such as `[42] [INF] Server is ready`.
    fn parse(line: &'a str) -> Self {
        let parts = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] ["))
            .filter(|(pid, _)| pid.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|(_, rest)| rest.split_once(']'));
        let Some((level, text)) = parts else {
            return Self {
                level: LogLevel::None,
                text: line,
            };
        };
        let text = text.trim_start();
        let level = match level {
            "FTL" => LogLevel::Fatal,
            "ERR" => LogLevel::Error,
            // The configuration file is readable for its owner only.
            "WRN" if text.starts_with("Plaintext passwords detected") => LogLevel::Information,
            "WRN" => LogLevel::Warning,
            _ => LogLevel::Information,
        };
        Self { level, text }
    }

    fn report(&self) {
        match self.level {
            LogLevel::Information => debug!(target: "nats_server", "{}", self.text),
            LogLevel::Warning | LogLevel::Error => warn!(target: "nats_server", "{}", self.text),
            LogLevel::Fatal | LogLevel::None => error!(target: "nats_server", "{}", self.text),
        }
    }

    fn record(&self, findings: &mut LogFindings) {
        if matches!(
            self.level,
            LogLevel::Error | LogLevel::Fatal | LogLevel::None
        ) {
            findings.last_error = Some((Instant::now(), self.text.to_owned()));
        }
        let is_disabled =
            self.text.starts_with("JetStream out of") && self.text.ends_with("will be DISABLED");
        if self.level == LogLevel::Error && is_disabled {
            findings.jetstream_disabled.get_or_insert_with(Instant::now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_and_long_ones_are_cut() {
        let mut lines = LineSplitter::default();
        let mut seen = Vec::new();
        let mut push = |bytes: &[u8]| lines.push(bytes, |line| seen.push(line.to_owned()));
        push(b"[1] [INF] a\n[1] [E");
        push(b"RR] b\n\n");
        push(&[b'x'; 3 * MAX_LINE_BYTES]);
        push(b"\nend\n");
        assert_eq!(
            seen,
            [
                "[1] [INF] a",
                "[1] [ERR] b",
                &"x".repeat(MAX_LINE_BYTES),
                "end"
            ]
        );
    }

    #[test]
    fn errors_and_a_disabled_jetstream_are_found() {
        let mut findings = LogFindings::default();
        let mut record = |line| LogLine::parse(line).record(&mut findings);
        record("[42] [INF] Server is ready");
        record("[42] [ERR] JetStream out of File resources, will be DISABLED");
        record("[42] [WRN] something");
        let disabled = findings.jetstream_disabled;
        assert!(disabled.is_some());
        let mut record = |line| LogLine::parse(line).record(&mut findings);
        record("nats-server: nats.conf:1:2: unknown field");
        assert_eq!(
            findings.last_error.map(|(_, error)| error).as_deref(),
            Some("nats-server: nats.conf:1:2: unknown field")
        );
        let empty = LogLine::parse("[42] [INF]");
        assert_eq!((empty.level, empty.text), (LogLevel::Information, ""));
        assert_eq!(
            LogLine::parse("[42] [WRN] Plaintext passwords detected, use nkeys or bcrypt").level,
            LogLevel::Information
        );
    }
}
