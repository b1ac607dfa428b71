//! Wakes the event loop at an instant, to the microsecond, where a poll time-out is only good to the millisecond.

use std::io;
use std::ops::{AddAssign, Sub};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::host::now_ns;

/// Token of the timer of an event loop; connections have their index.
pub const TIMER: Token = Token(usize::MAX - 1);

/// Waits for events, at most for `timeout`. `false`: a signal has interrupted it, and there are none.
pub fn wait_for_events(
    poll: &mut Poll,
    events: &mut Events,
    timeout: Duration,
) -> io::Result<bool> {
    match poll.poll(events, Some(timeout)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// How long [`poll_for_events`] polls for the next event before it sleeps.
pub const MAX_POLLING_NS: u64 = 2_000_000;

/// A look for events that takes longer was interrupted: it takes about a microsecond.
const STALL_NS: u64 = 200_000;

/// Time in which [`poll_for_events`] polled and there was no event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PollingTime {
    pub polled_ns: u64,
    /// The part of it in which the thread did not run, in pieces of more than 0.2 ms: the machine ran something else, in this
    /// system or in another one on the same host.
    pub stalled_ns: u64,
}

impl AddAssign for PollingTime {
    fn add_assign(&mut self, other: Self) {
        self.polled_ns += other.polled_ns;
        self.stalled_ns += other.stalled_ns;
    }
}

impl Sub for PollingTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            polled_ns: self.polled_ns - earlier.polled_ns,
            stalled_ns: self.stalled_ns - earlier.stalled_ns,
        }
    }
}

/// Like [`wait_for_events`], but polls at first, for loads whose latency matters. A server on the same machine would otherwise
/// have to wake the generator with nearly every message, which takes as long as the message itself.
pub fn poll_for_events(
    poll: &mut Poll,
    events: &mut Events,
    timeout: Duration,
) -> io::Result<(bool, PollingTime)> {
    let begun_ns = now_ns();
    let limit_ns = begun_ns + MAX_POLLING_NS.min(timeout.as_nanos() as u64);
    let mut last_ns = begun_ns;
    let mut time = PollingTime::default();
    loop {
        let has_events = wait_for_events(poll, events, Duration::ZERO)?;
        if !has_events || !events.is_empty() {
            return Ok((has_events, time));
        }
        let now_ns = now_ns();
        let look_ns = now_ns - last_ns;
        last_ns = now_ns;
        time.polled_ns += look_ns;
        if look_ns > STALL_NS {
            time.stalled_ns += look_ns;
        }
        if now_ns >= limit_ns {
            let left = timeout.saturating_sub(Duration::from_nanos(time.polled_ns));
            let has_events = !left.is_zero() && wait_for_events(poll, events, left)?;
            return Ok((has_events, time));
        }
        // In case the server has to share this core.
        std::thread::yield_now();
    }
}

/// A timer whose expiry is an event of the poll it is registered with.
#[derive(Debug)]
pub struct PollTimer {
    fd: OwnedFd,
    armed_for: u64,
}

impl PollTimer {
    /// Registers a timer, not yet armed, under `token`.
    pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let fd = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { fd, armed_for: 0 })
    }

    /// Arms the timer for an instant of the monotonic clock in nanoseconds; arming twice for the same costs nothing.
    ///
    /// The poll is edge-triggered and setting the time clears an earlier expiry, so the timer need not be read.
    pub fn arm(&mut self, at_ns: u64) -> io::Result<()> {
        if at_ns == self.armed_for {
            return Ok(());
        }
        self.armed_for = at_ns;
        let when = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: (at_ns / 1_000_000_000) as _,
                tv_nsec: (at_ns % 1_000_000_000) as _,
            },
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &when)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_ends_the_polling_and_the_sleep() -> io::Result<()> {
        let mut poll = Poll::new()?;
        let mut events = Events::with_capacity(8);
        let mut timer = PollTimer::new(poll.registry(), TIMER)?;
        let timeout = Duration::from_secs(60);
        for after_ns in [MAX_POLLING_NS / 4, 3 * MAX_POLLING_NS] {
            timer.arm(now_ns() + after_ns)?;
            let (has_events, time) = poll_for_events(&mut poll, &mut events, timeout)?;
            assert!(has_events);
            assert!(events.iter().all(|event| event.token() == TIMER));
            assert_eq!(events.iter().count(), 1);
            // It has slept for the rest of the time.
            assert!(time.polled_ns < timeout.as_nanos() as u64 / 10, "{time:?}");
            assert!(time.stalled_ns <= time.polled_ns, "{time:?}");
        }
        let (has_events, _) = poll_for_events(&mut poll, &mut events, Duration::ZERO)?;
        assert!(!has_events && events.is_empty());
        Ok(())
    }
}
