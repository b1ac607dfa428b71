//! Wraps an authenticator or rule source that calls an external server with a time-out, a circuit breaker and a cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::answer_cache::AnswerCache;
use crate::authenticator::{
    AnswerFuture, AuthBackendError, Authenticator, AuthenticatorAnswer, LoginRequest,
};
use crate::circuit_breaker::{BreakerTransition, CircuitBreaker};
use crate::rule_sources::RuleSource;
use crate::rules::AclRule;

/// Limits of calls to an external server; settings of every authenticator and source that makes such calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct BackendLimits {
    pub(crate) timeout_ms: u64,
    /// Lifetime of a cached answer in seconds; 0 disables the cache.
    pub(crate) cache_ttl_s: u64,
    pub(crate) cache_entries: usize,
    /// Consecutive failures after which the breaker opens for `circuit_breaker_open_ms`.
    pub(crate) circuit_breaker_failures: u32,
    pub(crate) circuit_breaker_open_ms: u64,
}

impl Default for BackendLimits {
    fn default() -> Self {
        Self {
            timeout_ms: 5_000,
            cache_ttl_s: 0,
            cache_entries: 100_000,
            circuit_breaker_failures: 5,
            circuit_breaker_open_ms: 5_000,
        }
    }
}

impl BackendLimits {
    /// The field names of these limits within an authenticator's settings.
    pub(crate) const FIELDS: [&str; 5] = [
        "timeout_ms",
        "cache_ttl_s",
        "cache_entries",
        "circuit_breaker_failures",
        "circuit_breaker_open_ms",
    ];

    pub(crate) fn validate(&self) -> Result<(), String> {
        let within =
            |field: &str, value: u64, min: u64, max: u64| match (min..=max).contains(&value) {
                true => Ok(()),
                false => Err(format!("{field}: expected {min} to {max}, found {value}")),
            };
        within("timeout_ms", self.timeout_ms, 10, 60_000)?;
        within("cache_ttl_s", self.cache_ttl_s, 0, 86_400)?;
        within("cache_entries", self.cache_entries as u64, 0, 10_000_000)?;
        within(
            "circuit_breaker_failures",
            self.circuit_breaker_failures.into(),
            1,
            1_000_000,
        )?;
        within(
            "circuit_breaker_open_ms",
            self.circuit_breaker_open_ms,
            1,
            600_000,
        )
    }
}

pub(crate) struct GuardedBackend<T> {
    name: Arc<str>,
    inner: T,
    timeout: Duration,
    breaker: CircuitBreaker,
    cache: Option<AnswerCache>,
}

impl<T> GuardedBackend<T> {
    pub(crate) fn new(name: &str, inner: T, bounds: &BackendLimits) -> Self {
        Self {
            name: name.into(),
            inner,
            timeout: Duration::from_millis(bounds.timeout_ms),
            breaker: CircuitBreaker::new(
                bounds.circuit_breaker_failures,
                Duration::from_millis(bounds.circuit_breaker_open_ms),
            ),
            cache: AnswerCache::new(
                Duration::from_secs(bounds.cache_ttl_s),
                bounds.cache_entries,
            ),
        }
    }

    async fn query<R>(
        &self,
        question: impl Future<Output = Result<R, AuthBackendError>>,
    ) -> Result<R, AuthBackendError> {
        if !self.breaker.allows(Instant::now()) {
            return Err(AuthBackendError::new(
                "not queried: the circuit breaker is open after repeated failures",
            ));
        }
        let result = tokio::time::timeout(self.timeout, question).await;
        let result = result.unwrap_or_else(|_| {
            Err(AuthBackendError(format!(
                "no answer within {} ms",
                self.timeout.as_millis()
            )))
        });
        match &result {
            Ok(_) => {
                if self.breaker.record_success() == BreakerTransition::Closed {
                    tracing::info!(name = %self.name, "authentication backend answers again");
                }
            }
            Err(failure) => {
                if self.breaker.record_failure(Instant::now()) == BreakerTransition::Opened {
                    tracing::error!(name = %self.name, %failure, "authentication backend failed repeatedly; circuit breaker opened, clients that need it are rejected");
                } else {
                    tracing::debug!(name = %self.name, %failure, "authentication backend call failed");
                }
            }
        }
        result
    }
}

impl<T: Authenticator> Authenticator for GuardedBackend<T> {
    fn applies_to(&self, request: &LoginRequest) -> bool {
        self.inner.applies_to(request)
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        Box::pin(async move {
            let Some(cache) = &self.cache else {
                return self.query(self.inner.check(request)).await;
            };
            let key = cache.key(request);
            if let Some(answer) = cache.get(&key, Instant::now()) {
                return Ok(answer);
            }
            let answer = self.query(self.inner.check(request)).await?;
            // The decoy check of an unknown user runs once, like the check of an existing user, so it is not cached.
            let cached = match &answer {
                AuthenticatorAnswer::Unknown(_) => AuthenticatorAnswer::Ignore,
                answer => answer.clone(),
            };
            cache.put(key, cached, Instant::now());
            Ok(answer)
        })
    }
}

impl<T: RuleSource> RuleSource for GuardedBackend<T> {
    fn fetch_rules<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<Vec<AclRule>, AuthBackendError>> {
        Box::pin(self.query(self.inner.fetch_rules(request)))
    }
}
