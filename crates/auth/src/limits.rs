//! Who tries too often: failed logins by user and by address, logins of all clients together, connections that come and
//! go.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::rules::Who;
use crate::settings::Limits;
use crate::windows::Windows;

/// Names and addresses that are counted at once.
const MAX_COUNTED: usize = 100_000;

/// Disconnects that are not the client's doing.
const NOT_FLAPPING: [&str; 4] = ["server_shutting_down", "kicked", "taken_over", "banned"];

pub(crate) struct Guards {
    users: Windows<String>,
    addresses: Windows<IpAddr>,
    flapping: Windows<String>,
    flapping_ban_ms: AtomicU64,
    /// 0: no limit.
    logins_per_s: AtomicU32,
    rate: Mutex<Rate>,
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
            addresses: Windows::new(0, 0, 0, MAX_COUNTED),
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
        self.addresses
            .set(limits.max_failed_logins_per_address, window_s, hold_s);
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

    /// Whether this user or this address has failed too often lately.
    pub(crate) fn is_locked_out(&self, who: &Who<'_>, now_ms: u64) -> bool {
        let by_address =
            (who.address).is_some_and(|address| self.addresses.is_held(&network(address), now_ms));
        by_address
            || !self.users.is_off()
                && (who.username)
                    .is_some_and(|username| self.users.is_held(&username.to_owned(), now_ms))
    }

    pub(crate) fn login_failed(&self, who: &Who<'_>, now_ms: u64) {
        if let Some(username) = who.username
            && self.users.hit(username.to_owned(), now_ms)
        {
            tracing::warn!(username, "a user is locked out: too many failed logins");
        }
        if let Some(address) = who.address
            && self.addresses.hit(network(address), now_ms)
        {
            tracing::warn!(%address, "an address is locked out: too many failed logins");
        }
    }

    pub(crate) fn login_succeeded(&self, username: Option<&str>) {
        if let Some(username) = username
            && !self.users.is_off()
        {
            self.users.forget(&username.to_owned());
        }
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

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let limits = Limits {
            max_failed_logins_per_address: 2,
            max_failed_logins_per_user: 0,
            ..Limits::default()
        };
        let guards = Guards::new(&limits);
        let from = |address: &str| Who {
            username: Some("ann"),
            address: Some(address.parse().unwrap()),
            ..Who::default()
        };
        guards.login_failed(&from("fd00::1"), 0);
        assert!(!guards.is_locked_out(&from("fd00::3"), 0));
        guards.login_failed(&from("fd00::2"), 0);
        assert!(guards.is_locked_out(&from("fd00::3"), 0));
        assert!(!guards.is_locked_out(&from("fd00:0:0:1::3"), 0));
        assert!(!guards.is_locked_out(&from("10.0.0.1"), 0));
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
        guards.login_succeeded(Some("ann"));
        guards.login_failed(&ann, 0);
        assert!(!guards.is_locked_out(&ann, 0));
        guards.login_failed(&ann, 0);
        assert!(guards.is_locked_out(&ann, 0));
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
