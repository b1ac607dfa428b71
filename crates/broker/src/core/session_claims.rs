//! Sessions of a node in a cluster. A shard claims a client id before it creates a session, so that at most one node
//! has a session of it. Who may have it is decided by [`SessionDirectory`](super::session_directory::SessionDirectory).

use mqtt::ReasonCode;
use std::sync::Arc;

use super::connect::connect_rejection;
use super::connection::{CloseReason, ConnectionPhase};
use super::origin_node::OriginNode;
use super::pending_claims::{PendingClaim, SessionGrant};
use super::shard::{ConnectionAction, Shard};
use super::shard_messages::{SessionClaimOutcome, ShardMessage};
use super::tables::ConnectionIx;
use crate::metrics::Metric;

impl Shard {
    /// Claims a client id that no session of this node has. The connection waits for the answer.
    pub(super) fn claim_in_cluster(
        &mut self,
        at: ConnectionIx,
        router: u16,
        client_id: &Arc<str>,
        keep: bool,
        connect: Vec<u8>,
    ) -> Result<ConnectionAction, CloseReason> {
        let connection = &mut self.delivery.connections[at];
        connection.phase = ConnectionPhase::Authenticating;
        let extra = connection.extra();
        extra.connect = connect;
        extra.claimed_client_id = Some(client_id.clone());
        let claim = PendingClaim {
            connection: at,
            serial: connection.serial,
            keep,
            claimed_keep: keep,
            is_withdrawn: false,
        };
        let Some(earlier) = self.pending_claims.get_mut(client_id) else {
            self.pending_claims.insert(client_id.clone(), claim);
            let client_id = (&**client_id).into();
            let message = ShardMessage::ClaimSession { client_id, keep };
            self.shard_queues.send(router, message);
            return Ok(ConnectionAction::AwaitResume);
        };
        // The claim continues for the later connection.
        let claim = PendingClaim {
            claimed_keep: earlier.claimed_keep,
            is_withdrawn: earlier.is_withdrawn,
            ..claim
        };
        let earlier = std::mem::replace(earlier, claim);
        if self.is_waiting_for_claim(&earlier) {
            let why = connect_rejection(
                ReasonCode::SESSION_TAKEN_OVER,
                "another connection with this client id was accepted meanwhile",
            );
            self.close(earlier.connection, why);
        }
        Ok(ConnectionAction::AwaitResume)
    }

    /// A connection is closed that may wait for the answer to a claim.
    pub(super) fn withdraw_claim(&mut self, at: ConnectionIx) {
        let connection = &mut self.delivery.connections[at];
        let serial = connection.serial;
        let extra = connection.extra.as_deref_mut();
        let Some(client_id) = extra.and_then(|extra| extra.claimed_client_id.take()) else {
            return;
        };
        if let Some(claim) = self.pending_claims.get_mut(&client_id)
            && (claim.connection, claim.serial) == (at, serial)
            && !std::mem::replace(&mut claim.is_withdrawn, true)
            && let Some(router) = self.node_router
        {
            let client_id = (&*client_id).into();
            let message = ShardMessage::WithdrawClaim { client_id };
            self.shard_queues.send(router, message);
        }
    }

    /// Claims a client id again, for a connection that has not claimed it itself.
    fn claim_again(&mut self, id: Arc<str>, claim: PendingClaim) {
        if let Some(router) = self.node_router {
            let message = ShardMessage::ClaimSession {
                client_id: (&*id).into(),
                keep: claim.keep,
            };
            self.shard_queues.send(router, message);
        }
        let claimed_keep = claim.keep;
        self.pending_claims.insert(
            id,
            PendingClaim {
                claimed_keep,
                is_withdrawn: false,
                ..claim
            },
        );
    }

    fn is_waiting_for_claim(&self, claim: &PendingClaim) -> bool {
        let connection = self.delivery.connections.get(claim.connection);
        connection.is_some_and(|connection| {
            connection.serial == claim.serial && connection.phase == ConnectionPhase::Authenticating
        })
    }

    pub(super) fn handle_session_claimed(&mut self, client_id: &str, outcome: SessionClaimOutcome) {
        let Some((id, claim)) = self.pending_claims.remove_entry(client_id) else {
            return;
        };
        let at = claim.connection;
        let is_waiting = self.is_waiting_for_claim(&claim);
        let rejection = match outcome {
            SessionClaimOutcome::Granted { is_provisional } => {
                // It was adopted from another node meanwhile, and announced then.
                let had_session = self.by_client_id.contains_key(&*id);
                let mut is_established = false;
                if is_waiting {
                    self.delivery.connections[at].phase = ConnectionPhase::AwaitConnect;
                    let raw = self.delivery.connections[at].extra().connect.clone();
                    match self.establish_granted_session(at, SessionGrant { is_provisional }) {
                        Ok(_) => is_established = true,
                        Err(closing) => self.reject_connect(at, closing, &raw),
                    }
                    self.to_wake.push(at);
                }
                let has_session = self.by_client_id.contains_key(&*id);
                if !has_session {
                    self.node.directory.release(&id, self.id);
                }
                if !has_session || had_session && !is_established {
                    self.announce_session_end(&id);
                }
                return;
            }
            // The client that waits now does not want the session that another node keeps.
            SessionClaimOutcome::Elsewhere { .. }
                if is_waiting && claim.claimed_keep && !claim.keep =>
            {
                return self.claim_again(id, claim);
            }
            SessionClaimOutcome::Unavailable if is_waiting && claim.is_withdrawn => {
                return self.claim_again(id, claim);
            }
            SessionClaimOutcome::Elsewhere { node }
                if is_waiting && self.open_tunnel(at, &node) =>
            {
                if !self.by_client_id.contains_key(&*id) {
                    self.node.directory.release(&id, self.id);
                }
                self.to_wake.push(at);
                return;
            }
            SessionClaimOutcome::Elsewhere { node } => connect_rejection(
                ReasonCode::USE_ANOTHER_SERVER,
                format!("the session of this client is on node {node} of the cluster"),
            ),
            SessionClaimOutcome::Unavailable => connect_rejection(
                ReasonCode::SERVER_BUSY,
                "the nodes of the cluster have not agreed on the place of the session, try again later",
            ),
        };
        // The session may have been adopted from another node meanwhile.
        if !self.by_client_id.contains_key(&*id) {
            self.node.directory.release(&id, self.id);
        }
        if is_waiting {
            self.delivery.connections[at].phase = ConnectionPhase::AwaitConnect;
            let raw = std::mem::take(&mut self.delivery.connections[at].extra().connect);
            self.reject_connect(at, rejection, &raw);
            self.to_wake.push(at);
        }
        self.close_pending_connections();
    }

    /// Tells the other nodes of a session that was not claimed.
    pub(super) fn announce_session(
        &mut self,
        client_id: &str,
        since_ms: u64,
        is_provisional: bool,
        adopted_from: Option<OriginNode>,
    ) {
        if let Some(router) = self.node_router {
            let client_id = client_id.into();
            let message = ShardMessage::SessionStarted {
                client_id,
                since_ms,
                is_provisional,
                adopted_from,
            };
            self.shard_queues.send(router, message);
        }
    }

    /// Tells the other nodes that they know all sessions of this shard.
    pub(crate) fn announce_restored(&mut self) {
        if let Some(router) = self.node_router {
            self.shard_queues
                .send(router, ShardMessage::SessionsRestored);
        }
    }

    pub(super) fn announce_session_end(&mut self, client_id: &str) {
        if let Some(router) = self.node_router {
            let client_id = client_id.into();
            self.shard_queues
                .send(router, ShardMessage::SessionEnded { client_id });
        }
    }

    /// The client has connected to another node: ends its session here, except a durable one that it resumes (`keep`).
    /// Returns whether the session stays.
    pub(super) fn end_session_for_cluster(
        &mut self,
        client_id: &str,
        keep: bool,
        is_conflict: bool,
    ) -> bool {
        let Some(&session) = self.by_client_id.get(client_id) else {
            return false;
        };
        if is_conflict && std::mem::take(&mut self.delivery.sessions[session].is_replacement) {
            // The earlier session may be meant. The owner decides again, when it knows this one.
            return true;
        }
        if keep && self.delivery.sessions[session].expiry_s > 0 {
            return true;
        }
        if self.delivery.sessions[session].connection.is_some() {
            self.metrics().inc(Metric::TakenOver);
        }
        let why = CloseReason::new(ReasonCode::SESSION_TAKEN_OVER, "taken_over");
        self.terminate_session(session, why);
        false
    }
}
