//! Wakes the event loop at an instant, to the microsecond, where a poll time-out is only good to the millisecond.

use std::io;
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

/// Like [`wait_for_events`], but polls at first, for loads whose latency matters. A server on the same machine would otherwise
/// have to wake the generator with nearly every message, which takes as long as the message itself. Returns the time in
/// nanoseconds that passed without an event while it polled.
pub fn poll_for_events(
    poll: &mut Poll,
    events: &mut Events,
    timeout: Duration,
) -> io::Result<(bool, u64)> {
    let begun_ns = now_ns();
    let limit_ns = begun_ns + MAX_POLLING_NS.min(timeout.as_nanos() as u64);
    let mut polled_until_ns = begun_ns;
    loop {
        let has_events = wait_for_events(poll, events, Duration::ZERO)?;
        if !has_events || !events.is_empty() {
            return Ok((has_events, polled_until_ns - begun_ns));
        }
        polled_until_ns = now_ns();
        if polled_until_ns >= limit_ns {
            let polled_ns = polled_until_ns - begun_ns;
            let left = timeout.saturating_sub(Duration::from_nanos(polled_ns));
            let has_events = !left.is_zero() && wait_for_events(poll, events, left)?;
            return Ok((has_events, polled_ns));
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
            let (has_events, polled_ns) = poll_for_events(&mut poll, &mut events, timeout)?;
            assert!(has_events);
            assert!(events.iter().all(|event| event.token() == TIMER));
            assert_eq!(events.iter().count(), 1);
            // It has slept for the rest of the time.
            assert!(polled_ns < timeout.as_nanos() as u64 / 10, "{polled_ns}");
        }
        let (has_events, _) = poll_for_events(&mut poll, &mut events, Duration::ZERO)?;
        assert!(!has_events && events.is_empty());
        Ok(())
    }
}
