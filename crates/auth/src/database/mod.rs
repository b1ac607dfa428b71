//! Authentication and rules from databases. Each database driver only executes the query; this module interprets
//! the rows.
#![cfg_attr(
    not(any(feature = "mysql", feature = "postgres", feature = "redis")),
    allow(
        dead_code,
        reason = "settings are validated even without a database driver"
    )
)]

#[cfg(feature = "mysql")]
mod mysql;
mod password_scheme;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod statement;
mod user_database;

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::authenticator::{
    AnswerFuture, AuthBackendError, AuthenticatedIdentity, Authenticator, AuthenticatorAnswer,
    LoginRequest,
};
use crate::backend_guard::{BackendLimits, GuardedBackend};
use crate::decoy_check::DecoyPasswordCheck;
use crate::password::PasswordCheckPool;
use crate::rule_sources::RuleSource;
use crate::rules::{AclRule, MAX_RULES};
use password_scheme::{PasswordScheme, StoredPassword};
use user_database::{DatabaseRow, DatabaseSettings, UserDatabase};

/// Columns that make up the conditions of a rule.
const RULE_COLUMNS: [&str; 10] = [
    "permission",
    "action",
    "topic",
    "topics",
    "qos",
    "retain",
    "username",
    "clientid",
    "client_id",
    "ipaddr",
];

type OptionalBackend<T> = Option<Result<T, String>>;

/// Builds an authenticator of this kind; `None` if the kind is unknown.
pub(crate) fn build_authenticator(
    kind: &str,
    name: &str,
    value: &Value,
    bounds: &BackendLimits,
    checker: &PasswordCheckPool,
) -> OptionalBackend<Box<dyn Authenticator>> {
    open_database(kind, value, false).map(|made| {
        let (lookup, scheme) = made?;
        let authenticator = DatabaseAuthenticator {
            lookup,
            password_scheme: Arc::new(scheme),
            checker: checker.clone(),
            last_found: Mutex::default(),
        };
        let guarded: Box<dyn Authenticator> =
            Box::new(GuardedBackend::new(name, authenticator, bounds));
        Ok(guarded)
    })
}

/// Builds a rule source of this kind; `None` if the kind is unknown.
pub(crate) fn build_rule_source(
    kind: &str,
    name: &str,
    value: &Value,
    bounds: &BackendLimits,
) -> OptionalBackend<Arc<dyn RuleSource>> {
    open_database(kind, value, true).map(|made| {
        let (lookup, _) = made?;
        let guarded: Arc<dyn RuleSource> = Arc::new(GuardedBackend::new(
            name,
            DatabaseRuleSource(lookup),
            bounds,
        ));
        Ok(guarded)
    })
}

fn open_database(
    kind: &str,
    value: &Value,
    for_rules: bool,
) -> OptionalBackend<(Box<dyn UserDatabase>, PasswordScheme)> {
    if !matches!(kind, "mysql" | "postgres" | "redis") {
        return None;
    }
    let settings = match DatabaseSettings::from_json(value) {
        Ok(settings) => settings,
        Err(error) => return Some(Err(error)),
    };
    let made: Result<Box<dyn UserDatabase>, String> = match kind {
        #[cfg(feature = "mysql")]
        "mysql" => mysql::MySqlUserDatabase::new(&settings).map(|made| Box::new(made) as _),
        #[cfg(feature = "postgres")]
        "postgres" => {
            postgres::PostgresUserDatabase::new(&settings).map(|made| Box::new(made) as _)
        }
        #[cfg(feature = "redis")]
        "redis" => {
            redis::RedisUserDatabase::new(&settings, for_rules).map(|made| Box::new(made) as _)
        }
        _ => Err(format!("type: this program was built without {kind}")),
    };
    // Used only with the feature `redis`, whose rules have another format than its users.
    let _ = for_rules;
    Some(made.map(|made| (made, settings.password_hash_algorithm)))
}

fn parse_flag(text: &str) -> bool {
    matches!(
        text.trim().to_ascii_lowercase().as_str(),
        "1" | "true" | "t" | "yes" | "on"
    )
}

/// Authenticates users stored in a database.
struct DatabaseAuthenticator {
    lookup: Box<dyn UserDatabase>,
    password_scheme: Arc<PasswordScheme>,
    checker: PasswordCheckPool,
    /// The last stored password found; used as the decoy for unknown users, so that both checks take equally
    /// long.
    last_found: Mutex<Option<StoredPassword>>,
}

impl Authenticator for DatabaseAuthenticator {
    fn applies_to(&self, request: &LoginRequest) -> bool {
        request.password.is_some()
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        Box::pin(async move {
            let Some(password) = request.password.as_ref().map(|password| password.0.clone())
            else {
                return Ok(AuthenticatorAnswer::Ignore);
            };
            let rows = self.lookup.query_rows(request).await?;
            let Some(mut row) = rows.into_iter().next() else {
                let last = self
                    .last_found
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let stored = last.clone().unwrap_or_else(|| self.password_scheme.decoy());
                let scheme = self.password_scheme.clone();
                let check = move |password: &[u8]| scheme.verify(&stored, password) == Ok(true);
                return Ok(AuthenticatorAnswer::Unknown(DecoyPasswordCheck::new(
                    &self.checker,
                    check,
                )));
            };
            let hash = match row.remove("password_hash") {
                None => {
                    return Err(AuthBackendError::new(
                        "the query gives no column password_hash; name it with AS",
                    ));
                }
                // A user without a stored password cannot log in with one.
                Some(None) => return Ok(AuthenticatorAnswer::Deny),
                Some(Some(hash)) => hash,
            };
            let stored = StoredPassword {
                hash,
                salt: row.remove("salt").flatten().unwrap_or_default(),
            };
            *self
                .last_found
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(stored.clone());
            let is_superuser = row.remove("is_superuser").flatten();
            let scheme = self.password_scheme.clone();
            let (error_sender, outcome) = tokio::sync::oneshot::channel();
            let is_right = self.checker.run(move || {
                let checked = scheme.verify(&stored, &password);
                // The login may have timed out.
                let _ = error_sender.send(checked.err());
                checked.is_ok_and(|is_right| is_right)
            });
            if is_right.await {
                return Ok(AuthenticatorAnswer::Allow(Box::new(
                    AuthenticatedIdentity {
                        is_superuser: is_superuser.is_some_and(|flag| parse_flag(&flag)),
                        ..AuthenticatedIdentity::default()
                    },
                )));
            }
            match outcome.await {
                Ok(None) => Ok(AuthenticatorAnswer::Deny),
                Ok(Some(error)) => Err(AuthBackendError(format!("password_hash: {error}"))),
                Err(_) => Err(AuthBackendError::new("the password could not be checked")),
            }
        })
    }
}

/// Reads the rules of clients from a database.
struct DatabaseRuleSource(Box<dyn UserDatabase>);

impl RuleSource for DatabaseRuleSource {
    fn fetch_rules<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<Vec<AclRule>, AuthBackendError>> {
        Box::pin(async move {
            let rows = self.0.query_rows(request).await?;
            if rows.len() > MAX_RULES {
                return Err(AuthBackendError(format!("more than {MAX_RULES} rules")));
            }
            let rules = rows.iter().enumerate().map(|(at, row)| {
                parse_rule(row)
                    .map_err(|error| AuthBackendError(format!("row {}: {error}", at + 1)))
            });
            rules.collect()
        })
    }
}

fn parse_rule(row: &DatabaseRow) -> Result<AclRule, String> {
    let mut fields = Map::new();
    for column in RULE_COLUMNS {
        if let Some(Some(text)) = row.get(column) {
            fields.insert(column.to_owned(), Value::String(text.clone()));
        }
    }
    // A missing subject means every client, but a missing topic is an error: NULL must not become "every topic".
    if !fields.contains_key("topic") && !fields.contains_key("topics") {
        return Err("topic: missing".into());
    }
    AclRule::from_json(&Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::Password;

    struct FixedTable(Result<Vec<DatabaseRow>, AuthBackendError>);

    impl UserDatabase for FixedTable {
        fn query_rows<'a>(
            &'a self,
            _: &'a LoginRequest,
        ) -> AnswerFuture<'a, Result<Vec<DatabaseRow>, AuthBackendError>> {
            Box::pin(std::future::ready(self.0.clone()))
        }
    }

    fn row(columns: &[(&str, Option<&str>)]) -> DatabaseRow {
        let columns = columns.iter();
        columns
            .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)))
            .collect()
    }

    async fn ask(
        rows: Result<Vec<DatabaseRow>, AuthBackendError>,
        password: &str,
    ) -> Result<AuthenticatorAnswer, AuthBackendError> {
        let users = DatabaseAuthenticator {
            lookup: Box::new(FixedTable(rows)),
            password_scheme: Arc::default(),
            checker: PasswordCheckPool::new(tokio::runtime::Handle::current(), 1),
            last_found: Mutex::default(),
        };
        let request = LoginRequest {
            username: Some("ann".into()),
            password: Some(Password(password.into())),
            ..LoginRequest::default()
        };
        users.check(&request).await
    }

    #[tokio::test]
    async fn rows_become_answers() {
        let hash = crate::password::hash(b"pencil").unwrap();
        let ann = row(&[("password_hash", Some(&hash)), ("is_superuser", Some("1"))]);
        let Ok(AuthenticatorAnswer::Allow(identity)) = ask(Ok(vec![ann.clone()]), "pencil").await
        else {
            panic!("it is the password");
        };
        assert!(identity.is_superuser);
        assert_eq!(
            ask(Ok(vec![ann]), "pen").await,
            Ok(AuthenticatorAnswer::Deny)
        );
        let nobody = ask(Ok(Vec::new()), "pencil").await;
        assert!(
            matches!(nobody, Ok(AuthenticatorAnswer::Unknown(_))),
            "{nobody:?}"
        );
        let nothing = row(&[("password_hash", None)]);
        assert_eq!(
            ask(Ok(vec![nothing]), "").await,
            Ok(AuthenticatorAnswer::Deny)
        );
    }

    #[tokio::test]
    async fn unusable_rows_are_a_failure() {
        let clear = row(&[("password_hash", Some("pencil"))]);
        let failure = ask(Ok(vec![clear]), "pencil").await.unwrap_err();
        assert!(
            failure.0.starts_with("password_hash: not a hash"),
            "{failure}"
        );
        assert!(!failure.0.contains("pencil"));
        let other = row(&[("password", Some("x"))]);
        assert!(ask(Ok(vec![other]), "x").await.is_err());
        assert!(ask(Err(AuthBackendError::new("away")), "x").await.is_err());
    }

    #[test]
    fn rows_become_rules() {
        let rule = parse_rule(&row(&[
            ("permission", Some("allow")),
            ("action", Some("publish")),
            ("topic", Some("a/${clientid}")),
            ("qos", Some("0,1")),
            ("retain", Some("0")),
            ("ipaddr", None),
            ("note", Some("ours")),
        ]));
        let rule = rule.unwrap();
        assert_eq!((rule.qos, rule.retain), (0b011, Some(false)));
        let everything = parse_rule(&row(&[("permission", Some("allow")), ("topic", None)]));
        assert_eq!(everything, Err("topic: missing".into()));
    }
}
