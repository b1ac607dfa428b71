//! What an authenticator is: it gets a client's credentials and says who that is, that it shall not come in, or that it
//! is not its business.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use broker::hooks::{Credentials, PeerAddress};

use crate::decoy_check::DecoyPasswordCheck;
use crate::device_authenticator::DeviceGrant;
use crate::rules::{AclRule, RuleSubject};

/// An answer that may need time.
pub(crate) type AnswerFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A password as a client sent it. Shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(pub(crate) Vec<u8>);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A client at the door, and what it shows.
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
    /// Given by who let it in; for rules that are asked for afterwards.
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
                Some(PeerAddress::Unix) | None => None,
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

    /// User name and password, if both are there.
    pub(crate) fn username_and_password(&self) -> Option<(&str, &[u8])> {
        Some((self.username.as_deref()?, &self.password.as_ref()?.0))
    }
}

/// Who a client is, as the authenticator that knows it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AuthenticatedIdentity {
    /// Instead of the name the client gave.
    pub(crate) username: Option<String>,
    /// Instead of the client id the client gave.
    pub(crate) client_id: Option<String>,
    pub(crate) is_anonymous: bool,
    /// May do everything, whatever the rules.
    pub(crate) is_superuser: bool,
    /// When it has to go, in milliseconds since 1970.
    pub(crate) expires_at_ms: Option<u64>,
    /// For `${client_attrs.NAME}` in rules.
    pub(crate) attributes: Vec<(Box<str>, Box<str>)>,
    /// Looked at before the rules of the node.
    pub(crate) rules: Vec<AclRule>,
    /// It is a device: what it may do besides what rules allow. What nothing allows is denied.
    pub(crate) device: Option<DeviceGrant>,
}

/// What an authenticator says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AuthenticatorAnswer {
    /// Not its business; the next one is asked.
    Ignore,
    /// The same, of one who would check the password of a user it knows: what that costs.
    Unknown(DecoyPasswordCheck),
    Allow(Box<AuthenticatedIdentity>),
    Deny,
}

impl AuthenticatorAnswer {
    pub(crate) fn allow() -> Self {
        Self::Allow(Box::default())
    }
}

/// An authenticator or a source of rules could not answer: the server it asks is away, or answers nonsense. The client
/// is not let in. Holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct AuthBackendError(pub(crate) String);

impl AuthBackendError {
    pub(crate) fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

pub(crate) trait Authenticator: Send + Sync {
    /// Whether it has anything to say about a client that shows this. Called on a shard: cheap.
    fn applies_to(&self, request: &LoginRequest) -> bool {
        request.username.is_some()
    }

    /// Its answer if it can be given on a shard: without waiting, and in microseconds.
    fn check_now(&self, request: &LoginRequest) -> Option<AuthenticatorAnswer> {
        let _ = request;
        None
    }

    /// Whether a user name alone, without a password, may be a credential.
    fn accepts_tokens(&self) -> bool {
        false
    }

    /// Whether [`Authenticator::look_up_on_disk`] is to be asked before [`Authenticator::check`].
    fn uses_disk_lookup(&self) -> bool {
        false
    }

    /// Its answer if that takes a look at the disk and nothing else; `None`: it takes more. Called on a thread that may wait, for
    /// one client after the other.
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
