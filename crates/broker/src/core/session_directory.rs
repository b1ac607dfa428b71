//! Which node of a cluster has the session of a client id.

mod conflicts;
mod decisions;
mod places;
mod registrations;
mod waiting_claims;

use super::hash_state::RandomState;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

use self::places::{Adopter, SessionClaim, SessionClaimant, SessionHolder};
use self::waiting_claims::WaitingClaims;
use super::node::NodeState;
use super::origin_node::OriginNode;
use super::peer_loss::PeerLoss;
use super::peer_node_ix::PeerNodeIx;
use super::shard_messages::{SessionClaimOutcome, ShardMessage};
use super::tables::TableIx as _;

/// What nodes tell each other about sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionMessage {
    /// To the owner of a client id: a client has connected to the sender. `keep`: the client resumes its session.
    Claim {
        request: u64,
        keep: bool,
        client_id: Box<str>,
    },
    /// The answer.
    Claimed {
        request: u64,
        outcome: SessionClaimOutcome,
    },
    /// To the owner: the sender has the session, since this time.
    Register {
        age_ms: u64,
        is_provisional: bool,
        adopted_from: Option<OriginNode>,
        client_id: Box<str>,
    },
    /// To the owner: the sender has the session no longer, and does not claim it.
    Release { client_id: Box<str> },
    /// From the owner: the client has connected to another node. The receiver ends its session, except a durable one
    /// that the client resumes.
    TakeOver {
        request: u64,
        keep: bool,
        client_id: Box<str>,
    },
    /// The answer: whether the session stays where it is.
    TakenOver { request: u64, kept: bool },
    /// The sender has registered all its sessions with their owners among the nodes of this view.
    Registered { view: u64 },
    /// The sender has started and still reads its sessions from its store.
    Restoring,
}

/// Longest time that a claim waits.
const CLAIM_TIMEOUT_MS: u64 = 2000;
/// Longest time that clients get no new sessions because not all nodes have registered theirs after the nodes have changed.
/// It is longer than nodes need to notice that another one has failed: until then, a node that has started since does not
/// know the failed node, and the others register nothing for the nodes that it knows.
const REGISTRATION_TIMEOUT_MS: u64 = 7000;
/// The same for nodes that still read their sessions, or adopt those of another one.
const RESTORE_TIMEOUT_MS: u64 = 60_000;
/// Time for which a session gives way to an earlier one of its client that was not known when it began.
pub(crate) const PROVISIONAL_TIMEOUT_MS: u64 = RESTORE_TIMEOUT_MS;

/// Time for which claims wait for a node that has started again.
const RECONNECT_TIMEOUT_MS: u64 = 2000;
/// Time for which claims wait after most nodes were lost at once.
const CUT_OFF_TIMEOUT_MS: u64 = 3000;

/// The number of a request that is not answered.
const NO_ANSWER: u64 = 0;

/// What this node has of a client id.
#[derive(Clone, Copy, Default)]
struct LocalSession {
    /// There are two for a moment when a client replaces its session.
    sessions: u32,
    /// Claims without an answer. A shard may claim before the end of a session on another shard is known here.
    claims: u32,
    /// Begin of the last session.
    since_ms: u64,
    /// As in [`SessionRegistration`].
    is_provisional: bool,
    adopted_from: Option<OriginNode>,
}

/// A node that cannot be reached, and has not left the cluster.
struct LostNode {
    name: Box<str>,
    lost_ms: u64,
    /// Whether it was to be reachable again at once.
    is_reconnecting: bool,
}

/// The node that has a session, for the owner of its client id.
#[derive(Clone, Copy)]
struct SessionRegistration {
    holder: SessionHolder,
    since_ms: u64,
    /// The client wanted its earlier session, and got a new one although not all nodes had registered theirs.
    is_provisional: bool,
    /// The node from which the holder has adopted it.
    adopted_from: Option<OriginNode>,
}

impl SessionRegistration {
    /// Whether an earlier session is kept instead of this one, because its node was expected when this one began.
    fn gives_way(&self, now_ms: u64) -> bool {
        self.is_provisional && now_ms < self.since_ms + PROVISIONAL_TIMEOUT_MS
    }
}

/// A claim that this node has sent to the owner of the client id.
struct SentClaim {
    owner: PeerNodeIx,
    shard: u16,
    keep: bool,
    client_id: Box<str>,
}

/// A session that the owner takes over for the first of these claims.
struct SessionTakeover {
    client_id: Box<str>,
    holder: SessionHolder,
    claims: VecDeque<SessionClaim>,
}

/// Who requested the end of a session of this node.
enum EndRequest {
    /// This node, for a takeover with this number.
    Own(u64),
    Peer {
        peer: PeerNodeIx,
        request: u64,
    },
    /// Nobody waits. If the session stays, the owner has to decide again.
    Conflict {
        client_id: Box<str>,
    },
}

/// Finds the node that has a session, and lets at most one node have it.
///
/// Each client id has an owner among the nodes that can be reached: the one with the highest hash of node and client id.
/// The owner knows which node has the session, and decides who gets it when a client connects. When nodes come or go,
/// each node registers its sessions with their new owners. An owner decides nothing until all nodes have done so, or
/// [`REGISTRATION_TIMEOUT_MS`] have passed. Claims are rejected after [`CLAIM_TIMEOUT_MS`] meanwhile, unless the client
/// wants a new session in any case. A node that has started again counts as one that has not registered its sessions. A node that
/// loses most of the others at once waits for [`CUT_OFF_TIMEOUT_MS`]. If a node registers an earlier session later, the client gets that one.
/// Nodes that cannot reach each other have different owners, so that both may have a session of the same client id.
/// When they meet, the one that began later stays. A session that a node has adopted stays instead of that of the failed node.
///
/// A shard calls [`claim`](Self::claim) before it creates a session and waits for [`ShardMessage::SessionClaimed`]. It
/// calls [`add_session`](Self::add_session) instead if it already has one with the same client id, and for restored
/// sessions; [`remove_session`](Self::remove_session) when a session ends. It answers [`ShardMessage::EndSession`] by
/// [`handle_session_end`](Self::handle_session_end). The owner of this state machine sends what is in `to_peers` and
/// `to_shards` after each call, and calls [`tick`](Self::tick) while [`needs_tick`](Self::needs_tick). It calls
/// [`finish_restore`](Self::finish_restore) when all sessions that this node has stored are added.
pub(crate) struct SessionDirectory {
    node: Arc<NodeState>,
    name: Box<str>,
    name_hash: u64,
    peers: Vec<Option<(Box<str>, u64)>>,
    /// The nodes that can be reached, this one included: the same number for all of them.
    view: u64,
    /// The view for which each node has registered its sessions.
    registered_views: Vec<u64>,
    /// When each node has said that it still reads its sessions.
    restoring_ms: Vec<u64>,
    /// Nodes that have not left the cluster and cannot be reached, for [`RESTORE_TIMEOUT_MS`] at most.
    lost: Vec<LostNode>,
    /// The nodes that adopt, or have adopted, the sessions of another one, by the name of that one.
    adopters: HashMap<Box<str>, Adopter, RandomState>,
    /// Whether the stored sessions of this node are known.
    is_restored: bool,
    /// Whether other nodes are not told of the sessions of this one, because another one may have adopted them.
    is_withholding: bool,
    view_since_ms: u64,
    is_settled: bool,
    now_ms: u64,
    /// The first time that the owner has set.
    started_ms: Option<u64>,
    local: HashMap<Box<str>, LocalSession, RandomState>,
    /// Sessions of client ids that this node owns.
    owned: HashMap<Box<str>, SessionRegistration, RandomState>,
    /// By their numbers.
    sent_claims: HashMap<u64, SentClaim, RandomState>,
    /// The number of the claim of each client id.
    sent_claim_of: HashMap<Box<str>, u64, RandomState>,
    takeovers: HashMap<u64, SessionTakeover, RandomState>,
    /// The number of the takeover of each client id.
    takeover_of: HashMap<Box<str>, u64, RandomState>,
    /// Claims that wait until all nodes have registered their sessions.
    waiting_claims: WaitingClaims,
    /// Requests to shards of this node to end a session, by their numbers.
    end_requests: HashMap<u64, EndRequest, RandomState>,
    last_request: u64,
    pub(crate) to_peers: Vec<(PeerNodeIx, SessionMessage)>,
    pub(crate) to_shards: Vec<(u16, ShardMessage)>,
}

/// The node with the highest hash owns a key.
pub(super) fn hash_of(key: u64, node: u64) -> u64 {
    // The finalizer of MurmurHash3: each bit of either affects all bits.
    let mut mixed = key ^ node.rotate_left(32);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

impl SessionDirectory {
    pub(crate) fn new(node: Arc<NodeState>, name: &str, max_peers: usize) -> Self {
        let name_hash = xxh3_64(name.as_bytes());
        Self {
            node,
            name: name.into(),
            name_hash,
            peers: vec![None; max_peers],
            view: name_hash,
            registered_views: vec![0; max_peers],
            restoring_ms: vec![0; max_peers],
            lost: Vec::new(),
            adopters: HashMap::default(),
            is_restored: false,
            is_withholding: false,
            view_since_ms: 0,
            is_settled: true,
            now_ms: 0,
            started_ms: None,
            local: HashMap::default(),
            owned: HashMap::default(),
            sent_claims: HashMap::default(),
            sent_claim_of: HashMap::default(),
            takeovers: HashMap::default(),
            takeover_of: HashMap::default(),
            waiting_claims: WaitingClaims::default(),
            end_requests: HashMap::default(),
            last_request: 0,
            to_peers: Vec::new(),
            to_shards: Vec::new(),
        }
    }

    fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.started_ms.get_or_insert(now_ms);
    }

    fn next_request(&mut self) -> u64 {
        self.last_request += 1;
        self.last_request
    }

    /// The node that owns a client id among those that can be reached.
    fn owner_of(&self, client_id: &str) -> SessionHolder {
        let id = xxh3_64(client_id.as_bytes());
        let peers = self.peers.iter().enumerate();
        let hashes = peers.filter_map(|(index, peer)| {
            let (_, name_hash) = peer.as_ref()?;
            Some((
                hash_of(id, *name_hash),
                Some(PeerNodeIx::from_position(index)),
            ))
        });
        let (_, owner) = hashes.fold((hash_of(id, self.name_hash), None), Ord::max);
        owner
    }

    pub(crate) fn peer_with_name(&self, name: &str) -> Option<PeerNodeIx> {
        let is_named = |peer: &Option<(Box<str>, u64)>| {
            peer.as_ref()
                .is_some_and(|(peer_name, _)| **peer_name == *name)
        };
        let position = self.peers.iter().position(is_named)?;
        Some(PeerNodeIx::from_position(position))
    }

    /// A node can be reached from now on.
    pub(crate) fn add_peer(&mut self, index: PeerNodeIx, name: &str, now_ms: u64) {
        self.peers[index.position()] = Some((name.into(), xxh3_64(name.as_bytes())));
        self.lost.retain(|lost| *lost.name != *name);
        self.registered_views[index.position()] = 0;
        self.restoring_ms[index.position()] = 0;
        self.change_view(now_ms);
    }

    /// A node cannot be reached any more: its sessions have no holder, and nobody waits for answers there.
    pub(crate) fn remove_peer(&mut self, index: PeerNodeIx, loss: PeerLoss, now_ms: u64) {
        let Some((name, _)) = self.peers[index.position()].take() else {
            return;
        };
        if loss != PeerLoss::Left {
            self.lost.push(LostNode {
                name,
                lost_ms: now_ms,
                is_reconnecting: loss == PeerLoss::Reconnecting,
            });
        }
        let is_gone = |claim: &SessionClaim| claim.from.holder() == Some(index);
        self.owned
            .retain(|_, registration| registration.holder != Some(index));
        self.waiting_claims.remove_all_of(Some(index));
        for takeover in self.takeovers.values_mut() {
            takeover.claims.retain(|claim| !is_gone(claim));
        }
        let is_from_gone = |request: &EndRequest| matches!(request, EndRequest::Peer { peer, .. } if *peer == index);
        self.end_requests
            .retain(|_, request| !is_from_gone(request));
        self.to_peers.retain(|&(to, _)| to != index);
        self.change_view(now_ms);
    }

    /// Registers the sessions of this node with their owners in the new view, and begins all decisions anew.
    fn change_view(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        self.view_since_ms = now_ms;
        self.is_settled = false;
        let hashes = self.peers.iter().flatten().map(|&(_, hash)| hash);
        self.view = hashes.fold(self.name_hash, |view, hash| view ^ hash);
        // What other nodes have registered stays valid where this node remains the owner.
        let mut owned = std::mem::take(&mut self.owned);
        owned.retain(|client_id, registration| {
            registration.holder.is_some() && self.owner_of(client_id).is_none()
        });
        self.owned = owned;
        self.register_all();
        self.report_registration();
        let takeovers = std::mem::take(&mut self.takeovers).into_values();
        let mut claims: Vec<SessionClaim> =
            takeovers.flat_map(|takeover| takeover.claims).collect();
        self.takeover_of.clear();
        claims.extend(self.waiting_claims.take_all());
        self.sent_claim_of.clear();
        for sent in std::mem::take(&mut self.sent_claims).into_values() {
            self.withdraw_from_earlier_owner(&sent);
            claims.push(SessionClaim {
                from: SessionClaimant::Shard(sent.shard),
                keep: sent.keep,
                client_id: sent.client_id,
                arrived_ms: now_ms,
            });
        }
        for claim in claims {
            self.decide_or_send(claim);
        }
        self.check_settled();
    }

    /// The former owner of a client id may still count as its owner at itself, and would decide the claim later.
    fn withdraw_from_earlier_owner(&mut self, sent: &SentClaim) {
        let is_reachable = self.peers[sent.owner.position()].is_some();
        let has_session = |local: &LocalSession| local.sessions > 0;
        if is_reachable
            && self.owner_of(&sent.client_id) != Some(sent.owner)
            && !self.local.get(&sent.client_id).is_some_and(has_session)
        {
            let client_id = sent.client_id.clone();
            let release = SessionMessage::Release { client_id };
            self.to_peers.push((sent.owner, release));
        }
    }

    /// Time passes: claims that waited too long are decided with what is known.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        if !self.is_restored || self.is_withholding {
            self.report_registration();
        }
        self.check_settled();
    }

    /// Whether [`tick`](Self::tick) has to be called soon.
    pub(crate) fn needs_tick(&self) -> bool {
        !self.waiting_claims.is_empty()
            || !self.is_restored
            || self.is_withholding
            || !self.lost.is_empty()
    }

    // Sessions of this node.

    /// A client wants its session (`keep`), or a new one, on a shard of this node.
    pub(crate) fn claim(&mut self, shard: u16, client_id: Box<str>, keep: bool) {
        self.local.entry(client_id.clone()).or_default().claims += 1;
        self.decide_or_send(SessionClaim {
            from: SessionClaimant::Shard(shard),
            keep,
            client_id,
            arrived_ms: self.now_ms,
        });
    }

    /// The client that has claimed its session has left. Unless the claim is answered at this moment, nobody decides it any more: it
    /// would end the session to which the client has connected meanwhile at another node.
    pub(crate) fn withdraw_claim(&mut self, shard: u16, client_id: Box<str>) {
        let waiting = self.waiting_claims.remove(&client_id, None);
        let sent = self.sent_claim_of.remove(&client_id);
        let sent = sent.and_then(|request| self.sent_claims.remove(&request));
        if waiting.is_some() || sent.is_some() {
            let outcome = SessionClaimOutcome::Unavailable;
            self.answer_shard(shard, client_id, false, outcome);
        }
    }

    fn decide_or_send(&mut self, claim: SessionClaim) {
        match (self.owner_of(&claim.client_id), claim.from) {
            (Some(owner), SessionClaimant::Shard(shard)) => {
                let request = self.next_request();
                let message = SessionMessage::Claim {
                    request,
                    keep: claim.keep,
                    client_id: claim.client_id.clone(),
                };
                self.to_peers.push((owner, message));
                self.sent_claim_of.insert(claim.client_id.clone(), request);
                let sent = SentClaim {
                    owner,
                    shard,
                    keep: claim.keep,
                    client_id: claim.client_id,
                };
                self.sent_claims.insert(request, sent);
            }
            _ => self.decide(claim),
        }
    }

    /// A shard has a session that it did not claim.
    pub(crate) fn add_session(
        &mut self,
        client_id: &str,
        since_ms: u64,
        is_provisional: bool,
        adopted_from: Option<OriginNode>,
    ) {
        self.add_local(client_id, since_ms, is_provisional);
        if let Some(local) = self.local.get_mut(client_id) {
            local.adopted_from = adopted_from;
            let session = *local;
            self.register(client_id, session);
        }
    }

    fn add_local(&mut self, client_id: &str, since_ms: u64, is_provisional: bool) {
        let local = self.local.entry(client_id.into()).or_default();
        local.sessions += 1;
        local.since_ms = since_ms;
        local.is_provisional = is_provisional;
        local.adopted_from = None;
    }

    /// A session of this node has ended, or a granted claim has not led to one.
    pub(crate) fn remove_session(&mut self, client_id: &str) {
        if let Some(local) = self.local.get_mut(client_id) {
            local.sessions = local.sessions.saturating_sub(1);
            self.release_if_unused(client_id);
        }
    }

    /// Tells the owner of a client id when this node has neither a session nor a claim of it any more.
    fn release_if_unused(&mut self, client_id: &str) {
        let is_used = |local: &LocalSession| local.sessions + local.claims > 0;
        if self.local.get(client_id).is_none_or(is_used) {
            return;
        }
        self.local.remove(client_id);
        match self.owner_of(client_id) {
            Some(owner) => {
                let client_id = client_id.into();
                let release = SessionMessage::Release { client_id };
                self.to_peers.push((owner, release));
            }
            None => self.handle_release(None, client_id),
        }
    }

    // What other nodes say.

    pub(crate) fn handle(&mut self, from: PeerNodeIx, message: SessionMessage, now_ms: u64) {
        self.set_now(now_ms);
        match message {
            SessionMessage::Claim {
                request,
                keep,
                client_id,
            } => self.decide(SessionClaim {
                from: SessionClaimant::Peer {
                    peer: from,
                    request,
                },
                keep,
                client_id,
                arrived_ms: now_ms,
            }),
            SessionMessage::Claimed { request, outcome } => {
                if let Some(sent) = self.sent_claims.remove(&request) {
                    self.sent_claim_of.remove(&sent.client_id);
                    self.answer_shard(sent.shard, sent.client_id, sent.keep, outcome);
                }
            }
            SessionMessage::Register {
                age_ms,
                is_provisional,
                adopted_from,
                client_id,
            } => {
                let registration = SessionRegistration {
                    holder: Some(from),
                    since_ms: now_ms.saturating_sub(age_ms),
                    is_provisional,
                    adopted_from,
                };
                self.handle_register(&client_id, registration);
            }
            SessionMessage::Release { client_id } => {
                self.forget_claims(from, &client_id);
                self.handle_release(Some(from), &client_id);
            }
            SessionMessage::TakeOver {
                request,
                keep,
                client_id,
            } => {
                let waiting = match request {
                    NO_ANSWER => EndRequest::Conflict {
                        client_id: client_id.clone(),
                    },
                    _ => EndRequest::Peer {
                        peer: from,
                        request,
                    },
                };
                self.end_local_session(&client_id, keep, waiting);
            }
            SessionMessage::TakenOver { request, kept } => self.finish_takeover(request, kept),
            SessionMessage::Registered { view } => {
                self.registered_views[from.position()] = view;
                self.check_settled();
            }
            SessionMessage::Restoring => {
                self.restoring_ms[from.position()] = now_ms;
                if std::mem::take(&mut self.registered_views[from.position()]) != 0 {
                    // It adopts the sessions of a node that has failed.
                    self.begin_waiting();
                }
            }
        }
    }

    /// Forgets what a node has claimed and does not want any more.
    fn forget_claims(&mut self, from: PeerNodeIx, client_id: &str) {
        self.waiting_claims.remove(client_id, Some(from));
        if let Some(request) = self.takeover_of.get(client_id)
            && let Some(takeover) = self.takeovers.get_mut(request)
        {
            let claims = &mut takeover.claims;
            claims.retain(|claim| claim.from.holder() != Some(from));
        }
    }

    fn handle_release(&mut self, holder: SessionHolder, client_id: &str) {
        let registration = self.owned.get(client_id);
        if registration.is_some_and(|registration| registration.holder == holder) {
            self.owned.remove(client_id);
        }
    }
}
