//! Rules of one client from external sources: fetched when it connects and refreshed periodically.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use crate::authenticator::{AnswerFuture, AuthBackendError, LoginRequest};
use crate::rules::AclRule;

/// Delay until the next attempt after a failure.
const RETRY_MS: u64 = 5_000;

/// An external source of a client's rules.
pub(crate) trait RuleSource: Send + Sync {
    fn fetch_rules<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<Vec<AclRule>, AuthBackendError>>;
}

/// All rule sources of a node, in the order of evaluation.
pub(crate) struct RuleSources {
    pub(crate) sources: Vec<Arc<dyn RuleSource>>,
    /// Interval between refreshes.
    pub(crate) refresh_ms: AtomicU64,
    /// Rules that could not be refreshed for this long are no longer used.
    pub(crate) max_age_ms: AtomicU64,
    pub(crate) runtime: Handle,
}

impl RuleSources {
    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    pub(crate) fn set_intervals(&self, refresh_s: u32, max_age_s: u32) {
        let ms = |seconds: u32| u64::from(seconds) * 1000;
        self.refresh_ms.store(ms(refresh_s), Relaxed);
        self.max_age_ms.store(ms(max_age_s), Relaxed);
    }

    async fn fetch_all(&self, request: &LoginRequest) -> Result<Arc<[AclRule]>, AuthBackendError> {
        let mut all = Vec::new();
        for source in &self.sources {
            all.extend(source.fetch_rules(request).await?);
        }
        Ok(all.into())
    }
}

/// The external rules of one client.
pub(crate) struct ExternalRules {
    sources: Arc<RuleSources>,
    /// The login request without its password.
    request: LoginRequest,
    rules: ArcSwap<Box<[AclRule]>>,
    fetched_ms: AtomicU64,
    /// Time of the next refresh.
    next_fetch_ms: AtomicU64,
    is_fetching: AtomicBool,
    has_changed: AtomicBool,
}

impl ExternalRules {
    /// Fetches the rules for the first time. Fails if any source fails.
    pub(crate) async fn fetch(
        sources: &Arc<RuleSources>,
        mut request: LoginRequest,
    ) -> Result<Arc<Self>, AuthBackendError> {
        request.password = None;
        let rules = sources.fetch_all(&request).await?;
        let now_ms = wall_clock::now_ms();
        let due_ms = now_ms + sources.refresh_ms.load(Relaxed);
        Ok(Arc::new(Self {
            sources: sources.clone(),
            request,
            rules: ArcSwap::from_pointee(rules.iter().cloned().collect()),
            fetched_ms: AtomicU64::new(now_ms),
            next_fetch_ms: AtomicU64::new(due_ms),
            is_fetching: AtomicBool::new(false),
            has_changed: AtomicBool::new(false),
        }))
    }

    pub(crate) fn rules(&self) -> Arc<Box<[AclRule]>> {
        self.rules.load_full()
    }

    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        let age_ms = now_ms.saturating_sub(self.fetched_ms.load(Relaxed));
        age_ms > self.sources.max_age_ms.load(Relaxed)
    }

    /// Whether the rules have changed since the last call.
    pub(crate) fn take_changed(&self) -> bool {
        self.has_changed.load(Relaxed) && self.has_changed.swap(false, Relaxed)
    }

    /// Starts a refresh in the background if one is due.
    pub(crate) fn refresh_if_due(self: &Arc<Self>, now_ms: u64) {
        if now_ms < self.next_fetch_ms.load(Relaxed) || self.is_fetching.swap(true, Relaxed) {
            return;
        }
        let own = self.clone();
        self.sources.runtime.spawn(async move {
            let refresh_ms = own.sources.refresh_ms.load(Relaxed);
            let wait_ms = match own.sources.fetch_all(&own.request).await {
                Ok(rules) => {
                    if *rules != **own.rules() {
                        own.rules.store(Arc::new(rules.iter().cloned().collect()));
                        own.has_changed.store(true, Relaxed);
                    }
                    own.fetched_ms.store(wall_clock::now_ms(), Relaxed);
                    refresh_ms
                }
                Err(failure) => {
                    tracing::debug!(client_id = own.request.client_id, %failure, "rule refresh failed; retrying with the previous rules");
                    refresh_ms.min(RETRY_MS)
                }
            };
            own.next_fetch_ms.store(wall_clock::now_ms() + wait_ms, Relaxed);
            own.is_fetching.store(false, Relaxed);
        });
    }
}
