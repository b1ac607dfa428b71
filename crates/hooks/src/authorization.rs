//! Authorization: what a client wants to do, and the permissions that decide about it.

use std::sync::Arc;

use mqtt::{QoS, SubscriptionOptions};

use crate::client::Client;

/// What a client wants to do.
#[derive(Debug, Clone, Copy)]
pub enum ClientAction<'a> {
    Publish {
        topic: &'a str,
        qos: QoS,
        retain: bool,
    },
    Subscribe {
        filter: &'a str,
        options: SubscriptionOptions,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorization {
    Allow,
    Deny,
    /// Deny and close the connection.
    Disconnect,
}

/// The decision about an action, and what decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDecision {
    pub is_allowed: bool,
    /// Where the deciding rule is from: `superuser`, `device`, `client`, `external`, `file`, `store`, or `default` if no
    /// rule matches.
    pub source: &'static str,
    /// Id of the rule; only rules of the node have one.
    pub rule: Option<Arc<str>>,
}

/// The permissions of one client. They belong to its session, move with it between shards, and must not block.
pub trait Permissions: Send + Sync {
    /// Decides about an action. `client` returns the client; it is a function because most decisions do not need it.
    fn check<'c>(
        &self,
        client: &dyn Fn() -> Client<'c>,
        action: &ClientAction<'_>,
    ) -> Authorization;

    /// Whether the client may do everything, regardless of the rules.
    fn is_superuser(&self) -> bool {
        false
    }

    /// The device that the client is, if it is a registered device.
    fn device(&self) -> Option<ClientDevice<'_>> {
        None
    }

    /// The decision about an action without its effects, and what decides. It may take milliseconds: it is not called on
    /// a shard. `None`: unknown.
    fn explain(&self, client: &Client<'_>, action: &ClientAction<'_>) -> Option<AccessDecision> {
        let _ = (client, action);
        None
    }

    /// Short name of the rules that decide about an action; called only with
    /// [`Interest::AUTHORIZATION_DECIDED`](crate::Interest::AUTHORIZATION_DECIDED).
    fn decision_source(
        &self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
    ) -> Option<&'static str> {
        let _ = (client, action);
        None
    }
}

/// The device that a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientDevice<'a> {
    pub id: &'a str,
    pub product: &'a str,
}
