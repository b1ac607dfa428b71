//! Limits of received bytes per second, by sender, product and namespace, and for the node.

use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::record::FileOwner;
use crate::settings::TransferSettings;
use crate::usage::UsageScope;

/// Scopes whose rate is tracked at once; those that have caught up are forgotten first.
const MAX_TRACKED: usize = 65_536;

/// Charges received bytes, and returns until when their sender has to pause.
///
/// A limit is stored as the time until which the bytes received so far use it up. It may be in the future: a sender is
/// paused after it has sent too much, and nothing it sent is lost.
#[derive(Default)]
pub(crate) struct RateLimits(Mutex<HashMap<UsageScope, u64, RandomState>>);

/// Bytes per second; 0: no limit.
fn rate_of(scope: &UsageScope, settings: &TransferSettings) -> u64 {
    match scope {
        UsageScope::Owner(..) => settings.max_bytes_per_s_per_owner,
        UsageScope::Product(_) => settings.max_bytes_per_s_per_product,
        UsageScope::Namespace(_) => settings.max_bytes_per_s_per_namespace,
        UsageScope::Node => settings.max_bytes_per_s,
    }
}

impl RateLimits {
    /// Returns the time in milliseconds until which the sender pauses; 0: it need not.
    pub(crate) fn charge(
        &self,
        owner: &FileOwner,
        bytes: u64,
        settings: &TransferSettings,
        now_ms: u64,
    ) -> u64 {
        let rates = [
            settings.max_bytes_per_s,
            settings.max_bytes_per_s_per_owner,
            settings.max_bytes_per_s_per_product,
            settings.max_bytes_per_s_per_namespace,
        ];
        if rates == [0; 4] {
            return 0;
        }
        let now_us = now_ms.saturating_mul(1000);
        let mut until_us = now_us;
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if scopes.len() >= MAX_TRACKED {
            scopes.retain(|_, free_at_us| *free_at_us > now_us);
        }
        let scaled_bytes = bytes.saturating_mul(1_000_000);
        for scope in UsageScope::all_of(owner) {
            if let Some(cost_us) = scaled_bytes.checked_div(rate_of(&scope, settings)) {
                let free_at_us = scopes.entry(scope).or_default();
                *free_at_us = (*free_at_us).max(now_us).saturating_add(cost_us);
                until_us = until_us.max(*free_at_us);
            }
        }
        match until_us > now_us {
            true => until_us.div_ceil(1000),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(change: impl FnOnce(&mut TransferSettings)) -> TransferSettings {
        let mut settings = TransferSettings::default();
        change(&mut settings);
        settings
    }

    #[test]
    fn a_sender_pauses_as_long_as_its_bytes_take() {
        let limits = RateLimits::default();
        let [a, b] = ["a", "b"].map(FileOwner::client);
        let unlimited = settings(|_| {});
        assert_eq!(limits.charge(&a, 1 << 40, &unlimited, 1000), 0, "no limit");
        let per_owner = settings(|all| all.max_bytes_per_s_per_owner = 1000);
        assert_eq!(limits.charge(&a, 500, &per_owner, 1000), 1500);
        assert_eq!(limits.charge(&a, 500, &per_owner, 1500), 2000);
        assert_eq!(limits.charge(&a, 500, &per_owner, 1500), 2500, "too early");
        let other = limits.charge(&b, 500, &per_owner, 1500);
        assert_eq!(other, 2000, "another sender");
        let of_node = settings(|all| all.max_bytes_per_s = 100);
        assert_eq!(limits.charge(&b, 100, &of_node, 5000), 6000, "the node");
        assert_eq!(limits.charge(&a, 100, &of_node, 5000), 7000);
    }

    #[test]
    fn devices_share_the_rates_of_their_product_and_namespace() {
        let device = |id: &str, product: &str, namespace: &str| FileOwner {
            product: Some(product.into()),
            namespace: namespace.into(),
            ..FileOwner::client(id)
        };
        let [a, b] = ["a", "b"].map(|id| device(id, "pump", "acme"));
        let (other_product, other) = (device("c", "fan", "acme"), device("d", "fan", "other"));
        let limits = RateLimits::default();
        let per_product = settings(|all| all.max_bytes_per_s_per_product = 1000);
        assert_eq!(limits.charge(&a, 500, &per_product, 1000), 1500);
        assert_eq!(limits.charge(&b, 500, &per_product, 1000), 2000);
        assert_eq!(limits.charge(&other_product, 500, &per_product, 1000), 1500);
        let limits = RateLimits::default();
        let per_namespace = settings(|all| all.max_bytes_per_s_per_namespace = 1000);
        assert_eq!(limits.charge(&a, 500, &per_namespace, 1000), 1500);
        let same = limits.charge(&other_product, 500, &per_namespace, 1000);
        assert_eq!(same, 2000);
        assert_eq!(limits.charge(&other, 500, &per_namespace, 1000), 1500);
    }
}
