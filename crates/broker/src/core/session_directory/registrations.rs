//! What nodes tell each other about the sessions that they have, and how long they wait for that.

use super::{
    CLAIM_TIMEOUT_MS, CUT_OFF_TIMEOUT_MS, LocalSession, LostNode, RECONNECT_TIMEOUT_MS,
    REGISTRATION_TIMEOUT_MS, RESTORE_TIMEOUT_MS, SessionDirectory, SessionMessage,
    SessionRegistration,
};
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::shard_messages::SessionClaimOutcome;
use crate::core::tables::TableIx as _;

impl SessionDirectory {
    /// Tells the other nodes whether they know all sessions of this one that concern them.
    pub(super) fn report_registration(&mut self) {
        for position in 0..self.peers.len() {
            if self.peers[position].is_some() {
                let report = match self.is_restored && !self.is_withholding {
                    true => SessionMessage::Registered { view: self.view },
                    false => SessionMessage::Restoring,
                };
                let to = PeerNodeIx::from_position(position);
                self.to_peers.push((to, report));
            }
        }
    }

    /// Further sessions of this node, which other nodes do not know yet, will be added.
    pub(crate) fn hold_restore(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        self.is_restored = false;
        self.begin_waiting();
        self.report_registration();
    }

    /// Claims wait from now on until all nodes have registered their sessions.
    pub(super) fn begin_waiting(&mut self) {
        if self.is_settled {
            self.is_settled = false;
            self.view_since_ms = self.now_ms;
        }
    }

    /// All sessions that this node has stored are added.
    pub(crate) fn finish_restore(&mut self) {
        self.is_restored = true;
        self.report_registration();
        self.check_settled();
    }

    /// Whether other nodes are not told of the sessions of this one; afterwards they are.
    pub(crate) fn withhold_registrations(&mut self, is_withholding: bool, now_ms: u64) {
        self.set_now(now_ms);
        if std::mem::replace(&mut self.is_withholding, is_withholding) == is_withholding {
            return;
        }
        if !is_withholding {
            self.register_all();
        }
        self.report_registration();
        if !is_withholding && self.is_settled {
            for claim in self.waiting_claims.take_all() {
                self.decide(claim);
            }
        }
    }

    /// Registers all sessions of this node.
    pub(super) fn register_all(&mut self) {
        let local = std::mem::take(&mut self.local);
        for (client_id, session) in &local {
            if session.sessions > 0 {
                self.register(client_id, *session);
            }
        }
        self.local = local;
    }

    /// Registers a session of this node with the owner of its client id.
    pub(super) fn register(&mut self, client_id: &str, session: LocalSession) {
        if self.is_withholding {
            return;
        }
        let LocalSession {
            since_ms,
            is_provisional,
            adopted_from,
            ..
        } = session;
        let age_ms = self.now_ms.saturating_sub(since_ms);
        match self.owner_of(client_id) {
            Some(owner) => {
                let client_id = client_id.into();
                let register = SessionMessage::Register {
                    age_ms,
                    is_provisional,
                    adopted_from,
                    client_id,
                };
                self.to_peers.push((owner, register));
            }
            None => {
                let registration = SessionRegistration {
                    holder: None,
                    since_ms,
                    is_provisional,
                    adopted_from,
                };
                self.handle_register(client_id, registration);
            }
        }
    }

    /// Whether all nodes that can be reached have registered their sessions, or are not waited for any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Whether other nodes are not told of the sessions of this one.
    pub(crate) fn is_withholding(&self) -> bool {
        self.is_withholding
    }

    /// Whether a node that can be reached has registered its sessions, and has not said since that it does not.
    pub(crate) fn has_registered(&self, peer: PeerNodeIx) -> bool {
        self.registered_views[peer.position()] != 0
    }

    /// Whether all nodes, also those that are about to return, have registered their sessions. A node that has just started does
    /// not know which ones were lost before.
    pub(super) fn is_complete(&self) -> bool {
        let mut registered = self.peers.iter().zip(&self.registered_views);
        let started_ms = self.started_ms.unwrap_or(self.now_ms);
        self.is_restored
            && self.now_ms >= started_ms + RESTORE_TIMEOUT_MS
            && self.lost.is_empty()
            && registered.all(|(peer, &view)| peer.is_none() || view == self.view)
    }

    /// Whether a node that has not registered its sessions may still do so.
    fn is_registering(&self) -> bool {
        let is_in_time = |reported_ms: u64| {
            let since_ms = self.view_since_ms.max(reported_ms);
            let until_ms = since_ms + REGISTRATION_TIMEOUT_MS;
            self.now_ms < until_ms.min(self.view_since_ms + RESTORE_TIMEOUT_MS)
        };
        let nodes = self.peers.iter().zip(&self.registered_views);
        let mut nodes = nodes.zip(&self.restoring_ms);
        let is_waited_for = |((peer, &view), &reported_ms): ((&Option<_>, &u64), &u64)| {
            peer.is_some() && view != self.view && is_in_time(reported_ms)
        };
        nodes.any(is_waited_for)
            || !self.is_restored && is_in_time(self.now_ms)
            || self.awaits_lost_nodes()
    }

    /// Whether clients may get their sessions of lost nodes by waiting, instead of new ones that would replace these.
    fn awaits_lost_nodes(&self) -> bool {
        let is_awaited = |lost: &LostNode| {
            lost.is_reconnecting && self.now_ms < lost.lost_ms + RECONNECT_TIMEOUT_MS
        };
        let is_recent = |lost: &&LostNode| self.now_ms < lost.lost_ms + CUT_OFF_TIMEOUT_MS;
        let reachable = 1 + self.peers.iter().flatten().count();
        // If most nodes are lost at once, this one was not scheduled or not connected, and others have adopted its sessions.
        self.lost.iter().any(is_awaited) || self.lost.iter().filter(is_recent).count() > reachable
    }

    /// Decides the claims that have waited for other nodes, if these have answered or the time is over.
    pub(super) fn check_settled(&mut self) {
        let now_ms = self.now_ms;
        (self.lost).retain(|lost| now_ms < lost.lost_ms + RESTORE_TIMEOUT_MS);
        if !self.is_settled && !self.is_registering() {
            self.is_settled = true;
            for claim in self.waiting_claims.take_all() {
                self.decide(claim);
            }
        }
        // Those that remain wait for other nodes.
        let Some(until_ms) = now_ms.checked_sub(CLAIM_TIMEOUT_MS) else {
            return;
        };
        for claim in self.waiting_claims.take_until(until_ms) {
            match !claim.keep && self.is_decided_here(&claim) {
                // An earlier session ends when its node registers it.
                true => self.decide_with_what_is_known(claim),
                false => self.answer(&claim, SessionClaimOutcome::Unavailable),
            }
        }
    }
}
