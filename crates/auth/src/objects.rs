//! Objects of the store that say who may come in: users, authenticators, rules, bans. They take effect as soon as they
//! are stored.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::authenticator::{Answer, Answering, Authenticator, Failure, Request};
use crate::bans::{Ban, Bans};
use crate::rules::{MAX_RULES, Rule};
pub use crate::schemas::schemas;
use crate::settings::{self, Entry, Invalid, Workshop};
use crate::users::{self, User};

/// Kinds of objects this crate reads.
pub const KINDS: [&str; 4] = [USER, AUTHENTICATOR, ACL_RULE, BAN];
pub const USER: &str = "user";
pub const AUTHENTICATOR: &str = "authenticator";
pub const ACL_RULE: &str = "acl_rule";
pub const BAN: &str = "ban";

/// Fields nobody is shown.
const SECRETS: [&str; 5] = ["password", "password_hash", "scram", "secret", "headers"];

/// Shown instead of what proves a user.
const HAS_PASSWORD: &str = "has_password";

/// What is read from the store, by id.
#[derive(Default)]
pub(crate) struct Kept {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    authenticators: BTreeMap<String, Arc<Entry>>,
    rules: BTreeMap<String, (i64, Rule)>,
    bans: HashMap<String, Ban>,
}

/// An object that was read.
pub(crate) enum Object {
    User(User),
    Authenticator(Option<Entry>),
    Rule(Option<(i64, Rule)>),
    Ban(Ban),
}

pub(crate) fn read(kind: &str, value: &Value, shop: &Workshop) -> Result<Object, Invalid> {
    Ok(match kind {
        USER => Object::User(User::from_json(value)?),
        AUTHENTICATOR => Object::Authenticator(settings::authenticator(value, shop)?),
        ACL_RULE => Object::Rule(settings::rule(value)?),
        BAN => Object::Ban(Ban::from_json(value)?),
        other => return Err(format!("{other:?} is no kind of object of authentication").into()),
    })
}

/// What stands in the place of an object that cannot be read: an authenticator that fails, a rule that denies.
pub(crate) fn instead_of(kind: &str, id: &str, value: &Value) -> Option<Object> {
    let order = value.get("order").and_then(Value::as_i64).unwrap_or(0);
    match kind {
        AUTHENTICATOR => Some(Object::Authenticator(Some(Entry {
            name: id.to_owned(),
            order,
            is_own: false,
            told_ms: Default::default(),
            kind: (value.get("type").and_then(Value::as_str))
                .unwrap_or_default()
                .to_owned(),
            tally: Default::default(),
            authenticator: Box::new(Unreadable),
        }))),
        ACL_RULE => Some(Object::Rule(Some((order, Rule::about_everything(false))))),
        _ => None,
    }
}

/// An authenticator whose settings cannot be read.
struct Unreadable;

impl Authenticator for Unreadable {
    fn concerns(&self, _request: &Request) -> bool {
        true
    }

    fn check<'a>(&'a self, _request: &'a Request) -> Answering<'a, Result<Answer, Failure>> {
        let failure = Failure::new("its settings cannot be read");
        Box::pin(std::future::ready(Err(failure)))
    }
}

/// What was written as it is stored: a user's `password` becomes a hash, secrets that were left out stay what they are.
pub(crate) fn seal(
    kind: &str,
    mut written: Value,
    current: Option<&Value>,
) -> Result<Value, Invalid> {
    if let (Some(fields), Some(current)) = (written.as_object_mut(), current) {
        let says_secret = fields.keys().any(|name| SECRETS.contains(&name.as_str()));
        // A secret is not sent to another server than the one it was given for.
        let is_for_the_same = ["type", "url", "server", "jwks_url"]
            .iter()
            .all(|name| fields.get(*name) == current.get(*name));
        if !says_secret && is_for_the_same {
            for name in SECRETS {
                if let Some(secret) = current.get(name) {
                    fields.insert(name.to_owned(), secret.clone());
                }
            }
        }
    }
    match kind {
        USER => {
            if let Some(fields) = written.as_object_mut() {
                fields.remove(HAS_PASSWORD);
            }
            Ok(users::seal(written)?)
        }
        _ => Ok(written),
    }
}

/// The object as it may be shown: secrets are left out.
pub fn shown(kind: &str, mut value: Value) -> Value {
    let had_password = value.get("password_hash").is_some() || value.get("scram").is_some();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| !SECRETS.contains(&name.as_str()));
        if kind == USER {
            fields.insert(HAS_PASSWORD.into(), json!(had_password));
        }
    }
    value
}

impl Kept {
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts an object in its place; `None` takes it away.
    pub(crate) fn set(&self, kind: &str, id: &str, object: Option<Object>) {
        self.with(|state| {
            match kind {
                AUTHENTICATOR => drop(state.authenticators.remove(id)),
                ACL_RULE => drop(state.rules.remove(id)),
                BAN => drop(state.bans.remove(id)),
                _ => {}
            }
            match object {
                Some(Object::Authenticator(Some(entry))) => {
                    state.authenticators.insert(id.to_owned(), Arc::new(entry));
                }
                Some(Object::Rule(Some(rule))) if state.rules.len() < MAX_RULES => {
                    state.rules.insert(id.to_owned(), rule);
                }
                Some(Object::Rule(Some(_))) => {
                    tracing::error!(id, "a rule is not gone by: there are too many");
                }
                Some(Object::Ban(ban)) => {
                    state.bans.insert(id.to_owned(), ban);
                }
                // Users are kept where they are asked for.
                Some(Object::User(_) | Object::Authenticator(None) | Object::Rule(None)) | None => {
                }
            }
        });
    }

    pub(crate) fn authenticators(&self) -> Vec<Arc<Entry>> {
        self.with(|state| state.authenticators.values().cloned().collect())
    }

    /// In their order, those of equal order by id.
    pub(crate) fn rules(&self) -> Arc<[Rule]> {
        self.with(|state| {
            let mut rules: Vec<_> = state.rules.values().collect();
            rules.sort_by_key(|(order, _)| *order);
            rules.into_iter().map(|(_, rule)| rule.clone()).collect()
        })
    }

    pub(crate) fn put_bans(&self, bans: &Bans) {
        self.with(|state| bans.set_kept(state.bans.values()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let written = json!({"password": "pencil", "is_superuser": true});
        let user = seal(USER, written, None).unwrap();
        let shown_user = shown(USER, user);
        assert_eq!(
            shown_user,
            json!({"is_superuser": true, "has_password": true})
        );
        let http = json!({"type": "http", "url": "http://h", "headers": {"authorization": "x"}});
        let shown_http = shown(AUTHENTICATOR, http.clone());
        assert_eq!(shown_http, json!({"type": "http", "url": "http://h"}));
        let again = seal(AUTHENTICATOR, shown_http, Some(&http)).unwrap();
        assert_eq!(again, http, "what was not shown need not be said again");
        let elsewhere = json!({"type": "http", "url": "http://other"});
        assert_eq!(
            seal(AUTHENTICATOR, elsewhere.clone(), Some(&http)).unwrap(),
            elsewhere
        );
        let database = json!({"type": "mysql", "password": "x", "username": "u"});
        assert_eq!(
            shown(AUTHENTICATOR, database),
            json!({"type": "mysql", "username": "u"})
        );
    }
}
