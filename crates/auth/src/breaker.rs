//! A circuit breaker: after several failures in a row nobody is asked for a while, so that a server that is down does
//! not cost every client its time-out; then one attempt shows whether it is back.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) struct Breaker {
    /// Failures in a row that open it.
    limit: u32,
    open_for: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failures: u32,
    /// Nobody is asked before that.
    open_until: Option<Instant>,
}

/// What a failure or a success changed; for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Nothing,
    Opened,
    Closed,
}

impl Breaker {
    pub(crate) fn new(limit: u32, open_for: Duration) -> Self {
        Self {
            limit,
            open_for,
            state: Mutex::default(),
        }
    }

    /// Whether one may ask now. Once the time is over one is let through, and the others wait for what becomes of it.
    pub(crate) fn lets_through(&self, now: Instant) -> bool {
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

    pub(crate) fn succeeded(&self) -> Turn {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures = 0;
        match state.open_until.take() {
            Some(_) => Turn::Closed,
            None => Turn::Nothing,
        }
    }

    pub(crate) fn failed(&self, now: Instant) -> Turn {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures = state.failures.saturating_add(1);
        if state.failures < self.limit {
            return Turn::Nothing;
        }
        let was_open = state.open_until.replace(now + self.open_for).is_some();
        match was_open {
            true => Turn::Nothing,
            false => Turn::Opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_tries_one_later() {
        let second = Duration::from_secs(1);
        let breaker = Breaker::new(2, second);
        let start = Instant::now();
        assert_eq!(breaker.failed(start), Turn::Nothing);
        assert_eq!(breaker.succeeded(), Turn::Nothing);
        assert_eq!(breaker.failed(start), Turn::Nothing);
        assert!(breaker.lets_through(start));
        assert_eq!(breaker.failed(start), Turn::Opened);
        assert!(!breaker.lets_through(start));
        assert!(breaker.lets_through(start + second));
        assert!(!breaker.lets_through(start + second), "only one");
        assert_eq!(breaker.failed(start + second), Turn::Nothing);
        assert!(breaker.lets_through(start + 2 * second));
        assert_eq!(breaker.succeeded(), Turn::Closed);
        assert!(breaker.lets_through(start + 2 * second));
    }
}
