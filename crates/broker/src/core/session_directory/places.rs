//! Who has, claims or adopts sessions.

use crate::core::peer_node_ix::PeerNodeIx;

/// This node, or another one by its index.
pub(super) type SessionHolder = Option<PeerNodeIx>;

/// The node that adopts the sessions of another one, or has adopted them.
pub(super) struct Adopter {
    pub(super) name: Box<str>,
    /// When this node has learned of it.
    pub(super) since_ms: u64,
    /// Later adoptions have larger numbers.
    pub(super) number: u64,
}

/// A claim of a client of this node or of another one.
pub(super) struct SessionClaim {
    pub(super) from: SessionClaimant,
    pub(super) keep: bool,
    pub(super) client_id: Box<str>,
    pub(super) arrived_ms: u64,
}

#[derive(Clone, Copy)]
pub(super) enum SessionClaimant {
    Shard(u16),
    Peer { peer: PeerNodeIx, request: u64 },
}

impl SessionClaimant {
    pub(super) fn holder(self) -> SessionHolder {
        match self {
            SessionClaimant::Shard(_) => None,
            SessionClaimant::Peer { peer, .. } => Some(peer),
        }
    }
}
