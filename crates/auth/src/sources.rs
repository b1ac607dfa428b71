//! Rules of one client that come from outside: asked for when it connects, and again when they have become old.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use crate::authenticator::{Answering, Failure, Request};
use crate::rules::Rule;

/// After a failure it is tried again this soon.
const RETRY_MS: u64 = 5_000;

/// Where rules of a client come from.
pub(crate) trait RuleSource: Send + Sync {
    fn rules<'a>(&'a self, request: &'a Request) -> Answering<'a, Result<Vec<Rule>, Failure>>;
}

/// All sources of a node, asked in their order.
pub(crate) struct Sources {
    pub(crate) sources: Vec<Arc<dyn RuleSource>>,
    /// After this time rules are asked for again.
    pub(crate) refresh_ms: AtomicU64,
    /// Rules that could not be asked for again within this time are not gone by any more.
    pub(crate) max_age_ms: AtomicU64,
    pub(crate) runtime: Handle,
}

impl Sources {
    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    pub(crate) fn set_times(&self, refresh_s: u32, max_age_s: u32) {
        let ms = |seconds: u32| u64::from(seconds) * 1000;
        self.refresh_ms.store(ms(refresh_s), Relaxed);
        self.max_age_ms.store(ms(max_age_s), Relaxed);
    }

    async fn ask(&self, request: &Request) -> Result<Arc<[Rule]>, Failure> {
        let mut all = Vec::new();
        for source in &self.sources {
            all.extend(source.rules(request).await?);
        }
        Ok(all.into())
    }
}

/// The rules of one client from outside.
pub(crate) struct Sourced {
    sources: Arc<Sources>,
    /// Without its password.
    request: Request,
    rules: ArcSwap<Box<[Rule]>>,
    asked_ms: AtomicU64,
    /// When to ask again.
    due_ms: AtomicU64,
    is_asking: AtomicBool,
    has_news: AtomicBool,
}

impl Sourced {
    /// Asks for the first time; a source that does not answer is a failure.
    pub(crate) async fn ask(
        sources: &Arc<Sources>,
        mut request: Request,
    ) -> Result<Arc<Self>, Failure> {
        request.password = None;
        let rules = sources.ask(&request).await?;
        let now_ms = crate::now_ms();
        let due_ms = now_ms + sources.refresh_ms.load(Relaxed);
        Ok(Arc::new(Self {
            sources: sources.clone(),
            request,
            rules: ArcSwap::from_pointee(rules.iter().cloned().collect()),
            asked_ms: AtomicU64::new(now_ms),
            due_ms: AtomicU64::new(due_ms),
            is_asking: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
        }))
    }

    pub(crate) fn rules(&self) -> Arc<Box<[Rule]>> {
        self.rules.load_full()
    }

    pub(crate) fn is_too_old(&self, now_ms: u64) -> bool {
        let age_ms = now_ms.saturating_sub(self.asked_ms.load(Relaxed));
        age_ms > self.sources.max_age_ms.load(Relaxed)
    }

    /// Whether there are other rules since this was asked last.
    pub(crate) fn take_news(&self) -> bool {
        self.has_news.load(Relaxed) && self.has_news.swap(false, Relaxed)
    }

    /// Starts to ask again if it is time; does not wait.
    pub(crate) fn refresh_if_due(self: &Arc<Self>, now_ms: u64) {
        if now_ms < self.due_ms.load(Relaxed) || self.is_asking.swap(true, Relaxed) {
            return;
        }
        let own = self.clone();
        self.sources.runtime.spawn(async move {
            let refresh_ms = own.sources.refresh_ms.load(Relaxed);
            let wait_ms = match own.sources.ask(&own.request).await {
                Ok(rules) => {
                    if *rules != **own.rules() {
                        own.rules.store(Arc::new(rules.iter().cloned().collect()));
                        own.has_news.store(true, Relaxed);
                    }
                    own.asked_ms.store(crate::now_ms(), Relaxed);
                    refresh_ms
                }
                Err(failure) => {
                    tracing::debug!(client_id = own.request.client_id, %failure, "no rules were to be had");
                    refresh_ms.min(RETRY_MS)
                }
            };
            own.due_ms.store(crate::now_ms() + wait_ms, Relaxed);
            own.is_asking.store(false, Relaxed);
        });
    }
}
