//! Errors of `tidegate ctl`; scripts distinguish the kinds by the exit status.

use crate::exit_status::ExitStatus;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CtlError {
    #[error("{0}")]
    Usage(String),
    #[error("cannot reach the node at {url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// The node rejected the request.
    #[error("the node rejected the request ({status}): {detail}")]
    Rejected { status: u16, detail: String },
    /// A device did not respond to a command in time.
    #[error("{0}")]
    CommandTimedOut(String),
    /// A device rejected a command, or never received it.
    #[error("{0}")]
    CommandFailed(String),
    /// The response does not come from a node.
    #[error("{url} does not respond like a node: {reason}")]
    UnexpectedResponse { url: String, reason: String },
}

impl CtlError {
    pub(crate) fn exit(&self) -> ExitStatus {
        match self {
            Self::Usage(_) => ExitStatus::Usage,
            Self::Unreachable { .. } | Self::UnexpectedResponse { .. } => ExitStatus::Connection,
            Self::Rejected { .. } => ExitStatus::Rejected,
            Self::CommandTimedOut(_) => ExitStatus::TimedOut,
            Self::CommandFailed(_) => ExitStatus::Failure,
        }
    }
}
