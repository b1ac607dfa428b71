//! Membership of objects in namespaces: the field `namespace`, and the quotas.

use namespaces::{NamespaceSelection, Namespaces, Quota, namespace_of};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use store::{Objects, StoreError};

use super::kind_names::ObjectOwner;
use super::object_kind::ObjectKind;
use crate::call::ApiCall;
use crate::object_store::store_problem;
use crate::problem_details::ProblemDetails;

const PAGE_OBJECTS: usize = 1000;

/// The namespace of an object; `None`: it belongs to the node as a whole.
pub(super) fn namespace_of_object<'v>(
    kind: &dyn ObjectKind,
    id: &'v str,
    value: &'v Value,
) -> Option<&'v str> {
    match kind.names().owner {
        ObjectOwner::Node => None,
        ObjectOwner::Namespace(_) => Some(namespace_of(value)),
        ObjectOwner::IsNamespace => Some(id),
    }
}

/// Whether a list with this selection contains the object. A selection of namespaces contains no
/// objects of the node.
pub(super) fn is_selected(
    kind: &dyn ObjectKind,
    selection: &NamespaceSelection,
    id: &str,
    value: &Value,
) -> bool {
    match namespace_of_object(kind, id, value) {
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
    if !matches!(kind.names().owner, ObjectOwner::Namespace(_)) {
        return Ok(());
    }
    let invalid = |detail: String| ProblemDetails::invalid_field(namespaces::FIELD, detail);
    let now = current.and_then(|current| namespace_of_object(kind, id, current));
    let wanted = match input.get(namespaces::FIELD) {
        Some(Value::String(namespace)) => namespace.as_str(),
        Some(_) => {
            let detail = "namespace: expected the id of a namespace.";
            return Err(invalid(detail.to_owned()));
        }
        None => now.unwrap_or(namespaces::DEFAULT),
    };
    let namespace = wanted.to_owned();
    if let Some(now) = now.filter(|now| *now != namespace) {
        return Err(invalid(format!(
            "namespace: expected {now:?}, because the namespace of an object cannot change; create another object."
        )));
    }
    if call.app.namespaces.get(&namespace).is_none() {
        return Err(invalid(format!(
            "namespace: there is no namespace {namespace:?}; create it first, or name another."
        )));
    }
    input.insert(namespaces::FIELD.to_owned(), namespace.into());
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
    let mut after: Option<String> = None;
    loop {
        let page = objects.list(kind.names().kind, after.as_deref(), PAGE_OBJECTS)?;
        let shown = page.iter().filter(|object| !is_hidden(&object.id));
        shown.for_each(|object| each(&object.id, &object.value));
        match page.last() {
            Some(last) if page.len() == PAGE_OBJECTS => after = Some(last.id.clone()),
            _ => return Ok(()),
        }
    }
}

/// Checks that the namespace of an object has room for it.
pub(super) fn check_quotas(
    kind: &dyn ObjectKind,
    objects: &Objects,
    namespaces: &Namespaces,
    id: &str,
    (before, after): (Option<&Value>, &Value),
) -> Result<(), ProblemDetails> {
    let Some(namespace) = namespace_of_object(kind, id, after) else {
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
            if other != id && namespace_of_object(kind, other, value) == Some(namespace) {
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

/// The usage of all quotas of a namespace. `devices` is the number of its devices.
pub(crate) fn quota_usage(
    kinds: &[std::sync::Arc<dyn ObjectKind>],
    objects: &Objects,
    limits: &namespaces::NamespaceLimits,
    devices: u64,
) -> Result<Vec<QuotaUsage>, StoreError> {
    let mut rows = Vec::with_capacity(Quota::ALL.len());
    for quota in Quota::ALL {
        let mut used = if *quota == Quota::Devices { devices } else { 0 };
        for kind in kinds {
            let counts = kind.names().owner.counts().iter();
            for row in counts.filter(|row| row.quota == *quota) {
                for_each_object(&**kind, objects, &mut |id, value| {
                    if namespace_of_object(&**kind, id, value) == Some(&limits.id) {
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
