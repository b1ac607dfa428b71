//! An operator within the process of the node.

use std::sync::Arc;

use super::authority::Authority;
use super::caller_identity::{AuthenticationMethod, CallerIdentity};
use super::role::Role;

/// An operator whose requests come from within the process. An extension of requests: no connection can set it.
#[derive(Debug, Clone)]
pub(crate) struct LocalOperator {
    name: Arc<str>,
}

impl LocalOperator {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into() }
    }

    pub(crate) fn identity(&self) -> CallerIdentity {
        CallerIdentity {
            name: self.name.to_string(),
            authentication: AuthenticationMethod::LocalToken,
            authority: Authority::Node(Role::Operator),
            must_change_password: false,
        }
    }
}
