//! Sending: the oldest command that waits for a device goes to where the device hears it, one at a time.

use std::sync::{Arc, Weak};

use serde_json::Value;
use series::DeviceNo;

use super::super::life::Happened;
use super::super::reach::{Address, Handed, Handover, address};
use super::super::record::{Command, CommandId, CommandKind};
use super::work::{RETRY_MS, Work};
use super::{CommandError, Inner, lock};
use crate::device::Device;
use crate::dialect::Tell;
use crate::registry::Filter;

/// Devices of a gateway that get their commands in one go.
const MAX_CHILDREN: usize = 1000;

impl Inner {
    /// Sends the oldest command that waits for a device, if it is where it hears it.
    pub(super) fn hand_next(self: &Arc<Self>, device: DeviceNo) -> Result<(), CommandError> {
        loop {
            let Some(id) = lock(&self.open).begin(device) else {
                return Ok(());
            };
            let found = self.address_of(device, id);
            let why = match found {
                Ok(Some(address)) if !address.letters.is_empty() => {
                    self.hand(device, id, address);
                    return Ok(());
                }
                Ok(Some(_)) => {
                    Some("none of the dialects of its product has a message for this".to_owned())
                }
                Ok(None) => None,
                Err(error) => {
                    lock(&self.open).end(device);
                    self.look_again(device);
                    return Err(error);
                }
            };
            if let Some(why) = why {
                self.change(id, Happened::Untold(why))?;
                lock(&self.open).end(device);
                continue;
            }
            self.expire_immediate(device)?;
            if !lock(&self.open).end(device) {
                return Ok(());
            }
        }
    }

    /// The same for all devices behind a gateway.
    pub(super) fn hand_next_behind(
        self: &Arc<Self>,
        gateway: DeviceNo,
    ) -> Result<(), CommandError> {
        let filter = Filter {
            parent: Some(gateway),
            ..Filter::default()
        };
        let mut next = Some(DeviceNo(0));
        while let Some(from) = next {
            let waits = &mut |child: &Device| self.has_pending(child.no);
            let page = self.registry.list(&filter, from, MAX_CHILDREN, waits)?;
            for child in page.devices {
                self.hand_next(child.no)?;
            }
            next = page.next;
        }
        Ok(())
    }

    fn address_of(&self, no: DeviceNo, id: CommandId) -> Result<Option<Address>, CommandError> {
        let (Some(device), Some(command)) = (self.registry.by_no(no)?, self.get(id)?) else {
            return Ok(None);
        };
        if !device.is_let_in() {
            return Ok(None);
        }
        let id = id.0.to_string();
        let params = command.params.to_string();
        let keys: Vec<&str>;
        let tell = match command.kind {
            CommandKind::Call => Tell::Command {
                id: &id,
                method: &command.method,
                params_json: &params,
            },
            CommandKind::Read => {
                let given = command.params.as_array().into_iter().flatten();
                keys = given.filter_map(Value::as_str).collect();
                Tell::ReadProperties {
                    id: &id,
                    keys: &keys,
                }
            }
            CommandKind::Write => Tell::WriteProperties {
                id: &id,
                json: &params,
            },
        };
        let address = address(&self.registry, &*self.reach, &device, &tell, self.now_ms())?;
        Ok(address)
    }

    /// Hands a command to the device's connection by the first of the letters.
    fn hand(self: &Arc<Self>, device: DeviceNo, id: CommandId, mut rest: Address) {
        let Some(letter) = rest.letters.pop_front() else {
            self.queue
                .push(Work::Handed(device, id, Handed::NotHeard, rest));
            return;
        };
        let client_id = rest.client_id.clone();
        let inner = Arc::downgrade(self);
        let acked_of = Weak::clone(&inner);
        let done = Handover::new(move |handed| {
            if let Some(inner) = inner.upgrade() {
                inner.queue.push(Work::Handed(device, id, handed, rest));
            }
        });
        let acked = Box::new(move || {
            if let Some(inner) = acked_of.upgrade() {
                inner.queue.push(Work::Acknowledged(id));
            }
        });
        self.reach.tell(&client_id, letter, done, acked);
    }

    pub(super) fn handed(
        self: &Arc<Self>,
        device: DeviceNo,
        id: CommandId,
        handed: Handed,
        rest: Address,
    ) -> Result<(), CommandError> {
        let has_gone_on = match handed {
            Handed::NotHeard if !rest.letters.is_empty() => {
                self.hand(device, id, rest);
                return Ok(());
            }
            Handed::NotHeard => {
                self.expire_immediate(device)?;
                false
            }
            Handed::Sent { is_watched } => {
                self.change(id, Happened::Sent { is_watched })?;
                true
            }
            Handed::Later(why) => {
                tracing::debug!(device = device.0, why, "a command waits");
                self.look_again(device);
                false
            }
            Handed::Never(why) => {
                self.change(id, Happened::Untold(why))?;
                true
            }
        };
        let has_moved = lock(&self.open).end(device);
        match has_gone_on || has_moved {
            true => self.hand_next(device),
            false => Ok(()),
        }
    }

    /// The device is not where it would hear its commands: those end that do not wait for it.
    fn expire_immediate(&self, device: DeviceNo) -> Result<(), CommandError> {
        let immediate = lock(&self.open).immediate(device);
        for id in immediate {
            self.change(id, Happened::NotHeard)?;
        }
        Ok(())
    }

    fn look_again(&self, device: DeviceNo) {
        lock(&self.again).insert((self.now_ms() + RETRY_MS, device));
    }

    pub(super) fn give(&self, device: DeviceNo) -> Result<Option<Command>, CommandError> {
        loop {
            let Some(id) = lock(&self.open).first_pending(device) else {
                return Ok(None);
            };
            let sent = Happened::Sent { is_watched: false };
            if let Some(command) = self.change(id, sent)? {
                return Ok(Some(command));
            }
            // It has ended in between, unless the store has lost it.
            if lock(&self.open).first_pending(device) == Some(id) {
                return Ok(None);
            }
        }
    }
}
