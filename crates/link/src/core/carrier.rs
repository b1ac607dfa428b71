//! What one end knows of the current carrier.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;

use crate::core::carrier_backlog::CarrierBacklog;
use crate::core::credit::{ReceiveCredit, SendCredit};
use crate::message::MessageId;
use crate::wire::control::StreamKind;
use crate::wire::handshake::Limits;
use crate::wire::header::FrameType;
use crate::wire::writer::FrameWriter;

/// A carrier between its first frame and its end.
#[derive(Debug)]
pub(crate) struct Carrier {
    /// Frames that are sent before all others.
    pub(crate) control: FrameWriter,
    /// The peer's limits; `None`: WELCOME has not arrived.
    pub(crate) peer: Option<Limits>,
    /// Credit for messages and for streams, in both directions.
    pub(crate) send_messages: SendCredit,
    pub(crate) send_data: SendCredit,
    pub(crate) receive_messages: ReceiveCredit,
    pub(crate) receive_data: ReceiveCredit,
    pub(crate) outgoing: HashMap<u32, MessageId>,
    pub(crate) incoming: HashMap<u32, (MessageId, StreamKind)>,
    pub(crate) last_wire_id: u32,
    pub(crate) last_received: Instant,
    pub(crate) next_ping: Instant,
    /// The pending PING.
    pub(crate) ping: Option<(u64, Instant)>,
    pub(crate) last_nonce: u64,
    /// What streams have passed to the carrier.
    pub(crate) backlog: CarrierBacklog,
    /// When waiting acknowledgements must be sent.
    pub(crate) ack_deadline: Option<Instant>,
    /// Received bytes and messages that are not acknowledged.
    pub(crate) unannounced_bytes: u64,
    /// GOAWAY was sent, also with the flag for the end.
    pub(crate) is_goaway_sent: bool,
    pub(crate) is_final_sent: bool,
    /// When the transmission began that the caller has not confirmed.
    pub(crate) transmission_start: Option<Instant>,
}

impl Carrier {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            control: FrameWriter::default(),
            peer: None,
            send_messages: SendCredit::default(),
            send_data: SendCredit::default(),
            receive_messages: ReceiveCredit::default(),
            receive_data: ReceiveCredit::default(),
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            last_wire_id: 0,
            last_received: now,
            next_ping: now,
            ping: None,
            last_nonce: 0,
            backlog: CarrierBacklog::new(now),
            ack_deadline: None,
            unannounced_bytes: 0,
            is_goaway_sent: false,
            is_final_sent: false,
            transmission_start: None,
        }
    }

    /// A number for a stream that none of the open ones has.
    pub(crate) fn allocate_wire_id(&mut self, id: MessageId) -> u32 {
        loop {
            self.last_wire_id = self.last_wire_id.wrapping_add(1);
            let is_free = self.last_wire_id != 0 && !self.outgoing.contains_key(&self.last_wire_id);
            if is_free {
                self.outgoing.insert(self.last_wire_id, id);
                return self.last_wire_id;
            }
        }
    }

    /// A PING that shows when the peer has read what was sent before.
    pub(crate) fn write_probe(&mut self, writer: &mut FrameWriter, now: Instant) {
        self.last_nonce += 1;
        let payload = self.last_nonce.to_le_bytes();
        writer.push(FrameType::Ping, 0, 0, &payload, Bytes::new());
        self.backlog.add_probe(self.last_nonce, now);
    }

    pub(crate) fn schedule_ack(&mut self, deadline: Instant) {
        self.ack_deadline.get_or_insert(deadline);
    }
}
