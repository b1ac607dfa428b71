//! Messages between shards. All messages from one shard to another arrive in the order they were sent; the guarantee
//! that "a message published after the SUBACK arrives" depends on it.
//!
//! Application messages are written one after the other into a batch, so that crossing costs one allocation per turn
//! and not one per message. Large payloads are passed by reference.

use bytes::Bytes;
use hooks::{MessageView, str_from_utf8};
use mqtt::{Properties, QoS};
use std::collections::VecDeque;

use super::outbox::SHARE_FROM_BYTES;

/// One message from a shard to another.
#[derive(Debug)]
pub(crate) enum ShardMessage {
    Messages(CrossShardBatch),
    /// The sender has, or no longer has, non-shared subscribers to a filter.
    FilterInterest {
        filter: Box<str>,
        wanted: bool,
        sequence: u64,
    },
    /// The number of the sender's members in a group.
    GroupMembers {
        filter: Box<str>,
        group: Box<str>,
        online: u32,
        total: u32,
        sequence: u64,
    },
    /// The sender has applied all announcements of the receiver up to this sequence number.
    SequenceApplied {
        sequence: u64,
    },
    /// Marks the end of a turn: the receiver confirms the messages up to here once they are in its log.
    TurnMarker {
        turn: u64,
    },
    /// The data that resulted from the receiver's messages up to this turn is in the sender's log.
    TurnLogged {
        turn: u64,
    },
}

impl ShardMessage {
    /// Approximate bytes it occupies while it waits.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            ShardMessage::Messages(batch) => batch.size(),
            ShardMessage::FilterInterest { filter, .. } => 64 + filter.len(),
            ShardMessage::GroupMembers { filter, group, .. } => 64 + filter.len() + group.len(),
            ShardMessage::SequenceApplied { .. }
            | ShardMessage::TurnMarker { .. }
            | ShardMessage::TurnLogged { .. } => 64,
        }
    }
}

/// The target of a message for one member of a group on the receiving shard, instead of all its subscribers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupMemberTarget<'a> {
    pub(crate) filter: &'a str,
    pub(crate) group: &'a str,
    pub(crate) nth: u32,
}

/// A message received from another shard.
pub(crate) struct CrossShardMessage<'a> {
    pub(crate) view: MessageView<'a>,
    pub(crate) member: Option<GroupMemberTarget<'a>>,
    /// Its number in the link between the two shards, if it has an entry there.
    pub(crate) link_seq: Option<u64>,
}

/// Messages one after the other: each a header of fixed size, then its texts, properties and small payload.
#[derive(Debug, Default)]
pub(crate) struct CrossShardBatch {
    bytes: Vec<u8>,
    large_payloads: Vec<Bytes>,
    pub(crate) count: u32,
    large_bytes: usize,
}

const RETAIN: u8 = 1 << 2;
const LARGE: u8 = 1 << 3;
const FOR_MEMBER: u8 = 1 << 4;
const LINKED: u8 = 1 << 5;
const DERIVED: u8 = 1 << 6;

/// The header of a message: times of receipt and expiry, then the lengths of the parts, then flags.
const HEAD_BYTES: usize = 8 + 8 + 4 + 4 + 4 + 2 + 2 + 2 + 1;

impl CrossShardBatch {
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.large_bytes
    }

    #[inline]
    pub(crate) fn push(
        &mut self,
        view: &MessageView<'_>,
        member: Option<GroupMemberTarget<'_>>,
        link_seq: Option<u64>,
    ) {
        let large = view.shared_payload.is_some() || view.payload.len() >= SHARE_FROM_BYTES;
        let properties = view.properties.as_bytes();
        let inline = if large { &[][..] } else { view.payload };
        let mut flags = view.qos as u8;
        flags |= if view.retain { RETAIN } else { 0 };
        flags |= if view.is_derived { DERIVED } else { 0 };
        flags |= if large { LARGE } else { 0 };
        flags |= if member.is_some() { FOR_MEMBER } else { 0 };
        flags |= if link_seq.is_some() { LINKED } else { 0 };
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&view.received_ms.to_le_bytes());
        head[8..16].copy_from_slice(&view.expires_ms.to_le_bytes());
        head[16..20].copy_from_slice(&(properties.len() as u32).to_le_bytes());
        head[20..24].copy_from_slice(&(inline.len() as u32).to_le_bytes());
        head[24..28].copy_from_slice(&view.number.to_le_bytes());
        head[28..30].copy_from_slice(&(view.topic.len() as u16).to_le_bytes());
        head[30..32].copy_from_slice(&(view.from_client_id.len() as u16).to_le_bytes());
        head[32..34].copy_from_slice(&(view.from_username.len() as u16).to_le_bytes());
        head[34] = flags;
        let out = &mut self.bytes;
        out.extend_from_slice(&head);
        out.extend_from_slice(view.topic.as_bytes());
        out.extend_from_slice(view.from_client_id.as_bytes());
        out.extend_from_slice(view.from_username.as_bytes());
        out.extend_from_slice(properties);
        out.extend_from_slice(inline);
        if large {
            let shared = view.shared_payload.cloned();
            self.large_payloads
                .push(shared.unwrap_or_else(|| Bytes::copy_from_slice(view.payload)));
            self.large_bytes += view.payload.len();
        }
        if let Some(member) = member {
            for text in [member.filter, member.group] {
                out.extend_from_slice(&(text.len() as u32).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            out.extend_from_slice(&member.nth.to_le_bytes());
        }
        if let Some(seq) = link_seq {
            out.extend_from_slice(&seq.to_le_bytes());
        }
        self.count += 1;
    }

    /// The messages in the order they were pushed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = CrossShardMessage<'_>> {
        let mut reader = BatchReader { rest: &self.bytes };
        let mut large = self.large_payloads.iter();
        (0..self.count).map(move |_| {
            let mut head = BatchReader {
                rest: reader.take(HEAD_BYTES),
            };
            let (received_ms, expires_ms) = (head.u64(), head.u64());
            let (properties_len, inline_len) = (head.u32() as usize, head.u32() as usize);
            let number = head.u32();
            let [topic_len, client_id_len, username_len] = [head.u16(), head.u16(), head.u16()];
            let flags = head.take(1)[0];
            let text = str_from_utf8(reader.take(topic_len + client_id_len + username_len));
            let (topic, from) = text.split_at(topic_len);
            let (from_client_id, from_username) = from.split_at(client_id_len);
            let properties = Properties::from_validated(reader.take(properties_len));
            let inline = reader.take(inline_len);
            let shared_payload = if flags & LARGE != 0 {
                large.next()
            } else {
                None
            };
            let member = (flags & FOR_MEMBER != 0).then(|| GroupMemberTarget {
                filter: str_from_utf8(reader.sized()),
                group: str_from_utf8(reader.sized()),
                nth: reader.u32(),
            });
            let view = MessageView {
                topic,
                properties,
                payload: shared_payload.map_or(inline, |shared| shared),
                shared_payload,
                qos: QoS::try_from(flags & 3).expect("was pushed from a QoS"),
                retain: flags & RETAIN != 0,
                received_ms,
                expires_ms,
                from_client_id,
                from_username,
                is_derived: flags & DERIVED != 0,
                number,
            };
            CrossShardMessage {
                view,
                member,
                link_seq: (flags & LINKED != 0).then(|| reader.u64()),
            }
        })
    }

    /// Returns its memory, for a batch in the other direction: memory allocated by one thread and freed by another is
    /// expensive.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

struct BatchReader<'a> {
    rest: &'a [u8],
}

impl<'a> BatchReader<'a> {
    #[inline]
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    #[inline]
    fn u16(&mut self) -> usize {
        usize::from(u16::from_le_bytes(
            self.take(2).try_into().expect("two bytes were taken"),
        ))
    }

    #[inline]
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes were taken"))
    }

    #[inline]
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes were taken"))
    }

    fn sized(&mut self) -> &'a [u8] {
        let len = self.u32() as usize;
        self.take(len)
    }
}

/// Number of buffers kept for batches, and the largest capacity that is kept.
const SPARE_BUFFERS: usize = 64;
const SPARE_BYTES: usize = 1 << 20;

/// Messages waiting to be sent to the other shards, and what these have confirmed.
///
/// It owns the messages until the owner of the shard takes them with [`take_ready`](Self::take_ready), for each shard
/// with a bit in `waiting_shards`. Messages to one shard leave in the order in which they were added, also those that
/// wait for the log ([`hold_until_logged`](Self::hold_until_logged), [`release_logged`](Self::release_logged)).
///
/// [`broadcast`](Self::broadcast) numbers an announcement; it is applied everywhere when
/// [`is_applied_by_all`](Self::is_applied_by_all) is true for its number, after the caller has passed all confirmations
/// to [`record_applied`](Self::record_applied).
pub(crate) struct ShardMessageQueues {
    this_shard: u16,
    outgoing: Vec<Vec<ShardMessage>>,
    /// Number of the last announcement that has to be confirmed.
    sequence: u64,
    /// The last announcement confirmed by each other shard.
    applied_sequences: Vec<u64>,
    /// Shards with waiting messages, one bit each.
    pub(crate) waiting_shards: u64,
    /// Bytes of messages waiting for all of them.
    pub(crate) waiting_bytes: usize,
    /// For each shard, messages that may leave when a turn is in the log, with that turn.
    held_messages: Vec<VecDeque<(u64, Vec<ShardMessage>)>>,
    /// For each shard, the turn for which its next messages have to wait; 0: none.
    held_until_turn: Vec<u64>,
    logged_turn: u64,
    spare_buffers: Vec<Vec<u8>>,
}

impl ShardMessageQueues {
    pub(crate) fn new(this_shard: u16, shards: u16) -> Self {
        Self {
            this_shard,
            outgoing: (0..shards).map(|_| Vec::new()).collect(),
            sequence: 0,
            applied_sequences: vec![0; usize::from(shards)],
            waiting_shards: 0,
            waiting_bytes: 0,
            held_messages: (0..shards).map(|_| VecDeque::new()).collect(),
            held_until_turn: vec![0; usize::from(shards)],
            logged_turn: 0,
            spare_buffers: Vec::new(),
        }
    }

    pub(crate) fn push_message(
        &mut self,
        shard: u16,
        view: &MessageView<'_>,
        member: Option<GroupMemberTarget<'_>>,
        link_seq: Option<u64>,
    ) {
        let outgoing = &mut self.outgoing[usize::from(shard)];
        if !matches!(outgoing.last(), Some(ShardMessage::Messages(_))) {
            let mut bytes = self.spare_buffers.pop().unwrap_or_default();
            bytes.clear();
            outgoing.push(ShardMessage::Messages(CrossShardBatch {
                bytes,
                ..CrossShardBatch::default()
            }));
        }
        let Some(ShardMessage::Messages(batch)) = outgoing.last_mut() else {
            return;
        };
        let before = batch.size();
        batch.push(view, member, link_seq);
        self.waiting_bytes += batch.size() - before;
        self.waiting_shards |= 1 << shard;
    }

    /// Keeps the memory of a batch that was processed.
    pub(crate) fn recycle_buffer(&mut self, spare: Vec<u8>) {
        if self.spare_buffers.len() < SPARE_BUFFERS && spare.capacity() <= SPARE_BYTES {
            self.spare_buffers.push(spare);
        }
    }

    pub(crate) fn send(&mut self, shard: u16, message: ShardMessage) {
        self.outgoing[usize::from(shard)].push(message);
        self.waiting_shards |= 1 << shard;
    }

    /// Sends a message that has to be confirmed to all other shards; returns its number.
    pub(crate) fn broadcast(&mut self, message: impl Fn(u64) -> ShardMessage) -> u64 {
        self.sequence += 1;
        for shard in 0..self.outgoing.len() as u16 {
            if shard != self.this_shard {
                self.send(shard, message(self.sequence));
            }
        }
        self.sequence
    }

    pub(crate) fn record_applied(&mut self, shard: u16, sequence: u64) {
        let applied = &mut self.applied_sequences[usize::from(shard)];
        *applied = (*applied).max(sequence);
    }

    /// Whether every other shard has confirmed `sequence`.
    pub(crate) fn is_applied_by_all(&self, sequence: u64) -> bool {
        let this_shard = usize::from(self.this_shard);
        self.applied_sequences
            .iter()
            .enumerate()
            .all(|(n, &applied)| n == this_shard || applied >= sequence)
    }

    /// Number of the last message that other shards have to confirm.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether every other shard has confirmed all announcements.
    pub(crate) fn is_all_applied(&self) -> bool {
        self.is_applied_by_all(self.sequence)
    }

    /// Holds the messages sent to these shards (one bit each), and those that follow, until a turn is in the log.
    pub(crate) fn hold_until_logged(&mut self, mut shards: u64, turn: u64) {
        while shards != 0 {
            self.held_until_turn[shards.trailing_zeros() as usize] = turn;
            shards &= shards - 1;
        }
    }

    /// Everything up to a turn is in the log.
    pub(crate) fn release_logged(&mut self, turn: u64) {
        self.logged_turn = turn;
        for (shard, held) in self.held_messages.iter().enumerate() {
            if held.front().is_some_and(|&(until, _)| until <= turn) {
                self.waiting_shards |= 1 << shard;
            }
        }
    }

    /// Takes the messages for a shard that may leave.
    pub(crate) fn take_ready(&mut self, shard: u16) -> Vec<ShardMessage> {
        let messages = self.take_for_shard(shard);
        let until = std::mem::take(&mut self.held_until_turn[usize::from(shard)]);
        let held = &mut self.held_messages[usize::from(shard)];
        if until == 0 && held.is_empty() {
            return messages;
        }
        held.push_back((until, messages));
        let mut ready = Vec::new();
        while held
            .front()
            .is_some_and(|&(until, _)| until <= self.logged_turn)
        {
            ready.extend(
                held.pop_front()
                    .into_iter()
                    .flat_map(|(_, messages)| messages),
            );
        }
        ready
    }

    fn take_for_shard(&mut self, shard: u16) -> Vec<ShardMessage> {
        self.waiting_shards &= !(1 << shard);
        let messages = std::mem::take(&mut self.outgoing[usize::from(shard)]);
        let sizes = messages.iter().map(|message| match message {
            ShardMessage::Messages(batch) => batch.size(),
            _ => 0,
        });
        self.waiting_bytes -= sizes.sum::<usize>();
        messages
    }
}
