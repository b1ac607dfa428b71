//! The part of a session that outlives its connection: subscriptions, messages in flight both ways, the queue.
//!
//! Messages leave in one order: first what was in flight when a connection was resumed, then the queue, then what
//! arrives. [`Outbound::next`] gives them out one by one as the client's window and the socket allow.

use mqtt::QoS;
use std::collections::VecDeque;
use std::rc::Rc;

use super::message::Message;
use super::sublist::{FilterId, GroupId, NO_GROUP};
use crate::config::QueuePolicy;
use crate::hooks::Permissions;

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
    parcel: Option<Parcel>,
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
    /// It expired in the queue.
    Expired {
        parcel: Parcel,
    },
}

/// What an acknowledgement did.
pub(crate) enum Acked {
    /// No such packet id in that stage.
    Unknown,
    /// The message is done.
    Done(Option<Parcel>),
    /// A PUBREL is due.
    Release(Option<Parcel>),
}

/// What became of a message put into the queue.
pub(crate) enum Queued {
    Kept,
    /// It took the place of older ones.
    Displaced(Vec<Parcel>),
    /// No room, and the policy says the new one goes.
    Refused,
    /// No room, and the policy says the client goes.
    Disconnect,
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
}

const IDS: usize = 65_535;
/// The ring may span this many times the window, and at least `RING_MIN`, while one old message stays unacknowledged.
const RING_SPAN: usize = 4;
const RING_MIN: usize = 1024;

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
        }
    }
}

impl Outbound {
    pub(crate) fn inflight(&self) -> usize {
        usize::from(self.unacknowledged)
    }

    pub(crate) fn queue_len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub(crate) fn oldest_queued_ms(&self) -> Option<u64> {
        self.queue
            .front()
            .map(|parcel| parcel.message.received_ms())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ring.is_empty() && self.queue.is_empty()
    }

    /// Whether a new message may go out at once, ahead of nothing.
    #[inline]
    pub(crate) fn can_send(&self, window: Window) -> bool {
        self.queue.is_empty() && self.resend_from == self.ring.len() && self.has_room(window)
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
        let packet_id = self.id_at(self.ring.len());
        self.inflight_bytes += parcel.size();
        self.ring.push_back(Inflight {
            stage: Stage::Published,
            counts: true,
            parcel: Some(parcel),
        });
        self.unacknowledged += 1;
        self.in_window += 1;
        self.resend_from = self.ring.len();
        packet_id
    }

    /// Puts a message behind all others.
    pub(crate) fn enqueue(&mut self, parcel: Parcel, limits: &QueueLimits) -> Queued {
        let size = parcel.size();
        let fits = |queue_len: usize, bytes: usize| {
            queue_len < limits.max_messages && bytes + size <= limits.max_bytes
        };
        let mut displaced = Vec::new();
        if !fits(self.queue.len(), self.queued_bytes) {
            match limits.policy {
                QueuePolicy::DropNewest => return Queued::Refused,
                QueuePolicy::Disconnect => return Queued::Disconnect,
                QueuePolicy::DropOldest => {
                    while !fits(self.queue.len(), self.queued_bytes) {
                        match self.queue.pop_front() {
                            Some(oldest) => {
                                self.queued_bytes -= oldest.size();
                                displaced.push(oldest);
                            }
                            None => return Queued::Refused,
                        }
                    }
                }
            }
        }
        self.queued_bytes += size;
        self.queue.push_back(parcel);
        if displaced.is_empty() {
            Queued::Kept
        } else {
            Queued::Displaced(displaced)
        }
    }

    /// The next thing to put on the wire, if the window has room for one.
    pub(crate) fn next(&mut self, window: Window, now_ms: u64) -> Option<Transmit> {
        while self.resend_from < self.ring.len() {
            let packet_id = self.id_at(self.resend_from);
            let entry = &mut self.ring[self.resend_from];
            // PUBREL is sent whatever the window [MQTT-3.3.4-10].
            if entry.stage == Stage::Published && self.in_window >= window.messages {
                return None;
            }
            self.resend_from += 1;
            match (entry.stage, &entry.parcel) {
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
        self.queued_bytes -= parcel.size();
        if parcel.message.is_expired(now_ms) {
            return Some(Transmit::Expired { parcel });
        }
        if parcel.qos == QoS::AtMostOnce {
            return Some(Transmit::Plain { parcel });
        }
        let packet_id = self.send(parcel.clone());
        Some(Transmit::Publish {
            packet_id,
            parcel,
            dup: false,
        })
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.resend_from < self.ring.len() || !self.queue.is_empty()
    }

    fn finish(&mut self, offset: usize) -> Option<Parcel> {
        let entry = &mut self.ring[offset];
        entry.stage = Stage::Done;
        let parcel = entry.parcel.take();
        self.inflight_bytes -= parcel.as_ref().map_or(0, Parcel::size);
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
        parcel
    }

    fn offset_in(&self, packet_id: u16, stage: Stage, qos: Option<QoS>) -> Option<usize> {
        let offset = self.offset_of(packet_id)?;
        let entry = &self.ring[offset];
        let fits = entry.stage == stage
            && qos.is_none_or(|qos| entry.parcel.as_ref().is_some_and(|p| p.qos == qos));
        fits.then_some(offset)
    }

    pub(crate) fn puback(&mut self, packet_id: u16) -> Acked {
        match self.offset_in(packet_id, Stage::Published, Some(QoS::AtLeastOnce)) {
            Some(offset) => Acked::Done(self.finish(offset)),
            None => Acked::Unknown,
        }
    }

    /// `refused`: the client answered with an error, which ends the exchange [MQTT-4.3.3].
    pub(crate) fn pubrec(&mut self, packet_id: u16, refused: bool) -> Acked {
        if let Some(offset) = self.offset_in(packet_id, Stage::Published, Some(QoS::ExactlyOnce)) {
            if refused {
                return Acked::Done(self.finish(offset));
            }
            self.ring[offset].stage = Stage::Released;
            let parcel = self.ring[offset].parcel.take();
            self.inflight_bytes -= parcel.as_ref().map_or(0, Parcel::size);
            return Acked::Release(parcel);
        }
        // PUBREC once more: its PUBREL is due once more.
        match self.offset_in(packet_id, Stage::Released, None) {
            Some(_) if !refused => Acked::Release(None),
            Some(offset) => Acked::Done(self.finish(offset)),
            None => Acked::Unknown,
        }
    }

    pub(crate) fn pubcomp(&mut self, packet_id: u16) -> Acked {
        match self.offset_in(packet_id, Stage::Released, None) {
            Some(offset) => Acked::Done(self.finish(offset)),
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
                taken.extend(self.finish(offset));
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

/// Packet ids of QoS 2 messages that came in and are not yet released: 16 pages of 4,096 bits, kept while used.
#[derive(Default)]
pub(crate) struct PacketIdSet {
    pages: [Option<Box<[u64; 64]>>; 16],
    len: u32,
}

impl PacketIdSet {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    fn bit(packet_id: u16) -> (usize, usize, u64) {
        let id = usize::from(packet_id);
        (id >> 12, (id & 0xfff) >> 6, 1 << (id & 63))
    }

    pub(crate) fn contains(&self, packet_id: u16) -> bool {
        let (page, word, bit) = Self::bit(packet_id);
        self.pages[page]
            .as_ref()
            .is_some_and(|page| page[word] & bit != 0)
    }

    /// Returns whether it is new.
    pub(crate) fn insert(&mut self, packet_id: u16) -> bool {
        let (page, word, bit) = Self::bit(packet_id);
        let word = &mut self.pages[page].get_or_insert_with(|| Box::new([0; 64]))[word];
        let is_new = *word & bit == 0;
        *word |= bit;
        self.len += u32::from(is_new);
        is_new
    }

    /// Returns whether it was there.
    pub(crate) fn remove(&mut self, packet_id: u16) -> bool {
        let (page, word, bit) = Self::bit(packet_id);
        let Some(page) = &mut self.pages[page] else {
            return false;
        };
        let was_there = page[word] & bit != 0;
        page[word] &= !bit;
        self.len -= u32::from(was_there);
        was_there
    }
}

/// The will of the current or the last connection.
pub(crate) struct Will {
    pub(crate) message: Message,
    pub(crate) delay_s: u32,
}

/// Key of a timer in the shard's timer table: when, and a number that makes it unique.
pub(crate) type TimerKey = (u64, u64);

pub(crate) struct Session {
    /// Shared with the directory of the node.
    pub(crate) client_id: std::sync::Arc<str>,
    pub(crate) username: Option<Box<str>>,
    /// What its client may do, as it was told when it connected last.
    pub(crate) permissions: Option<std::sync::Arc<dyn Permissions>>,
    /// The connection, if there is one.
    pub(crate) connection: Option<u32>,
    /// Sorted; where in the tree this session stands.
    pub(crate) subscriptions: Vec<(FilterId, GroupId)>,
    pub(crate) outbound: Option<Box<Outbound>>,
    pub(crate) incoming_qos2: Option<Box<PacketIdSet>>,
    pub(crate) will: Option<Box<Will>>,
    pub(crate) expiry_s: u32,
    pub(crate) clean_start: bool,
    /// A bridge of mosquitto before version 5: it wants nothing back that it sent, and retain flags as they were.
    pub(crate) bridge: bool,
    pub(crate) version: mqtt::Version,
    /// Ends the session, or publishes its will, while it is away.
    pub(crate) expiry_timer: Option<TimerKey>,
    pub(crate) will_timer: Option<TimerKey>,
    pub(crate) created_ms: u64,
    pub(crate) connected_ms: u64,
    pub(crate) disconnected_ms: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
}
