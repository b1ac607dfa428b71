//! Counts the answers of an authenticator for its status.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::authenticator::{AuthBackendError, AuthenticatorAnswer};

/// Maximum length of a stored error text.
const MAX_ERROR_CHARS: usize = 500;

#[derive(Default)]
pub(crate) struct AnswerTally {
    accepted: AtomicU64,
    rejected: AtomicU64,
    ignored: AtomicU64,
    errors: AtomicU64,
    is_failing: AtomicBool,
    last_error: Mutex<Option<AuthenticatorError>>,
}

/// The last failure of an authenticator. Contains no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticatorError {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub text: String,
}

/// The status of an authenticator since it was created or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticatorStatus {
    pub id: String,
    /// The type, such as `jwt`.
    pub kind: String,
    pub order: i64,
    /// Whether the last answer was a failure.
    pub is_failing: bool,
    pub accepted: u64,
    pub rejected: u64,
    pub ignored: u64,
    pub errors: u64,
    pub last_error: Option<AuthenticatorError>,
}

impl AnswerTally {
    pub(crate) fn count(&self, answer: &Result<AuthenticatorAnswer, AuthBackendError>) {
        let count = match answer {
            Ok(AuthenticatorAnswer::Allow(_)) => &self.accepted,
            Ok(AuthenticatorAnswer::Deny | AuthenticatorAnswer::QuotaExceeded) => &self.rejected,
            Ok(AuthenticatorAnswer::Ignore | AuthenticatorAnswer::Unknown(_)) => &self.ignored,
            Err(AuthBackendError(why)) => {
                let error = AuthenticatorError {
                    at_ms: wall_clock::now_ms(),
                    text: why.chars().take(MAX_ERROR_CHARS).collect(),
                };
                let last = self.last_error.lock();
                *last.unwrap_or_else(PoisonError::into_inner) = Some(error);
                &self.errors
            }
        };
        count.fetch_add(1, Relaxed);
        self.is_failing.store(answer.is_err(), Relaxed);
    }

    pub(crate) fn status(&self, id: &str, kind: &str, order: i64) -> AuthenticatorStatus {
        let last_error = self.last_error.lock();
        AuthenticatorStatus {
            id: id.to_owned(),
            kind: kind.to_owned(),
            order,
            is_failing: self.is_failing.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            ignored: self.ignored.load(Relaxed),
            errors: self.errors.load(Relaxed),
            last_error: last_error.unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
