//! Images that a simulation provides, for its devices to install.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A package with an image of random content.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FirmwareDefinition {
    pub(crate) product: String,
    /// Default: the product.
    pub(crate) title: Option<String>,
    pub(crate) version: String,
    /// Length of the image.
    #[serde(default = "default_bytes")]
    pub(crate) bytes: u32,
    /// Whether it is software instead of firmware.
    #[serde(default)]
    pub(crate) software: bool,
    /// `sha256`, `sha384`, `sha512`, `md5` or `crc32`; default: that of the node.
    pub(crate) digest_algorithm: Option<String>,
    /// Fields of the campaign that a phase begins, as in the API, such as `waves`.
    #[serde(default)]
    pub(crate) campaign: Map<String, Value>,
}

fn default_bytes() -> u32 {
    64 * 1024
}
