//! State of the access checks that outlives a request: issued tokens, failed logins, revocations.

use tokio::sync::watch;

use super::login_attempts::LoginAttempts;
use super::password::PasswordHasher;
use super::secret::SecretHash;
use super::tokens::{TokenFamily, TokenOwner, TokenStore};
use crate::config::SharedHttpConfig;

/// State of the access checks that outlives a request.
pub(crate) struct AccessState {
    pub(crate) passwords: PasswordHasher,
    pub(crate) tokens: TokenStore,
    /// Refresh tokens of ThingsBoard's paths; they only serve to get the next token.
    pub(crate) refresh_tokens: TokenStore,
    pub(crate) attempts: LoginAttempts,
    /// Incremented whenever credentials may have been revoked; streams watch it.
    revoked: watch::Sender<u64>,
    /// Hash of the token file's content, if there is one.
    pub(super) local_token: Option<SecretHash>,
}

impl AccessState {
    pub(crate) fn new(live: &SharedHttpConfig, local_token: Option<&str>) -> Self {
        Self {
            passwords: PasswordHasher::default(),
            tokens: TokenStore::default(),
            refresh_tokens: TokenStore::default(),
            attempts: LoginAttempts::new(live.clone()),
            revoked: watch::Sender::new(0),
            local_token: local_token.map(SecretHash::from_secret),
        }
    }

    /// Revokes all tokens of a login.
    pub(crate) fn end_login(&self, family: TokenFamily) {
        self.tokens.revoke_family(family);
        self.refresh_tokens.revoke_family(family);
        self.notify_revocation();
    }

    /// Revokes all tokens of an operator.
    pub(crate) fn end_logins_of(&self, operator: &str) {
        let owner = TokenOwner::Operator(operator.to_owned());
        self.tokens.revoke_owner(&owner);
        self.refresh_tokens.revoke_owner(&owner);
        self.notify_revocation();
    }

    /// Notifies open streams that credentials may have been revoked, so that they check theirs
    /// again.
    pub(crate) fn notify_revocation(&self) {
        self.revoked.send_modify(|count| *count += 1);
    }

    pub(crate) fn revocations(&self) -> watch::Receiver<u64> {
        self.revoked.subscribe()
    }
}
