//! Messages that a gateway numbers itself: each is published once, over interruptions and restarts of the node.
//!
//! The numbers are part of the session's record. A number is written in the batch of the message's turn, like the packet id
//! of a QoS 2 message.

use hooks::PublishVerdict;
use mqtt::{Connect, PacketType, Properties, Publish, QoS, ReasonCode};

use super::connection::CloseReason;
use super::publish::publish_rejection;
use super::session::{
    AcceptedNumbers, FIRST_NUMBERS_PROPERTY, NUMBER_PROPERTY, PUBLISHER_PROPERTY, PublicationNumber,
};
use super::shard::{ConnectionAction, Shard};
use super::tables::{ConnectionIx, SessionIx};

fn user_property<'a>(properties: Properties<'a>, name: &str) -> Option<&'a str> {
    let mut all = properties.user_properties();
    all.find_map(|(found, value)| (found == name).then_some(value))
}

impl Shard {
    pub(super) fn is_gateway_connection(&self, at: ConnectionIx) -> bool {
        let listener = self.delivery.connections[at].listener;
        self.node.listeners[usize::from(listener)].config().link
    }

    /// A client has connected: a gateway says who numbers its messages. Only another publisher begins a new record.
    pub(super) fn set_publisher(
        &mut self,
        at: ConnectionIx,
        session: SessionIx,
        connect: &Connect<'_>,
    ) {
        let Some(publisher) = user_property(connect.properties, PUBLISHER_PROPERTY) else {
            return;
        };
        if !self.is_gateway_connection(at) {
            return;
        }
        let session = &mut self.delivery.sessions[session];
        let numbers = &mut session.accepted_numbers;
        if !numbers.as_ref().is_some_and(|it| it.belongs_to(publisher)) {
            *numbers = AcceptedNumbers::new(publisher).map(Box::new);
            if let Some(journal) = &mut self.delivery.journal {
                journal.forget_numbers(session.store_number);
            }
        }
        let first = user_property(connect.properties, FIRST_NUMBERS_PROPERTY);
        if let (Some(numbers), Some(first)) = (numbers, first) {
            for first in first.split(' ').filter_map(PublicationNumber::parse) {
                numbers.accept_all_before(first);
            }
        }
    }

    /// The number of a message; `None` if its publisher does not number its messages.
    pub(super) fn publication_number(
        &self,
        at: ConnectionIx,
        session: SessionIx,
        publish: &Publish<'_>,
    ) -> Result<Option<PublicationNumber>, CloseReason> {
        let numbers = &self.delivery.sessions[session].accepted_numbers;
        if numbers.is_none() || publish.qos != QoS::AtLeastOnce || !self.is_gateway_connection(at) {
            return Ok(None);
        }
        let Some(text) = user_property(publish.properties, NUMBER_PROPERTY) else {
            return Ok(None);
        };
        match PublicationNumber::parse(text) {
            Some(number) => Ok(Some(number)),
            None => Err(publish_rejection(
                ReasonCode::PROTOCOL_ERROR,
                format!("PUBLISH: {NUMBER_PROPERTY}: expected LANE.NUMBER"),
            )),
        }
    }

    /// Publishes a numbered message, unless it was accepted before.
    pub(super) fn accept_numbered_publish(
        &mut self,
        at: ConnectionIx,
        session: SessionIx,
        publish: &Publish<'_>,
        number: PublicationNumber,
    ) -> Result<ConnectionAction, CloseReason> {
        let numbers = self.delivery.sessions[session].accepted_numbers.as_ref();
        let (is_known, needs_hooks_again) = numbers.map_or((false, false), |numbers| {
            (numbers.contains(number), numbers.needs_hooks_again(number))
        });
        if !is_known {
            self.publication_number = Some(number);
            let result = self.accept_publish(at, session, publish);
            self.publication_number = None;
            return result;
        }
        self.derived_messages.begin_publisher();
        if needs_hooks_again {
            let verdict = self.notify_hooks_of_redelivery(session, publish)?;
            if verdict == PublishVerdict::Reject {
                return self.reject_store_unavailable(at, publish);
            }
            if let Some(numbers) = &mut self.delivery.sessions[session].accepted_numbers {
                numbers.mark_passed_to_hooks(number);
            }
            if verdict == PublishVerdict::Defer {
                return Ok(self.action_after_publish(at));
            }
        }
        let reason = ReasonCode::SUCCESS;
        self.acknowledge_publish(at, PacketType::PubAck, publish.packet_id, reason);
        self.wait_for_derived(at);
        Ok(self.action_after_publish(at))
    }

    /// The message being handled is accepted; its number is recorded if it has one.
    #[inline]
    pub(super) fn record_publication_number(&mut self, session: SessionIx) {
        if let Some(number) = self.publication_number {
            self.log_number(session, number);
        }
    }

    fn log_number(&mut self, at: SessionIx, number: PublicationNumber) {
        let session = &mut self.delivery.sessions[at];
        let Some(numbers) = &mut session.accepted_numbers else {
            return;
        };
        numbers.accept(number);
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        if session.store_number == 0 || journal.hold_number_for_nodes(session.store_number, number)
        {
            return;
        }
        if numbers.mark_logged(number) {
            self.sessions_with_new_numbers.push(at);
        }
    }

    /// A hook will acknowledge the message being handled.
    pub(super) fn keep_deferred_number(&mut self, at: ConnectionIx, packet_id: u16) {
        if let Some(number) = self.publication_number {
            let deferred = &mut self.delivery.connections[at].extra().deferred_numbers;
            deferred.push((packet_id, number));
        }
    }

    /// A hook has acknowledged a message.
    pub(super) fn record_deferred_number(
        &mut self,
        at: ConnectionIx,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let Some(extra) = &mut self.delivery.connections[at].extra else {
            return;
        };
        let position = |&(deferred, _): &(u16, PublicationNumber)| deferred == packet_id;
        let Some(at_position) = extra.deferred_numbers.iter().position(position) else {
            return;
        };
        let (_, number) = extra.deferred_numbers.swap_remove(at_position);
        if !reason.is_error() {
            let session = self.session_of_connection(at);
            self.log_number(session, number);
        }
    }

    /// Writes the records of sessions with new numbers to the batch of this turn.
    pub(super) fn persist_accepted_numbers(&mut self) {
        if let Some(journal) = &mut self.delivery.journal {
            for (session, number) in journal.take_confirmed_numbers() {
                let numbers = self.delivery.sessions[session].accepted_numbers.as_mut();
                if numbers.is_some_and(|numbers| numbers.mark_logged(number)) {
                    self.sessions_with_new_numbers.push(session);
                }
            }
        }
        let mut sessions = std::mem::take(&mut self.sessions_with_new_numbers);
        for at in sessions.drain(..) {
            // Another session may have its place meanwhile, whose record is then written again.
            if self.delivery.sessions.get(at).is_some() {
                self.persist_session(at);
            }
        }
        self.sessions_with_new_numbers = sessions;
    }
}
