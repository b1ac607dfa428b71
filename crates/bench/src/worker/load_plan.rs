//! The plan of a load.

use mqtt::QoS;

use super::pace::LoadPace;
use crate::load_shape::LoadShape;
use crate::packets::PayloadTemplate;

/// What to send, how fast, how long.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadPlan {
    pub(crate) shape: LoadShape,
    pub(crate) qos: QoS,
    pub(crate) body: PayloadTemplate,
    pub(crate) pace: LoadPace,
    pub(crate) warmup_ns: u64,
    pub(crate) duration_ns: u64,
    /// How long nothing may arrive before the drain ends.
    pub(crate) quiet_ns: u64,
}
