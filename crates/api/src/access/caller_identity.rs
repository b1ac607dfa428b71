//! The identity of a caller, and how it was proven.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::authority::Authority;
use super::role::Role;
use super::stored_credentials::StoredOperator;

/// How a caller was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AuthenticationMethod {
    /// A token that an operator obtained with a password.
    Token,
    ApiKey,
    /// The node's own token file: the caller can read the data directory.
    LocalToken,
    /// No credentials; `http.anonymous_role` allows it.
    Anonymous,
    /// No credentials, on a route that is open to all.
    None,
}

/// The identity of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallerIdentity {
    /// The operator's name or the key's id.
    pub(crate) name: String,
    pub(crate) authentication: AuthenticationMethod,
    pub(crate) authority: Authority,
    /// Whether an operator has to change its password before it may do anything else.
    pub(crate) must_change_password: bool,
}

impl CallerIdentity {
    /// The identity of a caller without credentials.
    pub(super) fn anonymous() -> Self {
        Self {
            name: "anonymous".to_owned(),
            authentication: AuthenticationMethod::None,
            authority: Authority::Node(Role::Viewer),
            must_change_password: false,
        }
    }

    /// An operator that logged in.
    pub(crate) fn of_operator(name: &str, operator: &StoredOperator) -> Self {
        Self {
            name: name.to_owned(),
            authentication: AuthenticationMethod::Token,
            authority: operator.authority(),
            must_change_password: operator.must_change_password,
        }
    }

    /// The caller's node-wide role; `None`: it has none, or no credentials.
    pub(crate) fn node_role(&self) -> Option<Role> {
        let is_known = self.authentication != AuthenticationMethod::None;
        self.authority.node_role().filter(|_| is_known)
    }
}
