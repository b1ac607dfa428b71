//! The timers of a shard. A wheel serves connections (keep-alive, connect time-out), which are numerous and rarely due.
//! An ordered table serves individual times (session expiry, delayed wills and messages).

use std::collections::{BTreeMap, VecDeque};

use super::message::Message;
use super::tables::{ConnectionIx, SessionIx};

pub(crate) const TICK_MS: u64 = 250;
const WHEEL_SLOTS: usize = 1024;

/// How far ahead the wheel can check a connection.
const MAX_CHECK_AHEAD_MS: u64 = TICK_MS * (WHEEL_SLOTS as u64 - 2);

/// The timers of one shard.
///
/// It owns all pending times, independently of their meaning: the caller gets back what it scheduled.
///
/// - [`schedule_check`](Self::schedule_check) adds a check of a connection, and returns when it will be, which may be
///   earlier than requested. A check cannot be cancelled: when it fires, the caller compares the serial number, and the
///   time of the check that the connection expects.
/// - [`schedule`](Self::schedule) adds any other timer, and returns the key to [`cancel`](Self::cancel) it. The timers
///   of a session without a connection are started and stopped together, by [`start_session`](Self::start_session) and
///   [`stop_session`](Self::stop_session).
/// - After time has passed, the caller calls [`poll`](Self::poll) until it returns `None`, for the other timers in the order
///   of their times. Timers added meanwhile fire, too, if they are due.
/// - [`collect_due_checks`](Self::collect_due_checks) returns how many checks are due, and
///   [`next_check`](Self::next_check) one after the other. Checks added meanwhile fire in a later tick.
pub(crate) struct ShardTimers {
    wheel: TimerWheel,
    /// Checks that are due and not returned yet.
    due_checks: VecDeque<(ConnectionIx, u32)>,
    table: BTreeMap<TimerKey, Timer>,
    /// Number of the timer added last.
    sequence: u64,
}

/// Identifies a pending timer. No other timer ever has the same key, so that cancelling one that has fired does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    at_ms: u64,
    sequence: u64,
}

/// The timers of a session without a connection. A session with a connection needs no memory for them.
#[derive(Debug, Default)]
pub(crate) struct SessionTimers(Option<Box<RunningTimers>>);

#[derive(Debug)]
struct RunningTimers {
    expiry: Option<TimerKey>,
    will: Option<TimerKey>,
}

/// What is due.
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

impl ShardTimers {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            wheel: TimerWheel::new(now_ms),
            due_checks: VecDeque::new(),
            table: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// Schedules a check of a connection, and returns its time: the requested one, or the latest one possible.
    pub(crate) fn schedule_check(
        &mut self,
        connection: ConnectionIx,
        serial: u32,
        at_ms: u64,
        now_ms: u64,
    ) -> u64 {
        let at_ms = at_ms.min(now_ms + MAX_CHECK_AHEAD_MS);
        self.wheel.schedule(connection, serial, at_ms);
        at_ms
    }

    pub(crate) fn schedule(&mut self, at_ms: u64, timer: Timer) -> TimerKey {
        self.sequence += 1;
        let key = TimerKey {
            at_ms,
            sequence: self.sequence,
        };
        self.table.insert(key, timer);
        key
    }

    pub(crate) fn cancel(&mut self, key: TimerKey) {
        self.table.remove(&key);
    }

    /// Starts the timers of a session without a connection; `None`: it does not expire, or has no will that is due
    /// later.
    pub(crate) fn start_session(
        &mut self,
        session: SessionIx,
        timers: &mut SessionTimers,
        expiry_at_ms: Option<u64>,
        will_at_ms: Option<u64>,
    ) {
        let expiry = expiry_at_ms.map(|at| self.schedule(at, Timer::SessionExpiry(session)));
        let will = will_at_ms.map(|at| self.schedule(at, Timer::WillDelay(session)));
        let has_any = expiry.is_some() || will.is_some();
        timers.0 = has_any.then(|| Box::new(RunningTimers { expiry, will }));
    }

    /// Stops the timers of a session that has got a connection or ends.
    pub(crate) fn stop_session(&mut self, timers: &mut SessionTimers) {
        let Some(running) = timers.0.take() else {
            return;
        };
        for timer in [running.expiry, running.will].into_iter().flatten() {
            self.cancel(timer);
        }
    }

    /// The number of checks that are due.
    pub(crate) fn collect_due_checks(&mut self, now_ms: u64) -> usize {
        self.wheel.advance(now_ms, &mut self.due_checks);
        self.due_checks.len()
    }

    /// The next check that is due: the connection and its serial number.
    pub(crate) fn next_check(&mut self) -> Option<(ConnectionIx, u32)> {
        self.due_checks.pop_front()
    }

    /// Returns the next timer that is due, other than checks. While sessions are held, neither they nor delayed messages are.
    pub(crate) fn poll(&mut self, now_ms: u64, are_sessions_held: bool) -> Option<Timer> {
        if are_sessions_held {
            let mut due = self.table.iter();
            let mut due = due.by_ref().take_while(|(key, _)| key.at_ms <= now_ms);
            let (&key, _) = due.find(|(_, timer)| matches!(timer, Timer::GrantExpiry(..)))?;
            return self.table.remove(&key);
        }
        let entry = self.table.first_entry()?;
        (entry.key().at_ms <= now_ms).then(|| entry.remove())
    }
}

impl ShardTimers {
    /// Removes all delayed messages; returns when they are due, their bytes and their numbers.
    pub(crate) fn take_delayed(&mut self) -> Vec<(u64, u64, u64)> {
        let is_delayed =
            |_: &TimerKey, timer: &mut Timer| matches!(timer, Timer::DelayedMessage { .. });
        let delayed = self.table.extract_if(.., is_delayed);
        let delayed = delayed.filter_map(|(key, timer)| match timer {
            Timer::DelayedMessage { bytes, number, .. } => Some((key.at_ms, bytes, number)),
            _ => None,
        });
        delayed.collect()
    }
}

/// Each connection has at most one slot; an entry that fires early is rescheduled by its owner.
struct TimerWheel {
    slots: Vec<Vec<(ConnectionIx, u32)>>,
    /// Completed ticks since the epoch.
    ticks_done: u64,
}

impl TimerWheel {
    fn new(now_ms: u64) -> Self {
        Self {
            slots: (0..WHEEL_SLOTS).map(|_| Vec::new()).collect(),
            ticks_done: now_ms / TICK_MS,
        }
    }

    /// `at_ms` may be at most `MAX_CHECK_AHEAD_MS` ahead.
    fn schedule(&mut self, connection: ConnectionIx, serial: u32, at_ms: u64) {
        let tick = (at_ms / TICK_MS + 1).clamp(
            self.ticks_done + 1,
            self.ticks_done + WHEEL_SLOTS as u64 - 1,
        );
        self.slots[tick as usize % WHEEL_SLOTS].push((connection, serial));
    }

    /// Moves the entries due until `now_ms` into `due`.
    fn advance(&mut self, now_ms: u64, due: &mut VecDeque<(ConnectionIx, u32)>) {
        let target = now_ms / TICK_MS;
        while self.ticks_done < target {
            self.ticks_done += 1;
            let slot = &mut self.slots[self.ticks_done as usize % WHEEL_SLOTS];
            due.extend(slot.drain(..));
            slot.shrink_to(64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tables::TableIx;

    fn describe(timer: Timer) -> String {
        match timer {
            Timer::SessionExpiry(session) => format!("expiry {}", session.position()),
            Timer::WillDelay(session) => format!("will {}", session.position()),
            Timer::GrantExpiry(_, serial) => format!("grant {serial}"),
            Timer::DelayedMessage { number, .. } => format!("delayed {number}"),
        }
    }

    fn poll_all(timers: &mut ShardTimers, now_ms: u64) -> Vec<String> {
        let mut all: Vec<_> = std::iter::from_fn(|| timers.poll(now_ms, false))
            .map(describe)
            .collect();
        let due = timers.collect_due_checks(now_ms);
        let checks = std::iter::from_fn(|| timers.next_check());
        all.extend(checks.map(|(_, serial)| format!("check {serial}")));
        assert_eq!(due, all.iter().filter(|it| it.starts_with("check")).count());
        all
    }

    #[test]
    fn timers_come_by_time_and_checks_after_them() {
        let mut timers = ShardTimers::new(0);
        let connection = ConnectionIx::from_position(0);
        timers.schedule(600, Timer::GrantExpiry(connection, 2));
        timers.schedule(500, Timer::GrantExpiry(connection, 1));
        assert_eq!(timers.schedule_check(connection, 3, 700, 0), 700);
        assert_eq!(poll_all(&mut timers, 499), [""; 0]);
        assert_eq!(
            poll_all(&mut timers, 1000),
            ["grant 1", "grant 2", "check 3"]
        );
        assert_eq!(poll_all(&mut timers, 2000), [""; 0]);
    }

    #[test]
    fn a_check_beyond_the_wheel_comes_earlier() {
        let mut timers = ShardTimers::new(0);
        let connection = ConnectionIx::from_position(0);
        let at_ms = timers.schedule_check(connection, 1, u64::MAX, 0);
        assert_eq!(at_ms, MAX_CHECK_AHEAD_MS);
        assert_eq!(poll_all(&mut timers, at_ms - TICK_MS), [""; 0]);
        assert_eq!(poll_all(&mut timers, at_ms + TICK_MS), ["check 1"]);
    }

    #[test]
    fn timers_of_a_session_that_resumes_do_not_fire() {
        let mut timers = ShardTimers::new(0);
        let session = SessionIx::from_position(7);
        let mut of_session = SessionTimers::default();
        timers.start_session(session, &mut of_session, Some(500), Some(300));
        assert_eq!(poll_all(&mut timers, 400), ["will 7"]);
        timers.stop_session(&mut of_session);
        assert_eq!(poll_all(&mut timers, 1000), [""; 0]);
        timers.start_session(session, &mut of_session, Some(2000), None);
        assert_eq!(poll_all(&mut timers, 2000), ["expiry 7"]);
    }
}
