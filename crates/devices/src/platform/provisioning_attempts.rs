//! Limits guesses of a product's secret over MQTT. Failures are counted by address and product key; beyond a
//! limit, requests are rejected unchecked for a while. The API counts requests over HTTP in the same way.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hooks::failed_attempts::{FailedAttempts, counted_address, counted_name};

/// Maximum failures for one key from one address within the window.
const MAX_FAILURES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(300);
/// Maximum pairs of address and key; beyond, the pair with the oldest failure is forgotten.
const MAX_REMEMBERED: usize = 10_000;

/// The address, if the client has one, and the product key.
type Pair = (Option<IpAddr>, String);

pub(super) struct ProvisioningAttempts {
    failures: Mutex<FailedAttempts<Pair>>,
}

fn pair(from: Option<IpAddr>, key: &str) -> Pair {
    (from.map(counted_address), counted_name(key))
}

impl ProvisioningAttempts {
    pub(super) fn new() -> Self {
        Self {
            failures: Mutex::new(FailedAttempts::new(MAX_REMEMBERED)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FailedAttempts<Pair>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests with this key from this address are rejected now.
    pub(super) fn is_blocked(&self, from: Option<IpAddr>, key: &str, now: Instant) -> bool {
        let left = self
            .lock()
            .blocked_for(&pair(from, key), MAX_FAILURES, WINDOW, now);
        left.is_some()
    }

    pub(super) fn record_failure(&self, from: Option<IpAddr>, key: &str, now: Instant) {
        self.lock().record(pair(from, key), WINDOW, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_of_a_secret_are_blocked_per_address_and_key() {
        let attempts = ProvisioningAttempts::new();
        let start = Instant::now();
        let address = |text: &str| text.parse().ok();
        let (here, elsewhere) = (address("2001:db8::1"), address("192.0.2.2"));
        for _ in 0..MAX_FAILURES {
            assert!(!attempts.is_blocked(here, "meters", start));
            attempts.record_failure(here, "meters", start);
        }
        assert!(attempts.is_blocked(here, "meters", start));
        let neighbour = address("2001:db8::2");
        assert!(attempts.is_blocked(neighbour, "meters", start));
        assert!(!attempts.is_blocked(here, "pumps", start));
        assert!(!attempts.is_blocked(elsewhere, "meters", start));
        assert!(!attempts.is_blocked(here, "meters", start + WINDOW));
    }
}
