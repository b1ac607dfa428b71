//! A command as it is kept and shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use series::DeviceNo;

/// A command's number; later ones are larger. Devices get it as the id of the call.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct CommandId(pub u64);

/// What is asked of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandKind {
    /// To do something: a method, or a function of its thing model.
    Call,
    /// To tell properties.
    Read,
    /// To set properties.
    Write,
}

/// How far a command has come.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// It waits for its device.
    Pending,
    /// It was handed to the device's connection.
    Sent,
    /// The device's client has it.
    Acknowledged,
    Success,
    /// The device says that it failed, or it cannot be told to it.
    Failed,
    /// It was sent, and there was no answer in time.
    Timeout,
    /// The device did not come in time.
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

    /// Nothing becomes of it any more.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Sent | Self::Acknowledged)
    }
}

/// A command. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    pub id: CommandId,
    /// The id of the device.
    pub device: String,
    /// The id of its product.
    pub product: String,
    pub kind: CommandKind,
    /// What is called; of properties `readProperties` and `writeProperties`.
    pub method: String,
    /// What goes with it; of properties the keys to read, or the values to write.
    pub params: Value,
    /// No answer is waited for.
    pub one_way: bool,
    pub state: CommandState,
    /// How long an answer may take from when it was sent.
    pub timeout_ms: u64,
    /// How often it may be sent again when nothing was heard of it.
    pub retries: u32,
    /// How often it was sent.
    pub attempts: u32,
    pub created_at_ms: u64,
    /// How long it waits for its device.
    pub expires_at_ms: u64,
    /// It goes to its device at once or not at all.
    pub immediate: bool,
    /// When it was sent last.
    pub sent_at_ms: Option<u64>,
    pub acknowledged_at_ms: Option<u64>,
    pub finished_at_ms: Option<u64>,
    /// What the device answered.
    pub result: Option<Value>,
    /// The word or number that the device gave with its answer.
    pub code: Option<String>,
    /// Why it is in its state, for people.
    pub message: Option<String>,
    /// Who asked for it.
    pub by: String,
    #[serde(skip, default = "nobody")]
    #[schemars(skip)]
    pub(crate) device_no: DeviceNo,
}

fn nobody() -> DeviceNo {
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

    /// `None`: the record is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (no, json) = bytes.split_first_chunk::<4>()?;
        let mut command: Self = serde_json::from_slice(json).ok()?;
        command.device_no = DeviceNo(u32::from_be_bytes(*no));
        Some(command)
    }
}
