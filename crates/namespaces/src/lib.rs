//! Namespaces: parts of a node that belong to different people. A namespace owns products with their devices, device
//! groups, notifications, relay endpoints, files, firmware packages, dashboards, API keys and invites, and limits their number.
//!
//! This crate knows definitions and limits. Which objects a namespace owns, and who may use it, is known by the crates
//! above.

mod definition;
mod quota;
mod selection;
mod table;
mod usage;

pub use definition::{NamespaceDefinition, NamespaceError, NamespaceState, check_id};
pub use quota::{QUOTA_MEGABYTE, Quota, Quotas};
pub use selection::NamespaceSelection;
pub use table::{NamespaceLimits, Namespaces, WeakNamespaces, ensure_default_namespace};
pub use usage::{CountedConnection, NamespaceUsage};

use serde_json::Value;

/// The kind of the configuration objects that define namespaces.
pub const KIND: &str = "namespace";
/// The namespace of all objects that name none. It always exists.
pub const DEFAULT: &str = "default";
/// The field of an object that names its namespace.
pub const FIELD: &str = "namespace";
/// Maximum number of namespaces of a node.
pub const MAX_NAMESPACES: usize = 10_000;

/// Default for serde: the name of the default namespace.
#[must_use]
pub fn default_id() -> String {
    DEFAULT.to_owned()
}

/// The namespace of a stored object.
#[must_use]
pub fn namespace_of(stored: &Value) -> &str {
    stored.get(FIELD).and_then(Value::as_str).unwrap_or(DEFAULT)
}
