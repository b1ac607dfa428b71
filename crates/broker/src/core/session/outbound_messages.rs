//! Messages towards a client: in flight, queued, and the order between them.
//!
//! Messages leave in one order: first those in flight when a connection was resumed, then the queue, then new ones.
//! [`OutboundMessages::next`] returns them one by one as the client's window and the socket allow.

mod acknowledgements;
mod queue_listing;
mod stored_messages;
mod stored_tail;

use mqtt::QoS;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use self::stored_tail::StoredTail;
use crate::config::QueuePolicy;
use crate::core::message::Message;
use crate::core::tables::{GroupId, NO_GROUP};

/// One message for one session: the parts that differ between subscribers.
#[derive(Clone)]
pub(crate) struct SessionMessage {
    pub(crate) message: Rc<Message>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Subscription identifiers.
    pub(crate) identifiers: Option<Rc<[u32]>>,
    /// The shared subscription it came by, otherwise `NO_GROUP`.
    pub(crate) group: GroupId,
    /// Its number in the store; 0: it is not stored.
    pub(crate) seq: u64,
}

impl SessionMessage {
    pub(crate) fn size(&self) -> usize {
        self.message.size() + size_of::<SessionMessage>()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InflightStage {
    /// Acknowledged; waits for earlier ones so that the ring stays contiguous.
    Done,
    /// PUBLISH sent (or to be sent again), PUBACK or PUBREC awaited.
    Published,
    /// PUBREL sent (or to be sent again), PUBCOMP awaited. The message itself has been dropped.
    Released,
}

struct InflightMessage {
    stage: InflightStage,
    /// Whether it takes a place in the client's window on this connection.
    occupies_window: bool,
    qos: QoS,
    /// Size of the message in bytes; 0 once it has been dropped.
    size: u32,
    /// Number of the message in the store; stays when the message has been dropped.
    seq: u64,
    /// `None`: the message has been dropped, or is only in the store.
    session_message: Option<SessionMessage>,
    /// The message after PUBREC, if hooks have to be notified of the end of the exchange.
    released: Option<Box<SessionMessage>>,
}

impl InflightMessage {
    fn is_only_stored(&self) -> bool {
        self.stage == InflightStage::Published && self.session_message.is_none()
    }
}

/// The next packet of [`OutboundMessages::next`].
pub(crate) enum Transmit {
    Publish {
        packet_id: u16,
        session_message: SessionMessage,
        dup: bool,
    },
    PubRel {
        packet_id: u16,
    },
    /// A queued QoS 0 message.
    PublishQos0 {
        session_message: SessionMessage,
    },
    /// The message expired, or exceeded the maximum age, in the queue.
    Expired {
        session_message: SessionMessage,
    },
    /// The client may no longer receive the message.
    NoLongerAllowed {
        session_message: SessionMessage,
    },
    /// A QoS 2 message was sent on an earlier connection, and the client may no longer receive it. The client may have
    /// stored its packet id, and gets a PUBREL for it.
    Withdrawn {
        packet_id: u16,
        session_message: SessionMessage,
    },
}

/// Restricts messages that were queued or in flight before the client resumed its session. Only those that match one of
/// these filters are sent, since the client may no longer subscribe to the others.
pub(crate) struct QueueFilter {
    pub(crate) filters: Vec<Rc<str>>,
    /// Number of the last stored message the filter applies to.
    pub(crate) up_to_seq: u64,
    /// The same for messages that are in memory only: the latest time of receipt.
    pub(crate) up_to_ms: u64,
}

impl QueueFilter {
    fn allows(&self, session_message: &SessionMessage) -> bool {
        let is_earlier = match session_message.seq {
            0 => session_message.message.received_ms() <= self.up_to_ms,
            seq => seq <= self.up_to_seq,
        };
        let matches =
            |filter: &Rc<str>| mqtt::filter_matches(filter, session_message.message.view().topic);
        !is_earlier || self.filters.iter().any(matches)
    }
}

/// The outcome of an acknowledgement.
pub(crate) enum AckOutcome {
    /// No such packet id in that stage.
    Unknown,
    /// The exchange is complete.
    Done {
        seq: u64,
        session_message: Option<SessionMessage>,
    },
    /// A PUBREL is due.
    Release {
        seq: u64,
        session_message: Option<SessionMessage>,
    },
}

/// Whether a queue has room for one more message.
pub(crate) enum QueueRoom {
    Available,
    /// Older messages were dropped: these, and behind them the stored ones with these numbers.
    MadeRoom {
        session_messages: Vec<SessionMessage>,
        stored: Range<u64>,
    },
    /// No room; the policy drops the new message.
    Rejected,
    /// No room; the policy disconnects the client.
    Disconnect,
}

/// The size of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueSize {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// Of the bytes, those in memory.
    pub(crate) bytes_in_memory: usize,
}

pub(crate) struct QueueLimits {
    pub(crate) max_messages: usize,
    pub(crate) max_bytes: usize,
    pub(crate) policy: QueuePolicy,
}

/// Limits on messages in flight to a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendWindow {
    pub(crate) messages: u16,
    pub(crate) bytes: usize,
}

/// The messages of one session towards its client: those in flight, and the queue behind them, whose end may be in the
/// store only.
///
/// It assigns packet ids and decides what is sent next. It writes neither to the socket nor to the store: the caller
/// does what [`next`](Self::next) returns, records it, and reports each acknowledgement (`puback`, `pubrec`, `pubcomp`).
/// When the connection closes, it calls [`reset_for_resend`](Self::reset_for_resend). Sizes change with every call; the
/// caller passes [`size`](Self::size) before and after to the counters of the shard.
pub(crate) struct OutboundMessages {
    /// Contiguous packet ids from `first_id` on (65,535 is followed by 1).
    ring: VecDeque<InflightMessage>,
    first_id: u16,
    /// Entries that are not `Done`.
    unacknowledged: u16,
    /// Entries from here on were sent on an earlier connection and not yet on this one.
    resend_from: usize,
    /// Of those before `resend_from`, the number that take a place in the client's window.
    in_window: u16,
    /// Bytes of messages in the ring.
    inflight_bytes: usize,
    queue: VecDeque<SessionMessage>,
    queued_bytes: usize,
    stored_tail: StoredTail,
    /// Whether a message came by a shared subscription, which the store does not record: messages in flight stay in
    /// memory.
    must_keep_messages: bool,
    /// Number of messages that were sent or left the queue otherwise; positions of messages in memory are counted from
    /// it.
    taken_count: u64,
    queue_filter: Option<Box<QueueFilter>>,
}

const PACKET_IDS: usize = 65_535;
/// The ring may span this many times the window, and at least `RING_MIN`, while one old message stays unacknowledged.
const RING_SPAN: usize = 4;
const RING_MIN: usize = 1024;
/// Capacity that an empty queue keeps; a burst may have grown it far beyond.
const IDLE_QUEUE_CAPACITY: usize = 64;

impl Default for OutboundMessages {
    fn default() -> Self {
        Self {
            ring: VecDeque::new(),
            first_id: 1,
            unacknowledged: 0,
            resend_from: 0,
            in_window: 0,
            inflight_bytes: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            stored_tail: StoredTail::default(),
            must_keep_messages: false,
            taken_count: 0,
            queue_filter: None,
        }
    }
}

impl OutboundMessages {
    pub(crate) fn inflight(&self) -> usize {
        usize::from(self.unacknowledged)
    }

    pub(crate) fn size(&self) -> QueueSize {
        QueueSize {
            messages: self.queue.len() + self.stored_tail.messages,
            bytes: self.queued_bytes + self.stored_tail.bytes,
            bytes_in_memory: self.queued_bytes,
        }
    }

    pub(crate) fn oldest_queued_ms(&self) -> Option<u64> {
        match self.queue.front() {
            Some(session_message) => Some(session_message.message.received_ms()),
            None => (self.stored_tail.messages > 0).then_some(self.stored_tail.since_ms),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ring.is_empty() && self.queue.is_empty() && self.is_fully_loaded()
    }

    /// The number of messages in flight or waiting for earlier ones, and the packet id of the last of them.
    pub(crate) fn inflight_span(&self) -> (usize, u16) {
        let count = self.ring.len();
        (count, self.id_at(count.saturating_sub(1)))
    }

    /// Whether a new message may be sent at once without overtaking another.
    #[inline]
    pub(crate) fn can_send(&self, window: SendWindow) -> bool {
        self.queue.is_empty()
            && self.resend_from == self.ring.len()
            && self.is_fully_loaded()
            && self.has_room(window)
    }

    fn has_room(&self, window: SendWindow) -> bool {
        let span = (usize::from(window.messages) * RING_SPAN).clamp(RING_MIN, PACKET_IDS);
        self.in_window < window.messages
            && self.ring.len() < span
            && (self.inflight_bytes < window.bytes || self.ring.is_empty())
    }

    fn id_at(&self, offset: usize) -> u16 {
        ((usize::from(self.first_id) - 1 + offset) % PACKET_IDS + 1) as u16
    }

    #[inline]
    fn offset_of(&self, packet_id: u16) -> Option<usize> {
        let offset =
            (usize::from(packet_id) + PACKET_IDS - usize::from(self.first_id)) % PACKET_IDS;
        (packet_id != 0 && offset < self.ring.len()).then_some(offset)
    }

    /// Puts a message in flight; the caller has checked `can_send` or uses the result of `next`.
    #[inline]
    pub(crate) fn send(&mut self, session_message: SessionMessage) -> u16 {
        self.must_keep_messages |= session_message.group != NO_GROUP;
        self.push_inflight(InflightMessage {
            stage: InflightStage::Published,
            occupies_window: true,
            qos: session_message.qos,
            size: session_message.size() as u32,
            seq: session_message.seq,
            session_message: Some(session_message),
            released: None,
        })
    }

    /// Puts a message in flight of which this shard keeps only the number. While its client is connected it is not sent
    /// again [MQTT-4.4.0-1]; another connection reads it from the store.
    #[inline]
    pub(crate) fn send_stored(&mut self, seq: u64, qos: QoS, size: usize) -> u16 {
        debug_assert!(!self.must_keep_messages);
        self.push_inflight(InflightMessage {
            stage: InflightStage::Published,
            occupies_window: true,
            qos,
            size: size as u32,
            seq,
            session_message: None,
            released: None,
        })
    }

    /// Whether the store alone may hold messages that are sent, if they are stored.
    #[inline]
    pub(crate) fn can_leave_to_store(&self) -> bool {
        !self.must_keep_messages
    }

    #[inline]
    fn push_inflight(&mut self, entry: InflightMessage) -> u16 {
        let packet_id = self.id_at(self.ring.len());
        self.inflight_bytes += entry.size as usize;
        self.taken_count += 1;
        self.ring.push_back(entry);
        self.unacknowledged += 1;
        self.in_window += 1;
        self.resend_from = self.ring.len();
        packet_id
    }

    /// Checks whether there is room for one more message of a size; makes room if the policy requires it.
    pub(crate) fn make_room(&mut self, size: usize, limits: &QueueLimits) -> QueueRoom {
        let fits = |now: QueueSize| {
            now.messages < limits.max_messages && now.bytes + size <= limits.max_bytes
        };
        if fits(self.size()) {
            return QueueRoom::Available;
        }
        if size > limits.max_bytes || limits.max_messages == 0 {
            return QueueRoom::Rejected;
        }
        match limits.policy {
            QueuePolicy::DropNewest => return QueueRoom::Rejected,
            QueuePolicy::Disconnect => return QueueRoom::Disconnect,
            QueuePolicy::DropOldest => {}
        }
        let mut session_messages = Vec::new();
        while !fits(self.size()) {
            let Some(oldest) = self.queue.pop_front() else {
                break;
            };
            self.queued_bytes -= oldest.size();
            self.taken_count += 1;
            session_messages.push(oldest);
        }
        let first = self.stored_tail.from_seq;
        while !fits(self.size()) && self.stored_tail.messages > 0 {
            // Only the store knows how large that message was.
            self.stored_tail.bytes -= self.stored_tail.bytes / self.stored_tail.messages;
            self.stored_tail.messages -= 1;
            self.stored_tail.from_seq += 1;
        }
        let stored = first..self.stored_tail.from_seq;
        QueueRoom::MadeRoom {
            session_messages,
            stored,
        }
    }

    /// Appends a message to the queue; the caller has checked for room.
    pub(crate) fn push(&mut self, session_message: SessionMessage) {
        self.must_keep_messages |= session_message.group != NO_GROUP;
        self.queued_bytes += session_message.size();
        self.queue.push_back(session_message);
    }

    /// The next thing to send, if the window has room for one.
    pub(crate) fn next(
        &mut self,
        window: SendWindow,
        now_ms: u64,
        max_age_ms: u64,
    ) -> Option<Transmit> {
        while self.resend_from < self.ring.len() {
            let packet_id = self.id_at(self.resend_from);
            let entry = &mut self.ring[self.resend_from];
            // PUBREL is sent regardless of the window [MQTT-3.3.4-10].
            if entry.stage == InflightStage::Published && self.in_window >= window.messages {
                return None;
            }
            self.resend_from += 1;
            match (entry.stage, &entry.session_message) {
                (InflightStage::Published, Some(session_message))
                    if (self.queue_filter.as_ref())
                        .is_some_and(|it| !it.allows(session_message)) =>
                {
                    return Some(self.withdraw(packet_id));
                }
                (InflightStage::Published, Some(session_message)) => {
                    entry.occupies_window = true;
                    self.in_window += 1;
                    return Some(Transmit::Publish {
                        packet_id,
                        session_message: session_message.clone(),
                        dup: true,
                    });
                }
                (InflightStage::Released, _) => return Some(Transmit::PubRel { packet_id }),
                _ => {}
            }
        }
        let session_message = self.queue.front()?;
        if session_message.qos != QoS::AtMostOnce && !self.has_room(window) {
            return None;
        }
        let session_message = self.queue.pop_front().expect("checked above");
        if self.queue.is_empty() {
            self.queue.shrink_to(IDLE_QUEUE_CAPACITY);
        }
        self.queued_bytes -= session_message.size();
        let is_too_old = session_message
            .message
            .received_ms()
            .saturating_add(max_age_ms)
            <= now_ms;
        if is_too_old || session_message.message.is_expired(now_ms) {
            self.taken_count += 1;
            return Some(Transmit::Expired { session_message });
        }
        if let Some(narrowing) = &self.queue_filter
            && !narrowing.allows(&session_message)
        {
            self.taken_count += 1;
            return Some(Transmit::NoLongerAllowed { session_message });
        }
        if session_message.qos == QoS::AtMostOnce {
            self.taken_count += 1;
            return Some(Transmit::PublishQos0 { session_message });
        }
        let packet_id = self.send(session_message.clone());
        Some(Transmit::Publish {
            packet_id,
            session_message,
            dup: false,
        })
    }

    /// Ends an exchange whose message the client may no longer receive, or continues it without the message.
    ///
    /// A QoS 1 exchange ends. A packet id of QoS 2 stays in use until PUBCOMP. A client that has stored it would take
    /// the next message with it for a repetition [MQTT-4.3.3].
    fn withdraw(&mut self, packet_id: u16) -> Transmit {
        let offset = self.offset_of(packet_id).expect("the message is in flight");
        let entry = &mut self.ring[offset];
        let session_message = entry.session_message.take().expect("checked by the caller");
        if entry.qos != QoS::ExactlyOnce {
            self.complete_entry(offset);
            return Transmit::NoLongerAllowed { session_message };
        }
        entry.stage = InflightStage::Released;
        self.inflight_bytes -= std::mem::take(&mut entry.size) as usize;
        Transmit::Withdrawn {
            packet_id,
            session_message,
        }
    }

    pub(crate) fn set_queue_filter(&mut self, narrowing: QueueFilter) {
        self.queue_filter = Some(Box::new(narrowing));
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.resend_from < self.ring.len() || !self.queue.is_empty()
    }

    /// The connection has closed: messages in flight will be sent again on the next one.
    pub(crate) fn reset_for_resend(&mut self) {
        self.resend_from = 0;
        self.in_window = 0;
        for entry in &mut self.ring {
            entry.occupies_window = false;
        }
    }

    /// Ends an exchange whose message was never sent.
    pub(crate) fn abandon_packet(&mut self, packet_id: u16) {
        if let Some(offset) = self.offset_of(packet_id) {
            self.complete_entry(offset);
        }
    }

    /// The session becomes durable: `store` writes a message, with its packet id if it was sent, and returns its
    /// number.
    pub(crate) fn persist_all(&mut self, mut store: impl FnMut(u16, &SessionMessage) -> u64) {
        for offset in 0..self.ring.len() {
            let packet_id = self.id_at(offset);
            let entry = &mut self.ring[offset];
            if let Some(session_message) = &mut entry.session_message {
                session_message.seq = store(packet_id, session_message);
                entry.seq = session_message.seq;
            }
        }
        for session_message in &mut self.queue {
            session_message.seq = store(0, session_message);
        }
    }

    /// Removes and returns everything that is not acknowledged, the queue included; the session is ending.
    pub(crate) fn drain_all(&mut self) -> Vec<SessionMessage> {
        let in_flight = self
            .ring
            .drain(..)
            .filter_map(|entry| entry.session_message);
        in_flight.chain(self.queue.drain(..)).collect()
    }

    /// The session has left a shared subscription. Its queued messages go to the other members, if there are any;
    /// messages in flight are still delivered [MQTT-3.10.4-3]. References to the group's id are removed, since the id
    /// may be reused.
    pub(crate) fn leave_group(&mut self, group: GroupId, has_others: bool) -> Vec<SessionMessage> {
        let mut taken = Vec::new();
        if has_others {
            let of_group = |session_message: &mut SessionMessage| session_message.group == group;
            taken = drain_matching(&mut self.queue, of_group);
            self.queued_bytes -= taken.iter().map(SessionMessage::size).sum::<usize>();
        }
        let in_flight = self
            .ring
            .iter_mut()
            .filter_map(|entry| entry.session_message.as_mut());
        for session_message in in_flight.chain(&mut self.queue) {
            if session_message.group == group {
                session_message.group = NO_GROUP;
            }
        }
        taken
    }

    /// Removes the messages that may go to another member of their shared subscription: QoS 1 messages, sent or not,
    /// and queued QoS 2 messages. A QoS 2 message that was sent stays [MQTT-4.8.2-4, MQTT-4.8.2-5].
    pub(crate) fn drain_shared(
        &mut self,
        mut may_go: impl FnMut(GroupId) -> bool,
    ) -> Vec<SessionMessage> {
        let mut taken = Vec::new();
        for offset in (0..self.ring.len()).rev() {
            let goes = self.ring[offset].stage == InflightStage::Published
                && self.ring[offset]
                    .session_message
                    .as_ref()
                    .is_some_and(|session_message| {
                        session_message.qos == QoS::AtLeastOnce && may_go(session_message.group)
                    });
            if goes {
                taken.extend(self.complete_entry(offset).1);
            }
        }
        taken.reverse();
        let queued = drain_matching(&mut self.queue, |session_message| {
            may_go(session_message.group)
        });
        self.queued_bytes -= queued.iter().map(SessionMessage::size).sum::<usize>();
        taken.extend(queued);
        taken
    }
}

/// Removes the messages that match a condition from a queue; both parts keep their order.
fn drain_matching(
    queue: &mut VecDeque<SessionMessage>,
    mut fits: impl FnMut(&mut SessionMessage) -> bool,
) -> Vec<SessionMessage> {
    let mut taken = Vec::new();
    for mut session_message in std::mem::take(queue) {
        if fits(&mut session_message) {
            taken.push(session_message);
        } else {
            queue.push_back(session_message);
        }
    }
    taken
}
