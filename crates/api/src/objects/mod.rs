//! Configuration objects over HTTP.

mod api_key;
mod backend_objects;
mod content_version;
mod credential_holder;
mod dashboard;
mod invite;
mod kind_names;
mod membership;
mod object_backend;
mod object_change;
mod object_kind;
mod object_routes;
mod object_schema;
mod operator;
mod preconditions;

pub(crate) use content_version::{
    changed_content_response, check_content, content_response, content_version,
};
pub use dashboard::DASHBOARD_KIND;
pub(crate) use dashboard::{
    CardSource, DashboardCard, DashboardShare, Dashboards, StoredDashboard, StoredShare,
};
pub use invite::INVITE_KIND;
pub(crate) use invite::{Invites, StoredInvite};
pub(crate) use kind_names::ObjectOwner;
pub(crate) use membership::{QuotaUsage, quota_usage};
pub use object_backend::{BackendObjectKind, DeclaredObject, ObjectBackend, ObjectValidationError};
pub(crate) use object_change::{ObjectChangeError, change_object};
pub(crate) use object_kind::ObjectKind;
pub(crate) use object_routes::{
    create_if_absent, create_object, object_endpoints, object_kinds, save_object, with_etag,
};
pub(crate) use operator::{Operators, check_email};
pub(crate) use preconditions::Preconditions;
