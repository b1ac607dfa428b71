//! Connecting: so many clients at a time, subscribers before publishers, each with a time limit.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::bail;
use mio::Token;
use mio::event::Event;

use super::client::{ConnectionRole, ConnectionState};
use super::{Worker, run_shared};
use crate::client_error::ClientError;
use crate::load_shape::TopicLayout;
use crate::observer::RunObserver;
use crate::packets::{self, BrokerReply, SessionKind};
use crate::transport::BrokerConnection;

/// Local ports tried for one connection.
const MAX_PORT_ATTEMPTS: usize = 100;
/// How often time-outs are looked for while nothing else happens.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_millis(10);

impl Worker<'_> {
    /// Connects all clients and returns when each is ready or has failed. With `strict`, the first failure ends
    /// the run.
    pub(super) fn connect_all(
        &mut self,
        strict: bool,
        mut observer: Option<&mut RunObserver>,
    ) -> anyhow::Result<()> {
        // Publishers start after all subscriptions are acknowledged.
        self.connect_until(self.subscribers.len(), strict, &mut observer)?;
        self.connect_until(self.connections.len(), strict, &mut observer)
    }

    /// Connects the clients before `end` that have not been dialled yet.
    pub(super) fn connect_until(
        &mut self,
        end: usize,
        strict: bool,
        observer: &mut Option<&mut RunObserver>,
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
            self.poll_once(TIMEOUT_CHECK_INTERVAL)?;
            if let Some(described) = self.tally.failures.first.first()
                && strict
            {
                bail!("{}: {described}", self.access.dialer.target);
            }
            if self.shared.is_aborted() {
                bail!(run_shared::RunAbortedError);
            }
            let now_ns = self.now_ns();
            self.expire_pending(&mut under_way, now_ns);
            if let Some(observer) = observer {
                if self.is_return {
                    self.publish_counters(self.acknowledged_messages() + self.received);
                    observer.note_progress(now_ns, self.shared.received(), "received")?;
                } else {
                    observer.note_connecting(now_ns, self.shared.connected())?;
                }
            }
        }
        Ok(())
    }

    fn dial(&mut self, index: usize) {
        let number = match self.connections[index].role {
            ConnectionRole::Idle => self.first_idle + index,
            ConnectionRole::Subscriber(_) | ConnectionRole::Publisher(_) => index,
        };
        let started_ns = self.now_ns();
        let mut attempt = 0;
        let dialed = loop {
            let source = self.access.sources.pick(number, attempt, self.access.run);
            let registry = self.poll.registry();
            let dialer = match (self.connections[index].role, &self.access.subscriber_dialer) {
                (ConnectionRole::Subscriber(_), Some(dialer)) => dialer,
                _ => &self.access.dialer,
            };
            let dialed = BrokerConnection::dial(dialer, source, registry, Token(index));
            attempt += 1;
            match &dialed {
                Err(error)
                    if error.is_address_in_use()
                        && source.is_some()
                        && attempt < MAX_PORT_ATTEMPTS => {}
                _ => break dialed,
            }
        };
        let connection = &mut self.connections[index];
        connection.partial.clear();
        connection.large = None;
        connection.started_ns = started_ns;
        connection.state = ConnectionState::Dialing;
        self.unsettled += 1;
        match dialed {
            Ok(transport) => connection.transport = Some(transport),
            Err(error) => self.fail_connection(index, &error.into()),
        }
    }

    /// TCP may be up: sends the CONNECT.
    pub(super) fn send_connect_when_open(
        &mut self,
        index: usize,
        event: &Event,
    ) -> Result<(), ClientError> {
        let client_id = self.client_id(index);
        let connection = &mut self.connections[index];
        let session = match connection.role {
            ConnectionRole::Subscriber(_) => self.session,
            ConnectionRole::Publisher(_) | ConnectionRole::Idle => SessionKind::Clean,
        };
        let Some(transport) = &mut connection.transport else {
            return Ok(());
        };
        if event.is_error() || event.is_write_closed() {
            return Err(transport.take_error().into());
        }
        if event.is_writable() {
            connection.state = ConnectionState::Greeting;
            transport.flush()?;
            transport.send(&self.access.greeting.connect(&client_id, session))?;
        }
        Ok(())
    }

    /// A packet that is neither a message nor an acknowledgement of one.
    #[cold]
    pub(super) fn on_reply(&mut self, index: usize, packet: &[u8]) -> Result<(), ClientError> {
        let version = self.access.greeting.version;
        let reply =
            packets::read_reply(packet, version, self.qos).map_err(ClientError::Protocol)?;
        let state = self.connections[index].state;
        match (reply, state) {
            (
                BrokerReply::Accepted {
                    receive_maximum,
                    session_present,
                },
                ConnectionState::Greeting,
            ) => self.on_connack(index, receive_maximum, session_present),
            (BrokerReply::Refused(reason), _) => Err(ClientError::Refused(reason)),
            (BrokerReply::Disconnected(reason), _) => Err(ClientError::Disconnected(reason)),
            (BrokerReply::Subscribed(granted), ConnectionState::Subscribing(missing)) => {
                granted.map_err(ClientError::Subscription)?;
                match missing {
                    0 | 1 => self.on_established(index),
                    _ => self.connections[index].state = ConnectionState::Subscribing(missing - 1),
                }
                Ok(())
            }
            (BrokerReply::Pong, _) => Ok(()),
            (reply, state) => Err(ClientError::Protocol(format!(
                "the broker sent {reply:?} to a client in state {state:?}"
            ))),
        }
    }

    fn on_connack(
        &mut self,
        index: usize,
        receive_maximum: u16,
        session_present: bool,
    ) -> Result<(), ClientError> {
        let connection = &mut self.connections[index];
        let took_ns = self.read_ns.saturating_sub(connection.started_ns);
        match connection.role {
            ConnectionRole::Idle => {
                self.tally.latency.saturating_record(took_ns);
                self.on_established(index);
            }
            ConnectionRole::Publisher(p) => {
                let publisher = &mut self.publishers[p as usize];
                publisher.max_in_flight = publisher.max_in_flight.min(receive_maximum.into());
                self.on_established(index);
            }
            // Its subscription is still there, or its messages are lost.
            ConnectionRole::Subscriber(_) if self.is_return => {
                if !session_present {
                    return Err(ClientError::Protocol(
                        "the broker does not know its session any more".to_owned(),
                    ));
                }
                self.on_established(index);
            }
            ConnectionRole::Subscriber(s) => {
                let subscriber = &self.subscribers[s as usize];
                let group = self.first_group + subscriber.group;
                let filters = match self.shape.topics {
                    TopicLayout::RuleTopics(_) => vec![self.access.output_topic(group)],
                    _ => self
                        .shape
                        .filters(self.access.run, group, subscriber.member),
                };
                let version = self.access.greeting.version;
                let (bytes, count) = packets::subscribe(version, &filters, self.qos);
                connection.state = ConnectionState::Subscribing(count);
                if let Some(transport) = &mut connection.transport {
                    transport.send(&bytes)?;
                }
            }
        }
        Ok(())
    }

    fn on_established(&mut self, index: usize) {
        self.connections[index].state = ConnectionState::Ready;
        self.unsettled -= 1;
        self.tally.connects += 1;
        let counters = self.shared.counters(self.thread);
        let connects = self.tally.connects;
        counters.connected.store(connects, Ordering::Relaxed);
    }

    /// Gives up clients that have waited too long; `under_way` has them in the order they were dialled.
    fn expire_pending(&mut self, under_way: &mut VecDeque<usize>, now_ns: u64) {
        while let Some(&index) = under_way.front() {
            let connection = &self.connections[index];
            if !matches!(
                connection.state,
                ConnectionState::Ready | ConnectionState::Closed
            ) {
                if now_ns.saturating_sub(connection.started_ns) < self.access.connect_timeout_ns {
                    return;
                }
                self.fail_connection(index, &ClientError::TimedOut);
            }
            under_way.pop_front();
        }
    }
}
