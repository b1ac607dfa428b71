//! Why talking to a broker failed; scripts tell the kinds apart by the exit status.

use crate::cli::Exit;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// What was asked for cannot be done; nothing was sent.
    #[error("{0}")]
    Usage(String),
    #[error("cannot reach {endpoint}: {reason}{hint}")]
    Unreachable {
        endpoint: String,
        reason: String,
        /// Empty, or what to do behind a semicolon.
        hint: &'static str,
    },
    #[error("the connection to the broker was lost: {0}")]
    Lost(String),
    /// The broker did what MQTT forbids.
    #[error("the broker broke the protocol: {0}")]
    Protocol(String),
    #[error("the broker refused {what}: {reason}")]
    Refused {
        what: String,
        reason: String,
        /// Asking again later may be answered otherwise.
        is_passing: bool,
    },
    #[error("{0}")]
    TimedOut(String),
    /// Standard input, output or a file.
    #[error("{what}: {error}")]
    Local { what: String, error: std::io::Error },
}

impl ClientError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Unreachable { .. } | Self::Lost(_) | Self::Protocol(_) => Exit::Connection,
            Self::Refused { .. } => Exit::Refused,
            Self::TimedOut(_) => Exit::TimedOut,
            Self::Local { .. } => Exit::Failure,
        }
    }

    /// Whether trying again later may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost(_) => true,
            Self::Refused { is_passing, .. } => *is_passing,
            _ => false,
        }
    }
}
