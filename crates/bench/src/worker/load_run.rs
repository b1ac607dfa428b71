//! The run of every load: connect, warm up, measure, stop sending, wait for messages in flight.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Worker;
use super::load_plan::LoadPlan;
use super::pace::{LoadPace, SendSchedule};
use super::run_shared::RunAbortedError;
use super::worker_counts::WorkerCounts;
use crate::host::thread_cpu_ns;
use crate::observer::RunObserver;
use crate::timer::{MAX_POLLING_NS, PollTimer, PollingTime, TIMER};

/// How often the observer looks, and lost messages are looked for.
const OBSERVER_INTERVAL_NS: u64 = 100_000_000;
/// How long a closed window may stand still before what is missing is given up as lost.
const STALL_NS: u64 = 1_000_000_000;
/// Longest drain, however much still arrives.
const MAX_DRAIN_NS: u64 = 60_000_000_000;

/// Counts at one end of the measured interval.
#[derive(Clone, Copy, Default)]
struct IntervalMark {
    at_ns: u64,
    cpu_ns: u64,
    polling: PollingTime,
    received: u64,
    sent: u64,
}

impl Worker<'_> {
    /// Runs the whole load.
    pub(crate) fn run_load(
        mut self,
        plan: &LoadPlan,
        mut observer: Option<&mut RunObserver>,
    ) -> anyhow::Result<WorkerCounts> {
        self.connect_all(true, observer.as_deref_mut())?;
        self.shared.wait_for_stage(1)?;
        if let Some(observer) = &mut observer {
            observer.note_connected()?;
            self.shared.set_start(self.now_ns() + 1_000_000);
        }
        let start_ns = self.shared.wait_for_start()?;
        let begin_ns = start_ns + plan.warmup_ns;
        let end_ns = begin_ns + plan.duration_ns;
        self.measured = begin_ns..end_ns;
        let mut timer = None;
        if let LoadPace::Rate {
            per_second,
            tick_ns,
        } = plan.pace
        {
            let all = (self.shape.groups * self.shape.publishers) as f64;
            let share = per_second * self.publishers.len() as f64 / all;
            self.schedule = Some(SendSchedule::new(
                (start_ns, end_ns),
                share,
                tick_ns,
                self.publishers.len(),
            ));
            timer = Some(PollTimer::new(self.poll.registry(), TIMER)?);
        }
        self.schedule_keep_alive(start_ns);
        self.is_sending = true;
        self.enqueue_all();
        let begin = self.run_until(begin_ns, &mut timer, &mut observer)?;
        if let Some(observer) = &mut observer {
            observer.begin_interval(begin.at_ns, self.shared.received())?;
        }
        let end = self.run_until(end_ns, &mut timer, &mut observer)?;
        if let Some(observer) = &mut observer {
            observer.end_interval(end.at_ns, self.shared.received())?;
        }
        self.is_sending = false;
        self.await_completion(plan.quiet_ns, &mut observer)?;
        if let Some(observer) = &mut observer {
            observer.finish()?;
        }
        self.count_interval(begin, end);
        self.disconnect_all()?;
        Ok(self.tally)
    }

    /// Goes on until `until_ns` and returns the counts as they are then.
    fn run_until(
        &mut self,
        until_ns: u64,
        timer: &mut Option<PollTimer>,
        observer: &mut Option<&mut RunObserver>,
    ) -> anyhow::Result<IntervalMark> {
        let mut next_look_ns = self.now_ns() + OBSERVER_INTERVAL_NS;
        loop {
            self.send_due();
            let now_ns = self.now_ns();
            if now_ns >= until_ns {
                return Ok(self.interval_mark(now_ns));
            }
            if now_ns >= next_look_ns {
                next_look_ns = now_ns + OBSERVER_INTERVAL_NS;
                self.housekeep(now_ns, observer)?;
            }
            let wake_ns = until_ns.min(next_look_ns);
            let mut timeout = Duration::from_nanos(wake_ns - now_ns);
            if let (Some(schedule), Some(timer)) = (&self.schedule, timer.as_mut())
                && let Some(due_ns) = schedule.due_time(self.due)
            {
                let due_in_ns = due_ns.saturating_sub(now_ns);
                if due_in_ns <= MAX_POLLING_NS {
                    timeout = timeout.min(Duration::from_nanos(due_in_ns));
                } else if due_ns < wake_ns {
                    timer.arm(due_ns - MAX_POLLING_NS / 2)?;
                }
            }
            match self.schedule {
                Some(_) => self.poll_without_sleep(timeout)?,
                None => self.poll_once(timeout)?,
            }
        }
    }

    /// Lets the observer know how much has arrived.
    fn publish_received_count(&self) {
        let counters = self.shared.counters(self.thread);
        counters.received.store(self.received, Ordering::Relaxed);
    }

    fn interval_mark(&self, at_ns: u64) -> IntervalMark {
        self.publish_received_count();
        IntervalMark {
            at_ns,
            cpu_ns: thread_cpu_ns(),
            polling: self.polling,
            received: self.received,
            sent: self.publishers.iter().map(|p| p.sent).sum(),
        }
    }

    /// What has to be done ten times a second.
    fn housekeep(
        &mut self,
        now_ns: u64,
        observer: &mut Option<&mut RunObserver>,
    ) -> anyhow::Result<()> {
        self.publish_received_count();
        self.send_keep_alive(now_ns);
        self.skip_lost_messages(now_ns);
        anyhow::ensure!(!self.shared.is_aborted(), RunAbortedError);
        anyhow::ensure!(
            self.has_ready_client(),
            "no client is connected any more; the first to go was {}",
            self.tally.failures.first.first().map_or("", String::as_str)
        );
        if let Some(observer) = observer {
            observer.note_received(now_ns, self.shared.received())?;
        }
        Ok(())
    }

    /// Opens windows that have stood still: what is missing was lost, and the load must go on.
    fn skip_lost_messages(&mut self, now_ns: u64) {
        if !matches!(self.pace, LoadPace::Window(_)) || !self.is_sending {
            return;
        }
        for p in 0..self.publishers.len() {
            let publisher = &mut self.publishers[p];
            let floor = publisher.progress.floor();
            // 0: not checked yet.
            let is_new = publisher.seen_since_ns == 0;
            if is_new || floor != publisher.seen_floor || floor == publisher.sent {
                publisher.seen_floor = floor;
                publisher.seen_since_ns = now_ns;
            } else if now_ns - publisher.seen_since_ns >= STALL_NS && publisher.is_active {
                publisher.progress.skip_to(publisher.sent);
                self.tally.abandoned_windows += 1;
                self.enqueue(p);
            }
        }
    }

    /// Waits until everything sent has arrived and is acknowledged, or nothing more comes.
    fn await_completion(
        &mut self,
        quiet_ns: u64,
        observer: &mut Option<&mut RunObserver>,
    ) -> anyhow::Result<()> {
        let started_ns = self.now_ns();
        let mut seen = (self.received, self.in_flight());
        let mut seen_ns = started_ns;
        loop {
            self.enqueue_all();
            self.send_due();
            if self.is_complete() {
                return Ok(());
            }
            self.poll_once(Duration::from_millis(10))?;
            let now_ns = self.now_ns();
            let now = (self.received, self.in_flight());
            if now != seen {
                seen = now;
                seen_ns = now_ns;
            }
            if now_ns - seen_ns >= quiet_ns || now_ns - started_ns >= MAX_DRAIN_NS {
                return Ok(());
            }
            if let Some(observer) = observer {
                observer.draining(now_ns);
            }
        }
    }

    fn in_flight(&self) -> u64 {
        self.publishers.iter().map(|p| p.acks.in_flight()).sum()
    }

    fn is_complete(&self) -> bool {
        let subscribers = self.shape.subscribers as u64;
        let expected: u64 = self.publishers.iter().map(|p| p.sent * subscribers).sum();
        self.received >= expected && self.in_flight() == 0 && self.unsent_messages() == 0
    }

    /// Messages that were due and have not been sent.
    fn unsent_messages(&self) -> u64 {
        let Some(schedule) = &self.schedule else {
            return 0;
        };
        let each = self.publishers.iter().enumerate();
        each.map(|(p, publisher)| {
            schedule
                .share_of(p, self.due)
                .saturating_sub(publisher.sent)
        })
        .sum()
    }

    fn count_interval(&mut self, begin: IntervalMark, end: IntervalMark) {
        let seconds = (end.at_ns - begin.at_ns) as f64 / 1e9;
        self.tally.seconds = seconds;
        self.tally.received = end.received - begin.received;
        self.tally.sent = end.sent - begin.sent;
        let cpu_ns = end.cpu_ns - begin.cpu_ns;
        let polling = end.polling - begin.polling;
        self.tally.generator_cpu_s = cpu_ns.saturating_sub(polling.polled_ns) as f64 / 1e9;
        self.tally.generator_polling_s = cpu_ns.min(polling.polled_ns) as f64 / 1e9;
        self.tally.polling += polling;
        self.tally.generator_core_s = seconds;
        self.tally.unacknowledged = self.in_flight();
        self.tally.unsent = self.unsent_messages();
        let all: u64 = self.publishers.iter().map(|p| p.sent).sum();
        self.tally.expected = all * self.shape.subscribers as u64;
        for subscriber in &self.subscribers {
            for member in 0..self.shape.publishers {
                let sent = self.publishers[subscriber.group * self.shape.publishers + member].sent;
                let faults = self.checkers[subscriber.first_checker + member].faults(sent);
                self.tally.faults.add(faults);
            }
        }
    }
}
