//! An authenticator or a source of rules that asks somebody outside: with a time-out, a breaker and a cache around it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::authenticator::{Answer, Answering, Authenticator, Failure, Request};
use crate::breaker::{Breaker, Turn};
use crate::cache::Cache;
use crate::rules::Rule;
use crate::sources::RuleSource;

/// Bounds on asking somebody outside; every authenticator that does has these settings.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Bounds {
    pub(crate) timeout_ms: u64,
    /// How long an answer holds; 0: each client is asked about.
    pub(crate) cache_s: u64,
    pub(crate) cache_entries: usize,
    /// Failures in a row after which nobody is asked for `breaker_open_ms`.
    pub(crate) breaker_failures: u32,
    pub(crate) breaker_open_ms: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            timeout_ms: 5_000,
            cache_s: 0,
            cache_entries: 100_000,
            breaker_failures: 5,
            breaker_open_ms: 5_000,
        }
    }
}

impl Bounds {
    /// The fields of these bounds, as they stand among others.
    pub(crate) const FIELDS: [&str; 5] = [
        "timeout_ms",
        "cache_s",
        "cache_entries",
        "breaker_failures",
        "breaker_open_ms",
    ];

    pub(crate) fn check(&self) -> Result<(), String> {
        let within =
            |field: &str, value: u64, min: u64, max: u64| match (min..=max).contains(&value) {
                true => Ok(()),
                false => Err(format!("{field}: expected {min} to {max}, found {value}")),
            };
        within("timeout_ms", self.timeout_ms, 10, 60_000)?;
        within("cache_s", self.cache_s, 0, 86_400)?;
        within("cache_entries", self.cache_entries as u64, 0, 10_000_000)?;
        within(
            "breaker_failures",
            self.breaker_failures.into(),
            1,
            1_000_000,
        )?;
        within("breaker_open_ms", self.breaker_open_ms, 1, 600_000)
    }
}

pub(crate) struct Guarded<T> {
    name: Arc<str>,
    inner: T,
    timeout: Duration,
    breaker: Breaker,
    cache: Option<Cache>,
}

impl<T> Guarded<T> {
    pub(crate) fn new(name: &str, inner: T, bounds: &Bounds) -> Self {
        Self {
            name: name.into(),
            inner,
            timeout: Duration::from_millis(bounds.timeout_ms),
            breaker: Breaker::new(
                bounds.breaker_failures,
                Duration::from_millis(bounds.breaker_open_ms),
            ),
            cache: Cache::new(Duration::from_secs(bounds.cache_s), bounds.cache_entries),
        }
    }

    async fn ask<R>(
        &self,
        question: impl Future<Output = Result<R, Failure>>,
    ) -> Result<R, Failure> {
        if !self.breaker.lets_through(Instant::now()) {
            return Err(Failure::new("not asked: it has failed several times"));
        }
        let result = tokio::time::timeout(self.timeout, question).await;
        let result = result.unwrap_or_else(|_| {
            Err(Failure(format!(
                "no answer within {} ms",
                self.timeout.as_millis()
            )))
        });
        match &result {
            Ok(_) => {
                if self.breaker.succeeded() == Turn::Closed {
                    tracing::info!(name = %self.name, "an authenticator answers again");
                }
            }
            Err(failure) => {
                if self.breaker.failed(Instant::now()) == Turn::Opened {
                    tracing::error!(name = %self.name, %failure, "an authenticator does not answer; clients that need it are not let in");
                } else {
                    tracing::debug!(name = %self.name, %failure, "an authenticator could not answer");
                }
            }
        }
        result
    }
}

impl<T: Authenticator> Authenticator for Guarded<T> {
    fn concerns(&self, request: &Request) -> bool {
        self.inner.concerns(request)
    }

    fn check<'a>(&'a self, request: &'a Request) -> Answering<'a, Result<Answer, Failure>> {
        Box::pin(async move {
            let Some(cache) = &self.cache else {
                return self.ask(self.inner.check(request)).await;
            };
            let key = cache.key(request);
            if let Some(answer) = cache.get(&key, Instant::now()) {
                return Ok(answer);
            }
            let answer = self.ask(self.inner.check(request)).await?;
            // The work for a user who does not exist is done once, as that for one who does.
            let kept = match &answer {
                Answer::Unknown(_) => Answer::Ignore,
                answer => answer.clone(),
            };
            cache.put(key, kept, Instant::now());
            Ok(answer)
        })
    }
}

impl<T: RuleSource> RuleSource for Guarded<T> {
    fn rules<'a>(&'a self, request: &'a Request) -> Answering<'a, Result<Vec<Rule>, Failure>> {
        Box::pin(self.ask(self.inner.rules(request)))
    }
}
