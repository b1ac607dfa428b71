//! Telemetry and changes of alarms that nodes watch at each other: the messages.
//!
//! A node that has subscribers opens a session at each other node, and names what they watch. It asks for the items of its
//! session again and again; each answer waits until there are some. Therefore only one request of each node is under way,
//! however many subscribers it has, and a node without subscribers gets nothing. A session that nobody asks for ends.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::alarm_watch::AlarmWatchFilter;
use crate::shared_value::SharedValue;

/// What a node asks another about items that arrive there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LiveQuestion {
    /// Begins watches of a session. Is answered with a list of optional reasons why a
    /// watch did not begin.
    Begin {
        /// The node that asks; its earlier sessions end.
        node: String,
        session: u64,
        /// The session has no watches, so that it may be opened. Otherwise it has lost some if it does not exist.
        may_open: bool,
        watches: Vec<(u64, SharedWatch)>,
    },
    /// Ends watches. Is answered with `null`.
    End { session: u64, watches: Vec<u64> },
    /// Waits for items. Is answered with [`LiveAnswer`].
    Poll { session: u64 },
}

/// What a subscriber watches.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SharedWatch {
    /// Rows of devices that are stored; those that the node does not have are ignored.
    Telemetry {
        devices: Vec<String>,
        keys: Option<Vec<String>>,
    },
    /// Changes of alarms.
    Alarms(AlarmWatchFilter),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SharedItem {
    Row {
        device: String,
        ts_ms: i64,
        values: Vec<(String, SharedValue)>,
    },
    Alarm {
        change: String,
        at_ms: u64,
        alarm: Value,
    },
    /// The number of items that were lost because they were not asked for in time.
    Lost(u64),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LiveAnswer {
    /// Otherwise the session has ended, and items may be lost.
    pub(crate) is_open: bool,
    /// With the numbers of the watches.
    pub(crate) items: Vec<(u64, SharedItem)>,
}

impl SharedItem {
    /// The size of its texts, roughly.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Row { device, values, .. } => {
                let values = values.iter().map(|(key, value)| {
                    key.len()
                        + match value {
                            SharedValue::Text(text) => text.len(),
                            SharedValue::Json(value) => value.to_string().len(),
                            SharedValue::Bool(_) | SharedValue::Int(_) | SharedValue::Float(_) => 8,
                        }
                });
                device.len() + values.sum::<usize>()
            }
            Self::Alarm { alarm, .. } => alarm.to_string().len(),
            Self::Lost(_) => 0,
        }
    }
}
