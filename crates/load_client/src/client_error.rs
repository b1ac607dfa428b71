//! What can go wrong with a connection, in words and by kind.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use crate::packet_scanner::ScanError;
use crate::transport::TransportError;

/// Failures described in full; the rest is only counted.
const MAX_DESCRIBED: usize = 5;

/// Why a client's connection failed.
#[derive(Debug)]
pub enum ClientError {
    Transport(TransportError),
    Malformed(ScanError),
    /// CONNACK with a reason.
    Refused(String),
    /// DISCONNECT with a reason.
    Disconnected(String),
    /// A filter was not granted.
    Subscription(String),
    /// No CONNACK (or SUBACK) in time.
    TimedOut,
    /// The broker did what MQTT does not allow.
    Protocol(String),
}

impl From<TransportError> for ClientError {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

impl From<ScanError> for ClientError {
    fn from(error: ScanError) -> Self {
        Self::Malformed(error)
    }
}

impl ClientError {
    /// What failures are counted by.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Self::Transport(TransportError::Closed) => "closed by the broker".to_owned(),
            Self::Transport(TransportError::Io(error)) => match error.kind() {
                io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    "connection reset".to_owned()
                }
                io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => {
                    "no local port left; connect from more source addresses".to_owned()
                }
                _ => error.to_string(),
            },
            Self::Transport(TransportError::Tls(_)) => "TLS".to_owned(),
            Self::Transport(TransportError::WebSocket(_)) => "WebSocket".to_owned(),
            Self::Transport(TransportError::Rejected(reason)) => reason.clone(),
            Self::Malformed(_) | Self::Protocol(_) => "protocol error".to_owned(),
            Self::Refused(reason) => format!("CONNACK {reason}"),
            Self::Disconnected(reason) => format!("DISCONNECT {reason}"),
            Self::Subscription(_) => "subscription refused".to_owned(),
            Self::TimedOut => "timed out".to_owned(),
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(TransportError::Tls(reason)) => write!(f, "TLS: {reason}"),
            Self::Transport(TransportError::WebSocket(reason)) => write!(f, "WebSocket: {reason}"),
            Self::Transport(_) => f.write_str(&self.kind()),
            Self::Malformed(error) => error.fmt(f),
            Self::Protocol(reason) | Self::Subscription(reason) => f.write_str(reason),
            Self::Refused(reason) => write!(f, "the broker refused the connection: {reason}"),
            Self::Disconnected(reason) => write!(f, "the broker disconnected it: {reason}"),
            Self::TimedOut => f.write_str("no answer within the time limit for connections"),
        }
    }
}

/// Failures of a run: all counted, the first few described.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct FailureLog {
    pub by_kind: BTreeMap<String, u64>,
    /// `CLIENT: WHAT`, of the first few.
    pub first: Vec<String>,
}

impl FailureLog {
    /// Counts the failure of `client`.
    pub fn record(&mut self, client: &str, error: &ClientError) {
        if self.first.len() < MAX_DESCRIBED {
            self.first.push(format!("{client}: {error}"));
        }
        *self.by_kind.entry(error.kind()).or_default() += 1;
    }

    /// Counts something else that failed, and describes it with `text` unless enough is described.
    pub fn record_other(&mut self, kind: &str, text: impl FnOnce() -> String) {
        if self.first.len() < MAX_DESCRIBED {
            self.first.push(text());
        }
        *self.by_kind.entry(kind.to_owned()).or_default() += 1;
    }

    /// Failures counted.
    pub fn count(&self) -> u64 {
        self.by_kind.values().sum()
    }

    /// Adds those of another worker or round.
    pub fn add(&mut self, other: &FailureLog) {
        for (kind, count) in &other.by_kind {
            *self.by_kind.entry(kind.clone()).or_default() += count;
        }
        let room = MAX_DESCRIBED.saturating_sub(self.first.len());
        self.first.extend(other.first.iter().take(room).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_all_and_describes_a_few() {
        let mut failures = FailureLog::default();
        for number in 0..10 {
            let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
            failures.record(&format!("c{number}"), &TransportError::Io(refused).into());
        }
        failures.record("c10", &ClientError::Refused("Not authorized".to_owned()));
        assert_eq!(failures.count(), 11);
        assert_eq!(failures.by_kind["connection refused"], 10);
        assert_eq!(failures.by_kind["CONNACK Not authorized"], 1);
        assert_eq!(failures.first.len(), MAX_DESCRIBED);
        assert_eq!(failures.first[0], "c0: connection refused");
        let mut sum = FailureLog::default();
        sum.add(&failures);
        sum.add(&failures);
        assert_eq!(sum.count(), 22);
        assert_eq!(sum.first.len(), MAX_DESCRIBED);
    }
}
