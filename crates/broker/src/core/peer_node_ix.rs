//! The index of another node of a cluster.

use super::tables::TableIx;
use crate::config::MAX_PEER_NODES;

/// Index of another node while it can be reached, below [`MAX_PEER_NODES`]. It is not the slot of the node, which remains
/// the same while the node cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerNodeIx(u8);

impl PeerNodeIx {
    /// Panics if `index` is not below [`MAX_PEER_NODES`].
    pub fn new(index: u8) -> Self {
        assert!(
            usize::from(index) < MAX_PEER_NODES,
            "a node knows at most {MAX_PEER_NODES} others"
        );
        Self(index)
    }

    pub fn get(self) -> u8 {
        self.0
    }

    /// The bit of this node in a set of nodes.
    pub(crate) fn bit(self) -> u64 {
        1 << self.0
    }
}

impl TableIx for PeerNodeIx {
    fn from_position(position: usize) -> Self {
        Self(position as u8)
    }

    fn position(self) -> usize {
        usize::from(self.0)
    }
}

/// Groups messages by the node that they are for. Those to one node keep their order.
pub(crate) fn group_by_peer<T>(mut messages: Vec<(PeerNodeIx, T)>) -> Vec<(PeerNodeIx, Vec<T>)> {
    // Stable.
    messages.sort_by_key(|&(peer, _)| peer);
    let mut groups: Vec<(PeerNodeIx, Vec<T>)> = Vec::new();
    for (peer, message) in messages {
        match groups.last_mut() {
            Some((last, of_peer)) if *last == peer => of_peer.push(message),
            _ => groups.push((peer, vec![message])),
        }
    }
    groups
}
