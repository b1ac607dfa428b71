//! The names of a kind of configuration objects.

use namespaces::Quota;
use serde_json::Value;

use crate::access::Role;

/// To whom the objects of a kind belong.
#[derive(Clone, Copy)]
pub(crate) enum ObjectOwner {
    /// The node as a whole.
    Node,
    /// The namespace in the field `namespace`. Its quotas limit them.
    Namespace(&'static [QuotaCount]),
    /// The objects are namespaces themselves.
    IsNamespace,
}

/// How much of a quota an object uses.
#[derive(Clone, Copy)]
pub(crate) struct QuotaCount {
    pub(crate) quota: Quota,
    pub(crate) count: fn(&Value) -> u64,
}

impl QuotaCount {
    /// Each object counts as one.
    pub(crate) const fn objects(quota: Quota) -> Self {
        Self {
            quota,
            count: |_| 1,
        }
    }
}

impl ObjectOwner {
    pub(crate) fn counts(self) -> &'static [QuotaCount] {
        match self {
            Self::Namespace(counts) => counts,
            Self::Node | Self::IsNamespace => &[],
        }
    }
}

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
    pub(crate) owner: ObjectOwner,
    pub(crate) read: Role,
    pub(crate) write: Role,
    /// Prefix of generated ids; `None`: the caller must provide an id.
    pub(crate) id_prefix: Option<&'static str>,
    pub(crate) description: &'static str,
}
