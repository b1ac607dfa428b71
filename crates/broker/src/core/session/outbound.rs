//! Messages towards a client: in flight, queued, and the order between them.
//!
//! Messages leave in one order: first what was in flight when a connection was resumed, then the queue, then what
//! arrives. [`Outbound::next`] gives them out one by one as the client's window and the socket allow.

mod look;
mod stored;

use mqtt::QoS;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use self::stored::Stored;
use crate::config::QueuePolicy;
use crate::core::message::Message;
use crate::core::sublist::{GroupId, NO_GROUP};

/// One message for one session: what of it differs between subscribers.
#[derive(Clone)]
pub(crate) struct Parcel {
    pub(crate) message: Rc<Message>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Subscription identifiers.
    pub(crate) identifiers: Option<Rc<[u32]>>,
    /// The shared subscription it came by, else `NO_GROUP`.
    pub(crate) group: GroupId,
    /// What it is stored under; 0: it is not.
    pub(crate) seq: u64,
}

impl Parcel {
    pub(crate) fn size(&self) -> usize {
        self.message.size() + size_of::<Parcel>()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Acknowledged; waits for earlier ones so that the ring stays contiguous.
    Done,
    /// PUBLISH sent (or to be sent again), PUBACK or PUBREC awaited.
    Published,
    /// PUBREL sent (or to be sent again), PUBCOMP awaited. The message itself is gone.
    Released,
}

struct Inflight {
    stage: Stage,
    /// Takes a place in the client's window on this connection.
    counts: bool,
    qos: QoS,
    /// Of the message; 0 once it is gone.
    size: u32,
    /// Of the message; stays when that is gone.
    seq: u64,
    /// None: the message is gone, or only in the store.
    parcel: Option<Parcel>,
    /// The message after PUBREC, if somebody is to be told of the end.
    released: Option<Box<Parcel>>,
}

impl Inflight {
    fn is_only_stored(&self) -> bool {
        self.stage == Stage::Published && self.parcel.is_none()
    }
}

/// What [`Outbound::next`] wants on the wire.
pub(crate) enum Transmit {
    Publish {
        packet_id: u16,
        parcel: Parcel,
        dup: bool,
    },
    PubRel {
        packet_id: u16,
    },
    /// A queued QoS 0 message.
    Plain {
        parcel: Parcel,
    },
    /// It expired, or grew too old, in the queue.
    Expired {
        parcel: Parcel,
    },
    /// The client may not have it any more.
    Denied {
        parcel: Parcel,
    },
    /// A QoS 2 message was sent on an earlier connection, and the client may not have it any more. The client may have kept its
    /// packet id, and gets a PUBREL for it.
    Withdrawn {
        packet_id: u16,
        parcel: Parcel,
    },
}

/// Of what was queued or in flight until a client came back, it gets only what matches one of these filters: it may not
/// subscribe to the others any more.
pub(crate) struct Narrowing {
    pub(crate) filters: Vec<Rc<str>>,
    /// Number of the last stored message it is about.
    pub(crate) up_to_seq: u64,
    /// The same for messages that are in memory only: when they were received.
    pub(crate) up_to_ms: u64,
}

impl Narrowing {
    fn lets_pass(&self, parcel: &Parcel) -> bool {
        let is_earlier = match parcel.seq {
            0 => parcel.message.received_ms() <= self.up_to_ms,
            seq => seq <= self.up_to_seq,
        };
        let matches = |filter: &Rc<str>| mqtt::filter_matches(filter, parcel.message.view().topic);
        !is_earlier || self.filters.iter().any(matches)
    }
}

/// What an acknowledgement did.
pub(crate) enum Acked {
    /// No such packet id in that stage.
    Unknown,
    /// The message is done.
    Done { seq: u64, parcel: Option<Parcel> },
    /// A PUBREL is due.
    Release { seq: u64, parcel: Option<Parcel> },
}

/// Whether a queue has room for one more message.
pub(crate) enum Room {
    Free,
    /// Older ones have made way: these, and behind them the stored ones of these numbers.
    Made {
        parcels: Vec<Parcel>,
        stored: Range<u64>,
    },
    /// No room, and the policy says the new one goes.
    Refused,
    /// No room, and the policy says the client goes.
    Disconnect,
}

/// How much waits in a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueSize {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// Of the bytes, those that are in memory.
    pub(crate) memory_bytes: usize,
}

pub(crate) struct QueueLimits {
    pub(crate) max_messages: usize,
    pub(crate) max_bytes: usize,
    pub(crate) policy: QueuePolicy,
}

/// How much may be in flight to a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) messages: u16,
    pub(crate) bytes: usize,
}

/// Messages towards the client.
pub(crate) struct Outbound {
    /// Contiguous packet ids from `first_id` on (65,535 is followed by 1).
    ring: VecDeque<Inflight>,
    first_id: u16,
    /// Entries that are not `Done`.
    unacknowledged: u16,
    /// Entries from here on were sent on an earlier connection and not yet on this one.
    resend_from: usize,
    /// Of those before `resend_from`, how many take a place in the client's window.
    in_window: u16,
    /// Bytes of messages in the ring.
    inflight_bytes: usize,
    queue: VecDeque<Parcel>,
    queued_bytes: usize,
    stored: Stored,
    /// Something came by a shared subscription, which the store does not know: what is in flight stays in memory.
    keeps_messages: bool,
    /// Messages that have been sent, or have left the queue otherwise: by it those in memory are counted.
    taken: u64,
    narrowing: Option<Box<Narrowing>>,
}

const IDS: usize = 65_535;
/// The ring may span this many times the window, and at least `RING_MIN`, while one old message stays unacknowledged.
const RING_SPAN: usize = 4;
const RING_MIN: usize = 1024;
/// Places that an empty queue keeps; a flood may have made many more.
const KEPT_PLACES: usize = 64;

impl Default for Outbound {
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
            stored: Stored::default(),
            keeps_messages: false,
            taken: 0,
            narrowing: None,
        }
    }
}

impl Outbound {
    pub(crate) fn inflight(&self) -> usize {
        usize::from(self.unacknowledged)
    }

    pub(crate) fn size(&self) -> QueueSize {
        QueueSize {
            messages: self.queue.len() + self.stored.messages,
            bytes: self.queued_bytes + self.stored.bytes,
            memory_bytes: self.queued_bytes,
        }
    }

    pub(crate) fn oldest_queued_ms(&self) -> Option<u64> {
        match self.queue.front() {
            Some(parcel) => Some(parcel.message.received_ms()),
            None => (self.stored.messages > 0).then_some(self.stored.since_ms),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ring.is_empty() && self.queue.is_empty() && self.has_all()
    }

    /// How many are in flight or wait for earlier ones, and the packet id of the last of them.
    pub(crate) fn flown(&self) -> (usize, u16) {
        let count = self.ring.len();
        (count, self.id_at(count.saturating_sub(1)))
    }

    /// Whether a new message may go out at once, ahead of nothing.
    #[inline]
    pub(crate) fn can_send(&self, window: Window) -> bool {
        self.queue.is_empty()
            && self.resend_from == self.ring.len()
            && self.has_all()
            && self.has_room(window)
    }

    fn has_room(&self, window: Window) -> bool {
        let span = (usize::from(window.messages) * RING_SPAN).clamp(RING_MIN, IDS);
        self.in_window < window.messages
            && self.ring.len() < span
            && (self.inflight_bytes < window.bytes || self.ring.is_empty())
    }

    fn id_at(&self, offset: usize) -> u16 {
        ((usize::from(self.first_id) - 1 + offset) % IDS + 1) as u16
    }

    #[inline]
    fn offset_of(&self, packet_id: u16) -> Option<usize> {
        let offset = (usize::from(packet_id) + IDS - usize::from(self.first_id)) % IDS;
        (packet_id != 0 && offset < self.ring.len()).then_some(offset)
    }

    /// Takes a message into flight; the caller has asked `can_send` or comes from `next`.
    #[inline]
    pub(crate) fn send(&mut self, parcel: Parcel) -> u16 {
        self.keeps_messages |= parcel.group != NO_GROUP;
        self.fly(Inflight {
            stage: Stage::Published,
            counts: true,
            qos: parcel.qos,
            size: parcel.size() as u32,
            seq: parcel.seq,
            parcel: Some(parcel),
            released: None,
        })
    }

    /// Takes a message into flight of which this shard keeps nothing but its number: while its client is connected it
    /// is not sent again [MQTT-4.4.0-1], and another connection reads it from the store.
    #[inline]
    pub(crate) fn send_stored(&mut self, seq: u64, qos: QoS, size: usize) -> u16 {
        debug_assert!(!self.keeps_messages);
        self.fly(Inflight {
            stage: Stage::Published,
            counts: true,
            qos,
            size: size as u32,
            seq,
            parcel: None,
            released: None,
        })
    }

    /// Whether what is sent may be left to the store, if it is there.
    #[inline]
    pub(crate) fn leaves_messages(&self) -> bool {
        !self.keeps_messages
    }

    #[inline]
    fn fly(&mut self, entry: Inflight) -> u16 {
        let packet_id = self.id_at(self.ring.len());
        self.inflight_bytes += entry.size as usize;
        self.taken += 1;
        self.ring.push_back(entry);
        self.unacknowledged += 1;
        self.in_window += 1;
        self.resend_from = self.ring.len();
        packet_id
    }

    /// Sees whether there is room for one more message of a size; makes some if the policy says so.
    pub(crate) fn make_room(&mut self, size: usize, limits: &QueueLimits) -> Room {
        let fits = |now: QueueSize| {
            now.messages < limits.max_messages && now.bytes + size <= limits.max_bytes
        };
        if fits(self.size()) {
            return Room::Free;
        }
        if size > limits.max_bytes || limits.max_messages == 0 {
            return Room::Refused;
        }
        match limits.policy {
            QueuePolicy::DropNewest => return Room::Refused,
            QueuePolicy::Disconnect => return Room::Disconnect,
            QueuePolicy::DropOldest => {}
        }
        let mut parcels = Vec::new();
        while !fits(self.size()) {
            let Some(oldest) = self.queue.pop_front() else {
                break;
            };
            self.queued_bytes -= oldest.size();
            self.taken += 1;
            parcels.push(oldest);
        }
        let first = self.stored.from_seq;
        while !fits(self.size()) && self.stored.messages > 0 {
            // How large that one was is only known to the store.
            self.stored.bytes -= self.stored.bytes / self.stored.messages;
            self.stored.messages -= 1;
            self.stored.from_seq += 1;
        }
        let stored = first..self.stored.from_seq;
        Room::Made { parcels, stored }
    }

    /// Puts a message behind all others; the caller has asked for room.
    pub(crate) fn push(&mut self, parcel: Parcel) {
        self.keeps_messages |= parcel.group != NO_GROUP;
        self.queued_bytes += parcel.size();
        self.queue.push_back(parcel);
    }

    /// The next thing to put on the wire, if the window has room for one.
    pub(crate) fn next(
        &mut self,
        window: Window,
        now_ms: u64,
        max_age_ms: u64,
    ) -> Option<Transmit> {
        while self.resend_from < self.ring.len() {
            let packet_id = self.id_at(self.resend_from);
            let entry = &mut self.ring[self.resend_from];
            // PUBREL is sent whatever the window [MQTT-3.3.4-10].
            if entry.stage == Stage::Published && self.in_window >= window.messages {
                return None;
            }
            self.resend_from += 1;
            match (entry.stage, &entry.parcel) {
                (Stage::Published, Some(parcel))
                    if (self.narrowing.as_ref()).is_some_and(|it| !it.lets_pass(parcel)) =>
                {
                    return Some(self.withdraw(packet_id));
                }
                (Stage::Published, Some(parcel)) => {
                    entry.counts = true;
                    self.in_window += 1;
                    return Some(Transmit::Publish {
                        packet_id,
                        parcel: parcel.clone(),
                        dup: true,
                    });
                }
                (Stage::Released, _) => return Some(Transmit::PubRel { packet_id }),
                _ => {}
            }
        }
        let parcel = self.queue.front()?;
        if parcel.qos != QoS::AtMostOnce && !self.has_room(window) {
            return None;
        }
        let parcel = self.queue.pop_front().expect("looked at just now");
        if self.queue.is_empty() {
            self.queue.shrink_to(KEPT_PLACES);
        }
        self.queued_bytes -= parcel.size();
        let is_too_old = parcel.message.received_ms().saturating_add(max_age_ms) <= now_ms;
        if is_too_old || parcel.message.is_expired(now_ms) {
            self.taken += 1;
            return Some(Transmit::Expired { parcel });
        }
        if let Some(narrowing) = &self.narrowing
            && !narrowing.lets_pass(&parcel)
        {
            self.taken += 1;
            return Some(Transmit::Denied { parcel });
        }
        if parcel.qos == QoS::AtMostOnce {
            self.taken += 1;
            return Some(Transmit::Plain { parcel });
        }
        let packet_id = self.send(parcel.clone());
        Some(Transmit::Publish {
            packet_id,
            parcel,
            dup: false,
        })
    }

    /// Ends an exchange whose message the client may not have any more, or goes on with it without the message.
    ///
    /// A QoS 1 exchange ends. A packet id of QoS 2 stays in use until PUBCOMP: a client that has kept it would take the next
    /// message with it for a repetition [MQTT-4.3.3].
    fn withdraw(&mut self, packet_id: u16) -> Transmit {
        let offset = self.offset_of(packet_id).expect("it is in flight");
        let entry = &mut self.ring[offset];
        let parcel = entry.parcel.take().expect("the caller has seen it");
        if entry.qos != QoS::ExactlyOnce {
            self.finish(offset);
            return Transmit::Denied { parcel };
        }
        entry.stage = Stage::Released;
        self.inflight_bytes -= std::mem::take(&mut entry.size) as usize;
        Transmit::Withdrawn { packet_id, parcel }
    }

    pub(crate) fn narrow(&mut self, narrowing: Narrowing) {
        self.narrowing = Some(Box::new(narrowing));
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.resend_from < self.ring.len() || !self.queue.is_empty()
    }

    fn finish(&mut self, offset: usize) -> (u64, Option<Parcel>) {
        let entry = &mut self.ring[offset];
        let seq = entry.seq;
        entry.stage = Stage::Done;
        let released = entry.released.take().map(|parcel| *parcel);
        let parcel = entry.parcel.take().or(released);
        self.inflight_bytes -= std::mem::take(&mut entry.size) as usize;
        self.unacknowledged -= 1;
        if std::mem::take(&mut entry.counts) {
            self.in_window -= 1;
        }
        while self
            .ring
            .front()
            .is_some_and(|front| front.stage == Stage::Done)
        {
            self.ring.pop_front();
            self.first_id = self.id_at(1);
            self.resend_from = self.resend_from.saturating_sub(1);
        }
        if self.ring.is_empty() {
            self.ring.shrink_to(KEPT_PLACES);
        }
        (seq, parcel)
    }

    fn acknowledge(&mut self, offset: usize) -> Acked {
        let (seq, parcel) = self.finish(offset);
        Acked::Done { seq, parcel }
    }

    fn offset_in(&self, packet_id: u16, stage: Stage, qos: Option<QoS>) -> Option<usize> {
        let offset = self.offset_of(packet_id)?;
        let entry = &self.ring[offset];
        let fits = entry.stage == stage && qos.is_none_or(|qos| entry.qos == qos);
        fits.then_some(offset)
    }

    pub(crate) fn puback(&mut self, packet_id: u16) -> Acked {
        match self.offset_in(packet_id, Stage::Published, Some(QoS::AtLeastOnce)) {
            Some(offset) => self.acknowledge(offset),
            None => Acked::Unknown,
        }
    }

    /// `refused`: the client answered with an error, which ends the exchange [MQTT-4.3.3]. `keeps`: PUBCOMP gives the message out once
    /// more.
    pub(crate) fn pubrec(&mut self, packet_id: u16, refused: bool, keeps: bool) -> Acked {
        if let Some(offset) = self.offset_in(packet_id, Stage::Published, Some(QoS::ExactlyOnce)) {
            if refused {
                return self.acknowledge(offset);
            }
            let entry = &mut self.ring[offset];
            entry.stage = Stage::Released;
            let (seq, parcel) = (entry.seq, entry.parcel.take());
            match &parcel {
                Some(parcel) if keeps => entry.released = Some(Box::new(parcel.clone())),
                _ => self.inflight_bytes -= std::mem::take(&mut entry.size) as usize,
            }
            return Acked::Release { seq, parcel };
        }
        // PUBREC once more: its PUBREL is due once more.
        match self.offset_in(packet_id, Stage::Released, None) {
            Some(_) if !refused => Acked::Release {
                seq: 0,
                parcel: None,
            },
            Some(offset) => self.acknowledge(offset),
            None => Acked::Unknown,
        }
    }

    pub(crate) fn pubcomp(&mut self, packet_id: u16) -> Acked {
        match self.offset_in(packet_id, Stage::Released, None) {
            Some(offset) => self.acknowledge(offset),
            None => Acked::Unknown,
        }
    }

    /// The connection is gone: what is in flight will be sent again on the next one.
    pub(crate) fn connection_lost(&mut self) {
        self.resend_from = 0;
        self.in_window = 0;
        for entry in &mut self.ring {
            entry.counts = false;
        }
    }

    /// Ends an exchange whose message was never put on the wire.
    pub(crate) fn forget(&mut self, packet_id: u16) {
        if let Some(offset) = self.offset_of(packet_id) {
            self.finish(offset);
        }
    }

    /// The session becomes durable: `store` writes down a message, with its packet id if it was sent, and numbers it.
    pub(crate) fn adopt(&mut self, mut store: impl FnMut(u16, &Parcel) -> u64) {
        for offset in 0..self.ring.len() {
            let packet_id = self.id_at(offset);
            let entry = &mut self.ring[offset];
            if let Some(parcel) = &mut entry.parcel {
                parcel.seq = store(packet_id, parcel);
                entry.seq = parcel.seq;
            }
        }
        for parcel in &mut self.queue {
            parcel.seq = store(0, parcel);
        }
    }

    /// Everything that is not acknowledged, the queue included; the session is ending.
    pub(crate) fn take_all(&mut self) -> Vec<Parcel> {
        let in_flight = self.ring.drain(..).filter_map(|entry| entry.parcel);
        in_flight.chain(self.queue.drain(..)).collect()
    }

    /// The session has left a shared subscription. What is queued for it goes to the other members, if there are any; what is in
    /// flight is still delivered [MQTT-3.10.4-3]. Nothing keeps the group's id, which may soon be another's.
    pub(crate) fn leave_group(&mut self, group: GroupId, has_others: bool) -> Vec<Parcel> {
        let mut taken = Vec::new();
        if has_others {
            let of_group = |parcel: &mut Parcel| parcel.group == group;
            taken = take_if(&mut self.queue, of_group);
            self.queued_bytes -= taken.iter().map(Parcel::size).sum::<usize>();
        }
        let in_flight = self
            .ring
            .iter_mut()
            .filter_map(|entry| entry.parcel.as_mut());
        for parcel in in_flight.chain(&mut self.queue) {
            if parcel.group == group {
                parcel.group = NO_GROUP;
            }
        }
        taken
    }

    /// Takes out what may go to another member of its shared subscription: QoS 1 messages, sent or not, and queued
    /// QoS 2 messages. A QoS 2 message that was sent stays [MQTT-4.8.2-4, MQTT-4.8.2-5].
    pub(crate) fn take_shared(&mut self, mut may_go: impl FnMut(GroupId) -> bool) -> Vec<Parcel> {
        let mut taken = Vec::new();
        for offset in (0..self.ring.len()).rev() {
            let goes = self.ring[offset].stage == Stage::Published
                && self.ring[offset]
                    .parcel
                    .as_ref()
                    .is_some_and(|parcel| parcel.qos == QoS::AtLeastOnce && may_go(parcel.group));
            if goes {
                taken.extend(self.finish(offset).1);
            }
        }
        taken.reverse();
        let queued = take_if(&mut self.queue, |parcel| may_go(parcel.group));
        self.queued_bytes -= queued.iter().map(Parcel::size).sum::<usize>();
        taken.extend(queued);
        taken
    }
}

/// Takes what fits a condition out of a queue; both parts keep their order.
fn take_if(queue: &mut VecDeque<Parcel>, mut fits: impl FnMut(&mut Parcel) -> bool) -> Vec<Parcel> {
    let mut taken = Vec::new();
    for mut parcel in std::mem::take(queue) {
        if fits(&mut parcel) {
            taken.push(parcel);
        } else {
            queue.push_back(parcel);
        }
    }
    taken
}
