//! The run of `connect`: connect everybody, then keep the connections for a while.

use std::time::Duration;

use super::tally::Tally;
use super::{State, Worker};
use crate::host::thread_cpu_ns;
use crate::observer::Observer;

/// How often the observer gets to look while nothing else happens.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Worker<'_> {
    /// Connects all clients, holds the connections for `hold_ns` and closes them.
    pub(crate) fn run_connects(
        mut self,
        hold_ns: u64,
        mut observer: Option<&mut Observer>,
    ) -> anyhow::Result<Tally> {
        self.shared.gather(1)?;
        let started_ns = self.now();
        let cpu_ns = thread_cpu_ns();
        if let Some(observer) = &mut observer {
            observer.begin(started_ns, 0)?;
        }
        self.establish(false, observer.as_deref_mut())?;
        let ended_ns = self.now();
        self.tally.seconds = (ended_ns - started_ns) as f64 / 1e9;
        self.tally.generator_cpu_s = (thread_cpu_ns() - cpu_ns) as f64 / 1e9;
        self.tally.generator_core_s = self.tally.seconds;
        self.shared.gather(2)?;
        if let Some(observer) = &mut observer {
            observer.end(self.now(), self.shared.connected())?;
        }
        self.start_keep_alive(ended_ns);
        let until_ns = self.now() + hold_ns;
        loop {
            let now_ns = self.now();
            if now_ns >= until_ns {
                break;
            }
            let left = Duration::from_nanos(until_ns - now_ns);
            self.turn(left.min(LOOK_EVERY))?;
            self.keep_alive(now_ns);
            if let Some(observer) = &mut observer {
                observer.holding(now_ns, until_ns)?;
            }
        }
        self.shared.gather(3)?;
        if let Some(observer) = &mut observer {
            observer.finish()?;
        }
        self.leave()?;
        Ok(self.tally)
    }

    /// Whether at least one client is still connected.
    pub(super) fn is_anybody_ready(&self) -> bool {
        self.connections.iter().any(|c| c.state == State::Ready)
    }

    /// Spreads the first pings over half a keep-alive interval from now.
    pub(super) fn start_keep_alive(&mut self, now_ns: u64) {
        let keep_alive_s = u64::from(self.access.greeting.keep_alive_s);
        if keep_alive_s > 0 {
            self.next_ping_ns = now_ns + keep_alive_s * 250_000_000;
        }
    }
}
