//! The run of `connect`: opens all connections, then holds them for a time.

use std::time::Duration;

use super::Worker;
use super::client::ConnectionState;
use super::worker_counts::WorkerCounts;
use crate::host::thread_cpu_ns;
use crate::observer::RunObserver;

/// How often the observer gets to look while nothing else happens.
const OBSERVER_INTERVAL: Duration = Duration::from_millis(100);

impl Worker<'_> {
    /// Connects all clients, holds the connections for `hold_ns` and closes them.
    pub(crate) fn run_connects(
        mut self,
        hold_ns: u64,
        mut observer: Option<&mut RunObserver>,
    ) -> anyhow::Result<WorkerCounts> {
        self.shared.wait_for_stage(1)?;
        let started_ns = self.now_ns();
        let cpu_ns = thread_cpu_ns();
        if let Some(observer) = &mut observer {
            observer.begin_interval(started_ns, 0)?;
        }
        self.connect_all(false, observer.as_deref_mut())?;
        let ended_ns = self.now_ns();
        self.tally.seconds = (ended_ns - started_ns) as f64 / 1e9;
        self.tally.generator_cpu_s = (thread_cpu_ns() - cpu_ns) as f64 / 1e9;
        self.tally.generator_core_s = self.tally.seconds;
        self.shared.wait_for_stage(2)?;
        if let Some(observer) = &mut observer {
            observer.end_interval(self.now_ns(), self.shared.connected())?;
        }
        self.schedule_keep_alive(ended_ns);
        let until_ns = self.now_ns() + hold_ns;
        loop {
            let now_ns = self.now_ns();
            if now_ns >= until_ns {
                break;
            }
            let left = Duration::from_nanos(until_ns - now_ns);
            self.poll_once(left.min(OBSERVER_INTERVAL))?;
            self.send_keep_alive(now_ns);
            if let Some(observer) = &mut observer {
                observer.note_holding(now_ns, until_ns)?;
            }
        }
        self.shared.wait_for_stage(3)?;
        if let Some(observer) = &mut observer {
            observer.finish()?;
        }
        self.disconnect_all()?;
        Ok(self.tally)
    }

    /// Whether at least one client is still connected.
    pub(super) fn has_ready_client(&self) -> bool {
        self.connections
            .iter()
            .any(|c| c.state == ConnectionState::Ready)
    }

    /// Spreads the first pings over half a keep-alive interval from now.
    pub(super) fn schedule_keep_alive(&mut self, now_ns: u64) {
        let keep_alive_s = u64::from(self.access.greeting.keep_alive_s);
        if keep_alive_s > 0 {
            self.next_ping_ns = now_ns + keep_alive_s * 250_000_000;
        }
    }
}
