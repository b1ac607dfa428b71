//! All namespaces of a node with their limits, for readers on any thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use serde_json::Value;
use store::{ExpectedVersion, ObjectError, Objects, StoreError};

use crate::definition::{NamespaceDefinition, NamespaceState};
use crate::quota::Quotas;
use crate::usage::NamespaceUsage;
use crate::{DEFAULT, KIND};

/// State and limits of one namespace. Immutable: a change of the namespace replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceLimits {
    pub id: Box<str>,
    /// Why it is disabled; `None`: it is active.
    pub disabled_reason: Option<Box<str>>,
    pub quotas: Quotas,
}

impl NamespaceLimits {
    fn new(id: &str, definition: NamespaceDefinition) -> Self {
        let is_disabled = definition.state == NamespaceState::Disabled;
        Self {
            id: id.into(),
            disabled_reason: is_disabled.then(|| definition.reason.into()),
            quotas: definition.quotas,
        }
    }

    #[must_use]
    pub fn is_active(&self) -> bool {
        self.disabled_reason.is_none()
    }
}

type NamespaceTable = HashMap<Box<str>, Arc<NamespaceLimits>, RandomState>;
type NamespaceObserver = Box<dyn Fn(&str) + Send + Sync>;

/// A weak reference to [`Namespaces`], for their observers.
#[derive(Clone)]
pub struct WeakNamespaces(Weak<NamespacesInner>);

impl WeakNamespaces {
    /// `None`: the node has stopped.
    #[must_use]
    pub fn upgrade(&self) -> Option<Namespaces> {
        let inner = self.0.upgrade()?;
        Some(Namespaces { inner })
    }
}

/// The namespaces of a node. Reading takes no lock. Clones share the same table.
#[derive(Clone)]
pub struct Namespaces {
    inner: Arc<NamespacesInner>,
}

struct NamespacesInner {
    current: ArcSwap<NamespaceTable>,
    /// Outlives changes of a namespace; that of a deleted one is kept for a new one with its id.
    usages: Mutex<HashMap<Box<str>, Arc<NamespaceUsage>, RandomState>>,
    /// Serialises changes of the table.
    changing: Mutex<()>,
    /// Namespaces that the configuration declares; a stored namespace with the same id is ignored.
    declared: NamespaceTable,
    observers: RwLock<Vec<NamespaceObserver>>,
}

impl Namespaces {
    /// Reads the stored namespaces and follows their changes. Declared ones take precedence; they are valid.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn open(objects: &Objects, declared: &[(String, Value)]) -> Result<Self, StoreError> {
        let declared = declared.iter().filter_map(|(id, value)| {
            let limits = read(id, value)?;
            Some((limits.id.clone(), Arc::new(limits)))
        });
        let this = Self {
            inner: Arc::new(NamespacesInner {
                current: ArcSwap::default(),
                usages: Mutex::default(),
                changing: Mutex::default(),
                declared: declared.collect(),
                observers: RwLock::default(),
            }),
        };
        this.inner.load(objects)?;
        let (weak, stored) = (Arc::downgrade(&this.inner), objects.downgrade());
        objects.observe_changes(Box::new(move |change| {
            if change.kind != KIND {
                return;
            }
            let (Some(inner), Some(stored)) = (weak.upgrade(), stored.upgrade()) else {
                return;
            };
            match stored.get(KIND, &change.id) {
                Ok(object) => inner.apply(&change.id, object.map(|object| object.value)),
                Err(error) => {
                    tracing::error!(id = change.id, %error, "reading a changed namespace failed; the previous version remains in use");
                }
            }
        }));
        Ok(this)
    }

    #[must_use]
    pub fn downgrade(&self) -> WeakNamespaces {
        WeakNamespaces(Arc::downgrade(&self.inner))
    }

    /// `None`: there is no such namespace.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Arc<NamespaceLimits>> {
        self.inner.current.load().get(id).cloned()
    }

    /// The current usage of a namespace. Called once for each connection. `None`: there is no such namespace.
    #[must_use]
    pub fn usage(&self, id: &str) -> Option<Arc<NamespaceUsage>> {
        let usages = self.inner.usages.lock();
        let mut usages = usages.unwrap_or_else(PoisonError::into_inner);
        let limits = self.get(id)?;
        let create = || Arc::new(NamespaceUsage::new(&limits.quotas));
        Some(match usages.get(id) {
            Some(usage) => usage.clone(),
            None => usages.entry(id.into()).or_insert_with(create).clone(),
        })
    }

    /// All namespaces, in any order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<NamespaceLimits>> {
        self.inner.current.load().values().cloned().collect()
    }

    /// Whether the namespace exists and is not disabled.
    #[must_use]
    pub fn is_active(&self, id: &str) -> bool {
        let table = self.inner.current.load();
        table.get(id).is_some_and(|limits| limits.is_active())
    }

    /// Registers an observer that is called with the id of each namespace that was created, changed or deleted.
    pub fn observe(&self, observer: impl Fn(&str) + Send + Sync + 'static) {
        let observers = self.inner.observers.write();
        let mut observers = observers.unwrap_or_else(PoisonError::into_inner);
        observers.push(Box::new(observer));
    }
}

impl NamespacesInner {
    fn load(&self, objects: &Objects) -> Result<(), StoreError> {
        let mut table = NamespaceTable::default();
        table.insert(DEFAULT.into(), Arc::new(implicit_default()));
        objects.for_each(KIND, |object| {
            if let Some(limits) = read(&object.id, &object.value) {
                table.insert(limits.id.clone(), Arc::new(limits));
            }
        })?;
        table.extend(
            self.declared
                .iter()
                .map(|(id, limits)| (id.clone(), limits.clone())),
        );
        self.current.store(Arc::new(table));
        Ok(())
    }

    /// Applies a written or, with `None`, deleted namespace.
    fn apply(&self, id: &str, written: Option<Value>) {
        if self.declared.contains_key(id) {
            return;
        }
        {
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let mut table = NamespaceTable::clone(&self.current.load());
            match written {
                None if id == DEFAULT => {
                    drop(table.insert(id.into(), Arc::new(implicit_default())))
                }
                None => drop(table.remove(id)),
                Some(value) => match read(id, &value) {
                    Some(limits) => drop(table.insert(id.into(), Arc::new(limits))),
                    None => return,
                },
            }
            let limits = table.get(id).cloned();
            self.current.store(Arc::new(table));
            // Later, because a usage that is created meanwhile has the limits of the table.
            let usages = self.usages.lock();
            let usages = usages.unwrap_or_else(PoisonError::into_inner);
            if let (Some(usage), Some(limits)) = (usages.get(id), limits) {
                usage.set_limits(&limits.quotas);
            }
        }
        let observers = self.observers.read();
        let observers = observers.unwrap_or_else(PoisonError::into_inner);
        observers.iter().for_each(|observer| observer(id));
    }
}

/// The default namespace if there is no object: a backup of an earlier version contains none.
fn implicit_default() -> NamespaceLimits {
    NamespaceLimits {
        id: DEFAULT.into(),
        disabled_reason: None,
        quotas: Quotas::unlimited(),
    }
}

fn read(id: &str, value: &Value) -> Option<NamespaceLimits> {
    match NamespaceDefinition::read(id, value) {
        Ok(definition) => Some(NamespaceLimits::new(id, definition)),
        Err(error) => {
            tracing::error!(id, %error, "a namespace is invalid; ignored");
            None
        }
    }
}

/// Stores the default namespace, without limits, if there is none. Blocks.
///
/// # Errors
/// Fails if the store cannot be read or written.
pub fn ensure_default_namespace(objects: &Objects) -> Result<(), ObjectError> {
    if objects.get(KIND, DEFAULT)?.is_some() {
        return Ok(());
    }
    let definition = NamespaceDefinition {
        description: "Everything that belongs to no other namespace".to_owned(),
        quotas: Quotas::unlimited(),
        ..NamespaceDefinition::default()
    };
    let value = serde_json::to_value(definition).expect("its fields are plain");
    objects.put(KIND, DEFAULT, value, ExpectedVersion::Absent)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn readers_see_stored_and_declared_namespaces_and_their_changes() {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, _) = store::Store::open(directory.path(), store::StoreConfig::default())
            .expect("a new store");
        let objects = store.objects();
        let declared = [("file".to_owned(), json!({"quotas": {"devices": 3}}))];
        let namespaces = Namespaces::open(objects, &declared).expect("opened");
        let devices = |id: &str| namespaces.get(id).map(|limits| limits.quotas.devices);
        assert_eq!(devices(DEFAULT), Some(None), "exists without an object");
        assert_eq!(devices("file"), Some(Some(3)));
        assert_eq!(devices("acme"), None);

        let seen = Arc::<Mutex<Vec<String>>>::default();
        let notified = seen.clone();
        namespaces.observe(move |id| notified.lock().expect("a lock").push(id.to_owned()));
        let put = |id: &str, value: Value| {
            let put = objects.put(KIND, id, value, ExpectedVersion::Any);
            put.expect("stored");
        };
        put("acme", json!({"quotas": {"devices": 7}}));
        put("file", json!({"quotas": {"devices": 9}}));
        assert_eq!(devices("acme"), Some(Some(7)));
        assert_eq!(devices("file"), Some(Some(3)), "the declared one counts");
        put("acme", json!({"state": "disabled", "reason": "unpaid"}));
        assert!(!namespaces.is_active("acme") && namespaces.is_active(DEFAULT));
        objects
            .delete(KIND, "acme", ExpectedVersion::Any)
            .expect("deleted");
        assert!(namespaces.get("acme").is_none());
        assert_eq!(*seen.lock().expect("a lock"), ["acme", "acme", "acme"]);
        ensure_default_namespace(objects).expect("stored");
        ensure_default_namespace(objects).expect("present");
    }
}
