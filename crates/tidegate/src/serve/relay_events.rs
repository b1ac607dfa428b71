//! The queue of events of relay endpoints for the rules FROM `"$events/relay/.."`. Shards push events; the control plane
//! passes them to the rules in the same order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use engine::Engine;
use hooks::MetricFamily;
use hooks::relay::RelayEvent;
use relay::RelayEvents;
use tokio::sync::mpsc;

/// Events that may wait for the rules; further ones are discarded.
const MAX_QUEUED_EVENTS: usize = 10_000;

/// The queue. Clones share it.
#[derive(Clone)]
pub(super) struct RelayEventQueue {
    engine: Engine,
    waiting: mpsc::Sender<RelayEvent>,
    lost: Arc<AtomicU64>,
}

impl RelayEventQueue {
    /// Starts a task that passes events to the rules and ends with the runtime. Must be called within it.
    pub(super) fn start(engine: Engine) -> Self {
        let (waiting, mut events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let rules = engine.clone();
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                rules.handle_relay_event(&event).await;
            }
        });
        Self {
            engine,
            waiting,
            lost: Arc::default(),
        }
    }

    pub(super) fn metrics(&self) -> Vec<MetricFamily> {
        vec![MetricFamily::counter(
            "relay_events_dropped_total",
            "Events of relay endpoints discarded before reaching rules because the queue was full.",
            self.lost.load(Relaxed),
        )]
    }
}

impl RelayEvents for RelayEventQueue {
    fn is_wanted(&self) -> bool {
        self.engine.wants_relay_events()
    }

    fn push(&self, event: RelayEvent) {
        if self.waiting.try_send(event).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }
}
