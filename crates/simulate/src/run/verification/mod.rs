//! Subscribers of a run that verify which messages arrive, when and in which order.
//!
//! All subscribers are in one thread, so that the messages of a device are counted in one place, whichever subscriber of a
//! shared subscription gets them.

mod delivery_ledger;

use std::sync::Arc;
use std::time::Duration;

use load_client::client_error::ClientError;
use load_client::host::now_ns;
use load_client::packet_scanner::{
    PUBACK, PUBCOMP, PUBREC, PUBREL, ScanStep, ScannedPacket, push_ack, step,
};
use load_client::payload_stamp::PayloadStamp;
use load_client::timer::wait_for_events;
use load_client::transport::RAW_BYTES;
use mio::{Events, Poll, Token};
use mqtt::{Direction, Packet, Properties, QoS, SubscribeBuf, SubscriptionOptions, Version};

use super::device_connection::{DeviceConnection, PIPES, ReadyPipes};
use super::phase_counts::PhaseCounts;
use super::run_shared::{NO_PHASE, RunShared};
use super::target_access::TargetAccess;
use crate::definition::FleetTransport;
use crate::plan::SimulationPlan;
use crate::translation::TranslatedRoute;
use crate::verification_plan::VerificationPlan;
use delivery_ledger::{Arrival, DeliveryLedger};

/// Name of the shared subscription and start of the client ids.
const NAME: &str = "tidegate-simulate";
const INBOX_BYTES: usize = 1024 * 1024;
const EVENTS: usize = 64;
const MAX_WAIT: Duration = Duration::from_millis(5);
/// Missing messages are lost if none has arrived for so long after the end of the run.
const QUIET_NS: u64 = 2_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubscriberStage {
    Connecting,
    /// CONNECT is sent.
    Greeting,
    /// SUBSCRIBE is sent.
    Subscribing,
    Subscribed,
}

#[derive(Debug)]
struct Subscriber {
    /// `None`: it has failed.
    connection: Option<DeviceConnection>,
    stage: SubscriberStage,
    /// The front of an incomplete packet.
    partial: Vec<u8>,
}

/// What the subscribers have found.
#[derive(Debug)]
pub(super) struct VerifiedDeliveries {
    pub(super) by_phase: Vec<PhaseCounts>,
    ledger: DeliveryLedger,
}

impl VerifiedDeliveries {
    /// Messages that have not arrived, of devices that have each sent so many.
    pub(super) fn lost(&self, sent: impl Iterator<Item = (u32, u32)>) -> u64 {
        self.ledger.lost(sent)
    }
}

pub(super) struct Verifier<'a> {
    plan: &'a VerificationPlan,
    access: &'a TargetAccess,
    shared: &'a RunShared,
    poll: Poll,
    events: Events,
    ready_pipes: Arc<ReadyPipes>,
    subscribers: Vec<Subscriber>,
    ledger: DeliveryLedger,
    by_phase: Vec<PhaseCounts>,
    inbox: Box<[u8]>,
    raw: Box<[u8]>,
    replies: Vec<u8>,
    now_ns: u64,
    last_arrival_ns: u64,
}

impl<'a> Verifier<'a> {
    /// Connects and subscribes.
    pub(super) fn connect(
        plan: &'a SimulationPlan,
        verification: &'a VerificationPlan,
        access: &'a TargetAccess,
        shared: &'a RunShared,
    ) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let ready_pipes = ReadyPipes::new(poll.registry())?;
        let count = usize::from(verification.subscribers);
        let mut subscribers = Vec::new();
        for number in 0..count {
            let source = access.sources.pick(number, 0, plan.seed as u32);
            let connection = if access.uses_pipe(FleetTransport::Mqtt) {
                let route = TranslatedRoute::default();
                let pipe = (number, &ready_pipes);
                DeviceConnection::open_pipe(access, FleetTransport::Mqtt, route, pipe)
            } else {
                DeviceConnection::dial(access, source, poll.registry(), Token(number))
            };
            let connection = connection.map_err(|error| verification_error(&error.into()))?;
            subscribers.push(Subscriber {
                connection: Some(connection),
                stage: SubscriberStage::Connecting,
                partial: Vec::new(),
            });
        }
        let mut verifier = Self {
            plan: verification,
            access,
            shared,
            poll,
            events: Events::with_capacity(EVENTS),
            ready_pipes,
            subscribers,
            ledger: DeliveryLedger::new(plan.devices() as usize, count),
            by_phase: Vec::new(),
            inbox: vec![0; INBOX_BYTES].into_boxed_slice(),
            raw: vec![0; RAW_BYTES].into_boxed_slice(),
            replies: Vec::new(),
            now_ns: now_ns(),
            last_arrival_ns: 0,
        };
        for number in 0..count {
            let connection = verifier.subscribers[number].connection.as_ref();
            if connection.is_some_and(DeviceConnection::is_open_at_once) {
                verifier
                    .log_in(number)
                    .and_then(|()| verifier.on_input(number))
                    .map_err(|failure| verification_error(&failure))?;
            }
        }
        let until_ns = verifier.now_ns + access.connect_timeout_ns;
        while verifier
            .subscribers
            .iter()
            .any(|subscriber| subscriber.stage != SubscriberStage::Subscribed)
        {
            if now_ns() > until_ns {
                return Err(verification_error(&ClientError::TimedOut));
            }
            if let Some((_, failure)) = verifier.wait()?.into_iter().next() {
                return Err(verification_error(&failure));
            }
        }
        Ok(verifier)
    }

    /// Receives until all that was sent has arrived, or nothing more arrives after the end of the run.
    pub(super) fn run(mut self) -> anyhow::Result<VerifiedDeliveries> {
        while !self.is_complete() {
            for (number, failure) in self.wait()? {
                self.subscribers[number].connection = None;
                let name = format!("subscriber {number} of [verify]");
                self.counts().failures.record(&name, &failure);
            }
            if self
                .subscribers
                .iter()
                .all(|subscriber| subscriber.connection.is_none())
            {
                break;
            }
        }
        for subscriber in &mut self.subscribers {
            if let Some(connection) = &mut subscriber.connection {
                // The connection is closed in any case.
                let _ = connection.send(super::worker::DISCONNECT);
            }
        }
        Ok(VerifiedDeliveries {
            by_phase: self.by_phase,
            ledger: self.ledger,
        })
    }

    fn is_complete(&self) -> bool {
        let Some((sent, ended_ns)) = self.shared.verified_messages() else {
            return false;
        };
        let quiet_since_ns = self.last_arrival_ns.max(ended_ns);
        self.ledger.delivered() >= sent || self.now_ns.saturating_sub(quiet_since_ns) > QUIET_NS
    }

    fn counts(&mut self) -> &mut PhaseCounts {
        let phase = match self.shared.phase().0 {
            NO_PHASE => 0,
            phase => phase,
        };
        if self.by_phase.len() <= phase {
            self.by_phase.resize_with(phase + 1, PhaseCounts::default);
        }
        &mut self.by_phase[phase]
    }

    /// Handles events; returns the subscribers that have failed.
    fn wait(&mut self) -> anyhow::Result<Vec<(usize, ClientError)>> {
        let has_events = wait_for_events(&mut self.poll, &mut self.events, MAX_WAIT)?;
        self.now_ns = now_ns();
        if !has_events {
            return Ok(Vec::new());
        }
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let mut failed = Vec::new();
        for event in &events {
            if event.token() == PIPES {
                for number in self.ready_pipes.take() {
                    let outcome = self.flush(number).and_then(|()| self.on_input(number));
                    failed.extend(outcome.err().map(|failure| (number, failure)));
                }
                continue;
            }
            let number = event.token().0;
            let outcome = match self.subscribers[number].stage {
                SubscriberStage::Connecting => self.on_connecting(number, event),
                _ => self.on_event(number, event),
            };
            failed.extend(outcome.err().map(|failure| (number, failure)));
        }
        self.events = events;
        self.shared.set_delivered(self.ledger.delivered());
        Ok(failed)
    }

    fn on_connecting(
        &mut self,
        number: usize,
        event: &mio::event::Event,
    ) -> Result<(), ClientError> {
        let Some(connection) = &mut self.subscribers[number].connection else {
            return Ok(());
        };
        if event.is_error() || event.is_write_closed() {
            return Err(connection.take_error().into());
        }
        if !event.is_writable() {
            return Ok(());
        }
        connection.flush()?;
        self.log_in(number)
    }

    /// Sends CONNECT.
    fn log_in(&mut self, number: usize) -> Result<(), ClientError> {
        let Some(connection) = &mut self.subscribers[number].connection else {
            return Ok(());
        };
        let client_id = format!("{NAME}-{:08x}-{number}", self.shared.run_id());
        let mut packet = Vec::new();
        Packet::Connect(mqtt::Connect {
            version: self.access.version,
            clean_start: true,
            // Without pings.
            keep_alive_s: 0,
            client_id: &client_id,
            username: self.plan.username.as_deref(),
            password: self.plan.password.as_deref().map(str::as_bytes),
            will: None,
            properties: Properties::EMPTY,
            is_bridge: false,
        })
        .encode(self.access.version, &mut packet);
        connection.send(&packet)?;
        self.subscribers[number].stage = SubscriberStage::Greeting;
        Ok(())
    }

    fn on_event(&mut self, number: usize, event: &mio::event::Event) -> Result<(), ClientError> {
        if event.is_writable() {
            self.flush(number)?;
        }
        self.on_input(number)
    }

    /// Writes what the connection did not take before.
    fn flush(&mut self, number: usize) -> Result<(), ClientError> {
        if let Some(connection) = &mut self.subscribers[number].connection
            && connection.has_backlog()
        {
            connection.flush()?;
        }
        Ok(())
    }

    /// Reads what a subscriber has received.
    fn on_input(&mut self, number: usize) -> Result<(), ClientError> {
        loop {
            let subscriber = &mut self.subscribers[number];
            let Some(connection) = &mut subscriber.connection else {
                return Ok(());
            };
            let kept = subscriber.partial.len();
            if kept + 2 * RAW_BYTES > self.inbox.len() {
                return Err(ClientError::Protocol(format!(
                    "the broker sent a packet of more than {kept} bytes"
                )));
            }
            self.inbox[..kept].copy_from_slice(&subscriber.partial);
            let received = connection.receive(&mut self.inbox[kept..], &mut self.raw)?;
            if received.bytes > 0 {
                subscriber.partial.clear();
                // Taken out so that the bytes and the rest can be borrowed side by side.
                let inbox = std::mem::take(&mut self.inbox);
                let handled = self.handle_packets(number, &inbox[..kept + received.bytes]);
                self.inbox = inbox;
                handled?;
            }
            if !received.more {
                return Ok(());
            }
        }
    }

    fn handle_packets(&mut self, number: usize, bytes: &[u8]) -> Result<(), ClientError> {
        let is_v5 = self.access.version == Version::V5;
        let mut at = 0;
        while let ScanStep::Packet { found, len } = step(&bytes[at..], is_v5)? {
            let packet = &bytes[at..at + len];
            at += len;
            match found {
                ScannedPacket::Publish(message) => {
                    match message.qos {
                        0 => {}
                        1 => push_ack(PUBACK, message.id, &mut self.replies),
                        _ => push_ack(PUBREC, message.id, &mut self.replies),
                    }
                    self.on_message(number, packet);
                }
                ScannedPacket::Ack { kind, id, .. } if kind == PUBREL => {
                    push_ack(PUBCOMP, id, &mut self.replies);
                }
                ScannedPacket::Ack { .. } => {}
                ScannedPacket::Other(_) => self.on_packet(number, packet)?,
            }
        }
        let subscriber = &mut self.subscribers[number];
        subscriber.partial.extend_from_slice(&bytes[at..]);
        if let Some(connection) = &mut subscriber.connection {
            connection.send(&self.replies)?;
        }
        self.replies.clear();
        Ok(())
    }

    /// Counts a message. Those of others, and retained ones of earlier runs, have no stamp of this run.
    fn on_message(&mut self, number: usize, packet: &[u8]) {
        let Some(stamp) = PayloadStamp::find_in(packet, self.shared.run_id()) else {
            return;
        };
        let arrival = self.ledger.record(number, stamp.publisher, stamp.sequence);
        let now_ns = self.now_ns;
        self.last_arrival_ns = now_ns;
        let counts = self.counts();
        match arrival {
            Arrival::Unknown => return,
            Arrival::Repeated => {
                counts.repeated += 1;
                return;
            }
            Arrival::Late => counts.reordered += 1,
            Arrival::InOrder => {}
        }
        counts.delivered += 1;
        counts
            .delivery
            .saturating_record(now_ns.saturating_sub(stamp.sent_ns));
    }

    fn on_packet(&mut self, number: usize, bytes: &[u8]) -> Result<(), ClientError> {
        let version = self.access.version;
        let malformed = |error: mqtt::Error| {
            ClientError::Protocol(format!("the broker sent a malformed packet: {error}"))
        };
        let Some(frame) = mqtt::split_frame(bytes, u32::MAX).map_err(malformed)? else {
            return Ok(());
        };
        let stage = self.subscribers[number].stage;
        match Packet::decode(frame, version, Direction::FromServer).map_err(malformed)? {
            Packet::ConnAck(ack) if ack.code.is_error() => {
                Err(ClientError::Refused(ack.code.to_string()))
            }
            Packet::ConnAck(_) if stage == SubscriberStage::Greeting => {
                let mut packet = SubscribeBuf::new(1);
                let qos = match self.plan.qos {
                    0 => QoS::AtMostOnce,
                    1 => QoS::AtLeastOnce,
                    _ => QoS::ExactlyOnce,
                };
                for topic in &self.plan.topics {
                    let filter = match self.subscribers.len() {
                        1 => topic.clone(),
                        _ => format!("$share/{NAME}-{:08x}/{topic}", self.shared.run_id()),
                    };
                    packet.push(&filter, SubscriptionOptions::new(qos));
                }
                packet.encode(Properties::EMPTY, version, &mut self.replies);
                self.subscribers[number].stage = SubscriberStage::Subscribing;
                Ok(())
            }
            Packet::SubAck(ack) => {
                if let Some(code) = ack.codes.iter().find(|code| **code >= 0x80) {
                    let reason = mqtt::ReasonCode(*code);
                    return Err(ClientError::Subscription(format!(
                        "the broker rejected a subscription: {reason}"
                    )));
                }
                self.subscribers[number].stage = SubscriberStage::Subscribed;
                Ok(())
            }
            Packet::Disconnect(packet) => Err(ClientError::Disconnected(packet.reason.to_string())),
            _ => Ok(()),
        }
    }
}

fn verification_error(error: &ClientError) -> anyhow::Error {
    anyhow::anyhow!("a subscriber of [verify] cannot receive: {error}")
}
