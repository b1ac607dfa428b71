//! The registry's view of namespaces: which are disabled, and how many devices and products a namespace may have.

use std::sync::Arc;

use namespaces::{NamespaceUsage, Namespaces, Quota};

use super::{Registry, RegistryError, RegistryInner};

impl Registry {
    /// Applies the limits of namespaces from now on, and rejects devices of disabled ones. Called once.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        let weak = Arc::downgrade(&self.inner);
        namespaces.observe(move |id| {
            if let Some(inner) = weak.upgrade() {
                inner.refresh_namespace(Some(id));
            }
        });
        // Set once at start.
        let _ = self.inner.namespaces.set(namespaces);
        self.inner.refresh_namespace(None);
    }

    /// The number of devices of a namespace.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn count_in_namespace(&self, namespace: &str) -> Result<u64, RegistryError> {
        self.inner.count_in_namespace(namespace)
    }

    /// The current usage of a namespace; `None`: it has no limits.
    pub fn namespace_usage(&self, namespace: &str) -> Option<Arc<NamespaceUsage>> {
        self.inner.namespaces.get()?.usage(namespace)
    }

    /// Checks that a namespace may have one more product.
    pub(crate) fn check_room_for_product(&self, namespace: &str) -> Result<(), String> {
        let Some(limits) = self
            .inner
            .namespaces
            .get()
            .and_then(|all| all.get(namespace))
        else {
            return Ok(());
        };
        let products = self.products();
        let used = products
            .iter()
            .filter(|slot| slot.get().namespace() == namespace);
        let used = used.count() as u64;
        limits.quotas.check(Quota::Products, namespace, used, 1)
    }
}

impl RegistryInner {
    /// Whether devices of a namespace may connect.
    pub(super) fn is_namespace_active(&self, namespace: &str) -> bool {
        let namespaces = self.namespaces.get();
        namespaces.is_none_or(|namespaces| namespaces.is_active(namespace))
    }

    /// Passes the state of one namespace, or of all, to its products.
    fn refresh_namespace(&self, changed: Option<&str>) {
        for slot in self.all_products() {
            let product = slot.get();
            let namespace = product.namespace();
            if changed.is_none_or(|changed| changed == namespace) {
                slot.set_namespace_active(self.is_namespace_active(namespace));
            }
        }
    }

    pub(super) fn count_in_namespace(&self, namespace: &str) -> Result<u64, RegistryError> {
        let mut count = 0;
        for slot in self.all_products() {
            if slot.get().namespace() == namespace {
                count += self.count_of(slot.id().as_str())?;
            }
        }
        Ok(count)
    }
}
