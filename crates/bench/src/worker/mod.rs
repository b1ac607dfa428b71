//! One thread of the generator: an event loop over all its clients.
//!
//! The path of a message: [`sending`] sends what pace and window allow, the broker forwards, [`receiving`] counts and
//! checks it and opens the window again. [`connecting`] connects the clients before, [`load_run`] goes through warm-up,
//! measurement and drain.
//!
//! It does not use the state machine of `mqtt_client`, which returns each message and acknowledgement as an owned event. The
//! generator has to be faster than the brokers that it measures. [`receiving`] checks packets in the read buffer and
//! allocates nothing, and the identifiers in flight of a client are two counters. Only rare packets are decoded by
//! `mqtt`.

mod client;
mod connect_run;
mod connecting;
mod disconnecting;
mod load_plan;
mod load_run;
mod offline_run;
mod pace;
mod receiving;
mod run_shared;
mod sending;
mod worker_counts;

use std::ops::Range;
use std::time::Duration;

use mio::event::Event;
use mio::{Events, Poll};
use mqtt::QoS;

use crate::broker_access::BrokerAccess;
use crate::client_error::ClientError;
use crate::flow_window::{MAX_IN_FLIGHT, SubscriberProgress};
use crate::host::now_ns;
use crate::load_shape::LoadShape;
use crate::observer::RunObserver;
use crate::packets;
use crate::payload_stamp::{PayloadStamp, StampFinder};
use crate::sequence_checker::SequenceChecker;
use crate::timer::{PollingTime, TIMER, poll_for_events, wait_for_events};
use crate::transport::RAW_BYTES;

use client::{BenchConnection, ConnectionRole, ConnectionState, Publisher, Subscriber};
pub(crate) use load_plan::LoadPlan;
pub(crate) use offline_run::OfflineTimes;
pub(crate) use pace::LoadPace;
pub(crate) use pace::SendSchedule;
pub(crate) use run_shared::{AbortOnDrop, RunShared};
pub(crate) use worker_counts::{RuleCounts, WorkerCounts};

/// Size of the buffer every read goes to.
const INBOX_BYTES: usize = 384 * 1024;
/// Events taken from the poll at a time.
const EVENTS: usize = 1024;
/// At a rate, due messages are sent after so many events.
const EVENTS_AT_RATE: usize = 64;

/// The clients a worker is to drive.
#[derive(Clone, Debug)]
pub(crate) enum WorkerClients {
    /// Publishers and subscribers of some of the groups.
    Groups(Range<usize>),
    /// Clients that only connect, numbered like this.
    Idle(Range<usize>),
}

/// One thread's state.
pub(crate) struct Worker<'a> {
    access: &'a BrokerAccess,
    shared: &'a RunShared,
    /// Number of this thread; the first one also observes.
    thread: usize,
    poll: Poll,
    events: Events,
    v5: bool,
    qos: QoS,
    shape: LoadShape,
    /// See [`LoadShape::stride`].
    stride: u64,
    /// What subscribers ask of the broker when they connect, and whether they have done so before.
    session: packets::SessionKind,
    is_return: bool,
    /// Index of the worker's first group among all, and of its first idle client.
    first_group: usize,
    first_idle: usize,
    /// All subscribers, then all publishers; or idle clients.
    connections: Vec<BenchConnection>,
    /// Connections that have been dialled, and how many of them are neither ready nor failed.
    dialed: usize,
    unsettled: usize,
    subscribers: Vec<Subscriber>,
    publishers: Vec<Publisher>,
    checkers: Vec<SequenceChecker>,
    finder: StampFinder,
    inbox: Box<[u8]>,
    raw: Box<[u8]>,
    outbox: Vec<u8>,
    /// Acknowledgements that one read calls for.
    replies: Vec<u8>,
    /// Publishers that may have something to send.
    queue: Vec<u32>,
    pace: LoadPace,
    schedule: Option<SendSchedule>,
    /// Whether publishers may send new messages in a closed window.
    is_sending: bool,
    /// Messages of the schedule that are due.
    due: u64,
    /// Time spent on polling without an event.
    polling: PollingTime,
    /// Latencies are recorded for messages sent from then and until then.
    measured: Range<u64>,
    /// When the current batch of bytes was read.
    read_ns: u64,
    /// Different messages received since the start.
    received: u64,
    next_ping_ns: u64,
    ping_cursor: usize,
    tally: WorkerCounts,
}

impl<'a> Worker<'a> {
    /// A worker with all its clients, none connected yet.
    pub(crate) fn new(
        access: &'a BrokerAccess,
        shared: &'a RunShared,
        thread: usize,
        clients: WorkerClients,
        plan: &LoadPlan,
    ) -> anyhow::Result<Self> {
        let session = match access.lasting_sessions {
            true => packets::SessionKind::Persistent,
            false => packets::SessionKind::Clean,
        };
        let mut worker = Self {
            access,
            shared,
            thread,
            poll: Poll::new()?,
            events: Events::with_capacity(match plan.pace {
                LoadPace::Rate { .. } => EVENTS_AT_RATE,
                LoadPace::Window(_) | LoadPace::Stored { .. } => EVENTS,
            }),
            v5: access.greeting.version == mqtt::Version::V5,
            qos: plan.qos,
            shape: plan.shape,
            stride: plan.shape.stride(),
            session,
            is_return: false,
            first_group: 0,
            first_idle: 0,
            connections: Vec::new(),
            dialed: 0,
            unsettled: 0,
            subscribers: Vec::new(),
            publishers: Vec::new(),
            checkers: Vec::new(),
            finder: StampFinder::new(plan.body.stamp_format()),
            inbox: vec![0; INBOX_BYTES].into_boxed_slice(),
            raw: vec![0; RAW_BYTES].into_boxed_slice(),
            outbox: Vec::new(),
            replies: Vec::new(),
            queue: Vec::new(),
            pace: plan.pace,
            schedule: None,
            is_sending: false,
            due: 0,
            polling: PollingTime::default(),
            measured: 0..0,
            read_ns: 0,
            received: 0,
            next_ping_ns: u64::MAX,
            ping_cursor: 0,
            tally: WorkerCounts::default(),
        };
        match clients {
            WorkerClients::Groups(groups) => worker.add_groups(groups, plan)?,
            WorkerClients::Idle(numbers) => {
                worker.first_idle = numbers.start;
                worker
                    .connections
                    .extend(numbers.map(|_| BenchConnection::new(ConnectionRole::Idle)));
            }
        }
        Ok(worker)
    }

    fn add_groups(&mut self, groups: Range<usize>, plan: &LoadPlan) -> anyhow::Result<()> {
        self.first_group = groups.start;
        let (publishers, subscribers) = (self.shape.publishers, self.shape.subscribers);
        for (group, _) in groups.clone().enumerate() {
            for member in 0..subscribers {
                let role = ConnectionRole::Subscriber(self.subscribers.len() as u32);
                self.connections.push(BenchConnection::new(role));
                self.subscribers.push(Subscriber {
                    group,
                    member,
                    first_checker: self.checkers.len(),
                    served_ns: None,
                });
                self.checkers
                    .extend((0..publishers).map(|_| SequenceChecker::default()));
            }
        }
        let window = match plan.pace {
            LoadPace::Window(window) => Some(window),
            LoadPace::Rate { .. } | LoadPace::Stored { .. } => None,
        };
        for global in groups {
            for member in 0..publishers {
                let stamp = PayloadStamp {
                    run: self.access.run,
                    publisher: (global * publishers + member) as u32,
                    sequence: 0,
                    sent_ns: 0,
                };
                let topics = self.shape.topics(self.access.run, global, member);
                let version = self.access.greeting.version;
                let template =
                    packets::PublishTemplate::new(version, plan.qos, &topics, &plan.body, stamp)?;
                let role = ConnectionRole::Publisher(self.publishers.len() as u32);
                self.publishers.push(Publisher {
                    connection: self.connections.len(),
                    template,
                    sent: 0,
                    progress: SubscriberProgress::new(subscribers as u32, window),
                    acks: Default::default(),
                    max_in_flight: MAX_IN_FLIGHT,
                    control: Vec::new(),
                    is_queued: false,
                    is_active: true,
                    seen_floor: 0,
                    seen_since_ns: 0,
                });
                self.connections.push(BenchConnection::new(role));
            }
        }
        Ok(())
    }

    /// The identifier of a client.
    fn client_id(&self, index: usize) -> String {
        let number = index;
        match self.connections[index].role {
            ConnectionRole::Idle => self.access.client_id('c', self.first_idle + number),
            ConnectionRole::Subscriber(s) => {
                let before = self.first_group * self.shape.subscribers;
                self.access.client_id('s', before + s as usize)
            }
            ConnectionRole::Publisher(p) => {
                let before = self.first_group * self.shape.publishers;
                self.access.client_id('p', before + p as usize)
            }
        }
    }

    /// Waits for events, at most for `timeout`, and deals with all of them.
    fn poll_once(&mut self, timeout: Duration) -> anyhow::Result<()> {
        if wait_for_events(&mut self.poll, &mut self.events, timeout)? {
            self.handle_events();
        }
        Ok(())
    }

    /// Like [`poll_once`](Self::poll_once), but polls before it sleeps.
    fn poll_without_sleep(&mut self, timeout: Duration) -> anyhow::Result<()> {
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
                self.handle_event(event);
            }
        }
        self.events = events;
    }

    fn handle_event(&mut self, event: &Event) {
        let index = event.token().0;
        let outcome = match self.connections[index].state {
            ConnectionState::New | ConnectionState::Closed => Ok(()),
            ConnectionState::Leaving => {
                self.on_disconnecting(index);
                Ok(())
            }
            ConnectionState::Dialing => self.send_connect_when_open(index, event),
            _ => self.on_ready(index, event),
        };
        if let Err(trouble) = outcome {
            self.fail_connection(index, &trouble);
        }
    }

    fn on_ready(&mut self, index: usize, event: &Event) -> Result<(), ClientError> {
        if event.is_writable() {
            self.on_writable(index)?;
        }
        if event.is_readable() || event.is_error() || event.is_read_closed() {
            self.on_readable(index)?;
        }
        Ok(())
    }

    /// The connection is of no more use: counts the failure and lets the others go on without it.
    fn fail_connection(&mut self, index: usize, error: &ClientError) {
        let client = self.client_id(index);
        self.tally.failures.record(&client, error);
        let connection = &mut self.connections[index];
        let was_ready = connection.state == ConnectionState::Ready;
        let was_under_way = !matches!(
            connection.state,
            ConnectionState::Ready | ConnectionState::New | ConnectionState::Closed
        );
        self.unsettled -= usize::from(was_under_way);
        connection.transport = None;
        connection.state = ConnectionState::Closed;
        match connection.role {
            ConnectionRole::Publisher(p) => self.publishers[p as usize].is_active = false,
            ConnectionRole::Subscriber(s) if was_ready => self.remove_subscriber(s as usize),
            ConnectionRole::Subscriber(_) | ConnectionRole::Idle => {}
        }
    }

    fn remove_subscriber(&mut self, subscriber: usize) {
        let Subscriber {
            group,
            first_checker,
            ..
        } = self.subscribers[subscriber];
        let publishers = self.shape.publishers;
        for member in 0..publishers {
            let level = self.checkers[first_checker + member].next_expected();
            let p = group * publishers + member;
            let publisher = &mut self.publishers[p];
            publisher.is_active &= publisher.progress.remove_subscriber(level);
            self.enqueue(p);
        }
    }

    /// Puts a publisher in the line of those that may have something to send.
    #[inline]
    fn enqueue(&mut self, publisher: usize) {
        let entry = &mut self.publishers[publisher];
        if !entry.is_queued {
            entry.is_queued = true;
            self.queue.push(publisher as u32);
        }
    }

    /// Sends a PINGREQ to every client twice in each keep-alive interval, a few at a time.
    fn send_keep_alive(&mut self, now_ns: u64) {
        let count = self.connections.len();
        let interval_ns = u64::from(self.access.greeting.keep_alive_s) * 500_000_000;
        for _ in 0..count {
            if now_ns < self.next_ping_ns {
                return;
            }
            self.next_ping_ns += (interval_ns / count as u64).max(1);
            let index = self.ping_cursor % count;
            self.ping_cursor = index + 1;
            if self.connections[index].state == ConnectionState::Ready
                && let Some(transport) = &mut self.connections[index].transport
                && let Err(error) = transport.send(packets::PING)
            {
                self.fail_connection(index, &error.into());
            }
        }
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }
}

/// Runs one worker for each thread and adds up what they counted. The first runs on the calling thread and
/// observes.
pub(crate) fn run_threads(
    access: &BrokerAccess,
    clients: impl Fn(usize) -> WorkerClients + Sync,
    plan: &LoadPlan,
    observer: &mut RunObserver,
    run: impl Fn(Worker<'_>, Option<&mut RunObserver>) -> anyhow::Result<WorkerCounts> + Sync,
) -> anyhow::Result<WorkerCounts> {
    let shared = RunShared::new(access.threads);
    let work =
        &|thread: usize, observer: Option<&mut RunObserver>| -> anyhow::Result<WorkerCounts> {
            let guard = AbortOnDrop(Some(&shared));
            let worker = Worker::new(access, &shared, thread, clients(thread), plan)?;
            let tally = run(worker, observer)?;
            guard.disarm();
            Ok(tally)
        };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..access.threads)
            .map(|thread| scope.spawn(move || work(thread, None)))
            .collect();
        let first = work(0, Some(observer));
        let mut outcomes = vec![first];
        outcomes.extend(others.into_iter().map(|handle| {
            handle
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a generator thread panicked")))
        }));
        let mut total = WorkerCounts::default();
        // A thread that gave up because another did has less to say than the other.
        outcomes.sort_by_key(|outcome| {
            outcome
                .as_ref()
                .is_err_and(|error| error.is::<run_shared::RunAbortedError>())
        });
        for outcome in outcomes {
            total.add_parallel(&outcome?);
        }
        Ok(total)
    })
}
