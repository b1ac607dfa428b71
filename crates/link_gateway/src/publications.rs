//! Messages of a link that wait for the broker's acknowledgement. They outlive connections to the broker, so that a
//! message that the link has received is published after a reconnect.

use std::collections::VecDeque;

use link::message::{MessageId, Payload};

/// Messages that wait at a time.
const MAX_PENDING: usize = 256;

/// A message that is not acknowledged yet.
#[derive(Debug)]
pub(crate) struct PendingPublication {
    pub(crate) id: MessageId,
    pub(crate) content: bytes::Bytes,
    /// Its packet identifier on the current connection; `None`: it is not sent on it.
    packet_id: Option<u16>,
}

/// Messages in the order in which they arrived.
#[derive(Debug)]
pub(crate) struct PublicationQueue {
    pending: VecDeque<PendingPublication>,
    bytes: u64,
    max_bytes: u64,
}

impl PublicationQueue {
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self {
            pending: VecDeque::new(),
            bytes: 0,
            max_bytes,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING && self.bytes < self.max_bytes
    }

    pub(crate) fn push(&mut self, id: MessageId, payload: Payload) {
        let content = payload.into_bytes();
        self.bytes += content.len() as u64;
        self.pending.push_back(PendingPublication {
            id,
            content,
            packet_id: None,
        });
    }

    /// All messages must be sent again, on a new connection.
    pub(crate) fn reset(&mut self) {
        for publication in &mut self.pending {
            publication.packet_id = None;
        }
    }

    /// How many messages are sent on the current connection and not acknowledged.
    pub(crate) fn in_flight(&self) -> usize {
        let pending = self.pending.iter();
        pending.filter(|it| it.packet_id.is_some()).count()
    }

    /// The first message that is not sent on the current connection.
    pub(crate) fn next_unsent(&self) -> Option<(usize, &PendingPublication)> {
        let mut all = self.pending.iter().enumerate();
        all.find(|(_, publication)| publication.packet_id.is_none())
    }

    pub(crate) fn set_sent(&mut self, at: usize, packet_id: u16) {
        if let Some(publication) = self.pending.get_mut(at) {
            publication.packet_id = Some(packet_id);
        }
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<PendingPublication> {
        let removed = self.pending.remove(at)?;
        self.bytes -= removed.content.len() as u64;
        Some(removed)
    }

    /// Removes the message that the broker has acknowledged.
    pub(crate) fn complete(&mut self, packet_id: u16) -> Option<PendingPublication> {
        let mut all = self.pending.iter();
        let at = all.position(|publication| publication.packet_id == Some(packet_id))?;
        self.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::priority::Priority;

    fn push(queue: &mut PublicationQueue, number: u64, len: usize) {
        let id = MessageId {
            priority: Priority::Normal,
            number,
        };
        queue.push(id, bytes::Bytes::from(vec![0; len]).into());
    }

    #[test]
    fn messages_are_sent_again_on_a_new_connection() {
        let mut queue = PublicationQueue::new(1000);
        push(&mut queue, 1, 10);
        push(&mut queue, 2, 10);
        assert_eq!(queue.next_unsent().map(|(at, _)| at), Some(0));
        queue.set_sent(0, 7);
        queue.set_sent(1, 8);
        assert!(queue.next_unsent().is_none());
        assert_eq!(queue.in_flight(), 2);
        assert_eq!(queue.complete(7).map(|it| it.id.number), Some(1));
        assert!(queue.complete(7).is_none());
        assert_eq!(queue.in_flight(), 1);
        queue.reset();
        assert_eq!(queue.in_flight(), 0);
        let unsent = queue.next_unsent();
        assert_eq!(unsent.map(|(at, it)| (at, it.id.number)), Some((0, 2)));
    }

    #[test]
    fn the_queue_is_limited() {
        let mut queue = PublicationQueue::new(100);
        push(&mut queue, 1, 100);
        assert!(!queue.has_room());
        queue.remove(0);
        for number in 0..MAX_PENDING as u64 {
            assert!(queue.has_room());
            push(&mut queue, number, 0);
        }
        assert!(!queue.has_room());
    }
}
