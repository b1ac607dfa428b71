//! In-memory index of open commands: the queue of each device, and due times.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;
use series::DeviceNo;

use super::lifecycle::due_ms;
use super::record::{Command, CommandId, CommandKind, CommandState};

#[derive(Default)]
pub(super) struct OpenCommands {
    /// The number of the next command.
    pub(super) next: u64,
    /// Number of stored commands that are not open.
    pub(super) finished: u64,
    count: usize,
    devices: HashMap<DeviceNo, DeviceQueue, RandomState>,
    due: BTreeSet<(u64, CommandId, DeviceNo)>,
    /// Commands whose change the store has not accepted yet.
    unwritten: HashMap<CommandId, Command, RandomState>,
}

/// The open commands of one device, the oldest first.
#[derive(Default)]
struct DeviceQueue {
    entries: Vec<OpenCommand>,
    /// The command that is being passed to the device's connection.
    sending: Option<CommandId>,
    /// The reachability of the device has changed meanwhile, so it must be checked again.
    needs_recheck: bool,
}

struct OpenCommand {
    id: CommandId,
    state: CommandState,
    kind: CommandKind,
    sent_ms: u64,
    due_ms: u64,
    immediate: bool,
}

impl OpenCommand {
    fn from_command(command: &Command) -> Self {
        Self {
            id: command.id,
            state: command.state,
            kind: command.kind,
            sent_ms: command.sent_at_ms.unwrap_or_default(),
            due_ms: due_ms(command).unwrap_or(u64::MAX),
            immediate: command.immediate,
        }
    }
}

impl OpenCommands {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn count_of(&self, device: DeviceNo) -> usize {
        self.devices
            .get(&device)
            .map_or(0, |queue| queue.entries.len())
    }

    pub(super) fn ids_of(&self, device: DeviceNo) -> Vec<CommandId> {
        let entries = self.devices.get(&device).into_iter();
        let entries = entries.flat_map(|queue| &queue.entries);
        entries.map(|entry| entry.id).collect()
    }

    /// Applies the new state of a command; a finished command is removed.
    pub(super) fn update(&mut self, command: &Command) {
        let (id, device) = (command.id, command.device_no);
        let queue = self.devices.entry(device).or_default();
        let at = queue.entries.iter().position(|entry| entry.id == id);
        if let Some(at) = at {
            self.due.remove(&(queue.entries[at].due_ms, id, device));
        }
        match (at, command.state.is_final()) {
            (Some(at), true) => {
                queue.entries.remove(at);
                self.count -= 1;
            }
            (Some(at), false) => queue.entries[at] = OpenCommand::from_command(command),
            (None, true) => {}
            (None, false) => {
                // Commands arrive in the order of their ids.
                queue.entries.push(OpenCommand::from_command(command));
                self.count += 1;
            }
        }
        match due_ms(command) {
            Some(due_ms) => {
                self.due.insert((due_ms, id, device));
            }
            None if queue.entries.is_empty() && queue.sending.is_none() => {
                self.devices.remove(&device);
            }
            None => {}
        }
    }

    /// Returns due commands, up to the limit.
    pub(super) fn due(&self, now_ms: u64, limit: usize) -> Vec<CommandId> {
        let due = self.due.iter().take_while(|(at_ms, _, _)| *at_ms <= now_ms);
        due.take(limit).map(|(_, id, _)| *id).collect()
    }

    pub(super) fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(at_ms, _, _)| *at_ms)
    }

    /// Whether a command is pending for the device.
    pub(super) fn has_pending(&self, device: DeviceNo) -> bool {
        self.first_pending(device).is_some()
    }

    pub(super) fn first_pending(&self, device: DeviceNo) -> Option<CommandId> {
        let entries = &self.devices.get(&device)?.entries;
        let pending = entries
            .iter()
            .find(|entry| entry.state == CommandState::Pending);
        pending.map(|entry| entry.id)
    }

    /// Commands that do not wait for the device.
    pub(super) fn immediate_commands(&self, device: DeviceNo) -> Vec<CommandId> {
        let entries = self.devices.get(&device).into_iter();
        let entries = entries.flat_map(|queue| &queue.entries);
        let is_pending =
            |entry: &&OpenCommand| entry.immediate && entry.state == CommandState::Pending;
        entries.filter(is_pending).map(|entry| entry.id).collect()
    }

    /// Starts sending the device's next pending command, unless one is already being sent.
    pub(super) fn begin_sending(&mut self, device: DeviceNo) -> Option<CommandId> {
        let first = self.first_pending(device)?;
        let queue = self.devices.get_mut(&device)?;
        if queue.sending.is_some() {
            queue.needs_recheck = true;
            return None;
        }
        queue.sending = Some(first);
        queue.needs_recheck = false;
        Some(first)
    }

    /// Ends sending. Returns whether the device must be checked again.
    pub(super) fn end_sending(&mut self, device: DeviceNo) -> bool {
        let Some(queue) = self.devices.get_mut(&device) else {
            return false;
        };
        queue.sending = None;
        let has_moved = std::mem::take(&mut queue.needs_recheck);
        if queue.entries.is_empty() {
            self.devices.remove(&device);
        }
        has_moved
    }

    /// The command that is being passed to the device's connection.
    pub(super) fn sending(&self, device: DeviceNo) -> Option<CommandId> {
        self.devices.get(&device)?.sending
    }

    /// The newest command sent within the time, which a reply without an id is matched with.
    pub(super) fn newest_sent(
        &self,
        device: DeviceNo,
        kind: Option<CommandKind>,
        sent_from_ms: u64,
    ) -> Option<CommandId> {
        let entries = self.devices.get(&device)?.entries.iter().rev();
        let mut sent = entries.filter(|entry| {
            let is_sent = matches!(entry.state, CommandState::Sent | CommandState::Acknowledged);
            is_sent && entry.sent_ms >= sent_from_ms && kind.is_none_or(|kind| entry.kind == kind)
        });
        sent.next().map(|entry| entry.id)
    }

    pub(super) fn keep_unwritten(&mut self, command: Command) {
        self.unwritten.insert(command.id, command);
    }

    pub(super) fn unwritten(&self, id: CommandId) -> Option<&Command> {
        self.unwritten.get(&id)
    }

    pub(super) fn mark_written(&mut self, id: CommandId) {
        self.unwritten.remove(&id);
    }

    pub(super) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Removes a command that is missing in the store.
    pub(super) fn remove_lost(&mut self, id: CommandId) {
        let known = self.due.iter().find(|(_, known, _)| *known == id).copied();
        let Some(due @ (_, _, device)) = known else {
            return;
        };
        self.due.remove(&due);
        if let Some(queue) = self.devices.get_mut(&device) {
            queue.entries.retain(|entry| entry.id != id);
            self.count -= 1;
        }
    }

    pub(super) fn all_unwritten(&self) -> Vec<Command> {
        self.unwritten.values().cloned().collect()
    }
}
