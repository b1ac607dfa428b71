//! Retention of device telemetry: derives the policies of the time series from products, and assigns a policy to each
//! device.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, PoisonError, RwLock};

use series::{DeviceNo, DownsamplingTier, PolicyAssignment, PolicyResolver, RetentionPolicy};

use crate::product::{Product, ProductError, ProductSlot, ProductStorage};
use crate::registry::{DeviceChange, Registry};

const DAY_MS: i64 = 86_400_000;
/// Maximum number of policies in addition to the policy of the node.
const MAX_POLICIES: usize = 255;

/// Retention and downsampling of all products, as the time series needs them. Clones share their state.
#[derive(Clone)]
pub struct Retention {
    inner: Arc<RetentionInner>,
}

struct RetentionInner {
    registry: Registry,
    /// Retention in days of products that do not set one.
    default_d: u32,
    assignments: RwLock<ProductAssignments>,
}

/// The product of each device as a number; loaded on demand.
#[derive(Default)]
struct ProductAssignments {
    numbers: HashMap<Box<str>, u16>,
    /// Indexed by the device number.
    by_device: Vec<u16>,
}

/// The device has not been looked up yet.
const NOT_LOADED: u16 = 0;
/// The device does not exist.
const NO_DEVICE: u16 = u16::MAX;

impl ProductAssignments {
    fn number(&mut self, product: &str) -> u16 {
        if let Some(number) = self.numbers.get(product) {
            return *number;
        }
        // The registry does not accept more products than fit.
        let number = (self.numbers.len() + 1).min(usize::from(NO_DEVICE) - 1) as u16;
        self.numbers.insert(product.into(), number);
        number
    }

    fn set(&mut self, device: DeviceNo, number: u16) {
        let at = device.0 as usize;
        if at >= self.by_device.len() {
            self.by_device.resize(at + 1, NOT_LOADED);
        }
        self.by_device[at] = number;
    }
}

/// A policy in comparable form: days, and steps in days and seconds.
type PolicyKey = (u32, Vec<(u32, u32)>);

fn policy_key(storage: &ProductStorage, standard_d: u32) -> PolicyKey {
    let steps = storage.downsampling.iter();
    let retention_days = match storage.retention_days {
        0 => standard_d,
        days => days,
    };
    let steps = steps
        .map(|step| (step.after_days, step.interval_s))
        .collect();
    (retention_days, steps)
}

fn policy((retention_days, steps): &PolicyKey) -> RetentionPolicy {
    let tiers = steps
        .iter()
        .map(|(after_days, interval_s)| DownsamplingTier {
            after_ms: i64::from(*after_days) * DAY_MS,
            interval_ms: i64::from(*interval_s) * 1000,
        });
    RetentionPolicy {
        retention_ms: (*retention_days > 0).then(|| i64::from(*retention_days) * DAY_MS),
        tiers: tiers.collect(),
    }
}

impl Retention {
    /// `standard_d`: days that points of products without a retention are stored; 0: for ever.
    pub fn new(registry: Registry, standard_d: u32) -> Self {
        let retention = Self {
            inner: Arc::new(RetentionInner {
                registry: registry.clone(),
                default_d: standard_d,
                assignments: RwLock::default(),
            }),
        };
        let weak = Arc::downgrade(&retention.inner);
        registry.add_device_observer(Box::new(move |change| {
            let device = match change {
                DeviceChange::Created(device)
                | DeviceChange::Updated(device)
                | DeviceChange::Removed(device) => device,
            };
            if let Some(inner) = weak.upgrade() {
                let mut product_policies = inner
                    .assignments
                    .write()
                    .unwrap_or_else(PoisonError::into_inner);
                if product_policies.by_device.len() > device.no.0 as usize {
                    product_policies.set(device.no, NOT_LOADED);
                }
            }
        }));
        retention
    }

    /// The policies of all products, and how devices map to them.
    #[must_use]
    pub fn assignment(&self) -> PolicyAssignment {
        let inner = &self.inner;
        let standard: PolicyKey = (inner.default_d, Vec::new());
        let products: Vec<(Box<str>, PolicyKey)> = inner
            .registry
            .products()
            .iter()
            .map(|slot| {
                let written = policy_key(slot.get().storage(), inner.default_d);
                (slot.id().as_str().into(), written)
            })
            .collect();
        let mut all: Vec<&PolicyKey> = products.iter().map(|(_, written)| written).collect();
        all.retain(|written| **written != standard);
        all.sort_unstable();
        all.dedup();
        if all.len() > MAX_POLICIES {
            tracing::error!(
                policies = all.len(),
                "more than {MAX_POLICIES} combinations of retention and downsampling; points of the other products are never deleted"
            );
        }
        let mut policies = vec![(0, policy(&standard))];
        let numbered = all.iter().take(MAX_POLICIES).zip(1..=u8::MAX);
        policies.extend(numbered.map(|(written, number)| (number, policy(written))));
        let forever = |policy: &RetentionPolicy| policy.retention_ms.unwrap_or(i64::MAX);
        let longest = policies.iter().max_by_key(|(_, policy)| forever(policy));
        let longest = longest.map_or(0, |(number, _)| *number);

        let mut hasher = DefaultHasher::new();
        products.hash(&mut hasher);
        let mut by_number: Vec<u8> = vec![0];
        let mut product_policies = inner
            .assignments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for (product, written) in &products {
            let at = usize::from(product_policies.number(product));
            if at >= by_number.len() {
                by_number.resize(at + 1, 0);
            }
            by_number[at] = match all.iter().position(|known| *known == written) {
                _ if *written == standard => 0,
                Some(place) if place < MAX_POLICIES => place as u8 + 1,
                // If in doubt, store longer.
                _ => longest,
            };
        }
        drop(product_policies);
        let is_uniform = by_number.iter().all(|number| *number == 0);
        let this = self.clone();
        let policy_of = move |device| match is_uniform {
            true => 0,
            false => match this.product_number_of(device) {
                Some(home) => by_number.get(usize::from(home)).copied().unwrap_or(0),
                // If the device cannot be read, its points are stored longest.
                None => longest,
            },
        };
        PolicyAssignment {
            policies,
            policy_of: Some(PolicyResolver::new(policy_of)),
            revision: hasher.finish(),
        }
    }

    /// The numbers of all products, as [`Retention::owner_of`] returns them.
    pub(crate) fn product_numbers(&self) -> Vec<(Arc<ProductSlot>, u16)> {
        let products = self.inner.registry.products();
        let mut product_policies =
            (self.inner.assignments.write()).unwrap_or_else(PoisonError::into_inner);
        let numbered = products.into_iter().map(|slot| {
            let number = product_policies.number(slot.id().as_str());
            (slot, number)
        });
        numbered.collect()
    }

    /// The number of a device's product; 0: the device does not exist, or cannot be read now. May wait.
    pub(crate) fn owner_of(&self, device: DeviceNo) -> u16 {
        match self.product_number_of(device) {
            None | Some(NO_DEVICE) => 0,
            Some(number) => number,
        }
    }

    /// Returns the number of a device's product, or `None` if the device cannot be read now.
    fn product_number_of(&self, device: DeviceNo) -> Option<u16> {
        let inner = &self.inner;
        let product_policies = inner
            .assignments
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let known = product_policies.by_device.get(device.0 as usize).copied();
        drop(product_policies);
        if let Some(known) = known.filter(|known| *known != NOT_LOADED) {
            return Some(known);
        }
        let found = match inner.registry.by_no(device) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "reading a device failed; its telemetry is retained for now");
                return None;
            }
        };
        let mut product_policies = inner
            .assignments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let number = match found {
            Some(device) => product_policies.number(device.product.id().as_str()),
            None => NO_DEVICE,
        };
        product_policies.set(device, number);
        Some(number)
    }

    /// Checks whether the policy of a product fits the limit.
    ///
    /// # Errors
    /// Fails if there would be too many different policies.
    pub fn check(&self, product: &Product) -> Result<(), ProductError> {
        let standard_d = self.inner.default_d;
        let products = self.inner.registry.products();
        let others = products.iter().filter(|slot| *slot.id() != product.id);
        let mut all: Vec<PolicyKey> = others
            .map(|slot| policy_key(slot.get().storage(), standard_d))
            .chain([policy_key(product.storage(), standard_d)])
            .filter(|written| *written != (standard_d, Vec::new()))
            .collect();
        all.sort_unstable();
        all.dedup();
        if all.len() <= MAX_POLICIES {
            return Ok(());
        }
        Err(ProductError {
            field: "storage.retention_days".to_owned(),
            message: format!(
                "expected one of the {MAX_POLICIES} combinations of retention and downsampling in use; no other combination is possible"
            ),
        })
    }
}

#[cfg(test)]
mod tests {

    use serde_json::{Value, json};
    use series::{Point, Series, SeriesConfig};
    use store::ExpectedVersion;

    use super::*;
    use crate::{NewDevice, PRODUCT_KIND};

    fn put(objects: &store::Objects, id: &str, product: Value) {
        objects
            .put(PRODUCT_KIND, id, product, ExpectedVersion::Any)
            .unwrap();
    }

    #[test]
    fn retention_follows_the_product_and_changes_apply_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = store::Store::open(
            &directory.path().join("store"),
            store::StoreConfig::default(),
        )
        .unwrap();
        let objects = store.objects();
        put(objects, "short", json!({"storage": {"retention_days": 2}}));
        put(
            objects,
            "long",
            json!({"storage": {"retention_days": 1000}}),
        );
        put(objects, "plain", json!({}));
        let steps = json!([{"after_days": 1, "interval_s": 3600}]);
        put(
            objects,
            "coarse",
            json!({"storage": {"downsampling": steps}}),
        );
        let registry = Registry::open(objects, crate::RegistryConfig::default()).unwrap();
        let mut numbers = Vec::new();
        for product in ["short", "long", "plain", "coarse"] {
            let device: NewDevice =
                serde_json::from_value(json!({"id": product, "product": product})).unwrap();
            let written = registry
                .put(device, crate::WritePrecondition::Absent)
                .unwrap();
            numbers.push(written.device.no);
        }
        let retention = Retention::new(registry.clone(), 30);
        let config = SeriesConfig {
            assignment: retention.assignment(),
            min_free_bytes: 0,
            ..SeriesConfig::default()
        };
        let (series, _) = Series::open(&directory.path().join("series"), config).unwrap();
        let key = series.get_or_create_key("t").unwrap();
        let now_ms = wall_clock::now_ms() as i64;
        for device in &numbers {
            for days in [1, 5, 100] {
                for minute in 0..10 {
                    let value = series::PointValue::Int(minute);
                    let ts_ms = (now_ms / DAY_MS - days) * DAY_MS - 3_600_000 + minute * 60_000;
                    series
                        .append(*device, ts_ms, &[Point { key, value }])
                        .unwrap();
                }
            }
        }
        let counts = || {
            series.flush().unwrap();
            series.compact().unwrap();
            numbers
                .iter()
                .map(|device| {
                    let mut count = 0;
                    let each = &mut |_: series::SeriesRow<'_>| {
                        count += 1;
                        std::ops::ControlFlow::Continue(())
                    };
                    series
                        .range(*device, None, &series::RangeQuery::default(), each)
                        .unwrap();
                    count
                })
                .collect::<Vec<i32>>()
        };
        assert_eq!(counts(), [10, 30, 20, 2]);

        // Assign another product to a device, and change a product.
        put(objects, "plain", json!({"storage": {"retention_days": 3}}));
        let moved = json!({"id": "long", "product": "short"});
        let moved: NewDevice = serde_json::from_value(moved).unwrap();
        registry.put(moved, crate::WritePrecondition::Any).unwrap();
        series.set_policies(retention.assignment()).unwrap();
        assert_eq!(counts(), [10, 10, 10, 2]);
    }

    #[test]
    fn the_number_of_policies_is_limited() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) =
            store::Store::open(directory.path(), store::StoreConfig::default()).unwrap();
        let objects = store.objects();
        let registry = Registry::open(objects, crate::RegistryConfig::default()).unwrap();
        let retention = Retention::new(registry, 30);
        for days in 100..100 + MAX_POLICIES {
            put(
                objects,
                &format!("p{days}"),
                json!({"storage": {"retention_days": days}}),
            );
        }
        let product = |days: u32| {
            Product::read("new", &json!({"storage": {"retention_days": days}}), 0).unwrap()
        };
        assert_eq!(retention.assignment().policies.len(), 256);
        assert!(retention.check(&product(120)).is_ok() && retention.check(&product(30)).is_ok());
        let error = retention.check(&product(1)).unwrap_err();
        assert_eq!(error.field, "storage.retention_days");
    }
}
