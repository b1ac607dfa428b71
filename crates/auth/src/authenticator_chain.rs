//! The chain of authenticators. The first answer other than `Ignore` decides. A failing authenticator ends the
//! chain and the client is rejected.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;

use crate::authenticator::{
    AuthBackendError, AuthenticatedIdentity, AuthenticatorAnswer, LoginRequest,
};
use crate::settings::AuthenticatorEntry;
use crate::tally::AuthenticatorStatus;

#[derive(Default)]
pub(crate) struct AuthenticatorChain {
    entries: Vec<Arc<AuthenticatorEntry>>,
}

/// Why a login is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoginError {
    /// The credentials are wrong or unknown.
    WrongCredentials,
    /// No credentials were sent although some are required.
    MissingCredentials,
    /// A quota permits no further connection.
    QuotaExceeded,
    /// An authenticator or rule source failed.
    BackendFailed,
}

/// Progress of a login through the chain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChainProgress {
    Decided(Result<AuthenticatedIdentity, LoginError>),
    /// The authenticator at this index needs an asynchronous query.
    Pending(usize),
}

impl LoginError {
    pub(crate) fn reason_code(&self) -> ReasonCode {
        match self {
            Self::WrongCredentials => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
            Self::MissingCredentials => ReasonCode::NOT_AUTHORIZED,
            Self::QuotaExceeded => ReasonCode::QUOTA_EXCEEDED,
            Self::BackendFailed => ReasonCode::SERVER_UNAVAILABLE,
        }
    }
}

impl AuthenticatorEntry {
    /// Converts the answer to a decision; `None` if the next authenticator decides.
    fn to_decision(
        &self,
        answer: Result<AuthenticatorAnswer, AuthBackendError>,
        request: &LoginRequest,
    ) -> Option<Result<AuthenticatedIdentity, LoginError>> {
        let (name, client_id) = (&self.name, &request.client_id);
        self.tally.count(&answer);
        Some(match answer {
            Ok(AuthenticatorAnswer::Ignore | AuthenticatorAnswer::Unknown(_)) => return None,
            Ok(AuthenticatorAnswer::Allow(identity)) => Ok(*identity),
            Ok(AuthenticatorAnswer::Deny) => {
                tracing::debug!(name, client_id, "client rejected by authenticator");
                Err(LoginError::WrongCredentials)
            }
            Ok(AuthenticatorAnswer::QuotaExceeded) => {
                tracing::debug!(name, client_id, "client rejected because of a quota");
                Err(LoginError::QuotaExceeded)
            }
            Err(AuthBackendError(why)) => {
                self.log_failure(client_id, &why);
                Err(LoginError::BackendFailed)
            }
        })
    }
}

/// After its first failure, an authenticator's failures are logged at `warn` at most this often.
const FAILURE_LOG_INTERVAL_MS: u64 = 30_000;

impl AuthenticatorEntry {
    fn log_failure(&self, client_id: &str, why: &str) {
        let now_ms = wall_clock::now_ms();
        let last_logged_ms = self.logged_ms.load(Relaxed);
        let is_due = now_ms.saturating_sub(last_logged_ms) >= FAILURE_LOG_INTERVAL_MS;
        let takes_turn = || {
            let last_logged = &self.logged_ms;
            last_logged
                .compare_exchange(last_logged_ms, now_ms, Relaxed, Relaxed)
                .is_ok()
        };
        let id = &self.name;
        match is_due && takes_turn() {
            true => tracing::warn!(
                id,
                client_id,
                why,
                "authenticator failed; client is rejected"
            ),
            false => tracing::debug!(
                id,
                client_id,
                why,
                "authenticator failed; client is rejected"
            ),
        }
    }
}

impl AuthenticatorChain {
    /// Sorts the entries by `order`; entries of equal order keep their sequence.
    pub(crate) fn new(mut entries: Vec<Arc<AuthenticatorEntry>>) -> Self {
        entries.sort_by_key(|entry| entry.order);
        Self { entries }
    }

    /// Evaluates the entries from `at` on as far as no waiting is needed.
    pub(crate) fn check_now(
        &self,
        at: usize,
        request: &LoginRequest,
        has_users: bool,
    ) -> ChainProgress {
        for (at, entry) in self.entries_from(at) {
            if !entry.authenticator.applies_to(request) {
                continue;
            }
            let Some(answer) = entry.authenticator.check_now(request) else {
                return ChainProgress::Pending(at);
            };
            if let Some(decision) = entry.to_decision(Ok(answer), request) {
                return ChainProgress::Decided(decision);
            }
        }
        ChainProgress::Decided(self.default_decision(request, has_users))
    }

    /// The status of each authenticator, in the order of evaluation.
    pub(crate) fn statuses(&self) -> Vec<AuthenticatorStatus> {
        let entries = self.entries.iter();
        entries
            .map(|entry| entry.tally.status(&entry.name, &entry.kind, entry.order))
            .collect()
    }

    /// Whether the entry at this index answers from disk.
    pub(crate) fn uses_disk_lookup(&self, at: usize) -> bool {
        (self.entries.get(at)).is_some_and(|entry| entry.authenticator.uses_disk_lookup())
    }

    /// Evaluates the entries from `at` on, the first of which reads from disk. Blocking.
    pub(crate) fn look_up_on_disk(
        &self,
        at: usize,
        request: &LoginRequest,
        has_users: bool,
    ) -> ChainProgress {
        let entry = self.entries.get(at);
        let decided =
            entry.and_then(|entry| Some((entry, entry.authenticator.look_up_on_disk(request)?)));
        let Some((entry, answer)) = decided else {
            return ChainProgress::Pending(at);
        };
        match entry.to_decision(answer, request) {
            Some(decision) => ChainProgress::Decided(decision),
            None => self.check_now(at + 1, request, has_users),
        }
    }

    /// Evaluates the entries from `at` on.
    pub(crate) async fn check(
        &self,
        at: usize,
        request: &LoginRequest,
        has_users: bool,
    ) -> Result<AuthenticatedIdentity, LoginError> {
        let mut decoy = None;
        for (_, entry) in self.entries_from(at) {
            if !entry.authenticator.applies_to(request) {
                continue;
            }
            let answer = entry.authenticator.check(request).await;
            if let Ok(AuthenticatorAnswer::Unknown(work)) = &answer {
                decoy = decoy.or(Some(work.clone()));
            }
            if let Some(decision) = entry.to_decision(answer, request) {
                return decision;
            }
        }
        let decision = self.default_decision(request, has_users);
        if decision == Err(LoginError::WrongCredentials)
            && let (Some(decoy), Some(password)) = (decoy, &request.password)
        {
            decoy.run(&password.0).await;
        }
        decision
    }

    /// The authenticators in the order of evaluation.
    pub(crate) fn entries(&self) -> &[Arc<AuthenticatorEntry>] {
        &self.entries
    }

    fn entries_from(&self, at: usize) -> impl Iterator<Item = (usize, &Arc<AuthenticatorEntry>)> {
        self.entries.iter().enumerate().skip(at)
    }

    /// The decision for a client for which every authenticator answered `Ignore`.
    pub(crate) fn default_decision(
        &self,
        request: &LoginRequest,
        has_users: bool,
    ) -> Result<AuthenticatedIdentity, LoginError> {
        if request.common_name_as_username
            && let Some(name) = &request.common_name
        {
            return Ok(AuthenticatedIdentity {
                username: Some(name.clone()),
                ..AuthenticatedIdentity::default()
            });
        }
        // With any authenticator configured, an unknown password is a wrong one.
        let asks = |entry: &Arc<AuthenticatorEntry>| {
            !entry.is_builtin || entry.authenticator.applies_to(request)
        };
        let asks_somebody = has_users || self.entries.iter().any(asks);
        // If an authenticator accepts tokens (a user name without a password), an unknown token is a wrong
        // credential rather than a missing one.
        let knows_tokens = |entry: &Arc<AuthenticatorEntry>| {
            entry.authenticator.accepts_tokens() && entry.authenticator.applies_to(request)
        };
        let shows_token = request.username.is_some() && self.entries.iter().any(knows_tokens);
        let shows_proof = shows_token || request.password.is_some() && asks_somebody;
        if request.allows_anonymous && !shows_proof {
            return Ok(AuthenticatedIdentity {
                is_anonymous: true,
                ..AuthenticatedIdentity::default()
            });
        }
        Err(match request.username {
            Some(_) => LoginError::WrongCredentials,
            None => LoginError::MissingCredentials,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::{AnswerFuture, Authenticator, Password};

    struct FixedAuthenticator(Result<AuthenticatorAnswer, AuthBackendError>);

    impl Authenticator for FixedAuthenticator {
        fn check<'a>(
            &'a self,
            _: &'a LoginRequest,
        ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
            Box::pin(std::future::ready(self.0.clone()))
        }
    }

    fn chain(
        answers: Vec<(i64, Result<AuthenticatorAnswer, AuthBackendError>)>,
    ) -> AuthenticatorChain {
        let entries = answers.into_iter().map(|(order, answer)| {
            Arc::new(AuthenticatorEntry {
                name: "test".into(),
                order,
                is_builtin: false,
                logged_ms: Default::default(),
                kind: "test".into(),
                tally: Default::default(),
                authenticator: Box::new(FixedAuthenticator(answer)),
            })
        });
        AuthenticatorChain::new(entries.collect())
    }

    fn ann(lets_anonymous_in: bool) -> LoginRequest {
        LoginRequest {
            username: Some("ann".into()),
            password: Some(Password(b"x".to_vec())),
            allows_anonymous: lets_anonymous_in,
            ..LoginRequest::default()
        }
    }

    #[tokio::test]
    async fn the_first_responsible_authenticator_decides() {
        let allow = || Ok(AuthenticatorAnswer::allow());
        let chain_of = chain(vec![
            (2, allow()),
            (1, Ok(AuthenticatorAnswer::Deny)),
            (0, Ok(AuthenticatorAnswer::Ignore)),
        ]);
        let rejected = chain_of.check(0, &ann(true), false).await;
        assert_eq!(rejected, Err(LoginError::WrongCredentials));
        let chain_of = chain(vec![(0, allow()), (0, Ok(AuthenticatorAnswer::Deny))]);
        assert!(chain_of.check(0, &ann(true), false).await.is_ok());
    }

    #[tokio::test]
    async fn answers_are_counted_per_authenticator() {
        let chain_of = chain(vec![
            (0, Ok(AuthenticatorAnswer::Ignore)),
            (1, Err(AuthBackendError::new("away"))),
            (2, Ok(AuthenticatorAnswer::allow())),
        ]);
        let _ = chain_of.check(0, &ann(true), false).await;
        let [passing, failing, idle] = &chain_of.statuses()[..] else {
            panic!("three authenticators");
        };
        assert_eq!((passing.ignored, passing.is_failing), (1, false));
        assert_eq!((failing.errors, failing.is_failing), (1, true));
        let error = failing.last_error.as_ref().unwrap();
        assert!(error.text == "away" && error.at_ms > 0);
        assert_eq!((idle.accepted, idle.last_error.is_none()), (0, true));
        let tally = &chain_of.entries[1].tally;
        tally.count(&Ok(AuthenticatorAnswer::Deny));
        let now = tally.status("x", "jwt", 7);
        assert_eq!((now.rejected, now.is_failing, now.errors), (1, false, 1));
        assert!(now.last_error.is_some(), "the last error stays");
    }

    #[tokio::test]
    async fn a_failing_authenticator_ends_the_chain() {
        let failed = Err(AuthBackendError::new("away"));
        let chain_of = chain(vec![(0, failed), (1, Ok(AuthenticatorAnswer::allow()))]);
        let rejected = chain_of.check(0, &ann(true), false).await;
        assert_eq!(rejected, Err(LoginError::BackendFailed));
    }

    #[tokio::test]
    async fn an_unknown_password_is_rejected_even_if_anonymous_clients_are_allowed() {
        let nobody = chain(vec![(0, Ok(AuthenticatorAnswer::Ignore))]);
        let rejected = nobody.check(0, &ann(true), false).await;
        assert_eq!(rejected, Err(LoginError::WrongCredentials));
        let shows_nothing = LoginRequest {
            allows_anonymous: true,
            ..LoginRequest::default()
        };
        let anonymous = nobody.check(0, &shows_nothing, false).await.unwrap();
        assert!(anonymous.is_anonymous);
        let elsewhere = LoginRequest::default();
        let rejected = nobody.check(0, &elsewhere, false).await;
        assert_eq!(rejected, Err(LoginError::MissingCredentials));
    }

    /// Accepts the form of tokens, and ignores every token.
    struct NoToken;

    impl Authenticator for NoToken {
        fn check<'a>(
            &'a self,
            _: &'a LoginRequest,
        ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
            Box::pin(std::future::ready(Ok(AuthenticatorAnswer::Ignore)))
        }

        fn accepts_tokens(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn an_unknown_token_is_rejected_even_if_anonymous_clients_are_allowed() {
        let entry = AuthenticatorEntry {
            name: "devices".into(),
            order: 0,
            is_builtin: true,
            logged_ms: Default::default(),
            kind: "test".into(),
            tally: Default::default(),
            authenticator: Box::new(NoToken),
        };
        let devices = AuthenticatorChain::new(vec![Arc::new(entry)]);
        let mut token = ann(true);
        token.password = None;
        let rejected = devices.check(0, &token, false).await;
        assert_eq!(rejected, Err(LoginError::WrongCredentials));
        token.username = None;
        let anonymous = devices.check(0, &token, false).await.unwrap();
        assert!(anonymous.is_anonymous);
    }

    #[test]
    fn without_authenticators_the_listener_decides() {
        let none = AuthenticatorChain::default();
        assert!(
            none.default_decision(&ann(true), false)
                .unwrap()
                .is_anonymous
        );
        let rejected = none.default_decision(&ann(true), true);
        assert_eq!(rejected, Err(LoginError::WrongCredentials));
        let rejected = none.default_decision(&ann(false), false);
        assert_eq!(rejected, Err(LoginError::WrongCredentials));
        let by_certificate = LoginRequest {
            common_name: Some("device".into()),
            common_name_as_username: true,
            ..LoginRequest::default()
        };
        let named = none.default_decision(&by_certificate, true).unwrap();
        assert_eq!(named.username.as_deref(), Some("device"));
    }
}
