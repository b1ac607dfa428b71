//! What copies need of the rest of the node.

use std::collections::BTreeSet;

use series::DeviceNo;

/// The devices that this node knows. Methods may wait for a disk.
pub trait CopiedDevices: Send + Sync {
    /// Ids of the products whose devices are copied.
    fn products(&self) -> BTreeSet<String>;

    /// Id and product of a device; `None`: there is none with this number.
    ///
    /// # Errors
    /// If the devices cannot be read.
    fn device(&self, number: DeviceNo) -> Result<Option<(String, String)>, String>;

    /// Number and product of a device; `None`: there is none with this id.
    ///
    /// # Errors
    /// If the devices cannot be read.
    fn by_id(&self, id: &str) -> Result<Option<(DeviceNo, String)>, String>;
}

/// The other nodes. The other end answers with [`TelemetryCopies::answer`](crate::TelemetryCopies::answer).
pub trait CopyPeers: Send + Sync {
    /// Names of the other nodes that can be reached.
    fn reachable(&self) -> Vec<String>;

    /// Waits for the answer for a few seconds at most. The request may arrive although an error is returned.
    ///
    /// # Errors
    /// Why there is no answer.
    fn request(&self, node: &str, request: &[u8]) -> Result<Vec<u8>, String>;

    /// Sends a request without waiting for the answer: a node that has just failed must not delay it to others.
    fn notify(&self, node: &str, request: &[u8]);
}
