//! What a repair of a store could not keep.

use std::path::PathBuf;

/// Result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreRepairReport {
    /// Descriptions of lost data, segment by segment.
    pub lost: Vec<String>,
    /// The damaged files, kept beside the repaired ones.
    pub damaged_copies: Vec<PathBuf>,
    /// Remaining damage, and how to deal with it.
    pub unrepaired: Vec<String>,
}
