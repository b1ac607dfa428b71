//! The reply of a device, in any of the forms in which it may arrive.

use super::super::record::CommandKind;
use crate::protocol::{DeviceReply, ReplyKind};

/// The reply of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandAnswer {
    /// Type of the command that the reply is for; `None`: not stated.
    pub kind: Option<CommandKind>,
    pub id: Option<String>,
    pub is_success: bool,
    /// Body as JSON.
    pub body: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
}

impl CommandAnswer {
    /// Returns `None` if the reply is not for a command.
    pub(super) fn from_reply(replied: &DeviceReply<'_>) -> Option<Self> {
        let kind = match replied.to {
            ReplyKind::Rpc | ReplyKind::Command => None,
            ReplyKind::Read => Some(CommandKind::Read),
            ReplyKind::Write => Some(CommandKind::Write),
            ReplyKind::Invoke => Some(CommandKind::Call),
            ReplyKind::Disconnect | ReplyKind::StateCheck => return None,
        };
        Some(Self {
            kind,
            id: replied.id.map(Into::into),
            is_success: replied.is_success,
            body: replied.body_json.map(Into::into),
            code: replied.code.map(Into::into),
            message: replied.message.map(Into::into),
        })
    }
}
