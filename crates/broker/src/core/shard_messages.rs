//! Messages between shards. All messages from one shard to another arrive in the order they were sent. The guarantee
//! that "a message published after the SUBACK arrives" depends on it.

use bytes::Bytes;
use hooks::MessageView;
use std::collections::VecDeque;
use std::sync::Arc;

use super::cross_shard_batch::{CrossShardBatch, GroupMemberTarget, MessageId, NodeTraffic};
use super::origin_node::OriginNode;
use super::remote_interest::RemovedFilters;
use super::tunnel::TunnelRequest;

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
    /// The sender, the node router, no longer wants these filters.
    RouterFiltersRemoved {
        removed: Arc<[RemovedFilters]>,
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
    // Between shards and the node router of a cluster.
    /// A client wants its session (`keep`), or a new one. Answered by `SessionClaimed`.
    ClaimSession {
        client_id: Box<str>,
        keep: bool,
    },
    /// The client has left before its claim was answered. The claim is answered nevertheless.
    WithdrawClaim {
        client_id: Box<str>,
    },
    SessionClaimed {
        client_id: Box<str>,
        outcome: SessionClaimOutcome,
    },
    /// The shard has a session that it did not claim, since this time.
    SessionStarted {
        client_id: Box<str>,
        since_ms: u64,
        /// It gives way to an earlier session of the client.
        is_provisional: bool,
        /// The node that it was adopted from.
        adopted_from: Option<OriginNode>,
    },
    /// The shard has announced all sessions that it had stored.
    SessionsRestored,
    /// To the router: whether the store of this node rejects writes. From it: whether that of any other node does.
    StoreRejects(bool),
    /// A session has ended, or a granted claim has not led to one.
    SessionEnded {
        client_id: Box<str>,
    },
    /// The client has connected to another node: the session ends, except a durable one that the client resumes (`keep`).
    /// `is_conflict`: another node has a session of the client instead, for a reason that was known before.
    EndSession {
        client_id: Box<str>,
        keep: bool,
        is_conflict: bool,
        request: u64,
    },
    /// A client wants the exclusive subscription of a topic. Answered by `ExclusiveClaimed`.
    ClaimExclusive {
        topic: Box<str>,
        client_id: Box<str>,
    },
    ExclusiveClaimed {
        topic: Box<str>,
        client_id: Box<str>,
        outcome: ExclusiveOutcome,
    },
    /// A stored session has an exclusive subscription, since this time.
    ExclusiveRestored {
        topic: Box<str>,
        client_id: Box<str>,
        since_ms: u64,
    },
    /// An exclusive subscription has ended, or a granted claim has not led to one.
    ExclusiveReleased {
        topic: Box<str>,
        client_id: Box<str>,
    },
    /// Another client of the cluster had the exclusive subscription earlier: that of this client ends.
    EndExclusive {
        topic: Box<str>,
        client_id: Box<str>,
    },
    /// Opens a tunnel to the node that has the session of a client.
    OpenTunnel {
        tunnel: u64,
        request: Box<TunnelRequest>,
    },
    /// Input of the client on the way to the router, output on the way back.
    TunnelData {
        tunnel: u64,
        bytes: Bytes,
    },
    /// The receiver's bytes that have been processed.
    TunnelCredit {
        tunnel: u64,
        bytes: u32,
    },
    TunnelClosed {
        tunnel: u64,
    },
    /// The answer to `EndSession`: whether the session stays.
    SessionEndAnswer {
        request: u64,
        kept: bool,
    },
}

/// The answer to the claim of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionClaimOutcome {
    Granted {
        /// The client wanted its earlier session, and some nodes may still register one.
        is_provisional: bool,
    },
    /// Another node has the session and keeps it.
    Elsewhere { node: Box<str> },
    /// The nodes could not find out who has the session.
    Unavailable,
}

/// The answer to the claim of an exclusive subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExclusiveOutcome {
    Granted,
    /// Another client has it.
    Held,
    /// The nodes could not find out whether another client has it.
    Undecided,
}

impl ShardMessage {
    /// Approximate bytes it occupies while it waits.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            ShardMessage::Messages(batch) => batch.size(),
            ShardMessage::FilterInterest { filter, .. } => 64 + filter.len(),
            ShardMessage::RouterFiltersRemoved { removed, .. } => {
                let bytes = removed.iter().map(RemovedFilters::size_bytes);
                64 + bytes.sum::<usize>()
            }
            ShardMessage::GroupMembers { filter, group, .. } => 64 + filter.len() + group.len(),
            ShardMessage::SequenceApplied { .. }
            | ShardMessage::TurnMarker { .. }
            | ShardMessage::TurnLogged { .. }
            | ShardMessage::SessionEndAnswer { .. }
            | ShardMessage::SessionsRestored
            | ShardMessage::StoreRejects(_)
            | ShardMessage::TunnelCredit { .. }
            | ShardMessage::TunnelClosed { .. } => 64,
            ShardMessage::OpenTunnel { request, .. } => 256 + request.connect.len(),
            ShardMessage::TunnelData { bytes, .. } => 64 + bytes.len(),
            ShardMessage::ClaimSession { client_id, .. }
            | ShardMessage::SessionClaimed { client_id, .. }
            | ShardMessage::SessionStarted { client_id, .. }
            | ShardMessage::WithdrawClaim { client_id }
            | ShardMessage::SessionEnded { client_id }
            | ShardMessage::EndSession { client_id, .. } => 64 + client_id.len(),
            ShardMessage::ClaimExclusive { topic, client_id }
            | ShardMessage::ExclusiveClaimed {
                topic, client_id, ..
            }
            | ShardMessage::ExclusiveRestored {
                topic, client_id, ..
            }
            | ShardMessage::ExclusiveReleased { topic, client_id }
            | ShardMessage::EndExclusive { topic, client_id } => 64 + topic.len() + client_id.len(),
        }
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
        id: Option<MessageId>,
    ) {
        self.push_with(shard, |batch| batch.push(view, member, link_seq, id));
    }

    /// Sends the messages of a batch.
    pub(crate) fn send_batch(&mut self, shard: u16, batch: CrossShardBatch) {
        self.waiting_bytes += batch.size();
        self.send(shard, ShardMessage::Messages(batch));
    }

    /// Sends a message that was retained, or whose topic has no retained message any more.
    pub(crate) fn push_retained_copy(&mut self, shard: u16, view: &MessageView<'_>) {
        self.push_with(shard, |batch| batch.push_retained_copy(view));
    }

    /// Sends a message for the sessions that were adopted from a node.
    pub(crate) fn push_for_adopted(&mut self, shard: u16, message: NodeTraffic<'_>, node: &str) {
        self.push_with(shard, |batch| batch.push_for_adopted(message, node));
    }

    /// Sends a message that was published at a node which has failed.
    pub(crate) fn push_published_at(&mut self, shard: u16, message: NodeTraffic<'_>, node: &str) {
        self.push_with(shard, |batch| batch.push_published_at(message, node));
    }

    #[inline]
    pub(super) fn push_with(&mut self, shard: u16, push: impl FnOnce(&mut CrossShardBatch)) {
        let outgoing = &mut self.outgoing[usize::from(shard)];
        if !matches!(outgoing.last(), Some(ShardMessage::Messages(_))) {
            let bytes = self.spare_buffers.pop().unwrap_or_default();
            outgoing.push(ShardMessage::Messages(CrossShardBatch::with_buffer(bytes)));
        }
        let Some(ShardMessage::Messages(batch)) = outgoing.last_mut() else {
            return;
        };
        let before = batch.size();
        push(batch);
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
        self.logged_turn = self.logged_turn.max(turn);
        for (shard, held) in self.held_messages.iter().enumerate() {
            if held
                .front()
                .is_some_and(|&(until, _)| until <= self.logged_turn)
            {
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
