//! The exit status of the program.

use std::process::ExitCode;

/// The exit status of a failed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    Failure = 1,
    Usage = 2,
    Connection = 3,
    Rejected = 4,
    TimedOut = 5,
}

impl From<ExitStatus> for ExitCode {
    fn from(exit: ExitStatus) -> Self {
        Self::from(exit as u8)
    }
}
