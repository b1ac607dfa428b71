//! The final result of a login.

use hooks::{Authentication, ClientGrant};
use mqtt::ReasonCode;

/// The grant of an accepted client, or the reason code of the rejection.
pub(crate) type LoginOutcome = Result<Box<ClientGrant>, ReasonCode>;

/// Converts a final authentication result.
pub(crate) fn login_outcome(concluded: Authentication) -> LoginOutcome {
    match concluded {
        Authentication::Allow(grant) => Ok(grant),
        Authentication::Deny(code) => Err(code),
        Authentication::Ignore | Authentication::Pending(_) => Err(ReasonCode::NOT_AUTHORIZED),
    }
}
