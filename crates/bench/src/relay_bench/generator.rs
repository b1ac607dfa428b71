//! The event loop of a load: one thread drives all connections of all endpoints.
//!
//! The path of a message: [`Generator::send_due`] sends what pace and window allow, the relay forwards, and
//! [`DeliveryVerifier`] checks what arrives and opens the window again. [`super::generator_run`] goes through connecting,
//! warm-up, measurement and drain. The memory does not grow with the number of messages.

use std::time::Duration;

use mio::event::Event;
use mio::{Events, Poll, Token};
use ws::MaskKeys;

use super::connection::RelayConnection;
use super::delivery_verifier::{DeliveryVerifier, RelayShape};
use super::message_template::MessageTemplate;
use super::server::RelayServer;
use crate::broker_access::random_u32;
use crate::client_error::ClientError;
use crate::endpoint::SourceAddresses;
use crate::host::now_ns;
use crate::payload_stamp::PayloadStamp;
use crate::timer::{PollingTime, TIMER, poll_for_events, wait_for_events};
use crate::worker::{LoadPace, SendSchedule, WorkerCounts};

/// Size of the buffer that every read goes to.
const INBOX_BYTES: usize = 256 * 1024;
const EVENTS: usize = 1024;
/// Events that are handled before due messages are sent, at a rate.
const EVENTS_AT_RATE: usize = 64;
/// Messages of one sender that are written together, at most.
const MAX_BATCH: u64 = 1024;
/// Local ports tried for one connection.
const MAX_PORT_ATTEMPTS: usize = 100;

/// A load to run.
#[derive(Clone, Debug)]
pub(super) struct RelayLoad {
    pub(super) shape: RelayShape,
    pub(super) template: MessageTemplate,
    pub(super) pace: LoadPace,
    /// Connections that are being made at a time.
    pub(super) concurrency: usize,
    pub(super) connect_timeout_ns: u64,
    /// Time for which all connections are idle before anything is sent.
    pub(super) hold_ns: u64,
    pub(super) warmup_ns: u64,
    pub(super) duration_ns: u64,
    /// Time without a message after which missing ones are lost.
    pub(super) quiet_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    New,
    Connecting,
    Open,
    Closed,
}

/// The place of one connection.
pub(super) struct ConnectionSlot {
    pub(super) connection: Option<RelayConnection>,
    pub(super) state: SlotState,
    pub(super) started_ns: u64,
    /// Does not read: a slow receiver before the end.
    is_paused: bool,
}

pub(super) struct Sender {
    pub(super) sent: u64,
    is_queued: bool,
    pub(super) is_active: bool,
    /// The floor at the last check, and since when it has this value; 0: not checked yet.
    pub(super) seen_floor: u64,
    pub(super) seen_since_ns: u64,
}

pub(super) struct Generator<'a> {
    pub(super) server: &'a RelayServer,
    /// Ids of the endpoints.
    endpoints: &'a [String],
    pub(super) load: &'a RelayLoad,
    run: u32,
    sources: SourceAddresses,
    pub(super) poll: Poll,
    events: Events,
    pub(super) slots: Vec<ConnectionSlot>,
    pub(super) dialed: usize,
    pub(super) unsettled: usize,
    pub(super) open: usize,
    pub(super) senders: Vec<Sender>,
    /// Senders that may have something to send.
    queue: Vec<u32>,
    pub(super) verifier: DeliveryVerifier,
    pub(super) schedule: Option<SendSchedule>,
    /// Messages of the schedule that are due.
    pub(super) due: u64,
    /// Whether new messages are sent in a closed window.
    pub(super) is_sending: bool,
    /// Time spent on polling without an event.
    pub(super) polling: PollingTime,
    inbox: Box<[u8]>,
    outbox: Vec<u8>,
    keys: MaskKeys,
    pub(super) counts: WorkerCounts,
}

impl<'a> Generator<'a> {
    /// `endpoints` are as many as the load has.
    pub(super) fn new(
        server: &'a RelayServer,
        endpoints: &'a [String],
        load: &'a RelayLoad,
    ) -> anyhow::Result<Self> {
        let shape = load.shape;
        let window = match load.pace {
            LoadPace::Window(window) => Some(window),
            LoadPace::Rate { .. } | LoadPace::Stored { .. } => None,
        };
        let events = match load.pace {
            LoadPace::Rate { .. } => EVENTS_AT_RATE,
            LoadPace::Window(_) | LoadPace::Stored { .. } => EVENTS,
        };
        let run = random_u32();
        let slots = (0..shape.connections()).map(|connection| ConnectionSlot {
            connection: None,
            state: SlotState::New,
            started_ns: 0,
            is_paused: shape.is_slow(connection),
        });
        let senders = (0..shape.all_senders()).map(|_| Sender {
            sent: 0,
            is_queued: false,
            is_active: true,
            seen_floor: 0,
            seen_since_ns: 0,
        });
        Ok(Self {
            server,
            endpoints,
            load,
            run,
            sources: server.sources(shape.connections()),
            poll: Poll::new()?,
            events: Events::with_capacity(events),
            slots: slots.collect(),
            dialed: 0,
            unsettled: 0,
            open: 0,
            senders: senders.collect(),
            queue: Vec::new(),
            verifier: DeliveryVerifier::new(run, shape, load.template.clone(), window),
            schedule: None,
            due: 0,
            is_sending: false,
            polling: PollingTime::default(),
            inbox: vec![0; INBOX_BYTES].into_boxed_slice(),
            outbox: Vec::new(),
            keys: MaskKeys::new(),
            counts: WorkerCounts::default(),
        })
    }

    /// Starts to connect the next connection.
    pub(super) fn dial_next(&mut self) {
        let index = self.dialed;
        self.dialed += 1;
        self.unsettled += 1;
        let endpoint = index / self.load.shape.connections_per_endpoint();
        let path = self.server.path(&self.endpoints[endpoint]);
        let mut attempt = 0;
        let dialed = loop {
            let source = self.sources.pick(index, attempt, self.run);
            let dialed = RelayConnection::connect(
                self.server.target,
                source,
                &self.server.host,
                &path,
                self.poll.registry(),
                Token(index),
            );
            attempt += 1;
            match &dialed {
                Err(ClientError::Transport(error))
                    if error.is_address_in_use()
                        && source.is_some()
                        && attempt < MAX_PORT_ATTEMPTS => {}
                _ => break dialed,
            }
        };
        let slot = &mut self.slots[index];
        slot.state = SlotState::Connecting;
        slot.started_ns = now_ns();
        match dialed {
            Ok(connection) => slot.connection = Some(connection),
            Err(failure) => self.fail(index, &failure),
        }
    }

    /// The connection is of no more use: counts the failure and lets the others go on.
    pub(super) fn fail(&mut self, index: usize, error: &ClientError) {
        let slot = &mut self.slots[index];
        match slot.state {
            SlotState::Connecting => self.unsettled -= 1,
            SlotState::Open => self.open -= 1,
            SlotState::New | SlotState::Closed => {}
        }
        slot.state = SlotState::Closed;
        slot.connection = None;
        self.counts
            .failures
            .record(&format!("connection {index}"), error);
        if let Some(sender) = self.load.shape.sender_of(index) {
            self.senders[sender].is_active = false;
        }
    }

    /// Waits for events, at most for `timeout`, and handles all of them.
    pub(super) fn poll_once(&mut self, timeout: Duration) -> anyhow::Result<()> {
        if wait_for_events(&mut self.poll, &mut self.events, timeout)? {
            self.handle_events();
        }
        Ok(())
    }

    /// Like [`poll_once`](Self::poll_once), but polls before it sleeps.
    pub(super) fn poll_without_sleep(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let polled = poll_for_events(&mut self.poll, &mut self.events, timeout)?;
        let (has_events, time) = polled;
        self.polling += time;
        if has_events {
            self.handle_events();
        }
        Ok(())
    }

    fn handle_events(&mut self) {
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            if event.token() != TIMER {
                self.handle(event);
            }
        }
        self.events = events;
        while let Some(sender) = self.verifier.pop_advanced() {
            self.enqueue(sender);
        }
    }

    fn handle(&mut self, event: &Event) {
        let index = event.token().0;
        let outcome = self.on_event(index, event);
        if let Err(failure) = outcome {
            self.fail(index, &failure);
        }
    }

    fn on_event(&mut self, index: usize, event: &Event) -> Result<(), ClientError> {
        let slot = &mut self.slots[index];
        let Some(connection) = &mut slot.connection else {
            return Ok(());
        };
        if event.is_error() {
            return Err(connection.take_error());
        }
        if event.is_writable() && connection.has_backlog() {
            connection.flush()?;
            if let Some(sender) = self.load.shape.sender_of(index) {
                self.enqueue(sender);
            }
        }
        if event.is_readable() || event.is_read_closed() {
            self.read(index)?;
        }
        Ok(())
    }

    /// Reads what has arrived. A paused connection reads only the response to its handshake.
    fn read(&mut self, index: usize) -> Result<(), ClientError> {
        let slot = &mut self.slots[index];
        let Some(connection) = &mut slot.connection else {
            return Ok(());
        };
        if slot.is_paused && slot.state == SlotState::Open {
            return Ok(());
        }
        let verifier = &mut self.verifier;
        loop {
            let outcome =
                connection.receive(&mut self.inbox, &mut self.keys, |message, at_ns| {
                    verifier.record(index, message, at_ns);
                })?;
            if outcome.is_accepted {
                slot.state = SlotState::Open;
                self.unsettled -= 1;
                self.open += 1;
                if slot.is_paused {
                    return Ok(());
                }
            }
            if !outcome.more {
                return Ok(());
            }
        }
    }

    /// Lets slow receivers read.
    pub(super) fn resume_slow_receivers(&mut self) {
        for index in 0..self.slots.len() {
            if !std::mem::take(&mut self.slots[index].is_paused) {
                continue;
            }
            if let Err(failure) = self.read(index) {
                self.fail(index, &failure);
            }
        }
    }

    /// Puts a sender in the line of those that may have something to send.
    #[inline]
    pub(super) fn enqueue(&mut self, sender: usize) {
        let entry = &mut self.senders[sender];
        if !entry.is_queued {
            entry.is_queued = true;
            self.queue.push(sender as u32);
        }
    }

    pub(super) fn enqueue_all(&mut self) {
        for sender in 0..self.senders.len() {
            self.enqueue(sender);
        }
    }

    /// Sends whatever is due or what windows allow.
    pub(super) fn send_due(&mut self) {
        if let Some(schedule) = self.schedule {
            let due = schedule.due_messages(now_ns());
            // Beyond one for each, all have something to send.
            let new = due.saturating_sub(self.due).min(self.senders.len() as u64);
            for number in due - new..due {
                self.enqueue(schedule.publisher_of(number));
            }
            self.due = due;
        }
        while let Some(sender) = self.queue.pop() {
            let sender = sender as usize;
            self.senders[sender].is_queued = false;
            if let Err(failure) = self.send_from(sender) {
                let connection = self.load.shape.connection_of(sender);
                self.fail(connection, &failure);
            }
        }
    }

    /// How many messages the sender may send now.
    fn allowance(&self, sender: usize) -> u64 {
        let entry = &self.senders[sender];
        match (self.load.pace, &self.schedule) {
            _ if !entry.is_active => 0,
            (LoadPace::Window(window), _) if self.is_sending => {
                let ahead = entry.sent - self.verifier.floor(sender);
                window.saturating_sub(ahead)
            }
            (LoadPace::Rate { .. }, Some(schedule)) => {
                let due = schedule.share_of(sender, self.due);
                due.saturating_sub(entry.sent)
            }
            _ => 0,
        }
    }

    fn send_from(&mut self, sender: usize) -> Result<(), ClientError> {
        let slot = self.load.shape.connection_of(sender);
        loop {
            let allowed = self.allowance(sender);
            let Some(connection) = &mut self.slots[slot].connection else {
                return Ok(());
            };
            // What the socket does not take goes out with its next writable event, which puts the sender in line again.
            if allowed == 0 || connection.has_backlog() {
                return Ok(());
            }
            let count = allowed.min(MAX_BATCH);
            let first = self.senders[sender].sent;
            let sent_ns = now_ns();
            self.outbox.clear();
            for sequence in first..first + count {
                let stamp = PayloadStamp {
                    run: self.run,
                    publisher: sender as u32,
                    sequence,
                    sent_ns: (self.schedule.as_ref())
                        .map_or(sent_ns, |schedule| schedule.time_of_own(sender, sequence)),
                };
                let template = self.verifier.template();
                template.encode(&stamp, &mut self.keys, &mut self.outbox);
            }
            self.senders[sender].sent += count;
            connection.send(&self.outbox)?;
        }
    }

    /// Messages sent by all.
    pub(super) fn sent(&self) -> u64 {
        self.senders.iter().map(|sender| sender.sent).sum()
    }

    /// Messages that were due and have not been sent.
    pub(super) fn unsent(&self) -> u64 {
        let Some(schedule) = &self.schedule else {
            return 0;
        };
        let each = self.senders.iter().enumerate();
        each.map(|(number, sender)| {
            schedule
                .share_of(number, self.due)
                .saturating_sub(sender.sent)
        })
        .sum()
    }
}
