//! What a route requires of its caller.

use super::role::Role;
use crate::state::ApiState;

/// Who may call an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointAccess {
    /// Everybody.
    Open,
    /// Everybody if the setting `http.metrics_access` allows it, otherwise viewers.
    Metrics,
    /// Everybody if the setting `http.docs_access` allows it, otherwise viewers.
    Docs,
    /// A caller with the secret of the requested source; the handler checks it.
    Source,
    /// A caller with the access token of a device in the path; the handler checks it.
    Device,
    /// A caller with the token of a dashboard's share link; the handler checks it.
    Kiosk,
    /// Operators and API keys with this role or a higher one.
    Role(Role),
    /// All operators and API keys. Operators that have to change their password may call nothing else.
    Account,
}

impl EndpointAccess {
    /// The role that a caller needs; `None`: none.
    pub(crate) fn required_role(self, app: &ApiState) -> Option<Role> {
        match self {
            Self::Open | Self::Source | Self::Device | Self::Kiosk => None,
            Self::Metrics if app.is_open(app.config.get().metrics_access) => None,
            Self::Docs if app.is_open(app.config.get().docs_access) => None,
            Self::Metrics | Self::Docs | Self::Account => Some(Role::Viewer),
            Self::Role(role) => Some(role),
        }
    }
}
