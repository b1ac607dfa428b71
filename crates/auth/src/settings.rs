//! Settings of authentication and authorisation. Authenticators, rule sources and rules are JSON values, as in the
//! store. The configuration file and the API thus share one format and one parser.

use hooks::UserConfig;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::runtime::Handle;

use crate::authenticator::Authenticator;
use crate::backend_guard::{BackendLimits, GuardedBackend};
use crate::certificate_authenticator::CertificateAuthenticator;
use crate::database;
use crate::device_authenticator::DeviceDirectoryAuthenticator;
use crate::device_directory::DeviceDirectorySlot;
use crate::http::{HttpAuthenticator, HttpRuleSource};
use crate::json;
use crate::jwt::JwtAuthenticator;
use crate::password::PasswordCheckPool;
use crate::password_file::PasswordFile;
use crate::rule_sources::RuleSource;
use crate::rules::AclRule;
use crate::tally::AnswerTally;
use crate::users::{BuiltInAuthenticator, UserRegistry};

/// All authentication settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuthSettings {
    pub limits: AuthLimits,
    pub users: Vec<UserConfig>,
    pub authenticators: Vec<Value>,
    pub rule_sources: Vec<Value>,
    pub rules: Vec<Value>,
}

impl AuthSettings {
    /// The ids of [`Self::authenticators`], in order: the name, or else the type; a number is appended to duplicates.
    pub fn authenticator_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = Vec::new();
        for value in &self.authenticators {
            let text = |field: &str| value.get(field).and_then(Value::as_str);
            let name = text("name").filter(|name| !name.is_empty());
            let name = name.or(text("type")).unwrap_or("authenticator");
            let numbered = (2..).map(|number| format!("{name}-{number}"));
            let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
            ids.extend(candidates.find(|id| !ids.contains(id)));
        }
        ids
    }

    /// The ids of [`Self::rules`], in order.
    pub fn rule_ids(&self) -> Vec<String> {
        let numbers = 1..=self.rules.len();
        numbers
            .map(|number| format!("file-rule-{number}"))
            .collect()
    }
}

/// Scalar settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthLimits {
    /// The result for an action that no rule matches.
    pub default_permission: NoMatchPolicy,
    pub deny_action: DenialPolicy,
    /// Time limit for the whole authentication of a client, in milliseconds.
    pub timeout_ms: u64,
    /// Maximum number of concurrent pending checks; further clients are rejected as "server busy".
    pub max_pending_logins: u32,
    /// Number of concurrent password checks; 0: number of cores.
    pub password_threads: u32,
    pub rules_refresh_s: u32,
    pub rules_max_age_s: u32,
    /// New clients per second over the whole node; 0: no limit.
    pub max_logins_per_s: u32,
    /// Failed logins within the window that lock out a user; 0: no lockout.
    pub max_failed_logins_per_user: u32,
    pub max_failed_logins_per_address: u32,
    pub failed_login_window_s: u32,
    pub lockout_s: u32,
    /// Disconnects within the window that ban a client; 0: no bans.
    pub flapping_disconnects: u32,
    pub flapping_window_s: u32,
    pub flapping_ban_s: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoMatchPolicy {
    /// Deny if the configuration has a rule or a rule source, otherwise allow.
    #[default]
    Auto,
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DenialPolicy {
    #[default]
    Ignore,
    Disconnect,
    /// Allow the action, and record that the rules deny it.
    Observe,
}

impl Default for AuthLimits {
    fn default() -> Self {
        Self {
            default_permission: NoMatchPolicy::Auto,
            deny_action: DenialPolicy::Ignore,
            timeout_ms: 10_000,
            max_pending_logins: 1024,
            password_threads: 0,
            rules_refresh_s: 300,
            rules_max_age_s: 3600,
            max_logins_per_s: 0,
            max_failed_logins_per_user: 0,
            max_failed_logins_per_address: 100,
            failed_login_window_s: 60,
            lockout_s: 60,
            flapping_disconnects: 0,
            flapping_window_s: 60,
            flapping_ban_s: 300,
        }
    }
}

/// An invalid part of the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AuthObjectError {
    /// The problem and the field. Never contains a secret.
    pub message: String,
}

impl From<String> for AuthObjectError {
    fn from(message: String) -> Self {
        Self { message }
    }
}

/// Shared objects needed to build authenticators.
pub(crate) struct AuthenticatorContext {
    pub(crate) users: Arc<UserRegistry>,
    pub(crate) checker: PasswordCheckPool,
    pub(crate) runtime: Handle,
    pub(crate) devices: DeviceDirectorySlot,
}

/// An authenticator with its position in the chain.
pub(crate) struct AuthenticatorEntry {
    pub(crate) name: String,
    /// Entries with lower values are evaluated first.
    pub(crate) order: i64,
    /// A built-in authenticator: without users or devices it takes no part in the chain.
    pub(crate) is_builtin: bool,
    /// When its last failure was logged at `warn`, in milliseconds since 1970.
    pub(crate) logged_ms: AtomicU64,
    /// The `type` in its settings.
    pub(crate) kind: String,
    pub(crate) tally: AnswerTally,
    pub(crate) authenticator: Box<dyn Authenticator>,
}

/// The fields common to all authenticators and sources, split from the others.
struct DefinitionHeader {
    kind: String,
    name: String,
    order: Option<i64>,
    is_enabled: bool,
    bounds: Option<BackendLimits>,
    rest: Value,
}

impl DefinitionHeader {
    fn parse(value: &Value, asks_outside: fn(&str) -> bool) -> Result<Self, String> {
        let Value::Object(fields) = value else {
            return Err(format!(
                "expected an object, found {}",
                json::type_name(value)
            ));
        };
        let mut rest = fields.clone();
        let kind = match rest.remove("type") {
            Some(Value::String(kind)) => kind,
            _ => return Err("type: missing".into()),
        };
        let name = match rest.remove("name") {
            None => kind.clone(),
            Some(Value::String(name)) if !name.is_empty() => name,
            Some(_) => return Err("name: expected a text".into()),
        };
        let order = match rest.remove("order") {
            None => None,
            Some(order) => Some(order.as_i64().ok_or("order: expected a whole number")?),
        };
        let is_enabled = match rest.remove("enabled") {
            None => true,
            Some(flag) => flag.as_bool().ok_or("enabled: expected true or false")?,
        };
        let bounds = match asks_outside(&kind) {
            false => None,
            true => {
                let mut own = Map::new();
                for field in BackendLimits::FIELDS {
                    if let Some(value) = rest.remove(field) {
                        own.insert(field.to_owned(), value);
                    }
                }
                let bounds: BackendLimits = json::parse(&Value::Object(own))?;
                bounds.validate()?;
                Some(bounds)
            }
        };
        Ok(Self {
            kind,
            name,
            order,
            is_enabled,
            bounds,
            rest: Value::Object(rest),
        })
    }
}

fn uses_backend(kind: &str) -> bool {
    matches!(kind, "http" | "jwt" | "mysql" | "postgres" | "redis")
}

const AUTHENTICATOR_KINDS: &str = "\"users\", \"devices\", \"password_file\", \"jwt\", \"http\", \"mysql\", \"postgres\", \
                     \"redis\" or \"certificate\"";
const SOURCE_KINDS: &str = "\"http\", \"mysql\", \"postgres\" or \"redis\"";

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PasswordFileSettings {
    path: std::path::PathBuf,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptySettings {}

/// Builds an authenticator from its settings; `None` if it is disabled.
pub(crate) fn build_authenticator(
    value: &Value,
    context: &AuthenticatorContext,
) -> Result<Option<AuthenticatorEntry>, String> {
    let head = DefinitionHeader::parse(value, uses_backend)?;
    let bounds = head.bounds.clone().unwrap_or_default();
    let name = &head.name;
    let rest = &head.rest;
    let made: Box<dyn Authenticator> = match head.kind.as_str() {
        "users" => {
            let _: EmptySettings = json::parse(rest)?;
            Box::new(BuiltInAuthenticator {
                users: context.users.clone(),
                checker: context.checker.clone(),
            })
        }
        "devices" => {
            let _: EmptySettings = json::parse(rest)?;
            Box::new(DeviceDirectoryAuthenticator {
                directory: context.devices.clone(),
                checker: context.checker.clone(),
            })
        }
        "password_file" => {
            let settings: PasswordFileSettings = json::parse(rest)?;
            let file = PasswordFile::open(settings.path, context.checker.clone());
            Box::new(file.map_err(|error| format!("path: {error}"))?)
        }
        "jwt" => {
            let made = JwtAuthenticator::new(&json::parse(rest)?, &context.runtime)?;
            Box::new(GuardedBackend::new(name, made, &bounds))
        }
        "http" => {
            let made = HttpAuthenticator::new(&json::parse(rest)?)?;
            Box::new(GuardedBackend::new(name, made, &bounds))
        }
        "certificate" => {
            let settings: CertificateAuthenticator = json::parse(rest)?;
            Box::new(settings)
        }
        other => {
            match database::build_authenticator(other, name, rest, &bounds, &context.checker) {
                Some(made) => made?,
                None => {
                    return Err(format!(
                        "type: expected {AUTHENTICATOR_KINDS}, found {other:?}"
                    ));
                }
            }
        }
    };
    Ok(head.is_enabled.then_some(AuthenticatorEntry {
        name: head.name,
        order: head.order.unwrap_or(0),
        is_builtin: matches!(head.kind.as_str(), "users" | "devices"),
        logged_ms: AtomicU64::new(0),
        kind: head.kind,
        tally: AnswerTally::default(),
        authenticator: made,
    }))
}

/// Builds a rule source from its settings; `None` if it is disabled.
pub(crate) fn build_rule_source(value: &Value) -> Result<Option<Arc<dyn RuleSource>>, String> {
    let head = DefinitionHeader::parse(value, uses_backend)?;
    let bounds = head.bounds.clone().unwrap_or_default();
    let (name, rest) = (&head.name, &head.rest);
    let made: Arc<dyn RuleSource> = match head.kind.as_str() {
        "http" => {
            let made = HttpRuleSource::new(&json::parse(rest)?)?;
            Arc::new(GuardedBackend::new(name, made, &bounds))
        }
        other => match database::build_rule_source(other, name, rest, &bounds) {
            Some(made) => made?,
            None => return Err(format!("type: expected {SOURCE_KINDS}, found {other:?}")),
        },
    };
    Ok(head.is_enabled.then_some(made))
}

/// Parses a rule and its `order`; `None` if it is disabled.
pub(crate) fn parse_rule(value: &Value) -> Result<Option<(i64, AclRule)>, String> {
    let Value::Object(fields) = value else {
        return Err(format!(
            "expected an object, found {}",
            json::type_name(value)
        ));
    };
    let mut rest = fields.clone();
    let order = match rest.remove("order") {
        None => 0,
        Some(order) => order.as_i64().ok_or("order: expected a whole number")?,
    };
    let is_enabled = match rest.remove("enabled") {
        None => true,
        Some(flag) => flag.as_bool().ok_or("enabled: expected true or false")?,
    };
    rest.remove("description");
    let rule = AclRule::from_json(&Value::Object(rest))?;
    Ok(is_enabled.then_some((order, rule)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn authenticators_of_the_configuration_have_distinct_ids() {
        let settings = AuthSettings {
            authenticators: vec![
                json!({"type": "http", "name": "jwt"}),
                json!({"type": "jwt"}),
                json!({"type": "jwt"}),
                json!({"type": "jwt", "name": ""}),
                json!(1),
            ],
            rules: vec![json!({}), json!({})],
            ..AuthSettings::default()
        };
        let ids = settings.authenticator_ids();
        assert_eq!(ids, ["jwt", "jwt-2", "jwt-3", "jwt-4", "authenticator"]);
        assert_eq!(settings.rule_ids(), ["file-rule-1", "file-rule-2"]);
    }
}
