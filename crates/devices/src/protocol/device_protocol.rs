//! The protocols of devices, and sets of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A device protocol: topics and payload formats.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum DeviceProtocol {
    ThingsBoard,
    JetLinks,
    /// `tg/{deviceId}/...`
    Native,
    /// JSON messages on connections of relay endpoints.
    Relay,
}

impl DeviceProtocol {
    pub const ALL: [Self; 4] = [Self::ThingsBoard, Self::JetLinks, Self::Native, Self::Relay];

    pub fn as_str(self) -> &'static str {
        match self {
            DeviceProtocol::ThingsBoard => "thingsboard",
            DeviceProtocol::JetLinks => "jetlinks",
            DeviceProtocol::Native => "native",
            DeviceProtocol::Relay => "relay",
        }
    }
}

/// A set of protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceProtocols(u8);

impl DeviceProtocols {
    pub const ALL: Self = Self(0b1111);
    pub const NONE: Self = Self(0);

    #[must_use]
    pub fn with(self, protocol: DeviceProtocol) -> Self {
        Self(self.0 | 1 << protocol as u8)
    }

    #[inline]
    pub fn contains(self, protocol: DeviceProtocol) -> bool {
        self.0 & (1 << protocol as u8) != 0
    }
}
