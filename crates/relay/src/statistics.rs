//! Counters of an endpoint, and what of them outlives the node.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The rate of messages is that of this time.
const RATE_WINDOW_MS: u64 = 60_000;

/// Statistics of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EndpointStatistics {
    pub current_connections: u32,
    /// Connections admitted since the endpoint was created.
    pub total_connections: u64,
    /// Connections that were rejected.
    pub rejected_connections: u64,
    /// Messages received from clients, rules and MQTT.
    pub total_messages: u64,
    /// Bytes of these messages.
    pub total_bytes: u64,
    /// Messages dropped for receivers that were too slow.
    pub dropped_messages: u64,
    /// Messages of the last minute.
    pub messages_per_minute: u64,
    /// Time of the last message or connection in milliseconds since the Unix epoch; 0: never.
    pub last_active_at_ms: u64,
}

/// What is stored. Connections of a node that has ended are not counted as current.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatisticsRecord {
    pub total_connections: u64,
    pub rejected_connections: u64,
    pub total_messages: u64,
    pub total_bytes: u64,
    pub dropped_messages: u64,
    pub last_active_at_ms: u64,
}

/// Changed endpoints after which statistics are stored at once.
pub(crate) const STORE_AFTER_CHANGED: usize = 100;

/// Number of endpoints whose statistics have changed since they were last stored, over all endpoints of a node.
#[derive(Default)]
pub(crate) struct ChangedEndpoints {
    count: AtomicUsize,
    on_many: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl ChangedEndpoints {
    pub(crate) fn on_many(&self, store: impl Fn() + Send + Sync + 'static) {
        // The first stays.
        let _ = self.on_many.set(Box::new(store));
    }

    /// Counts an endpoint, which has been stored before.
    fn add(&self) {
        let count = self.count.fetch_add(1, Relaxed) + 1;
        if let Some(store) = self.on_many.get().filter(|_| count == STORE_AFTER_CHANGED) {
            store();
        }
    }

    pub(crate) fn reset(&self) {
        self.count.store(0, Relaxed);
    }
}

/// The counters, written by all shards.
#[derive(Default)]
pub(crate) struct StatisticsCounters {
    current_connections: AtomicU32,
    total_connections: AtomicU64,
    rejected_connections: AtomicU64,
    total_messages: AtomicU64,
    total_bytes: AtomicU64,
    dropped_messages: AtomicU64,
    last_active_at_ms: AtomicU64,
    is_changed: AtomicBool,
    changed: Arc<ChangedEndpoints>,
    /// Times and total messages, oldest first, over the last minute.
    samples: Mutex<VecDeque<(u64, u64)>>,
}

impl StatisticsCounters {
    pub(crate) fn restored(record: StatisticsRecord, changed: Arc<ChangedEndpoints>) -> Self {
        Self {
            changed,
            total_connections: record.total_connections.into(),
            rejected_connections: record.rejected_connections.into(),
            total_messages: record.total_messages.into(),
            total_bytes: record.total_bytes.into(),
            dropped_messages: record.dropped_messages.into(),
            last_active_at_ms: record.last_active_at_ms.into(),
            // Messages of earlier runs are not of the last minute.
            samples: Mutex::new(VecDeque::from([(0, record.total_messages)])),
            ..Self::default()
        }
    }

    /// Counts a connection; false if there are `most` already.
    pub(crate) fn try_connect(&self, most: u32, now_ms: u64) -> bool {
        let take = |now: u32| (now < most).then_some(now + 1);
        let is_admitted = (self.current_connections)
            .fetch_update(Relaxed, Relaxed, take)
            .is_ok();
        if is_admitted {
            self.total_connections.fetch_add(1, Relaxed);
            self.touch(now_ms);
        }
        is_admitted
    }

    pub(crate) fn disconnect(&self) {
        self.current_connections.fetch_sub(1, Relaxed);
        self.mark_changed();
    }

    pub(crate) fn reject(&self) {
        self.rejected_connections.fetch_add(1, Relaxed);
        self.mark_changed();
    }

    /// Counts messages with this number of bytes together.
    pub(crate) fn messages(&self, messages: usize, bytes: usize, now_ms: u64) {
        self.total_messages.fetch_add(messages as u64, Relaxed);
        self.total_bytes.fetch_add(bytes as u64, Relaxed);
        self.touch(now_ms);
    }

    pub(crate) fn dropped(&self, messages: u64) {
        self.dropped_messages.fetch_add(messages, Relaxed);
        self.mark_changed();
    }

    fn touch(&self, now_ms: u64) {
        self.last_active_at_ms.store(now_ms, Relaxed);
        self.mark_changed();
    }

    pub(crate) fn current_connections(&self) -> u32 {
        self.current_connections.load(Relaxed)
    }

    pub(crate) fn record(&self) -> StatisticsRecord {
        StatisticsRecord {
            total_connections: self.total_connections.load(Relaxed),
            rejected_connections: self.rejected_connections.load(Relaxed),
            total_messages: self.total_messages.load(Relaxed),
            total_bytes: self.total_bytes.load(Relaxed),
            dropped_messages: self.dropped_messages.load(Relaxed),
            last_active_at_ms: self.last_active_at_ms.load(Relaxed),
        }
    }

    /// What has to be stored, if anything changed since the last call.
    pub(crate) fn take_changed(&self) -> Option<StatisticsRecord> {
        self.is_changed.swap(false, Relaxed).then(|| self.record())
    }

    /// What changed, or what was returned last and could not be stored, has to be stored.
    pub(crate) fn mark_changed(&self) {
        // Usually set already; a read shares the cache line between shards.
        if !self.is_changed.load(Relaxed) && !self.is_changed.swap(true, Relaxed) {
            self.changed.add();
        }
    }

    /// Samples the number of messages for the rate; called every few seconds.
    pub(crate) fn sample(&self, now_ms: u64) {
        let total = self.total_messages.load(Relaxed);
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back((now_ms, total));
        while samples
            .get(1)
            .is_some_and(|(at, _)| now_ms.saturating_sub(*at) >= RATE_WINDOW_MS)
        {
            samples.pop_front();
        }
        let is_idle = samples.iter().all(|(_, sampled)| *sampled == total);
        if is_idle {
            // An endpoint without messages keeps no samples.
            *samples = VecDeque::from([(now_ms, total)]);
        }
    }

    pub(crate) fn statistics(&self) -> EndpointStatistics {
        let record = self.record();
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let before = samples.front().map_or(0, |(_, total)| *total);
        EndpointStatistics {
            current_connections: self.current_connections(),
            total_connections: record.total_connections,
            rejected_connections: record.rejected_connections,
            total_messages: record.total_messages,
            total_bytes: record.total_bytes,
            dropped_messages: record.dropped_messages,
            messages_per_minute: record.total_messages.saturating_sub(before),
            last_active_at_ms: record.last_active_at_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_survive_and_current_connections_do_not() {
        let counters = StatisticsCounters::default();
        assert!(counters.try_connect(1, 5));
        assert!(!counters.try_connect(1, 6));
        counters.messages(1, 10, 7);
        let record = counters.take_changed().unwrap();
        assert_eq!(counters.take_changed(), None);
        let restored = StatisticsCounters::restored(record, Arc::default()).statistics();
        assert_eq!(restored.current_connections, 0);
        assert_eq!(restored.total_connections, 1);
        assert_eq!((restored.total_messages, restored.total_bytes), (1, 10));
        assert_eq!(restored.last_active_at_ms, 7);
    }

    #[test]
    fn the_hundredth_changed_endpoint_is_reported_once() {
        let changed = Arc::<ChangedEndpoints>::default();
        let reports = Arc::<AtomicUsize>::default();
        let counted = reports.clone();
        changed.on_many(move || {
            counted.fetch_add(1, Relaxed);
        });
        let endpoints: Vec<_> = (0..2 * STORE_AFTER_CHANGED)
            .map(|_| StatisticsCounters::restored(StatisticsRecord::default(), changed.clone()))
            .collect();
        let change = |count: usize| {
            for endpoint in &endpoints[..count] {
                endpoint.messages(1, 1, 1);
                endpoint.messages(1, 1, 2);
            }
            reports.load(Relaxed)
        };
        assert_eq!(change(STORE_AFTER_CHANGED - 1), 0);
        assert_eq!(change(STORE_AFTER_CHANGED), 1);
        assert_eq!(change(2 * STORE_AFTER_CHANGED), 1);
        changed.reset();
        assert!(endpoints.iter().all(|it| it.take_changed().is_some()));
        assert_eq!(change(STORE_AFTER_CHANGED - 1), 1);
        assert_eq!(change(STORE_AFTER_CHANGED), 2);
    }

    #[test]
    fn the_rate_is_that_of_the_last_minute() {
        let counters = StatisticsCounters::default();
        counters.sample(0);
        for second in (5..=120).step_by(5) {
            counters.messages(1, 1, second * 1000);
            counters.sample(second * 1000);
            let expected = 12.min(second / 5);
            assert_eq!(
                counters.statistics().messages_per_minute,
                expected,
                "{second}"
            );
        }
    }
}
