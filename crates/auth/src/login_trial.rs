//! Trial logins: what the node would answer to these credentials, without its effects. No counter
//! changes, no client is locked out, and no connection is made.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hooks::{AccessDecision, Client, ClientAction, ConnectionInfo, PeerAddress, Permissions as _};
use mqtt::{ReasonCode, Version};

use crate::auth_state::{AuthState, with_granted_names};
use crate::authenticator::{AuthenticatedIdentity, AuthenticatorAnswer, LoginRequest, Password};
use crate::authenticator_chain::LoginError;
use crate::rule_sources::ExternalRules;
use crate::rules::SessionPermissions;

/// Credentials of a client without a certificate.
#[derive(Debug, Clone, Default)]
pub struct TrialCredentials {
    pub client_id: String,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
    pub address: Option<IpAddr>,
    pub listener: String,
    pub allows_anonymous: bool,
}

/// What an authenticator answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialAnswer {
    /// Id of the authenticator.
    pub id: String,
    /// Its type, such as `jwt`.
    pub kind: String,
    /// `accepted`, `rejected`, `ignored`, `failed`, or `not_responsible` for such credentials.
    pub answer: &'static str,
    /// Why it failed.
    pub error: Option<String>,
}

/// The outcome of a trial.
pub struct LoginTrial {
    /// `None`: accepted.
    pub rejection: Option<LoginTrialError>,
    /// The answers of the authenticators that were queried, in order.
    pub answers: Vec<TrialAnswer>,
    identity: Option<TrialIdentity>,
}

/// Why a client would be rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginTrialError {
    /// `ban`, `limit`, `authentication` or `availability`.
    pub step: &'static str,
    pub code: ReasonCode,
    /// A sentence without its full stop.
    pub reason: &'static str,
}

struct TrialIdentity {
    client_id: String,
    username: Option<String>,
    address: Option<SocketAddr>,
    is_anonymous: bool,
    permissions: SessionPermissions,
}

impl LoginTrial {
    /// The user name that the client would have.
    #[must_use]
    pub fn username(&self) -> Option<&str> {
        self.identity.as_ref()?.username.as_deref()
    }

    /// The client id that the client would have.
    #[must_use]
    pub fn client_id(&self) -> Option<&str> {
        Some(&self.identity.as_ref()?.client_id)
    }

    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        (self.identity.as_ref()).is_some_and(|identity| identity.is_anonymous)
    }

    #[must_use]
    pub fn is_superuser(&self) -> bool {
        (self.identity.as_ref()).is_some_and(|identity| identity.permissions.is_superuser())
    }

    /// Id of the registered device that the client would be.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        let device = self.identity.as_ref()?.permissions.device()?;
        Some(device.id)
    }

    /// Whether the accepted client may do something; `None`: it is not accepted.
    #[must_use]
    pub fn explain(&self, action: &ClientAction<'_>) -> Option<AccessDecision> {
        let identity = self.identity.as_ref()?;
        let client = described_client(
            &identity.client_id,
            identity.username.as_deref(),
            identity.address,
        );
        identity.permissions.explain(&client, action)
    }
}

/// A client that is not connected, for decisions about it.
pub(crate) fn described_client<'a>(
    client_id: &'a str,
    username: Option<&'a str>,
    address: Option<SocketAddr>,
) -> Client<'a> {
    Client {
        client_id,
        username,
        peer: address.map(PeerAddress::Tcp),
        last_address: None,
        local_address: None,
        version: Version::V5,
        connection: ConnectionInfo::default(),
    }
}

fn rejection_of(error: &LoginError) -> LoginTrialError {
    let (step, reason) = match error {
        LoginError::WrongCredentials => ("authentication", "the credentials were not accepted"),
        LoginError::MissingCredentials => (
            "authentication",
            "credentials are required, and the client has none",
        ),
        LoginError::QuotaExceeded => ("limit", "a quota permits no further connection"),
        LoginError::BackendFailed => (
            "availability",
            "an authenticator or rule source failed or did not answer in time",
        ),
    };
    LoginTrialError {
        step,
        code: error.reason_code(),
        reason,
    }
}

impl AuthState {
    /// Tries a login without its effects.
    pub(crate) async fn try_login(self: &Arc<Self>, credentials: TrialCredentials) -> LoginTrial {
        let request = LoginRequest {
            client_id: credentials.client_id,
            username: credentials.username,
            password: credentials.password.map(Password),
            peer: credentials.address.map(|address| (address, 0).into()),
            listener: credentials.listener,
            allows_anonymous: credentials.allows_anonymous,
            ..LoginRequest::default()
        };
        let mut answers = Vec::new();
        let outcome = self.trial_outcome(&request, &mut answers).await;
        let (rejection, identity) = match outcome {
            Ok(identity) => (None, Some(identity)),
            Err(rejection) => (Some(rejection), None),
        };
        LoginTrial {
            rejection,
            answers,
            identity,
        }
    }

    async fn trial_outcome(
        self: &Arc<Self>,
        request: &LoginRequest,
        answers: &mut Vec<TrialAnswer>,
    ) -> Result<TrialIdentity, LoginTrialError> {
        let now_ms = wall_clock::now_ms();
        let banned = LoginTrialError {
            step: "ban",
            code: ReasonCode::BANNED,
            reason: "the client, its user or its address is banned",
        };
        if self.bans.is_banned(&request.rule_subject(), now_ms) {
            return Err(banned);
        }
        let has_password = request.password.is_some();
        if (self.login_limiter).is_locked_out(&request.rule_subject(), has_password, now_ms) {
            return Err(LoginTrialError {
                step: "limit",
                code: ReasonCode::CONNECTION_RATE_EXCEEDED,
                reason: "the user or the address is locked out after failed logins",
            });
        }
        let identity = self.trial_identity(request, answers).await;
        let identity = identity.map_err(|error| rejection_of(&error))?;
        let granted = with_granted_names(request, &identity);
        if self.bans.is_banned(&granted.rule_subject(), now_ms) {
            return Err(banned);
        }
        if identity.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            return Err(LoginTrialError {
                step: "authentication",
                code: ReasonCode::NOT_AUTHORIZED,
                reason: "the credentials have expired",
            });
        }
        let external_rules = match self.rule_sources.is_empty() || identity.is_superuser {
            true => None,
            false => {
                let fetched = ExternalRules::fetch(&self.rule_sources, granted.clone());
                let fetched = tokio::time::timeout(self.timeout(), fetched).await;
                let fetched = fetched.ok().and_then(Result::ok);
                Some(fetched.ok_or_else(|| rejection_of(&LoginError::BackendFailed))?)
            }
        };
        Ok(TrialIdentity {
            permissions: self.build_permissions(&granted, &identity, external_rules),
            client_id: granted.client_id,
            username: granted.username,
            address: granted.peer,
            is_anonymous: identity.is_anonymous,
        })
    }

    /// Asks the authenticators in order, without counting their answers.
    async fn trial_identity(
        &self,
        request: &LoginRequest,
        answers: &mut Vec<TrialAnswer>,
    ) -> Result<AuthenticatedIdentity, LoginError> {
        let chain = self.chain.load_full();
        let timeout: Duration = self.timeout();
        for entry in chain.entries() {
            let mut add = |answer, error| {
                answers.push(TrialAnswer {
                    id: entry.name.clone(),
                    kind: entry.kind.clone(),
                    answer,
                    error,
                });
            };
            if !entry.authenticator.applies_to(request) {
                add("not_responsible", None);
                continue;
            }
            let answer = tokio::time::timeout(timeout, entry.authenticator.check(request)).await;
            match answer {
                Ok(Ok(AuthenticatorAnswer::Ignore | AuthenticatorAnswer::Unknown(_))) => {
                    add("ignored", None);
                }
                Ok(Ok(AuthenticatorAnswer::Allow(identity))) => {
                    add("accepted", None);
                    return Ok(*identity);
                }
                Ok(Ok(AuthenticatorAnswer::Deny)) => {
                    add("rejected", None);
                    return Err(LoginError::WrongCredentials);
                }
                Ok(Ok(AuthenticatorAnswer::QuotaExceeded)) => {
                    add("rejected", Some("a quota is exceeded".to_owned()));
                    return Err(LoginError::QuotaExceeded);
                }
                Ok(Err(failure)) => {
                    add("failed", Some(failure.to_string()));
                    return Err(LoginError::BackendFailed);
                }
                Err(_) => {
                    add("failed", Some("it did not answer in time".to_owned()));
                    return Err(LoginError::BackendFailed);
                }
            }
        }
        chain.default_decision(request, self.has_users())
    }
}
