//! Loads what the evaluation of a device needs: alarm rules, attributes and open alarms.

use std::sync::{Arc, PoisonError};

use serde_json::Value as Json;
use series::DeviceNo;

use super::super::condition::Scalar;
use super::super::definition::Severity;
use super::super::definition_error::AlarmDefinitionError;
use super::super::product_rules::ProductAlarmRules;
use super::super::watched_devices::{AlarmContext, DeviceInput};
use super::alarms_inner::{AlarmJob, AlarmsInner};
use crate::device::Device;
use crate::registry::AttributeScope;

impl AlarmsInner {
    pub(super) fn observe(
        &self,
        device: DeviceNo,
        find: &dyn Fn() -> Option<Arc<Device>>,
        now_ms: u64,
        input: DeviceInput<'_>,
    ) {
        let compiled = |device: &Device| {
            let product = device.product.get();
            let rules = &product.definition.alarms;
            match rules.is_empty() {
                true => None,
                false => self.compiled(product.id.as_str(), product.version, rules),
            }
        };
        let turned = self
            .watched_devices
            .observe(device, find, &compiled, self, now_ms, input);
        if let Some(turned) = turned {
            self.enqueue(AlarmJob::Transitions(turned));
        }
    }

    /// The rules of a product in its current version.
    fn compiled(
        &self,
        product: &str,
        version: u64,
        rules: &[Json],
    ) -> Option<Arc<ProductAlarmRules>> {
        {
            let products = self.products.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(compiled) = products.get(product)
                && compiled.version == version
            {
                return Some(Arc::clone(compiled));
            }
        }
        let mut key = |name: &str| {
            let key = self.series.get_or_create_key(name);
            key.map_err(|error| AlarmDefinitionError::new("alarms", error.to_string()))
        };
        match ProductAlarmRules::from_json(version, &Json::Array(rules.to_vec()), &mut key) {
            Ok(compiled) => {
                let compiled = Arc::new(compiled);
                let products = self.products.write();
                products
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(product.into(), Arc::clone(&compiled));
                Some(compiled)
            }
            Err(problem) => {
                // The rules were validated when the product was written; only a full key dictionary can fail.
                tracing::error!(product, %problem, "compiling the alarm rules of a product failed; they are not evaluated");
                None
            }
        }
    }
}

impl AlarmContext for AlarmsInner {
    fn attributes(&self, device: &Device) -> Vec<(Box<str>, Scalar)> {
        let found = self.registry.attributes(device, AttributeScope::Server);
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(device = device.id.as_str(), %error, "reading attributes failed; conditions are evaluated without them");
            Vec::new()
        });
        let scalar = |value: &Json| Scalar::from_json(value);
        let found = found.into_iter();
        found
            .filter_map(|attribute| Some((attribute.key.into(), scalar(&attribute.value)?)))
            .collect()
    }

    fn open_alarms(&self, device: DeviceNo) -> Vec<(Box<str>, Severity)> {
        let state = self.store.lock();
        let mut open: Vec<_> = state.open.get(&device).into_iter().flatten().collect();
        // Of several alarms of a type, the first one counts.
        open.sort_unstable_by_key(|(kind, open)| (kind, open.rank()));
        open.dedup_by(|duplicate, first| duplicate.0 == first.0);
        open.into_iter()
            .map(|(kind, open)| (kind.clone(), open.severity))
            .collect()
    }

    fn needs_check(&self, device: DeviceNo) -> bool {
        let checks = self.places.get();
        checks.is_some_and(|checks| !checks.is_here(device))
    }
}
