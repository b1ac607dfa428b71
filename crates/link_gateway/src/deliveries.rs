//! Messages of the broker for the peer: they are acknowledged to the broker when the peer has acknowledged them. They
//! outlive connections to the broker, so that a message is sent once over a link, whatever connections break.

use std::collections::VecDeque;

use bytes::Bytes;
use link::message::MessageId;
use mqtt_client::PendingAck;

/// What waits for room in the link.
#[derive(Debug)]
struct OutgoingContent {
    content: Bytes,
    acknowledgement: Option<Acknowledgement>,
}

/// The acknowledgement that the broker expects.
#[derive(Debug, Clone, Copy)]
struct Acknowledgement {
    packet: PendingAck,
    /// The broker has sent the message on the current connection.
    is_expected: bool,
}

/// Messages for the peer in their order.
///
/// The caller sends [`next_unsent`](Self::next_unsent) over the link and calls [`set_sent`](Self::set_sent). It waits until the link has
/// settled [`first_sent`](Self::first_sent), calls [`settle_first`](Self::settle_first), and acknowledges what that returns.
#[derive(Debug)]
pub(crate) struct DeliveryQueue {
    unsent: VecDeque<OutgoingContent>,
    /// Messages that the peer has not acknowledged and the broker waits for.
    sent: VecDeque<(MessageId, Acknowledgement)>,
    /// Messages that the peer acknowledged while there was no connection: the broker will send them again.
    settled: Vec<PendingAck>,
    max_unsent: usize,
    /// The link takes nothing more.
    is_closed: bool,
}

impl DeliveryQueue {
    pub(crate) fn new(max_unsent: usize) -> Self {
        Self {
            unsent: VecDeque::new(),
            sent: VecDeque::new(),
            settled: Vec::new(),
            max_unsent,
            is_closed: false,
        }
    }

    /// The link takes nothing more: what waits for it is discarded, and so is what is added later. Messages among it remain
    /// without an acknowledgement.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.unsent.clear();
    }

    pub(crate) fn has_room(&self) -> bool {
        self.unsent.len() < self.max_unsent
    }

    /// Adds an answer of the node.
    pub(crate) fn push(&mut self, content: Bytes) {
        if self.is_closed {
            return;
        }
        self.unsent.push_back(OutgoingContent {
            content,
            acknowledgement: None,
        });
    }

    /// Adds a message of the broker, unless it has been added before. Returns whether the broker can be told at once that the
    /// peer has it.
    pub(crate) fn push_message(
        &mut self,
        content: impl FnOnce() -> Bytes,
        packet: Option<PendingAck>,
        is_repeated: bool,
    ) -> bool {
        if let Some(packet) = packet {
            let settled = self.settled.iter().position(|known| *known == packet);
            if let Some(at) = settled {
                self.settled.swap_remove(at);
            }
            if is_repeated {
                if settled.is_some() {
                    return true;
                }
                let unsent = self.unsent.iter_mut();
                let unsent = unsent.filter_map(|it| it.acknowledgement.as_mut());
                let sent = self.sent.iter_mut().map(|(_, it)| it);
                if let Some(known) = unsent.chain(sent).find(|it| it.packet == packet) {
                    known.is_expected = true;
                    return false;
                }
            }
        }
        if self.is_closed {
            return false;
        }
        let acknowledgement = packet.map(|packet| Acknowledgement {
            packet,
            is_expected: true,
        });
        self.unsent.push_back(OutgoingContent {
            content: content(),
            acknowledgement,
        });
        false
    }

    /// The connection has ended. The broker sends what is not acknowledged again, on the next one.
    pub(crate) fn reset(&mut self) {
        let unsent = self.unsent.iter_mut();
        let unsent = unsent.filter_map(|it| it.acknowledgement.as_mut());
        let sent = self.sent.iter_mut().map(|(_, it)| it);
        for acknowledgement in unsent.chain(sent) {
            acknowledgement.is_expected = false;
        }
    }

    /// The broker has lost the session, and expects no acknowledgement.
    pub(crate) fn forget_session(&mut self) {
        self.sent.clear();
        self.settled.clear();
        for unsent in &mut self.unsent {
            unsent.acknowledgement = None;
        }
    }

    pub(crate) fn next_unsent(&self) -> Option<&Bytes> {
        self.unsent.front().map(|first| &first.content)
    }

    /// The first message is queued in the link with this id.
    pub(crate) fn set_sent(&mut self, id: MessageId) {
        let sent = self.unsent.pop_front();
        if let Some(acknowledgement) = sent.and_then(|sent| sent.acknowledgement) {
            self.sent.push_back((id, acknowledgement));
        }
    }

    /// The first message that the broker waits for.
    pub(crate) fn first_sent(&self) -> Option<MessageId> {
        self.sent.front().map(|(id, _)| *id)
    }

    /// The peer has acknowledged the first message. Returns what the broker expects now.
    pub(crate) fn settle_first(&mut self) -> Option<PendingAck> {
        let (_, acknowledgement) = self.sent.pop_front()?;
        let Acknowledgement {
            packet,
            is_expected,
        } = acknowledgement;
        if !is_expected {
            // Limited by the messages that the broker sends without acknowledgement.
            self.settled.push(packet);
        }
        is_expected.then_some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::priority::Priority;
    use mqtt::{Packet, Properties, Publish, QoS, Version};
    use mqtt_client::{AckMode, ClientSession, SessionEvent};

    fn id(number: u64) -> MessageId {
        MessageId {
            priority: Priority::High,
            number,
        }
    }

    /// The acknowledgement of a message that a broker has sent.
    fn packet(packet_id: u16) -> PendingAck {
        let mut bytes = Vec::new();
        let publish = Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            packet_id,
            properties: Properties::EMPTY,
            payload: b"",
        });
        publish.encode(Version::V5, &mut bytes);
        let mut session = ClientSession::new(Version::V5, AckMode::Manual, 1000, 0);
        session.receive(&bytes);
        match session.next_event() {
            Ok(Some(SessionEvent::Message(message))) => message.pending_ack.expect("of QoS 1"),
            other => panic!("{other:?}"),
        }
    }

    fn push(queue: &mut DeliveryQueue, packet_id: u16, is_repeated: bool) -> bool {
        let content = || Bytes::from_static(b"message");
        queue.push_message(content, Some(packet(packet_id)), is_repeated)
    }

    #[test]
    fn a_message_is_acknowledged_when_the_peer_has_it() {
        let mut queue = DeliveryQueue::new(2);
        assert!(!push(&mut queue, 1, false));
        queue.push(Bytes::from_static(b"answer"));
        assert!(!queue.has_room());
        assert_eq!(queue.first_sent(), None);
        queue.set_sent(id(1));
        assert_eq!(queue.next_unsent().map(|it| &it[..]), Some(&b"answer"[..]));
        queue.set_sent(id(2));
        assert_eq!(queue.first_sent(), Some(id(1)));
        assert_eq!(queue.settle_first(), Some(packet(1)));
        assert_eq!(queue.settle_first(), None);
    }

    #[test]
    fn a_message_that_the_broker_repeats_is_sent_once() {
        let mut queue = DeliveryQueue::new(10);
        for packet_id in 1..=3 {
            push(&mut queue, packet_id, false);
        }
        queue.set_sent(id(1));
        queue.set_sent(id(2));
        queue.reset();
        // The peer acknowledges the first one while there is no connection.
        assert_eq!(queue.settle_first(), None);
        assert!(push(&mut queue, 1, true));
        assert!(!push(&mut queue, 2, true));
        assert!(!push(&mut queue, 3, true));
        assert_eq!(queue.unsent.len(), 1);
        queue.set_sent(id(3));
        assert_eq!(queue.settle_first(), Some(packet(2)));
        assert_eq!(queue.settle_first(), Some(packet(3)));
        // A repeated message of a former link is unknown.
        assert!(!push(&mut queue, 9, true));
        assert_eq!(queue.unsent.len(), 1);
    }

    #[test]
    fn a_closed_queue_keeps_nothing_and_has_room() {
        let mut queue = DeliveryQueue::new(2);
        push(&mut queue, 1, false);
        queue.set_sent(id(1));
        push(&mut queue, 2, false);
        queue.push(Bytes::from_static(b"answer"));
        queue.close();
        assert!(!push(&mut queue, 3, false));
        queue.push(Bytes::from_static(b"answer"));
        assert!(queue.has_room());
        assert_eq!(queue.next_unsent(), None);
        // What the link took before is still acknowledged.
        assert_eq!(queue.settle_first(), Some(packet(1)));
    }

    #[test]
    fn packet_identifiers_of_a_lost_session_mean_nothing() {
        let mut queue = DeliveryQueue::new(10);
        for packet_id in 1..=3 {
            push(&mut queue, packet_id, false);
        }
        queue.set_sent(id(1));
        queue.set_sent(id(2));
        queue.reset();
        queue.settle_first();
        queue.forget_session();
        assert_eq!(queue.first_sent(), None);
        // The third message is still sent, and new messages use the same identifiers.
        assert!(!push(&mut queue, 1, false));
        queue.set_sent(id(3));
        assert_eq!(queue.first_sent(), None);
        queue.set_sent(id(4));
        assert_eq!(queue.settle_first(), Some(packet(1)));
    }
}
