//! What operators see of copies.

/// The state of the copy of this node's telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyState {
    /// No product has telemetry that is to be copied.
    NotWanted,
    /// There is no other node.
    NoStandby,
    /// The standby cannot be reached.
    Interrupted,
    /// The standby lacks rows, which are being sent.
    Completing,
    /// The standby has everything but what was stored in the last moments.
    Complete,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnCopyStatus {
    pub state: CopyState,
    pub standby: Option<String>,
    /// Bytes that wait to be sent.
    pub queued_bytes: u64,
    /// Age of the first row that waits.
    pub lag_ms: u64,
    pub sent_rows: u64,
    pub sent_bytes: u64,
    pub last_error: Option<String>,
}

/// The copy of the telemetry of another node at this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptCopyStatus {
    pub key: String,
    pub node: String,
    pub is_complete: bool,
    pub is_orphan: bool,
    /// Size of its files.
    pub bytes: u64,
    /// When the node has last sent something, by its clock.
    pub sent_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryCopyStatus {
    pub own: OwnCopyStatus,
    /// Sorted by key.
    pub kept: Vec<KeptCopyStatus>,
}
