//! What a caller may do: one role on the whole node, or a role in some namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use namespaces::{NamespaceSelection, Namespaces};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::role::Role;

/// A role in one namespace; each role includes those before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NamespaceRole {
    /// May read.
    Viewer,
    /// May change devices and configuration objects of the namespace.
    Operator,
    /// May do everything in the namespace, such as creating API keys.
    Owner,
}

impl NamespaceRole {
    /// The node-wide role that may do the same everywhere.
    fn as_node_role(self) -> Role {
        match self {
            Self::Viewer => Role::Viewer,
            Self::Operator => Role::Operator,
            Self::Owner => Role::Admin,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Owner => "owner",
        }
    }
}

/// The role of an operator in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamespaceGrant {
    #[schemars(length(min = 1, max = 64))]
    pub(crate) namespace: String,
    pub(crate) role: NamespaceRole,
}

/// What a caller may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Authority {
    /// This role, for everything.
    Node(Role),
    /// These roles in these namespaces, and nothing elsewhere.
    Namespaces(BTreeMap<String, NamespaceRole>),
}

impl Authority {
    pub(crate) fn of_grants(grants: impl IntoIterator<Item = NamespaceGrant>) -> Self {
        let grants = grants.into_iter();
        Self::Namespaces(grants.map(|grant| (grant.namespace, grant.role)).collect())
    }

    /// The node-wide role.
    pub(crate) fn node_role(&self) -> Option<Role> {
        match self {
            Self::Node(role) => Some(*role),
            Self::Namespaces(_) => None,
        }
    }

    /// The highest role, wherever it is valid.
    pub(crate) fn highest_role(&self) -> Role {
        match self {
            Self::Node(role) => *role,
            Self::Namespaces(roles) => {
                let roles = roles.values().map(|role| role.as_node_role());
                roles.max().unwrap_or(Role::Viewer)
            }
        }
    }

    pub(crate) fn grants(&self) -> Vec<NamespaceGrant> {
        match self {
            Self::Node(_) => Vec::new(),
            Self::Namespaces(roles) => {
                let grants = roles.iter().map(|(namespace, role)| NamespaceGrant {
                    namespace: namespace.clone(),
                    role: *role,
                });
                grants.collect()
            }
        }
    }

    /// The namespaces in which the caller has at least this role. Disabled ones are left out.
    pub(crate) fn selection(&self, needed: Role, namespaces: &Namespaces) -> NamespaceSelection {
        match self {
            Self::Node(role) if *role >= needed => NamespaceSelection::All,
            Self::Node(_) => NamespaceSelection::none(),
            Self::Namespaces(roles) => {
                let usable = roles.iter().filter(|(namespace, role)| {
                    role.as_node_role() >= needed && namespaces.is_active(namespace)
                });
                let names: BTreeSet<String> = usable.map(|(name, _)| name.clone()).collect();
                NamespaceSelection::Only(Arc::new(names))
            }
        }
    }

    /// Whether the caller has any role in a namespace.
    pub(crate) fn has_role_in(&self, namespace: &str) -> bool {
        match self {
            Self::Node(_) => true,
            Self::Namespaces(roles) => roles.contains_key(namespace),
        }
    }

    /// For sentences: `viewer`, or `owner of "acme"`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Node(role) => role.name().to_owned(),
            Self::Namespaces(roles) if roles.is_empty() => "without a role".to_owned(),
            Self::Namespaces(roles) => {
                let roles = roles.iter();
                let roles =
                    roles.map(|(namespace, role)| format!("{} of {namespace:?}", role.name()));
                roles.collect::<Vec<_>>().join(", ")
            }
        }
    }
}
