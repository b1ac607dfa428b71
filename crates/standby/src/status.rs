//! What people see of the copies of sessions.

use cluster::NodeName;

/// Where the copy of the sessions of this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyPhase {
    /// There is no other node that could keep a copy, or the setting is off.
    #[default]
    NoStandby,
    /// The standby is receiving the sessions. Acknowledgements do not wait for it.
    Copying,
    /// The standby has everything that was acknowledged.
    Current,
    /// The standby was lost. Acknowledgements wait until the cluster knows that.
    RemovingStandby,
    /// This node does not know yet whether another one has adopted its sessions. Acknowledgements wait.
    Examining,
    /// Another node adopts the sessions of this one, and this one abandons them.
    Adopted,
}

/// The copy of the sessions of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnCopyStatus {
    pub phase: CopyPhase,
    /// The standby, or the node that has adopted the sessions.
    pub node: Option<NodeName>,
    /// Bytes on their way to the standby.
    pub unconfirmed_bytes: u64,
    /// All bytes that were sent to standbys.
    pub sent_bytes: u64,
    pub last_error: Option<String>,
}

/// The copy of the sessions of another node at this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptCopyStatus {
    pub node: NodeName,
    /// Whether this node may adopt the sessions.
    pub is_standby: bool,
    /// While the sessions are adopted: those that were processed, and all.
    pub adoption: Option<(u64, u64)>,
    pub received_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StandbyStatus {
    pub own: OwnCopyStatus,
    /// Sorted by name.
    pub kept: Vec<KeptCopyStatus>,
    /// Sessions that this node has adopted since its start.
    pub adopted_sessions: u64,
    /// Adoptions since its start.
    pub adoptions: u64,
}
