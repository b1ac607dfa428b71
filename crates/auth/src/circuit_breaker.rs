//! A circuit breaker: after several consecutive failures, no calls are made for a while. A failed server thus does not
//! cost every client a time-out. Then one trial call tests whether the server is back.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) struct CircuitBreaker {
    /// Consecutive failures that open the breaker.
    limit: u32,
    open_for: Duration,
    state: Mutex<BreakerState>,
}

#[derive(Default)]
struct BreakerState {
    failures: u32,
    /// No call is allowed before this time.
    open_until: Option<Instant>,
}

/// The state change caused by a result; used for logging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BreakerTransition {
    Unchanged,
    Opened,
    Closed,
}

impl CircuitBreaker {
    pub(crate) fn new(limit: u32, open_for: Duration) -> Self {
        Self {
            limit,
            open_for,
            state: Mutex::default(),
        }
    }

    /// Whether a call is allowed. After the open time one trial call is allowed; further calls are rejected until it
    /// succeeds or `open_for` has passed again.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.open_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                state.open_until = Some(now + self.open_for);
                true
            }
        }
    }

    pub(crate) fn record_success(&self) -> BreakerTransition {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures = 0;
        match state.open_until.take() {
            Some(_) => BreakerTransition::Closed,
            None => BreakerTransition::Unchanged,
        }
    }

    pub(crate) fn record_failure(&self, now: Instant) -> BreakerTransition {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures = state.failures.saturating_add(1);
        if state.failures < self.limit {
            return BreakerTransition::Unchanged;
        }
        let was_open = state.open_until.replace(now + self.open_for).is_some();
        match was_open {
            true => BreakerTransition::Unchanged,
            false => BreakerTransition::Opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_tries_one_later() {
        let second = Duration::from_secs(1);
        let breaker = CircuitBreaker::new(2, second);
        let start = Instant::now();
        assert_eq!(breaker.record_failure(start), BreakerTransition::Unchanged);
        assert_eq!(breaker.record_success(), BreakerTransition::Unchanged);
        assert_eq!(breaker.record_failure(start), BreakerTransition::Unchanged);
        assert!(breaker.allows(start));
        assert_eq!(breaker.record_failure(start), BreakerTransition::Opened);
        assert!(!breaker.allows(start));
        assert!(breaker.allows(start + second));
        assert!(!breaker.allows(start + second), "only one");
        assert_eq!(
            breaker.record_failure(start + second),
            BreakerTransition::Unchanged
        );
        assert!(breaker.allows(start + 2 * second));
        assert_eq!(breaker.record_success(), BreakerTransition::Closed);
        assert!(breaker.allows(start + 2 * second));
    }
}
