//! The authenticator interface: given a client's credentials, an authenticator accepts the client, denies it, or
//! ignores the request.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use hooks::{Credentials, PeerAddress};

use crate::decoy_check::DecoyPasswordCheck;
use crate::device_directory::DeviceGrant;
use crate::rules::{AclRule, RuleSubject};

/// A boxed future of an answer.
pub(crate) type AnswerFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The password sent by a client. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(pub(crate) Vec<u8>);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A login request with all credentials of the client.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoginRequest {
    pub(crate) client_id: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) common_name: Option<String>,
    pub(crate) alternative_names: Vec<String>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) listener: String,
    pub(crate) allows_anonymous: bool,
    pub(crate) common_name_as_username: bool,
    /// Attributes assigned by the authenticator; set only for requests to rule sources.
    pub(crate) attributes: Vec<(Box<str>, Box<str>)>,
}

impl LoginRequest {
    pub(crate) fn from_credentials(credentials: &Credentials<'_>) -> Self {
        let certificate = credentials.certificate;
        let alternative_names = certificate.map_or(&[][..], |names| &names.alternative_names);
        Self {
            client_id: credentials.client.client_id.to_owned(),
            username: credentials.client.username.map(str::to_owned),
            password: credentials.password.map(|bytes| Password(bytes.to_vec())),
            common_name: certificate
                .and_then(|names| names.common_name.as_deref())
                .map(str::to_owned),
            alternative_names: (alternative_names.iter())
                .map(|name| (**name).to_owned())
                .collect(),
            peer: match credentials.client.peer {
                Some(PeerAddress::Tcp(address)) => Some(address),
                Some(PeerAddress::Unix | PeerAddress::Memory) | None => None,
            },
            listener: credentials.listener.to_owned(),
            allows_anonymous: credentials.allows_anonymous,
            common_name_as_username: credentials.common_name_as_username,
            attributes: Vec::new(),
        }
    }

    pub(crate) fn rule_subject(&self) -> RuleSubject<'_> {
        RuleSubject {
            client_id: &self.client_id,
            username: self.username.as_deref(),
            common_name: self.common_name.as_deref(),
            address: self.peer.map(|peer| peer.ip()),
            attributes: &self.attributes,
        }
    }

    /// User name and password, if both are present.
    pub(crate) fn username_and_password(&self) -> Option<(&str, &[u8])> {
        Some((self.username.as_deref()?, &self.password.as_ref()?.0))
    }
}

/// The identity of a client as established by an authenticator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AuthenticatedIdentity {
    /// Replaces the user name sent by the client.
    pub(crate) username: Option<String>,
    /// Replaces the client id sent by the client.
    pub(crate) client_id: Option<String>,
    pub(crate) is_anonymous: bool,
    /// Allows every action, regardless of rules.
    pub(crate) is_superuser: bool,
    /// When the connection is closed, in milliseconds since 1970.
    pub(crate) expires_at_ms: Option<u64>,
    /// Values for `${client_attrs.NAME}` in rules.
    pub(crate) attributes: Vec<(Box<str>, Box<str>)>,
    /// Rules evaluated before those of the node.
    pub(crate) rules: Vec<AclRule>,
    /// Permissions of a device. They apply before the rules; what neither allows is denied.
    pub(crate) device: Option<DeviceGrant>,
}

/// The result of one authenticator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AuthenticatorAnswer {
    /// Not responsible; the next authenticator decides.
    Ignore,
    /// As `Ignore`, from an authenticator with password checks: carries a decoy check of the same cost.
    Unknown(DecoyPasswordCheck),
    Allow(Box<AuthenticatedIdentity>),
    Deny,
    /// The credentials are right, but a quota permits no further connection.
    QuotaExceeded,
}

impl AuthenticatorAnswer {
    pub(crate) fn allow() -> Self {
        Self::Allow(Box::default())
    }
}

/// An authenticator or rule source failed: its server is unreachable or sent an invalid answer. The client is rejected.
/// Contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct AuthBackendError(pub(crate) String);

impl AuthBackendError {
    pub(crate) fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

pub(crate) trait Authenticator: Send + Sync {
    /// Whether this authenticator is responsible for the credentials. Called on a shard: must be cheap.
    fn applies_to(&self, request: &LoginRequest) -> bool {
        request.username.is_some()
    }

    /// The answer, if it is available on a shard without blocking and within microseconds.
    fn check_now(&self, request: &LoginRequest) -> Option<AuthenticatorAnswer> {
        let _ = request;
        None
    }

    /// Whether a user name without a password can be a credential.
    fn accepts_tokens(&self) -> bool {
        false
    }

    /// Whether [`Authenticator::look_up_on_disk`] is called before [`Authenticator::check`].
    fn uses_disk_lookup(&self) -> bool {
        false
    }

    /// The answer, if disk reads alone suffice, otherwise `None`. Called on a blocking thread, for one client after the
    /// other.
    fn look_up_on_disk(
        &self,
        request: &LoginRequest,
    ) -> Option<Result<AuthenticatorAnswer, AuthBackendError>> {
        let _ = request;
        None
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>>;
}
