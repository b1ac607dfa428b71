//! Objects of the store that say who may come in: users, authenticators, rules, bans. They take effect as soon as they
//! are stored.

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

/// Kinds of objects this crate reads.
pub const KINDS: [&str; 4] = [USER, AUTHENTICATOR, ACL_RULE, BAN];
pub const USER: &str = "user";
pub const AUTHENTICATOR: &str = "authenticator";
pub const ACL_RULE: &str = "acl_rule";
pub const BAN: &str = "ban";

/// Fields nobody is shown.
const SECRET_FIELDS: [&str; 5] = ["password", "password_hash", "scram", "secret", "headers"];

/// Shown instead of what proves a user.
const HAS_PASSWORD_FIELD: &str = "has_password";

/// What is read from the store, by id.
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

/// An object that was read.
pub(crate) enum AuthObject {
    User(UserRecord),
    Authenticator(Option<AuthenticatorEntry>),
    Rule(Option<(i64, AclRule)>),
    Ban(Ban),
}

pub(crate) fn parse_object(
    kind: &str,
    value: &Value,
    shop: &AuthenticatorContext,
) -> Result<AuthObject, AuthObjectError> {
    Ok(match kind {
        USER => AuthObject::User(UserRecord::from_json(value)?),
        AUTHENTICATOR => AuthObject::Authenticator(settings::build_authenticator(value, shop)?),
        ACL_RULE => AuthObject::Rule(settings::parse_rule(value)?),
        BAN => AuthObject::Ban(Ban::from_json(value)?),
        other => return Err(format!("{other:?} is no kind of object of authentication").into()),
    })
}

/// What stands in the place of an object that cannot be read: an authenticator that fails, a rule that denies.
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

/// An authenticator whose settings cannot be read.
struct FailingAuthenticator;

impl Authenticator for FailingAuthenticator {
    fn applies_to(&self, _request: &LoginRequest) -> bool {
        true
    }

    fn check<'a>(
        &'a self,
        _request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        let failure = AuthBackendError::new("its settings cannot be read");
        Box::pin(std::future::ready(Err(failure)))
    }
}

/// What was written as it is stored: a user's `password` becomes a hash, secrets that were left out stay what they are.
pub(crate) fn prepare_for_storage(
    kind: &str,
    mut written: Value,
    current: Option<&Value>,
) -> Result<Value, AuthObjectError> {
    if let (Some(fields), Some(current)) = (written.as_object_mut(), current) {
        let says_secret = fields
            .keys()
            .any(|name| SECRET_FIELDS.contains(&name.as_str()));
        // A secret is not sent to another server than the one it was given for.
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

/// The object as it may be shown: secrets are left out.
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

    /// Puts an object in its place; `None` takes it away.
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
                    tracing::error!(id, "a rule is not gone by: there are too many");
                }
                Some(AuthObject::Ban(ban)) => {
                    state.bans.insert(id.to_owned(), ban);
                }
                // Users are kept where they are asked for.
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

    /// In their order, those of equal order by id.
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
