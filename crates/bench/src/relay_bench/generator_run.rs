//! The run of a load: connect, hold, warm up, measure, stop sending, wait for messages in flight.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{bail, ensure};
use hdrhistogram::Histogram;

use super::delivery_verifier::SlowReceiverCounts;
use super::generator::{Generator, RelayLoad, SlotState};
use super::server::RelayServer;
use crate::client_error::ClientError;
use crate::host::{allow_open_files, now_ns, thread_cpu_ns};
use crate::observer::{Observations, RunObserver};
use crate::timer::{MAX_POLLING_NS, PollTimer, PollingTime, TIMER};
use crate::worker::{LoadPace, SendSchedule, WorkerCounts};

/// How often the observer looks, and lost messages are looked for.
const OBSERVER_INTERVAL_NS: u64 = 100_000_000;
/// How long a closed window may stand still before what is missing is given up as lost.
const STALL_NS: u64 = 1_000_000_000;
/// Longest drain, however much still arrives.
const MAX_DRAIN_NS: u64 = 60_000_000_000;
/// Sequences that are checked: connections, times senders of an endpoint.
const MAX_SEQUENCES: usize = 20_000_000;
/// Equal parts of the measured interval that are reported one by one.
const PARTS: u64 = 5;

/// What came of a load.
pub(super) struct RelayRun {
    pub(super) counts: WorkerCounts,
    pub(super) slow: SlowReceiverCounts,
    pub(super) observations: Observations,
    /// Messages sent over the whole run.
    pub(super) sent: u64,
    pub(super) parts: Vec<RunPart>,
}

/// A part of the measured interval.
pub(super) struct RunPart {
    /// Open connections at its end.
    pub(super) connected: usize,
    /// Connections that failed in it.
    pub(super) failures: u64,
    /// Latencies of messages that were received in it.
    pub(super) latency: Histogram<u64>,
}

/// Counts at one end of the measured interval.
struct IntervalMark {
    at_ns: u64,
    cpu_ns: u64,
    polling: PollingTime,
    received: u64,
    sent: u64,
}

/// Runs a load at endpoints of a relay.
pub(super) fn run_load(
    server: &RelayServer,
    endpoints: &[String],
    load: &RelayLoad,
    title: String,
    is_quiet: bool,
) -> anyhow::Result<RelayRun> {
    let shape = load.shape;
    ensure!(
        shape.connections() * shape.senders <= MAX_SEQUENCES,
        "{} connections, each of which receives from up to {} senders, make more than {MAX_SEQUENCES} sequences to \
         check",
        shape.connections(),
        shape.senders
    );
    allow_open_files(shape.connections() as u64)?;
    let seconds = load.duration_ns as f64 / 1e9;
    let mut observer = RunObserver::new(
        server.pid.as_slice(),
        title,
        is_quiet,
        shape.connections(),
        seconds,
    )?;
    let mut generator = Generator::new(server, endpoints, load)?;
    generator.connect_all(&mut observer)?;
    generator.hold(&mut observer)?;
    observer.note_connected()?;
    let parts = generator.send_and_measure(&mut observer)?;
    observer.finish()?;
    Ok(RelayRun {
        sent: generator.sent(),
        parts,
        slow: generator.verifier.slow,
        counts: generator.counts,
        observations: observer.into_observations(),
    })
}

impl Generator<'_> {
    /// Makes all connections. The first failure ends the run.
    fn connect_all(&mut self, observer: &mut RunObserver) -> anyhow::Result<()> {
        let all = self.slots.len();
        let mut under_way = VecDeque::new();
        while self.dialed < all || self.unsettled > 0 {
            while self.dialed < all && self.unsettled < self.load.concurrency {
                under_way.push_back(self.dialed);
                self.dial_next();
            }
            self.poll_once(Duration::from_millis(10))?;
            let now_ns = now_ns();
            while let Some(&oldest) = under_way.front() {
                let slot = &self.slots[oldest];
                if slot.state == SlotState::Connecting {
                    if now_ns < slot.started_ns + self.load.connect_timeout_ns {
                        break;
                    }
                    self.fail(oldest, &ClientError::TimedOut);
                }
                under_way.pop_front();
            }
            if let Some(described) = self.counts.failures.first.first() {
                bail!("{}: {described}", self.server.label);
            }
            observer.note_connecting(now_ns, self.open as u64)?;
        }
        Ok(())
    }

    /// Keeps all connections without sending anything but answers to pings.
    fn hold(&mut self, observer: &mut RunObserver) -> anyhow::Result<()> {
        let until_ns = now_ns() + self.load.hold_ns;
        loop {
            let now_ns = now_ns();
            if now_ns >= until_ns {
                return Ok(());
            }
            observer.note_holding(now_ns, until_ns)?;
            let left_ns = (until_ns - now_ns).min(OBSERVER_INTERVAL_NS);
            self.poll_once(Duration::from_nanos(left_ns))?;
        }
    }

    fn send_and_measure(&mut self, observer: &mut RunObserver) -> anyhow::Result<Vec<RunPart>> {
        let load = self.load;
        let start_ns = now_ns() + 1_000_000;
        let begin_ns = start_ns + load.warmup_ns;
        let end_ns = begin_ns + load.duration_ns;
        self.verifier.measured = begin_ns..end_ns;
        let mut timer = None;
        if let LoadPace::Rate {
            per_second,
            tick_ns,
        } = load.pace
        {
            let senders = self.senders.len();
            self.schedule = Some(SendSchedule::new(
                (start_ns, end_ns),
                per_second,
                tick_ns,
                senders,
            ));
            timer = Some(PollTimer::new(self.poll.registry(), TIMER)?);
        }
        self.is_sending = true;
        self.enqueue_all();
        let begin = self.run_until(begin_ns, &mut timer, observer)?;
        observer.begin_interval(begin.at_ns, begin.received)?;
        let mut parts = Vec::with_capacity(PARTS as usize);
        let mut seen = (self.counts.failures.count(), self.verifier.latency.clone());
        for part in 1..PARTS {
            let part_end_ns = begin_ns + load.duration_ns / PARTS * part;
            self.run_until(part_end_ns, &mut timer, observer)?;
            parts.push(self.take_part(&mut seen)?);
        }
        let end = self.run_until(end_ns, &mut timer, observer)?;
        parts.push(self.take_part(&mut seen)?);
        observer.end_interval(end.at_ns, end.received)?;
        self.is_sending = false;
        self.resume_slow_receivers();
        self.await_completion(observer)?;
        self.count(&begin, &end);
        Ok(parts)
    }

    /// What happened since `seen`, the failures and latencies up to then.
    fn take_part(&self, seen: &mut (u64, Histogram<u64>)) -> anyhow::Result<RunPart> {
        let now = (self.counts.failures.count(), self.verifier.latency.clone());
        let mut latency = now.1.clone();
        latency.subtract(&seen.1)?;
        let failures = now.0 - seen.0;
        *seen = now;
        Ok(RunPart {
            connected: self.open,
            failures,
            latency,
        })
    }

    /// Goes on until `until_ns` and returns the counts as they are then.
    fn run_until(
        &mut self,
        until_ns: u64,
        timer: &mut Option<PollTimer>,
        observer: &mut RunObserver,
    ) -> anyhow::Result<IntervalMark> {
        let mut next_look_ns = now_ns() + OBSERVER_INTERVAL_NS;
        loop {
            self.send_due();
            let now_ns = now_ns();
            if now_ns >= until_ns {
                return Ok(IntervalMark {
                    at_ns: now_ns,
                    cpu_ns: thread_cpu_ns(),
                    polling: self.polling,
                    received: self.verifier.received,
                    sent: self.sent(),
                });
            }
            if now_ns >= next_look_ns {
                next_look_ns = now_ns + OBSERVER_INTERVAL_NS;
                ensure!(
                    self.open > 0,
                    "{}: no connection is open any more; the first to end was {}",
                    self.server.label,
                    self.counts
                        .failures
                        .first
                        .first()
                        .map_or("", String::as_str)
                );
                self.skip_lost_messages(now_ns);
                observer.note_received(now_ns, self.verifier.received)?;
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

    /// Opens windows that have stood still: what is missing was lost, and the load must go on.
    fn skip_lost_messages(&mut self, now_ns: u64) {
        if !matches!(self.load.pace, LoadPace::Window(_)) {
            return;
        }
        for number in 0..self.senders.len() {
            let floor = self.verifier.floor(number);
            let sender = &mut self.senders[number];
            let is_new = sender.seen_since_ns == 0;
            if is_new || floor != sender.seen_floor || floor == sender.sent {
                sender.seen_floor = floor;
                sender.seen_since_ns = now_ns;
            } else if now_ns - sender.seen_since_ns >= STALL_NS && sender.is_active {
                let sent = sender.sent;
                self.verifier.skip_to(number, sent);
                self.counts.abandoned_windows += 1;
                self.enqueue(number);
            }
        }
    }

    fn expected(&self) -> u64 {
        self.sent() * self.load.shape.deliveries_per_message() as u64
    }

    /// Waits until everything sent has arrived, or nothing more comes.
    fn await_completion(&mut self, observer: &mut RunObserver) -> anyhow::Result<()> {
        let started_ns = now_ns();
        let progress = |generator: &Self| {
            (
                generator.verifier.received,
                generator.verifier.slow.received,
            )
        };
        let mut seen = progress(self);
        let mut seen_ns = started_ns;
        loop {
            self.enqueue_all();
            self.send_due();
            let is_complete = self.verifier.received >= self.expected() && self.unsent() == 0;
            // How much slow receivers will get is unknown.
            if is_complete && self.load.shape.slow_receivers == 0 {
                return Ok(());
            }
            self.poll_once(Duration::from_millis(10))?;
            let now_ns = now_ns();
            if progress(self) != seen {
                seen = progress(self);
                seen_ns = now_ns;
            }
            if now_ns - seen_ns >= self.load.quiet_ns || now_ns - started_ns >= MAX_DRAIN_NS {
                return Ok(());
            }
            observer.draining(now_ns);
        }
    }

    fn count(&mut self, begin: &IntervalMark, end: &IntervalMark) {
        let senders: Vec<u64> = self.senders.iter().map(|sender| sender.sent).collect();
        let faults = self.verifier.count_faults(|sender| senders[sender]);
        let seconds = (end.at_ns - begin.at_ns) as f64 / 1e9;
        let (expected, unsent) = (self.expected(), self.unsent());
        let counts = &mut self.counts;
        counts.seconds = seconds;
        counts.received = end.received - begin.received;
        counts.sent = end.sent - begin.sent;
        counts.expected = expected;
        let cpu_ns = end.cpu_ns - begin.cpu_ns;
        let polling = end.polling - begin.polling;
        counts.generator_cpu_s = cpu_ns.saturating_sub(polling.polled_ns) as f64 / 1e9;
        counts.generator_polling_s = cpu_ns.min(polling.polled_ns) as f64 / 1e9;
        counts.polling += polling;
        counts.generator_core_s = seconds;
        counts.latency = self.verifier.latency.clone();
        counts.faults = faults;
        counts.unsent = unsent;
        counts.unexpected = self.verifier.unexpected;
    }
}
