//! The names of a kind of configuration objects.

use namespaces::{Quota, namespace_of};
use serde_json::Value;

use crate::access::Role;

/// To whom the objects of a kind belong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ObjectOwner {
    /// The node as a whole.
    Node,
    /// The namespace in the field `namespace`. Its quotas limit them.
    Namespace(&'static [QuotaCount]),
    /// As [`Self::Namespace`], or the node as a whole if the field is null.
    NamespaceOrNode(&'static [QuotaCount]),
    /// The objects are namespaces themselves.
    IsNamespace,
}

/// A field that refers to something of the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeField {
    /// JSON pointer (RFC 6901).
    pub(crate) pointer: &'static str,
    /// Whether a value stays within the namespace. `null` and empty lists always do.
    pub(crate) is_own: fn(&Value, &str) -> bool,
}

/// How much of a quota an object uses.
#[derive(Debug, Clone, Copy)]
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
    /// The namespace of an object; `None`: it belongs to the node as a whole.
    pub(crate) fn namespace<'v>(self, id: &'v str, value: &'v Value) -> Option<&'v str> {
        match self {
            Self::Node => None,
            Self::Namespace(_) => Some(namespace_of(value)),
            Self::NamespaceOrNode(_) => value.get(namespaces::FIELD).and_then(Value::as_str),
            Self::IsNamespace => Some(id),
        }
    }

    pub(crate) fn counts(self) -> &'static [QuotaCount] {
        match self {
            Self::Namespace(counts) | Self::NamespaceOrNode(counts) => counts,
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
    /// Fields that concern the node as a whole. A caller with roles in namespaces only cannot
    /// change them.
    pub(crate) node_fields: &'static [NodeField],
    pub(crate) read: Role,
    pub(crate) write: Role,
    /// Prefix of generated ids; `None`: the caller must provide an id.
    pub(crate) id_prefix: Option<&'static str>,
    pub(crate) description: &'static str,
}
