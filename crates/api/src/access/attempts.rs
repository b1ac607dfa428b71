//! The bound on guessing passwords: after some failed logins from one address, or for one name, nobody is asked there
//! for a while.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::LiveConfig;

/// Addresses and names remembered; beyond, the one that failed longest ago is forgotten.
const MAX_REMEMBERED: usize = 10_000;
/// A name may be guessed at from many addresses, but shutting its owner out must cost more than that.
const NAME_FACTOR: u32 = 10;

pub(crate) struct Attempts {
    live: LiveConfig,
    failures: Mutex<HashMap<Key, Failures>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Address(IpAddr),
    Name(String),
}

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    since: Instant,
}

impl Attempts {
    pub(crate) fn new(live: LiveConfig) -> Self {
        Self {
            live,
            failures: Mutex::default(),
        }
    }

    /// How many failures are too many, within which time.
    fn limits(&self) -> (u32, Duration) {
        let config = self.live.get();
        let window = Duration::from_secs(config.failed_login_window_s.into());
        (config.max_failed_logins, window)
    }

    /// How long nobody may try from there or for that name; `None`: now.
    pub(crate) fn blocked_for(&self, from: IpAddr, name: &str, now: Instant) -> Option<Duration> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let (max_failures, window) = self.limits();
        let left = |key: &Key, factor: u32| {
            let known = failures.get(key)?;
            let left = window.checked_sub(now.saturating_duration_since(known.since))?;
            (known.count >= max_failures.saturating_mul(factor) && !left.is_zero()).then_some(left)
        };
        let by_address = left(&Key::Address(network(from)), 1);
        by_address.max(left(&name_key(name), NAME_FACTOR))
    }

    pub(crate) fn failed(&self, from: IpAddr, name: &str, now: Instant) {
        let (_, window) = self.limits();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        for key in [Key::Address(network(from)), name_key(name)] {
            if failures.len() >= MAX_REMEMBERED && !failures.contains_key(&key) {
                let oldest = failures.iter().min_by_key(|(_, known)| known.since);
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    failures.remove(&oldest);
                }
            }
            let known = failures.entry(key).or_insert(Failures {
                count: 0,
                since: now,
            });
            if now.saturating_duration_since(known.since) >= window {
                known.count = 0;
            }
            if known.count == 0 {
                known.since = now;
            }
            known.count = known.count.saturating_add(1);
        }
    }

    /// The right password: earlier slips of that address and name are forgotten.
    pub(crate) fn succeeded(&self, from: IpAddr, name: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.remove(&Key::Address(network(from)));
        failures.remove(&name_key(name));
    }
}

fn name_key(name: &str) -> Key {
    // A guess at a name of megabytes shall not be remembered as such.
    Key::Name(name.chars().take(64).collect())
}

/// Whoever has one address of an IPv6 network of 64 bits has them all.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => IpAddr::V6(Ipv6Addr::from_bits(
            address.to_bits() & !u128::from(u64::MAX),
        )),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HttpConfig;

    fn attempts(max_failed_logins: u32) -> Attempts {
        Attempts::new(LiveConfig::new(HttpConfig {
            max_failed_logins,
            failed_login_window_s: 60,
            ..HttpConfig::new(([127, 0, 0, 1], 0).into())
        }))
    }

    #[test]
    fn an_address_that_fails_too_often_has_to_wait() {
        let attempts = attempts(3);
        let start = Instant::now();
        let here: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        let elsewhere: IpAddr = "192.0.2.1".parse().unwrap();
        for _ in 0..3 {
            assert_eq!(attempts.blocked_for(here, "ann", start), None);
            attempts.failed(here, "ann", start);
        }
        assert_eq!(
            attempts.blocked_for(neighbour, "bob", start),
            Some(Duration::from_secs(60))
        );
        assert_eq!(
            attempts.blocked_for(elsewhere, "ann", start),
            None,
            "not shut out by others"
        );
        let later = start + Duration::from_secs(61);
        assert_eq!(attempts.blocked_for(here, "ann", later), None);
        attempts.failed(here, "ann", later);
        assert_eq!(
            attempts.blocked_for(here, "ann", later),
            None,
            "counted anew"
        );
    }

    #[test]
    fn a_name_guessed_at_from_everywhere_is_protected_too() {
        let attempts = attempts(2);
        let start = Instant::now();
        for last in 0..20 {
            attempts.failed(IpAddr::from([192, 0, 2, last]), "ann", start);
        }
        let fresh = IpAddr::from([198, 51, 100, 1]);
        assert!(attempts.blocked_for(fresh, "ann", start).is_some());
        assert_eq!(attempts.blocked_for(fresh, "bob", start), None);
        attempts.succeeded(fresh, "ann");
        assert_eq!(attempts.blocked_for(fresh, "ann", start), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let attempts = attempts(2);
        let start = Instant::now();
        for n in 0..12_000_u32 {
            let at = start + Duration::from_millis(n.into());
            attempts.failed(IpAddr::from(n.to_be_bytes()), &n.to_string(), at);
            if n % 4000 == 0 {
                assert!(attempts.failures.lock().unwrap().len() <= MAX_REMEMBERED);
            }
        }
        assert_eq!(attempts.failures.lock().unwrap().len(), MAX_REMEMBERED);
    }
}
