//! The verification of a run by subscribers.

use serde::Deserialize;

/// Subscribers that receive what devices send, and what is verified.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VerifyDefinition {
    /// Filters of the topics whose messages are verified.
    pub(crate) topics: Vec<String>,
    /// More than one share the messages by a shared subscription.
    #[serde(default = "one")]
    pub(crate) subscribers: u16,
    #[serde(default = "at_least_once")]
    pub(crate) qos: u8,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// Whether the time until a node has stored telemetry is measured.
    #[serde(default)]
    pub(crate) storage: bool,
    /// Conditions on the whole run, such as `lost==0`.
    #[serde(default, rename = "assert")]
    pub(crate) assertions: Vec<String>,
}

fn one() -> u16 {
    1
}

fn at_least_once() -> u8 {
    1
}
