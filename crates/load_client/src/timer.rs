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
