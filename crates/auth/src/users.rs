//! The node's built-in users, from the configuration and from the store.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use scram::ScramCredential;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::authenticator::{
    AnswerFuture, AuthBackendError, AuthenticatedIdentity, Authenticator, AuthenticatorAnswer,
    LoginRequest,
};
use crate::decoy_check::{DecoyPasswordCheck, stable_index};
use crate::json;
use crate::password::{self, MAX_PASSWORD_BYTES, PasswordCheckPool};

/// The credentials of one user.
#[derive(Clone)]
pub(crate) struct UserRecord {
    /// `None`: plain passwords are checked against the SCRAM verifier.
    password_hash: Option<Arc<str>>,
    scram: Option<ScramCredential>,
    is_superuser: bool,
}

/// A stored user. The password is already replaced by a hash and a verifier.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredUser {
    #[serde(default)]
    password_hash: Option<String>,
    #[serde(default)]
    scram: Option<String>,
    #[serde(default)]
    is_superuser: bool,
    #[serde(default, rename = "description")]
    _description: Option<String>,
}

impl UserRecord {
    pub(crate) fn from_configuration(credential: ScramCredential) -> Self {
        Self {
            password_hash: None,
            scram: Some(credential),
            is_superuser: false,
        }
    }

    /// Verifies a password; the duration depends on the parameters of the hash.
    fn verify_password(&self, password: &[u8]) -> bool {
        match (&self.password_hash, &self.scram) {
            (Some(hash), _) => password::verify(hash, password).unwrap_or(false),
            (None, Some(scram)) => {
                password.len() <= MAX_PASSWORD_BYTES && scram.verify_password(password)
            }
            (None, None) => false,
        }
    }

    pub(crate) fn from_json(value: &Value) -> Result<Self, String> {
        let kept: StoredUser = json::parse(value)?;
        if let Some(hash) = &kept.password_hash {
            password::verify(hash, b"").map_err(|error| format!("password_hash: {error}"))?;
        }
        let scram = match &kept.scram {
            Some(text) => Some(text.parse().map_err(|error| format!("scram: {error}"))?),
            None => None,
        };
        if kept.password_hash.is_none() && scram.is_none() {
            return Err("a user needs a password".into());
        }
        Ok(Self {
            password_hash: kept.password_hash.map(Into::into),
            scram,
            is_superuser: kept.is_superuser,
        })
    }
}

/// Replaces `password` by a hash and a SCRAM verifier. Takes some 30 ms.
pub(crate) fn hash_password(mut value: Value) -> Result<Value, String> {
    let Some(fields) = value.as_object_mut() else {
        return Err(format!(
            "expected an object, found {}",
            json::type_name(&value)
        ));
    };
    let Some(password) = fields.remove("password") else {
        return Ok(value);
    };
    let Some(password) = password.as_str().filter(|password| !password.is_empty()) else {
        return Err("password: expected a text that is not empty".into());
    };
    if let Some(other) = ["password_hash", "scram"]
        .into_iter()
        .find(|name| fields.contains_key(*name))
    {
        return Err(format!(
            "{other}: not together with password, of which it is made"
        ));
    }
    if password.len() > MAX_PASSWORD_BYTES {
        return Err(format!("password: longer than {MAX_PASSWORD_BYTES} bytes"));
    }
    let hash = password::hash(password.as_bytes()).map_err(|error| error.to_string())?;
    let scram = ScramCredential::generate(password.as_bytes(), scram::DEFAULT_ITERATIONS)
        .map_err(|error| error.to_string())?;
    fields.insert("password_hash".into(), json!(hash));
    fields.insert("scram".into(), json!(scram.to_string()));
    Ok(value)
}

/// Number of users used as decoys for unknown users.
const MAX_DECOYS: usize = 64;

/// All users by name.
#[derive(Default)]
pub(crate) struct UserRegistry {
    /// Users of the configuration; they take precedence over stored ones.
    configured: HashMap<String, UserRecord>,
    stored: RwLock<HashMap<String, UserRecord>>,
}

impl UserRegistry {
    pub(crate) fn new(configured: HashMap<String, UserRecord>) -> Self {
        Self {
            configured,
            stored: RwLock::default(),
        }
    }

    /// Sets a stored user; `None` removes it.
    pub(crate) fn set_stored(&self, username: &str, user: Option<UserRecord>) {
        let mut kept = self.stored.write().unwrap_or_else(PoisonError::into_inner);
        match user {
            Some(user) => kept.insert(username.to_owned(), user),
            None => kept.remove(username),
        };
    }

    fn lock_stored(&self) -> RwLockReadGuard<'_, HashMap<String, UserRecord>> {
        self.stored.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.configured.is_empty() && self.lock_stored().is_empty()
    }

    fn find(&self, username: &str) -> Option<UserRecord> {
        let configured = self.configured.get(username);
        configured
            .cloned()
            .or_else(|| self.lock_stored().get(username).cloned())
    }

    /// The user checked in place of an unknown one: always the same one for a name.
    fn decoy_user(&self, username: &str) -> Option<UserRecord> {
        let kept = self.lock_stored();
        let count = self.configured.len() + kept.len();
        let mut users = self.configured.values().chain(kept.values());
        users
            .nth(stable_index(username, count.min(MAX_DECOYS)))
            .cloned()
    }

    pub(crate) fn scram_credential(&self, username: &str) -> Option<ScramCredential> {
        self.find(username)?.scram
    }

    /// The identity of a user who has authenticated.
    pub(crate) fn identity(&self, username: &str) -> AuthenticatedIdentity {
        AuthenticatedIdentity {
            is_superuser: self.find(username).is_some_and(|user| user.is_superuser),
            ..AuthenticatedIdentity::default()
        }
    }
}

/// The authenticator of [`UserRegistry`].
pub(crate) struct BuiltInAuthenticator {
    pub(crate) users: Arc<UserRegistry>,
    pub(crate) checker: PasswordCheckPool,
}

impl Authenticator for BuiltInAuthenticator {
    fn applies_to(&self, request: &LoginRequest) -> bool {
        request.username_and_password().is_some() && !self.users.is_empty()
    }

    fn check_now(&self, request: &LoginRequest) -> Option<AuthenticatorAnswer> {
        match request.username_and_password() {
            // An unknown user takes the same path, so that it takes the same time.
            Some(_) => None,
            None => Some(AuthenticatorAnswer::Ignore),
        }
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        Box::pin(async move {
            let Some((username, password)) = request.username_and_password() else {
                return Ok(AuthenticatorAnswer::Ignore);
            };
            let Some(user) = self.users.find(username) else {
                return Ok(match self.users.decoy_user(username) {
                    Some(other) => AuthenticatorAnswer::Unknown(DecoyPasswordCheck::new(
                        &self.checker,
                        move |password| other.verify_password(password),
                    )),
                    None => AuthenticatorAnswer::Ignore,
                });
            };
            let identity = self.users.identity(username);
            let password = password.to_vec();
            let is_right = move || user.verify_password(&password);
            Ok(match self.checker.run(is_right).await {
                true => AuthenticatorAnswer::Allow(Box::new(identity)),
                false => AuthenticatorAnswer::Deny,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_user_has_no_password() {
        let sealed = hash_password(json!({"password": "pencil", "is_superuser": true})).unwrap();
        assert!(!sealed.to_string().contains("pencil"));
        let user = UserRecord::from_json(&sealed).unwrap();
        assert!(user.is_superuser);
        let hash = user.password_hash.unwrap();
        assert_eq!(password::verify(&hash, b"pencil"), Ok(true));
        assert!(user.scram.unwrap().verify_password(b"pencil"));
    }

    #[test]
    fn an_invalid_user_is_rejected() {
        let error = |value| UserRecord::from_json(&value).map(|_| ()).unwrap_err();
        assert_eq!(error(json!({})), "a user needs a password");
        assert!(error(json!({"password_hash": "pencil"})).starts_with("password_hash: not a hash"));
        assert!(error(json!({"scram": "x"})).starts_with("scram: "));
        assert!(error(json!({"password": "x"})).contains("password"));
        assert!(hash_password(json!({"password": ""})).is_err());
        assert!(hash_password(json!({"password": "x", "scram": "y"})).is_err());
        assert!(hash_password(json!("x")).is_err());
    }
}
