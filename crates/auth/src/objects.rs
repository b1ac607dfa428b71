//! Stored objects of authentication: users, authenticators, rules and bans. Changes take effect as soon as they are
//! stored.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Fields omitted from API responses.
const SECRET_FIELDS: [&str; 5] = ["password", "password_hash", "scram", "secret", "headers"];

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

/// Converts an object into its stored form: a user's `password` becomes a hash, and omitted secrets keep their stored
/// values.
pub(crate) fn prepare_for_storage(
    kind: &str,
    mut written: Value,
    current: Option<&Value>,
) -> Result<Value, AuthObjectError> {
    if let (Some(fields), Some(current)) = (written.as_object_mut(), current) {
        let says_secret = fields
            .keys()
            .any(|name| SECRET_FIELDS.contains(&name.as_str()));
        // An omitted secret is carried over only if type and server are unchanged, so it is never sent to another
        // server.
        let is_for_the_same = ["type", "url", "server", "jwks_url"]
            .iter()
            .all(|name| fields.get(*name) == current.get(*name));
        if !says_secret && is_for_the_same {
            for name in SECRET_FIELDS {
                if let Some(secret) = current.get(name) {
                    fields.insert(name.to_owned(), secret.clone());
                }
            }
        }
    }
    match kind {
        USER => {
            if let Some(fields) = written.as_object_mut() {
                fields.remove(HAS_PASSWORD_FIELD);
            }
            Ok(users::hash_password(written)?)
        }
        _ => Ok(written),
    }
}

/// The object without its secrets, as shown by the API.
pub fn redact(kind: &str, mut value: Value) -> Value {
    let had_password = value.get("password_hash").is_some() || value.get("scram").is_some();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| !SECRET_FIELDS.contains(&name.as_str()));
        if kind == USER {
            fields.insert(HAS_PASSWORD_FIELD.into(), json!(had_password));
        }
    }
    value
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
            let mut rules: Vec<_> = state.rules.values().collect();
            rules.sort_by_key(|(order, _)| *order);
            rules.into_iter().map(|(_, rule)| rule.clone()).collect()
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
    fn secrets_are_not_shown() {
        let written = json!({"password": "pencil", "is_superuser": true});
        let user = prepare_for_storage(USER, written, None).unwrap();
        let shown_user = redact(USER, user);
        assert_eq!(
            shown_user,
            json!({"is_superuser": true, "has_password": true})
        );
        let http = json!({"type": "http", "url": "http://h", "headers": {"authorization": "x"}});
        let shown_http = redact(AUTHENTICATOR, http.clone());
        assert_eq!(shown_http, json!({"type": "http", "url": "http://h"}));
        let again = prepare_for_storage(AUTHENTICATOR, shown_http, Some(&http)).unwrap();
        assert_eq!(again, http, "what was not shown need not be said again");
        let elsewhere = json!({"type": "http", "url": "http://other"});
        assert_eq!(
            prepare_for_storage(AUTHENTICATOR, elsewhere.clone(), Some(&http)).unwrap(),
            elsewhere
        );
        let database = json!({"type": "mysql", "password": "x", "username": "u"});
        assert_eq!(
            redact(AUTHENTICATOR, database),
            json!({"type": "mysql", "username": "u"})
        );
    }
}
