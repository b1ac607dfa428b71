//! Limits of received bytes per second, by sender and for the node.

use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::record::{FileOwner, OwnerKind};

/// Senders whose rate is tracked at once; those that have caught up are forgotten first.
const MAX_TRACKED: usize = 65_536;

/// Charges received bytes, and returns until when their sender has to pause.
///
/// A limit is stored as the time until which the bytes received so far use it up. It may be in the future: a sender is
/// paused after it has sent too much, and nothing it sent is lost.
#[derive(Default)]
pub(crate) struct RateLimits(Mutex<RateLimitState>);

#[derive(Default)]
struct RateLimitState {
    node_free_at_us: u64,
    owners_free_at_us: HashMap<(OwnerKind, Box<str>), u64, RandomState>,
}

fn charge(free_at_us: &mut u64, bytes: u64, per_s: u64, now_us: u64) -> u64 {
    if per_s == 0 {
        return 0;
    }
    let cost_us = bytes.saturating_mul(1_000_000) / per_s;
    *free_at_us = (*free_at_us).max(now_us).saturating_add(cost_us);
    *free_at_us
}

impl RateLimits {
    /// Returns the time in milliseconds until which the sender pauses; 0: it need not.
    pub(crate) fn charge(
        &self,
        owner: &FileOwner,
        bytes: u64,
        (node_per_s, owner_per_s): (u64, u64),
        now_ms: u64,
    ) -> u64 {
        if node_per_s == 0 && owner_per_s == 0 {
            return 0;
        }
        let now_us = now_ms.saturating_mul(1000);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut until_us = charge(&mut state.node_free_at_us, bytes, node_per_s, now_us);
        if owner_per_s != 0 {
            if state.owners_free_at_us.len() >= MAX_TRACKED {
                state
                    .owners_free_at_us
                    .retain(|_, free_at_us| *free_at_us > now_us);
            }
            let key = (owner.kind, owner.id.as_str().into());
            let owner_us = state.owners_free_at_us.entry(key).or_default();
            until_us = until_us.max(charge(owner_us, bytes, owner_per_s, now_us));
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

    #[test]
    fn a_sender_pauses_as_long_as_its_bytes_take() {
        let limits = RateLimits::default();
        let [a, b] = ["a", "b"].map(FileOwner::client);
        assert_eq!(limits.charge(&a, 1 << 40, (0, 0), 1000), 0, "no limit");
        assert_eq!(limits.charge(&a, 500, (0, 1000), 1000), 1500);
        assert_eq!(limits.charge(&a, 500, (0, 1000), 1500), 2000);
        assert_eq!(limits.charge(&a, 500, (0, 1000), 1500), 2500, "too early");
        assert_eq!(
            limits.charge(&b, 500, (0, 1000), 1500),
            2000,
            "another sender"
        );
        assert_eq!(limits.charge(&b, 100, (100, 0), 5000), 6000, "the node");
        assert_eq!(limits.charge(&a, 100, (100, 0), 5000), 7000);
    }
}
