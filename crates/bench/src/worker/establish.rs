//! Connecting: so many clients at a time, subscribers before publishers, each with a time limit.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::bail;
use mio::Token;
use mio::event::Event;

use super::client::{Role, State};
use super::{Worker, shared};
use crate::failure::Trouble;
use crate::link::Link;
use crate::observer::Observer;
use crate::packets::{self, Reply, Session};
use crate::shape::Topics;

/// Local ports tried for one connection.
const PORTS_TRIED: usize = 100;
/// How often time-outs are looked for while nothing else happens.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl Worker<'_> {
    /// Connects all clients and returns when each is ready or has failed. With `strict`, the first failure ends
    /// the run.
    pub(super) fn establish(
        &mut self,
        strict: bool,
        mut observer: Option<&mut Observer>,
    ) -> anyhow::Result<()> {
        // Nobody publishes before everybody listens.
        self.establish_some(self.subscribers.len(), strict, &mut observer)?;
        self.establish_some(self.connections.len(), strict, &mut observer)
    }

    /// Connects the clients before `end` that have not been dialled yet.
    pub(super) fn establish_some(
        &mut self,
        end: usize,
        strict: bool,
        observer: &mut Option<&mut Observer>,
    ) -> anyhow::Result<()> {
        // This thread's share of --concurrency.
        let at_a_time = self.access.concurrency.div_ceil(self.access.threads).max(1);
        let mut under_way = VecDeque::with_capacity(at_a_time);
        while self.dialed < end || self.unsettled > 0 {
            while self.dialed < end && self.unsettled < at_a_time {
                under_way.push_back(self.dialed);
                self.dial(self.dialed);
                self.dialed += 1;
            }
            self.turn(LOOK_EVERY)?;
            if let Some(described) = self.tally.failures.first.first()
                && strict
            {
                bail!("{}: {described}", self.access.dialer.target);
            }
            if self.shared.is_aborted() {
                bail!(shared::Aborted);
            }
            let now_ns = self.now();
            self.expire(&mut under_way, now_ns);
            if let Some(observer) = observer {
                if self.is_return {
                    self.tell(self.settled() + self.received);
                    observer.passing(now_ns, self.shared.received(), "received")?;
                } else {
                    observer.connecting(now_ns, self.shared.connected())?;
                }
            }
        }
        Ok(())
    }

    fn dial(&mut self, index: usize) {
        let number = match self.connections[index].role {
            Role::Idle => self.first_idle + index,
            Role::Subscriber(_) | Role::Publisher(_) => index,
        };
        let started_ns = self.now();
        let mut attempt = 0;
        let dialed = loop {
            let source = self.access.sources.pick(number, attempt, self.access.run);
            let registry = self.poll.registry();
            let dialed = Link::dial(&self.access.dialer, source, registry, Token(index));
            attempt += 1;
            match &dialed {
                Err(error)
                    if error.is_port_taken() && source.is_some() && attempt < PORTS_TRIED => {}
                _ => break dialed,
            }
        };
        let connection = &mut self.connections[index];
        connection.partial.clear();
        connection.large = None;
        connection.started_ns = started_ns;
        connection.state = State::Dialing;
        self.unsettled += 1;
        match dialed {
            Ok(link) => connection.link = Some(link),
            Err(error) => self.fail(index, &error.into()),
        }
    }

    /// TCP may be up: sends the CONNECT.
    pub(super) fn on_dialing(&mut self, index: usize, event: &Event) -> Result<(), Trouble> {
        let client_id = self.client_id(index);
        let connection = &mut self.connections[index];
        let session = match connection.role {
            Role::Subscriber(_) => self.session,
            Role::Publisher(_) | Role::Idle => Session::Clean,
        };
        let Some(link) = &mut connection.link else {
            return Ok(());
        };
        if event.is_error() || event.is_write_closed() {
            return Err(link.take_error().into());
        }
        if event.is_writable() {
            connection.state = State::Greeting;
            link.flush()?;
            link.send(&self.access.greeting.connect(&client_id, session))?;
        }
        Ok(())
    }

    /// A packet that is neither a message nor an acknowledgement of one.
    #[cold]
    pub(super) fn on_reply(&mut self, index: usize, packet: &[u8]) -> Result<(), Trouble> {
        let version = self.access.greeting.version;
        let reply = packets::read_reply(packet, version, self.qos).map_err(Trouble::Protocol)?;
        let state = self.connections[index].state;
        match (reply, state) {
            (
                Reply::Accepted {
                    receive_maximum,
                    session_present,
                },
                State::Greeting,
            ) => self.on_accepted(index, receive_maximum, session_present),
            (Reply::Refused(reason), _) => Err(Trouble::Refused(reason)),
            (Reply::Disconnected(reason), _) => Err(Trouble::Disconnected(reason)),
            (Reply::Subscribed(granted), State::Subscribing(missing)) => {
                granted.map_err(Trouble::Subscription)?;
                match missing {
                    0 | 1 => self.on_established(index),
                    _ => self.connections[index].state = State::Subscribing(missing - 1),
                }
                Ok(())
            }
            (Reply::Pong, _) => Ok(()),
            (reply, state) => Err(Trouble::Protocol(format!(
                "the broker sent {reply:?} to a client in state {state:?}"
            ))),
        }
    }

    fn on_accepted(
        &mut self,
        index: usize,
        receive_maximum: u16,
        session_present: bool,
    ) -> Result<(), Trouble> {
        let connection = &mut self.connections[index];
        let took_ns = self.read_ns.saturating_sub(connection.started_ns);
        match connection.role {
            Role::Idle => {
                self.tally.latency.saturating_record(took_ns);
                self.on_established(index);
            }
            Role::Publisher(p) => {
                let publisher = &mut self.publishers[p as usize];
                publisher.max_in_flight = publisher.max_in_flight.min(receive_maximum.into());
                self.on_established(index);
            }
            // Its subscription is still there, or its messages are lost.
            Role::Subscriber(_) if self.is_return => {
                if !session_present {
                    return Err(Trouble::Protocol(
                        "the broker does not know its session any more".to_owned(),
                    ));
                }
                self.on_established(index);
            }
            Role::Subscriber(s) => {
                let subscriber = &self.subscribers[s as usize];
                let group = self.first_group + subscriber.group;
                let filters = match self.shape.topics {
                    Topics::Ruled(_) => vec![self.access.output_topic(group)],
                    _ => self
                        .shape
                        .filters(self.access.run, group, subscriber.member),
                };
                let version = self.access.greeting.version;
                let (bytes, count) = packets::subscribe(version, &filters, self.qos);
                connection.state = State::Subscribing(count);
                if let Some(link) = &mut connection.link {
                    link.send(&bytes)?;
                }
            }
        }
        Ok(())
    }

    fn on_established(&mut self, index: usize) {
        self.connections[index].state = State::Ready;
        self.unsettled -= 1;
        self.tally.connects += 1;
        let counters = self.shared.counters(self.thread);
        let connects = self.tally.connects;
        counters.connected.store(connects, Ordering::Relaxed);
    }

    /// Gives up clients that have waited too long; `under_way` has them in the order they were dialled.
    fn expire(&mut self, under_way: &mut VecDeque<usize>, now_ns: u64) {
        while let Some(&index) = under_way.front() {
            let connection = &self.connections[index];
            if !matches!(connection.state, State::Ready | State::Closed) {
                if now_ns.saturating_sub(connection.started_ns) < self.access.connect_timeout_ns {
                    return;
                }
                self.fail(index, &Trouble::TimedOut);
            }
            under_way.pop_front();
        }
    }
}
