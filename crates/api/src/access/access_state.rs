//! State of the access checks that outlives a request: issued tokens, failed logins, revocations.

use store::{ObjectError, Objects};
use tokio::sync::watch;

use super::console_sessions::{end_session, end_sessions_of};
use super::login_attempts::LoginAttempts;
use super::password::PasswordHasher;
use super::secret::SecretHash;
use super::tokens::{TokenFamily, TokenOwner, TokenStore};
use crate::blocking::run_blocking;
use crate::config::SharedHttpConfig;
use crate::problem_details::ProblemDetails;

/// State of the access checks that outlives a request.
pub(crate) struct AccessState {
    pub(crate) passwords: PasswordHasher,
    pub(crate) tokens: TokenStore,
    /// Refresh tokens of ThingsBoard's paths; they only serve to get the next token.
    pub(crate) refresh_tokens: TokenStore,
    pub(crate) attempts: LoginAttempts,
    /// Contains the sessions of browsers.
    objects: Objects,
    /// Incremented whenever credentials may have been revoked; streams watch it.
    revoked: watch::Sender<u64>,
    /// Hash of the token file's content, if there is one.
    pub(super) local_token: Option<SecretHash>,
}

impl AccessState {
    pub(crate) fn new(
        live: &SharedHttpConfig,
        local_token: Option<&str>,
        objects: Objects,
    ) -> Self {
        Self {
            passwords: PasswordHasher::default(),
            tokens: TokenStore::default(),
            refresh_tokens: TokenStore::default(),
            attempts: LoginAttempts::new(live.clone()),
            objects,
            revoked: watch::Sender::new(0),
            local_token: local_token.map(SecretHash::from_secret),
        }
    }

    /// Revokes all tokens of a login, and ends the session of a browser that it belongs to.
    pub(crate) async fn end_login(&self, family: TokenFamily) -> Result<(), ProblemDetails> {
        self.tokens.revoke_family(family);
        self.refresh_tokens.revoke_family(family);
        self.notify_revocation();
        self.with_sessions(move |objects| end_session(objects, family))
            .await
    }

    /// Revokes all tokens of an operator, and ends its sessions.
    pub(crate) async fn end_logins_of(&self, operator: &str) -> Result<(), ProblemDetails> {
        let owner = TokenOwner::Operator(operator.to_owned());
        self.tokens.revoke_owner(&owner);
        self.refresh_tokens.revoke_owner(&owner);
        self.notify_revocation();
        let operator = operator.to_owned();
        self.with_sessions(move |objects| end_sessions_of(objects, &operator))
            .await
    }

    /// Reads or changes the stored sessions.
    pub(crate) async fn with_sessions<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Objects) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        let objects = self.objects.clone();
        let done = run_blocking(move || work(&objects), "The store did not respond.").await?;
        done.map_err(|error| {
            tracing::error!(%error, "sessions of browsers could not be read or changed");
            ProblemDetails::unavailable(format!("{error}."))
        })
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
