//! The stored forms of operators and API keys, by which callers are authenticated.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::authority::{Authority, NamespaceGrant, NamespaceRole};
use super::role::Role;
use super::secret::SecretHash;

/// Kind of operators in the store.
pub const OPERATOR_KIND: &str = "operator";
/// Kind of API keys in the store.
pub const API_KEY_KIND: &str = "api_key";

/// An operator in its stored form.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredOperator {
    /// The node-wide role; `None`: the operator has roles in namespaces.
    pub(crate) role: Option<Role>,
    #[serde(default)]
    pub(crate) namespaces: Vec<NamespaceGrant>,
    pub(crate) enabled: bool,
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) email: Option<String>,
    #[serde(default)]
    pub(crate) ban: Option<OperatorBan>,
    /// Whether the password was generated or set by another operator.
    #[serde(default)]
    pub(crate) must_change_password: bool,
    /// `$argon2id$...`
    pub(crate) password_hash: String,
}

/// Why an operator may not log in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OperatorBan {
    pub(crate) reason: String,
    /// Who banned the operator.
    pub(crate) by: String,
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// End of the ban, in milliseconds since 1970; `null`: none.
    pub(crate) until_ms: Option<u64>,
}

impl OperatorBan {
    pub(crate) fn is_in_force(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until_ms| now_ms < until_ms)
    }
}

/// An API key in its stored form.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredApiKey {
    pub(crate) role: ApiKeyRole,
    /// `None`: the role is node-wide.
    #[serde(default)]
    pub(crate) namespace: Option<String>,
    pub(crate) enabled: bool,
    pub(crate) description: String,
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) secret_hash: SecretHash,
}

/// The role of an API key, on the node or in its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApiKeyRole {
    /// May read.
    Viewer,
    /// May change what an operator may change.
    Operator,
    /// May do everything in its namespace.
    Owner,
    /// May do everything; only without a namespace.
    Admin,
}

impl StoredOperator {
    /// The ban, if there is one that has not ended.
    pub(crate) fn current_ban(&self, now_ms: u64) -> Option<&OperatorBan> {
        self.ban.as_ref().filter(|ban| ban.is_in_force(now_ms))
    }

    pub(crate) fn may_log_in(&self, now_ms: u64) -> bool {
        self.enabled && self.current_ban(now_ms).is_none()
    }

    pub(crate) fn authority(&self) -> Authority {
        match self.role {
            Some(role) => Authority::Node(role),
            None => Authority::of_grants(self.namespaces.iter().cloned()),
        }
    }
}

impl StoredApiKey {
    /// `None`: the role does not fit to the namespace, so the key has no authority.
    pub(crate) fn authority(&self) -> Option<Authority> {
        match &self.namespace {
            None => Some(Authority::Node(match self.role {
                ApiKeyRole::Viewer => Role::Viewer,
                ApiKeyRole::Operator => Role::Operator,
                ApiKeyRole::Admin => Role::Admin,
                ApiKeyRole::Owner => return None,
            })),
            Some(namespace) => Some(Authority::of_grants([NamespaceGrant {
                namespace: namespace.clone(),
                role: match self.role {
                    ApiKeyRole::Viewer => NamespaceRole::Viewer,
                    ApiKeyRole::Operator => NamespaceRole::Operator,
                    ApiKeyRole::Owner => NamespaceRole::Owner,
                    ApiKeyRole::Admin => return None,
                },
            }])),
        }
    }
}
