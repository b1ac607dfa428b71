//! Matches replies of devices with commands.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;
use series::DeviceNo;

use super::super::lifecycle::CommandTransition;
use super::super::record::{CommandId, CommandKind};
use super::answer::CommandAnswer;
use super::commands_inner::{CommandError, CommandsInner, lock};

impl CommandsInner {
    pub(super) fn apply_answer(
        &self,
        device: DeviceNo,
        answer: CommandAnswer,
        at_ms: u64,
    ) -> Result<(), CommandError> {
        let found = match &answer.id {
            Some(id) => match id.parse() {
                Ok(id) => self.find_at_device(device, id)?,
                Err(_) => None,
            },
            None => {
                let sent_from_ms = at_ms.saturating_sub(self.config.response_without_id_window_ms);
                let newest = lock(&self.open).newest_sent(device, answer.kind, sent_from_ms);
                match newest {
                    Some(id) => Some(id),
                    None => self.sending_of_kind(device, answer.kind)?,
                }
            }
        };
        if let Some(id) = found {
            self.mark_sent(device, id, false)?;
        }
        let changed = match found {
            Some(id) => self.change(id, self.transition_for(answer))?,
            None => None,
        };
        if changed.is_none() {
            self.unmatched.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// The command of a device with the number that the device knows.
    fn find_at_device(
        &self,
        device: DeviceNo,
        number: u64,
    ) -> Result<Option<CommandId>, CommandError> {
        let current = {
            let open = lock(&self.open);
            // Also one of another node, whose number has other bits.
            if let Some(id) = open.find_by_device_number(device, number) {
                return Ok(Some(id));
            }
            CommandId(open.next).with_device_number(number)
        };
        // The node may have joined a cluster while the command was open.
        for id in [current, CommandId(number)] {
            let command = self.get(id)?;
            if command.is_some_and(|command| command.device_no == device) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// The command that is being passed to the device's connection, if it has this type.
    fn sending_of_kind(
        &self,
        device: DeviceNo,
        kind: Option<CommandKind>,
    ) -> Result<Option<CommandId>, CommandError> {
        let sending = lock(&self.open).sending(device);
        let Some(id) = sending else {
            return Ok(None);
        };
        let command = self.get(id)?;
        let fits = |kind: CommandKind| command.is_some_and(|command| command.kind == kind);
        Ok(kind.is_none_or(fits).then_some(id))
    }

    /// Marks a command as sent that is still being passed to the connection: a fast device replies before the shard has
    /// reported that it sent the command.
    pub(super) fn mark_sent(
        &self,
        device: DeviceNo,
        id: CommandId,
        expects_ack: bool,
    ) -> Result<(), CommandError> {
        let sending = lock(&self.open).sending(device);
        if sending == Some(id) {
            self.change(id, CommandTransition::Sent { expects_ack })?;
        }
        Ok(())
    }

    fn transition_for(&self, answer: CommandAnswer) -> CommandTransition {
        let short = |text: String| text.chars().take(1000).collect::<String>();
        let most = self.config.max_result_bytes;
        let size = answer.body.as_ref().map_or(0, String::len);
        let (result, message) = match answer.body {
            Some(_) if size > most => {
                let why = format!("expected a reply of at most {most} bytes, found {size}");
                (None, Some(why))
            }
            // The body was validated when it was parsed, unless it is text.
            Some(body) => {
                let value = serde_json::from_str(&body);
                (Some(value.unwrap_or(Value::String(body))), None)
            }
            None => (None, None),
        };
        CommandTransition::Answered {
            is_success: answer.is_success,
            result,
            code: answer.code.map(short),
            message: message.or(answer.message.map(short)),
        }
    }
}
