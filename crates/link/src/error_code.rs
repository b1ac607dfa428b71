//! Codes of errors that peers send to each other, and the error of a peer that violates the protocol.

use std::fmt;

/// Why a stream or a carrier ends, as sent on the wire. Codes from [`ErrorCode::FIRST_APPLICATION_CODE`] belong to applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub u16);

impl ErrorCode {
    /// A regular end.
    pub const NONE: Self = Self(0);
    /// The peer sent what the protocol does not permit.
    pub const PROTOCOL_VIOLATION: Self = Self(1);
    /// A checksum does not match: the carrier changed bytes.
    pub const CORRUPTED: Self = Self(2);
    /// A frame, message or transfer is larger than agreed.
    pub const TOO_LARGE: Self = Self(3);
    /// The peers have no protocol version in common.
    pub const UNSUPPORTED_VERSION: Self = Self(4);
    /// The credentials are missing or wrong.
    pub const NOT_AUTHENTICATED: Self = Self(5);
    /// The credentials do not permit this.
    pub const NOT_PERMITTED: Self = Self(6);
    /// The peer was silent for longer than the idle timeout.
    pub const TIMEOUT: Self = Self(7);
    /// More streams or bytes than the peer accepts now.
    pub const LIMIT_EXCEEDED: Self = Self(8);
    /// The application cancelled the stream.
    pub const CANCELLED: Self = Self(9);
    /// The digest of the received content differs from the sender's.
    pub const DIGEST_MISMATCH: Self = Self(10);
    /// The receiver could not store the content.
    pub const STORAGE_FAILED: Self = Self(11);
    /// The peer shuts down.
    pub const SHUTTING_DOWN: Self = Self(12);
    /// Another carrier of the same link replaced this one.
    pub const REPLACED: Self = Self(13);
    /// The receiver no longer has content that it has acknowledged: the stream must be sent again from the beginning.
    pub const CONTENT_LOST: Self = Self(14);
    /// The first code that the protocol never uses.
    pub const FIRST_APPLICATION_CODE: u16 = 0x4000;

    fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NONE => "none",
            Self::PROTOCOL_VIOLATION => "protocol violation",
            Self::CORRUPTED => "corrupted",
            Self::TOO_LARGE => "too large",
            Self::UNSUPPORTED_VERSION => "unsupported version",
            Self::NOT_AUTHENTICATED => "not authenticated",
            Self::NOT_PERMITTED => "not permitted",
            Self::TIMEOUT => "timeout",
            Self::LIMIT_EXCEEDED => "limit exceeded",
            Self::CANCELLED => "cancelled",
            Self::DIGEST_MISMATCH => "digest mismatch",
            Self::STORAGE_FAILED => "storage failed",
            Self::SHUTTING_DOWN => "shutting down",
            Self::REPLACED => "replaced",
            Self::CONTENT_LOST => "content lost",
            _ => return None,
        })
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "code {}", self.0),
        }
    }
}

/// The peer violated the protocol or a limit: send GOAWAY with `code` and close the carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{detail} ({code})")]
pub struct ProtocolError {
    pub code: ErrorCode,
    pub detail: &'static str,
}

impl ProtocolError {
    pub(crate) const fn violation(detail: &'static str) -> Self {
        Self {
            code: ErrorCode::PROTOCOL_VIOLATION,
            detail,
        }
    }

    pub(crate) const fn too_large(detail: &'static str) -> Self {
        Self {
            code: ErrorCode::TOO_LARGE,
            detail,
        }
    }

    pub(crate) const fn corrupted(detail: &'static str) -> Self {
        Self {
            code: ErrorCode::CORRUPTED,
            detail,
        }
    }
}
