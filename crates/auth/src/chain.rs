//! The authenticators in their order. The first that does not say "not my business" decides; one that cannot answer
//! ends the matter, too: the client is not let in.

use std::sync::Arc;

use mqtt::ReasonCode;

use crate::authenticator::{Answer, Failure, Identity, Request};
use crate::settings::Entry;

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

impl Refusal {
    pub(crate) fn code(&self) -> ReasonCode {
        match self {
            Self::WrongCredentials => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
            Self::NothingShown => ReasonCode::NOT_AUTHORIZED,
            Self::Failed => ReasonCode::SERVER_UNAVAILABLE,
        }
    }
}

impl Chain {
    /// In the order of their `order`, those of equal order as they come.
    pub(crate) fn new(mut entries: Vec<Arc<Entry>>) -> Self {
        entries.sort_by_key(|entry| entry.order);
        Self { entries }
    }

    /// The answer if it can be given at once; `None`: [`Chain::check`] is to be asked.
    pub(crate) fn check_now(
        &self,
        request: &Request,
        has_users: bool,
    ) -> Option<Result<Identity, Refusal>> {
        for entry in &self.entries {
            if !entry.authenticator.concerns(request) {
                continue;
            }
            match entry.authenticator.check_now(request)? {
                Answer::Ignore => {}
                Answer::Allow(identity) => return Some(Ok(*identity)),
                Answer::Deny => {
                    tracing::debug!(name = entry.name, client_id = request.client_id, "refused");
                    return Some(Err(Refusal::WrongCredentials));
                }
            }
        }
        Some(self.without_them(request, has_users))
    }

    pub(crate) async fn check(
        &self,
        request: &Request,
        has_users: bool,
    ) -> Result<Identity, Refusal> {
        for entry in &self.entries {
            if !entry.authenticator.concerns(request) {
                continue;
            }
            match entry.authenticator.check(request).await {
                Ok(Answer::Ignore) => {}
                Ok(Answer::Allow(identity)) => return Ok(*identity),
                Ok(Answer::Deny) => {
                    tracing::debug!(name = entry.name, client_id = request.client_id, "refused");
                    return Err(Refusal::WrongCredentials);
                }
                Err(Failure(why)) => {
                    let name = &entry.name;
                    tracing::debug!(name, client_id = request.client_id, why, "not answered");
                    return Err(Refusal::Failed);
                }
            }
        }
        self.without_them(request, has_users)
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
        let shows_proof = request.password.is_some() && asks_somebody;
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
        let refused = chain_of.check(&ann(true), false).await;
        assert_eq!(refused, Err(Refusal::WrongCredentials));
        let chain_of = chain(vec![(0, allow()), (0, Ok(Answer::Deny))]);
        assert!(chain_of.check(&ann(true), false).await.is_ok());
    }

    #[tokio::test]
    async fn one_that_fails_lets_nobody_past() {
        let failed = Err(Failure::new("away"));
        let chain_of = chain(vec![(0, failed), (1, Ok(Answer::allow()))]);
        let refused = chain_of.check(&ann(true), false).await;
        assert_eq!(refused, Err(Refusal::Failed));
    }

    #[tokio::test]
    async fn a_password_nobody_knows_is_wrong_even_where_anonymous_clients_come_in() {
        let nobody = chain(vec![(0, Ok(Answer::Ignore))]);
        let refused = nobody.check(&ann(true), false).await;
        assert_eq!(refused, Err(Refusal::WrongCredentials));
        let shows_nothing = Request {
            lets_anonymous_in: true,
            ..Request::default()
        };
        let anonymous = nobody.check(&shows_nothing, false).await.unwrap();
        assert!(anonymous.is_anonymous);
        let elsewhere = Request::default();
        let refused = nobody.check(&elsewhere, false).await;
        assert_eq!(refused, Err(Refusal::NothingShown));
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
