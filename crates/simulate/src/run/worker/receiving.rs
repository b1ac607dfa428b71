//! What the broker sends: CONNACK, SUBACK, acknowledgements, and messages to devices.

use load_client::client_error::ClientError;
use load_client::packet_scanner::{
    PUBACK, PUBCOMP, PUBREC, PUBREL, ScanStep, ScannedPacket, push_ack, step,
};
use mqtt::{Direction, Packet, Publish, QoS, Version};

use super::Worker;
use super::device::ConnectionStage;

/// A longer packet ends the connection; devices have little memory.
const MAX_PACKET_BYTES: usize = 128 * 1024;

impl Worker<'_> {
    /// Reads what a connection has.
    pub(super) fn on_readable(&mut self, device: usize) -> Result<(), ClientError> {
        loop {
            let entry = &mut self.devices[device];
            let Some(transport) = &mut entry.transport else {
                return Ok(());
            };
            let kept = entry.partial.len();
            self.inbox[..kept].copy_from_slice(&entry.partial);
            let received = transport.receive(&mut self.inbox[kept..], &mut self.raw)?;
            if received.bytes > 0 {
                entry.partial = Vec::new();
                // Taken out so that the bytes and the rest of the worker can be borrowed side by side.
                let inbox = std::mem::take(&mut self.inbox);
                let handled = self.handle_packets(device, &inbox[..kept + received.bytes]);
                self.inbox = inbox;
                handled?;
            }
            if !received.more {
                return Ok(());
            }
        }
    }

    fn handle_packets(&mut self, device: usize, bytes: &[u8]) -> Result<(), ClientError> {
        let is_v5 = self.version(device) == Version::V5;
        let mut at = 0;
        loop {
            match step(&bytes[at..], is_v5)? {
                ScanStep::Packet { found, len } => {
                    let packet = &bytes[at..at + len];
                    at += len;
                    match found {
                        ScannedPacket::Ack { kind, id, reason } => {
                            self.on_ack(device, kind, id, reason)?
                        }
                        ScannedPacket::Publish(_) | ScannedPacket::Other(_) => {
                            self.on_packet(device, packet)?
                        }
                    }
                    if self.devices[device].transport.is_none() {
                        return Ok(());
                    }
                }
                ScanStep::Incomplete { len } if len > MAX_PACKET_BYTES => {
                    return Err(ClientError::Protocol(format!(
                        "the broker sent a packet of {len} bytes; devices accept at most {MAX_PACKET_BYTES}"
                    )));
                }
                ScanStep::Incomplete { .. } => {
                    self.devices[device].partial.extend_from_slice(&bytes[at..]);
                    return Ok(());
                }
            }
        }
    }

    fn on_ack(&mut self, device: usize, kind: u8, id: u16, reason: u8) -> Result<(), ClientError> {
        let is_rejected = reason >= 0x80;
        if kind == PUBREC && !is_rejected {
            return self.reply(device, PUBREL, id);
        }
        if kind == PUBREL {
            return self.reply(device, PUBCOMP, id);
        }
        let now_ns = self.now_ns;
        let in_flight = &mut self.devices[device].in_flight;
        let Some(at) = in_flight.iter().position(|message| message.packet_id == id) else {
            return Err(ClientError::Protocol(format!(
                "the broker acknowledged packet identifier {id}, which is not in flight"
            )));
        };
        let message = in_flight.remove(at);
        if in_flight.is_empty() {
            *in_flight = Vec::new();
        }
        let counts = self.counts();
        if is_rejected {
            counts.rejected += 1;
        } else {
            counts.acknowledged += 1;
            let took_ns = now_ns.saturating_sub(message.due_ns);
            counts.ack_sum_ns += took_ns;
            counts.ack.saturating_record(took_ns);
            self.shared.worker(self.thread).ack_times.record(took_ns);
        }
        Ok(())
    }

    fn reply(&mut self, device: usize, kind: u8, id: u16) -> Result<(), ClientError> {
        self.append(device, |out| push_ack(kind, id, out))
    }

    fn on_packet(&mut self, device: usize, bytes: &[u8]) -> Result<(), ClientError> {
        let malformed = |error: mqtt::Error| {
            ClientError::Protocol(format!("the broker sent a malformed packet: {error}"))
        };
        let Some(frame) = mqtt::split_frame(bytes, u32::MAX).map_err(malformed)? else {
            return Ok(());
        };
        let packet = Packet::decode(frame, self.version(device), Direction::FromServer)
            .map_err(malformed)?;
        let stage = self.devices[device].stage;
        match (packet, stage) {
            (Packet::ConnAck(ack), ConnectionStage::Greeting) if ack.code.is_error() => {
                Err(ClientError::Refused(ack.code.to_string()))
            }
            (Packet::ConnAck(_), ConnectionStage::Greeting) => self.on_connack(device),
            (Packet::SubAck(ack), ConnectionStage::Subscribing | ConnectionStage::Ready) => {
                if let Some(code) = ack.codes.iter().find(|code| **code >= 0x80) {
                    let reason = mqtt::ReasonCode(*code);
                    return Err(ClientError::Subscription(format!(
                        "the broker rejected a subscription: {reason}"
                    )));
                }
                match stage {
                    ConnectionStage::Subscribing => self.on_established(device),
                    // Of a subscription of a script.
                    _ => Ok(()),
                }
            }
            (Packet::Publish(message), _) => self.on_message(device, &message),
            (Packet::Disconnect(packet), _) => {
                Err(ClientError::Disconnected(packet.reason.to_string()))
            }
            (Packet::PingResp, _) => Ok(()),
            (packet, stage) => Err(ClientError::Protocol(format!(
                "the broker sent {:?} to a device in the stage {stage:?}",
                packet.packet_type()
            ))),
        }
    }

    fn on_message(&mut self, device: usize, message: &Publish<'_>) -> Result<(), ClientError> {
        self.counts().received += 1;
        if !self.handle_update_message(device, message.topic, message.payload)? {
            self.queue_answer(device, message.topic, message.payload);
        }
        match message.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.reply(device, PUBACK, message.packet_id)?,
            QoS::ExactlyOnce => self.reply(device, PUBREC, message.packet_id)?,
        }
        self.call_message(device, message.topic, message.payload)
    }
}
