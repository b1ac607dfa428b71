//! The run of `offline`: clients connect, subscribe and disconnect; publishers have their messages stored; the clients reconnect
//! and are served; at the end their sessions are removed.

use std::time::Duration;

use super::Worker;
use super::load_plan::LoadPlan;
use super::pace::LoadPace;
use super::run_shared::RunAbortedError;
use super::worker_counts::{OfflineCounts, WorkerCounts};
use crate::host::thread_cpu_ns;
use crate::observer::RunObserver;
use crate::packets::SessionKind;

/// How often the observer looks.
const OBSERVER_INTERVAL_NS: u64 = 100_000_000;
/// Longest time for storing and for serving, however much still happens.
const MAX_PHASE_NS: u64 = 3_600_000_000_000;

/// How long to wait in `offline`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfflineTimes {
    /// Between storing and serving, and after it, before the broker's memory and disk are measured.
    pub(crate) rest: Duration,
}

impl Worker<'_> {
    /// Runs all of it.
    pub(crate) fn run_offline(
        mut self,
        plan: &LoadPlan,
        times: OfflineTimes,
        mut observer: Option<&mut RunObserver>,
    ) -> anyhow::Result<WorkerCounts> {
        let everybody = self.subscribers.len();
        self.session = SessionKind::Persistent;
        self.connect_until(everybody, true, &mut observer)?;
        self.disconnect_range(0..everybody)?;
        self.connect_until(self.connections.len(), true, &mut observer)?;
        self.shared.wait_for_stage(1)?;
        if let Some(observer) = &mut observer {
            observer.note_connected()?;
            observer.begin_interval(self.now_ns(), 0)?;
        }

        let cpu_ns = thread_cpu_ns();
        let store_ns = self.store_messages(plan.quiet_ns, &mut observer)?;
        self.tally.generator_cpu_s = (thread_cpu_ns() - cpu_ns) as f64 / 1e9;
        self.shared.wait_for_stage(2)?;
        self.disconnect_range(everybody..self.connections.len())?;
        if let Some(observer) = &mut observer {
            observer.pause_interval(self.now_ns(), self.shared.received())?;
            std::thread::sleep(times.rest);
            observer.note_stored()?;
            observer.resume_interval(self.now_ns())?;
        }
        self.shared.wait_for_stage(3)?;

        let cpu_ns = thread_cpu_ns();
        let serve_ns = self.serve_messages(plan.quiet_ns, &mut observer)?;
        self.tally.generator_cpu_s += (thread_cpu_ns() - cpu_ns) as f64 / 1e9;
        self.shared.wait_for_stage(4)?;
        if let Some(observer) = &mut observer {
            observer.end_interval(self.now_ns(), self.shared.received())?;
        }
        self.record_offline_counts(store_ns, serve_ns);
        self.disconnect_range(0..everybody)?;
        if let Some(observer) = &mut observer {
            std::thread::sleep(times.rest);
            observer.finish()?;
        }
        self.shared.wait_for_stage(5)?;
        self.remove_sessions()?;
        Ok(self.tally)
    }

    /// Publishes everything; how long it took until the last acknowledgement.
    fn store_messages(
        &mut self,
        quiet_ns: u64,
        observer: &mut Option<&mut RunObserver>,
    ) -> anyhow::Result<u64> {
        let LoadPace::Stored { each, .. } = self.pace else {
            anyhow::bail!("`offline` runs at its own pace");
        };
        let started_ns = self.now_ns();
        self.schedule_keep_alive(started_ns);
        self.is_sending = true;
        self.enqueue_all();
        let all = each * self.publishers.len() as u64;
        let stored_ns = self.run_until_done(quiet_ns, "stored", observer, |worker| {
            worker.send_due();
            let settled = worker.acknowledged_messages();
            (settled, settled >= all)
        })?;
        self.is_sending = false;
        Ok(stored_ns - started_ns)
    }

    /// Reconnects the clients; returns the time until the last message.
    fn serve_messages(
        &mut self,
        quiet_ns: u64,
        observer: &mut Option<&mut RunObserver>,
    ) -> anyhow::Result<u64> {
        let started_ns = self.now_ns();
        let before = self.acknowledged_messages();
        self.is_return = true;
        self.dialed = 0;
        self.connect_until(self.subscribers.len(), false, observer)?;
        let all = before + before;
        let served_ns = self.run_until_done(quiet_ns, "received", observer, |worker| {
            let received = before + worker.received;
            (received, received >= all)
        })?;
        let last = self.subscribers.iter().filter_map(|s| s.served_ns).max();
        // With messages missing, the quiet time at the end is not the broker's.
        Ok(last.unwrap_or(served_ns).max(started_ns) - started_ns)
    }

    /// Processes events until `progress` reports the end, or nothing has changed for `quiet_ns`; the time of the last change.
    fn run_until_done(
        &mut self,
        quiet_ns: u64,
        what: &'static str,
        observer: &mut Option<&mut RunObserver>,
        mut progress: impl FnMut(&mut Self) -> (u64, bool),
    ) -> anyhow::Result<u64> {
        let started_ns = self.now_ns();
        let (mut seen, mut seen_ns, mut looked_ns) = (0, started_ns, 0);
        loop {
            let (count, is_done) = progress(self);
            let now_ns = self.now_ns();
            if count != seen {
                (seen, seen_ns) = (count, now_ns);
            }
            if is_done || now_ns - seen_ns >= quiet_ns || now_ns - started_ns >= MAX_PHASE_NS {
                self.publish_counters(count);
                return Ok(seen_ns);
            }
            if now_ns - looked_ns >= OBSERVER_INTERVAL_NS {
                looked_ns = now_ns;
                self.publish_counters(count);
                self.send_keep_alive(now_ns);
                anyhow::ensure!(!self.shared.is_aborted(), RunAbortedError);
                if let Some(observer) = observer {
                    observer.note_progress(now_ns, self.shared.received(), what)?;
                }
            }
            self.poll_once(Duration::from_millis(10))?;
        }
    }

    /// Messages acknowledged to the publishers.
    pub(super) fn acknowledged_messages(&self) -> u64 {
        let each = self.publishers.iter();
        each.map(|p| p.sent - p.acks.in_flight()).sum()
    }

    /// Lets the observer know how much has been stored and received.
    pub(super) fn publish_counters(&self, count: u64) {
        let counters = self.shared.counters(self.thread);
        counters
            .received
            .store(count, std::sync::atomic::Ordering::Relaxed);
    }

    fn record_offline_counts(&mut self, store_ns: u64, serve_ns: u64) {
        let LoadPace::Stored { each, .. } = self.pace else {
            return;
        };
        let mut offline = OfflineCounts {
            stored: self.acknowledged_messages(),
            held: self.acknowledged_messages(),
            store_seconds: store_ns as f64 / 1e9,
            ..OfflineCounts::default()
        };
        for (subscriber, connection) in self.subscribers.iter().zip(&self.connections) {
            let checker = &self.checkers[subscriber.first_checker];
            let faults = checker.faults(each / self.stride);
            self.tally.faults.add(faults);
            offline.incomplete += u64::from(faults.lost > 0);
            if let Some(served_ns) = subscriber.served_ns {
                let took_ns = served_ns.saturating_sub(connection.started_ns);
                self.tally.latency.saturating_record(took_ns);
            }
        }
        self.tally.seconds = serve_ns as f64 / 1e9;
        self.tally.generator_core_s = offline.store_seconds + self.tally.seconds;
        self.tally.received = self.received;
        self.tally.sent = self.publishers.iter().map(|p| p.sent).sum();
        self.tally.unacknowledged = self.publishers.iter().map(|p| p.acks.in_flight()).sum();
        self.tally.offline = Some(offline);
    }

    /// Leaves no sessions behind. What fails now changes no figure.
    fn remove_sessions(&mut self) -> anyhow::Result<()> {
        let failures = self.tally.failures.clone();
        self.session = SessionKind::Clean;
        self.is_return = false;
        self.dialed = 0;
        self.connect_until(self.subscribers.len(), false, &mut None)?;
        self.tally.failures = failures;
        self.disconnect_all()
    }
}
