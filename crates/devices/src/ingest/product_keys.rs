//! The numbers of key names, and a bound on how many keys each product creates.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use series::KeyId;

use super::ports::TelemetryStorage;
use super::profile::ProductNo;

/// Counts the keys that each product has created since the start.
///
/// Keys belong to the whole node and are never removed, and devices choose the names in products without a strict thing
/// model. A product creates at most `max_per_product` keys, and never more than it leaves free for the others. With `n`
/// products that all create as many keys as they can, a share of 1/(n+1) stays free for the next one.
pub(super) struct ProductKeyCounts {
    max_per_product: usize,
    created: Mutex<HashMap<ProductNo, u32>>,
    rejected: AtomicU64,
}

impl ProductKeyCounts {
    pub(super) fn new(max_per_product: usize) -> Self {
        Self {
            max_per_product,
            created: Mutex::default(),
            rejected: AtomicU64::new(0),
        }
    }

    /// Maximum number of keys that the devices of a product may use.
    pub(super) fn max_per_product(&self) -> usize {
        self.max_per_product
    }

    /// Number of keys that could not be created.
    pub(super) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Counts a new key, or returns why the product may not create it. `free`: keys that can still be created.
    fn admit(&self, product: ProductNo, free: u32) -> Result<(), Box<str>> {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        let count = created.entry(product).or_default();
        if *count as usize >= self.max_per_product {
            return Err(too_many_keys(self.max_per_product));
        }
        if *count >= free {
            let detail = format!(
                "the product has created {count} keys since the start, and only {free} are left for all products; \
                 raise telemetry.max_keys if its devices need more"
            );
            return Err(detail.into());
        }
        *count += 1;
        Ok(())
    }
}

/// The reason why values of further keys are rejected.
pub(super) fn too_many_keys(max: usize) -> Box<str> {
    let detail = format!(
        "the product has too many keys; the maximum is {max} (telemetry.max_keys_per_product)"
    );
    detail.into()
}

/// Finds and creates the keys of a processor's messages.
#[derive(Clone, Copy)]
pub(super) struct KeyRegistrar<'l> {
    pub(super) storage: &'l dyn TelemetryStorage,
    pub(super) counts: &'l ProductKeyCounts,
    /// Set when a key is used that is only reserved: rows with it have to wait for
    /// [`TelemetryStorage::commit_keys`].
    pub(super) has_reserved_keys: &'l Cell<bool>,
}

impl KeyRegistrar<'_> {
    /// Returns the number of a key, which is reserved if it does not exist, or the reason why there is none.
    pub(super) fn reserve(&self, product: ProductNo, name: &str) -> Result<KeyId, Box<str>> {
        let mut rejection = None;
        let reserved = self.storage.reserve_key(name, &mut |free| {
            rejection = self.counts.admit(product, free).err();
            rejection.is_none()
        });
        let reason = match reserved {
            Ok(Some(key)) => {
                if !self.storage.has_key(key) {
                    self.has_reserved_keys.set(true);
                }
                return Ok(key);
            }
            Ok(None) => rejection.unwrap_or_else(|| "the store has no room for the key".into()),
            Err(error) => error.reason,
        };
        self.counts.rejected.fetch_add(1, Ordering::Relaxed);
        Err(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_that_create_keys_without_end_leave_room_for_others() {
        let counts = ProductKeyCounts::new(4096);
        let mut free = 65_536_u32;
        let create = |product: u32, free: &mut u32| {
            let mut created = 0;
            while counts.admit(ProductNo(product), *free).is_ok() {
                (*free, created) = (*free - 1, created + 1);
            }
            created
        };
        assert_eq!(create(0, &mut free), 4096, "one product alone");
        // All want as much as they can get, in turns.
        let mut is_growing = true;
        while is_growing {
            is_growing = false;
            for product in 1..100 {
                if counts.admit(ProductNo(product), free).is_ok() {
                    (free, is_growing) = (free - 1, true);
                }
            }
        }
        let share = 65_536 / 101;
        assert!(free > share - 100, "{free}");
        assert!(create(100, &mut free) > share as usize / 2 - 100);
        let rejection = counts.admit(ProductNo(1), free).unwrap_err();
        assert!(rejection.contains("telemetry.max_keys "), "{rejection}");
        let rejection = counts.admit(ProductNo(0), free).unwrap_err();
        assert!(
            rejection.contains("telemetry.max_keys_per_product"),
            "{rejection}"
        );
    }
}
