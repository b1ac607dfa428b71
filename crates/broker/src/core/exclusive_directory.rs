//! Which client of a cluster has the exclusive subscription of a topic.

use std::sync::Arc;

use super::hash_state::RandomState;
use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use super::node::NodeState;
use super::peer_node_ix::PeerNodeIx;
use super::session_directory::hash_of;
use super::shard_messages::{ExclusiveOutcome, ShardMessage};
use super::tables::TableIx as _;

/// The first version of the messages between nodes that contains [`ExclusiveMessage`].
pub(crate) const FIRST_EXCLUSIVE_PROTOCOL: u32 = 6;

/// What nodes tell each other about exclusive subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExclusiveMessage {
    /// To the owner of a topic: a client of the sender wants its exclusive subscription.
    Claim {
        request: u64,
        topic: Box<str>,
        client_id: Box<str>,
    },
    /// The answer.
    Claimed {
        request: u64,
        outcome: ExclusiveOutcome,
    },
    /// To the owner: a client of the sender has had the subscription for this time.
    Register {
        age_ms: u64,
        topic: Box<str>,
        client_id: Box<str>,
    },
    /// To all nodes: the client of the sender has the subscription no longer.
    Release {
        topic: Box<str>,
        client_id: Box<str>,
    },
    /// From the owner: another client had the subscription earlier, so that the one of this client ends.
    End {
        topic: Box<str>,
        client_id: Box<str>,
    },
}

/// Longest time that a claim waits at the owner until all nodes have registered their subscriptions.
const CLAIM_TIMEOUT_MS: u64 = 2000;

/// This node, or another one by its index.
type NodeOfHolder = Option<PeerNodeIx>;

/// A client of this node that has or wants the subscription of a topic.
struct LocalHolder {
    client_id: Box<str>,
    /// Sessions with the subscription. There may be two for a moment when a client replaces its session.
    subscriptions: u32,
    /// Claims without an answer.
    claims: u32,
    /// Begin of the subscription.
    since_ms: u64,
}

/// A client that has the subscription of a topic, for the owner of the topic.
struct ExclusiveHolder {
    node: NodeOfHolder,
    client_id: Box<str>,
    since_ms: u64,
}

struct ExclusiveClaim {
    from: ExclusiveClaimant,
    topic: Box<str>,
    client_id: Box<str>,
    arrived_ms: u64,
}

#[derive(Clone, Copy)]
enum ExclusiveClaimant {
    Shard(u16),
    Peer { peer: PeerNodeIx, request: u64 },
}

impl ExclusiveClaimant {
    fn node(self) -> NodeOfHolder {
        match self {
            ExclusiveClaimant::Shard(_) => None,
            ExclusiveClaimant::Peer { peer, .. } => Some(peer),
        }
    }
}

/// A claim that this node has sent to the owner of the topic.
struct SentClaim {
    shard: u16,
    topic: Box<str>,
    client_id: Box<str>,
    arrived_ms: u64,
}

/// What the session directory knows of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodesKnowledge {
    /// Whether all nodes that can be reached have registered their sessions, or are not waited for any more.
    pub(crate) is_settled: bool,
    /// Whether other nodes are not told of the sessions of this one, because another one may have adopted them.
    pub(crate) is_withholding: bool,
}

/// Lets at most one client of the cluster have the exclusive subscription of a topic.
///
/// Each topic has an owner among the nodes that can be reached, by the same hash as client ids in the
/// [`SessionDirectory`](super::session_directory::SessionDirectory). The owner knows which clients have the subscription,
/// and decides claims. When nodes come or go, each node registers the subscriptions of its clients with their new owners.
/// The owner of this state machine sends these messages before those of the session directory. A node that has
/// registered its sessions has therefore registered its exclusive subscriptions, and an owner decides nothing before
/// the session directory is settled. A claim waits for that for [`CLAIM_TIMEOUT_MS`], and is then undecided.
///
/// Two clients have the subscription of one topic if their nodes could not reach each other. Of these the one that
/// has had it longer keeps it. An owner keeps what each node has registered until that node releases it, so that a client
/// whose session is at two nodes for a moment loses nothing when one of them ends.
///
/// A shard calls [`claim`](Self::claim) and waits for [`ShardMessage::ExclusiveClaimed`]. It calls [`add`](Self::add)
/// for the subscriptions of restored and adopted sessions, and [`release`](Self::release) when a subscription ends, or if it does
/// not use one that was granted. It ends a subscription when it gets [`ShardMessage::EndExclusive`]. The owner of
/// this state machine sets the time with [`set_now`](Self::set_now), reports what the session directory knows with
/// [`update`](Self::update) after each change and while [`needs_tick`](Self::needs_tick), and sends what is in
/// `to_peers` and `to_shards`.
pub(crate) struct ExclusiveDirectory {
    node: Arc<NodeState>,
    name_hash: u64,
    /// Hashes of the names of the nodes that can be reached and speak these messages.
    peers: Vec<Option<u64>>,
    knowledge: NodesKnowledge,
    now_ms: u64,
    /// By topics. There is more than one client only until the owner has ended the subscriptions of the others.
    local: HashMap<Box<str>, Vec<LocalHolder>, RandomState>,
    /// Topics that this node owns. There is more than one client only until their nodes have ended the subscriptions.
    owned: HashMap<Box<str>, Vec<ExclusiveHolder>, RandomState>,
    /// By their numbers.
    sent_claims: HashMap<u64, SentClaim, RandomState>,
    waiting_claims: Vec<ExclusiveClaim>,
    last_request: u64,
    pub(crate) to_peers: Vec<(PeerNodeIx, ExclusiveMessage)>,
    pub(crate) to_shards: Vec<(u16, ShardMessage)>,
}

impl ExclusiveDirectory {
    pub(crate) fn new(node: Arc<NodeState>, name: &str, max_peers: usize) -> Self {
        Self {
            node,
            name_hash: xxh3_64(name.as_bytes()),
            peers: vec![None; max_peers],
            knowledge: NodesKnowledge {
                is_settled: true,
                is_withholding: false,
            },
            now_ms: 0,
            local: HashMap::default(),
            owned: HashMap::default(),
            sent_claims: HashMap::default(),
            waiting_claims: Vec::new(),
            last_request: 0,
            to_peers: Vec::new(),
            to_shards: Vec::new(),
        }
    }

    pub(crate) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// The node that owns a topic among those that can be reached.
    fn owner_of(&self, topic: &str) -> NodeOfHolder {
        let topic = xxh3_64(topic.as_bytes());
        let peers = self.peers.iter().enumerate();
        let hashes = peers.filter_map(|(index, name_hash)| {
            let peer = PeerNodeIx::from_position(index);
            Some((hash_of(topic, (*name_hash)?), Some(peer)))
        });
        let (_, owner) = hashes.fold((hash_of(topic, self.name_hash), None), Ord::max);
        owner
    }

    // Changes of the nodes.

    /// A node can be reached from now on, and speaks this version of the messages between nodes.
    pub(crate) fn add_peer(&mut self, index: PeerNodeIx, name: &str, protocol: u32) {
        if protocol >= FIRST_EXCLUSIVE_PROTOCOL {
            self.peers[index.position()] = Some(xxh3_64(name.as_bytes()));
            self.change_nodes();
        }
    }

    /// A node cannot be reached any more: its clients have no subscriptions, and nobody waits for answers there.
    pub(crate) fn remove_peer(&mut self, index: PeerNodeIx) {
        if self.peers[index.position()].take().is_none() {
            return;
        }
        self.waiting_claims
            .retain(|claim| claim.from.node() != Some(index));
        self.to_peers.retain(|&(to, _)| to != index);
        for holders in self.owned.values_mut() {
            holders.retain(|holder| holder.node != Some(index));
        }
        self.change_nodes();
    }

    /// Registers the subscriptions of this node with the new owners, and begins all decisions anew.
    fn change_nodes(&mut self) {
        self.knowledge.is_settled = false;
        // What other nodes have registered stays valid where this node remains the owner.
        let mut owned = std::mem::take(&mut self.owned);
        owned.retain(|topic, holders| {
            holders.retain(|holder| holder.node.is_some());
            !holders.is_empty() && self.owner_of(topic).is_none()
        });
        self.owned = owned;
        self.register_all();
        let mut claims = std::mem::take(&mut self.waiting_claims);
        let sent = std::mem::take(&mut self.sent_claims).into_values();
        claims.extend(sent.map(|sent| ExclusiveClaim {
            from: ExclusiveClaimant::Shard(sent.shard),
            topic: sent.topic,
            client_id: sent.client_id,
            arrived_ms: sent.arrived_ms,
        }));
        for claim in claims {
            self.decide_or_send(claim);
        }
    }

    /// Applies what the session directory knows now; claims that waited too long are undecided.
    pub(crate) fn update(&mut self, knowledge: NodesKnowledge) {
        let before = std::mem::replace(&mut self.knowledge, knowledge);
        if before.is_withholding && !knowledge.is_withholding {
            self.register_all();
        }
        if self.waiting_claims.is_empty() {
            return;
        }
        for claim in std::mem::take(&mut self.waiting_claims) {
            self.decide(claim);
        }
        for claim in std::mem::take(&mut self.waiting_claims) {
            match self.now_ms >= claim.arrived_ms + CLAIM_TIMEOUT_MS {
                true => self.answer(&claim, ExclusiveOutcome::Undecided),
                false => self.waiting_claims.push(claim),
            }
        }
    }

    /// Whether [`update`](Self::update) has to be called soon.
    pub(crate) fn needs_tick(&self) -> bool {
        !self.waiting_claims.is_empty()
    }

    fn register_all(&mut self) {
        let local = std::mem::take(&mut self.local);
        for (topic, holders) in &local {
            for holder in holders.iter().filter(|holder| holder.subscriptions > 0) {
                self.register(topic, &holder.client_id, holder.since_ms);
            }
        }
        self.local = local;
    }

    fn register(&mut self, topic: &str, client_id: &str, since_ms: u64) {
        if self.knowledge.is_withholding {
            return;
        }
        match self.owner_of(topic) {
            Some(owner) => {
                let register = ExclusiveMessage::Register {
                    age_ms: self.now_ms.saturating_sub(since_ms),
                    topic: topic.into(),
                    client_id: client_id.into(),
                };
                self.to_peers.push((owner, register));
            }
            None => self.handle_register(topic, None, client_id, since_ms),
        }
    }

    // Subscriptions of this node.

    /// A client of this node wants the subscription of a topic.
    pub(crate) fn claim(&mut self, shard: u16, topic: Box<str>, client_id: Box<str>) {
        let holders = self.local.entry(topic.clone()).or_default();
        if holders.iter().any(|holder| holder.client_id != client_id) {
            let outcome = ExclusiveOutcome::Held;
            return self.send_outcome(shard, topic, client_id, outcome);
        }
        match holders.first_mut() {
            Some(holder) => holder.claims += 1,
            None => holders.push(LocalHolder {
                client_id: client_id.clone(),
                subscriptions: 0,
                claims: 1,
                since_ms: self.now_ms,
            }),
        }
        self.decide_or_send(ExclusiveClaim {
            from: ExclusiveClaimant::Shard(shard),
            topic,
            client_id,
            arrived_ms: self.now_ms,
        });
    }

    /// A session of this node has a subscription that was not claimed.
    pub(crate) fn add(&mut self, topic: &str, client_id: &str, since_ms: u64) {
        let holders = self.local.entry(topic.into()).or_default();
        let known = holders
            .iter_mut()
            .find(|holder| *holder.client_id == *client_id);
        match known {
            Some(holder) => holder.subscriptions += 1,
            None => holders.push(LocalHolder {
                client_id: client_id.into(),
                subscriptions: 1,
                claims: 0,
                since_ms,
            }),
        }
        self.register(topic, client_id, since_ms);
    }

    /// A subscription of this node has ended, or one that was granted is not used.
    pub(crate) fn release(&mut self, topic: &str, client_id: &str) {
        if let Some(holder) = self.local_holder(topic, client_id) {
            holder.subscriptions = holder.subscriptions.saturating_sub(1);
            self.release_if_unused(topic, client_id);
        }
    }

    fn local_holder(&mut self, topic: &str, client_id: &str) -> Option<&mut LocalHolder> {
        let mut holders = self.local.get_mut(topic)?.iter_mut();
        holders.find(|holder| *holder.client_id == *client_id)
    }

    /// Tells the other nodes when a client of this one has neither the subscription nor a claim of it any more.
    fn release_if_unused(&mut self, topic: &str, client_id: &str) {
        let Some(holders) = self.local.get_mut(topic) else {
            return;
        };
        let is_unused = |holder: &mut LocalHolder| {
            *holder.client_id == *client_id && holder.subscriptions + holder.claims == 0
        };
        if holders.extract_if(.., is_unused).next().is_none() {
            return;
        }
        if holders.is_empty() {
            self.local.remove(topic);
        }
        // To all of them: one that knows other nodes than this one may take itself for the owner.
        for position in 0..self.peers.len() {
            if self.peers[position].is_some() {
                let release = ExclusiveMessage::Release {
                    topic: topic.into(),
                    client_id: client_id.into(),
                };
                let to = PeerNodeIx::from_position(position);
                self.to_peers.push((to, release));
            }
        }
        self.handle_release(topic, None, client_id);
    }

    fn decide_or_send(&mut self, claim: ExclusiveClaim) {
        match (self.owner_of(&claim.topic), claim.from) {
            (Some(owner), ExclusiveClaimant::Shard(shard)) => {
                self.last_request += 1;
                let request = self.last_request;
                let message = ExclusiveMessage::Claim {
                    request,
                    topic: claim.topic.clone(),
                    client_id: claim.client_id.clone(),
                };
                self.to_peers.push((owner, message));
                let sent = SentClaim {
                    shard,
                    topic: claim.topic,
                    client_id: claim.client_id,
                    arrived_ms: claim.arrived_ms,
                };
                self.sent_claims.insert(request, sent);
            }
            _ => self.decide(claim),
        }
    }

    // What the owner of a topic decides.

    fn decide(&mut self, claim: ExclusiveClaim) {
        // Subscriptions that are withheld are not registered here either.
        let is_withheld = self.knowledge.is_withholding && claim.from.node().is_some();
        // The sender may know already, or still, other nodes than this one.
        let is_of_other = self.owner_of(&claim.topic).is_some();
        if !self.knowledge.is_settled || is_withheld || is_of_other {
            return self.waiting_claims.push(claim);
        }
        let holders = self.owned.entry(claim.topic.clone()).or_default();
        let is_other = |holder: &ExclusiveHolder| holder.client_id != claim.client_id;
        if holders.iter().any(is_other) {
            return self.answer(&claim, ExclusiveOutcome::Held);
        }
        let node = claim.from.node();
        if !holders.iter().any(|holder| holder.node == node) {
            holders.push(ExclusiveHolder {
                node,
                client_id: claim.client_id.clone(),
                since_ms: self.now_ms,
            });
        }
        self.answer(&claim, ExclusiveOutcome::Granted);
    }

    fn answer(&mut self, claim: &ExclusiveClaim, outcome: ExclusiveOutcome) {
        match claim.from {
            ExclusiveClaimant::Shard(shard) => {
                self.answer_shard(shard, claim.topic.clone(), claim.client_id.clone(), outcome);
            }
            ExclusiveClaimant::Peer { peer, request } => {
                let claimed = ExclusiveMessage::Claimed { request, outcome };
                self.to_peers.push((peer, claimed));
            }
        }
    }

    fn answer_shard(
        &mut self,
        shard: u16,
        topic: Box<str>,
        client_id: Box<str>,
        outcome: ExclusiveOutcome,
    ) {
        let now_ms = self.now_ms;
        if let Some(holder) = self.local_holder(&topic, &client_id) {
            holder.claims = holder.claims.saturating_sub(1);
            if outcome == ExclusiveOutcome::Granted {
                if holder.subscriptions == 0 {
                    holder.since_ms = now_ms;
                }
                holder.subscriptions += 1;
            }
        }
        self.release_if_unused(&topic, &client_id);
        self.send_outcome(shard, topic, client_id, outcome);
    }

    fn send_outcome(
        &mut self,
        shard: u16,
        topic: Box<str>,
        client_id: Box<str>,
        outcome: ExclusiveOutcome,
    ) {
        let message = ShardMessage::ExclusiveClaimed {
            topic,
            client_id,
            outcome,
        };
        self.to_shards.push((shard, message));
    }

    fn handle_register(&mut self, topic: &str, node: NodeOfHolder, client_id: &str, since_ms: u64) {
        let holders = self.owned.entry(topic.into()).or_default();
        let mut known = holders.iter_mut();
        match known.find(|holder| holder.node == node && *holder.client_id == *client_id) {
            Some(known) => known.since_ms = since_ms,
            None => holders.push(ExclusiveHolder {
                node,
                client_id: client_id.into(),
                since_ms,
            }),
        }
        let first = holders
            .iter()
            .map(|holder| (holder.since_ms, &*holder.client_id))
            .min();
        let Some(kept) = first.map(|(_, client_id)| client_id) else {
            return;
        };
        let others = holders.iter().filter(|holder| *holder.client_id != *kept);
        let others: Vec<_> = others
            .map(|holder| (holder.node, holder.client_id.clone()))
            .collect();
        for (node, client_id) in others {
            match node {
                None => self.end_local(None, topic, client_id),
                Some(peer) => {
                    let topic = topic.into();
                    self.to_peers
                        .push((peer, ExclusiveMessage::End { topic, client_id }));
                }
            }
        }
    }

    fn handle_release(&mut self, topic: &str, node: NodeOfHolder, client_id: &str) {
        if let Some(holders) = self.owned.get_mut(topic) {
            holders.retain(|holder| holder.node != node || *holder.client_id != *client_id);
            if holders.is_empty() {
                self.owned.remove(topic);
            }
        }
    }

    /// Requests the end of a subscription of this node, for the owner of its topic.
    fn end_local(&mut self, owner: NodeOfHolder, topic: &str, client_id: Box<str>) {
        let is_held = self
            .local_holder(topic, &client_id)
            .is_some_and(|holder| holder.subscriptions > 0);
        match (is_held, owner) {
            // Its session may have ended, so that the shard has released the subscription already.
            (true, _) => {
                if let Some(shard) = self.node.directory.shard_of(&client_id) {
                    let topic = topic.into();
                    self.to_shards
                        .push((shard, ShardMessage::EndExclusive { topic, client_id }));
                }
            }
            (false, Some(owner)) => {
                let topic = topic.into();
                self.to_peers
                    .push((owner, ExclusiveMessage::Release { topic, client_id }));
            }
            (false, None) => self.handle_release(topic, None, &client_id),
        }
    }

    // What other nodes say.

    pub(crate) fn handle(&mut self, from: PeerNodeIx, message: ExclusiveMessage) {
        if self.peers[from.position()].is_none() {
            // It was taken for a node of an earlier version, and will be reached anew.
            return;
        }
        match message {
            ExclusiveMessage::Claim {
                request,
                topic,
                client_id,
            } => self.decide(ExclusiveClaim {
                from: ExclusiveClaimant::Peer {
                    peer: from,
                    request,
                },
                topic,
                client_id,
                arrived_ms: self.now_ms,
            }),
            ExclusiveMessage::Claimed { request, outcome } => {
                if let Some(sent) = self.sent_claims.remove(&request) {
                    self.answer_shard(sent.shard, sent.topic, sent.client_id, outcome);
                }
            }
            ExclusiveMessage::Register {
                age_ms,
                topic,
                client_id,
            } => {
                let since_ms = self.now_ms.saturating_sub(age_ms);
                self.handle_register(&topic, Some(from), &client_id, since_ms);
            }
            ExclusiveMessage::Release { topic, client_id } => {
                self.handle_release(&topic, Some(from), &client_id);
            }
            ExclusiveMessage::End { topic, client_id } => {
                self.end_local(Some(from), &topic, client_id);
            }
        }
    }
}
