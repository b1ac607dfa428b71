//! Routes messages between the shards of this node and the other nodes of a cluster.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hooks::MessageView;
use mqtt::QoS;

use super::cross_shard_batch::{CrossShardBatch, GroupMemberTarget};
use super::interest_snapshot::InterestSnapshot;
use super::node::NodeState;
use super::node_batches::{LogRequirement, ReceivedBatches, SentBatches};
use super::node_messages::{self, Announcement, NodeMessage, NodeMessageError};
use super::peer_node::{PeerNode, PeerNodeIx, RemoteNode};
use super::retained_store::RetainedStore;
use super::retained_transfer::RetainedTransfer;
use super::retained_versions::{NODE_TOPICS, RetainedDigests, bucket_of};
use super::session_directory::SessionDirectory;
use super::shard_messages::{ShardMessage, ShardMessageQueues};
use super::shared_subscription::RemoteMembers;
use super::subscription_tree::SubscriptionTree;
use super::tables::TableIx as _;
use super::tunnel::{TunnelMessage, TunnelRequest};
use crate::config::MAX_PEER_NODES;

/// Application messages of one message to another node.
const BATCH_BYTES: usize = 192 << 10;
/// Retained messages that a node lacks, in one turn.
const TRANSFER_BYTES: usize = 8 << 20;
/// Nodes whose received batches are remembered. More than can be known at once, since a node that was given up may return
/// and send batches again.
const MAX_REMEMBERED_NODES: usize = 2 * MAX_PEER_NODES;

/// Counters of what crosses between nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NodeRouterCounts {
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    /// QoS 0 messages to a node or shard that is behind.
    pub(crate) dropped_behind: u64,
    /// Messages for a member of a group that has no member any more.
    pub(crate) dropped_no_member: u64,
}

/// Who got messages above QoS 0, one bit each.
#[derive(Debug, Clone, Copy, Default)]
struct BatchRecipients {
    /// By their slots.
    nodes: u64,
    shards: u64,
}

/// A turn of a shard that waits until others have logged its messages.
struct WaitingTurn {
    turn: u64,
    requirement: LogRequirement,
}

/// Stands for all other nodes towards the shards of this one, and for all shards towards the other nodes.
///
/// To a shard it is one more shard, with the highest number. It announces the filters and group members of all other
/// nodes together. It confirms announcements when all reachable nodes have applied them, and turns when all nodes that
/// received messages of a turn have logged them. Thus a SUBACK waits for all nodes as it waits for all shards, and so
/// does a PUBACK.
///
/// A node that cannot be reached any more is kept for a while, with its filters and the messages above QoS 0 for it. It
/// gets them when it returns. Afterwards, or if it has left the cluster, nothing waits for it any more. Messages for
/// one member of a group then go to other members. Nodes have *slots* therefore, which they keep, besides the index of
/// a peer.
///
/// To the other nodes it announces what any shard wants. What a node receives goes on to its shards only, never to a
/// third node. The exception is a message for a member of a group that has left meanwhile.
///
/// The owner sets the time with [`set_now`](Self::set_now). It passes what shards send to [`handle_shard_messages`](Self::handle_shard_messages), and what nodes send to
/// [`handle_node_message`](Self::handle_node_message). It reports nodes with [`add_peer`](Self::add_peer) and
/// [`remove_peer`](Self::remove_peer). At the end of a turn it calls [`end_turn`](Self::end_turn). Then it sends the
/// messages in `outgoing` to the nodes and those of `queues` to the shards, and handles those in `to_tunnel_exits`.
pub(crate) struct NodeRouter {
    shards: u16,
    /// Whether shards have a log, so that they confirm turns.
    is_durable: bool,
    /// The retained messages of this node.
    retained: Arc<RetainedStore>,
    sessions: SessionDirectory,
    /// Shards whose store rejects writes, one bit each, and whether that of any reachable node does.
    rejecting_shards: u64,
    has_rejecting_node: bool,
    /// Shards that have announced all their stored sessions, one bit each.
    restored_shards: u64,
    /// Shard and peer of each tunnel whose entry is here.
    tunnel_entries: HashMap<u64, (u16, PeerNodeIx), RandomState>,
    /// Messages of other nodes to the exits of their tunnels, which the owner handles.
    pub(crate) to_tunnel_exits: Vec<(PeerNodeIx, u64, TunnelMessage)>,
    /// What the shards of this node want.
    local: SubscriptionTree,
    /// What the other nodes want, by their slots.
    pub(super) remote: SubscriptionTree,
    /// Messages to shards; this router has the number behind the last shard.
    pub(crate) queues: ShardMessageQueues,
    /// Messages to nodes, with their index.
    pub(crate) outgoing: Vec<(PeerNodeIx, Bytes)>,
    peers: Vec<Option<Box<PeerNode>>>,
    /// By their slots.
    nodes: Vec<Option<Box<RemoteNode>>>,
    /// By the names of nodes, also of those that were given up.
    received: HashMap<Box<str>, ReceivedBatches, RandomState>,
    /// The number of the stream for the next node.
    next_stream: u64,
    /// Time for which a node that cannot be reached is kept.
    away_timeout_ms: u64,
    /// Number of the last announcement to the other nodes.
    sequence: u64,
    /// For each shard, its announcements and the number that other nodes have to apply before they are confirmed.
    unconfirmed: Vec<VecDeque<(u64, u64)>>,
    /// For each shard, who got messages of it since its last turn marker.
    touched: Vec<BatchRecipients>,
    waiting_turns: Vec<VecDeque<WaitingTurn>>,
    turn: u64,
    /// The time of the owner's turn.
    now_ms: u64,
    /// The last turn of this router that each shard has logged.
    logged_turns: Vec<u64>,
    /// Peers and shards that are so far behind that they get no QoS 0 messages, one bit each; set by the owner.
    pub(crate) peers_behind: u64,
    pub(crate) shards_behind: u64,
    pub(crate) counts: NodeRouterCounts,
}

impl NodeRouter {
    /// The router of the node `name` with this number of shards. A node that cannot be reached is kept for
    /// `away_timeout_ms`.
    pub(crate) fn new(
        name: &str,
        shards: u16,
        is_durable: bool,
        node: &Arc<NodeState>,
        away_timeout_ms: u64,
    ) -> Self {
        let shard_count = usize::from(shards);
        Self {
            shards,
            is_durable,
            retained: node.retained.clone(),
            sessions: SessionDirectory::new(node.clone(), name, MAX_PEER_NODES),
            rejecting_shards: 0,
            has_rejecting_node: false,
            restored_shards: 0,
            tunnel_entries: HashMap::default(),
            to_tunnel_exits: Vec::new(),
            local: SubscriptionTree::default(),
            remote: SubscriptionTree::default(),
            queues: ShardMessageQueues::new(shards, shards + 1),
            outgoing: Vec::new(),
            peers: (0..MAX_PEER_NODES).map(|_| None).collect(),
            nodes: (0..MAX_PEER_NODES).map(|_| None).collect(),
            received: HashMap::default(),
            // Differs from those of earlier runs of this node.
            next_stream: std::hash::RandomState::new().hash_one(name).max(1),
            away_timeout_ms,
            sequence: 0,
            unconfirmed: (0..shard_count).map(|_| VecDeque::new()).collect(),
            touched: vec![BatchRecipients::default(); shard_count],
            waiting_turns: (0..shard_count).map(|_| VecDeque::new()).collect(),
            turn: 0,
            now_ms: 0,
            logged_turns: vec![0; shard_count],
            peers_behind: 0,
            shards_behind: 0,
            counts: NodeRouterCounts::default(),
        }
    }

    /// Sets the time; the owner calls it before anything else in a turn.
    pub(crate) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Whether everything that the reachable nodes want has arrived and is known to all shards.
    pub(crate) fn is_complete(&self) -> bool {
        self.queues.is_all_applied() && self.peers.iter().flatten().all(|peer| peer.is_complete)
    }

    /// A node has become reachable: sends it everything that this node wants, the sessions that concern it, and the
    /// messages that it has not logged.
    pub(crate) fn add_peer(&mut self, index: PeerNodeIx, name: &str) {
        // What was announced before belongs to the others only.
        self.send_announcements();
        let Some((slot, is_returning)) = self.reserve_slot(index, name) else {
            tracing::error!("there are more other nodes than a node can know; this is a bug");
            return;
        };
        self.peers[index.position()] = Some(Box::new(PeerNode {
            slot,
            unconfirmed: VecDeque::new(),
            is_complete: false,
            snapshot: is_returning.then(Box::default),
            rejects: false,
            retained_transfer: None,
            has_named_stream: false,
            applied: 0,
            announcements: Vec::new(),
            announced: self.sequence,
        }));
        if self.rejecting_shards != 0 {
            let state = node_messages::encode_store_state(true);
            self.outgoing.push((index, state));
        }
        self.send_unlogged_batches(index, slot);
        self.send_all_announcements(index);
        if let Some(digests) = self.retained.digests() {
            let digests = node_messages::encode_retained_digests(&digests);
            self.outgoing.push((index, digests));
        }
        self.sessions.add_peer(index, name, self.now_ms);
    }

    /// The slot of a node, and whether the node had it already. A node that cannot be reached gives way if all are used.
    fn reserve_slot(&mut self, peer: PeerNodeIx, name: &str) -> Option<(u8, bool)> {
        let nodes = || self.nodes.iter().enumerate();
        let is_named = |node: &RemoteNode| *node.name == *name;
        let known = nodes().find(|(_, node)| node.as_deref().is_some_and(is_named));
        if let Some((slot, _)) = known {
            if let Some(node) = &mut self.nodes[slot] {
                node.peer = Some(peer);
            }
            return Some((slot as u8, true));
        }
        let lost_ms = |node: &Option<Box<RemoteNode>>| match node {
            None => Some(0),
            Some(node) => node.peer.is_none().then_some(node.lost_ms),
        };
        let free = nodes().filter_map(|(slot, node)| Some((lost_ms(node)?, slot)));
        let (_, slot) = free.min()?;
        self.give_up(slot as u8);
        self.nodes[slot] = Some(Box::new(RemoteNode {
            name: name.into(),
            peer: Some(peer),
            lost_ms: 0,
            batch: CrossShardBatch::default(),
            confirm: false,
            sent: SentBatches::new(self.next_stream),
        }));
        self.next_stream = self.next_stream.wrapping_add(1).max(1);
        Some((slot as u8, false))
    }

    fn send_unlogged_batches(&mut self, index: PeerNodeIx, slot: u8) {
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        let stream = node_messages::encode_stream(node.sent.stream());
        self.outgoing.push((index, stream));
        for message in node.sent.unlogged() {
            let again = node_messages::encode_batch_again(message, self.now_ms);
            self.outgoing.push((index, again));
        }
    }

    fn send_all_announcements(&mut self, index: PeerNodeIx) {
        let mut announcements = Vec::new();
        for (_, filter) in self.local.filters.iter() {
            if filter.remote_shards != 0 && !filter.text.starts_with(NODE_TOPICS) {
                announcements.push(Announcement::Filter {
                    filter: (&*filter.text).into(),
                    wanted: true,
                });
            }
            for &group in &filter.groups {
                announcements.push(self.members_announcement(group));
            }
        }
        let outgoing = &mut self.outgoing;
        let send = |message| outgoing.push((index, message));
        node_messages::encode_announcements(&announcements, 0, 0, send);
        let complete = node_messages::encode_complete(self.sequence);
        self.outgoing.push((index, complete));
    }

    /// Lets time pass. It has to be called every 100 ms while it returns true.
    pub(crate) fn tick(&mut self) -> bool {
        self.sessions.tick(self.now_ms);
        let mut has_lost_nodes = false;
        for slot in 0..self.nodes.len() {
            let Some(node) = &self.nodes[slot] else {
                continue;
            };
            if node.peer.is_some() {
                continue;
            }
            match self.now_ms >= node.lost_ms + self.away_timeout_ms {
                true => self.give_up(slot as u8),
                false => has_lost_nodes = true,
            }
        }
        let mut peers = self.peers.iter().flatten();
        let has_transfers = peers.any(|peer| peer.retained_transfer.is_some());
        has_lost_nodes || has_transfers || self.sessions.needs_tick()
    }

    /// A node cannot be reached any more. `has_left`: it has left the cluster in order.
    pub(crate) fn remove_peer(&mut self, index: PeerNodeIx, has_left: bool) {
        self.sessions.remove_peer(index, self.now_ms);
        self.to_tunnel_exits.retain(|&(from, ..)| from != index);
        let queues = &mut self.queues;
        self.tunnel_entries.retain(|&tunnel, &mut (shard, peer)| {
            if peer == index {
                queues.send(shard, ShardMessage::TunnelClosed { tunnel });
            }
            peer != index
        });
        self.outgoing.retain(|&(to, _)| to != index);
        let Some(peer) = self.peers[index.position()].take() else {
            return;
        };
        if let Some(node) = &mut self.nodes[usize::from(peer.slot)] {
            node.peer = None;
            node.lost_ms = self.now_ms;
        }
        match has_left || self.away_timeout_ms == 0 {
            true => self.give_up(peer.slot),
            false => self.set_members_offline(peer.slot),
        }
        self.announce_store_states();
        self.confirm_announcements();
        self.confirm_turns();
    }

    /// The store of a shard rejects writes, or does so no longer.
    fn set_store_rejects(&mut self, shard: u16, rejects: bool) {
        let before = self.rejecting_shards != 0;
        match rejects {
            true => self.rejecting_shards |= 1 << shard,
            false => self.rejecting_shards &= !(1 << shard),
        }
        let rejects = self.rejecting_shards != 0;
        if rejects == before {
            return;
        }
        let peers = self.peers.iter().enumerate();
        for (position, _) in peers.filter(|(_, peer)| peer.is_some()) {
            let state = node_messages::encode_store_state(rejects);
            let to = PeerNodeIx::from_position(position);
            self.outgoing.push((to, state));
        }
    }

    /// Tells the shards whether the store of any node rejects writes.
    fn announce_store_states(&mut self) {
        let rejects = self.peers.iter().flatten().any(|peer| peer.rejects);
        if std::mem::replace(&mut self.has_rejecting_node, rejects) != rejects {
            for shard in 0..self.shards {
                self.queues.send(shard, ShardMessage::StoreRejects(rejects));
            }
        }
    }

    /// Forgets what a node wants. Nothing waits for it any more, and messages for one member of a group go to others.
    fn give_up(&mut self, slot: u8) {
        let Some(mut node) = self.nodes[usize::from(slot)].take() else {
            return;
        };
        self.remove_interest(slot, &InterestSnapshot::default());
        let mut touched = BatchRecipients::default();
        let unlogged = node.sent.unlogged();
        let unlogged = unlogged.filter_map(|message| node_messages::decode_own_batch(message));
        let open = std::mem::take(&mut node.batch);
        for batch in unlogged.chain([open]) {
            for crossing in batch.iter() {
                if let Some(member) = &crossing.member {
                    self.send_to_member(&crossing.view, member, &mut touched);
                }
            }
        }
        let requirement = self.require(touched);
        for waiting in self.waiting_turns.iter_mut().flatten() {
            waiting.requirement.replace_node(slot, &requirement);
        }
        for received in self.received.values_mut() {
            for waiting in received.requirements() {
                waiting.replace_node(slot, &requirement);
            }
        }
        for of_shard in &mut self.touched {
            if of_shard.nodes & 1 << slot != 0 {
                of_shard.nodes = of_shard.nodes & !(1 << slot) | touched.nodes;
                of_shard.shards |= touched.shards;
            }
        }
    }

    /// What has to be logged before the messages that were sent to `touched` count as logged.
    fn require(&mut self, touched: BatchRecipients) -> LogRequirement {
        let mut requirement = LogRequirement::default();
        let mut nodes = touched.nodes;
        while nodes != 0 {
            let slot = nodes.trailing_zeros() as u8;
            nodes &= nodes - 1;
            if let Some(node) = &self.nodes[usize::from(slot)] {
                // Only batches with messages above QoS 0 are confirmed.
                let number = node.sent.last() + u64::from(node.confirm);
                requirement.batches.push((slot, number));
            }
        }
        if self.is_durable && touched.shards != 0 {
            self.turn += 1;
            let turn = self.turn;
            let mut shards = touched.shards;
            while shards != 0 {
                let shard = shards.trailing_zeros() as u16;
                shards &= shards - 1;
                self.queues.send(shard, ShardMessage::TurnMarker { turn });
            }
            requirement.turns.push((touched.shards, turn));
        }
        requirement
    }

    /// Bytes of messages for a node that it has not logged; the largest number of all nodes.
    pub(crate) fn unlogged_bytes(&self) -> usize {
        let nodes = self.nodes.iter().flatten();
        nodes
            .map(|node| node.sent.unlogged_bytes())
            .max()
            .unwrap_or(0)
    }

    /// Handles messages of a shard.
    pub(crate) fn handle_shard_messages(&mut self, from: u16, messages: Vec<ShardMessage>) {
        for message in messages {
            match message {
                ShardMessage::Messages(batch) => {
                    let mut touched = self.touched[usize::from(from)];
                    for crossing in batch.iter() {
                        let view = &crossing.view;
                        match &crossing.member {
                            _ if crossing.is_retained_copy => {
                                self.copy_to_nodes(view, &mut touched);
                            }
                            None => self.send_to_nodes(view, &mut touched),
                            Some(member) => self.send_to_member(view, member, &mut touched),
                        }
                    }
                    self.touched[usize::from(from)] = touched;
                    self.queues.recycle_buffer(batch.into_buffer());
                }
                ShardMessage::FilterInterest {
                    filter,
                    wanted,
                    sequence,
                } => {
                    let required = self.set_local_filter(from, &filter, wanted);
                    self.unconfirmed[usize::from(from)].push_back((sequence, required));
                }
                ShardMessage::GroupMembers {
                    filter,
                    group,
                    online,
                    total,
                    sequence,
                } => {
                    let members = RemoteMembers {
                        shard: from,
                        online,
                        total,
                    };
                    let required = self.set_local_members(&filter, &group, members);
                    self.unconfirmed[usize::from(from)].push_back((sequence, required));
                }
                ShardMessage::SequenceApplied { sequence } => {
                    self.queues.record_applied(from, sequence);
                }
                ShardMessage::TurnMarker { turn } => self.record_turn_marker(from, turn),
                ShardMessage::TurnLogged { turn } => {
                    self.logged_turns[usize::from(from)] = turn;
                }
                ShardMessage::ClaimSession { client_id, keep } => {
                    self.sessions.claim(from, client_id, keep);
                }
                ShardMessage::SessionStarted {
                    client_id,
                    since_ms,
                } => self.sessions.add_session(&client_id, since_ms),
                ShardMessage::StoreRejects(rejects) => self.set_store_rejects(from, rejects),
                ShardMessage::SessionsRestored => {
                    self.restored_shards |= 1 << from;
                    if self.restored_shards.count_ones() == u32::from(self.shards) {
                        self.sessions.finish_restore();
                    }
                }
                ShardMessage::SessionEnded { client_id } => {
                    self.sessions.remove_session(&client_id);
                }
                ShardMessage::SessionEndAnswer { request, kept } => {
                    self.sessions.handle_session_end(request, kept);
                }
                ShardMessage::OpenTunnel { tunnel, request } => {
                    self.open_tunnel(from, tunnel, request);
                }
                ShardMessage::TunnelData { tunnel, bytes } => {
                    self.send_from_entry(tunnel, &TunnelMessage::Input(bytes));
                }
                ShardMessage::TunnelCredit { tunnel, bytes } => {
                    self.send_from_entry(tunnel, &TunnelMessage::OutputCredit(bytes));
                }
                ShardMessage::TunnelClosed { tunnel } => {
                    self.send_from_entry(tunnel, &TunnelMessage::EntryClosed);
                    self.tunnel_entries.remove(&tunnel);
                }
                // Only a router sends these.
                ShardMessage::SessionClaimed { .. } | ShardMessage::EndSession { .. } => {}
            }
        }
    }

    /// Handles a message of a node. After an error the nodes no longer agree; the owner has to give up the node and reach
    /// it again.
    pub(crate) fn handle_node_message(
        &mut self,
        from: PeerNodeIx,
        message: &[u8],
    ) -> Result<(), NodeMessageError> {
        let now_ms = self.now_ms;
        let Some(peer) = &mut self.peers[from.position()] else {
            return Ok(());
        };
        let slot = peer.slot;
        match node_messages::decode(message, now_ms)? {
            NodeMessage::Announcements {
                sequence,
                announcements,
            } => {
                if let Some(snapshot) = &mut peer.snapshot {
                    snapshot.record(&announcements);
                }
                for announcement in announcements {
                    self.apply_announcement(slot, &announcement);
                }
                self.confirm_later(from, sequence);
            }
            NodeMessage::Complete { sequence } => {
                peer.is_complete = true;
                if let Some(snapshot) = peer.snapshot.take() {
                    self.remove_interest(slot, &snapshot);
                }
                self.confirm_later(from, sequence);
            }
            NodeMessage::Applied { sequence } => peer.applied = peer.applied.max(sequence),
            NodeMessage::StoreState { rejects } => {
                peer.rejects = rejects;
                self.announce_store_states();
            }
            NodeMessage::Stream { number } => {
                peer.has_named_stream = true;
                self.begin_stream(from, slot, number);
            }
            NodeMessage::Batch {
                number,
                confirm,
                batch,
            } => self.handle_batch(slot, number, confirm, &batch),
            NodeMessage::RetainedDigests(theirs) => self.begin_retained_transfer(from, &theirs),
            NodeMessage::Sessions(messages) => {
                for message in messages {
                    self.sessions.handle(from, message, now_ms);
                }
            }
            NodeMessage::Tunnel { tunnel, message } => {
                self.handle_tunnel_message(from, tunnel, message);
            }
            NodeMessage::Logged { number } => {
                if let Some(node) = &mut self.nodes[usize::from(slot)] {
                    node.sent.record_logged(number);
                }
            }
        }
        Ok(())
    }

    /// The announcements of a node up to `sequence` are confirmed when all shards have applied what results from them.
    fn confirm_later(&mut self, from: PeerNodeIx, sequence: u64) {
        let own = self.queues.last_sequence();
        if let Some(peer) = &mut self.peers[from.position()] {
            peer.unconfirmed.push_back((sequence, own));
        }
    }

    /// Ends a turn: completes the messages to all nodes and confirms what can be confirmed.
    pub(crate) fn end_turn(&mut self) {
        self.send_announcements();
        self.send_session_messages();
        self.continue_retained_transfers();
        for slot in 0..self.nodes.len() {
            self.send_batch(slot as u8);
        }
        self.confirm_announcements();
        self.confirm_turns();
        self.confirm_to_peers();
    }

    // Connections of clients whose session is on another node.

    fn open_tunnel(&mut self, shard: u16, tunnel: u64, request: Box<TunnelRequest>) {
        match self.sessions.peer_with_name(&request.node) {
            Some(peer) => {
                self.tunnel_entries.insert(tunnel, (shard, peer));
                self.send_from_entry(tunnel, &TunnelMessage::Open(request));
            }
            None => {
                let closed = ShardMessage::TunnelClosed { tunnel };
                self.queues.send(shard, closed);
            }
        }
    }

    fn send_from_entry(&mut self, tunnel: u64, message: &TunnelMessage) {
        if let Some(&(_, peer)) = self.tunnel_entries.get(&tunnel) {
            let message = node_messages::encode_tunnel(tunnel, message);
            self.outgoing.push((peer, message));
        }
    }

    fn handle_tunnel_message(&mut self, from: PeerNodeIx, tunnel: u64, message: TunnelMessage) {
        let message = match message {
            TunnelMessage::Output(bytes) => ShardMessage::TunnelData { tunnel, bytes },
            TunnelMessage::InputCredit(bytes) => ShardMessage::TunnelCredit { tunnel, bytes },
            TunnelMessage::ExitClosed => ShardMessage::TunnelClosed { tunnel },
            of_entry => {
                self.to_tunnel_exits.push((from, tunnel, of_entry));
                return;
            }
        };
        let entry = self.tunnel_entries.get(&tunnel).copied();
        let Some((shard, _)) = entry.filter(|&(_, peer)| peer == from) else {
            return;
        };
        if matches!(message, ShardMessage::TunnelClosed { .. }) {
            self.tunnel_entries.remove(&tunnel);
        }
        self.queues.send(shard, message);
    }

    // What shards want.

    /// A shard wants a filter, or wants it no longer. Returns the announcement that the other nodes have to apply first.
    fn set_local_filter(&mut self, shard: u16, text: &str, wanted: bool) -> u64 {
        let id = match wanted {
            true => self.local.find_or_insert(text),
            false => match self.local.find(text) {
                Some(id) => id,
                None => return 0,
            },
        };
        let was_wanted = self.local.filter(id).remote_shards != 0;
        self.local.set_remote(id, shard, wanted);
        let is_wanted = self.local.filter(id).remote_shards != 0;
        if was_wanted != is_wanted && !text.starts_with(NODE_TOPICS) {
            let sequence = self.announce(&Announcement::Filter {
                filter: text.into(),
                wanted: is_wanted,
            });
            self.local.filter_mut(id).announced_sequence = sequence;
        }
        let required = self.local.filter(id).announced_sequence;
        self.local.remove_if_unused(id);
        if wanted { required } else { 0 }
    }

    fn set_local_members(&mut self, filter: &str, name: &str, members: RemoteMembers) -> u64 {
        let filter = self.local.find_or_insert(filter);
        let group = self.local.find_or_insert_group(filter, name);
        self.local.group_mut(group).set_remote(members);
        let announcement = self.members_announcement(group);
        let sequence = self.announce(&announcement);
        self.local.remove_group_if_unused(group);
        sequence
    }

    fn members_announcement(&self, group: super::tables::GroupId) -> Announcement {
        let group = self.local.group(group);
        let sum = |count: fn(&RemoteMembers) -> u32| group.remote().iter().map(count).sum();
        Announcement::Members {
            filter: (&*self.local.filter(group.filter).text).into(),
            group: (&*group.name).into(),
            online: sum(|members| members.online),
            total: sum(|members| members.total),
        }
    }

    fn announce(&mut self, announcement: &Announcement) -> u64 {
        self.sequence += 1;
        for peer in self.peers.iter_mut().flatten() {
            peer.announcements.push(announcement.clone());
        }
        self.sequence
    }

    fn send_announcements(&mut self) {
        let sequence = self.sequence;
        for (position, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let to = PeerNodeIx::from_position(position);
            if peer.announcements.is_empty() {
                continue;
            }
            let outgoing = &mut self.outgoing;
            let send = |message| outgoing.push((to, message));
            node_messages::encode_announcements(
                &peer.announcements,
                peer.announced,
                sequence,
                send,
            );
            peer.announcements.clear();
            peer.announced = sequence;
        }
    }

    fn send_session_messages(&mut self) {
        for (shard, message) in self.sessions.to_shards.drain(..) {
            self.queues.send(shard, message);
        }
        let mut messages = std::mem::take(&mut self.sessions.to_peers);
        // Stable: the messages to one node keep their order.
        messages.sort_by_key(|&(peer, _)| peer);
        let mut messages = messages.into_iter().peekable();
        while let Some((peer, first)) = messages.next() {
            let mut of_peer = vec![first];
            while let Some((_, message)) = messages.next_if(|&(to, _)| to == peer) {
                of_peer.push(message);
            }
            let outgoing = &mut self.outgoing;
            node_messages::encode_sessions(&of_peer, |message| outgoing.push((peer, message)));
        }
    }

    /// Confirms the announcements of shards that all reachable nodes have applied.
    fn confirm_announcements(&mut self) {
        let applied = (self.peers.iter().flatten())
            .map(|peer| peer.applied)
            .min()
            .unwrap_or(u64::MAX);
        for (shard, unconfirmed) in self.unconfirmed.iter_mut().enumerate() {
            let mut confirmed = 0;
            while let Some((sequence, _)) =
                unconfirmed.pop_front_if(|&mut (_, required)| required <= applied)
            {
                confirmed = sequence;
            }
            if confirmed > 0 {
                let message = ShardMessage::SequenceApplied {
                    sequence: confirmed,
                };
                self.queues.send(shard as u16, message);
            }
        }
    }

    /// Confirms the announcements of nodes that all shards have applied, and batches that shards have logged.
    fn confirm_to_peers(&mut self) {
        for (position, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let to = PeerNodeIx::from_position(position);
            let mut applied = None;
            while let Some((sequence, _)) = peer
                .unconfirmed
                .pop_front_if(|&mut (_, own)| self.queues.is_applied_by_all(own))
            {
                applied = Some(sequence);
            }
            if let Some(sequence) = applied {
                let message = node_messages::encode_applied(sequence);
                self.outgoing.push((to, message));
            }
            let node = self.nodes[usize::from(peer.slot)].as_ref();
            let received = node.and_then(|node| self.received.get_mut(&node.name));
            if let Some(received) = received.filter(|_| peer.has_named_stream)
                && let Some(number) = received
                    .poll_logged(|requirement| is_met(requirement, &self.nodes, &self.logged_turns))
            {
                let message = node_messages::encode_logged(number);
                self.outgoing.push((to, message));
            }
        }
    }

    // Messages of shards to other nodes.

    fn send_to_nodes(&mut self, view: &MessageView<'_>, touched: &mut BatchRecipients) {
        let mut nodes = self.remote.match_topic(view.topic).0.remote_shards;
        while nodes != 0 {
            let slot = nodes.trailing_zeros() as u8;
            nodes &= nodes - 1;
            self.push_to_node(slot, view, None, touched);
        }
    }

    /// Sends a message to the n-th of the members that other nodes have, or to one of this node if they have left.
    fn send_to_member(
        &mut self,
        view: &MessageView<'_>,
        member: &GroupMemberTarget<'_>,
        touched: &mut BatchRecipients,
    ) {
        match choose_place(&self.remote, member) {
            Some((slot, nth)) => {
                let target = GroupMemberTarget { nth, ..*member };
                self.push_to_node(slot as u8, view, Some(target), touched);
            }
            None if self.push_to_local_member(view, member, touched) => {}
            None => self.counts.dropped_no_member += 1,
        }
    }

    /// Sends a retained message to all nodes that can be reached; the others compare theirs when they return.
    fn copy_to_nodes(&mut self, view: &MessageView<'_>, touched: &mut BatchRecipients) {
        for slot in 0..self.nodes.len() as u8 {
            let node = self.nodes[usize::from(slot)].as_mut();
            let Some(node) = node.filter(|node| node.peer.is_some()) else {
                continue;
            };
            node.batch.push_retained_copy(view);
            if view.qos != QoS::AtMostOnce {
                node.confirm = true;
                touched.nodes |= 1 << slot;
            }
            if node.batch.size() >= BATCH_BYTES {
                self.send_batch(slot);
            }
        }
    }

    /// Begins to send the retained messages of the buckets in which a node has others.
    fn begin_retained_transfer(&mut self, from: PeerNodeIx, theirs: &RetainedDigests) {
        if let (Some(own), Some(peer)) = (self.retained.digests(), &mut self.peers[from.position()])
        {
            let transfer = RetainedTransfer::new(&own, theirs);
            peer.retained_transfer = Some(Box::new(transfer));
        }
    }

    /// Sends some of the retained messages that nodes lack. A node that is behind gets none now.
    fn continue_retained_transfers(&mut self) {
        let retained = self.retained.clone();
        for index in 0..self.peers.len() {
            if self.peers_behind & 1 << index != 0 {
                continue;
            }
            let Some(peer) = &mut self.peers[index] else {
                continue;
            };
            let slot = peer.slot;
            let Some(mut transfer) = peer.retained_transfer.take() else {
                continue;
            };
            let has_more = transfer.send_some(&retained, TRANSFER_BYTES, |view| {
                self.push_retained_copy(slot, view)
            });
            if let Some(peer) = self.peers[index].as_mut().filter(|_| has_more) {
                peer.retained_transfer = Some(transfer);
            }
        }
    }

    /// Returns the bytes that the message occupies.
    fn push_retained_copy(&mut self, slot: u8, view: &MessageView<'_>) -> usize {
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return 0;
        };
        let before = node.batch.size();
        node.batch.push_retained_copy(view);
        let size = node.batch.size();
        if size >= BATCH_BYTES {
            self.send_batch(slot);
        }
        size - before
    }

    fn push_to_node(
        &mut self,
        slot: u8,
        view: &MessageView<'_>,
        member: Option<GroupMemberTarget<'_>>,
        touched: &mut BatchRecipients,
    ) {
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return;
        };
        let is_behind = |peer: PeerNodeIx| self.peers_behind & peer.bit() != 0;
        if view.qos == QoS::AtMostOnce && node.peer.is_none_or(is_behind) {
            self.counts.dropped_behind += 1;
            return;
        }
        node.batch.push(view, member, None);
        if view.qos != QoS::AtMostOnce {
            node.confirm = true;
            touched.nodes |= 1 << slot;
        }
        self.counts.messages_sent += 1;
        if node.batch.size() >= BATCH_BYTES {
            self.send_batch(slot);
        }
    }

    /// Completes the batch for a node. It waits for the node if that cannot be reached.
    fn send_batch(&mut self, slot: u8) {
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return;
        };
        if node.batch.count == 0 {
            return;
        }
        let confirm = std::mem::take(&mut node.confirm);
        let number = node.sent.last() + u64::from(confirm);
        let message = node_messages::encode_batch(number, confirm, self.now_ms, &mut node.batch);
        if confirm {
            node.sent.push(message.clone());
        }
        if let Some(peer) = node.peer {
            self.outgoing.push((peer, message));
        }
    }

    /// A shard has closed a turn: it is confirmed when all that got messages of it have logged them.
    fn record_turn_marker(&mut self, shard: u16, turn: u64) {
        let touched = std::mem::take(&mut self.touched[usize::from(shard)]);
        let requirement = self.require(touched);
        self.waiting_turns[usize::from(shard)].push_back(WaitingTurn { turn, requirement });
    }

    fn confirm_turns(&mut self) {
        for (shard, waiting) in self.waiting_turns.iter_mut().enumerate() {
            let mut complete = None;
            while let Some(waiting) = waiting.pop_front_if(|waiting| {
                is_met(&waiting.requirement, &self.nodes, &self.logged_turns)
            }) {
                complete = Some(waiting.turn);
            }
            if let Some(turn) = complete {
                let message = ShardMessage::TurnLogged { turn };
                self.queues.send(shard as u16, message);
            }
        }
    }

    // Messages of other nodes to shards.

    /// The batches of a node that follow belong to a stream.
    fn begin_stream(&mut self, from: PeerNodeIx, slot: u8, stream: u64) {
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        if self.received.len() >= MAX_REMEMBERED_NODES && !self.received.contains_key(&node.name) {
            let is_known = |name: &str| self.nodes.iter().flatten().any(|node| *node.name == *name);
            let unknown = self.received.keys().find(|name| !is_known(name)).cloned();
            if let Some(unknown) = unknown {
                self.received.remove(&unknown);
            }
        }
        let received = self.received.entry(node.name.clone()).or_default();
        if let Some(logged) = received.begin(stream) {
            // The confirmation may have been lost.
            self.outgoing
                .push((from, node_messages::encode_logged(logged)));
        }
    }

    /// Passes the messages of another node to shards.
    fn handle_batch(&mut self, slot: u8, number: u64, confirm: bool, batch: &CrossShardBatch) {
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        let is_new = |received: &mut ReceivedBatches| received.receive(number);
        if confirm && !self.received.get_mut(&node.name).is_none_or(is_new) {
            return;
        }
        let mut touched = BatchRecipients::default();
        for crossing in batch.iter() {
            let view = &crossing.view;
            self.counts.messages_received += 1;
            match &crossing.member {
                _ if crossing.is_retained_copy => {
                    // One shard for each topic, so that the log has the versions of a topic in their order.
                    let shard = (bucket_of(view.topic) % usize::from(self.shards)) as u16;
                    self.queues.push_retained_copy(shard, view);
                    if view.qos != QoS::AtMostOnce {
                        touched.shards |= 1 << shard;
                    }
                }
                None => {
                    let shards = self.local.match_topic(view.topic).0.remote_shards;
                    let passed = self.push_to_shards(shards, view);
                    if view.qos != QoS::AtMostOnce {
                        touched.shards |= passed;
                    }
                }
                Some(member) => {
                    if !self.push_to_local_member(view, member, &mut touched) {
                        // The members of this node have left meanwhile.
                        self.send_to_member(view, member, &mut touched);
                    }
                }
            }
        }
        if !confirm {
            return;
        }
        let requirement = self.require(touched);
        let node = self.nodes[usize::from(slot)].as_ref();
        if let Some(received) = node.and_then(|node| self.received.get_mut(&node.name)) {
            received.confirm_when(number, requirement);
        }
    }

    /// Passes a message to shards; returns those that got it.
    fn push_to_shards(&mut self, shards: u64, view: &MessageView<'_>) -> u64 {
        let mut rest = shards;
        if view.qos == QoS::AtMostOnce && rest & self.shards_behind != 0 {
            rest &= !self.shards_behind;
            self.counts.dropped_behind += 1;
        }
        let passed = rest;
        while rest != 0 {
            let shard = rest.trailing_zeros() as u16;
            rest &= rest - 1;
            self.queues.push_message(shard, view, None, None);
        }
        passed
    }

    /// Passes a message to the n-th of the members that this node has; returns false if there is none.
    fn push_to_local_member(
        &mut self,
        view: &MessageView<'_>,
        member: &GroupMemberTarget<'_>,
        touched: &mut BatchRecipients,
    ) -> bool {
        let Some((shard, nth)) = choose_place(&self.local, member) else {
            return false;
        };
        let target = GroupMemberTarget { nth, ..*member };
        self.queues.push_message(shard, view, Some(target), None);
        if view.qos != QoS::AtMostOnce {
            touched.shards |= 1 << shard;
        }
        true
    }

    /// Number of the shards of this node.
    pub(crate) fn shards(&self) -> u16 {
        self.shards
    }
}

/// Whether all logs have what a requirement names. Nobody waits for a node that was given up.
fn is_met(
    requirement: &LogRequirement,
    nodes: &[Option<Box<RemoteNode>>],
    logged_turns: &[u64],
) -> bool {
    let is_logged = |&(slot, number): &(u8, u64)| {
        let node = nodes[usize::from(slot)].as_ref();
        node.is_none_or(|node| node.sent.is_logged(number))
    };
    let is_turn_logged = |&(shards, turn): &(u64, u64)| {
        let mut logged = logged_turns.iter().enumerate();
        logged.all(|(shard, &logged)| shards & 1 << shard == 0 || logged >= turn)
    };
    requirement.batches.iter().all(is_logged) && requirement.turns.iter().all(is_turn_logged)
}

/// The place (a shard or a node) of the n-th member of a group, and which of its members it is. Only online members
/// count as long as there is one.
fn choose_place(tree: &SubscriptionTree, member: &GroupMemberTarget<'_>) -> Option<(u16, u32)> {
    let filter = tree.find(member.filter)?;
    let group = tree.group(tree.find_group(filter, member.group)?);
    let only_online = group.remote().iter().any(|place| place.online > 0);
    let count = |place: &RemoteMembers| match only_online {
        true => place.online,
        false => place.total,
    };
    let all: u32 = group.remote().iter().map(count).sum();
    let mut nth = member.nth.checked_rem(all)?;
    group.remote().iter().find_map(|place| {
        if nth < count(place) {
            return Some((place.shard, nth));
        }
        nth -= count(place);
        None
    })
}
