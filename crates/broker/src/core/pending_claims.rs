//! Connections that wait until the cluster has granted the session of their client id.

use std::sync::Arc;

use super::hash_state::RandomState;
use hashbrown::HashMap;

use super::tables::ConnectionIx;

/// A connection that waits for the answer to the claim of its client id.
pub(crate) struct PendingClaim {
    pub(super) connection: ConnectionIx,
    pub(super) serial: u32,
    /// Whether the client resumes its session, and whether that was claimed.
    pub(super) keep: bool,
    pub(super) claimed_keep: bool,
    /// Its connection was closed. If another one waits since, the session is claimed again.
    pub(super) is_withdrawn: bool,
}

/// Claims of a shard that are not answered yet, by client id; the shard holds the client id in the directory of its node
/// meanwhile.
pub(crate) type PendingClaims = HashMap<Arc<str>, PendingClaim, RandomState>;

/// The owner of a client id permits a session of it here, which counts as announced.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionGrant {
    /// As in [`Session`](super::session::Session).
    pub(super) is_provisional: bool,
}
