//! Counts failed attempts, such as logins, per key within a window of time. The number of keys is bounded.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Characters of a name that are remembered, so that the table does not store megabytes.
const MAX_NAME_CHARS: usize = 64;

/// Failures per key. Beyond its bound, the key with the oldest window is forgotten.
#[derive(Debug)]
pub struct FailedAttempts<K> {
    windows: HashMap<K, FailureWindow>,
    max_keys: usize,
}

/// The failures of a key since the first one that counts.
#[derive(Debug, Clone, Copy)]
pub struct FailureWindow {
    pub count: u32,
    pub since: Instant,
}

impl FailureWindow {
    /// The rest of a window of this length; `None`: it is over.
    #[must_use]
    pub fn time_left(self, window: Duration, now: Instant) -> Option<Duration> {
        let left = window.checked_sub(now.saturating_duration_since(self.since))?;
        (!left.is_zero()).then_some(left)
    }
}

impl<K: Clone + Eq + Hash> FailedAttempts<K> {
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        Self {
            windows: HashMap::new(),
            max_keys,
        }
    }

    /// Counts a failure. After the end of a window, another one begins.
    pub fn record(&mut self, key: K, window: Duration, now: Instant) -> FailureWindow {
        if self.windows.len() >= self.max_keys && !self.windows.contains_key(&key) {
            let oldest = self.windows.iter().min_by_key(|(_, known)| known.since);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.windows.remove(&oldest);
            }
        }
        let fresh = FailureWindow {
            count: 0,
            since: now,
        };
        let known = self.windows.entry(key).or_insert(fresh);
        if known.time_left(window, now).is_none() {
            *known = fresh;
        }
        known.count = known.count.saturating_add(1);
        *known
    }

    /// How long a key with this many failures remains blocked; `None`: it is not blocked.
    pub fn blocked_for(
        &self,
        key: &K,
        max_failures: u32,
        window: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let known = self.windows.get(key)?;
        let left = known.time_left(window, now)?;
        (known.count >= max_failures).then_some(left)
    }

    /// Forgets the failures of a key.
    pub fn remove(&mut self, key: &K) {
        self.windows.remove(key);
    }

    /// Number of keys with failures.
    #[must_use]
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }
}

/// The unit in which attempts of an address are counted: a host usually controls its whole IPv6 /64 network.
#[must_use]
pub fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => IpAddr::V6(Ipv6Addr::from_bits(
            address.to_bits() & !u128::from(u64::MAX),
        )),
        other => other,
    }
}

/// The part of a name under which its attempts are counted.
#[must_use]
pub fn counted_name(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    #[test]
    fn failures_block_until_their_window_is_over() {
        let mut attempts = FailedAttempts::new(10);
        let start = Instant::now();
        let blocked = |attempts: &FailedAttempts<&str>, after: Duration| {
            attempts.blocked_for(&"ann", 2, WINDOW, start + after)
        };
        attempts.record("ann", WINDOW, start);
        assert_eq!(blocked(&attempts, Duration::ZERO), None);
        attempts.record("ann", WINDOW, start);
        assert_eq!(blocked(&attempts, Duration::ZERO), Some(WINDOW));
        assert_eq!(attempts.blocked_for(&"bob", 2, WINDOW, start), None);
        assert_eq!(blocked(&attempts, WINDOW), None);
        attempts.record("ann", WINDOW, start + WINDOW);
        assert_eq!(blocked(&attempts, WINDOW), None, "counted anew");
        attempts.remove(&"ann");
        assert!(attempts.is_empty());
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut attempts = FailedAttempts::new(3);
        let start = Instant::now();
        for n in 0..10_u32 {
            attempts.record(n, WINDOW, start + Duration::from_millis(n.into()));
        }
        assert_eq!(attempts.len(), 3);
        let now = start + Duration::from_millis(10);
        let is_known = |n: u32| attempts.blocked_for(&n, 1, WINDOW, now).is_some();
        assert!(is_known(9) && is_known(7) && !is_known(6));
    }

    #[test]
    fn addresses_of_one_host_count_together() {
        let counted = |text: &str| counted_address(text.parse().unwrap()).to_string();
        assert_eq!(counted("2001:db8::1:2"), "2001:db8::");
        assert_eq!(counted("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(counted("192.0.2.1"), "192.0.2.1");
        assert_eq!(counted("::1"), "::1");
    }
}
