//! Why a step of a transfer failed.

use mqtt::ReasonCode;

/// A failed step. Its text names the expected value and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {detail}", kind = .kind.name())]
pub struct TransferError {
    pub kind: TransferErrorKind,
    /// A sentence without its full stop.
    pub detail: String,
}

/// The kind of a failure, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransferErrorKind {
    /// The topic is not one of a file transfer.
    InvalidFileCommand,
    /// A field of the request has an invalid value.
    InvalidRequest,
    /// There is no such transfer.
    NotFound,
    /// The sender has another transfer with this id.
    Conflict,
    /// A segment or a file does not match its digest.
    ChecksumMismatch,
    /// Parts of the file are missing.
    Incomplete,
    /// The file is larger than permitted, or a segment lies outside of it.
    TooLarge,
    /// A quota is used up.
    QuotaExceeded,
    /// The file system is nearly full, or full.
    DiskFull,
    /// Too many requests wait.
    Busy,
    /// The transfer is paused.
    Paused,
    /// File transfers are disabled.
    Disabled,
    /// The storage failed.
    Storage,
}

impl TransferErrorKind {
    pub const ALL: [Self; 13] = [
        Self::InvalidFileCommand,
        Self::InvalidRequest,
        Self::NotFound,
        Self::Conflict,
        Self::ChecksumMismatch,
        Self::Incomplete,
        Self::TooLarge,
        Self::QuotaExceeded,
        Self::DiskFull,
        Self::Busy,
        Self::Paused,
        Self::Disabled,
        Self::Storage,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidFileCommand => "invalid_file_command",
            Self::InvalidRequest => "invalid_request",
            Self::NotFound => "transfer_not_found",
            Self::Conflict => "conflict",
            Self::ChecksumMismatch => "checksum_mismatch",
            Self::Incomplete => "incomplete",
            Self::TooLarge => "too_large",
            Self::QuotaExceeded => "quota_exceeded",
            Self::DiskFull => "disk_full",
            Self::Busy => "busy",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
            Self::Storage => "storage_error",
        }
    }

    /// The reason code of an MQTT acknowledgement.
    #[must_use]
    pub fn reason_code(self) -> ReasonCode {
        match self {
            Self::QuotaExceeded | Self::DiskFull | Self::Busy | Self::Paused => {
                ReasonCode::QUOTA_EXCEEDED
            }
            _ => ReasonCode::UNSPECIFIED_ERROR,
        }
    }
}

impl TransferError {
    pub fn new(kind: TransferErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }

    /// The error of a segment for a transfer that is paused.
    #[must_use]
    pub fn paused() -> Self {
        let detail = "the transfer is paused; send this again when an operator has resumed it";
        Self::new(TransferErrorKind::Paused, detail)
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(TransferErrorKind::InvalidRequest, detail)
    }

    /// An error of the file system while doing `what`.
    pub(crate) fn storage(what: &str, error: &std::io::Error) -> Self {
        let is_full = matches!(
            error.kind(),
            std::io::ErrorKind::StorageFull
                | std::io::ErrorKind::QuotaExceeded
                | std::io::ErrorKind::FileTooLarge
        );
        match is_full {
            true => Self::new(
                TransferErrorKind::DiskFull,
                format!("cannot {what}: {error}; delete files or add space, then send it again"),
            ),
            false => {
                tracing::error!(%error, "cannot {what}");
                Self::new(
                    TransferErrorKind::Storage,
                    format!("cannot {what}: {error}; see the log of the node"),
                )
            }
        }
    }
}
