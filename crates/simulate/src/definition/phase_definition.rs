//! Phases of a run.

use serde::Deserialize;

use super::quantity::{Share, TimeSpan};

/// A part of the run with its own load and demands.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PhaseDefinition {
    pub(crate) name: String,
    /// Without one, the phase ends when its devices are connected.
    pub(crate) duration: Option<TimeSpan>,
    /// Share of the devices that are to be connected.
    #[serde(default = "all")]
    pub(crate) devices: Share,
    /// Connections begun per second.
    pub(crate) connect_rate: Option<f64>,
    /// Connections that are being set up at a time.
    pub(crate) connect_concurrency: Option<u32>,
    #[serde(default)]
    pub(crate) load: LoadDefinition,
    /// Messages of each send and device at the beginning of the phase, besides those of the schedule.
    #[serde(default)]
    pub(crate) burst: u32,
    /// Conditions such as `connect_p99<50ms` or `lost==0`.
    #[serde(default, rename = "assert")]
    pub(crate) assertions: Vec<String>,
}

fn all() -> Share {
    Share(1.0)
}

/// Factor of the rate of all sends: one number, or several that divide the phase into equal steps, or a ramp.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a factor such as 2.0, steps such as [1.0, 2.0, 4.0], or a ramp such as { from = 1.0, to = 4.0 }"
)]
pub(crate) enum LoadDefinition {
    Factor(f64),
    Steps(Vec<f64>),
    Ramp { from: f64, to: f64 },
}

impl Default for LoadDefinition {
    fn default() -> Self {
        Self::Factor(1.0)
    }
}
