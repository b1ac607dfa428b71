//! Bans of the owners of a namespace, which close its endpoints.

use hooks::relay::RelayClose;

use crate::system_message::policy_close;

/// All owners of a namespace are banned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerBan {
    pub reason: String,
    /// When the owner was banned, in milliseconds since 1970.
    pub since_ms: u64,
    /// When an owner may log in again, in milliseconds since 1970; `None`: there is no such time.
    pub until_ms: Option<u64>,
}

impl OwnerBan {
    /// What a client is told; `None`: the ban has ended.
    pub(crate) fn close(&self, now_ms: u64) -> Option<RelayClose> {
        if self.until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            return None;
        }
        let Self {
            reason, since_ms, ..
        } = self;
        let until = match self.until_ms {
            Some(until_ms) => format!(" until {until_ms}"),
            None => String::new(),
        };
        let message = format!(
            "The owner of this endpoint is banned since {since_ms}{until} (milliseconds since 1970): {reason}"
        );
        Some(policy_close(
            "USER_BANNED",
            &message,
            "User is banned",
            now_ms,
        ))
    }
}
