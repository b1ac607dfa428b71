//! The limit on guessing passwords and shared secrets. Failures are counted per pair of address and
//! name, so that failures of one client do not lock out others at the same address. In addition, an
//! address that fails for many names, and a name that is guessed from many addresses, must wait. Pairs with an earlier
//! success are exempt.
//!
//! Tokens and API keys cannot be guessed in any number of attempts that a node answers. They are
//! always looked up; failures only affect the response to further failures.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hooks::failed_attempts::{FailedAttempts, counted_address, counted_name};

use crate::config::SharedHttpConfig;

/// Maximum number of addresses, names and pairs remembered; beyond it the one with the oldest
/// failure is forgotten.
const MAX_FAILURE_RECORDS: usize = 10_000;
/// Maximum number of pairs with a success; beyond it the oldest is forgotten.
const MAX_KNOWN_PAIRS: usize = 10_000;
/// Allowed failures of an address for any names, and of a name from any addresses, as a multiple of
/// those of a pair.
const WIDE_LIMIT_FACTOR: u32 = 10;

pub(crate) struct LoginAttempts {
    live: SharedHttpConfig,
    state: Mutex<AttemptMemory>,
}

struct AttemptMemory {
    failures: FailedAttempts<AttemptKey>,
    /// Pairs with a successful login.
    known: HashSet<(IpAddr, String)>,
    /// The same, oldest first.
    known_order: VecDeque<(IpAddr, String)>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum AttemptKey {
    Pair(IpAddr, String),
    Address(IpAddr),
    Name(String),
    /// Failures for a shared secret, by its name.
    Secret(IpAddr, String),
    /// Failures with device tokens that do not exist.
    Tokens(IpAddr),
}

impl LoginAttempts {
    pub(crate) fn new(live: SharedHttpConfig) -> Self {
        Self {
            live,
            state: Mutex::new(AttemptMemory {
                failures: FailedAttempts::new(MAX_FAILURE_RECORDS),
                known: HashSet::new(),
                known_order: VecDeque::new(),
            }),
        }
    }

    /// The maximum number of failures, and the period in which they count.
    fn limits(&self) -> (u32, Duration) {
        let config = self.live.get();
        let window = Duration::from_secs(config.failed_login_window_s.into());
        (config.max_failed_logins, window)
    }

    fn lock(&self) -> MutexGuard<'_, AttemptMemory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long attempts for that name from that address remain blocked; `None`: not blocked.
    pub(crate) fn blocked_for(&self, from: IpAddr, name: &str, now: Instant) -> Option<Duration> {
        let (max_failures, window) = self.limits();
        let (from, name) = (counted_address(from), counted_name(name));
        let memory = self.lock();
        let left = |key: &AttemptKey, factor: u32| {
            let max_failures = max_failures.saturating_mul(factor);
            memory.failures.blocked_for(key, max_failures, window, now)
        };
        let of_pair = left(&AttemptKey::Pair(from, name.clone()), 1);
        if memory.known.contains(&(from, name.clone())) {
            return of_pair;
        }
        let of_address = left(&AttemptKey::Address(from), WIDE_LIMIT_FACTOR);
        of_pair
            .max(of_address)
            .max(left(&AttemptKey::Name(name), WIDE_LIMIT_FACTOR))
    }

    pub(crate) fn record_failure(&self, from: IpAddr, name: &str, now: Instant) {
        let (_, window) = self.limits();
        let (from, name) = (counted_address(from), counted_name(name));
        let mut memory = self.lock();
        for key in [
            AttemptKey::Pair(from, name.clone()),
            AttemptKey::Address(from),
            AttemptKey::Name(name),
        ] {
            memory.failures.record(key, window, now);
        }
    }

    /// Like [`Self::blocked_for`] for a shared secret, whose failures count for the pair alone.
    pub(crate) fn secret_blocked_for(
        &self,
        from: IpAddr,
        name: &str,
        now: Instant,
    ) -> Option<Duration> {
        let (max_failures, window) = self.limits();
        let key = secret_key(from, name);
        let memory = self.lock();
        memory.failures.blocked_for(&key, max_failures, window, now)
    }

    pub(crate) fn record_secret_failure(&self, from: IpAddr, name: &str, now: Instant) {
        let (_, window) = self.limits();
        let key = secret_key(from, name);
        self.lock().failures.record(key, window, now);
    }

    /// Records an unknown device token. Returns how long the address must wait if it exceeds the
    /// limit.
    pub(crate) fn record_token_failure(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        let (max_failures, window) = self.limits();
        let key = AttemptKey::Tokens(counted_address(from));
        let failures = self.lock().failures.record(key, window, now);
        let left = failures.time_left(window, now).unwrap_or_default();
        (failures.count > max_failures).then_some(left)
    }

    /// Records a successful login: earlier failures of the pair are forgotten, and the pair is
    /// known from now on.
    pub(crate) fn record_success(&self, from: IpAddr, name: &str) {
        let pair = (counted_address(from), counted_name(name));
        let mut memory = self.lock();
        memory
            .failures
            .remove(&AttemptKey::Pair(pair.0, pair.1.clone()));
        if memory.known.insert(pair.clone()) {
            memory.known_order.push_back(pair);
            if memory.known_order.len() > MAX_KNOWN_PAIRS
                && let Some(oldest) = memory.known_order.pop_front()
            {
                memory.known.remove(&oldest);
            }
        }
    }
}

fn secret_key(from: IpAddr, name: &str) -> AttemptKey {
    AttemptKey::Secret(counted_address(from), counted_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HttpConfig;

    fn attempts(max_failed_logins: u32) -> LoginAttempts {
        LoginAttempts::new(SharedHttpConfig::new(HttpConfig {
            max_failed_logins,
            failed_login_window_s: 60,
            ..HttpConfig::new(([127, 0, 0, 1], 0).into())
        }))
    }

    #[test]
    fn who_fails_too_often_has_to_wait_and_others_at_the_address_do_not() {
        let attempts = attempts(3);
        let start = Instant::now();
        let here: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        let elsewhere: IpAddr = "192.0.2.1".parse().unwrap();
        for _ in 0..3 {
            assert_eq!(attempts.blocked_for(here, "ann", start), None);
            attempts.record_failure(here, "ann", start);
        }
        assert_eq!(
            attempts.blocked_for(neighbour, "ann", start),
            Some(Duration::from_secs(60))
        );
        assert_eq!(attempts.blocked_for(here, "bob", start), None);
        assert_eq!(attempts.blocked_for(elsewhere, "ann", start), None);
        let later = start + Duration::from_secs(61);
        assert_eq!(attempts.blocked_for(here, "ann", later), None);
        attempts.record_failure(here, "ann", later);
        assert_eq!(
            attempts.blocked_for(here, "ann", later),
            None,
            "counted anew"
        );
    }

    #[test]
    fn many_names_from_one_address_and_one_name_from_many_are_bounded_but_for_those_known() {
        let attempts = attempts(2);
        let start = Instant::now();
        let office = IpAddr::from([198, 51, 100, 1]);
        attempts.record_success(office, "ann");
        for last in 0..20 {
            attempts.record_failure(IpAddr::from([192, 0, 2, last]), "ann", start);
            attempts.record_failure(office, &format!("guess-{last}"), start);
        }
        let fresh = IpAddr::from([198, 51, 100, 2]);
        assert!(attempts.blocked_for(fresh, "ann", start).is_some());
        assert_eq!(attempts.blocked_for(fresh, "bob", start), None);
        assert!(attempts.blocked_for(office, "bob", start).is_some());
        assert_eq!(attempts.blocked_for(office, "ann", start), None);
    }

    #[test]
    fn tokens_that_nobody_has_are_counted_apart() {
        let attempts = attempts(2);
        let start = Instant::now();
        let here = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(attempts.record_token_failure(here, start), None);
        assert_eq!(attempts.record_token_failure(here, start), None);
        let left = Duration::from_secs(60);
        assert_eq!(attempts.record_token_failure(here, start), Some(left));
        assert_eq!(attempts.blocked_for(here, "ann", start), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let attempts = attempts(2);
        let start = Instant::now();
        for n in 0..12_000_u32 {
            let at = start + Duration::from_millis(n.into());
            let from = IpAddr::from(n.to_be_bytes());
            attempts.record_token_failure(from, at);
            attempts.record_success(from, "ann");
        }
        let memory = attempts.lock();
        assert_eq!(memory.failures.len(), MAX_FAILURE_RECORDS);
        assert_eq!(
            (memory.known.len(), memory.known_order.len()),
            (MAX_KNOWN_PAIRS, MAX_KNOWN_PAIRS)
        );
    }
}
