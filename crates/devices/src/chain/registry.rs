//! The chain registry of a node: compiles the stored chains and follows their changes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;
use store::Objects;

use super::compiled_chain::Chain;
use super::definition::{ChainDefinition, ChainDefinitionError};

/// The kind of the configuration objects that define chains.
pub const KIND: &str = "rule_chain";
/// Name of the chain of all products that do not name one.
pub const ROOT: &str = "root";
/// Maximum number of chains of a node.
pub const MAX_CHAINS: usize = 1000;

/// Chains by name. Clones share one registry.
#[derive(Clone)]
pub struct Chains {
    inner: Arc<ChainsInner>,
}

struct ChainsInner {
    named: RwLock<HashMap<Box<str>, Arc<Chain>>>,
    /// Chains declared in the configuration file; stored chains with the same names are ignored.
    declared: RwLock<HashSet<Box<str>>>,
    built_in: Arc<Chain>,
}

impl Default for Chains {
    /// Contains only the built-in root chain.
    fn default() -> Self {
        Self {
            inner: Arc::new(ChainsInner {
                named: RwLock::default(),
                declared: RwLock::default(),
                built_in: Arc::new(Chain::root()),
            }),
        }
    }
}

impl Chains {
    /// Loads the stored chains and follows their changes. Observers registered with the store after this call find
    /// the new chain here.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn open(objects: &Objects) -> Result<Self, store::StoreError> {
        let chains = Self::default();
        let (weak, stored) = (Arc::downgrade(&chains.inner), objects.downgrade());
        objects.observe_changes(Box::new(move |change| {
            if change.kind != KIND {
                return;
            }
            let (Some(inner), Some(stored)) = (weak.upgrade(), stored.upgrade()) else {
                return;
            };
            match stored.get(KIND, &change.id) {
                Ok(object) => inner.apply_change(&change.id, object.map(|object| object.value).as_ref()),
                Err(error) => {
                    tracing::error!(id = change.id, %error, "reading a changed rule chain failed; the previous version remains in use");
                }
            }
        }));
        objects.for_each(KIND, |object| {
            chains.inner.apply_change(&object.id, Some(&object.value));
        })?;
        Ok(chains)
    }

    /// Adds a chain declared in the configuration file; a stored chain with the same name is ignored.
    ///
    /// # Errors
    /// Returns the invalid field.
    pub fn declare(&self, id: &str, written: &Value) -> Result<(), ChainDefinitionError> {
        let (_, chain) = ChainDefinition::read(written)?;
        let mut declared = self
            .inner
            .declared
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        declared.insert(id.into());
        let mut named = self
            .inner
            .named
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        named.insert(id.into(), Arc::new(chain));
        Ok(())
    }

    /// Returns the chain of this name, or the root chain without a name or if the chain does not exist.
    #[must_use]
    pub fn chain_or_root(&self, name: Option<&str>) -> Arc<Chain> {
        let named = self.inner.named.read();
        let named = named.unwrap_or_else(PoisonError::into_inner);
        let found = named.get(name.unwrap_or(ROOT));
        if found.is_none()
            && let Some(name) = name.filter(|name| *name != ROOT)
        {
            tracing::warn!(
                name,
                "a product refers to a missing rule chain; the root chain is used"
            );
        }
        found
            .or_else(|| named.get(ROOT))
            .unwrap_or(&self.inner.built_in)
            .clone()
    }

    /// Whether a chain of this name exists.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        let named = self.inner.named.read();
        name == ROOT
            || named
                .unwrap_or_else(PoisonError::into_inner)
                .contains_key(name)
    }

    /// Names of all sinks that nodes refer to.
    #[must_use]
    pub fn sinks(&self) -> Vec<Box<str>> {
        let named = self.inner.named.read();
        let named = named.unwrap_or_else(PoisonError::into_inner);
        let sinks = named.values().flat_map(|chain| chain.sinks());
        sinks.map(Into::into).collect()
    }
}

impl ChainsInner {
    /// Applies a written or, with `None`, removed chain.
    fn apply_change(&self, id: &str, written: Option<&Value>) {
        let declared = self.declared.read();
        if (declared.unwrap_or_else(PoisonError::into_inner)).contains(id) {
            return;
        }
        let chain = match written.map(ChainDefinition::read) {
            None => None,
            Some(Ok((_, chain))) => Some(Arc::new(chain)),
            Some(Err(error)) => {
                tracing::error!(id, %error, "a stored rule chain is invalid; the previous version remains in use");
                return;
            }
        };
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        match chain {
            None => drop(named.remove(id)),
            Some(chain) => drop(named.insert(id.into(), chain)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use store::ExpectedVersion;

    use super::*;

    #[test]
    fn chains_follow_the_store_and_the_root_can_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) =
            store::Store::open(directory.path(), store::StoreConfig::default()).unwrap();
        let objects = store.objects();
        let chain = json!({"nodes": [{"id": "s", "type": "save_telemetry"}]});
        objects
            .put(KIND, "one", chain.clone(), ExpectedVersion::Absent)
            .unwrap();
        let chains = Chains::open(objects).unwrap();
        assert!(chains.contains("one") && chains.contains(ROOT) && !chains.contains("two"));
        assert!(
            chains.chain_or_root(None).only_saves()
                && chains.chain_or_root(Some("two")).only_saves()
        );
        assert!(!chains.chain_or_root(Some("one")).only_saves());

        objects
            .put(KIND, ROOT, chain, ExpectedVersion::Absent)
            .unwrap();
        assert!(
            !chains.chain_or_root(None).only_saves()
                && !chains.chain_or_root(Some("two")).only_saves()
        );
        objects.delete(KIND, ROOT, ExpectedVersion::Any).unwrap();
        assert!(chains.chain_or_root(None).only_saves());
    }

    #[test]
    fn chain_errors_name_the_field() {
        let save = json!({"id": "s", "type": "save_telemetry"});
        let field = |chain: Value| ChainDefinition::read(&chain).err().unwrap().field;
        let node = |node: Value| field(json!({"nodes": [save, node]}));
        assert_eq!(field(json!({"nodes": []})), "nodes");
        assert_eq!(field(json!({"nodes": [save], "first": "x"})), "first");
        assert_eq!(
            node(json!({"id": "r", "type": "republish", "topic": "a/#"})),
            "nodes[1].topic"
        );
        assert_eq!(
            node(json!({"id": "f", "type": "filter", "condition": "a >"})),
            "nodes[1].condition"
        );
        assert_eq!(
            node(json!({"id": "a", "type": "alarm", "qos": 1})),
            "nodes[1].qos"
        );
        assert_eq!(node(json!({"id": "", "type": "alarm"})), "nodes[1].id");
        assert_eq!(node(json!({"id": "a", "type": "no"})), "nodes[1]");
        let relation = |relation: Value| field(json!({"nodes": [save], "relations": [relation]}));
        assert_eq!(relation(json!({"from": "s", "to": "x"})), "relations[0].to");
        assert_eq!(
            relation(json!({"from": "x", "to": "s"})),
            "relations[0].from"
        );
        assert_eq!(
            relation(json!({"from": "s", "to": "s", "on": "true"})),
            "relations[0].on"
        );
        assert_eq!(relation(json!({"from": "s", "to": "s"})), "nodes");
    }
}
