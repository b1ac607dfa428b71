//! Authentication: what a client presents, the decision, and what an accepted client is granted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use mqtt::ReasonCode;

use crate::authorization::Permissions;
use crate::client::{CertificateNames, Client};

/// Credentials presented by a client.
pub struct Credentials<'a> {
    pub client: Client<'a>,
    pub password: Option<&'a [u8]>,
    /// Names in the client's certificate, if it presented one that was verified.
    pub certificate: Option<&'a CertificateNames>,
    /// The method of an enhanced authentication, which the broker conducts; it reports success with
    /// [`Hooks::enhanced_auth_succeeded`](crate::Hooks::enhanced_auth_succeeded).
    pub method: Option<&'a str>,
    pub listener: &'a str,
    /// Whether the listener accepts clients without credentials.
    pub allows_anonymous: bool,
    /// Whether the listener uses the certificate's common name as the user name.
    pub common_name_as_username: bool,
    pub keep_alive_s: u16,
    pub clean_start: bool,
}

/// The result of an authentication.
pub enum Authentication {
    /// This hook does not decide: the users of the configuration and the listener's rule for anonymous clients apply.
    Ignore,
    Allow(Box<ClientGrant>),
    Deny(ReasonCode),
    /// The result comes later. The client waits; the shard does not.
    Pending(Pin<Box<dyn Future<Output = Authentication>>>),
}

impl Authentication {
    /// Accepts the client with the names it sent.
    pub fn allow() -> Self {
        Self::Allow(Box::default())
    }
}

/// What an accepted client is granted.
#[derive(Default)]
pub struct ClientGrant {
    /// Its user name from now on; `None`: the one it sent.
    pub username: Option<Box<str>>,
    /// The client proved no user name: it has none, whatever it sent.
    pub is_anonymous: bool,
    /// Its client id from now on; `None`: the one it sent.
    pub client_id: Option<Box<str>>,
    /// Checked before each PUBLISH and SUBSCRIBE; `None`: [`Hooks::authorize`](crate::Hooks::authorize) decides, if a hook wants it.
    pub permissions: Option<Arc<dyn Permissions>>,
    /// When its connection is closed (milliseconds since 1970), for example at the end of a token's life.
    pub expires_at_ms: Option<u64>,
}

/// A user and its credential, `scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY` with the last three in base64, as
/// printed by `tidegate password`. It serves plain passwords and SCRAM-SHA-256, and does not contain the password.
#[derive(Clone, PartialEq, Eq)]
pub struct UserConfig {
    pub username: String,
    pub credential: String,
}

impl std::fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserConfig")
            .field("username", &self.username)
            .field("credential", &"***")
            .finish()
    }
}
