//! A caller whose request does not come from a connection of this node.

use super::authority::Authority;
use super::caller_identity::{AuthenticationMethod, CallerIdentity};
use super::role::Role;

/// A part of the program, or a caller that another node of the cluster has authenticated. An extension of requests: no
/// connection can set it.
#[derive(Debug, Clone)]
pub(crate) struct LocalOperator {
    identity: CallerIdentity,
    /// The request was passed on by another node, and is executed here.
    pub(crate) is_from_node: bool,
}

impl LocalOperator {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            identity: CallerIdentity {
                name: name.to_owned(),
                authentication: AuthenticationMethod::LocalToken,
                authority: Authority::Node(Role::Operator),
                must_change_password: false,
            },
            is_from_node: false,
        }
    }

    pub(crate) fn from_node(identity: CallerIdentity) -> Self {
        Self {
            identity,
            is_from_node: true,
        }
    }

    pub(crate) fn identity(&self) -> CallerIdentity {
        self.identity.clone()
    }
}
