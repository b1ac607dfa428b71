//! Login limits: failed logins by user and address, the login rate of the node, and flapping connections.
//!
//! Failures are counted per pair of user and address. A device with a wrong password thus does not lock out others
//! behind the same NAT. An address that fails for many users, and a user attacked from many addresses, are locked out
//! as a whole. Pairs that have logged in before are exempt.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hooks::failed_attempts::counted_address;

use crate::lockout::LockoutCounters;
use crate::rules::RuleSubject;
use crate::settings::AuthLimits;

/// Keys tracked per counter.
const MAX_TRACKED_KEYS: usize = 100_000;

/// Failures of one address over all users that lock it out, as a multiple of the limit per pair.
const ADDRESS_FACTOR: u32 = 10;

/// Disconnect reasons that do not count as flapping.
const NON_FLAPPING_REASONS: [&str; 5] = [
    "server_shutting_down",
    "rebalancing",
    "kicked",
    "taken_over",
    "banned",
];

pub(crate) struct LoginLimiter {
    users: LockoutCounters<String>,
    user_addresses: LockoutCounters<(IpAddr, String)>,
    addresses: LockoutCounters<IpAddr>,
    known_logins: Mutex<KnownLogins>,
    name_keys: RandomState,
    flapping: LockoutCounters<String>,
    flapping_ban_ms: AtomicU64,
    /// 0 disables the limit.
    logins_per_s: AtomicU32,
    rate: Mutex<LoginRateBucket>,
}

/// Pairs of address and user name hash (keyed) that have logged in. The oldest are evicted.
#[derive(Default)]
struct KnownLogins {
    pairs: HashSet<(IpAddr, u64)>,
    order: VecDeque<(IpAddr, u64)>,
}

/// A token bucket for logins per second.
struct LoginRateBucket {
    level: f64,
    refilled_ms: u64,
}

impl LoginLimiter {
    pub(crate) fn new(limits: &AuthLimits) -> Self {
        let guards = Self {
            users: LockoutCounters::new(0, 0, 0, MAX_TRACKED_KEYS),
            user_addresses: LockoutCounters::new(0, 0, 0, MAX_TRACKED_KEYS),
            addresses: LockoutCounters::new(0, 0, 0, MAX_TRACKED_KEYS),
            known_logins: Mutex::default(),
            name_keys: RandomState::new(),
            flapping: LockoutCounters::new(0, 0, 0, MAX_TRACKED_KEYS),
            flapping_ban_ms: AtomicU64::default(),
            logins_per_s: AtomicU32::default(),
            rate: Mutex::new(LoginRateBucket {
                level: limits.max_logins_per_s.into(),
                refilled_ms: 0,
            }),
        };
        guards.set_limits(limits);
        guards
    }

    /// Changes the limits; existing counts remain.
    pub(crate) fn set_limits(&self, limits: &AuthLimits) {
        let (window_s, lockout_s) = (limits.failed_login_window_s, limits.lockout_s);
        self.users
            .set_limits(limits.max_failed_logins_per_user, window_s, lockout_s);
        let of_pair = limits.max_failed_logins_per_address;
        self.user_addresses.set_limits(of_pair, window_s, lockout_s);
        let of_address = of_pair.saturating_mul(ADDRESS_FACTOR);
        self.addresses.set_limits(of_address, window_s, lockout_s);
        self.flapping.set_limits(
            limits.flapping_disconnects,
            limits.flapping_window_s,
            limits.flapping_ban_s,
        );
        let ban_ms = u64::from(limits.flapping_ban_s) * 1000;
        self.flapping_ban_ms.store(ban_ms, Relaxed);
        self.logins_per_s.store(limits.max_logins_per_s, Relaxed);
    }

    /// Whether the login rate admits one more attempt.
    pub(crate) fn try_acquire(&self, now_ms: u64) -> bool {
        let per_s = match self.logins_per_s.load(Relaxed) {
            0 => return true,
            per_s => f64::from(per_s),
        };
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed_s = now_ms.saturating_sub(rate.refilled_ms) as f64 / 1000.0;
        rate.refilled_ms = now_ms;
        rate.level = (rate.level + elapsed_s * per_s).min(per_s);
        let has_room = rate.level >= 1.0;
        if has_room {
            rate.level -= 1.0;
        }
        has_room
    }

    /// Whether a login is locked out: the user at this address, the user as a whole, or the address as a whole. A
    /// client without a password presents a token, which cannot be guessed, so the address lockout does not apply to
    /// it.
    pub(crate) fn is_locked_out(
        &self,
        who: &RuleSubject<'_>,
        has_password: bool,
        now_ms: u64,
    ) -> bool {
        if self.user_addresses.is_disabled() && self.users.is_disabled() {
            return false;
        }
        let address = who.address.map(counted_address);
        let username = who.username.map(str::to_owned);
        if let (Some(address), Some(username)) = (address, &username) {
            if self
                .user_addresses
                .is_locked_out(&(address, username.clone()), now_ms)
            {
                return true;
            }
            if self
                .lock_known()
                .pairs
                .contains(&(address, self.username_hash(username)))
            {
                return false;
            }
        }
        has_password
            && address.is_some_and(|address| self.addresses.is_locked_out(&address, now_ms))
            || username.is_some_and(|username| self.users.is_locked_out(&username, now_ms))
    }

    pub(crate) fn record_failure(&self, who: &RuleSubject<'_>, now_ms: u64) {
        if let Some(username) = who.username
            && self.users.record(username.to_owned(), now_ms)
        {
            tracing::warn!(username, "user locked out: too many failed logins");
        }
        let Some(address) = who.address.map(counted_address) else {
            return;
        };
        let username = who.username.unwrap_or_default();
        if self
            .user_addresses
            .record((address, username.to_owned()), now_ms)
        {
            tracing::warn!(%address, username, "user locked out at this address: too many failed logins");
        }
        if self.addresses.record(address, now_ms) {
            tracing::warn!(%address, "address locked out: too many failed logins of many users");
        }
    }

    pub(crate) fn record_success(&self, who: &RuleSubject<'_>) {
        if self.user_addresses.is_disabled() && self.users.is_disabled() {
            return;
        }
        let Some(username) = who.username else { return };
        if !self.users.is_disabled() {
            self.users.reset(&username.to_owned());
        }
        let Some(address) = who.address.map(counted_address) else {
            return;
        };
        let pair = (address, self.username_hash(username));
        let mut known = self.lock_known();
        if known.pairs.insert(pair) {
            known.order.push_back(pair);
            if known.order.len() > MAX_TRACKED_KEYS
                && let Some(oldest) = known.order.pop_front()
            {
                known.pairs.remove(&oldest);
            }
        }
    }

    fn lock_known(&self) -> MutexGuard<'_, KnownLogins> {
        self.known_logins
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn username_hash(&self, username: &str) -> u64 {
        self.name_keys.hash_one(username)
    }

    /// Records a disconnect. Returns the time until which the client is to be banned, if this was once too often.
    pub(crate) fn record_disconnect(
        &self,
        client_id: &str,
        reason: &str,
        now_ms: u64,
    ) -> Option<u64> {
        let counts = !NON_FLAPPING_REASONS.contains(&reason);
        (counts && self.flapping.record(client_id.to_owned(), now_ms))
            .then(|| now_ms + self.flapping_ban_ms.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who<'a>(username: &'a str, address: &str) -> RuleSubject<'a> {
        RuleSubject {
            username: Some(username),
            address: Some(address.parse().unwrap()),
            ..RuleSubject::default()
        }
    }

    #[test]
    fn addresses_of_one_network_count_as_one_and_other_users_there_are_let_in() {
        let limits = AuthLimits {
            max_failed_logins_per_address: 2,
            max_failed_logins_per_user: 0,
            ..AuthLimits::default()
        };
        let guards = LoginLimiter::new(&limits);
        let is_out = |username, address| guards.is_locked_out(&who(username, address), true, 0);
        guards.record_failure(&who("ann", "fd00::1"), 0);
        assert!(!is_out("ann", "fd00::3"));
        guards.record_failure(&who("ann", "fd00::2"), 0);
        assert!(is_out("ann", "fd00::3"));
        assert!(!is_out("bob", "fd00::3"));
        assert!(!is_out("ann", "fd00:0:0:1::3"));
    }

    #[test]
    fn an_address_that_tries_many_users_locks_out_only_new_pairs() {
        let limits = AuthLimits {
            max_failed_logins_per_address: 1,
            max_failed_logins_per_user: 0,
            ..AuthLimits::default()
        };
        let guards = LoginLimiter::new(&limits);
        guards.record_success(&who("ann", "10.0.0.1"));
        for n in 0..ADDRESS_FACTOR {
            guards.record_failure(&who(&n.to_string(), "10.0.0.1"), 0);
        }
        let is_out = |username, has_password| {
            guards.is_locked_out(&who(username, "10.0.0.1"), has_password, 0)
        };
        assert!(is_out("bob", true));
        assert!(!is_out("ann", true));
        assert!(!is_out("a-token", false), "tokens are always looked at");
    }

    #[test]
    fn a_successful_login_resets_the_count() {
        let limits = AuthLimits {
            max_failed_logins_per_user: 2,
            ..AuthLimits::default()
        };
        let guards = LoginLimiter::new(&limits);
        let ann = RuleSubject {
            username: Some("ann"),
            ..RuleSubject::default()
        };
        guards.record_failure(&ann, 0);
        guards.record_success(&ann);
        guards.record_failure(&ann, 0);
        assert!(!guards.is_locked_out(&ann, true, 0));
        guards.record_failure(&ann, 0);
        assert!(guards.is_locked_out(&ann, true, 0));
    }

    #[test]
    fn logins_have_a_rate() {
        let limits = AuthLimits {
            max_logins_per_s: 2,
            ..AuthLimits::default()
        };
        let guards = LoginLimiter::new(&limits);
        assert!(guards.try_acquire(1000) && guards.try_acquire(1000));
        assert!(!guards.try_acquire(1000));
        assert!(guards.try_acquire(1500));
        assert!(!guards.try_acquire(1500));
    }

    #[test]
    fn limits_change_while_logins_go_on() {
        let guards = LoginLimiter::new(&AuthLimits::default());
        assert!(guards.try_acquire(1000));
        guards.set_limits(&AuthLimits {
            max_logins_per_s: 1,
            flapping_disconnects: 1,
            flapping_ban_s: 5,
            ..AuthLimits::default()
        });
        assert!(guards.try_acquire(2000));
        assert!(!guards.try_acquire(2000));
        assert_eq!(guards.record_disconnect("c", "socket_error", 0), Some(5000));
        guards.set_limits(&AuthLimits::default());
        assert!(guards.try_acquire(2000));
        assert_eq!(guards.record_disconnect("c", "socket_error", 0), None);
    }

    #[test]
    fn coming_and_going_is_noticed() {
        let limits = AuthLimits {
            flapping_disconnects: 2,
            flapping_ban_s: 5,
            ..AuthLimits::default()
        };
        let guards = LoginLimiter::new(&limits);
        assert_eq!(guards.record_disconnect("c", "normal", 0), None);
        for of_server in ["server_shutting_down", "rebalancing"] {
            assert_eq!(guards.record_disconnect("c", of_server, 0), None);
        }
        assert_eq!(guards.record_disconnect("c", "socket_error", 0), Some(5000));
    }
}
