//! The protocols of devices, and sets of them.

/// A protocol: topics and payload formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceProtocol {
    ThingsBoard,
    JetLinks,
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
            DeviceProtocol::Native => "tidegate",
            DeviceProtocol::Relay => "relay",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|dialect| dialect.as_str() == name)
    }
}

/// A set of protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceProtocols(u8);

impl DeviceProtocols {
    pub const ALL: Self = Self(0b1111);
    pub const NONE: Self = Self(0);

    #[must_use]
    pub fn with(self, dialect: DeviceProtocol) -> Self {
        Self(self.0 | 1 << dialect as u8)
    }

    #[inline]
    pub fn contains(self, dialect: DeviceProtocol) -> bool {
        self.0 & (1 << dialect as u8) != 0
    }
}
