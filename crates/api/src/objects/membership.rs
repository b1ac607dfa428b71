//! Membership of objects in namespaces: the field `namespace`, and the quotas.

use axum::http::StatusCode;
use namespaces::{NamespaceSelection, NamespaceUsage, Namespaces, Quota};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use store::{Objects, StoreError};
use wall_clock::now_ms;

use super::kind_names::ObjectOwner;
use super::object_kind::ObjectKind;
use crate::call::ApiCall;
use crate::object_store::store_problem;
use crate::problem_details::ProblemDetails;

/// Whether a list with this selection contains the object. A selection of namespaces contains no
/// objects of the node.
pub(super) fn is_selected(
    kind: &dyn ObjectKind,
    selection: &NamespaceSelection,
    id: &str,
    value: &Value,
) -> bool {
    match kind.names().owner.namespace(id, value) {
        Some(namespace) => selection.contains(namespace),
        None => *selection == NamespaceSelection::All,
    }
}

/// Completes the field `namespace` of a written object, and checks it. `current` is the stored
/// object.
pub(super) fn complete_namespace(
    kind: &dyn ObjectKind,
    call: &ApiCall,
    id: &str,
    input: &mut Map<String, Value>,
    current: Option<&Value>,
) -> Result<(), ProblemDetails> {
    let owner = kind.names().owner;
    let may_be_node_wide = match owner {
        ObjectOwner::Namespace(_) => false,
        ObjectOwner::NamespaceOrNode(_) => true,
        ObjectOwner::Node | ObjectOwner::IsNamespace => return Ok(()),
    };
    let invalid = |detail: String| ProblemDetails::invalid_field(namespaces::FIELD, detail);
    let selection = call.namespaces();
    let current = current.map(|current| owner.namespace(id, current));
    let wanted = match input.get(namespaces::FIELD) {
        Some(Value::String(namespace)) => Some(namespace.clone()),
        Some(Value::Null) if may_be_node_wide => None,
        Some(_) => {
            let detail = "namespace: expected the id of a namespace.";
            return Err(invalid(detail.to_owned()));
        }
        None => match (current, &selection) {
            (Some(current), _) => current.map(str::to_owned),
            (None, NamespaceSelection::All) if may_be_node_wide => None,
            (None, NamespaceSelection::All) => Some(namespaces::default_id()),
            (None, NamespaceSelection::Only(names)) => match names.len() {
                1 => names.first().cloned(),
                _ => {
                    let names = Vec::from_iter(names.iter().map(String::as_str)).join(", ");
                    return Err(invalid(format!(
                        "namespace is missing; expected one of {names}."
                    )));
                }
            },
        },
    };
    if let Some(current) = current.filter(|current| *current != wanted.as_deref()) {
        let current = current.map_or("null".to_owned(), |current| format!("{current:?}"));
        return Err(invalid(format!(
            "namespace: expected {current}, because the namespace of an object cannot change; create another object."
        )));
    }
    let Some(namespace) = wanted else {
        if selection != NamespaceSelection::All {
            return Err(invalid(
                "namespace: expected the id of a namespace; null needs a node-wide role."
                    .to_owned(),
            ));
        }
        input.insert(namespaces::FIELD.to_owned(), Value::Null);
        return Ok(());
    };
    // A namespace of other people is answered like an absent one.
    if !selection.contains(&namespace) || call.app.namespaces.get(&namespace).is_none() {
        return Err(invalid(format!(
            "namespace: there is no namespace {namespace:?}; create it first, or name another."
        )));
    }
    input.insert(namespaces::FIELD.to_owned(), namespace.into());
    Ok(())
}

/// Checks that a caller with roles in namespaces only does not change what concerns the node.
pub(super) fn check_node_fields(
    kind: &dyn ObjectKind,
    call: &ApiCall,
    id: &str,
    (before, after): (Option<&Value>, &Value),
) -> Result<(), ProblemDetails> {
    if call.namespaces() == NamespaceSelection::All {
        return Ok(());
    }
    let names = kind.names();
    let namespace = names.owner.namespace(id, after).unwrap_or_default();
    for field in names.node_fields {
        let value = after.pointer(field.pointer).unwrap_or(&Value::Null);
        let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        let is_same = before.and_then(|before| before.pointer(field.pointer)) == Some(value);
        if is_empty || is_same || (field.is_own)(value, namespace) {
            continue;
        }
        let name = field.pointer.trim_start_matches('/').replace('/', ".");
        return Err(ProblemDetails::new(
            StatusCode::FORBIDDEN,
            format!(
                "{name}: sinks, rule chains and topics outside `namespaces/{namespace}/` belong to the node; leave the \
                 field as it is, or ask an operator with a node-wide role."
            ),
        ));
    }
    Ok(())
}

/// Calls a function for all effective objects of a kind: declared ones, and stored ones that are
/// not hidden.
fn for_each_object(
    kind: &dyn ObjectKind,
    objects: &Objects,
    each: &mut dyn FnMut(&str, &Value),
) -> Result<(), StoreError> {
    let declared = kind.declared();
    for object in declared.into_iter().flat_map(|declared| declared.values()) {
        each(&object.id, &object.value);
    }
    let is_hidden = |id: &str| declared.is_some_and(|declared| declared.contains_key(id));
    objects.for_each(kind.names().kind, |object| {
        if !is_hidden(&object.id) {
            each(&object.id, &object.value);
        }
    })
}

/// Checks that the namespace of an object has room for it.
pub(super) fn check_quotas(
    kind: &dyn ObjectKind,
    objects: &Objects,
    namespaces: &Namespaces,
    id: &str,
    (before, after): (Option<&Value>, &Value),
) -> Result<(), ProblemDetails> {
    let Some(namespace) = kind.names().owner.namespace(id, after) else {
        return Ok(());
    };
    let Some(limits) = namespaces.get(namespace) else {
        return Ok(());
    };
    for row in kind.names().owner.counts() {
        let (had, has) = (before.map_or(0, row.count), (row.count)(after));
        // An object that grows no further stays valid when its quota was lowered.
        if has <= had || limits.quotas.limit(row.quota).is_none() {
            continue;
        }
        let mut others = 0;
        let counted = for_each_object(kind, objects, &mut |other, value| {
            if other != id && kind.names().owner.namespace(other, value) == Some(namespace) {
                others += (row.count)(value);
            }
        });
        counted.map_err(|error| store_problem(&error))?;
        let checked = limits
            .quotas
            .check(row.quota, namespace, others + had, has - had);
        checked.map_err(|detail| ProblemDetails::conflict(format!("{detail}.")))?;
    }
    Ok(())
}

/// How much of a quota a namespace uses.
#[derive(Serialize, JsonSchema)]
pub(crate) struct QuotaUsage {
    quota: &'static str,
    used: u64,
    /// `null`: no limit.
    limit: Option<u32>,
}

/// The usage of all quotas of a namespace. `counted` has the numbers of what is not a configuration object, `clients` the usage
/// by its clients.
pub(crate) fn quota_usage(
    kinds: &[std::sync::Arc<dyn ObjectKind>],
    objects: &Objects,
    limits: &namespaces::NamespaceLimits,
    counted: &[(Quota, u64)],
    clients: Option<&NamespaceUsage>,
) -> Result<Vec<QuotaUsage>, StoreError> {
    let of_clients =
        |get: &dyn Fn(&NamespaceUsage) -> u32| -> u64 { clients.map_or(0, get).into() };
    let mut rows = Vec::with_capacity(Quota::ALL.len());
    for quota in Quota::ALL {
        let counted = counted.iter().find(|(known, _)| known == quota);
        let mut used = match quota {
            Quota::Connections => of_clients(&NamespaceUsage::connections),
            Quota::MessagesPerS => of_clients(&|clients| clients.messages_per_s(now_ms())),
            _ => counted.map_or(0, |(_, used)| *used),
        };
        for kind in kinds {
            let counts = kind.names().owner.counts().iter();
            for row in counts.filter(|row| row.quota == *quota) {
                for_each_object(&**kind, objects, &mut |id, value| {
                    if kind.names().owner.namespace(id, value) == Some(&limits.id) {
                        used += (row.count)(value);
                    }
                })?;
            }
        }
        rows.push(QuotaUsage {
            quota: quota.name(),
            used,
            limit: limits.quotas.limit(*quota),
        });
    }
    Ok(rows)
}
