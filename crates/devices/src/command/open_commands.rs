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
    created_ms: u64,
    state: CommandState,
    kind: CommandKind,
    sent_ms: u64,
    due_ms: u64,
    immediate: bool,
    /// Until then another node may take it over, and it is not sent; 0: it is not offered.
    held_until_ms: u64,
}

impl OpenCommand {
    fn from_command(command: &Command) -> Self {
        Self {
            id: command.id,
            created_ms: command.created_at_ms,
            state: command.state,
            kind: command.kind,
            sent_ms: command.sent_at_ms.unwrap_or_default(),
            due_ms: due_ms(command).unwrap_or(u64::MAX),
            immediate: command.immediate,
            held_until_ms: 0,
        }
    }

    fn is_at_device(&self) -> bool {
        matches!(self.state, CommandState::Sent | CommandState::Acknowledged)
    }
}

impl DeviceQueue {
    fn entry(&self, id: CommandId) -> Option<&OpenCommand> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    /// The next command to send. Of commands that two nodes have given the same number at the device, one follows the end of
    /// the other.
    fn next_to_send(&self) -> Option<CommandId> {
        let is_due = |entry: &&OpenCommand| {
            let is_same = |other: &OpenCommand| {
                other.is_at_device() && other.id.at_device() == entry.id.at_device()
            };
            entry.state == CommandState::Pending
                && entry.held_until_ms == 0
                && !self.entries.iter().any(is_same)
        };
        self.entries.iter().find(is_due).map(|entry| entry.id)
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

    /// Adds an open command that may be older than others of its device, because another node has accepted it.
    pub(super) fn insert_by_time(&mut self, command: &Command) {
        self.update(command);
        if let Some(queue) = self.devices.get_mut(&command.device_no) {
            queue
                .entries
                .sort_by_key(|entry| (entry.created_ms, entry.id));
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
        self.next_to_send(device).is_some()
    }

    pub(super) fn next_to_send(&self, device: DeviceNo) -> Option<CommandId> {
        self.devices.get(&device)?.next_to_send()
    }

    /// At most `limit` devices for which commands wait, the first ones after `after`, in the order of their numbers.
    pub(super) fn waiting_devices(&self, after: Option<DeviceNo>, limit: usize) -> Vec<DeviceNo> {
        let is_later = |device: &&DeviceNo| after.is_none_or(|after| **device > after);
        let waiting = self.devices.iter();
        let waiting = waiting.filter(|(_, queue)| queue.next_to_send().is_some());
        let mut waiting: Vec<DeviceNo> = waiting
            .map(|(device, _)| device)
            .filter(is_later)
            .copied()
            .collect();
        waiting.sort_unstable();
        waiting.truncate(limit);
        waiting
    }

    /// Commands that wait for the device and that another node may take over.
    pub(super) fn movable_commands(&self, device: DeviceNo) -> Vec<CommandId> {
        let Some(queue) = self.devices.get(&device) else {
            return Vec::new();
        };
        let is_movable = |entry: &&OpenCommand| {
            entry.state == CommandState::Pending
                && !entry.immediate
                && entry.held_until_ms == 0
                && queue.sending != Some(entry.id)
                && !self.unwritten.contains_key(&entry.id)
        };
        let movable = queue.entries.iter().filter(is_movable);
        movable.map(|entry| entry.id).collect()
    }

    /// Whether a pending command has had to wait for the end of this one, see [`DeviceQueue::next_to_send`].
    pub(super) fn has_pending_with_same_number(&self, ended: &Command) -> bool {
        let queue = self.devices.get(&ended.device_no);
        let entries = queue.into_iter().flat_map(|queue| &queue.entries);
        let mut pending = entries.filter(|entry| entry.state == CommandState::Pending);
        pending.any(|entry| entry.id.at_device() == ended.id.at_device())
    }

    /// Does not send a pending command until it is released. Returns whether it is still pending.
    pub(super) fn hold(&mut self, device: DeviceNo, id: CommandId, until_ms: u64) -> bool {
        let Some(queue) = self.devices.get_mut(&device) else {
            return false;
        };
        if queue.sending == Some(id) {
            return false;
        }
        let entry = queue.entries.iter_mut().find(|entry| entry.id == id);
        let Some(entry) = entry.filter(|entry| entry.state == CommandState::Pending) else {
            return false;
        };
        entry.held_until_ms = until_ms;
        true
    }

    pub(super) fn is_held(&self, device: DeviceNo, id: CommandId) -> bool {
        let queue = self.devices.get(&device);
        let entry = queue.and_then(|queue| queue.entry(id));
        entry.is_some_and(|entry| entry.held_until_ms > 0)
    }

    /// Sends the commands of a device again that are not held any longer.
    pub(super) fn end_holds(&mut self, device: DeviceNo, now_ms: u64) {
        let queue = self.devices.get_mut(&device).into_iter();
        for entry in queue.flat_map(|queue| &mut queue.entries) {
            if entry.held_until_ms <= now_ms {
                entry.held_until_ms = 0;
            }
        }
    }

    /// Removes a command that is at another node now.
    pub(super) fn forget(&mut self, device: DeviceNo, id: CommandId) {
        let Some(queue) = self.devices.get_mut(&device) else {
            return;
        };
        if let Some(at) = queue.entries.iter().position(|entry| entry.id == id) {
            let entry = queue.entries.remove(at);
            self.due.remove(&(entry.due_ms, id, device));
            self.count -= 1;
        }
        if queue.entries.is_empty() && queue.sending.is_none() {
            self.devices.remove(&device);
        }
    }

    /// The open command of a device with the number that the device knows, of several the one that it has got.
    pub(super) fn find_by_device_number(&self, device: DeviceNo, number: u64) -> Option<CommandId> {
        let queue = self.devices.get(&device)?;
        let has_number = |entry: &&OpenCommand| entry.id.at_device() == number;
        let mut found = queue.entries.iter().filter(has_number);
        let at_device =
            |entry: &OpenCommand| entry.is_at_device() || queue.sending == Some(entry.id);
        let known = found.clone().find(|entry| at_device(entry));
        known.or_else(|| found.next()).map(|entry| entry.id)
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
        let first = self.next_to_send(device)?;
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
            entry.is_at_device()
                && entry.sent_ms >= sent_from_ms
                && kind.is_none_or(|kind| entry.kind == kind)
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
