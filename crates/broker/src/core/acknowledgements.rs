//! Acknowledgements of both directions: PUBACK, PUBREC, PUBREL and PUBCOMP.

use hooks::{AckKind, Interest, PacketFacts, PublishTicket};
use mqtt::{Ack, PacketType, QoS, ReasonCode};

use super::connection::ConnectionPhase;
use super::encoding::encode_ack;
use super::session::AckOutcome;
use super::shard::Shard;
use super::tables::{ConnectionIx, SessionIx, TableIx as _};

fn packet_of<'a>(ack: &Ack<'a>) -> PacketFacts<'a> {
    PacketFacts {
        packet_id: ack.packet_id,
        properties: ack.properties,
    }
}

impl Shard {
    #[inline]
    pub(super) fn send_ack(
        &mut self,
        at: ConnectionIx,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let version = self.delivery.connections[at].version;
        self.delivery.hold_outbox(at);
        self.delivery
            .write(at, |out| encode_ack(kind, version, packet_id, reason, out));
    }

    pub(super) fn record_incoming_qos2(&mut self, session: SessionIx, packet_id: u16) {
        let session = &mut self.delivery.sessions[session];
        let incoming = session.incoming_qos2.get_or_insert_default();
        incoming.insert(packet_id);
        if session.store_number != 0
            && let Some(journal) = &mut self.delivery.journal
        {
            journal.record_packet_id(session.store_number, packet_id);
        }
    }

    /// Acknowledges a message for which a hook returned [`hooks::PublishVerdict::Defer`], unless its connection has closed.
    pub(crate) fn acknowledge_deferred(&mut self, ticket: PublishTicket, reason: ReasonCode) {
        let at = ConnectionIx::from_position(ticket.connection as usize);
        let connection = self.delivery.connections.get(at);
        let is_open = connection.is_some_and(|connection| {
            connection.serial == ticket.serial && connection.phase == ConnectionPhase::Connected
        });
        if !is_open {
            return;
        }
        if ticket.qos == QoS::ExactlyOnce {
            let session = self.session_of_connection(at);
            let incoming = &self.delivery.sessions[session].incoming_qos2;
            // A duplicate that arrived in the meantime has been acknowledged.
            if (incoming.as_ref()).is_some_and(|incoming| incoming.contains(ticket.packet_id)) {
                return;
            }
            if !reason.is_error() {
                self.record_incoming_qos2(session, ticket.packet_id);
            }
            self.send_ack(at, PacketType::PubRec, ticket.packet_id, reason);
        } else {
            self.record_deferred_number(at, ticket.packet_id, reason);
            self.send_ack(at, PacketType::PubAck, ticket.packet_id, reason);
        }
    }

    /// Handles a PUBACK, PUBREC, PUBREL or PUBCOMP.
    #[inline]
    pub(super) fn handle_acknowledgement(
        &mut self,
        at: ConnectionIx,
        kind: PacketType,
        ack: &Ack<'_>,
    ) {
        match kind {
            PacketType::PubAck => self.handle_puback(at, ack),
            PacketType::PubRec => self.handle_pubrec(at, ack),
            PacketType::PubRel => self.handle_pubrel(at, ack),
            PacketType::PubComp => self.handle_pubcomp(at, ack),
            _ => {}
        }
    }

    fn handle_puback(&mut self, at: ConnectionIx, ack: &Ack<'_>) {
        let session = self.session_of_connection(at);
        if let Some(outbound) = &mut self.delivery.sessions[session].outbound {
            let outcome = outbound.puback(ack.packet_id);
            self.finish_delivery(session, outcome, ack, AckKind::PubAck);
        }
    }

    fn handle_pubrec(&mut self, at: ConnectionIx, ack: &Ack<'_>) {
        let session = self.session_of_connection(at);
        let keeps = self.delivery.interest.contains(Interest::ACK);
        let outbound = self.delivery.sessions[session].outbound.as_mut();
        let acked = match outbound {
            Some(outbound) => outbound.pubrec(ack.packet_id, ack.reason.is_error(), keeps),
            None => AckOutcome::Unknown,
        };
        match acked {
            AckOutcome::Release {
                seq,
                session_message,
            } => {
                if seq != 0
                    && let Some(journal) = &mut self.delivery.journal
                {
                    let number = self.delivery.sessions[session].store_number;
                    journal.mark_released(number, seq);
                }
                self.delivery.record_acknowledgement(
                    session,
                    session_message.as_ref(),
                    packet_of(ack),
                    AckKind::PubRec,
                );
                self.send_ack(at, PacketType::PubRel, ack.packet_id, ReasonCode::SUCCESS);
            }
            AckOutcome::Done { seq, .. } => {
                self.delivery.mark_stored_done(session, seq);
                self.delivery.pump_if_pending(session);
            }
            // [MQTT-4.3.3] PUBREL answers every PUBREC; version 5 can report an unknown packet id.
            AckOutcome::Unknown if ack.reason.is_error() => {}
            AckOutcome::Unknown => {
                let reason = ReasonCode::PACKET_IDENTIFIER_NOT_FOUND;
                self.send_ack(at, PacketType::PubRel, ack.packet_id, reason);
            }
        }
    }

    fn handle_pubcomp(&mut self, at: ConnectionIx, ack: &Ack<'_>) {
        let session = self.session_of_connection(at);
        if let Some(outbound) = &mut self.delivery.sessions[session].outbound {
            let outcome = outbound.pubcomp(ack.packet_id);
            self.finish_delivery(session, outcome, ack, AckKind::PubComp);
        }
    }

    /// The last acknowledgement of a message: it is done, and the next one that waits can be sent.
    #[inline]
    fn finish_delivery(
        &mut self,
        session: SessionIx,
        outcome: AckOutcome,
        ack: &Ack<'_>,
        kind: AckKind,
    ) {
        let AckOutcome::Done {
            seq,
            session_message,
        } = outcome
        else {
            return;
        };
        self.delivery.mark_stored_done(session, seq);
        self.delivery.record_acknowledgement(
            session,
            session_message.as_ref(),
            packet_of(ack),
            kind,
        );
        self.delivery.pump_if_pending(session);
    }

    fn handle_pubrel(&mut self, at: ConnectionIx, ack: &Ack<'_>) {
        let session = self.session_of_connection(at);
        let incoming = &mut self.delivery.sessions[session].incoming_qos2;
        let was_there = incoming
            .as_mut()
            .is_some_and(|incoming| incoming.remove(ack.packet_id));
        let number = self.delivery.sessions[session].store_number;
        if was_there
            && number != 0
            && let Some(journal) = &mut self.delivery.journal
        {
            journal.release_packet_id(number, ack.packet_id);
        }
        let incoming = &self.delivery.sessions[session].incoming_qos2;
        if incoming
            .as_ref()
            .is_some_and(|incoming| incoming.len() == 0)
        {
            self.recycle_incoming_ids(session);
        }
        let reason = if was_there {
            ReasonCode::SUCCESS
        } else {
            ReasonCode::PACKET_IDENTIFIER_NOT_FOUND
        };
        self.send_ack(at, PacketType::PubComp, ack.packet_id, reason);
    }

    /// Keeps the packet id set of a client that sends QoS 2 messages one after the other, to avoid an allocation per
    /// message. The set is freed with the connection.
    fn recycle_incoming_ids(&mut self, session: SessionIx) {
        let session = &mut self.delivery.sessions[session];
        if session.connection.is_none() {
            session.incoming_qos2 = None;
        }
    }
}
