//! Commands that the simulator sends to devices over the API of the node.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::quantity::TimeSpan;

/// One of `method`, `function`, `read` and `write` says what devices are asked for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandDefinition {
    /// Name of the fleet; each command is for a random device of it.
    pub(crate) fleet: String,
    pub(crate) method: Option<String>,
    /// A function of the thing model.
    pub(crate) function: Option<String>,
    /// Parameters of `method` or `function`.
    pub(crate) params: Option<Value>,
    /// Names of properties.
    pub(crate) read: Option<Vec<String>>,
    /// Values of properties.
    pub(crate) write: Option<Map<String, Value>>,
    /// Commands per second, times the `load` of the phase.
    pub(crate) rate: f64,
    /// Time for the answer of the device.
    #[serde(default = "five_seconds")]
    pub(crate) timeout: TimeSpan,
    /// Commands at a time.
    #[serde(default = "sixteen")]
    pub(crate) concurrency: u16,
}

fn five_seconds() -> TimeSpan {
    TimeSpan::from_seconds(5)
}

fn sixteen() -> u16 {
    16
}
