//! Sends the oldest pending command of a device, one at a time.

use std::sync::{Arc, Weak};

use serde_json::Value;
use series::DeviceNo;

use super::super::downlink::{DownlinkCompletion, DownlinkOutcome, DownlinkPlan, plan_downlink};
use super::super::lifecycle::CommandTransition;
use super::super::record::{Command, CommandId, CommandKind};
use super::commands_inner::{CommandError, CommandJob, CommandsInner, lock};
use super::worker::RETRY_MS;
use crate::device::Device;
use crate::protocol::DownlinkMessage;
use crate::registry::DeviceFilter;

/// Maximum number of child devices processed at a time.
const MAX_CHILDREN: usize = 1000;

impl CommandsInner {
    /// Sends the oldest pending command of a device, if the device is reachable.
    pub(super) fn send_next(self: &Arc<Self>, device: DeviceNo) -> Result<(), CommandError> {
        loop {
            let Some(id) = lock(&self.open).begin_sending(device) else {
                return Ok(());
            };
            let found = self.plan_for(device, id);
            let why = match found {
                Ok(Some(address)) if !address.encodings.is_empty() => {
                    self.send(device, id, address);
                    return Ok(());
                }
                Ok(Some(_)) => {
                    Some("none of the protocols of its product supports this command".to_owned())
                }
                Ok(None) => None,
                Err(error) => {
                    lock(&self.open).end_sending(device);
                    self.schedule_recheck(device);
                    return Err(error);
                }
            };
            if let Some(why) = why {
                self.change(id, CommandTransition::Undeliverable(why))?;
                lock(&self.open).end_sending(device);
                continue;
            }
            self.expire_immediate(device)?;
            if !lock(&self.open).end_sending(device) {
                return Ok(());
            }
        }
    }

    /// The same for all child devices of a gateway.
    pub(super) fn send_next_to_children(
        self: &Arc<Self>,
        gateway: DeviceNo,
    ) -> Result<(), CommandError> {
        let filter = DeviceFilter {
            parent: Some(gateway),
            ..DeviceFilter::default()
        };
        let mut next = Some(DeviceNo(0));
        while let Some(from) = next {
            let waits = &mut |child: &Device| self.has_pending(child.no);
            let page = self.registry.list(&filter, from, MAX_CHILDREN, waits)?;
            for child in page.devices {
                self.send_next(child.no)?;
            }
            next = page.next;
        }
        Ok(())
    }

    fn plan_for(&self, no: DeviceNo, id: CommandId) -> Result<Option<DownlinkPlan>, CommandError> {
        let (Some(device), Some(command)) = (self.registry.by_no(no)?, self.get(id)?) else {
            return Ok(None);
        };
        if !device.is_admitted() {
            return Ok(None);
        }
        let id = id.at_device().to_string();
        let params = command.params.to_string();
        let keys: Vec<&str>;
        let message = match command.kind {
            CommandKind::Call => DownlinkMessage::Command {
                id: &id,
                method: &command.method,
                params_json: &params,
            },
            CommandKind::Read => {
                let given = command.params.as_array().into_iter().flatten();
                keys = given.filter_map(Value::as_str).collect();
                DownlinkMessage::ReadProperties {
                    id: &id,
                    keys: &keys,
                }
            }
            CommandKind::Write => DownlinkMessage::WriteProperties {
                id: &id,
                json: &params,
            },
        };
        let address = plan_downlink(
            &self.registry,
            &*self.transport,
            &device,
            &message,
            self.now_ms(),
        )?;
        Ok(address)
    }

    /// Passes a command to the device's connection, using the first encoding.
    fn send(self: &Arc<Self>, device: DeviceNo, id: CommandId, mut rest: DownlinkPlan) {
        let Some(encoded) = rest.encodings.pop_front() else {
            self.queue.push(CommandJob::SendOutcome(
                device,
                id,
                DownlinkOutcome::Unreachable,
                rest,
            ));
            return;
        };
        let client_id = rest.client_id.clone();
        let inner = Arc::downgrade(self);
        let acked_of = Weak::clone(&inner);
        let done = DownlinkCompletion::new(move |outcome| {
            if let Some(inner) = inner.upgrade() {
                inner
                    .queue
                    .push(CommandJob::SendOutcome(device, id, outcome, rest));
            }
        });
        let acked = Box::new(move || {
            if let Some(inner) = acked_of.upgrade() {
                inner.queue.push(CommandJob::Acknowledged(device, id));
            }
        });
        self.transport.send(&client_id, encoded, done, acked);
    }

    pub(super) fn handle_outcome(
        self: &Arc<Self>,
        device: DeviceNo,
        id: CommandId,
        outcome: DownlinkOutcome,
        rest: DownlinkPlan,
    ) -> Result<(), CommandError> {
        let has_gone_on = match outcome {
            DownlinkOutcome::Unreachable if !rest.encodings.is_empty() => {
                self.send(device, id, rest);
                return Ok(());
            }
            DownlinkOutcome::Unreachable => {
                self.expire_immediate(device)?;
                false
            }
            DownlinkOutcome::Sent {
                expects_ack: is_watched,
            } => {
                self.change(
                    id,
                    CommandTransition::Sent {
                        expects_ack: is_watched,
                    },
                )?;
                true
            }
            DownlinkOutcome::RetryLater(why) => {
                tracing::debug!(device = device.0, why, "a command remains pending");
                self.schedule_recheck(device);
                false
            }
            DownlinkOutcome::Rejected(why) => {
                self.change(id, CommandTransition::Undeliverable(why))?;
                true
            }
        };
        let has_moved = lock(&self.open).end_sending(device);
        match has_gone_on || has_moved {
            true => self.send_next(device),
            false => Ok(()),
        }
    }

    /// Expires the commands of an unreachable device that do not wait for it.
    fn expire_immediate(&self, device: DeviceNo) -> Result<(), CommandError> {
        let immediate = lock(&self.open).immediate_commands(device);
        for id in immediate {
            self.change(id, CommandTransition::Unreachable)?;
        }
        Ok(())
    }

    fn schedule_recheck(&self, device: DeviceNo) {
        lock(&self.rechecks).insert((self.now_ms() + RETRY_MS, device));
    }

    pub(super) fn take_next(&self, device: DeviceNo) -> Result<Option<Command>, CommandError> {
        loop {
            let Some(id) = lock(&self.open).next_to_send(device) else {
                return Ok(None);
            };
            let sent = CommandTransition::Sent { expects_ack: false };
            match self.change_unless_offered(id, sent) {
                Ok(Some(command)) => return Ok(Some(command)),
                Ok(None) => {}
                // It is not the first one any more.
                Err(CommandError::HandedOver) => continue,
                Err(error) => return Err(error),
            }
            // The command has ended in the meantime, unless it is missing in the store.
            if lock(&self.open).next_to_send(device) == Some(id) {
                return Ok(None);
            }
        }
    }
}
