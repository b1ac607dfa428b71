//! Routes messages between the shards of this node and the other nodes of a cluster.

mod announcements;
mod batches;
mod exclusives;
mod logged_turns;
mod retained_transfers;
mod successions;
mod tunnels;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::hash_state::{RandomState, random_number};
use bytes::Bytes;
use hashbrown::{HashMap, HashSet};

use super::cross_shard_batch::CrossShardBatch;
use super::exclusive_directory::ExclusiveDirectory;
use super::interest_snapshot::InterestSnapshot;
use super::node::NodeState;
use super::node_batches::{LogRequirement, ReceivedBatches, SentBatches};
use super::node_messages::{self, NodeMessage, NodeMessageError};
use super::peer_loss::PeerLoss;
use super::peer_node::{PeerNode, RemoteNode};
use super::peer_node_ix::{PeerNodeIx, group_by_peer};
use super::remote_interest::NodeFilters;
use super::retained_store::RetainedStore;
use super::session_directory::SessionDirectory;
use super::shard_messages::{ShardMessage, ShardMessageQueues};
use super::shared_subscription::RemoteMembers;
use super::subscription_tree::SubscriptionTree;
use super::succession::{Abandonment, RecentAdoption, Succession, Successor};
use super::tables::TableIx as _;
use super::tunnel::TunnelMessage;
use crate::config::MAX_PEER_NODES;

/// Time for which a node that has left the cluster is kept: its standby may adopt its sessions.
const LEFT_TIMEOUT_MS: u64 = 1000;

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

    /// A node has become reachable, and speaks this version of the messages between nodes: sends it everything that this node
    /// wants, the sessions and exclusive subscriptions that concern it, and the messages that it has not logged.
    pub(crate) fn add_peer(&mut self, index: PeerNodeIx, name: &str, protocol: u32) {
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
            awaits_completion: false,
            forgets_with: u64::MAX,
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
        self.report_successions(index);
        self.await_notice(name);
        self.sessions.add_peer(index, name, self.now_ms);
        self.exclusives.add_peer(index, name, protocol);
    }

    /// The slot of a node, and whether the node had it already. A node that cannot be reached gives way if all are used.
    fn reserve_slot(&mut self, peer: PeerNodeIx, name: &str) -> Option<(u8, bool)> {
        let nodes = || self.nodes.iter().enumerate();
        // What waits for a node whose sessions are being adopted is for its standby. If many nodes return at once, there are not two
        // slots for each: it is sent to the node, which confirms nothing as long as its sessions may be adopted, and to the standby
        // when that has adopted them.
        let is_succeeded =
            self.successions.contains_key(name) && self.nodes.iter().any(Option::is_none);
        let is_named =
            |node: &RemoteNode| *node.name == *name && !(is_succeeded && node.peer.is_none());
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
            kept_ms: 0,
            batch: CrossShardBatch::default(),
            confirm: false,
            sent: SentBatches::new(self.next_stream),
            returned_after: None,
        }));
        self.next_stream = self.next_stream.wrapping_add(1).max(1);
        Some((slot as u8, false))
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

    /// A node cannot be reached any more.
    pub(crate) fn remove_peer(&mut self, index: PeerNodeIx, loss: PeerLoss) {
        self.remove_successor(index);
        let slot = self.peers[index.position()].as_ref().map(|peer| peer.slot);
        let node = slot.and_then(|slot| self.nodes[usize::from(slot)].as_ref());
        let name = node.map(|node| node.name.clone());
        let has_standby = name.as_deref().is_some_and(|name| self.has_standby(name));
        if let Some(name) = name.as_ref()
            && self.standby_for.contains(name)
        {
            // Before the others register their sessions anew, so that clients wait for those of the node.
            self.begin_succession(name);
        }
        self.sessions.remove_peer(index, loss, self.now_ms);
        self.exclusives.remove_peer(index);
        self.to_tunnel_exits.retain(|&(from, ..)| from != index);
        self.early_batches.retain(|early| early.from != index);
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
            node.kept_ms = match loss {
                PeerLoss::Left if !has_standby => 0,
                PeerLoss::Left => LEFT_TIMEOUT_MS.min(self.away_timeout_ms),
                PeerLoss::Silent | PeerLoss::Reconnecting => self.away_timeout_ms,
            };
        }
        let kept_ms = self.nodes[usize::from(peer.slot)]
            .as_ref()
            .map_or(0, |node| node.kept_ms);
        let has_successor = (self.nodes[usize::from(peer.slot)].as_ref())
            .is_some_and(|node| self.successions.contains_key(&node.name));
        match kept_ms == 0 && !has_successor {
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
        self.give_up_to(slot, None);
    }

    /// As [`give_up`](Self::give_up); all messages above QoS 0 go to the node that has adopted the sessions.
    fn give_up_to(&mut self, slot: u8, successor: Option<Successor>) {
        let Some(node) = self.nodes[usize::from(slot)].take() else {
            return;
        };
        self.remove_interest(slot, &InterestSnapshot::default());
        self.pass_on_unlogged(slot, *node, successor);
    }

    /// Sends what a node that can be reached has not confirmed to the node that has adopted its sessions; `None`: only what is
    /// for members of groups, to other members.
    fn redirect_unlogged(&mut self, slot: u8, successor: Option<Successor>) {
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return;
        };
        let stream = self.next_stream;
        self.next_stream = self.next_stream.wrapping_add(1).max(1);
        let fresh = RemoteNode {
            name: node.name.clone(),
            peer: node.peer,
            lost_ms: node.lost_ms,
            kept_ms: node.kept_ms,
            batch: CrossShardBatch::default(),
            confirm: false,
            // A confirmation of the earlier stream that is still on its way confirms nothing of this one.
            sent: SentBatches::continuing(stream, node.sent.last()),
            returned_after: None,
        };
        let peer = node.peer;
        let before = std::mem::replace(&mut **node, fresh);
        if let Some(peer) = peer {
            let stream = node_messages::encode_stream(stream);
            self.outgoing.push((peer, stream));
        }
        self.pass_on_unlogged(slot, before, successor);
    }

    /// Finds other receivers for the messages that a node has not confirmed. What waited for the node waits for them.
    fn pass_on_unlogged(&mut self, slot: u8, mut node: RemoteNode, successor: Option<Successor>) {
        let mut touched = BatchRecipients::default();
        let open = std::mem::take(&mut node.batch);
        let first = node.sent.first_unlogged();
        let unlogged = node
            .sent
            .unlogged()
            .map(|message| node_messages::decode_own_batch(message));
        let batches = unlogged.chain([Some(open)]);
        for (number, batch) in (first..).zip(batches) {
            let Some(batch) = batch else { continue };
            // The node has got it in its present slot.
            let is_received = matches!(successor, Some(Successor::Returned(_)))
                && (node.returned_after).is_some_and(|last| number > last);
            for crossing in batch.iter() {
                match (&crossing.member, successor) {
                    (None, Some(_)) if is_received => {}
                    (Some(member), _) => {
                        self.send_to_member(crossing.traffic(), member, &mut touched);
                    }
                    // All nodes that could be reached have got it.
                    (None, Some(_)) if crossing.is_retained_copy => {}
                    (None, Some(successor)) => {
                        let message = crossing.traffic();
                        self.send_to_adopted(successor, &node.name, message, &mut touched);
                    }
                    (None, None) => {}
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
