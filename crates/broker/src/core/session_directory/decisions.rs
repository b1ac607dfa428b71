//! What the owner of a client id decides, and sessions that end for another node.

use std::collections::VecDeque;

use super::places::{SessionClaim, SessionClaimant, SessionHolder};
use super::{EndRequest, SessionDirectory, SessionMessage, SessionRegistration, SessionTakeover};
use crate::core::shard_messages::{SessionClaimOutcome, ShardMessage};
use crate::core::tables::TableIx as _;

impl SessionDirectory {
    pub(super) fn decide(&mut self, claim: SessionClaim) {
        match self.is_settled && self.is_decided_here(&claim) {
            true => self.decide_with_what_is_known(claim),
            false => self.waiting_claims.push(claim),
        }
    }

    pub(super) fn is_decided_here(&self, claim: &SessionClaim) -> bool {
        // While its own sessions are withheld, this node does not know them as registered.
        let is_withheld = self.is_withholding && claim.from.holder().is_some();
        // The sender may know already, or still, other nodes than this one.
        !is_withheld && self.owner_of(&claim.client_id).is_none()
    }

    pub(super) fn decide_with_what_is_known(&mut self, claim: SessionClaim) {
        if let Some(request) = self.takeover_of.get(&claim.client_id)
            && let Some(takeover) = self.takeovers.get_mut(request)
        {
            takeover.claims.push_back(claim);
            return;
        }
        let holder = claim.from.holder();
        match self.owned.get(&claim.client_id) {
            // The client has connected there since. The node of the claim has failed, or its withdrawal is on its way.
            Some(registration)
                if registration.holder != holder
                    && !claim.keep
                    && registration.since_ms > claim.arrived_ms =>
            {
                self.answer(&claim, SessionClaimOutcome::Unavailable);
            }
            Some(registration) if registration.holder != holder => {
                self.take_over(registration.holder, claim);
            }
            _ => self.grant(&claim),
        }
    }

    pub(super) fn grant(&mut self, claim: &SessionClaim) {
        let is_provisional = claim.keep && !self.is_complete();
        let registration = SessionRegistration {
            holder: claim.from.holder(),
            since_ms: self.now_ms,
            is_provisional,
            adopted_from: None,
        };
        self.owned.insert(claim.client_id.clone(), registration);
        self.answer(claim, SessionClaimOutcome::Granted { is_provisional });
    }

    pub(super) fn answer(&mut self, claim: &SessionClaim, outcome: SessionClaimOutcome) {
        match claim.from {
            SessionClaimant::Shard(shard) => {
                self.answer_shard(shard, claim.client_id.clone(), claim.keep, outcome)
            }
            SessionClaimant::Peer { peer, request } => {
                let claimed = SessionMessage::Claimed { request, outcome };
                self.to_peers.push((peer, claimed));
            }
        }
    }

    pub(super) fn answer_shard(
        &mut self,
        shard: u16,
        client_id: Box<str>,
        keep: bool,
        outcome: SessionClaimOutcome,
    ) {
        if let Some(local) = self.local.get_mut(&client_id) {
            local.claims = local.claims.saturating_sub(1);
        }
        match outcome {
            SessionClaimOutcome::Granted { is_provisional } => {
                self.add_granted_session(&client_id, keep, is_provisional);
            }
            _ => self.release_if_unused(&client_id),
        }
        let message = ShardMessage::SessionClaimed { client_id, outcome };
        self.to_shards.push((shard, message));
    }

    /// The client gets a new session, unless this node has adopted its session meanwhile: that is as old as before, also for the owner,
    /// who has granted a new one.
    fn add_granted_session(&mut self, client_id: &str, keep: bool, is_provisional: bool) {
        if let Some(local) = self.local.get_mut(client_id)
            && keep
            && local.adopted_from.is_some()
            && local.sessions > 0
        {
            local.sessions += 1;
            let session = *local;
            return self.register(client_id, session);
        }
        self.add_local(client_id, self.now_ms, is_provisional);
    }

    fn take_over(&mut self, holder: SessionHolder, claim: SessionClaim) {
        let request = self.next_request();
        let (client_id, keep) = (claim.client_id.clone(), claim.keep);
        let takeover = SessionTakeover {
            client_id: client_id.clone(),
            holder,
            claims: VecDeque::from([claim]),
        };
        self.takeovers.insert(request, takeover);
        self.takeover_of.insert(client_id.clone(), request);
        match holder {
            Some(peer) => {
                let message = SessionMessage::TakeOver {
                    request,
                    keep,
                    client_id,
                };
                self.to_peers.push((peer, message));
            }
            None => self.end_local_session(&client_id, keep, EndRequest::Own(request)),
        }
    }

    /// Requests the end of a session from the shard that has it.
    pub(super) fn end_local_session(&mut self, client_id: &str, keep: bool, waiting: EndRequest) {
        let request = self.next_request();
        let is_conflict = matches!(waiting, EndRequest::Conflict { .. });
        self.end_requests.insert(request, waiting);
        match self.node.directory.shard_of(client_id) {
            Some(shard) => {
                let message = ShardMessage::EndSession {
                    client_id: client_id.into(),
                    keep,
                    is_conflict,
                    request,
                };
                self.to_shards.push((shard, message));
            }
            None => self.handle_session_end(request, false),
        }
    }

    /// A shard has ended a session as requested, or keeps it.
    pub(crate) fn handle_session_end(&mut self, request: u64, kept: bool) {
        match self.end_requests.remove(&request) {
            Some(EndRequest::Own(request)) => self.finish_takeover(request, kept),
            Some(EndRequest::Peer { peer, request }) => {
                let taken_over = SessionMessage::TakenOver { request, kept };
                self.to_peers.push((peer, taken_over));
            }
            Some(EndRequest::Conflict { client_id }) if kept => {
                let local = self.local.get(&client_id).copied();
                if let Some(session) = local.filter(|local| local.sessions > 0) {
                    self.register(&client_id, session);
                }
            }
            _ => {}
        }
    }

    /// The node that had a session has ended it, or keeps it.
    pub(super) fn finish_takeover(&mut self, request: u64, kept: bool) {
        let Some(takeover) = self.takeovers.remove(&request) else {
            return;
        };
        self.takeover_of.remove(&takeover.client_id);
        let mut claims = takeover.claims;
        if !kept {
            // Unless another node has registered a session meanwhile, the first claim is granted.
            self.handle_release(takeover.holder, &takeover.client_id);
        } else if let Some(claim) = claims.pop_front() {
            let name = match takeover.holder {
                None => Some(&self.name),
                Some(peer) => (self.peers[peer.position()].as_ref()).map(|(name, _)| name),
            };
            let outcome = match name {
                Some(node) => SessionClaimOutcome::Elsewhere { node: node.clone() },
                None => SessionClaimOutcome::Unavailable,
            };
            self.answer(&claim, outcome);
        }
        for claim in claims {
            self.decide(claim);
        }
    }
}
