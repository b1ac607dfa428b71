//! Which members of the cluster are reachable, and the channels to them.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::channel::{ChannelFailure, ChannelLimits, PeerNodeChannel};
use crate::fabric::MemberChange;
use crate::frame::Frame;
use crate::member::{Member, NodeName};

/// Largest number of other nodes: interest in topics is kept as one bit per node.
pub const MAX_PEER_NODES: usize = 64;
/// Members that have expired and are kept in the list.
const MAX_LOST_MEMBERS: usize = 64;

/// Bounds and times of a cluster. Times are in milliseconds.
#[derive(Debug, Clone)]
pub struct MembershipConfig {
    /// A member that has not renewed its entry and sent no frame for this time is unreachable.
    pub lease_ms: u64,
    pub channel: ChannelLimits,
}

/// A member from [`MembershipEvent::Up`] to [`MembershipEvent::Down`]. It has a small number, which is given to another
/// member only afterwards, and the number of its channel, which is never used again: what was meant for one channel does
/// not get into a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerNodeId {
    index: u8,
    channel: u64,
}

impl PeerNodeId {
    /// The peer with this number and this number of its channel.
    pub fn new(index: u8, channel: u64) -> Self {
        Self { index, channel }
    }

    /// Less than [`MAX_PEER_NODES`].
    pub fn index(self) -> usize {
        usize::from(self.index)
    }

    /// The number of the channel to it.
    pub fn channel(self) -> u64 {
        self.channel
    }
}

/// What has happened in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// A member can be reached. Its messages follow; nothing that was sent before arrives.
    Up {
        peer: PeerNodeId,
        node: NodeName,
        /// The latest version of the messages between nodes that both speak.
        protocol: u32,
    },
    /// A member cannot be reached any more; messages to it that are not answered may be lost.
    Down {
        peer: PeerNodeId,
        node: NodeName,
        reason: DownReason,
    },
    Message {
        peer: PeerNodeId,
        message: Bytes,
    },
    /// Another running node has the name of this one. Neither can be a member reliably.
    NameInUse {
        member: Member,
    },
    /// A member speaks no version of the messages between nodes that this node speaks.
    Incompatible {
        member: Member,
    },
    /// There are more than [`MAX_PEER_NODES`] other members.
    TooManyMembers {
        node: NodeName,
    },
}

/// Why a member is not reachable any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DownReason {
    /// It has left the cluster.
    Left,
    /// It has left the cluster after it had referred its clients to other nodes. It does not start again at once.
    Drained,
    /// Neither its entry nor a frame was seen for [`MembershipConfig::lease_ms`].
    Silent,
    /// It has started again.
    Restarted,
    /// It has given up the channel and opens it again.
    Reopened,
    /// It takes messages so slowly that more than the permitted number of bytes waits.
    TooSlow,
    /// It has sent a message above the permitted size.
    MessageTooLarge,
    /// This node has requested it with [`ClusterMembership::reconnect`].
    Requested,
}

impl DownReason {
    pub fn as_str(self) -> &'static str {
        match self {
            DownReason::Left => "left",
            DownReason::Drained => "drained",
            DownReason::Silent => "silent",
            DownReason::Restarted => "restarted",
            DownReason::Reopened => "reopened",
            DownReason::TooSlow => "too_slow",
            DownReason::MessageTooLarge => "message_too_large",
            DownReason::Requested => "requested",
        }
    }
}

/// What is known of a member, for people.
#[derive(Debug, Clone)]
pub struct PeerNodeInfo {
    pub member: Member,
    pub is_reachable: bool,
    /// Milliseconds since its entry was renewed or a frame of it arrived.
    pub silent_ms: u64,
    pub round_trip_ms: Option<u64>,
    pub queued_bytes: usize,
    pub repeated_frames: u64,
}

struct KnownMember {
    member: Member,
    renewed_ms: u64,
    channel: Option<PeerNodeChannel>,
    /// Present while the channel is open.
    peer: Option<PeerNodeId>,
}

/// The members of the cluster as this node sees them, and its channels to them.
///
/// The owner passes changes of the list of members to [`handle_change`](Self::handle_change), frames to
/// [`handle_frame`](Self::handle_frame) and messages to [`send`](Self::send), and calls [`tick`](Self::tick) at
/// [`next_timeout_ms`](Self::next_timeout_ms). After each call it sends all frames of [`poll_frame`](Self::poll_frame)
/// and handles all events of [`poll_event`](Self::poll_event).
pub struct ClusterMembership {
    local: Member,
    config: MembershipConfig,
    members: BTreeMap<NodeName, KnownMember>,
    /// The member of each peer number in use.
    peers: Vec<Option<(PeerNodeId, NodeName)>>,
    /// The number of the channel that was opened last.
    last_channel: u64,
    events: VecDeque<MembershipEvent>,
    /// Source of the numbers of channel ends.
    random: Box<dyn FnMut() -> u64 + Send>,
    is_list_complete: bool,
    /// Renewals of this node's name by another run.
    foreign_renewals: u32,
    damaged_frames: u64,
}

impl ClusterMembership {
    /// `random` returns unpredictable numbers.
    pub fn new(
        local: Member,
        config: MembershipConfig,
        random: impl FnMut() -> u64 + Send + 'static,
    ) -> Self {
        Self {
            local,
            config,
            members: BTreeMap::new(),
            peers: vec![None; MAX_PEER_NODES],
            last_channel: 0,
            events: VecDeque::new(),
            random: Box::new(random),
            is_list_complete: false,
            foreign_renewals: 0,
            damaged_frames: 0,
        }
    }

    pub fn local(&self) -> &Member {
        &self.local
    }

    /// Whether the list of members was read completely, and each member of it is reachable or silent.
    pub fn is_settled(&self) -> bool {
        self.is_list_complete
            && self
                .members
                .values()
                .all(|known| known.channel.is_none() || known.peer.is_some())
    }

    /// Frames that were received damaged.
    pub fn damaged_frames(&self) -> u64 {
        self.damaged_frames
    }

    pub fn handle_change(&mut self, change: MemberChange, now_ms: u64) {
        match change {
            MemberChange::Complete => self.is_list_complete = true,
            MemberChange::Left(node) => {
                let known = self.members.get(&node);
                let reason = match known.is_some_and(|known| known.member.is_draining) {
                    true => DownReason::Drained,
                    false => DownReason::Left,
                };
                self.close(&node, reason, now_ms, false);
                self.members.remove(&node);
            }
            MemberChange::Expired(node) => {
                // Entries also expire while nobody can renew them, and frames may still arrive.
                let lease_ms = self.config.lease_ms;
                let is_silent = |known: &KnownMember| {
                    known.channel.is_none() || known.silent_ms(now_ms) >= lease_ms
                };
                if self.members.get(&node).is_some_and(is_silent) {
                    // It stays in the list, so that people see that it is missing.
                    self.close(&node, DownReason::Silent, now_ms, false);
                    self.forget_excess_lost_members();
                }
            }
            MemberChange::Renewed(member) if member.node == self.local.node => {
                self.check_own_name(member);
            }
            MemberChange::Renewed(member) => self.renew(member, now_ms),
        }
    }

    /// Forgets those members that were lost first, if there are too many that have expired.
    fn forget_excess_lost_members(&mut self) {
        let is_lost = |known: &KnownMember| known.channel.is_none() && known.peer.is_none();
        let lost = self.members.iter().filter(|(_, known)| is_lost(known));
        if lost.clone().count() > MAX_LOST_MEMBERS
            && let Some((first, _)) = lost.min_by_key(|(_, known)| known.renewed_ms)
        {
            let first = first.clone();
            self.members.remove(&first);
        }
    }

    fn check_own_name(&mut self, member: Member) {
        if member.run_id == self.local.run_id {
            return;
        }
        // The entry of the run before may be seen once.
        self.foreign_renewals += 1;
        if self.foreign_renewals >= 2 {
            self.events.push_back(MembershipEvent::NameInUse { member });
        }
    }

    fn renew(&mut self, member: Member, now_ms: u64) {
        let node = member.node.clone();
        let is_compatible = member.common_protocol(&self.local).is_some();
        let known = self.members.get(&node);
        let is_new_run = known.is_some_and(|known| known.member.run_id != member.run_id);
        if known.is_none_or(|known| known.member.run_id != member.run_id) && !is_compatible {
            let member = member.clone();
            self.events
                .push_back(MembershipEvent::Incompatible { member });
        }
        if is_new_run {
            self.close(&node, DownReason::Restarted, now_ms, false);
        }
        let known = self.members.entry(node).or_insert_with(|| KnownMember {
            member: member.clone(),
            renewed_ms: now_ms,
            channel: None,
            peer: None,
        });
        known.member = member;
        known.renewed_ms = now_ms;
        if known.channel.is_none() && is_compatible {
            let end = (self.random)().max(1);
            known.channel = Some(PeerNodeChannel::new(
                self.local.node.clone(),
                end,
                self.config.channel.clone(),
                now_ms,
            ));
        }
    }

    /// Closes the channel to a member; with `reopen` another one is opened at once.
    fn close(&mut self, node: &NodeName, reason: DownReason, now_ms: u64, reopen: bool) {
        let Some(known) = self.members.get_mut(node) else {
            return;
        };
        known.channel = reopen.then(|| {
            let end = (self.random)().max(1);
            PeerNodeChannel::new(
                self.local.node.clone(),
                end,
                self.config.channel.clone(),
                now_ms,
            )
        });
        if let Some(peer) = known.peer.take() {
            self.peers[peer.index()] = None;
            let node = node.clone();
            self.events
                .push_back(MembershipEvent::Down { peer, node, reason });
        }
    }

    /// Handles a frame that has arrived for this node.
    pub fn handle_frame(&mut self, bytes: &Bytes, now_ms: u64) {
        let Ok(frame) = Frame::decode(bytes) else {
            self.damaged_frames += 1;
            return;
        };
        let node = frame.sender.clone();
        let Some(known) = self.members.get_mut(&node) else {
            // Its entry has not arrived yet; it repeats its frames.
            return;
        };
        let Some(channel) = &mut known.channel else {
            return;
        };
        match channel.handle(&frame, now_ms) {
            Ok(()) => self.after_input(&node),
            Err(failure) => {
                let reason = match failure {
                    ChannelFailure::Reopened => DownReason::Reopened,
                    ChannelFailure::TooMuchQueued => DownReason::TooSlow,
                    ChannelFailure::MessageTooLarge => DownReason::MessageTooLarge,
                };
                self.close(&node, reason, now_ms, true);
                if reason == DownReason::Reopened {
                    self.handle_frame(bytes, now_ms);
                }
            }
        }
    }

    fn after_input(&mut self, node: &NodeName) {
        let Some(known) = self.members.get_mut(node) else {
            return;
        };
        let Some(channel) = &mut known.channel else {
            return;
        };
        if known.peer.is_none() && channel.is_open() {
            let Some(index) = self.peers.iter().position(Option::is_none) else {
                known.channel = None;
                self.events
                    .push_back(MembershipEvent::TooManyMembers { node: node.clone() });
                return;
            };
            self.last_channel += 1;
            let peer = PeerNodeId::new(index as u8, self.last_channel);
            self.peers[index] = Some((peer, node.clone()));
            known.peer = Some(peer);
            // There is a channel only if there is such a version.
            let protocol = known.member.common_protocol(&self.local);
            self.events.push_back(MembershipEvent::Up {
                peer,
                node: node.clone(),
                protocol: protocol.unwrap_or(self.local.oldest_protocol),
            });
        }
        if let Some(peer) = known.peer {
            while let Some(message) = channel.poll_message() {
                self.events
                    .push_back(MembershipEvent::Message { peer, message });
            }
        }
    }

    /// The member that is reachable over the channel of a peer.
    fn node_of(&self, peer: PeerNodeId) -> Option<&NodeName> {
        let (current, node) = self.peers.get(peer.index())?.as_ref()?;
        (*current == peer).then_some(node)
    }

    /// Sends a message to a peer. A peer that is down does not receive it: its owner is told so by an event.
    pub fn send(&mut self, peer: PeerNodeId, message: Bytes, now_ms: u64) {
        let Some(node) = self.node_of(peer).cloned() else {
            return;
        };
        let channel = self
            .members
            .get_mut(&node)
            .and_then(|known| known.channel.as_mut());
        if let Some(channel) = channel
            && channel.send(message).is_err()
        {
            self.close(&node, DownReason::TooSlow, now_ms, true);
        }
    }

    /// Closes the channel to a peer and opens another one.
    pub fn reconnect(&mut self, peer: PeerNodeId, now_ms: u64) {
        if let Some(node) = self.node_of(peer).cloned() {
            self.close(&node, DownReason::Requested, now_ms, true);
        }
    }

    /// Bytes of messages to a peer that wait or are not acknowledged.
    pub fn queued_bytes(&self, peer: PeerNodeId) -> usize {
        let node = self.node_of(peer);
        node.and_then(|node| self.members.get(node))
            .and_then(|known| known.channel.as_ref())
            .map_or(0, PeerNodeChannel::queued_bytes)
    }

    /// Gives up members that are silent.
    pub fn tick(&mut self, now_ms: u64) {
        let lease_ms = self.config.lease_ms;
        let silent: Vec<NodeName> = self
            .members
            .iter()
            .filter(|(_, known)| known.channel.is_some() && known.silent_ms(now_ms) >= lease_ms)
            .map(|(node, _)| node.clone())
            .collect();
        for node in silent {
            self.close(&node, DownReason::Silent, now_ms, false);
        }
    }

    /// The next frame to be sent, with its receiver.
    pub fn poll_frame(&mut self, now_ms: u64) -> Option<(NodeName, Bytes)> {
        self.members.iter_mut().find_map(|(node, known)| {
            let frame = known.channel.as_mut()?.poll_frame(now_ms)?;
            Some((node.clone(), frame))
        })
    }

    pub fn poll_event(&mut self) -> Option<MembershipEvent> {
        self.events.pop_front()
    }

    /// When [`tick`](Self::tick) and [`poll_frame`](Self::poll_frame) are to be called again at the latest.
    pub fn next_timeout_ms(&self) -> u64 {
        let lease_ms = self.config.lease_ms;
        let of_member = |known: &KnownMember| {
            let channel = known.channel.as_ref()?;
            let lease = known.last_seen_ms() + lease_ms;
            Some(lease.min(channel.next_timeout_ms()))
        };
        self.members
            .values()
            .filter_map(of_member)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// All members except this node, also those that cannot be reached.
    pub fn members(&self, now_ms: u64) -> Vec<PeerNodeInfo> {
        let info = |known: &KnownMember| {
            let channel = known.channel.as_ref();
            PeerNodeInfo {
                member: known.member.clone(),
                is_reachable: known.peer.is_some(),
                silent_ms: known.silent_ms(now_ms),
                round_trip_ms: channel.and_then(PeerNodeChannel::round_trip_ms),
                queued_bytes: channel.map_or(0, PeerNodeChannel::queued_bytes),
                repeated_frames: channel.map_or(0, PeerNodeChannel::repeated_frames),
            }
        };
        self.members.values().map(info).collect()
    }

    /// Forgets a member that cannot be reached, after an operator has removed its entry.
    pub fn forget(&mut self, node: &NodeName) {
        if (self.members.get(node)).is_some_and(|known| known.peer.is_none()) {
            self.members.remove(node);
        }
    }
}

impl KnownMember {
    fn last_seen_ms(&self) -> u64 {
        let received = self
            .channel
            .as_ref()
            .map_or(0, |channel| match channel.is_open() {
                true => channel.last_received_ms(),
                false => 0,
            });
        received.max(self.renewed_ms)
    }

    fn silent_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.last_seen_ms())
    }
}
