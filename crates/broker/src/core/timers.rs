//! The timers of a shard. A wheel serves connections (keep-alive, connect time-out), which are numerous and rarely due.
//! An ordered table serves individual times (session expiry, delayed wills and messages).

use std::collections::BTreeMap;

use super::message::Message;
use super::session::TimerKey;
use super::tables::{ConnectionIx, SessionIx};

pub(crate) const TICK_MS: u64 = 250;
const WHEEL_SLOTS: usize = 1024;

/// Each connection has at most one slot; an entry that fires early is rescheduled by its owner.
pub(crate) struct TimerWheel {
    slots: Vec<Vec<(ConnectionIx, u32)>>,
    /// Completed ticks since the epoch.
    ticks_done: u64,
}

impl TimerWheel {
    /// How far ahead an entry may be scheduled.
    pub(crate) const MAX_AHEAD_MS: u64 = TICK_MS * (WHEEL_SLOTS as u64 - 2);

    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            slots: (0..WHEEL_SLOTS).map(|_| Vec::new()).collect(),
            ticks_done: now_ms / TICK_MS,
        }
    }

    /// `at_ms` may be at most `MAX_AHEAD_MS` ahead.
    pub(crate) fn schedule(&mut self, connection: ConnectionIx, serial: u32, at_ms: u64) {
        let tick = (at_ms / TICK_MS + 1).clamp(
            self.ticks_done + 1,
            self.ticks_done + WHEEL_SLOTS as u64 - 1,
        );
        self.slots[tick as usize % WHEEL_SLOTS].push((connection, serial));
    }

    /// Moves the entries due until `now_ms` into `due`.
    pub(crate) fn advance(&mut self, now_ms: u64, due: &mut Vec<(ConnectionIx, u32)>) {
        let target = now_ms / TICK_MS;
        while self.ticks_done < target {
            self.ticks_done += 1;
            let slot = &mut self.slots[self.ticks_done as usize % WHEEL_SLOTS];
            due.append(slot);
            slot.shrink_to(64);
        }
    }
}

pub(crate) enum Timer {
    /// The session has been without a connection for as long as its expiry allows.
    SessionExpiry(SessionIx),
    /// The will of a session without a connection is due.
    WillDelay(SessionIx),
    /// The grant of a client expires; the connection and its serial number.
    GrantExpiry(ConnectionIx, u32),
    /// A message published to `$delayed/...`, and the bytes it was counted with.
    DelayedMessage {
        message: Box<Message>,
        bytes: u64,
        /// Number in its store key; 0: it is not stored.
        number: u64,
    },
}

#[derive(Default)]
pub(crate) struct TimerTable {
    timers: BTreeMap<TimerKey, Timer>,
    sequence: u64,
}

impl TimerTable {
    pub(crate) fn add(&mut self, at_ms: u64, timer: Timer) -> TimerKey {
        self.sequence += 1;
        let key = (at_ms, self.sequence);
        self.timers.insert(key, timer);
        key
    }

    pub(crate) fn cancel(&mut self, key: TimerKey) {
        self.timers.remove(&key);
    }

    pub(crate) fn pop_due(&mut self, now_ms: u64) -> Option<Timer> {
        let entry = self.timers.first_entry()?;
        (entry.key().0 <= now_ms).then(|| entry.remove())
    }
}
