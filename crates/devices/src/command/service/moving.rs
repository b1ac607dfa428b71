//! Commands that wait for a device at one node of a cluster while the device connects to another one.
//!
//! The node of the device asks the others for such commands ([`CommandsInner::offer_waiting`]), stores them
//! ([`CommandsInner::take_over`]), and then lets the others remove them ([`CommandsInner::remove_moved`]). A command that is
//! offered is not sent until it is removed, or [`HOLD_MS`] have passed without an answer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use series::DeviceNo;

use super::super::record::{Command, CommandId, CommandState};
use super::commands_inner::{CommandError, CommandJob, CommandsInner, lock};
use crate::device::Device;

/// Time for which an offered command waits for the answer of the other node.
const HOLD_MS: u64 = 10_000;
/// Size of the parameters from which on an offer contains no further command.
const MAX_OFFER_BYTES: usize = 1 << 20;
/// Maximum number of commands of one offer.
const MAX_OFFERED: usize = 1000;

/// Commands for devices that are at another node now.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CommandOffer {
    pub commands: Vec<Command>,
    /// There are more; ask again once these are removed.
    pub is_partial: bool,
}

impl CommandsInner {
    /// Up to `limit` devices for which commands wait here, after this one, and the position to continue from.
    pub(super) fn waiting_devices(
        &self,
        after: Option<DeviceNo>,
        limit: usize,
    ) -> Result<(Vec<Arc<Device>>, Option<DeviceNo>), CommandError> {
        let waiting = lock(&self.open).waiting_devices(after, limit);
        let next = waiting.last().filter(|_| waiting.len() == limit).copied();
        let devices = waiting.into_iter().map(|no| self.registry.by_no(no));
        let devices = devices.filter_map(Result::transpose);
        Ok((devices.collect::<Result<_, _>>()?, next))
    }

    /// The commands that wait here for devices with these ids, the oldest of each device first.
    ///
    /// Not among them are those that are being sent, that are to be sent at once or not at all, and that a caller here waits
    /// for.
    pub(super) fn offer_waiting(&self, devices: &[String]) -> Result<CommandOffer, CommandError> {
        let mut offer = CommandOffer::default();
        if !self.has_any() {
            return Ok(offer);
        }
        let (hold_until_ms, mut bytes) = (self.now_ms() + HOLD_MS, 0);
        for id in devices {
            let Some(no) = self
                .registry
                .number_of_id_if(id, |no| self.has_pending(no))?
            else {
                continue;
            };
            // As long as nobody changes commands, and nobody begins to wait for one.
            let _notify_guard = lock(&self.notify_lock);
            let waiting = lock(&self.open).movable_commands(no);
            for command in waiting {
                if self.has_waiter(command) {
                    continue;
                }
                if offer.commands.len() == MAX_OFFERED || bytes >= MAX_OFFER_BYTES {
                    offer.is_partial = true;
                    return Ok(offer);
                }
                let Some(found) = self.get(command)? else {
                    continue;
                };
                if !lock(&self.open).hold(no, command, hold_until_ms) {
                    continue;
                }
                if lock(&self.holds).insert((hold_until_ms, no)) {
                    // The thread looks at the new time.
                    self.queue.push(CommandJob::ResumeDevice(no));
                }
                bytes += found.params.to_string().len();
                offer.commands.push(found);
            }
        }
        Ok(offer)
    }

    /// Stores commands that have waited at another node, and sends them when their devices are reachable. Returns those that are
    /// stored now, or were before. Others would exceed a limit, their device is not known here, or this node has another command
    /// with their number.
    pub(super) fn take_over(
        self: &Arc<Self>,
        commands: Vec<Command>,
    ) -> Result<Vec<CommandId>, CommandError> {
        let mut taken = Vec::with_capacity(commands.len());
        for mut command in commands {
            let device = self.registry.device(&command.device)?;
            let _notify_guard = lock(&self.notify_lock);
            if let Some(known) = self.get(command.id)? {
                let identity = |command: &Command| (command.device.clone(), command.created_at_ms);
                if identity(&known) == identity(&command) {
                    taken.push(command.id);
                }
                continue;
            }
            let Some(device) = device.filter(|_| command.state == CommandState::Pending) else {
                continue;
            };
            {
                let open = lock(&self.open);
                let config = &self.config;
                let is_full = open.count() >= config.max_open
                    || open.count_of(device.no) >= config.max_open_per_device;
                if is_full {
                    continue;
                }
            }
            command.device_no = device.no;
            self.store.put_new(&command, None)?;
            {
                let mut open = lock(&self.open);
                open.insert_by_time(&command);
                self.open_count.store(open.count(), Relaxed);
            }
            taken.push(command.id);
            self.wake_pollers(device.no);
            self.queue.push(CommandJob::ResumeDevice(device.no));
        }
        Ok(taken)
    }

    /// Removes offered commands that another node has stored. Those that have ended meanwhile remain, such as expired ones.
    pub(super) fn remove_moved(&self, commands: &[CommandId]) -> Result<(), CommandError> {
        for id in commands {
            let _notify_guard = lock(&self.notify_lock);
            let Some(command) = self.get(*id)? else {
                continue;
            };
            let is_held = lock(&self.open).is_held(command.device_no, *id);
            if !is_held {
                continue;
            }
            // Shards ask for open commands, so the lock is not held during writes.
            self.store.remove_one(&command)?;
            {
                let mut open = lock(&self.open);
                open.forget(command.device_no, *id);
                self.open_count.store(open.count(), Relaxed);
            }
            // Of callers that have given up.
            lock(&self.waiters).remove(id);
        }
        Ok(())
    }

    /// Sends offered commands of which no other node has said that it has stored them.
    pub(super) fn end_holds(&self, now_ms: u64) {
        let ended: Vec<_> = {
            let mut holds = lock(&self.holds);
            let later = holds.split_off(&(now_ms + 1, DeviceNo(0)));
            std::mem::replace(&mut *holds, later).into_iter().collect()
        };
        for (_, device) in ended {
            lock(&self.open).end_holds(device, now_ms);
            self.wake_pollers(device);
            self.queue.push(CommandJob::ResumeDevice(device));
        }
    }
}
