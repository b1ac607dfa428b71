//! References between configuration objects, described by one table. An object with a missing
//! reference is not stored, and a referenced object is not deleted.

use std::collections::HashSet;
use std::sync::Arc;

use api::ObjectValidationError;
use connect::objects::{CONNECTOR, SINK, SOURCE};
use devices::alarm::{NODE_ALARM_RULES_KIND, NOTIFICATION_KIND as NOTIFICATION};
use devices::{PRODUCT_KIND as PRODUCT, Registry, chain, group, pull};
use engine::RULE_KIND as RULE;
use namespaces::{KIND as NAMESPACE, namespace_of};
use serde_json::Value;
use store::Objects;

use crate::config::Declaration;

/// Maximum number of referencing objects named in a message; of others only the number is given.
const MAX_NAMED_USERS: usize = 5;

/// A field of one kind of objects that contains names of objects of another kind.
struct ReferenceField {
    kind: &'static str,
    /// Path of field names separated by dots; `[]` stands for each item of a list.
    path: &'static str,
    target_kind: &'static str,
    /// A valid name without an object.
    built_in: Option<&'static str>,
    /// Whether the reference prevents removal. A filter that matches nothing any more is harmless.
    prevents_removal: bool,
}

impl ReferenceField {
    const fn new(of: &'static str, path: &'static str, names: &'static str) -> Self {
        Self {
            kind: of,
            path,
            target_kind: names,
            built_in: None,
            prevents_removal: true,
        }
    }

    /// The field with the namespace of an object.
    const fn namespace(of: &'static str) -> Self {
        Self {
            built_in: Some(namespaces::DEFAULT),
            ..Self::new(of, namespaces::FIELD, NAMESPACE)
        }
    }
}

const REFERENCE_FIELDS: [ReferenceField; 28] = [
    ReferenceField::new(SINK, "connector", CONNECTOR),
    ReferenceField::new(SOURCE, "connector", CONNECTOR),
    ReferenceField::new(RULE, "actions[].sink", SINK),
    ReferenceField::new(RULE, "actions[].fallback[].sink", SINK),
    ReferenceField {
        built_in: Some(chain::ROOT),
        ..ReferenceField::new(PRODUCT, "rule_chain", chain::KIND)
    },
    ReferenceField::new(PRODUCT, "storage.sinks[]", SINK),
    ReferenceField::new(PRODUCT, "storage.log_sinks[]", SINK),
    ReferenceField::new(PRODUCT, "alarms[].notify[]", NOTIFICATION),
    ReferenceField::new(chain::KIND, "nodes[].sink", SINK),
    ReferenceField::new(NOTIFICATION, "to.sink", SINK),
    ReferenceField::new(NOTIFICATION, "to.endpoint", relay::KIND),
    ReferenceField::new(relay::KIND, "product", PRODUCT),
    ReferenceField {
        built_in: Some(devices::alarm::NODE_PRODUCT),
        prevents_removal: false,
        ..ReferenceField::new(NOTIFICATION, "products[]", PRODUCT)
    },
    ReferenceField::new(group::KIND, "product", PRODUCT),
    ReferenceField::namespace(PRODUCT),
    ReferenceField::namespace(group::KIND),
    ReferenceField::namespace(NOTIFICATION),
    ReferenceField::namespace(api::API_KEY_KIND),
    ReferenceField::namespace(api::INVITE_KIND),
    ReferenceField::namespace(api::DASHBOARD_KIND),
    ReferenceField {
        path: "namespaces[].namespace",
        ..ReferenceField::namespace(api::OPERATOR_KIND)
    },
    ReferenceField::namespace(relay::KIND),
    ReferenceField::new(firmware::KIND, "product", PRODUCT),
    ReferenceField::new(firmware::ASSIGNMENT_KIND, "package", firmware::KIND),
    ReferenceField::new(firmware::ASSIGNMENT_KIND, "product", PRODUCT),
    ReferenceField::new(firmware::ASSIGNMENT_KIND, "group", group::KIND),
    ReferenceField::namespace(firmware::KIND),
    ReferenceField::namespace(firmware::ASSIGNMENT_KIND),
];

/// Kinds whose objects refer only to objects of their own namespace.
const NAMESPACED_KINDS: [&str; 6] = [
    PRODUCT,
    NOTIFICATION,
    group::KIND,
    relay::KIND,
    firmware::KIND,
    firmware::ASSIGNMENT_KIND,
];

/// Rules of node alarms name notifications, but are not objects with an id.
const NODE_ALARM_REFERENCE: ReferenceField =
    ReferenceField::new(NODE_ALARM_RULES_KIND, "rules[].notify[]", NOTIFICATION);

fn reference_fields() -> impl Iterator<Item = &'static ReferenceField> {
    REFERENCE_FIELDS
        .iter()
        .chain(std::iter::once(&NODE_ALARM_REFERENCE))
}

/// Name of a kind in a sentence.
fn kind_name(kind: &str) -> &str {
    match kind {
        chain::KIND => "rule chain",
        group::KIND => "device group",
        pull::KIND => "pull source",
        relay::KIND => "relay endpoint",
        firmware::KIND => "firmware package",
        firmware::ASSIGNMENT_KIND => "firmware assignment",
        auth::objects::ACL_RULE => "ACL rule",
        api::API_KEY_KIND => "API key",
        other => other,
    }
}

fn is_built_in(kind: &str, name: &str) -> bool {
    let mut of_kind = reference_fields().filter(|naming| naming.target_kind == kind);
    of_kind.any(|naming| naming.built_in == Some(name))
}

/// Calls `found` with the place and the name of every reference at a path.
fn collect_names<'v>(
    value: &'v Value,
    path: &str,
    place: &str,
    found: &mut dyn FnMut(String, &'v str),
) {
    if path.is_empty() {
        if let Some(name) = value.as_str() {
            found(place.to_owned(), name);
        }
        return;
    }
    if let Some(rest) = path.strip_prefix("[]") {
        for (at, item) in value.as_array().into_iter().flatten().enumerate() {
            collect_names(item, rest, &format!("{place}[{at}]"), found);
        }
        return;
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (step, rest) = path.split_at(end);
    let place = match place {
        "" => step.to_owned(),
        place => format!("{place}.{step}"),
    };
    if let Some(value) = value.get(step) {
        collect_names(value, rest, &place, found);
    }
}

/// The references of stored and declared objects.
#[derive(Clone)]
pub(super) struct ObjectReferences {
    objects: Objects,
    registry: Registry,
    declared: Arc<[Declaration]>,
    declared_names: Arc<HashSet<(&'static str, String)>>,
}

impl ObjectReferences {
    pub(super) fn new(objects: Objects, registry: Registry, declared: Vec<Declaration>) -> Self {
        let names = declared
            .iter()
            .map(|object| (object.kind, object.id.clone()));
        Self {
            objects,
            registry,
            declared_names: Arc::new(names.collect()),
            declared: declared.into(),
        }
    }

    /// Whether an object is declared.
    pub(super) fn is_declared(&self, kind: &'static str, name: &str) -> bool {
        self.declared_names.contains(&(kind, name.to_owned()))
    }

    /// All declared objects of a kind.
    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Declaration> {
        self.declared
            .iter()
            .filter(move |object| object.kind == kind)
    }

    /// All declared objects of a kind, as names and values.
    pub(super) fn all_declared(&self, kind: &str) -> Vec<(String, Value)> {
        let declared = self.of_kind(kind);
        declared
            .map(|object| (object.id.clone(), object.value.clone()))
            .collect()
    }

    /// Whether an object exists, and belongs to the given namespace.
    fn object_exists(
        &self,
        kind: &'static str,
        name: &str,
        namespace: Option<&str>,
    ) -> Result<bool, store::StoreError> {
        let fits = |value: &Value| namespace.is_none_or(|wanted| namespace_of(value) == wanted);
        if self.is_declared(kind, name) {
            let mut declared = self.of_kind(kind);
            return Ok(declared.any(|object| object.id == name && fits(&object.value)));
        }
        // No object has such a name, and the store would report it differently.
        if name.is_empty() || name.contains('\0') {
            return Ok(false);
        }
        let object = self.objects.get(kind, name)?;
        Ok(object.is_some_and(|object| fits(&object.value)))
    }

    /// The first reference of an object that is missing: field, kind and name.
    fn first_missing_reference(
        &self,
        kind: &str,
        value: &Value,
    ) -> Result<Option<(String, &'static str, String)>, store::StoreError> {
        let is_namespaced = |kind: &str| NAMESPACED_KINDS.contains(&kind);
        for naming in reference_fields().filter(|naming| naming.kind == kind) {
            let namespace = (is_namespaced(kind) && is_namespaced(naming.target_kind))
                .then(|| namespace_of(value));
            let mut named = Vec::new();
            collect_names(value, naming.path, "", &mut |place, name| {
                named.push((place, name));
            });
            for (place, name) in named {
                let target = naming.target_kind;
                if naming.built_in != Some(name) && !self.object_exists(target, name, namespace)? {
                    return Ok(Some((place, naming.target_kind, name.to_owned())));
                }
            }
        }
        Ok(None)
    }

    /// Checks that all referenced objects exist.
    pub(super) fn check_references_exist(
        &self,
        kind: &str,
        value: &Value,
    ) -> Result<(), ObjectValidationError> {
        let missing =
            self.first_missing_reference(kind, value)
                .map_err(|error| ObjectValidationError {
                    field: String::new(),
                    detail: format!("The references of the object cannot be checked: {error}."),
                })?;
        match missing {
            None => Ok(()),
            Some((field, kind, name)) => Err(ObjectValidationError {
                field,
                detail: format!(
                    "there is no {} {name:?}{}; create it first, or name another.",
                    kind_name(kind),
                    match namespace_of(value) {
                        namespace
                            if namespace != namespaces::DEFAULT
                                && NAMESPACED_KINDS.contains(&kind) =>
                            format!(" in the namespace {namespace:?}"),
                        _ => String::new(),
                    },
                ),
            }),
        }
    }

    /// Checks that nothing refers to an object; the error names the referencing objects.
    pub(super) fn check_unreferenced(&self, kind: &'static str, name: &str) -> Result<(), String> {
        // A stored object hidden by a declared one is unused; the declared one stays.
        if self.is_declared(kind, name) || is_built_in(kind, name) {
            return Ok(());
        }
        let users = self.referencing_objects(kind, name);
        let (mut users, more) = users.map_err(|error| format!("{error}."))?;
        if kind == PRODUCT {
            match self.registry.count_of(name) {
                Ok(0) => {}
                Ok(1) => users.insert(0, "1 device".to_owned()),
                Ok(count) => users.insert(0, format!("{count} devices")),
                Err(error) => return Err(format!("{error}.")),
            }
        }
        if more > 0 {
            users.push(format!("{more} more"));
        }
        let users = match users.split_last() {
            None => return Ok(()),
            Some((only, [])) => only.clone(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
        };
        let kind = kind_name(kind);
        Err(format!(
            "The {kind} {name:?} is used by {users}; delete or change these first."
        ))
    }

    /// The objects that refer to an object, with the place, and the number of further ones.
    fn referencing_objects(
        &self,
        kind: &str,
        name: &str,
    ) -> Result<(Vec<String>, usize), store::StoreError> {
        let (mut named, mut more) = (Vec::new(), 0);
        let mut namings: Vec<_> = reference_fields()
            .filter(|naming| naming.target_kind == kind && naming.prevents_removal)
            .collect();
        namings.dedup_by_key(|naming| naming.kind);
        for naming in namings {
            self.for_each_object(naming.kind, &mut |user, value| {
                let Some(place) = reference_path(naming.kind, value, kind, name) else {
                    return;
                };
                if named.len() == MAX_NAMED_USERS {
                    more += 1;
                    return;
                }
                named.push(match naming.kind {
                    NODE_ALARM_RULES_KIND => format!("the rules of the node alarms ({place})"),
                    of => format!("the {} {user:?} ({place})", kind_name(of)),
                });
            })?;
        }
        Ok((named, more))
    }

    /// Calls a function for all effective objects of a kind: declared ones, and stored ones that
    /// are not hidden.
    fn for_each_object(
        &self,
        kind: &'static str,
        each: &mut dyn FnMut(&str, &Value),
    ) -> Result<(), store::StoreError> {
        for object in self.of_kind(kind) {
            each(&object.id, &object.value);
        }
        self.objects.for_each(kind, |object| {
            if !self.is_declared(kind, &object.id) {
                each(&object.id, &object.value);
            }
        })
    }

    /// Warns about missing references of declared objects. The missing objects may be created
    /// later.
    pub(super) fn warn_of_missing_references(&self) -> Result<(), store::StoreError> {
        for object in self.declared.iter() {
            let missing = self.first_missing_reference(object.kind, &object.value)?;
            if let Some((field, missing_kind, missing)) = missing {
                tracing::warn!(
                    "the declared {} {:?} refers in {field} to the {} {missing:?}, which does not exist; \
                     declare it as well, or create it over the API",
                    kind_name(object.kind),
                    object.id,
                    kind_name(missing_kind),
                );
            }
        }
        Ok(())
    }

    /// Warns about stored objects with the id of a declared one, now and whenever a backup restores
    /// one.
    pub(super) fn warn_of_collisions(&self) -> Result<(), store::StoreError> {
        for object in self.declared.iter() {
            if self.objects.get(object.kind, &object.id)?.is_some() {
                warn_of_collision(object);
            }
        }
        let declared = self.declared.clone();
        let objects = self.objects.clone();
        self.objects.observe_changes(Box::new(move |change| {
            let mut declared = declared.iter();
            let collides = declared.find(|o| o.kind == change.kind && o.id == change.id);
            if let Some(object) = collides
                && matches!(objects.get(object.kind, &object.id), Ok(Some(_)))
            {
                warn_of_collision(object);
            }
        }));
        Ok(())
    }
}

fn warn_of_collision(object: &Declaration) {
    let (kind, id) = (kind_name(object.kind), object.id.as_str());
    let declared_at = object.origin.place();
    tracing::warn!(
        kind,
        id,
        declared_at,
        "a stored object has the id of a declared one; the stored one has no effect until the \
         configuration no longer declares it"
    );
}

/// The first place at which an object refers to another one.
fn reference_path(of: &str, value: &Value, kind: &str, name: &str) -> Option<String> {
    let mut first = None;
    for naming in
        reference_fields().filter(|naming| naming.kind == of && naming.target_kind == kind)
    {
        collect_names(value, naming.path, "", &mut |place, found| {
            if found == name && first.is_none() {
                first = Some(place);
            }
        });
    }
    first
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_found_at_their_places() {
        let found = |value: Value, path: &str| {
            let mut all = Vec::new();
            collect_names(&value, path, "", &mut |place, name| {
                all.push(format!("{place}={name}"));
            });
            all.join(" ")
        };
        let rule = json!({"actions": [
            {"kind": "console"},
            {"sink": "a", "fallback": [{"sink": "b"}, {"kind": "console"}]},
        ]});
        assert_eq!(found(rule.clone(), "actions[].sink"), "actions[1].sink=a");
        assert_eq!(
            found(rule, "actions[].fallback[].sink"),
            "actions[1].fallback[0].sink=b"
        );
        let product = json!({"rule_chain": null, "storage": {"sinks": ["a", 1, "b"]}});
        assert_eq!(
            found(product.clone(), "storage.sinks[]"),
            "storage.sinks[0]=a storage.sinks[2]=b"
        );
        assert_eq!(found(product.clone(), "rule_chain"), "");
        assert_eq!(found(product, "storage.sinks.x[]"), "");
    }
}
