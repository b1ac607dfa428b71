//! Settings of firmware.

use cluster::NodeName;

use crate::signature::TrustSettings;

/// Bytes of a PUBLISH besides its payload: its topic has at most 120 bytes.
const PACKET_OVERHEAD_BYTES: u64 = 160;

/// Settings of the section `[firmware]`, and limits of the node that concern firmware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirmwareSettings {
    pub trust: TrustSettings,
    /// Address of the HTTP API as devices reach it, without a final slash; empty: URLs are paths.
    pub public_url: String,
    /// Memory of chunks that are kept for other devices.
    pub cache_bytes: u64,
    /// Largest MQTT packet of the node.
    pub max_packet_bytes: u64,
    /// The name of the node in its cluster; `None`: it is in no cluster.
    pub node: Option<NodeName>,
}

impl Default for FirmwareSettings {
    fn default() -> Self {
        Self {
            trust: TrustSettings::default(),
            public_url: String::new(),
            cache_bytes: 64 << 20,
            max_packet_bytes: 1 << 20,
            node: None,
        }
    }
}

impl FirmwareSettings {
    pub(crate) fn max_chunk_bytes(&self) -> u64 {
        self.max_packet_bytes.saturating_sub(PACKET_OVERHEAD_BYTES)
    }
}
