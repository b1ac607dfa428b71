//! Limits guesses of a product's secret over MQTT. Failures are counted by address and product key; beyond a
//! limit, requests are rejected unchecked for a while. The API counts requests over HTTP in the same way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Maximum failures for one key from one address within the window.
const MAX_FAILURES: u32 = 10;
const WINDOW_MS: u64 = 300_000;
/// Maximum pairs of address and key; beyond, the pair with the oldest failure is forgotten.
const MAX_REMEMBERED: usize = 10_000;
/// Characters of a key that are remembered.
const MAX_KEY_CHARS: usize = 64;

#[derive(Default)]
pub(super) struct ProvisioningAttempts {
    failures: Mutex<HashMap<(Option<IpAddr>, String), Failures>>,
}

struct Failures {
    count: u32,
    since_ms: u64,
}

fn pair(from: Option<IpAddr>, key: &str) -> (Option<IpAddr>, String) {
    (from, key.chars().take(MAX_KEY_CHARS).collect())
}

impl ProvisioningAttempts {
    /// Whether requests with this key from this address are rejected now.
    pub(super) fn is_blocked(&self, from: Option<IpAddr>, key: &str, now_ms: u64) -> bool {
        let failures = self.failures.lock();
        let failures = failures.unwrap_or_else(PoisonError::into_inner);
        let known = failures.get(&pair(from, key));
        known.is_some_and(|known| {
            known.count >= MAX_FAILURES && now_ms.saturating_sub(known.since_ms) < WINDOW_MS
        })
    }

    pub(super) fn record_failure(&self, from: Option<IpAddr>, key: &str, now_ms: u64) {
        let failures = self.failures.lock();
        let mut failures = failures.unwrap_or_else(PoisonError::into_inner);
        let pair = pair(from, key);
        if failures.len() >= MAX_REMEMBERED && !failures.contains_key(&pair) {
            let oldest = failures.iter().min_by_key(|(_, known)| known.since_ms);
            if let Some(oldest) = oldest.map(|(pair, _)| pair.clone()) {
                failures.remove(&oldest);
            }
        }
        let known = failures.entry(pair).or_insert(Failures {
            count: 0,
            since_ms: now_ms,
        });
        if now_ms.saturating_sub(known.since_ms) >= WINDOW_MS {
            known.count = 0;
            known.since_ms = now_ms;
        }
        known.count = known.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_of_a_secret_are_blocked_per_address_and_key() {
        let attempts = ProvisioningAttempts::default();
        let (here, elsewhere) = ("192.0.2.1".parse().ok(), "192.0.2.2".parse().ok());
        for _ in 0..MAX_FAILURES {
            assert!(!attempts.is_blocked(here, "meters", 0));
            attempts.record_failure(here, "meters", 0);
        }
        assert!(attempts.is_blocked(here, "meters", WINDOW_MS - 1));
        assert!(!attempts.is_blocked(here, "pumps", 0));
        assert!(!attempts.is_blocked(elsewhere, "meters", 0));
        assert!(!attempts.is_blocked(here, "meters", WINDOW_MS));
        attempts.record_failure(here, "meters", WINDOW_MS);
        assert!(!attempts.is_blocked(here, "meters", WINDOW_MS));
    }
}
