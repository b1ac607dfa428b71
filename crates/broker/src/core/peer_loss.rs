//! Why another node cannot be reached any more.

/// What is known of a node that cannot be reached any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerLoss {
    /// It has left the cluster in order: nothing waits for its return.
    Left,
    /// Nothing arrives from it.
    Silent,
    /// It runs, and will be reachable again at once: it has started again, or its channel is opened anew.
    Reconnecting,
}
