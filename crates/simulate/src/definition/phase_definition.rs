//! Phases of a run, and their faults.

use serde::Deserialize;

use super::fleet_definition::ReconnectDefinition;
use super::quantity::{Share, TimeSpan};

/// A part of the run with its own load and demands.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PhaseDefinition {
    pub(crate) name: String,
    /// Without one, the phase ends when its devices are connected, or with its campaign.
    pub(crate) duration: Option<TimeSpan>,
    /// Name of the firmware whose campaign begins and ends with the phase.
    pub(crate) campaign: Option<String>,
    /// Share of the devices that are to be connected.
    #[serde(default = "all")]
    pub(crate) devices: Share,
    /// Connections begun per second.
    pub(crate) connect_rate: Option<PhaseCurve>,
    /// Connections that are being set up at a time.
    pub(crate) connect_concurrency: Option<u32>,
    /// How devices return in this phase, instead of `reconnect` of their fleet.
    pub(crate) reconnect: Option<ReconnectDefinition>,
    #[serde(default)]
    pub(crate) load: PhaseCurve,
    /// Messages of each send and device at the beginning of the phase, besides those of the schedule.
    #[serde(default)]
    pub(crate) burst: u32,
    /// Conditions such as `connect_p99<50ms` or `lost==0`.
    #[serde(default, rename = "assert")]
    pub(crate) assertions: Vec<String>,
    #[serde(default, rename = "fault")]
    pub(crate) faults: Vec<FaultDefinition>,
}

fn all() -> Share {
    Share(1.0)
}

/// A number during a phase: the same from its begin to its end, several that divide it into equal steps, or a ramp.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number such as 2.0, steps such as [1.0, 2.0, 4.0], or a ramp such as { from = 1.0, to = 4.0 }"
)]
pub(crate) enum PhaseCurve {
    Constant(f64),
    Steps(Vec<f64>),
    Ramp { from: f64, to: f64 },
}

impl Default for PhaseCurve {
    fn default() -> Self {
        Self::Constant(1.0)
    }
}

impl PhaseCurve {
    /// The number after this part of the phase, from 0 to 1.
    pub(crate) fn at(&self, part: f64) -> f64 {
        match self {
            Self::Constant(number) => *number,
            Self::Steps(steps) => {
                let at = (part * steps.len() as f64) as usize;
                steps[at.min(steps.len() - 1)]
            }
            Self::Ramp { from, to } => from + (to - from) * part,
        }
    }

    /// The numbers that the file contains.
    pub(crate) fn numbers_mut(&mut self) -> Vec<&mut f64> {
        match self {
            Self::Constant(number) => vec![number],
            Self::Steps(steps) => steps.iter_mut().collect(),
            Self::Ramp { from, to } => vec![from, to],
        }
    }
}

/// How devices fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultKind {
    /// The device disconnects properly.
    Disconnect,
    /// The connection is closed without DISCONNECT.
    Close,
    /// The connection is reset.
    Abort,
    /// The connection stays, but the device neither sends nor reads.
    Silence,
    /// The device does not read, but sends.
    SlowReader,
    /// The second half of each payload is missing.
    InvalidPayload,
    /// The clock of the device is wrong by `offset_s`.
    ClockOffset,
}

impl FaultKind {
    /// Whether it concerns a connection, which children of gateways do not have.
    pub(crate) fn is_of_connection(self) -> bool {
        matches!(
            self,
            Self::Disconnect | Self::Close | Self::Abort | Self::SlowReader
        )
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultDefinition {
    pub(crate) kind: FaultKind,
    /// Name of the fleet; all if there is none.
    pub(crate) fleet: Option<String>,
    /// Time after the begin of the phase.
    #[serde(default = "at_once")]
    pub(crate) after: TimeSpan,
    /// Repeated at this interval until the end of the phase.
    pub(crate) every: Option<TimeSpan>,
    /// Part of the devices that it affects.
    #[serde(default = "all")]
    pub(crate) devices: Share,
    /// Whether the devices are neighbours by index.
    #[serde(default)]
    pub(crate) region: bool,
    /// How long a state lasts, or a device stays away.
    #[serde(default = "at_once")]
    pub(crate) duration: TimeSpan,
    /// Seconds by which a clock is ahead; negative: behind.
    #[serde(default)]
    pub(crate) offset_s: i64,
}

fn at_once() -> TimeSpan {
    TimeSpan { ns: 0 }
}
