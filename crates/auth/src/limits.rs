//! Who tries too often: failed logins by user and address, logins of all clients together, connections that come and go.
//!
//! Failures count for each pair of user and address, so that a device with a wrong password does not keep out others
//! behind the same NAT. An address that fails for many users, and a user that is guessed at from many addresses, are
//! locked out as a whole, but not pairs that have logged in before.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::rules::Who;
use crate::settings::Limits;
use crate::windows::Windows;

/// Names and addresses that are counted at once.
const MAX_COUNTED: usize = 100_000;

/// Failures of an address for any users that lock it out, in multiples of those of one user.
const ADDRESS_FACTOR: u32 = 10;

/// Disconnects that are not the client's doing.
const NOT_FLAPPING: [&str; 4] = ["server_shutting_down", "kicked", "taken_over", "banned"];

pub(crate) struct Guards {
    users: Windows<String>,
    pairs: Windows<(IpAddr, String)>,
    addresses: Windows<IpAddr>,
    known: Mutex<KnownPairs>,
    name_keys: RandomState,
    flapping: Windows<String>,
    flapping_ban_ms: AtomicU64,
    /// 0: no limit.
    logins_per_s: AtomicU32,
    rate: Mutex<Rate>,
}

/// Pairs of address and user, by a keyed hash of its name, that have logged in. The oldest are forgotten.
#[derive(Default)]
struct KnownPairs {
    pairs: HashSet<(IpAddr, u64)>,
    order: VecDeque<(IpAddr, u64)>,
}

/// A bucket that fills with time.
struct Rate {
    level: f64,
    filled_ms: u64,
}

impl Guards {
    pub(crate) fn new(limits: &Limits) -> Self {
        let guards = Self {
            users: Windows::new(0, 0, 0, MAX_COUNTED),
            pairs: Windows::new(0, 0, 0, MAX_COUNTED),
            addresses: Windows::new(0, 0, 0, MAX_COUNTED),
            known: Mutex::default(),
            name_keys: RandomState::new(),
            flapping: Windows::new(0, 0, 0, MAX_COUNTED),
            flapping_ban_ms: AtomicU64::default(),
            logins_per_s: AtomicU32::default(),
            rate: Mutex::new(Rate {
                level: limits.max_logins_per_s.into(),
                filled_ms: 0,
            }),
        };
        guards.set(limits);
        guards
    }

    /// Other limits from now on; what was counted counts.
    pub(crate) fn set(&self, limits: &Limits) {
        let (window_s, hold_s) = (limits.failed_login_window_s, limits.lockout_s);
        self.users
            .set(limits.max_failed_logins_per_user, window_s, hold_s);
        let of_pair = limits.max_failed_logins_per_address;
        self.pairs.set(of_pair, window_s, hold_s);
        let of_address = of_pair.saturating_mul(ADDRESS_FACTOR);
        self.addresses.set(of_address, window_s, hold_s);
        self.flapping.set(
            limits.flapping_disconnects,
            limits.flapping_window_s,
            limits.flapping_ban_s,
        );
        let ban_ms = u64::from(limits.flapping_ban_s) * 1000;
        self.flapping_ban_ms.store(ban_ms, Relaxed);
        self.logins_per_s.store(limits.max_logins_per_s, Relaxed);
    }

    /// Whether one more client may try now.
    pub(crate) fn take_place(&self, now_ms: u64) -> bool {
        let per_s = match self.logins_per_s.load(Relaxed) {
            0 => return true,
            per_s => f64::from(per_s),
        };
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed_s = now_ms.saturating_sub(rate.filled_ms) as f64 / 1000.0;
        rate.filled_ms = now_ms;
        rate.level = (rate.level + elapsed_s * per_s).min(per_s);
        let has_room = rate.level >= 1.0;
        if has_room {
            rate.level -= 1.0;
        }
        has_room
    }

    /// Whether this user has failed too often lately, from this address or at all, or this address for other users, too.
    /// A client without a password shows a token, which cannot be guessed: it is looked at whatever others at its address do.
    pub(crate) fn is_locked_out(&self, who: &Who<'_>, has_password: bool, now_ms: u64) -> bool {
        if self.pairs.is_off() && self.users.is_off() {
            return false;
        }
        let address = who.address.map(network);
        let username = who.username.map(str::to_owned);
        if let (Some(address), Some(username)) = (address, &username) {
            if self.pairs.is_held(&(address, username.clone()), now_ms) {
                return true;
            }
            if self
                .known()
                .pairs
                .contains(&(address, self.key_of(username)))
            {
                return false;
            }
        }
        has_password && address.is_some_and(|address| self.addresses.is_held(&address, now_ms))
            || username.is_some_and(|username| self.users.is_held(&username, now_ms))
    }

    pub(crate) fn login_failed(&self, who: &Who<'_>, now_ms: u64) {
        if let Some(username) = who.username
            && self.users.hit(username.to_owned(), now_ms)
        {
            tracing::warn!(username, "user locked out: too many failed logins");
        }
        let Some(address) = who.address.map(network) else {
            return;
        };
        let username = who.username.unwrap_or_default();
        if self.pairs.hit((address, username.to_owned()), now_ms) {
            tracing::warn!(%address, username, "user locked out at this address: too many failed logins");
        }
        if self.addresses.hit(address, now_ms) {
            tracing::warn!(%address, "address locked out: too many failed logins of many users");
        }
    }

    pub(crate) fn login_succeeded(&self, who: &Who<'_>) {
        if self.pairs.is_off() && self.users.is_off() {
            return;
        }
        let Some(username) = who.username else { return };
        if !self.users.is_off() {
            self.users.forget(&username.to_owned());
        }
        let Some(address) = who.address.map(network) else {
            return;
        };
        let pair = (address, self.key_of(username));
        let mut known = self.known();
        if known.pairs.insert(pair) {
            known.order.push_back(pair);
            if known.order.len() > MAX_COUNTED
                && let Some(oldest) = known.order.pop_front()
            {
                known.pairs.remove(&oldest);
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownPairs> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key_of(&self, username: &str) -> u64 {
        self.name_keys.hash_one(username)
    }

    /// A connection has ended. The time until which its client is to be kept out, if that was once too often.
    pub(crate) fn disconnected(&self, client_id: &str, reason: &str, now_ms: u64) -> Option<u64> {
        let counts = !NOT_FLAPPING.contains(&reason);
        (counts && self.flapping.hit(client_id.to_owned(), now_ms))
            .then(|| now_ms + self.flapping_ban_ms.load(Relaxed))
    }
}

/// Who counts as one: an IPv4 address, a /64 of IPv6, of which a household has all.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who<'a>(username: &'a str, address: &str) -> Who<'a> {
        Who {
            username: Some(username),
            address: Some(address.parse().unwrap()),
            ..Who::default()
        }
    }

    #[test]
    fn addresses_of_one_network_count_as_one_and_other_users_there_are_let_in() {
        let limits = Limits {
            max_failed_logins_per_address: 2,
            max_failed_logins_per_user: 0,
            ..Limits::default()
        };
        let guards = Guards::new(&limits);
        let is_out = |username, address| guards.is_locked_out(&who(username, address), true, 0);
        guards.login_failed(&who("ann", "fd00::1"), 0);
        assert!(!is_out("ann", "fd00::3"));
        guards.login_failed(&who("ann", "fd00::2"), 0);
        assert!(is_out("ann", "fd00::3"));
        assert!(!is_out("bob", "fd00::3"));
        assert!(!is_out("ann", "fd00:0:0:1::3"));
    }

    #[test]
    fn an_address_that_tries_many_users_keeps_out_only_those_it_never_had() {
        let limits = Limits {
            max_failed_logins_per_address: 1,
            max_failed_logins_per_user: 0,
            ..Limits::default()
        };
        let guards = Guards::new(&limits);
        guards.login_succeeded(&who("ann", "10.0.0.1"));
        for n in 0..ADDRESS_FACTOR {
            guards.login_failed(&who(&n.to_string(), "10.0.0.1"), 0);
        }
        let is_out = |username, has_password| {
            guards.is_locked_out(&who(username, "10.0.0.1"), has_password, 0)
        };
        assert!(is_out("bob", true));
        assert!(!is_out("ann", true));
        assert!(!is_out("a-token", false), "tokens are always looked at");
    }

    #[test]
    fn a_user_that_got_in_starts_anew() {
        let limits = Limits {
            max_failed_logins_per_user: 2,
            ..Limits::default()
        };
        let guards = Guards::new(&limits);
        let ann = Who {
            username: Some("ann"),
            ..Who::default()
        };
        guards.login_failed(&ann, 0);
        guards.login_succeeded(&ann);
        guards.login_failed(&ann, 0);
        assert!(!guards.is_locked_out(&ann, true, 0));
        guards.login_failed(&ann, 0);
        assert!(guards.is_locked_out(&ann, true, 0));
    }

    #[test]
    fn logins_have_a_rate() {
        let limits = Limits {
            max_logins_per_s: 2,
            ..Limits::default()
        };
        let guards = Guards::new(&limits);
        assert!(guards.take_place(1000) && guards.take_place(1000));
        assert!(!guards.take_place(1000));
        assert!(guards.take_place(1500));
        assert!(!guards.take_place(1500));
    }

    #[test]
    fn limits_change_while_logins_go_on() {
        let guards = Guards::new(&Limits::default());
        assert!(guards.take_place(1000));
        guards.set(&Limits {
            max_logins_per_s: 1,
            flapping_disconnects: 1,
            flapping_ban_s: 5,
            ..Limits::default()
        });
        assert!(guards.take_place(2000));
        assert!(!guards.take_place(2000));
        assert_eq!(guards.disconnected("c", "socket_error", 0), Some(5000));
        guards.set(&Limits::default());
        assert!(guards.take_place(2000));
        assert_eq!(guards.disconnected("c", "socket_error", 0), None);
    }

    #[test]
    fn coming_and_going_is_noticed() {
        let limits = Limits {
            flapping_disconnects: 2,
            flapping_ban_s: 5,
            ..Limits::default()
        };
        let guards = Guards::new(&limits);
        assert_eq!(guards.disconnected("c", "normal", 0), None);
        assert_eq!(guards.disconnected("c", "server_shutting_down", 0), None);
        assert_eq!(guards.disconnected("c", "socket_error", 0), Some(5000));
    }
}
