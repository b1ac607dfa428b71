//! Acknowledgements of the client.

use mqtt::QoS;

use super::{AckOutcome, IDLE_QUEUE_CAPACITY, InflightStage, OutboundMessages, SessionMessage};

impl OutboundMessages {
    pub(super) fn complete_entry(&mut self, offset: usize) -> (u64, Option<SessionMessage>) {
        let entry = &mut self.ring[offset];
        let seq = entry.seq;
        entry.stage = InflightStage::Done;
        let released = entry
            .released
            .take()
            .map(|session_message| *session_message);
        let session_message = entry.session_message.take().or(released);
        self.inflight_bytes -= std::mem::take(&mut entry.size) as usize;
        self.unacknowledged -= 1;
        if std::mem::take(&mut entry.occupies_window) {
            self.in_window -= 1;
        }
        while self
            .ring
            .front()
            .is_some_and(|front| front.stage == InflightStage::Done)
        {
            self.ring.pop_front();
            self.first_id = self.id_at(1);
            self.resend_from = self.resend_from.saturating_sub(1);
        }
        if self.ring.is_empty() {
            self.ring.shrink_to(IDLE_QUEUE_CAPACITY);
        }
        (seq, session_message)
    }

    pub(super) fn acknowledge(&mut self, offset: usize) -> AckOutcome {
        let (seq, session_message) = self.complete_entry(offset);
        AckOutcome::Done {
            seq,
            session_message,
        }
    }

    fn offset_in(&self, packet_id: u16, stage: InflightStage, qos: Option<QoS>) -> Option<usize> {
        let offset = self.offset_of(packet_id)?;
        let entry = &self.ring[offset];
        let fits = entry.stage == stage && qos.is_none_or(|qos| entry.qos == qos);
        fits.then_some(offset)
    }

    pub(crate) fn puback(&mut self, packet_id: u16) -> AckOutcome {
        match self.offset_in(packet_id, InflightStage::Published, Some(QoS::AtLeastOnce)) {
            Some(offset) => self.acknowledge(offset),
            None => AckOutcome::Unknown,
        }
    }

    /// Handles PUBREC. `rejected`: the client answered with an error, which ends the exchange [MQTT-4.3.3]. `keeps`: the
    /// message is kept until PUBCOMP and returned with it.
    pub(crate) fn pubrec(&mut self, packet_id: u16, rejected: bool, keeps: bool) -> AckOutcome {
        if let Some(offset) =
            self.offset_in(packet_id, InflightStage::Published, Some(QoS::ExactlyOnce))
        {
            if rejected {
                return self.acknowledge(offset);
            }
            let entry = &mut self.ring[offset];
            entry.stage = InflightStage::Released;
            let (seq, session_message) = (entry.seq, entry.session_message.take());
            match &session_message {
                Some(session_message) if keeps => {
                    entry.released = Some(Box::new(session_message.clone()))
                }
                _ => self.inflight_bytes -= std::mem::take(&mut entry.size) as usize,
            }
            return AckOutcome::Release {
                seq,
                session_message,
            };
        }
        // A repeated PUBREC is answered with PUBREL again.
        match self.offset_in(packet_id, InflightStage::Released, None) {
            Some(_) if !rejected => AckOutcome::Release {
                seq: 0,
                session_message: None,
            },
            Some(offset) => self.acknowledge(offset),
            None => AckOutcome::Unknown,
        }
    }

    pub(crate) fn pubcomp(&mut self, packet_id: u16) -> AckOutcome {
        match self.offset_in(packet_id, InflightStage::Released, None) {
            Some(offset) => self.acknowledge(offset),
            None => AckOutcome::Unknown,
        }
    }
}
