//! Stored objects of authentication: users, authenticators, rules and bans. Changes take effect as soon as they are
//! stored.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use secret::SecretFields;
use serde_json::{Value, json};

use crate::authenticator::{
    AnswerFuture, AuthBackendError, Authenticator, AuthenticatorAnswer, LoginRequest,
};
use crate::bans::{Ban, BanList};
pub use crate::object_schemas::schemas;
use crate::rules::{AclRule, MAX_RULES};
use crate::settings::{self, AuthObjectError, AuthenticatorContext, AuthenticatorEntry};
use crate::users::{self, UserRecord};

/// The object kinds that this crate reads.
pub const KINDS: [&str; 4] = [USER, AUTHENTICATOR, ACL_RULE, BAN];
pub const USER: &str = "user";
pub const AUTHENTICATOR: &str = "authenticator";
pub const ACL_RULE: &str = "acl_rule";
pub const BAN: &str = "ban";

/// The secrets of authenticators of all types, and the fields that address the system which receives them.
static AUTHENTICATOR_SECRETS: LazyLock<SecretFields> = LazyLock::new(|| {
    let address_fields = &["type", "url", "server", "jwks_url"];
    SecretFields::from_names(&["password", "secret", "headers"], address_fields)
});

/// The credential of a user as written and as stored.
const CREDENTIAL_FIELDS: [&str; 3] = ["password", "password_hash", "scram"];

/// Shown in place of a user's credential.
const HAS_PASSWORD_FIELD: &str = "has_password";

/// Parsed objects of the store, by id.
#[derive(Default)]
pub(crate) struct StoredAuthObjects {
    state: Mutex<StoredAuthObjectsState>,
}

#[derive(Default)]
struct StoredAuthObjectsState {
    authenticators: BTreeMap<String, Arc<AuthenticatorEntry>>,
    rules: BTreeMap<String, (i64, AclRule)>,
    bans: HashMap<String, Ban>,
}

/// A parsed object.
pub(crate) enum AuthObject {
    User(UserRecord),
    Authenticator(Option<AuthenticatorEntry>),
    Rule(Option<(i64, AclRule)>),
    Ban(Ban),
}

pub(crate) fn parse_object(
    kind: &str,
    value: &Value,
    context: &AuthenticatorContext,
) -> Result<AuthObject, AuthObjectError> {
    Ok(match kind {
        USER => AuthObject::User(UserRecord::from_json(value)?),
        AUTHENTICATOR => AuthObject::Authenticator(settings::build_authenticator(value, context)?),
        ACL_RULE => AuthObject::Rule(settings::parse_rule(value)?),
        BAN => AuthObject::Ban(Ban::from_json(value)?),
        other => return Err(format!("{other:?} is no kind of object of authentication").into()),
    })
}

/// The substitute for an object that cannot be parsed: an authenticator that fails, or a rule that denies.
pub(crate) fn fallback_object(kind: &str, id: &str, value: &Value) -> Option<AuthObject> {
    let order = value.get("order").and_then(Value::as_i64).unwrap_or(0);
    match kind {
        AUTHENTICATOR => Some(AuthObject::Authenticator(Some(AuthenticatorEntry {
            name: id.to_owned(),
            order,
            is_builtin: false,
            logged_ms: Default::default(),
            kind: (value.get("type").and_then(Value::as_str))
                .unwrap_or_default()
                .to_owned(),
            tally: Default::default(),
            authenticator: Box::new(FailingAuthenticator),
        }))),
        ACL_RULE => Some(AuthObject::Rule(Some((order, AclRule::match_all(false))))),
        _ => None,
    }
}

/// The substitute for an authenticator with invalid settings.
struct FailingAuthenticator;

impl Authenticator for FailingAuthenticator {
    fn applies_to(&self, _request: &LoginRequest) -> bool {
        true
    }

    fn check<'a>(
        &'a self,
        _request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        let failure = AuthBackendError::new("its settings are invalid");
        Box::pin(std::future::ready(Err(failure)))
    }
}

/// Converts an object into its stored form: a user's `password` becomes a hash, and an omitted credential stays as it is.
pub(crate) fn prepare_for_storage(
    kind: &str,
    mut written: Value,
    current: Option<&Value>,
) -> Result<Value, AuthObjectError> {
    if kind != USER {
        return Ok(written);
    }
    if let Some(fields) = written.as_object_mut() {
        fields.remove(HAS_PASSWORD_FIELD);
        fields.retain(|name, value| !(is_credential(name) && *value == secret::MASK));
        let is_given = fields.keys().any(|name| is_credential(name));
        if let Some(current) = current.and_then(Value::as_object).filter(|_| !is_given) {
            let kept = current.iter().filter(|(name, _)| is_credential(name));
            fields.extend(kept.map(|(name, value)| (name.clone(), value.clone())));
        }
    }
    Ok(users::hash_password(written)?)
}

fn is_credential(name: &str) -> bool {
    CREDENTIAL_FIELDS.contains(&name)
}

/// The secrets of a kind of objects that are stored as they are written. Those of users are stored as hashes.
pub fn secret_fields(kind: &str) -> Option<&'static SecretFields> {
    (kind == AUTHENTICATOR).then(|| &*AUTHENTICATOR_SECRETS)
}

/// A user as shown: whether there is a password, instead of its hashes.
pub fn user_view(mut stored: Value) -> Value {
    if let Some(fields) = stored.as_object_mut() {
        let has_password = fields.keys().any(|name| is_credential(name));
        fields.retain(|name, _| !is_credential(name));
        fields.insert(HAS_PASSWORD_FIELD.into(), json!(has_password));
    }
    stored
}

impl StoredAuthObjects {
    fn with_state<R>(&self, change: impl FnOnce(&mut StoredAuthObjectsState) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds or replaces an object; `None` removes it.
    pub(crate) fn set(&self, kind: &str, id: &str, object: Option<AuthObject>) {
        self.with_state(|state| {
            match kind {
                AUTHENTICATOR => drop(state.authenticators.remove(id)),
                ACL_RULE => drop(state.rules.remove(id)),
                BAN => drop(state.bans.remove(id)),
                _ => {}
            }
            match object {
                Some(AuthObject::Authenticator(Some(entry))) => {
                    state.authenticators.insert(id.to_owned(), Arc::new(entry));
                }
                Some(AuthObject::Rule(Some(rule))) if state.rules.len() < MAX_RULES => {
                    state.rules.insert(id.to_owned(), rule);
                }
                Some(AuthObject::Rule(Some(_))) => {
                    tracing::error!(id, "rule has no effect: too many rules");
                }
                Some(AuthObject::Ban(ban)) => {
                    state.bans.insert(id.to_owned(), ban);
                }
                // Users are stored in the user registry.
                Some(
                    AuthObject::User(_) | AuthObject::Authenticator(None) | AuthObject::Rule(None),
                )
                | None => {}
            }
        });
    }

    pub(crate) fn authenticators(&self) -> Vec<Arc<AuthenticatorEntry>> {
        self.with_state(|state| state.authenticators.values().cloned().collect())
    }

    /// All rules in order; rules of equal order are sorted by id.
    pub(crate) fn rules(&self) -> Arc<[AclRule]> {
        self.with_state(|state| {
            let mut rules: Vec<_> = state.rules.iter().collect();
            rules.sort_by_key(|(_, (order, _))| *order);
            let named = rules.into_iter().map(|(id, (_, rule))| AclRule {
                id: Some(id.as_str().into()),
                ..rule.clone()
            });
            named.collect()
        })
    }

    pub(crate) fn publish_bans(&self, bans: &BanList) {
        self.with_state(|state| bans.set_stored(state.bans.values()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_user_is_hashed_kept_and_not_shown() {
        let written = json!({"password": "pencil", "is_superuser": true});
        let stored = prepare_for_storage(USER, written, None).unwrap();
        let shown = user_view(stored.clone());
        assert_eq!(shown, json!({"is_superuser": true, "has_password": true}));
        for unchanged in [shown, json!({"is_superuser": true, "password": "***"})] {
            let again = prepare_for_storage(USER, unchanged, Some(&stored)).unwrap();
            assert_eq!(again, stored);
        }
        let hash = json!({"password_hash": stored["password_hash"]});
        let only_hash = prepare_for_storage(USER, hash.clone(), Some(&stored)).unwrap();
        assert_eq!(
            only_hash, hash,
            "the verifier of the former password is gone"
        );
    }

    #[test]
    fn secrets_of_authenticators_are_kept_and_not_shown() {
        let fields = secret_fields(AUTHENTICATOR).unwrap();
        for (stored, shown) in [
            (
                json!({"type": "http", "url": "http://h", "headers": {"authorization": "x"}}),
                json!({"type": "http", "url": "http://h", "headers": {"authorization": "***"}}),
            ),
            (
                json!({"type": "mysql", "password": "x", "username": "u"}),
                json!({"type": "mysql", "password": "***", "username": "u"}),
            ),
            (
                json!({"type": "jwt", "secret": "x"}),
                json!({"type": "jwt", "secret": "***"}),
            ),
        ] {
            assert_eq!(fields.mask(stored.clone()), shown);
            assert_eq!(fields.restore(shown, Some(&stored)), Ok(stored));
        }
    }
}
