//! The record of a command, as stored and as returned by the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use series::DeviceNo;

/// The number of a command; later commands have larger numbers. Devices receive it as the request id.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct CommandId(pub u64);

/// The bits of a number that devices get. Numbers of a cluster are large, and devices keep them in 32 bits.
const DEVICE_BITS: u64 = (1 << cluster::NUMBER_BITS) - 1;

impl CommandId {
    /// The number that the device gets.
    #[must_use]
    pub fn at_device(self) -> u64 {
        self.0 & DEVICE_BITS
    }

    /// The command with this number at the device, if its other bits are those of `self`.
    pub(super) fn with_device_number(self, number: u64) -> Self {
        Self(self.0 & !DEVICE_BITS | number & DEVICE_BITS)
    }
}

/// The type of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandKind {
    /// Calls a method, or a function of the thing model.
    Call,
    /// Reads properties.
    Read,
    /// Writes properties.
    Write,
}

/// The state of a command.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// Waiting for the device.
    Pending,
    /// Passed to the device's connection.
    Sent,
    /// Acknowledged by the device's client.
    Acknowledged,
    Success,
    /// The device has reported an error, or the command cannot be sent to it.
    Failed,
    /// Sent, and no reply arrived in time.
    Timeout,
    /// The device was not reachable in time.
    Expired,
    Cancelled,
}

impl CommandState {
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Sent,
        Self::Acknowledged,
        Self::Success,
        Self::Failed,
        Self::Timeout,
        Self::Expired,
        Self::Cancelled,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sent => "sent",
            Self::Acknowledged => "acknowledged",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// Whether the state is final.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Sent | Self::Acknowledged)
    }
}

/// A command. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    pub id: CommandId,
    /// Id of the device.
    pub device: String,
    /// Id of the product.
    pub product: String,
    /// Namespace of the device.
    #[serde(default = "namespaces::default_id")]
    pub namespace: String,
    pub kind: CommandKind,
    /// Name of the method or function; for properties `readProperties` or `writeProperties`.
    pub method: String,
    /// Parameters of the call; for properties the keys to read or the values to write.
    pub params: Value,
    /// Whether no reply is expected.
    pub one_way: bool,
    pub state: CommandState,
    /// Milliseconds in which the device must reply after the command was sent.
    pub timeout_ms: u64,
    /// Maximum number of further attempts while neither an acknowledgement nor a reply arrives.
    pub retries: u32,
    /// Number of attempts so far.
    pub attempts: u32,
    pub created_at_ms: u64,
    /// Time until which the command waits for its device.
    pub expires_at_ms: u64,
    /// Whether the command is sent at once or not at all.
    pub immediate: bool,
    /// Time of the last attempt.
    pub sent_at_ms: Option<u64>,
    pub acknowledged_at_ms: Option<u64>,
    pub finished_at_ms: Option<u64>,
    /// Reply of the device.
    pub result: Option<Value>,
    /// Result code in the reply of the device.
    pub code: Option<String>,
    /// Readable reason for the state.
    pub message: Option<String>,
    /// Who requested the command.
    pub created_by: String,
    /// Id of the request to several devices that the command belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    #[serde(skip, default = "default_device_no")]
    #[schemars(skip)]
    pub(crate) device_no: DeviceNo,
}

fn default_device_no() -> DeviceNo {
    DeviceNo(u32::MAX)
}

impl Command {
    pub fn device_no(&self) -> DeviceNo {
        self.device_no
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(&self.device_no.0.to_be_bytes());
        serde_json::to_writer(&mut bytes, self).expect("a command has string keys only");
        bytes
    }

    /// Returns `None` if the record is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (no, json) = bytes.split_first_chunk::<4>()?;
        let mut command: Self = serde_json::from_slice(json).ok()?;
        command.device_no = DeviceNo(u32::from_be_bytes(*no));
        Some(command)
    }
}
