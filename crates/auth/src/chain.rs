//! The authenticators in their order. The first that does not say "not my business" decides; one that cannot answer
//! ends the matter, too: the client is not let in.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;

use crate::authenticator::{Answer, Failure, Identity, Request};
use crate::settings::Entry;
use crate::tally::AuthenticatorStatus;

#[derive(Default)]
pub(crate) struct Chain {
    entries: Vec<Arc<Entry>>,
}

/// Why a client is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// What it showed is wrong, or nobody knows it.
    WrongCredentials,
    /// It showed nothing, where something is asked for.
    NothingShown,
    /// Whoever knows could not be asked.
    Failed,
}

/// How far a client has come at the authenticators.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    Judged(Result<Identity, Refusal>),
    /// The one at this place has to be asked, which takes time.
    Asks(usize),
}

impl Refusal {
    pub(crate) fn code(&self) -> ReasonCode {
        match self {
            Self::WrongCredentials => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
            Self::NothingShown => ReasonCode::NOT_AUTHORIZED,
            Self::Failed => ReasonCode::SERVER_UNAVAILABLE,
        }
    }
}

impl Entry {
    /// What its answer comes to; `None`: the next one is asked.
    fn judged(
        &self,
        answer: Result<Answer, Failure>,
        request: &Request,
    ) -> Option<Result<Identity, Refusal>> {
        let (name, client_id) = (&self.name, &request.client_id);
        self.tally.count(&answer);
        Some(match answer {
            Ok(Answer::Ignore | Answer::Unknown(_)) => return None,
            Ok(Answer::Allow(identity)) => Ok(*identity),
            Ok(Answer::Deny) => {
                tracing::debug!(name, client_id, "refused");
                Err(Refusal::WrongCredentials)
            }
            Err(Failure(why)) => {
                self.tell_failure(client_id, &why);
                Err(Refusal::Failed)
            }
        })
    }
}

/// A failure of an authenticator is told at once, and then at most this often.
const TELL_EVERY_MS: u64 = 30_000;

impl Entry {
    fn tell_failure(&self, client_id: &str, why: &str) {
        let now_ms = crate::now_ms();
        let told_ms = self.told_ms.load(Relaxed);
        let is_due = now_ms.saturating_sub(told_ms) >= TELL_EVERY_MS;
        let takes_turn = || {
            let told = &self.told_ms;
            told.compare_exchange(told_ms, now_ms, Relaxed, Relaxed)
                .is_ok()
        };
        let id = &self.name;
        match is_due && takes_turn() {
            true => tracing::warn!(
                id,
                client_id,
                why,
                "authenticator failed; clients are refused"
            ),
            false => tracing::debug!(id, client_id, why, "authenticator failed"),
        }
    }
}

impl Chain {
    /// In the order of their `order`, those of equal order as they come.
    pub(crate) fn new(mut entries: Vec<Arc<Entry>>) -> Self {
        entries.sort_by_key(|entry| entry.order);
        Self { entries }
    }

    /// The answer of the entries from `at` on, if it can be given at once.
    pub(crate) fn check_now(&self, at: usize, request: &Request, has_users: bool) -> Checked {
        for (at, entry) in self.from(at) {
            if !entry.authenticator.concerns(request) {
                continue;
            }
            let Some(answer) = entry.authenticator.check_now(request) else {
                return Checked::Asks(at);
            };
            if let Some(judged) = entry.judged(Ok(answer), request) {
                return Checked::Judged(judged);
            }
        }
        Checked::Judged(self.without_them(request, has_users))
    }

    /// How each of them does, in their order.
    pub(crate) fn statuses(&self) -> Vec<AuthenticatorStatus> {
        let entries = self.entries.iter();
        entries
            .map(|entry| entry.tally.status(&entry.name, &entry.kind, entry.order))
            .collect()
    }

    /// Whether the entry at this place answers from the disk.
    pub(crate) fn looks_up(&self, at: usize) -> bool {
        (self.entries.get(at)).is_some_and(|entry| entry.authenticator.looks_up())
    }

    /// The answer of the entries from `at` on, the first of which looks at the disk. May wait.
    pub(crate) fn look_up(&self, at: usize, request: &Request, has_users: bool) -> Checked {
        let entry = self.entries.get(at);
        let said = entry.and_then(|entry| Some((entry, entry.authenticator.look_up(request)?)));
        let Some((entry, answer)) = said else {
            return Checked::Asks(at);
        };
        match entry.judged(answer, request) {
            Some(judged) => Checked::Judged(judged),
            None => self.check_now(at + 1, request, has_users),
        }
    }

    /// The answer of the entries from `at` on.
    pub(crate) async fn check(
        &self,
        at: usize,
        request: &Request,
        has_users: bool,
    ) -> Result<Identity, Refusal> {
        let mut decoy = None;
        for (_, entry) in self.from(at) {
            if !entry.authenticator.concerns(request) {
                continue;
            }
            let answer = entry.authenticator.check(request).await;
            if let Ok(Answer::Unknown(work)) = &answer {
                decoy = decoy.or(Some(work.clone()));
            }
            if let Some(judged) = entry.judged(answer, request) {
                return judged;
            }
        }
        let judged = self.without_them(request, has_users);
        if judged == Err(Refusal::WrongCredentials)
            && let (Some(decoy), Some(password)) = (decoy, &request.password)
        {
            decoy.run(&password.0).await;
        }
        judged
    }

    fn from(&self, at: usize) -> impl Iterator<Item = (usize, &Arc<Entry>)> {
        self.entries.iter().enumerate().skip(at)
    }

    /// What becomes of a client of which no authenticator knows.
    pub(crate) fn without_them(
        &self,
        request: &Request,
        has_users: bool,
    ) -> Result<Identity, Refusal> {
        if request.common_name_as_username
            && let Some(name) = &request.common_name
        {
            return Ok(Identity {
                username: Some(name.clone()),
                ..Identity::default()
            });
        }
        // A password that nobody knows is wrong, unless nobody is asked at all.
        let asks = |entry: &Arc<Entry>| !entry.is_own || entry.authenticator.concerns(request);
        let asks_somebody = has_users || self.entries.iter().any(asks);
        // A token of a device is a user name without a password: one that no device has is wrong, not nobody's.
        let knows_tokens = |entry: &Arc<Entry>| {
            entry.authenticator.takes_tokens() && entry.authenticator.concerns(request)
        };
        let shows_token = request.username.is_some() && self.entries.iter().any(knows_tokens);
        let shows_proof = shows_token || request.password.is_some() && asks_somebody;
        if request.lets_anonymous_in && !shows_proof {
            return Ok(Identity {
                is_anonymous: true,
                ..Identity::default()
            });
        }
        Err(match request.username {
            Some(_) => Refusal::WrongCredentials,
            None => Refusal::NothingShown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::{Answering, Authenticator, Password};

    struct Says(Result<Answer, Failure>);

    impl Authenticator for Says {
        fn check<'a>(&'a self, _: &'a Request) -> Answering<'a, Result<Answer, Failure>> {
            Box::pin(std::future::ready(self.0.clone()))
        }
    }

    fn chain(answers: Vec<(i64, Result<Answer, Failure>)>) -> Chain {
        let entries = answers.into_iter().map(|(order, answer)| {
            Arc::new(Entry {
                name: "test".into(),
                order,
                is_own: false,
                told_ms: Default::default(),
                kind: "test".into(),
                tally: Default::default(),
                authenticator: Box::new(Says(answer)),
            })
        });
        Chain::new(entries.collect())
    }

    fn ann(lets_anonymous_in: bool) -> Request {
        Request {
            username: Some("ann".into()),
            password: Some(Password(b"x".to_vec())),
            lets_anonymous_in,
            ..Request::default()
        }
    }

    #[tokio::test]
    async fn the_first_that_knows_decides() {
        let allow = || Ok(Answer::allow());
        let chain_of = chain(vec![
            (2, allow()),
            (1, Ok(Answer::Deny)),
            (0, Ok(Answer::Ignore)),
        ]);
        let refused = chain_of.check(0, &ann(true), false).await;
        assert_eq!(refused, Err(Refusal::WrongCredentials));
        let chain_of = chain(vec![(0, allow()), (0, Ok(Answer::Deny))]);
        assert!(chain_of.check(0, &ann(true), false).await.is_ok());
    }

    #[tokio::test]
    async fn what_each_answers_is_counted() {
        let chain_of = chain(vec![
            (0, Ok(Answer::Ignore)),
            (1, Err(Failure::new("away"))),
            (2, Ok(Answer::allow())),
        ]);
        let _ = chain_of.check(0, &ann(true), false).await;
        let [passing, failing, idle] = &chain_of.statuses()[..] else {
            panic!("three authenticators");
        };
        assert_eq!((passing.no_opinion, passing.is_failing), (1, false));
        assert_eq!((failing.errors, failing.is_failing), (1, true));
        let error = failing.last_error.as_ref().unwrap();
        assert!(error.text == "away" && error.at_ms > 0);
        assert_eq!((idle.accepted, idle.last_error.is_none()), (0, true));
        let tally = &chain_of.entries[1].tally;
        tally.count(&Ok(Answer::Deny));
        let now = tally.status("x", "jwt", 7);
        assert_eq!((now.rejected, now.is_failing, now.errors), (1, false, 1));
        assert!(now.last_error.is_some(), "the last error stays");
    }

    #[tokio::test]
    async fn one_that_fails_lets_nobody_past() {
        let failed = Err(Failure::new("away"));
        let chain_of = chain(vec![(0, failed), (1, Ok(Answer::allow()))]);
        let refused = chain_of.check(0, &ann(true), false).await;
        assert_eq!(refused, Err(Refusal::Failed));
    }

    #[tokio::test]
    async fn a_password_nobody_knows_is_wrong_even_where_anonymous_clients_come_in() {
        let nobody = chain(vec![(0, Ok(Answer::Ignore))]);
        let refused = nobody.check(0, &ann(true), false).await;
        assert_eq!(refused, Err(Refusal::WrongCredentials));
        let shows_nothing = Request {
            lets_anonymous_in: true,
            ..Request::default()
        };
        let anonymous = nobody.check(0, &shows_nothing, false).await.unwrap();
        assert!(anonymous.is_anonymous);
        let elsewhere = Request::default();
        let refused = nobody.check(0, &elsewhere, false).await;
        assert_eq!(refused, Err(Refusal::NothingShown));
    }

    /// Takes tokens and knows none.
    struct NoToken;

    impl Authenticator for NoToken {
        fn check<'a>(&'a self, _: &'a Request) -> Answering<'a, Result<Answer, Failure>> {
            Box::pin(std::future::ready(Ok(Answer::Ignore)))
        }

        fn takes_tokens(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn a_token_nobody_knows_is_wrong_even_where_anonymous_clients_come_in() {
        let entry = Entry {
            name: "devices".into(),
            order: 0,
            is_own: true,
            told_ms: Default::default(),
            kind: "test".into(),
            tally: Default::default(),
            authenticator: Box::new(NoToken),
        };
        let devices = Chain::new(vec![Arc::new(entry)]);
        let mut token = ann(true);
        token.password = None;
        let refused = devices.check(0, &token, false).await;
        assert_eq!(refused, Err(Refusal::WrongCredentials));
        token.username = None;
        let anonymous = devices.check(0, &token, false).await.unwrap();
        assert!(anonymous.is_anonymous);
    }

    #[test]
    fn where_nobody_is_asked_anything_goes_as_the_listener_says() {
        let none = Chain::default();
        assert!(none.without_them(&ann(true), false).unwrap().is_anonymous);
        let refused = none.without_them(&ann(true), true);
        assert_eq!(refused, Err(Refusal::WrongCredentials));
        let refused = none.without_them(&ann(false), false);
        assert_eq!(refused, Err(Refusal::WrongCredentials));
        let by_certificate = Request {
            common_name: Some("device".into()),
            common_name_as_username: true,
            ..Request::default()
        };
        let named = none.without_them(&by_certificate, true).unwrap();
        assert_eq!(named.username.as_deref(), Some("device"));
    }
}
