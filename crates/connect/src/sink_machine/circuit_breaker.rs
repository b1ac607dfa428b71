//! The circuit breaker of a sink's system. After a transient failure all batches wait, for longer after each further failure;
//! then a single batch probes whether the system has recovered. A system that is down therefore sees one attempt at a time.

use std::hash::BuildHasher as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use wall_clock::now_ms;

use crate::connector::ConnectorError;
use crate::settings::RetrySettings;

pub(crate) struct CircuitBreaker {
    retry: RetrySettings,
    state: Mutex<CircuitBreakerState>,
    changed: Notify,
}

#[derive(Default)]
struct CircuitBreakerState {
    /// Consecutive failures.
    failures: u32,
    open_until: Option<Instant>,
    is_probing: bool,
    /// Increases with each counted failure; failures of batches that were in flight at that time do not count again.
    generation: u64,
    last_error: Option<(u64, String)>,
    last_success_ms: Option<u64>,
    /// Start of the period in which nothing could be written.
    failing_since_ms: Option<u64>,
}

/// Permission for one attempt, passed back with its result.
#[derive(Debug)]
pub(crate) struct AttemptPermit(u64);

/// Status of a circuit for display.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct SinkHealth {
    pub circuit: CircuitState,
    /// Consecutive failures of the system as a whole.
    pub failures: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_success_at_ms: Option<u64>,
    /// When the present failure began; absent while the sink writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing_since_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CircuitState {
    /// Batches are written.
    #[default]
    Closed,
    /// Batches wait.
    Open,
    /// One batch probes whether the system has recovered.
    HalfOpen,
}

impl CircuitBreaker {
    pub(crate) fn new(retry: RetrySettings) -> Self {
        Self {
            retry,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CircuitBreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an attempt is permitted.
    pub(crate) async fn acquire(&self) -> AttemptPermit {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on notifications are received, even before the wait below.
            changed.as_mut().enable();
            let wait_until = {
                let mut state = self.lock();
                match state.open_until {
                    None => return AttemptPermit(state.generation),
                    Some(_) if state.is_probing => None,
                    Some(until) if until <= Instant::now() => {
                        state.is_probing = true;
                        return AttemptPermit(state.generation);
                    }
                    until => until,
                }
            };
            match wait_until {
                None => changed.await,
                Some(until) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(until) => {}
                },
            }
        }
    }

    /// Records that the system answered, whatever it reported about single rows. True if it had been failing.
    pub(crate) fn record_success(&self, pass: &AttemptPermit) -> bool {
        let mut state = self.lock();
        state.last_success_ms = Some(now_ms());
        // A batch that was in flight when others failed does not show the present state, unless it is the probe.
        if pass.0 != state.generation {
            return false;
        }
        let was_open = state.open_until.take().is_some();
        state.failing_since_ms = None;
        state.failures = 0;
        state.is_probing = false;
        if was_open {
            self.changed.notify_waiters();
        }
        was_open
    }

    /// Records a transient failure. True if the system had been working.
    pub(crate) fn record_failure(
        &self,
        pass: &AttemptPermit,
        message: &str,
        retry_after: Option<Duration>,
    ) -> bool {
        let mut state = self.lock();
        state.last_error = Some((now_ms(), message.to_owned()));
        state.failing_since_ms.get_or_insert_with(now_ms);
        if pass.0 != state.generation {
            return false;
        }
        state.generation += 1;
        state.failures = state.failures.saturating_add(1);
        state.is_probing = false;
        let pause = backoff(&self.retry, state.failures).max(retry_after.unwrap_or_default());
        let was_open = state.open_until.replace(Instant::now() + pause).is_some();
        self.changed.notify_waiters();
        !was_open
    }

    /// Records an error of rows; the system itself works.
    pub(crate) fn record_row_error(&self, message: &str) {
        self.lock().last_error = Some((now_ms(), message.to_owned()));
    }

    /// Consecutive failures of the system as a whole.
    pub(crate) fn failures(&self) -> u32 {
        self.lock().failures
    }

    /// Records the result of checking the sink's statement without a row.
    pub(crate) fn record_check(&self, result: &Result<String, ConnectorError>) {
        let mut state = self.lock();
        match result {
            Ok(_) if state.failures == 0 => state.failing_since_ms = None,
            Ok(_) => {}
            Err(failure) => {
                state.last_error = Some((now_ms(), failure.message.clone()));
                state.failing_since_ms.get_or_insert_with(now_ms);
            }
        }
    }

    pub(crate) fn health(&self) -> SinkHealth {
        let state = self.lock();
        let (last_error_at_ms, last_error) = state.last_error.clone().unzip();
        SinkHealth {
            circuit: match (state.open_until, state.is_probing) {
                (None, _) => CircuitState::Closed,
                (Some(_), true) => CircuitState::HalfOpen,
                (Some(_), false) => CircuitState::Open,
            },
            failures: state.failures,
            last_error,
            last_error_at_ms,
            last_success_at_ms: state.last_success_ms,
            failing_since_ms: state.failing_since_ms,
        }
    }
}

/// The pause after a number of consecutive failures. It doubles with each failure, and is random between half of that
/// and all of it. Sinks that failed together thus do not retry together.
pub(crate) fn backoff(retry: &RetrySettings, failures: u32) -> Duration {
    let doubled = 1_u64
        .checked_shl(failures.saturating_sub(1))
        .unwrap_or(u64::MAX);
    let full_ms = retry
        .initial_delay_ms
        .saturating_mul(doubled)
        .min(retry.max_delay_ms);
    let random = foldhash::fast::RandomState::default().hash_one(now_ms());
    let half_us = (full_ms * 1000) / 2;
    Duration::from_micros(half_us + random % (half_us + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        let retry = RetrySettings {
            initial_delay_ms: 100,
            max_delay_ms: 1000,
            ..RetrySettings::default()
        };
        for (failures, full_ms) in [(1, 100), (2, 200), (4, 800), (5, 1000), (90, 1000)] {
            for _ in 0..20 {
                let pause = backoff(&retry, failures).as_micros();
                assert!((full_ms * 500..=full_ms * 1000).contains(&pause));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_shows_whether_the_system_is_back() {
        let circuit = CircuitBreaker::new(RetrySettings::default());
        let (first, second) = (circuit.acquire().await, circuit.acquire().await);
        assert!(circuit.record_failure(&first, "down", None));
        assert!(
            !circuit.record_failure(&second, "down", None),
            "counted once"
        );
        assert_eq!(circuit.health().failures, 1);
        assert_eq!(circuit.health().circuit, CircuitState::Open);
        assert!(circuit.health().failing_since_ms.is_some());
        let probe = circuit.acquire().await;
        assert_eq!(circuit.health().circuit, CircuitState::HalfOpen);
        let other = tokio::time::timeout(Duration::from_secs(60), circuit.acquire()).await;
        assert!(other.is_err(), "only one");
        assert!(circuit.record_success(&probe));
        assert_eq!(circuit.health().circuit, CircuitState::Closed);
        assert_eq!(circuit.health().last_error.as_deref(), Some("down"));
        assert_eq!(circuit.health().failing_since_ms, None);
    }
}
