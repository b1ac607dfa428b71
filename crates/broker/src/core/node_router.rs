//! Routes messages between the shards of this node and the other nodes of a cluster.

mod announcements;
mod batches;
mod exclusives;
mod logged_turns;
mod peers;
mod retained_transfers;
mod successions;
mod tunnels;
mod unlogged;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::hash_state::{RandomState, random_number};
use bytes::Bytes;
use hashbrown::{HashMap, HashSet};

use super::cross_shard_batch::CrossShardBatch;
use super::exclusive_directory::ExclusiveDirectory;
use super::node::NodeState;
use super::node_batches::{LogRequirement, ReceivedBatches};
use super::node_messages::{self, NodeMessage, NodeMessageError};
use super::peer_node::{PeerNode, RemoteNode};
use super::peer_node_ix::{PeerNodeIx, group_by_peer};
use super::remote_interest::NodeFilters;
use super::retained_store::RetainedStore;
use super::session_directory::SessionDirectory;
use super::shard_messages::{ShardMessage, ShardMessageQueues};
use super::shared_subscription::RemoteMembers;
use super::subscription_tree::SubscriptionTree;
use super::succession::{Abandonment, RecentAdoption, Succession};
use super::tables::TableIx as _;
use super::tunnel::TunnelMessage;
use crate::config::MAX_PEER_NODES;

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

/// A batch of another node that waits for the shards.
struct EarlyBatch {
    from: PeerNodeIx,
    number: u64,
    batch: CrossShardBatch,
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
    name: Box<str>,
    shards: u16,
    /// Whether shards have a log, so that they confirm turns.
    is_durable: bool,
    node: Arc<NodeState>,
    /// The retained messages of this node.
    retained: Arc<RetainedStore>,
    sessions: SessionDirectory,
    exclusives: ExclusiveDirectory,
    /// Shards whose store rejects writes, one bit each, and whether that of any reachable node does.
    rejecting_shards: u64,
    has_rejecting_node: bool,
    /// Shards that have announced all their stored sessions, one bit each.
    restored_shards: u64,
    /// Batches above QoS 0 of other nodes that arrived before the shards had announced the filters of their stored sessions. Their
    /// senders keep them until they are confirmed, and pause their publishers.
    early_batches: Vec<EarlyBatch>,
    /// Whether the sessions of this node are not registered yet, although all shards have announced them.
    is_restore_held: bool,
    /// The nodes whose sessions this one adopts when they fail.
    standby_for: HashSet<Box<str>, RandomState>,
    /// The standbys of other nodes, by the names of these nodes.
    standbys: HashMap<Box<str>, PeerNodeIx, RandomState>,
    /// The failed nodes whose sessions are being adopted.
    successions: HashMap<Box<str>, Succession, RandomState>,
    /// The nodes whose sessions this one has adopted.
    adopted_nodes: HashMap<Box<str>, RecentAdoption, RandomState>,
    /// The node that has adopted the sessions of this one, and until when messages for these are passed on to it.
    adopter: Option<(Box<str>, u64)>,
    /// The nodes that have not ended the sessions yet that another one, perhaps this one, has adopted.
    abandoning: HashMap<Box<str>, Abandonment, RandomState>,
    /// Shard and peer of each tunnel whose entry is here.
    tunnel_entries: HashMap<u64, (u16, PeerNodeIx), RandomState>,
    /// Messages of other nodes to the exits of their tunnels, which the owner handles.
    pub(crate) to_tunnel_exits: Vec<(PeerNodeIx, u64, TunnelMessage)>,
    /// What the shards of this node want.
    local: SubscriptionTree,
    /// What the other nodes want, by their slots.
    pub(super) remote: SubscriptionTree<NodeFilters>,
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
            name: name.into(),
            shards,
            is_durable,
            node: node.clone(),
            retained: node.retained.clone(),
            sessions: SessionDirectory::new(node.clone(), name, MAX_PEER_NODES),
            exclusives: ExclusiveDirectory::new(node.clone(), name, MAX_PEER_NODES),
            rejecting_shards: 0,
            has_rejecting_node: false,
            restored_shards: 0,
            early_batches: Vec::new(),
            is_restore_held: false,
            standby_for: HashSet::default(),
            standbys: HashMap::default(),
            successions: HashMap::default(),
            adopted_nodes: HashMap::default(),
            adopter: None,
            abandoning: HashMap::default(),
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
            next_stream: random_number(),
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
        self.exclusives.set_now(now_ms);
    }

    /// Whether everything that the reachable nodes want has arrived and is known to all shards.
    pub(crate) fn is_complete(&self) -> bool {
        self.queues.is_all_applied() && self.peers.iter().flatten().all(|peer| peer.is_complete)
    }

    /// Lets time pass. It has to be called every 100 ms while it returns true.
    pub(crate) fn tick(&mut self) -> bool {
        self.sessions.tick(self.now_ms);
        let has_successions = self.tick_successions() | self.tick_abandoning();
        let mut has_lost_nodes = false;
        for slot in 0..self.nodes.len() {
            let Some(node) = &self.nodes[slot] else {
                continue;
            };
            if node.peer.is_some() {
                continue;
            }
            if self.successions.contains_key(&node.name) || self.has_returned(&node.name) {
                has_lost_nodes = true;
                continue;
            }
            match self.now_ms >= node.lost_ms + node.kept_ms {
                true => self.give_up(slot as u8),
                false => has_lost_nodes = true,
            }
        }
        let mut peers = self.peers.iter().flatten();
        let has_transfers = peers.any(|peer| peer.retained_transfer.is_some());
        has_lost_nodes
            || has_successions
            || has_transfers
            || self.sessions.needs_tick()
            || self.exclusives.needs_tick()
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

    /// Handles messages of a shard.
    pub(crate) fn handle_shard_messages(&mut self, from: u16, messages: Vec<ShardMessage>) {
        for message in messages {
            match message {
                ShardMessage::Messages(batch) => {
                    let mut touched = self.touched[usize::from(from)];
                    let mut wanting_nodes = 0;
                    for crossing in batch.iter() {
                        let message = crossing.traffic();
                        match (&crossing.member, crossing.published_at) {
                            _ if crossing.is_retained_copy => {
                                self.copy_to_nodes(&crossing.view, &mut touched);
                            }
                            (None, published_at) => {
                                if !crossing.is_repetition {
                                    let topic = crossing.view.topic;
                                    wanting_nodes = self.remote.match_topic(topic).0.remote_shards;
                                }
                                self.send_to_nodes(
                                    message,
                                    wanting_nodes,
                                    published_at,
                                    &mut touched,
                                );
                                if published_at.is_none() {
                                    self.pass_to_recently_adopted(message, &mut touched);
                                }
                            }
                            (Some(member), _) => {
                                self.send_to_member(message, member, &mut touched);
                            }
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
                ShardMessage::WithdrawClaim { client_id } => {
                    self.sessions.withdraw_claim(from, client_id);
                }
                ShardMessage::SessionStarted {
                    client_id,
                    since_ms,
                    is_provisional,
                    adopted_from,
                } => {
                    let sessions = &mut self.sessions;
                    sessions.add_session(&client_id, since_ms, is_provisional, adopted_from);
                }
                ShardMessage::StoreRejects(rejects) => self.set_store_rejects(from, rejects),
                ShardMessage::SessionsRestored => {
                    self.restored_shards |= 1 << from;
                    self.send_completions();
                    self.handle_early_batches();
                    self.check_restored();
                }
                ShardMessage::SessionEnded { client_id } => {
                    self.sessions.remove_session(&client_id);
                }
                ShardMessage::SessionEndAnswer { request, kept } => {
                    self.sessions.handle_session_end(request, kept);
                }
                ShardMessage::ClaimExclusive { topic, client_id } => {
                    self.update_exclusives();
                    self.exclusives.claim(from, topic, client_id);
                }
                ShardMessage::ExclusiveRestored {
                    topic,
                    client_id,
                    since_ms,
                } => self.exclusives.add(&topic, &client_id, since_ms),
                ShardMessage::ExclusiveReleased { topic, client_id } => {
                    self.exclusives.release(&topic, &client_id);
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
                ShardMessage::SessionClaimed { .. }
                | ShardMessage::EndSession { .. }
                | ShardMessage::ExclusiveClaimed { .. }
                | ShardMessage::EndExclusive { .. }
                | ShardMessage::RouterFiltersRemoved { .. } => {}
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
                let node = self.nodes[usize::from(slot)].as_ref();
                if let Some(name) = node.map(|node| node.name.clone()) {
                    self.finish_return(&name);
                }
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
                confirm: true,
                batch,
            } if !self.are_shards_restored() => self.early_batches.push(EarlyBatch {
                from,
                number,
                batch,
            }),
            NodeMessage::Batch {
                number,
                confirm,
                batch,
            } => self.handle_batch(slot, number, confirm, &batch),
            NodeMessage::RetainedDigests(theirs) => self.begin_retained_transfer(from, &theirs),
            NodeMessage::Sessions(messages) => {
                for message in messages {
                    self.note_registration(slot, &message);
                    self.sessions.handle(from, message, now_ms);
                }
            }
            NodeMessage::Exclusives(messages) => {
                self.update_exclusives();
                for message in messages {
                    self.exclusives.handle(from, message);
                }
            }
            NodeMessage::Succession { state, node } => self.handle_succession(from, state, &node),
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

    /// Whether all shards have announced the filters of their stored sessions.
    fn are_shards_restored(&self) -> bool {
        self.restored_shards.count_ones() == u32::from(self.shards)
    }

    fn handle_early_batches(&mut self) {
        if !self.are_shards_restored() {
            return;
        }
        for early in std::mem::take(&mut self.early_batches) {
            let peer = self.peers[early.from.position()].as_ref();
            if let Some(slot) = peer.map(|peer| peer.slot) {
                self.handle_batch(slot, early.number, true, &early.batch);
            }
        }
    }

    /// Ends a turn: completes the messages to all nodes and confirms what can be confirmed.
    pub(crate) fn end_turn(&mut self) {
        let has_successions = !self.successions.is_empty();
        self.node.has_successions.store(has_successions, Relaxed);
        self.send_announcements();
        self.update_exclusives();
        self.send_exclusive_messages();
        self.send_session_messages();
        self.continue_retained_transfers();
        for slot in 0..self.nodes.len() {
            self.send_batch(slot as u8);
        }
        self.confirm_announcements();
        self.confirm_turns();
        self.confirm_to_peers();
    }

    fn send_session_messages(&mut self) {
        for (shard, message) in self.sessions.to_shards.drain(..) {
            self.queues.send(shard, message);
        }
        let messages = std::mem::take(&mut self.sessions.to_peers);
        let outgoing = &mut self.outgoing;
        for (peer, of_peer) in group_by_peer(messages) {
            node_messages::encode_sessions(&of_peer, |message| outgoing.push((peer, message)));
        }
    }

    /// Number of the shards of this node.
    pub(crate) fn shards(&self) -> u16 {
        self.shards
    }

    /// Whether this node keeps the filters of another one, and what is for it.
    #[cfg(test)]
    pub(crate) fn knows_node(&self, name: &str) -> bool {
        self.nodes.iter().flatten().any(|node| *node.name == *name)
    }

    /// Whether another node can be reached, and has announced all its filters since.
    #[cfg(test)]
    pub(crate) fn has_filters_of(&self, name: &str) -> bool {
        let mut peers = self.peers.iter().flatten();
        peers.any(|peer| {
            let node = self.nodes[usize::from(peer.slot)].as_ref();
            peer.is_complete && node.is_some_and(|node| *node.name == *name)
        })
    }
}
