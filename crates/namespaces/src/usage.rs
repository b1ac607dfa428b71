//! What the clients of a namespace use at the moment, and its limits: connections, messages per second, and stored
//! telemetry.
//!
//! Shards take messages from an allowance of their own and refill it in slices. A message thus needs neither a lock nor
//! a change of memory that other shards use.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::quota::{QUOTA_MEGABYTE, Quotas};

/// Maximum number of shards of a node.
const MAX_SHARDS: usize = 64;
/// A slice is this part of a second's messages, so that the slices of all shards are at most those of one second.
const SLICES_PER_SECOND: u32 = MAX_SHARDS as u32;
/// Messages of this time may be sent at once.
const BURST_US: u64 = 1_000_000;
/// Senders that are slowed and not rejected may borrow messages of this time.
const MAX_DEBT_US: u64 = 60_000_000;
/// Stored instead of a limit if there is none.
const UNLIMITED: u32 = u32::MAX;

/// The usage of one namespace, shared by everything that serves its clients.
#[derive(Debug)]
pub struct NamespaceUsage {
    connections: AtomicU32,
    max_connections: AtomicU32,
    max_messages_per_s: AtomicU32,
    /// Until when messages are taken, at the permitted rate, in microseconds since 1970. All shards change it.
    taken_until_us: AtomicU64,
    /// Stored bytes when they were last counted.
    telemetry_bytes: AtomicU64,
    /// `u64::MAX`: no limit.
    max_telemetry_bytes: AtomicU64,
    /// Created by the first message.
    shards: OnceLock<Box<[ShardMessages]>>,
}

/// The messages of one shard. Only the shard's thread writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ShardMessages {
    /// Messages that may be accepted without asking the other shards.
    allowance: AtomicU32,
    /// The second in which `messages` are counted.
    second: AtomicU64,
    messages: AtomicU32,
    /// Messages of the second before.
    before: AtomicU32,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub struct CountedConnection(Arc<NamespaceUsage>);

impl CountedConnection {
    #[must_use]
    pub fn usage(&self) -> &Arc<NamespaceUsage> {
        &self.0
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

impl NamespaceUsage {
    pub(crate) fn new(quotas: &Quotas) -> Self {
        let usage = Self {
            connections: AtomicU32::new(0),
            max_connections: AtomicU32::new(UNLIMITED),
            max_messages_per_s: AtomicU32::new(UNLIMITED),
            taken_until_us: AtomicU64::new(0),
            telemetry_bytes: AtomicU64::new(0),
            max_telemetry_bytes: AtomicU64::new(u64::MAX),
            shards: OnceLock::new(),
        };
        usage.set_limits(quotas);
        usage
    }

    pub(crate) fn set_limits(&self, quotas: &Quotas) {
        let limit = |quota: Option<u32>| quota.unwrap_or(UNLIMITED);
        self.max_connections
            .store(limit(quotas.connections), Relaxed);
        self.max_messages_per_s
            .store(limit(quotas.messages_per_s), Relaxed);
        let max_telemetry_bytes = quotas
            .telemetry_megabytes
            .map_or(u64::MAX, |megabytes| u64::from(megabytes) * QUOTA_MEGABYTE);
        self.max_telemetry_bytes.store(max_telemetry_bytes, Relaxed);
    }

    /// Bytes of telemetry that its devices have stored, when they were last counted.
    #[must_use]
    pub fn telemetry_bytes(&self) -> u64 {
        self.telemetry_bytes.load(Relaxed)
    }

    /// Called by whatever counts the stored bytes.
    pub fn set_telemetry_bytes(&self, bytes: u64) {
        self.telemetry_bytes.store(bytes, Relaxed);
    }

    /// Whether its devices may store no more telemetry.
    #[inline]
    #[must_use]
    pub fn is_telemetry_full(&self) -> bool {
        self.telemetry_bytes() >= self.max_telemetry_bytes.load(Relaxed)
    }

    /// Number of connections.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Whether a further connection is permitted.
    #[must_use]
    pub fn has_room_for_connection(&self) -> bool {
        self.connections() < self.max_connections.load(Relaxed)
    }

    /// Counts a connection, unless the limit is reached; then returns the limit.
    ///
    /// # Errors
    /// Returns the limit.
    pub fn try_connect(self: &Arc<Self>) -> Result<CountedConnection, u32> {
        let limit = self.max_connections.load(Relaxed);
        let take = |now: u32| (now < limit).then_some(now + 1);
        match self.connections.fetch_update(Relaxed, Relaxed, take) {
            Ok(_) => Ok(CountedConnection(Arc::clone(self))),
            Err(_) => Err(limit),
        }
    }

    /// Counts a connection that was admitted already.
    #[must_use]
    pub fn connect(self: &Arc<Self>) -> CountedConnection {
        self.connections.fetch_add(1, Relaxed);
        CountedConnection(Arc::clone(self))
    }

    /// The maximum number of messages per second.
    #[must_use]
    pub fn max_messages_per_s(&self) -> Option<u32> {
        let limit = self.max_messages_per_s.load(Relaxed);
        (limit != UNLIMITED).then_some(limit)
    }

    /// Counts a message on a shard; `false`: it exceeds the limit and is not counted. Called on the shard's thread.
    pub fn try_take_message(&self, shard: u16, now_ms: u64) -> bool {
        let messages = self.messages_of_shard(shard);
        let Some(limit) = self.max_messages_per_s() else {
            messages.count(now_ms);
            return true;
        };
        let is_taken = messages.take() || self.refill(messages, limit, now_ms);
        if is_taken {
            messages.count(now_ms);
        }
        is_taken
    }

    /// Counts a message on a shard, whatever the limit is. Returns for how many milliseconds its sender has to wait before
    /// the next one. Called on the shard's thread.
    pub fn take_message(&self, shard: u16, now_ms: u64) -> u64 {
        let messages = self.messages_of_shard(shard);
        messages.count(now_ms);
        let Some(limit) = self.max_messages_per_s() else {
            return 0;
        };
        if messages.take() || self.refill(messages, limit, now_ms) {
            return 0;
        }
        let debt_us = self.advance(cost_us(limit, 1), now_ms * 1000, MAX_DEBT_US);
        let debt_us = debt_us.unwrap_or(MAX_DEBT_US);
        debt_us.saturating_sub(BURST_US).div_ceil(1000)
    }

    /// Whether a message would exceed the limit. It may be answered `false` just before others take the last messages.
    #[must_use]
    pub fn is_over_message_limit(&self, now_ms: u64) -> bool {
        self.max_messages_per_s().is_some()
            && self.taken_until_us.load(Relaxed) > now_ms * 1000 + BURST_US
    }

    /// Messages of the last complete second.
    #[must_use]
    pub fn messages_per_s(&self, now_ms: u64) -> u32 {
        let shards = self.shards.get().into_iter().flatten();
        let counts = shards.map(|shard| shard.messages_of(now_ms / 1000 - 1));
        counts.fold(0, u32::saturating_add)
    }

    fn messages_of_shard(&self, shard: u16) -> &ShardMessages {
        let create = || (0..MAX_SHARDS).map(|_| ShardMessages::default()).collect();
        &self.shards.get_or_init(create)[usize::from(shard) % MAX_SHARDS]
    }

    /// Takes a slice for a shard, and a message from it; `false`: there is none.
    fn refill(&self, messages: &ShardMessages, limit: u32, now_ms: u64) -> bool {
        let slice = (limit / SLICES_PER_SECOND).max(1);
        let is_taken = limit > 0
            && self
                .advance(cost_us(limit, slice), now_ms * 1000, BURST_US)
                .is_some();
        if is_taken {
            messages.allowance.store(slice - 1, Relaxed);
        }
        is_taken
    }

    /// Advances the time until which messages are taken; `None`: it would be further ahead than `most_us`. Returns how far
    /// it is ahead.
    fn advance(&self, cost_us: u64, now_us: u64, most_us: u64) -> Option<u64> {
        let next = |until: u64| {
            let next = until.max(now_us) + cost_us;
            (next <= now_us + most_us).then_some(next)
        };
        let before = self.taken_until_us.fetch_update(Relaxed, Relaxed, next);
        before
            .ok()
            .map(|before| before.max(now_us) + cost_us - now_us)
    }
}

/// The time that messages take at the permitted rate.
fn cost_us(limit: u32, messages: u32) -> u64 {
    u64::from(messages) * 1_000_000 / u64::from(limit.max(1))
}

impl ShardMessages {
    fn take(&self) -> bool {
        let allowance = self.allowance.load(Relaxed);
        if allowance > 0 {
            self.allowance.store(allowance - 1, Relaxed);
        }
        allowance > 0
    }

    fn count(&self, now_ms: u64) {
        let second = now_ms / 1000;
        let current = self.second.load(Relaxed);
        let messages = self.messages.load(Relaxed);
        if current == second {
            self.messages.store(messages.saturating_add(1), Relaxed);
            return;
        }
        let before = if current + 1 == second { messages } else { 0 };
        self.before.store(before, Relaxed);
        self.messages.store(1, Relaxed);
        self.second.store(second, Relaxed);
    }

    fn messages_of(&self, second: u64) -> u32 {
        match self.second.load(Relaxed) {
            current if current == second => self.messages.load(Relaxed),
            current if current == second + 1 => self.before.load(Relaxed),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(connections: Option<u32>, messages_per_s: Option<u32>) -> Arc<NamespaceUsage> {
        Arc::new(NamespaceUsage::new(&Quotas {
            connections,
            messages_per_s,
            ..Quotas::default()
        }))
    }

    #[test]
    fn connections_are_counted_until_they_are_dropped() {
        let usage = usage(Some(2), None);
        let first = usage.try_connect().expect("there is room");
        let second = usage.try_connect().expect("there is room");
        assert_eq!(usage.try_connect().err(), Some(2));
        assert!(!usage.has_room_for_connection());
        drop(first);
        assert_eq!(usage.connections(), 1);
        usage.set_limits(&Quotas {
            connections: Some(0),
            ..Quotas::default()
        });
        assert!(usage.try_connect().is_err());
        // One that was admitted before the limit was reached.
        let third = usage.connect();
        assert_eq!(usage.connections(), 2);
        drop((second, third));
        assert_eq!(usage.connections(), 0);
    }

    /// Over ten seconds and two shards, as many messages are accepted as the limit says. Those of one second and of the
    /// slices are accepted at once.
    #[test]
    fn the_rate_is_that_of_all_shards_together() {
        for limit in [1, 10, 1000, 100_000] {
            let usage = usage(None, Some(limit));
            let mut accepted = 0;
            for at_ms in (5_000..15_000).step_by(10) {
                for n in 0..limit.div_ceil(25) {
                    accepted += u32::from(usage.try_take_message((n % 2) as u16, at_ms));
                }
            }
            let burst = limit + 2 * (limit / SLICES_PER_SECOND).max(1);
            let expected = 10 * limit..=10 * limit + burst;
            assert!(expected.contains(&accepted), "{limit}: {accepted}");
        }
        let unlimited = usage(None, None);
        assert!((0..100_000).all(|_| unlimited.try_take_message(0, 1)));
        let none = usage(None, Some(0));
        assert!(!none.try_take_message(0, 5_000));
    }

    #[test]
    fn slowed_senders_wait_until_the_rate_is_kept() {
        let usage = usage(None, Some(10));
        let waits: Vec<_> = (0..13).map(|_| usage.take_message(0, 5_000)).collect();
        assert_eq!(waits[..10], [0; 10]);
        assert_eq!(waits[10..], [100, 200, 300]);
        assert!(usage.is_over_message_limit(5_000));
        assert!(!usage.is_over_message_limit(5_300));
        assert!(!usage.try_take_message(1, 5_300));
        assert!(usage.try_take_message(1, 5_400));
        assert_eq!(usage.messages_per_s(6_000), 14);
        assert_eq!(usage.messages_per_s(8_000), 0);
    }

    #[test]
    fn telemetry_is_full_at_the_limit() {
        let usage = usage(None, None);
        usage.set_telemetry_bytes(u64::from(u32::MAX));
        assert!(!usage.is_telemetry_full(), "no limit");
        let limit = |megabytes| {
            usage.set_limits(&Quotas {
                telemetry_megabytes: Some(megabytes),
                ..Quotas::default()
            });
        };
        limit(2);
        usage.set_telemetry_bytes(2 * QUOTA_MEGABYTE - 1);
        assert!(!usage.is_telemetry_full());
        usage.set_telemetry_bytes(2 * QUOTA_MEGABYTE);
        assert!(usage.is_telemetry_full());
        limit(3);
        assert!(!usage.is_telemetry_full());
        limit(0);
        assert!(usage.is_telemetry_full());
    }

    #[test]
    fn borrowing_is_bounded() {
        let usage = usage(None, Some(1));
        for _ in 0..1000 {
            assert!(usage.take_message(0, 5_000) <= MAX_DEBT_US / 1000);
        }
        assert!(usage.try_take_message(0, 5_000 + MAX_DEBT_US / 1000));
    }
}
