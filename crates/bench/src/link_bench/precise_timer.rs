//! Waits to the microsecond, where timers of tokio are up to two milliseconds late.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

pub(super) struct PreciseTimer {
    timer: AsyncFd<OwnedFd>,
}

impl PreciseTimer {
    pub(super) fn new() -> anyhow::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            timer: AsyncFd::new(timer)?,
        })
    }

    /// Returns at once if the time has passed.
    pub(super) async fn wait_until(&mut self, at: Instant) -> anyhow::Result<()> {
        let wait = at.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let timespec = |time: Duration| Timespec {
            tv_sec: time.as_secs() as _,
            tv_nsec: time.subsec_nanos().into(),
        };
        let setting = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(wait),
        };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &setting)?;
        let mut guard = self.timer.readable().await?;
        // The next setting clears this expiry, so that the timer need not be read.
        guard.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_again_and_again() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut timer = PreciseTimer::new().expect("a timer");
            for _ in 0..5 {
                let at = Instant::now() + Duration::from_micros(1500);
                timer.wait_until(at).await.expect("it waits");
                assert!(Instant::now() >= at);
            }
            timer.wait_until(Instant::now()).await.expect("no wait");
        });
    }
}
