//! The record of an alarm, as stored and as returned by the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use series::DeviceNo;

use super::definition::Severity;

/// The number of an alarm; later alarms have larger numbers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct AlarmId(pub u64);

/// Whether the alarm is active or cleared, and whether an operator has acknowledged it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AlarmState {
    ActiveUnack,
    ActiveAck,
    ClearedUnack,
    ClearedAck,
}

impl AlarmState {
    pub const ALL: [Self; 4] = [
        Self::ActiveUnack,
        Self::ActiveAck,
        Self::ClearedUnack,
        Self::ClearedAck,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ActiveUnack => "ACTIVE_UNACK",
            Self::ActiveAck => "ACTIVE_ACK",
            Self::ClearedUnack => "CLEARED_UNACK",
            Self::ClearedAck => "CLEARED_ACK",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    pub fn from_flags(is_cleared: bool, is_acknowledged: bool) -> Self {
        match (is_cleared, is_acknowledged) {
            (false, false) => Self::ActiveUnack,
            (false, true) => Self::ActiveAck,
            (true, false) => Self::ClearedUnack,
            (true, true) => Self::ClearedAck,
        }
    }

    pub fn is_cleared(self) -> bool {
        matches!(self, Self::ClearedUnack | Self::ClearedAck)
    }
}

/// An alarm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Alarm {
    pub id: AlarmId,
    /// Alarm type: the id of the alarm rule, or the name given in a rule action.
    #[serde(rename = "type")]
    pub kind: String,
    pub severity: Severity,
    pub state: AlarmState,
    #[serde(rename = "deviceId")]
    pub device: String,
    #[serde(rename = "productId")]
    pub product: String,
    /// Namespace of the device.
    #[serde(default = "namespaces::default_id")]
    pub namespace: String,
    /// Readable text.
    pub details: String,
    /// Values of the keys in the conditions when the severity last changed.
    pub values: Map<String, Value>,
    /// Id of the SQL rule that raised the alarm; empty: an alarm rule of the product.
    pub rule: String,
    /// Names of the notifications listed by the alarm rule.
    pub notify: Vec<String>,
    /// Time of the device in milliseconds since 1970; the other times have the same unit.
    pub raised_at_ms: u64,
    /// Time of the last change of severity.
    pub changed_at_ms: u64,
    pub cleared_at_ms: Option<u64>,
    /// Operator who cleared the alarm; `null`: not cleared, or cleared by a condition.
    pub cleared_by: Option<String>,
    pub acknowledged_at_ms: Option<u64>,
    pub acknowledged_by: Option<String>,
    /// Comments of people, oldest first; omitted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comments: Vec<AlarmComment>,
    /// Node of the cluster that raised the alarm; omitted outside a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How often the severity has changed: of two nodes, the one with more changes knows the latest.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) severity_changes: u32,
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) device_no: DeviceNumbers,
}

/// Comments of one alarm.
pub const MAX_COMMENTS: usize = 50;
/// Characters of a comment.
pub const MAX_COMMENT_CHARS: usize = 1000;

/// What a person wrote about an alarm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmComment {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Operator who wrote it.
    pub by: String,
    pub text: String,
}

/// In the first byte of a stored alarm; an alarm has at most nine devices.
const HAS_CHANGES: u8 = 0x80;

/// Numbers of the devices that the alarm counts for: its own device, then those it is propagated to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceNumbers(pub(crate) Vec<DeviceNo>);

impl Alarm {
    pub fn is_cleared(&self) -> bool {
        self.state.is_cleared()
    }

    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged_at_ms.is_some()
    }

    /// Numbers of the devices that the alarm counts for: its own device first, then those it is propagated to.
    pub fn devices(&self) -> &[DeviceNo] {
        &self.device_no.0
    }

    pub(super) fn refresh_state(&mut self) {
        self.state = AlarmState::from_flags(self.cleared_at_ms.is_some(), self.is_acknowledged());
    }

    /// The number of devices, with a bit that says whether the number of changes of the severity follows the devices, and JSON.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(512);
        let has_changes = if self.severity_changes > 0 {
            HAS_CHANGES
        } else {
            0
        };
        bytes.push(self.device_no.0.len() as u8 | has_changes);
        for no in &self.device_no.0 {
            bytes.extend_from_slice(&no.0.to_le_bytes());
        }
        if self.severity_changes > 0 {
            bytes.extend_from_slice(&self.severity_changes.to_le_bytes());
        }
        serde_json::to_writer(&mut bytes, self).expect("an alarm has string keys only");
        bytes
    }

    /// Returns `None` if the record is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first()?;
        let devices = usize::from(*count & !HAS_CHANGES);
        let (numbers, mut json) = rest.split_at_checked(devices * 4)?;
        let mut severity_changes = 0;
        if count & HAS_CHANGES != 0 {
            let (changes, rest) = json.split_first_chunk()?;
            severity_changes = u32::from_le_bytes(*changes);
            json = rest;
        }
        let mut alarm: Self = serde_json::from_slice(json).ok()?;
        alarm.severity_changes = severity_changes;
        let numbers = numbers.as_chunks::<4>().0.iter();
        alarm.device_no = DeviceNumbers(
            numbers
                .map(|no| DeviceNo(u32::from_le_bytes(*no)))
                .collect(),
        );
        Some(alarm)
    }
}
