//! That a node adopts the sessions of another one, and what happens to sessions that may be at two nodes.

use super::peer_node_ix::PeerNodeIx;

/// What happens to the stored sessions of a node while they may be at another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionHold {
    /// They are at this node.
    Released,
    /// Other nodes are not told that they are here; no session expires, and no will or delayed message is published.
    Withheld,
    /// In addition, clients wait for their sessions.
    Held,
}

/// The sessions of a node are being adopted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Succession {
    pub(crate) successor: Successor,
    /// When the successor has reported it last, or when this node has.
    pub(crate) reported_ms: u64,
}

/// This node has adopted the sessions of another one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecentAdoption {
    pub(crate) ended_ms: u64,
    /// An earlier run of this node has adopted them.
    pub(crate) is_of_earlier_run: bool,
}

/// Another node has adopted the sessions of a node, which has not ended them yet as far as is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abandonment {
    /// Whether the node has said since that it does not register its sessions, because they may be at another one.
    pub(crate) has_noticed: bool,
    /// Since when the node could have said so.
    pub(crate) since_ms: u64,
}

/// Who adopts the sessions of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Successor {
    ThisNode,
    Peer(PeerNodeIx),
    /// A node that cannot be reached any more.
    Unreachable,
    /// The node has its sessions itself again; it is in this slot.
    Returned(u8),
}
