//! One thread of a run: an event loop over its share of the devices.
//!
//! [`connecting`] opens connections as the phase asks, [`sending`] makes the messages that are due, [`receiving`] reads
//! acknowledgements and requests, [`answering`] makes the answers to requests, [`downloading`] fetches files, [`updating`] installs images, and [`outbox`] writes
//! what a turn has made.

mod answering;
mod chunked_download;
mod connect_budget;
mod connecting;
mod device;
mod device_update;
mod downloading;
mod faulting;
mod gateways;
mod outbox;
mod pending_answer;
mod receiving;
mod scripting;
mod sending;
#[cfg(test)]
mod tests;
mod updating;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use load_client::client_error::ClientError;
use load_client::host::now_ns;
use load_client::timer::wait_for_events;
use load_client::transport::RAW_BYTES;
use mio::event::Event;
use mio::{Events, Poll};
use mqtt::PropertiesBuf;
use wall_clock::now_ms;

use super::device_connection::{PIPES, ReadyPipes};
use super::phase_counts::PhaseCounts;
use super::run_shared::{NO_PHASE, RunShared};
use super::target_access::TargetAccess;
use crate::definition::{FaultKind, ReconnectDefinition};
use crate::plan::{FleetPlan, SimulationPlan};
use crate::random::RandomKey;
use crate::schedule::SendSchedule;
use crate::script::ScriptSandbox;
use connect_budget::ConnectBudget;
use device::{ConnectionStage, SimulatedDevice};
use pending_answer::PendingAnswer;

/// PINGREQ.
const PING: &[u8] = &[0xc0, 0];
/// DISCONNECT without a reason, the same in all versions.
pub(super) const DISCONNECT: &[u8] = &[0xe0, 0];
/// Room for what a read brings.
const INBOX_BYTES: usize = 256 * 1024;
const EVENTS: usize = 1024;
/// Longest time without a look at the schedule, the phase and time limits.
const MAX_WAIT: Duration = Duration::from_millis(5);
/// Time for acknowledgements after the end of the run.
const DRAIN_NS: u64 = 2_000_000_000;

/// The devices of one fleet that a worker simulates.
#[derive(Debug)]
struct FleetShare {
    /// Position of the first among the worker's devices.
    first_device: usize,
    count: u32,
    /// Cells of all devices.
    cells: Vec<f64>,
    /// Hashes of the watched values of the last message, for each device and send with `on_change`.
    watched: Vec<u64>,
    watches: usize,
    /// Whether the messages of random devices are in the schedule.
    has_random_sends: bool,
}

pub(crate) struct Worker<'a> {
    plan: &'a SimulationPlan,
    access: &'a TargetAccess,
    shared: &'a RunShared,
    thread: usize,
    poll: Poll,
    events: Events,
    ready_pipes: Arc<ReadyPipes>,
    fleets: Vec<FleetShare>,
    devices: Vec<SimulatedDevice>,
    schedule: SendSchedule,
    /// Devices to connect in this phase, in order.
    waiting: VecDeque<u32>,
    /// Devices that are connecting, in order of their begin.
    connecting: VecDeque<(u32, u64)>,
    connecting_count: usize,
    /// Devices that connect again at a time.
    returning: BinaryHeap<Reverse<(u64, u32)>>,
    answers: BinaryHeap<Reverse<PendingAnswer>>,
    /// Answers that wait for the end of a download, with the time after it, by numbers.
    downloads: HashMap<u64, (PendingAnswer, u64)>,
    download_number: u64,
    /// When updates continue: times, devices and numbers of their plans.
    update_timers: BinaryHeap<Reverse<(u64, u32, u8)>>,
    /// The script of each fleet.
    scripts: Vec<Option<ScriptSandbox>>,
    /// Next calls of the timers of devices.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Times and numbers of faults of the phase.
    faults: BinaryHeap<Reverse<(u64, usize)>>,
    /// Ends of faults of devices.
    fault_ends: BinaryHeap<Reverse<(u64, u32)>>,
    /// Limit of the connections that are begun, if the phase has one.
    connect_budget: ConnectBudget,
    connected: u64,
    unsettled: u64,
    phase: usize,
    phase_start_ns: u64,
    /// Length of the pauses of the phase.
    paused_ns: u64,
    is_paused: bool,
    run_start_ns: u64,
    load: f64,
    draws: u64,
    next_ping_ns: u64,
    ping_cursor: usize,
    now_ns: u64,
    wall_ms: u64,
    inbox: Box<[u8]>,
    raw: Box<[u8]>,
    topic: Vec<u8>,
    payload: Vec<u8>,
    properties: PropertiesBuf,
    /// Devices with packets to write.
    unwritten: Vec<u32>,
    /// Empty buffers for outboxes.
    free_outboxes: Vec<Vec<u8>>,
    counts: Vec<PhaseCounts>,
}

/// What a worker has counted in each phase, and the number of verified messages of each of its devices.
#[derive(Debug)]
pub(super) struct WorkerResult {
    pub(super) counts: Vec<PhaseCounts>,
    pub(super) verified: Vec<(u32, u32)>,
}

/// The part of `count` things that belongs to thread `thread` of `threads`.
fn share(count: u32, thread: usize, threads: usize) -> std::ops::Range<u32> {
    let at = |thread: usize| (u64::from(count) * thread as u64 / threads as u64) as u32;
    at(thread)..at(thread + 1)
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        plan: &'a SimulationPlan,
        access: &'a TargetAccess,
        shared: &'a RunShared,
        thread: usize,
    ) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let mut worker = Self {
            ready_pipes: ReadyPipes::new(poll.registry())?,
            plan,
            access,
            shared,
            thread,
            poll,
            events: Events::with_capacity(EVENTS),
            fleets: Vec::new(),
            devices: Vec::new(),
            schedule: SendSchedule::default(),
            waiting: VecDeque::new(),
            connecting: VecDeque::new(),
            connecting_count: 0,
            returning: BinaryHeap::new(),
            answers: BinaryHeap::new(),
            downloads: HashMap::new(),
            download_number: 0,
            update_timers: BinaryHeap::new(),
            scripts: Vec::new(),
            timers: BinaryHeap::new(),
            faults: BinaryHeap::new(),
            fault_ends: BinaryHeap::new(),
            connect_budget: ConnectBudget::default(),
            connected: 0,
            unsettled: 0,
            phase: NO_PHASE,
            phase_start_ns: 0,
            paused_ns: 0,
            is_paused: false,
            run_start_ns: 0,
            load: 1.0,
            draws: 0,
            next_ping_ns: 0,
            ping_cursor: 0,
            now_ns: 0,
            wall_ms: 0,
            inbox: vec![0; INBOX_BYTES].into_boxed_slice(),
            raw: vec![0; RAW_BYTES].into_boxed_slice(),
            topic: Vec::new(),
            payload: Vec::new(),
            properties: PropertiesBuf::new(),
            unwritten: Vec::new(),
            free_outboxes: Vec::new(),
            counts: Vec::new(),
        };
        for fleet in &plan.fleets {
            worker.add_fleet(fleet);
        }
        worker.load_scripts()?;
        Ok(worker)
    }

    fn add_fleet(&mut self, fleet: &FleetPlan) {
        let numbers = match &fleet.gateway {
            None => share(fleet.count, self.thread, self.access.threads),
            // Those of the gateways of this thread.
            Some(gateway) => {
                let gateways = share(
                    fleet.count / gateway.children,
                    self.thread,
                    self.access.threads,
                );
                gateways.start * gateway.children..gateways.end * gateway.children
            }
        };
        let cells = fleet.state.cells();
        let watches = fleet
            .sends
            .iter()
            .filter(|send| send.watch.is_some())
            .count();
        let mut part = FleetShare {
            first_device: self.devices.len(),
            count: numbers.len() as u32,
            cells: vec![0.0; cells * numbers.len()],
            watched: vec![0; watches * numbers.len()],
            watches,
            has_random_sends: false,
        };
        for (at, number) in numbers.enumerate() {
            let key = fleet.key(self.plan.seed, fleet.first + number);
            fleet
                .state
                .initialize(key, &mut part.cells[at * cells..(at + 1) * cells]);
            self.devices
                .push(SimulatedDevice::new(fleet.number as u16, number));
        }
        self.fleets.push(part);
    }

    fn fleet(&self, device: usize) -> &'a FleetPlan {
        &self.plan.fleets[usize::from(self.devices[device].fleet)]
    }

    /// How a device returns in this phase.
    fn reconnect(&self, device: usize) -> &'a ReconnectDefinition {
        let of_phase = self.plan.phases[self.phase].reconnect.as_ref();
        of_phase.unwrap_or(&self.fleet(device).reconnect)
    }

    fn index(&self, device: usize) -> u32 {
        self.fleet(device).first + self.devices[device].number
    }

    fn key(&self, device: usize) -> RandomKey {
        self.fleet(device).key(self.plan.seed, self.index(device))
    }

    /// Position of a device among those of all fleets.
    fn position(&self, device: usize) -> u32 {
        self.fleet(device).devices_before + self.devices[device].number
    }

    /// Runs all phases.
    pub(super) fn run(mut self) -> anyhow::Result<WorkerResult> {
        self.update_time();
        self.run_start_ns = self.now_ns;
        while !self.shared.is_stopped() {
            self.turn()?;
        }
        self.drain()?;
        let verified = (0..self.devices.len())
            .filter(|device| self.devices[*device].verified > 0)
            .map(|device| (self.position(device), self.devices[device].verified));
        Ok(WorkerResult {
            verified: verified.collect(),
            counts: self.counts,
        })
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.update_time();
        self.follow_phase();
        if self.phase != NO_PHASE {
            if !self.is_paused {
                self.apply_faults();
                self.open_connections();
            }
            self.send_due();
            self.send_answers();
            self.continue_updates();
            self.call_timers();
            self.write_outboxes();
            self.send_keep_alive();
            self.expire_connecting();
        }
        self.wait(self.wait_time())?;
        self.publish_counters();
        Ok(())
    }

    fn update_time(&mut self) {
        self.now_ns = now_ns();
        self.wall_ms = now_ms();
    }

    /// What is counted in the current phase.
    fn counts(&mut self) -> &mut PhaseCounts {
        if self.counts.is_empty() {
            self.counts.push(PhaseCounts::default());
        }
        let last = self.counts.len() - 1;
        &mut self.counts[last]
    }

    /// Begins the phase that the coordinator has started, and follows its load.
    fn follow_phase(&mut self) {
        let (phase, start_ns) = self.shared.phase();
        if phase == NO_PHASE {
            return;
        }
        if phase != self.phase {
            self.begin_phase(phase, start_ns);
        }
        self.follow_pause();
        let load = match self.is_paused {
            true => 0.0,
            false => {
                self.plan.phases[phase].load_at(self.phase_elapsed_ns())
                    * self.shared.control().factor()
            }
        };
        // A ramp is followed in steps of 2 %.
        let before = self.load.max(1e-3);
        if (load.max(1e-3) / before - 1.0).abs() > 0.02 {
            if self.load == 0.0 {
                // What was due in a pause is not made up for.
                self.schedule.postpone_overdue(self.now_ns);
            }
            self.schedule.rescale(self.now_ns, before / load.max(1e-3));
            self.load = load;
        }
    }

    /// Follows a pause of the user, in which the time of the phase does not pass.
    fn follow_pause(&mut self) {
        let control = self.shared.control();
        self.is_paused = control.is_paused();
        let paused_ns = control.paused_ns();
        if paused_ns != self.paused_ns {
            let longer_ns = paused_ns.saturating_sub(self.paused_ns);
            for Reverse((at_ns, number)) in std::mem::take(&mut self.faults) {
                self.faults.push(Reverse((at_ns + longer_ns, number)));
            }
            self.paused_ns = paused_ns;
        }
    }

    /// Time since the phase began, without pauses.
    fn phase_elapsed_ns(&self) -> u64 {
        self.now_ns
            .saturating_sub(self.phase_start_ns)
            .saturating_sub(self.paused_ns)
    }

    fn begin_phase(&mut self, phase: usize, start_ns: u64) {
        self.phase = phase;
        self.phase_start_ns = start_ns;
        self.paused_ns = 0;
        self.counts.resize_with(phase + 1, PhaseCounts::default);
        self.connect_budget = ConnectBudget::default();
        self.waiting.clear();
        self.unsettled = 0;
        let wanted_share = self.plan.phases[phase].devices;
        for fleet in 0..self.fleets.len() {
            // Children are connected with their gateways.
            if self.plan.fleets[fleet].gateway.is_some() {
                continue;
            }
            let (first, count) = (self.fleets[fleet].first_device, self.fleets[fleet].count);
            let wanted = (f64::from(count) * wanted_share).round() as usize;
            for device in first..first + count as usize {
                let entry = &mut self.devices[device];
                entry.is_wanted = device < first + wanted;
                if !entry.is_wanted {
                    entry.lost_ns = 0;
                    entry.is_gone = false;
                }
                match (entry.is_wanted, entry.stage) {
                    (true, ConnectionStage::Offline) if entry.is_gone => {}
                    (true, ConnectionStage::Offline) => {
                        entry.is_settled = false;
                        self.unsettled += 1;
                        // An outage may last longer than the phase in which it began; the device returns after it.
                        if entry.lost_ns <= self.now_ns {
                            self.waiting.push_back(device as u32);
                        }
                    }
                    (true, ConnectionStage::Ready) | (false, ConnectionStage::Offline) => {}
                    (true, _) => {
                        entry.is_settled = false;
                        self.unsettled += 1;
                    }
                    (false, _) => self.disconnect(device),
                }
            }
        }
        self.plan_faults();
        self.send_burst();
        self.write_outboxes();
        self.publish_counters();
        let counters = self.shared.worker(self.thread);
        counters
            .begun_phases
            .store(phase as u64 + 1, Ordering::Release);
    }

    fn publish_counters(&self) {
        let counters = self.shared.worker(self.thread);
        counters.connected.store(self.connected, Ordering::Relaxed);
        counters.unsettled.store(self.unsettled, Ordering::Relaxed);
        let sum = |of: fn(&PhaseCounts) -> u64| self.counts.iter().map(of).sum::<u64>();
        counters
            .connects
            .store(sum(|counts| counts.connects), Ordering::Relaxed);
        counters
            .received
            .store(sum(|counts| counts.received), Ordering::Relaxed);
        counters
            .answers
            .store(sum(|counts| counts.answers), Ordering::Relaxed);
        counters
            .ack_sum_ns
            .store(sum(|counts| counts.ack_sum_ns), Ordering::Relaxed);
        counters
            .sent
            .store(sum(|counts| counts.sent), Ordering::Relaxed);
        counters
            .acknowledged
            .store(sum(|counts| counts.acknowledged), Ordering::Relaxed);
        let failures = sum(|counts| counts.connect_failures + counts.disconnects);
        counters.failures.store(failures, Ordering::Relaxed);
        counters
            .skipped
            .store(sum(|counts| counts.skipped), Ordering::Relaxed);
        counters
            .missed
            .store(sum(|counts| counts.missed), Ordering::Relaxed);
    }

    fn wait_time(&self) -> Duration {
        let next = [
            self.schedule.next_ns().filter(|_| self.load > 0.0),
            self.answers.peek().map(|answer| answer.0.at_ns),
            self.update_timers.peek().map(|timer| timer.0.0),
            self.timers
                .peek()
                .filter(|_| !self.is_paused)
                .map(|timer| timer.0.0),
            self.faults
                .peek()
                .filter(|_| !self.is_paused)
                .map(|fault| fault.0.0),
            self.fault_ends.peek().map(|end| end.0.0),
            self.returning
                .peek()
                .filter(|_| !self.is_paused)
                .map(|returning| returning.0.0),
        ];
        let next_ns = next.into_iter().flatten().min().unwrap_or(u64::MAX);
        Duration::from_nanos(next_ns.saturating_sub(self.now_ns)).min(MAX_WAIT)
    }

    fn wait(&mut self, timeout: Duration) -> anyhow::Result<()> {
        // The poll counts in milliseconds and rounds up; what is due sooner is looked at without waiting.
        let timeout = if timeout < Duration::from_millis(1) {
            Duration::ZERO
        } else {
            timeout
        };
        if !wait_for_events(&mut self.poll, &mut self.events, timeout)? {
            return Ok(());
        }
        self.update_time();
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            self.handle_event(event);
        }
        self.events = events;
        self.write_outboxes();
        Ok(())
    }

    fn handle_event(&mut self, event: &Event) {
        if event.token() == PIPES {
            for device in self.ready_pipes.take() {
                self.handle_pipe(device);
            }
            for fetched in self.ready_pipes.take_fetched() {
                self.handle_fetched(fetched);
            }
            return;
        }
        let device = event.token().0;
        let outcome = match self.devices[device].stage {
            ConnectionStage::Offline => Ok(()),
            ConnectionStage::Dialing => self.send_connect_when_open(device, event),
            _ => {
                let is_input = event.is_readable() || event.is_error() || event.is_read_closed();
                self.on_ready(device, is_input, event.is_writable())
            }
        };
        if let Err(failure) = outcome {
            self.fail(device, &failure);
        }
    }

    /// The pipe of a device can be read or written again.
    fn handle_pipe(&mut self, device: usize) {
        if self.devices[device].stage != ConnectionStage::Offline
            && let Err(failure) = self.on_ready(device, true, true)
        {
            self.fail(device, &failure);
        }
    }

    fn on_ready(
        &mut self,
        device: usize,
        is_input: bool,
        is_writable: bool,
    ) -> Result<(), ClientError> {
        if is_writable
            && let Some(transport) = &mut self.devices[device].transport
            && transport.has_backlog()
        {
            transport.flush()?;
        }
        if is_input && !self.is_not_reading(device) {
            self.on_readable(device)?;
        }
        Ok(())
    }

    /// PINGREQ for each device twice in its keep-alive time, spread over that time.
    fn send_keep_alive(&mut self) {
        let count = self.devices.len();
        if count == 0 {
            return;
        }
        let keep_alive_s = self.plan.fleets.iter().map(|fleet| fleet.keep_alive_s);
        let shortest_s = keep_alive_s
            .filter(|seconds| *seconds > 0)
            .min()
            .unwrap_or(0);
        if shortest_s == 0 {
            return;
        }
        let step_ns = (u64::from(shortest_s) * 500_000_000 / count as u64).max(1);
        self.next_ping_ns = self
            .next_ping_ns
            .max(self.now_ns.saturating_sub(count as u64 * step_ns));
        while self.next_ping_ns <= self.now_ns {
            self.next_ping_ns += step_ns;
            let device = self.ping_cursor % count;
            self.ping_cursor = device + 1;
            let keeps_alive =
                self.fleet(device).keep_alive_s > 0 && !self.has_fault(device, FaultKind::Silence);
            let entry = &mut self.devices[device];
            if keeps_alive
                && entry.stage == ConnectionStage::Ready
                && let Some(transport) = &mut entry.transport
                && let Err(error) = transport.send(PING)
            {
                self.fail(device, &error.into());
            }
        }
    }

    /// Waits for acknowledgements, then disconnects all devices.
    fn drain(&mut self) -> anyhow::Result<()> {
        let until_ns = now_ns() + DRAIN_NS;
        while self
            .devices
            .iter()
            .any(|device| !device.in_flight.is_empty())
            && now_ns() < until_ns
        {
            self.wait(MAX_WAIT)?;
        }
        for device in 0..self.devices.len() {
            self.disconnect(device);
        }
        self.publish_counters();
        Ok(())
    }

    /// Ends a connection with DISCONNECT.
    fn disconnect(&mut self, device: usize) {
        // The connection is closed in any case.
        let _ = self.write_outbox(device);
        let entry = &mut self.devices[device];
        let stage = entry.stage;
        if let Some(transport) = &mut entry.transport
            && stage == ConnectionStage::Ready
        {
            let _ = transport.send(DISCONNECT);
        }
        self.close(device);
        self.settle(device);
    }

    /// Forgets a connection.
    fn close(&mut self, device: usize) {
        if self.is_child(device) {
            return;
        }
        self.disconnect_children(device);
        let entry = &mut self.devices[device];
        self.connecting_count -= usize::from(entry.is_connecting());
        self.connected -= u64::from(entry.stage == ConnectionStage::Ready);
        entry.transport = None;
        entry.stage = ConnectionStage::Offline;
        entry.fault = 0;
        entry.partial = Vec::new();
        entry.outbox = Vec::new();
        let in_flight = std::mem::take(&mut entry.in_flight);
        if !in_flight.is_empty() {
            self.counts().unacknowledged += in_flight.len() as u64;
        }
    }

    fn settle(&mut self, device: usize) {
        let entry = &mut self.devices[device];
        if !entry.is_settled {
            entry.is_settled = true;
            self.unsettled -= 1;
        }
    }
}
