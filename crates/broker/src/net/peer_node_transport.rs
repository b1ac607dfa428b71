//! What a node router needs of the system that connects the nodes of a cluster.

use bytes::Bytes;

use crate::core::peer_node_ix::PeerNodeIx;

/// A node while it can be reached. A node that is lost and reached again has another `channel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerNodeConnection {
    pub index: PeerNodeIx,
    pub channel: u64,
}

/// Carries messages to the other nodes of a cluster. Messages to a node arrive once and in order, until the node is
/// reported as unreachable. What is meant for a node that was lost meanwhile is discarded, also if it can be reached again.
pub trait PeerNodeTransport: Send + Sync + 'static {
    /// Queues a message without waiting.
    fn send(&self, peer: PeerNodeConnection, message: Bytes);

    /// Bytes that wait for a node or are not yet acknowledged by it.
    fn queued_bytes(&self, peer: PeerNodeConnection) -> usize;

    /// Gives a node up, so that it is reported as unreachable and then reached anew.
    fn reconnect(&self, peer: PeerNodeConnection);
}
