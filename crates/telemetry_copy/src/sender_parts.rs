//! What a sender needs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::copied_series::CopiedSeries;
use crate::ports::{CopiedDevices, CopyPeers};

pub(crate) struct CopySenderParts {
    pub(crate) node: String,
    pub(crate) series: CopiedSeries,
    pub(crate) devices: Arc<dyn CopiedDevices>,
    pub(crate) peers: Arc<dyn CopyPeers>,
    /// For the record of the copy, and for deletions.
    pub(crate) directory: PathBuf,
    pub(crate) random: fn() -> u64,
    pub(crate) now: fn() -> Instant,
}
