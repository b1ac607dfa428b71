//! The names of a kind of configuration objects.

use crate::access::Role;

/// Names and properties of a kind, as its routes need them.
pub(crate) struct ObjectKindNames {
    /// Kind in the store.
    pub(crate) kind: &'static str,
    /// Path segment under `/api/v1/`.
    pub(crate) path: &'static str,
    /// Name in sentences.
    pub(crate) singular: &'static str,
    pub(crate) plural: &'static str,
    /// Name in the OpenAPI document: `Operator`.
    pub(crate) type_name: &'static str,
    /// Name of the field with the id.
    pub(crate) id_field: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) read: Role,
    pub(crate) write: Role,
    /// Prefix of generated ids; `None`: the caller must provide an id.
    pub(crate) id_prefix: Option<&'static str>,
    pub(crate) description: &'static str,
}
