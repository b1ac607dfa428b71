//! Counts the telemetry that namespaces have stored, for their quotas.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use namespaces::{Namespaces, Quota};
use series::{OwnerUsageMeter, Series};

use crate::retention::Retention;

/// The stored bytes of all namespaces. Clones share their state.
#[derive(Clone)]
pub struct TelemetryUsage {
    meter: Arc<Mutex<OwnerUsageMeter>>,
    retention: Retention,
    namespaces: Namespaces,
}

impl TelemetryUsage {
    #[must_use]
    pub fn new(series: Series, retention: Retention, namespaces: Namespaces) -> Self {
        Self {
            meter: Arc::new(Mutex::new(OwnerUsageMeter::new(series))),
            retention,
            namespaces,
        }
    }

    /// Whether a namespace has a limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        let namespaces = self.namespaces.all();
        let mut limits = namespaces.iter().map(|namespace| &namespace.quotas);
        limits.any(|quotas| quotas.limit(Quota::TelemetryMegabytes).is_some())
    }

    /// Counts the stored bytes, and passes them to the usage of each namespace. May wait.
    pub fn count(&self) {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        // The owners are products: a device moves only to products of its namespace.
        let by_product = meter.measure(&|device| self.retention.owner_of(device));
        let mut by_namespace = HashMap::<String, u64>::new();
        for (product, number) in self.retention.product_numbers() {
            if let Some(bytes) = by_product.get(&number) {
                let namespace = product.get().namespace().to_owned();
                *by_namespace.entry(namespace).or_default() += bytes;
            }
        }
        for namespace in self.namespaces.all() {
            if let Some(usage) = self.namespaces.usage(&namespace.id) {
                let bytes = by_namespace.get(&*namespace.id).copied();
                usage.set_telemetry_bytes(bytes.unwrap_or(0));
            }
        }
    }
}
