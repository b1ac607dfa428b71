//! Which configuration objects name which others: one table, by which nothing is written that names what is not there, and
//! nothing is removed that others name.

use std::collections::HashSet;
use std::sync::Arc;

use api::Invalid;
use connect::objects::{CONNECTOR, SINK, SOURCE};
use devices::alarm::NOTIFICATION_KIND as NOTIFICATION;
use devices::{PRODUCT_KIND as PRODUCT, Registry, chain, group, pull};
use engine::KIND as RULE;
use serde_json::Value;
use store::Objects;

use super::alarms::PLATFORM_KIND;
use crate::config::Declaration;

const PAGE: usize = 1000;
/// Those who name an object that are told by name; of others the number.
const MAX_TOLD: usize = 5;

/// A field of objects of one kind that holds names of objects of another.
struct Naming {
    of: &'static str,
    /// Steps with dots between them; `[]` stands for each item of a list.
    path: &'static str,
    names: &'static str,
    /// What is there without being an object.
    built_in: Option<&'static str>,
    /// Whether what is named has to stay. A filter that fits nothing any more does no harm.
    holds: bool,
}

impl Naming {
    const fn new(of: &'static str, path: &'static str, names: &'static str) -> Self {
        Self {
            of,
            path,
            names,
            built_in: None,
            holds: true,
        }
    }
}

const NAMINGS: [Naming; 12] = [
    Naming::new(SINK, "connector", CONNECTOR),
    Naming::new(SOURCE, "connector", CONNECTOR),
    Naming::new(RULE, "actions[].sink", SINK),
    Naming::new(RULE, "actions[].fallback[].sink", SINK),
    Naming {
        built_in: Some(chain::ROOT),
        ..Naming::new(PRODUCT, "chain", chain::KIND)
    },
    Naming::new(PRODUCT, "storage.sinks[]", SINK),
    Naming::new(PRODUCT, "storage.log_sinks[]", SINK),
    Naming::new(PRODUCT, "alarms[].notify[]", NOTIFICATION),
    Naming::new(chain::KIND, "nodes[].sink", SINK),
    Naming::new(NOTIFICATION, "to.sink", SINK),
    Naming {
        built_in: Some(devices::alarm::NODE_PRODUCT),
        holds: false,
        ..Naming::new(NOTIFICATION, "products[]", PRODUCT)
    },
    Naming::new(group::KIND, "product", PRODUCT),
];

/// The node's own alarms name notifications, but are no objects with an id.
const OF_PLATFORM: Naming = Naming::new(PLATFORM_KIND, "rules[].notify[]", NOTIFICATION);

fn namings() -> impl Iterator<Item = &'static Naming> {
    NAMINGS.iter().chain(std::iter::once(&OF_PLATFORM))
}

/// A kind in a sentence.
fn noun(kind: &str) -> &str {
    match kind {
        chain::KIND => "rule chain",
        group::KIND => "group of devices",
        pull::KIND => "pull source",
        auth::objects::ACL_RULE => "ACL rule",
        other => other,
    }
}

fn is_built_in(kind: &str, name: &str) -> bool {
    let mut of_kind = namings().filter(|naming| naming.names == kind);
    of_kind.any(|naming| naming.built_in == Some(name))
}

/// Calls `found` with the place and the name of everything that stands at a path.
fn names_at<'v>(value: &'v Value, path: &str, place: &str, found: &mut dyn FnMut(String, &'v str)) {
    if path.is_empty() {
        if let Some(name) = value.as_str() {
            found(place.to_owned(), name);
        }
        return;
    }
    if let Some(rest) = path.strip_prefix("[]") {
        for (at, item) in value.as_array().into_iter().flatten().enumerate() {
            names_at(item, rest, &format!("{place}[{at}]"), found);
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
        names_at(value, rest, &place, found);
    }
}

/// Who names whom, of the objects of the store and of those of the configuration.
#[derive(Clone)]
pub(super) struct Uses {
    objects: Objects,
    registry: Registry,
    declared: Arc<[Declaration]>,
    declared_names: Arc<HashSet<(&'static str, String)>>,
}

impl Uses {
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

    /// Whether an object stands in the configuration.
    pub(super) fn is_declared(&self, kind: &'static str, name: &str) -> bool {
        self.declared_names.contains(&(kind, name.to_owned()))
    }

    /// What the configuration says of an object.
    pub(super) fn declared(&self, kind: &str, name: &str) -> Option<&Value> {
        let found = self.of_kind(kind).find(|object| object.id == name)?;
        Some(&found.value)
    }

    /// All objects of a kind that the configuration declares.
    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Declaration> {
        self.declared
            .iter()
            .filter(move |object| object.kind == kind)
    }

    /// The same, as names and values.
    pub(super) fn all_declared(&self, kind: &str) -> Vec<(String, Value)> {
        let declared = self.of_kind(kind);
        declared
            .map(|object| (object.id.clone(), object.value.clone()))
            .collect()
    }

    fn has(&self, kind: &'static str, name: &str) -> Result<bool, store::Error> {
        if self.is_declared(kind, name) {
            return Ok(true);
        }
        // No object has such a name, and the store would say so in other words.
        if name.is_empty() || name.contains('\0') {
            return Ok(false);
        }
        Ok(self.objects.get(kind, name)?.is_some())
    }

    /// The first that an object names and that is not there: its field, its kind, its name.
    fn missing(
        &self,
        kind: &str,
        value: &Value,
    ) -> Result<Option<(String, &'static str, String)>, store::Error> {
        for naming in namings().filter(|naming| naming.of == kind) {
            let mut named = Vec::new();
            names_at(value, naming.path, "", &mut |place, name| {
                named.push((place, name));
            });
            for (place, name) in named {
                if naming.built_in != Some(name) && !self.has(naming.names, name)? {
                    return Ok(Some((place, naming.names, name.to_owned())));
                }
            }
        }
        Ok(None)
    }

    /// Whether everything is there that an object names.
    pub(super) fn check_named(&self, kind: &str, value: &Value) -> Result<(), Invalid> {
        let missing = self.missing(kind, value).map_err(|error| Invalid {
            field: String::new(),
            detail: format!("It cannot be seen whether what it names is there: {error}."),
        })?;
        match missing {
            None => Ok(()),
            Some((field, kind, name)) => Err(Invalid {
                field,
                detail: format!(
                    "there is no {} {name:?}; make it first, or name another.",
                    noun(kind)
                ),
            }),
        }
    }

    /// Whether an object may go: nobody names it. Or who does.
    pub(super) fn check_unused(&self, kind: &'static str, name: &str) -> Result<(), String> {
        // What is in the store under this name was never used, and what others name stays.
        if self.is_declared(kind, name) || is_built_in(kind, name) {
            return Ok(());
        }
        let users = self.users(kind, name);
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
        let kind = noun(kind);
        Err(format!(
            "The {kind} {name:?} is used by {users}; delete these or have them name another {kind} first."
        ))
    }

    /// Who names an object, with the place, and how many more do.
    fn users(&self, kind: &str, name: &str) -> Result<(Vec<String>, usize), store::Error> {
        let (mut told, mut more) = (Vec::new(), 0);
        let mut namings: Vec<_> = namings()
            .filter(|naming| naming.names == kind && naming.holds)
            .collect();
        namings.dedup_by_key(|naming| naming.of);
        for naming in namings {
            self.each(naming.of, &mut |user, value| {
                let Some(place) = place_of(naming.of, value, kind, name) else {
                    return;
                };
                if told.len() == MAX_TOLD {
                    more += 1;
                    return;
                }
                told.push(match naming.of {
                    PLATFORM_KIND => format!("the rules of the node's own alarms ({place})"),
                    of => format!("the {} {user:?} ({place})", noun(of)),
                });
            })?;
        }
        Ok((told, more))
    }

    /// All objects of a kind: those of the configuration and those of the store that count.
    fn each(
        &self,
        kind: &'static str,
        each: &mut dyn FnMut(&str, &Value),
    ) -> Result<(), store::Error> {
        for object in self.of_kind(kind) {
            each(&object.id, &object.value);
        }
        let mut after: Option<String> = None;
        loop {
            let page = self.objects.list(kind, after.as_deref(), PAGE)?;
            for object in &page {
                if !self.is_declared(kind, &object.id) {
                    each(&object.id, &object.value);
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.id.clone()),
                _ => return Ok(()),
            }
        }
    }

    /// Tells what the configuration names and nobody has. It may still be made.
    pub(super) fn warn_of_missing(&self) -> Result<(), store::Error> {
        for object in self.declared.iter() {
            let missing = self.missing(object.kind, &object.value)?;
            if let Some((field, missing_kind, missing)) = missing {
                tracing::warn!(
                    "the {} {:?} of the configuration names in {field} the {} {missing:?}, which is not there; \
                     declare it, too, or make it",
                    noun(object.kind),
                    object.id,
                    noun(missing_kind),
                );
            }
        }
        Ok(())
    }

    /// Warns of stored objects that have the id of a declared one, and from now on of each that a restored backup brings.
    pub(super) fn warn_of_collisions(&self) -> Result<(), store::Error> {
        for object in self.declared.iter() {
            if self.objects.get(object.kind, &object.id)?.is_some() {
                warn_of_collision(object);
            }
        }
        let declared = self.declared.clone();
        let objects = self.objects.clone();
        self.objects.on_change(Box::new(move |change| {
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
    let (kind, id) = (noun(object.kind), object.id.as_str());
    let declared_at = object.origin.place();
    tracing::warn!(
        kind,
        id,
        declared_at,
        "a stored object has the id of one that the configuration declares; the stored one has no effect until the \
         configuration no longer declares it"
    );
}

/// The first place at which an object names another one.
fn place_of(of: &str, value: &Value, kind: &str, name: &str) -> Option<String> {
    let mut first = None;
    for naming in namings().filter(|naming| naming.of == of && naming.names == kind) {
        names_at(value, naming.path, "", &mut |place, found| {
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
            names_at(&value, path, "", &mut |place, name| {
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
        let product = json!({"chain": null, "storage": {"sinks": ["a", 1, "b"]}});
        assert_eq!(
            found(product.clone(), "storage.sinks[]"),
            "storage.sinks[0]=a storage.sinks[2]=b"
        );
        assert_eq!(found(product.clone(), "chain"), "");
        assert_eq!(found(product, "storage.sinks.x[]"), "");
    }
}
