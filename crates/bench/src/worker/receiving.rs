//! Receiving: finds the messages in what was read, checks their sequence, records their latency, opens windows.

use super::Worker;
use super::client::{ConnectionRole, ConnectionState, LargeMessage};
use super::pace::LoadPace;
use crate::client_error::ClientError;
use crate::packet_scanner::{
    PUBACK, PUBCOMP, PUBREC, PUBREL, ScanError, ScanStep, ScannedPacket, partial_publish, push_ack,
    step,
};
use crate::payload_stamp::{PayloadStamp, STAMP_BYTES};

/// A packet up to this long is kept until it is whole; of a longer message only its header is.
pub(super) const MAX_BUFFERED_PACKET_BYTES: usize = 64 * 1024;

/// Messages of one publisher with the same send time that came one after the other: they share the bookkeeping.
struct MessageRun {
    /// The publisher, counted within its group; none yet at the start.
    member: usize,
    sent_ns: u64,
    /// The subscriber's place in the sequence before.
    from: u64,
    count: u64,
}

impl Worker<'_> {
    /// Reads all there is on a connection.
    pub(super) fn on_readable(&mut self, index: usize) -> Result<(), ClientError> {
        loop {
            let connection = &mut self.connections[index];
            let Some(transport) = &mut connection.transport else {
                return Ok(());
            };
            let kept = connection.partial.len();
            self.inbox[..kept].copy_from_slice(&connection.partial);
            let received = transport.receive(&mut self.inbox[kept..], &mut self.raw)?;
            if received.bytes > 0 {
                connection.partial.clear();
                self.read_ns = self.now_ns();
                // Taken out so that the bytes and the rest of the worker can be borrowed side by side.
                let inbox = std::mem::take(&mut self.inbox);
                let digested = self.handle_packets(index, &inbox[..kept + received.bytes]);
                self.inbox = inbox;
                digested?;
                self.send_replies(index)?;
            }
            if !received.more {
                return Ok(());
            }
        }
    }

    /// The socket takes bytes again.
    pub(super) fn on_writable(&mut self, index: usize) -> Result<(), ClientError> {
        let connection = &mut self.connections[index];
        if let Some(transport) = &mut connection.transport
            && transport.has_backlog()
        {
            transport.flush()?;
            if let ConnectionRole::Publisher(publisher) = connection.role
                && !transport.has_backlog()
            {
                self.enqueue(publisher as usize);
            }
        }
        Ok(())
    }

    /// Sends the acknowledgements that a read called for; those of a publisher go with its next messages.
    fn send_replies(&mut self, index: usize) -> Result<(), ClientError> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let connection = &mut self.connections[index];
        if let ConnectionRole::Publisher(publisher) = connection.role {
            let control = &mut self.publishers[publisher as usize].control;
            control.extend_from_slice(&self.replies);
        } else if let Some(transport) = &mut connection.transport {
            transport.send(&self.replies)?;
        }
        self.replies.clear();
        Ok(())
    }

    /// Deals with all packets in `buf` and keeps what is not whole.
    fn handle_packets(&mut self, index: usize, buf: &[u8]) -> Result<(), ClientError> {
        let mut at = self.skip_large_message(index, buf);
        let role = self.connections[index].role;
        loop {
            if let (ConnectionRole::Subscriber(s), ConnectionState::Ready) =
                (role, self.connections[index].state)
            {
                at += self.handle_messages(s as usize, &buf[at..])?;
            }
            match step(&buf[at..], self.v5)? {
                ScanStep::Packet { found, len } => {
                    at += len;
                    match found {
                        ScannedPacket::Ack { kind, id, reason } => {
                            self.on_ack(role, kind, id, reason)?
                        }
                        ScannedPacket::Other(packet) => self.on_reply(index, packet)?,
                        ScannedPacket::Publish(_) => self.on_early_message(index)?,
                    }
                }
                ScanStep::Incomplete { len } => {
                    return self.buffer_partial(index, &buf[at..], len);
                }
            }
        }
    }

    /// A message for a client that has not got its SUBACK yet, or that never subscribed.
    #[cold]
    fn on_early_message(&mut self, index: usize) -> Result<(), ClientError> {
        let state = self.connections[index].state;
        // Nobody publishes before all are ready, so it is not ours.
        if matches!(state, ConnectionState::Subscribing(_)) {
            self.tally.unexpected += 1;
            return Ok(());
        }
        Err(ClientError::Protocol(
            "the broker sent a message to a client that has not subscribed".to_owned(),
        ))
    }

    /// Takes the messages at the front of `buf` and returns their length. Stops at anything else.
    fn handle_messages(&mut self, index: usize, buf: &[u8]) -> Result<usize, ScanError> {
        let subscriber = &self.subscribers[index];
        let members = self.shape.publishers;
        let (group, own) = (subscriber.group, subscriber.member as u64);
        let stride = self.stride;
        let first = ((self.first_group + group) * members) as u32;
        let from = subscriber.first_checker;
        let run = self.access.run;
        let mut streak = MessageRun {
            member: usize::MAX,
            sent_ns: 0,
            from: 0,
            count: 0,
        };
        let mut at = 0;
        while let ScanStep::Packet {
            found: ScannedPacket::Publish(message),
            len,
        } = step(&buf[at..], self.v5)?
        {
            at += len;
            match message.qos {
                0 => {}
                1 => push_ack(PUBACK, message.id, &mut self.replies),
                _ => push_ack(PUBREC, message.id, &mut self.replies),
            }
            let Some(stamp) = self.finder.find(message.payload) else {
                self.tally.unexpected += 1;
                continue;
            };
            let member = stamp.publisher.wrapping_sub(first) as usize;
            if stamp.run != run || member >= members {
                self.tally.unexpected += 1;
                continue;
            }
            let mut sequence = stamp.sequence;
            if stride > 1 {
                if sequence % stride != own {
                    self.tally.unexpected += 1;
                    continue;
                }
                sequence /= stride;
            }
            if member != streak.member || stamp.sent_ns != streak.sent_ns {
                self.record_run(group, from, &streak);
                streak = MessageRun {
                    member,
                    sent_ns: stamp.sent_ns,
                    from: self.checkers[from + member].next_expected(),
                    count: 0,
                };
            }
            streak.count += u64::from(self.checkers[from + member].record(sequence));
        }
        self.record_run(group, from, &streak);
        self.record_served(index);
        Ok(at)
    }

    /// Books a streak of messages that `group`'s subscriber, whose checkers start at `first_checker`, has got.
    #[inline]
    fn record_run(&mut self, group: usize, first_checker: usize, streak: &MessageRun) {
        if streak.member == usize::MAX {
            return;
        }
        self.received += streak.count;
        if self.measured.contains(&streak.sent_ns) {
            let latency_ns = self.read_ns.saturating_sub(streak.sent_ns);
            self.tally
                .latency
                .saturating_record_n(latency_ns, streak.count);
        }
        if let LoadPace::Window(_) = self.pace {
            let to = self.checkers[first_checker + streak.member].next_expected();
            let publisher = group * self.shape.publishers + streak.member;
            self.publishers[publisher].progress.advance(streak.from, to);
            self.enqueue(publisher);
        }
    }

    /// An acknowledgement, to a publisher or a subscriber.
    #[inline]
    fn on_ack(
        &mut self,
        role: ConnectionRole,
        kind: u8,
        id: u16,
        reason: u8,
    ) -> Result<(), ClientError> {
        let ConnectionRole::Publisher(index) = role else {
            if kind != PUBREL {
                return Err(unexpected_packet(kind, id, "that has not published"));
            }
            push_ack(PUBCOMP, id, &mut self.replies);
            return Ok(());
        };
        let is_rejected = reason >= 0x80;
        self.tally.rejected += u64::from(is_rejected);
        self.enqueue(index as usize);
        let acks = &mut self.publishers[index as usize].acks;
        match kind {
            PUBREC if !is_rejected => push_ack(PUBREL, id, &mut self.replies),
            PUBREL => return Err(unexpected_packet(kind, id, "that has not subscribed")),
            _ if !acks.acknowledge(id) => {
                return Err(unexpected_packet(
                    kind,
                    id,
                    "that has no such message in flight",
                ));
            }
            _ => {}
        }
        Ok(())
    }

    /// In `offline`: notes when the subscriber got its last message.
    #[inline]
    fn record_served(&mut self, index: usize) {
        if let LoadPace::Stored { each, .. } = self.pace {
            let subscriber = &mut self.subscribers[index];
            let wanted = each / self.stride;
            if subscriber.served_ns.is_none()
                && self.checkers[subscriber.first_checker].next_expected() >= wanted
            {
                subscriber.served_ns = Some(self.read_ns);
            }
        }
    }

    /// Passes over the rest of a large message; books it when it is whole.
    fn skip_large_message(&mut self, index: usize, buf: &[u8]) -> usize {
        let connection = &mut self.connections[index];
        let Some(large) = &mut connection.large else {
            return 0;
        };
        let skipped = large.missing_bytes.min(buf.len());
        large.missing_bytes -= skipped;
        if large.missing_bytes == 0
            && let Some(large) = connection.large.take()
            && let ConnectionRole::Subscriber(subscriber) = connection.role
        {
            self.record_large_message(subscriber as usize, &large);
        }
        skipped
    }

    fn record_large_message(&mut self, subscriber: usize, large: &LargeMessage) {
        match large.qos {
            0 => {}
            1 => push_ack(PUBACK, large.id, &mut self.replies),
            _ => push_ack(PUBREC, large.id, &mut self.replies),
        }
        let index = subscriber;
        let subscriber = &self.subscribers[index];
        let (group, from) = (subscriber.group, subscriber.first_checker);
        let (stride, own) = (self.stride, subscriber.member as u64);
        let members = self.shape.publishers;
        let first = ((self.first_group + group) * members) as u32;
        let ours = large.stamp.filter(|stamp| {
            stamp.run == self.access.run
                && (stamp.publisher.wrapping_sub(first) as usize) < members
                && (stride == 1 || stamp.sequence % stride == own)
        });
        let Some(stamp) = ours else {
            self.tally.unexpected += 1;
            return;
        };
        let member = (stamp.publisher - first) as usize;
        let checker = &mut self.checkers[from + member];
        let before = checker.next_expected();
        let streak = MessageRun {
            member,
            sent_ns: stamp.sent_ns,
            from: before,
            count: u64::from(checker.record(stamp.sequence / stride)),
        };
        self.record_run(group, from, &streak);
        self.record_served(index);
    }

    /// Keeps the front of a packet of `len` bytes (0: not known yet) until the rest is here.
    fn buffer_partial(&mut self, index: usize, rest: &[u8], len: usize) -> Result<(), ClientError> {
        let connection = &mut self.connections[index];
        if len <= MAX_BUFFERED_PACKET_BYTES {
            connection.partial.extend_from_slice(rest);
            return Ok(());
        }
        match partial_publish(rest, self.v5)? {
            Some(message) if message.payload.len() >= STAMP_BYTES => {
                connection.large = Some(LargeMessage {
                    missing_bytes: len - rest.len(),
                    qos: message.qos,
                    id: message.id,
                    stamp: PayloadStamp::read(message.payload),
                });
                Ok(())
            }
            // A topic has at most 65,535 bytes; properties may have more, but none of ours do.
            _ if rest.len() < MAX_BUFFERED_PACKET_BYTES * 2 => {
                connection.partial.extend_from_slice(rest);
                Ok(())
            }
            _ => Err(ScanError("more than 128 KiB before the payload").into()),
        }
    }
}

#[cold]
fn unexpected_packet(kind: u8, id: u16, to_whom: &str) -> ClientError {
    let name = match kind {
        PUBACK => "PUBACK",
        PUBREC => "PUBREC",
        PUBREL => "PUBREL",
        _ => "PUBCOMP",
    };
    ClientError::Protocol(format!(
        "the broker sent {name} for packet identifier {id} to a client {to_whom}"
    ))
}
