//! Subscriptions that wait until it is decided which client of a cluster has an exclusive subscription.

use std::sync::Arc;

use super::shard_messages::ExclusiveOutcome;
use super::tables::ConnectionIx;

/// What follows when all claims of a request are answered. `S` is the shard that has made them.
pub(crate) enum ExclusiveContinuation<S> {
    /// The SUBSCRIBE packet of a connection, which is held meanwhile.
    Packet {
        connection: ConnectionIx,
        serial: u32,
        packet: Vec<u8>,
    },
    /// A request of the control plane.
    Request(Box<dyn FnOnce(&mut S) + Send>),
}

/// Subscriptions of a client that wait for the answers to claims.
pub(crate) struct PendingExclusives<S> {
    pub(super) client_id: Arc<str>,
    /// By topics.
    pub(super) claims: Vec<(Box<str>, Option<ExclusiveOutcome>)>,
    pub(super) continuation: ExclusiveContinuation<S>,
}
