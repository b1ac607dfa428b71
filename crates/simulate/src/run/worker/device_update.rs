//! The state of an installation on a device.

use super::chunked_download::ChunkedDownload;

/// What a device installs or has installed, by the number of the plan: at most one firmware and one software.
pub(super) type DeviceUpdates = [Option<DeviceUpdate>; 2];

#[derive(Debug)]
pub(super) struct DeviceUpdate {
    pub(super) title: String,
    pub(super) version: String,
    /// Of the package, in JetLinks' protocol.
    pub(super) firmware_id: String,
    pub(super) begun_ns: u64,
    /// When the installation ends, or a request is repeated.
    pub(super) due_ns: u64,
    pub(super) result: UpdateResult,
    pub(super) stage: UpdateStage,
}

/// How an installation is going to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateResult {
    Success,
    Failure,
    /// The device reports nothing.
    Silence,
}

#[derive(Debug)]
pub(super) enum UpdateStage {
    Downloading {
        download: Box<ChunkedDownload>,
        attempts: u8,
    },
    /// The image is downloaded by its URL.
    Fetching,
    Installing,
    Ended {
        is_installed: bool,
    },
}

impl UpdateStage {
    pub(super) fn is_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}
