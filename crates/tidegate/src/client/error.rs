//! Errors of the MQTT client; scripts distinguish the kinds by the exit status.

use crate::exit_status::ExitStatus;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The arguments are invalid or impossible; nothing was sent.
    #[error("{0}")]
    Usage(String),
    #[error("cannot reach {endpoint}: {reason}{hint}")]
    Unreachable {
        endpoint: String,
        reason: String,
        /// Empty, or a remedy preceded by a semicolon.
        hint: &'static str,
    },
    #[error("the connection to the broker was lost: {0}")]
    Lost(String),
    /// The broker violated the protocol.
    #[error("the broker broke the protocol: {0}")]
    Protocol(String),
    #[error("the broker rejected {what}: {reason}")]
    Rejected {
        what: String,
        reason: String,
        /// Whether a later attempt may succeed.
        is_passing: bool,
    },
    #[error("{0}")]
    TimedOut(String),
    /// An error of standard input, standard output or a file.
    #[error("{what}: {error}")]
    Local { what: String, error: std::io::Error },
}

impl ClientError {
    pub(crate) fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Usage(_) => ExitStatus::Usage,
            Self::Unreachable { .. } | Self::Lost(_) | Self::Protocol(_) => ExitStatus::Connection,
            Self::Rejected { .. } => ExitStatus::Rejected,
            Self::TimedOut(_) => ExitStatus::TimedOut,
            Self::Local { .. } => ExitStatus::Failure,
        }
    }

    /// Whether a later attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost(_) => true,
            Self::Rejected { is_passing, .. } => *is_passing,
            _ => false,
        }
    }
}
