//! The scopes of device attributes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The scope of an attribute.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum AttributeScope {
    /// Written by the device.
    Client,
    /// Visible to the device, which is notified of changes.
    Shared,
    /// Not visible to the device.
    Server,
}

impl AttributeScope {
    pub const ALL: [AttributeScope; 3] = [
        AttributeScope::Client,
        AttributeScope::Shared,
        AttributeScope::Server,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AttributeScope::Client => "client",
            AttributeScope::Shared => "shared",
            AttributeScope::Server => "server",
        }
    }

    pub(super) fn letter(self) -> u8 {
        match self {
            AttributeScope::Client => b'c',
            AttributeScope::Shared => b'h',
            AttributeScope::Server => b's',
        }
    }
}
