//! Configuration objects over HTTP.

mod api_key;
mod backend_objects;
mod credential_holder;
mod kind_names;
mod membership;
mod object_backend;
mod object_kind;
mod object_routes;
mod object_schema;
mod operator;
mod preconditions;

pub(crate) use kind_names::ObjectOwner;
pub(crate) use membership::{QuotaUsage, quota_usage};
pub use object_backend::{BackendObjectKind, DeclaredObject, ObjectBackend, ObjectValidationError};
pub(crate) use object_routes::{create_if_absent, object_endpoints, object_kinds, percent_encode};
pub(crate) use preconditions::Preconditions;
