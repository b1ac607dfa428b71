//! Stores all commands in tables of the store.
//!
//! `command`: number -> record. `command_index`: access paths; an inverted number lets the newest command come first:
//!
//! | begins with | then | value |
//! |---|---|---|
//! | `o` | number | empty; only of commands that are open |
//! | `d` | device, number turned around | state |
//! | `t` | number turned around | state |
//! | `n` | | the next number: none is given twice |

use std::ops::Bound;

use namespaces::NamespaceSelection;
use series::DeviceNo;
use store::{Durability, StoreError, Table, TableBatch, Tables};

use super::record::{Command, CommandId, CommandState};

/// Maximum number of records that one request examines; the response then contains the position to continue from.
const MAX_SCANNED: usize = 10_000;
/// Number of commands removed in one batch.
const PURGE_BATCH: usize = 1000;
const NEXT_ID_KEY: &[u8] = b"n";

pub(super) struct CommandStore {
    tables: Tables,
    commands: Table,
    index: Table,
}

/// Selects commands; the result starts with the newest.
#[derive(Debug, Clone, Default)]
pub struct CommandFilter {
    pub device: Option<DeviceNo>,
    /// Any of these states; empty: all.
    pub states: Vec<CommandState>,
    pub namespaces: NamespaceSelection,
    /// Only commands of this request to several devices.
    pub batch: Option<String>,
}

/// One page of commands.
#[derive(Debug, Clone, Default)]
pub struct CommandPage {
    pub commands: Vec<Command>,
    /// Position of the next page; `None`: this is the last one.
    pub next: Option<CommandId>,
}

/// The content of the tables at start.
pub(super) struct StoredCommands {
    pub(super) open: Vec<Command>,
    pub(super) finished: u64,
    pub(super) next: u64,
}

impl CommandStore {
    pub(super) fn open(tables: &Tables) -> Result<Self, StoreError> {
        Ok(Self {
            commands: tables.table("command"),
            index: tables.table("command_index"),
            tables: tables.clone(),
        })
    }

    pub(super) fn load(&self) -> Result<StoredCommands, StoreError> {
        let mut ids = Vec::new();
        self.index.scan(b"o", Bound::Unbounded, &mut |key, _| {
            ids.push(CommandId(decode_u64(&key[1..])));
            true
        })?;
        let mut open = Vec::with_capacity(ids.len());
        for id in ids {
            open.extend(self.get(id)?);
        }
        let mut finished = 0;
        self.index.scan(b"t", Bound::Unbounded, &mut |_, value| {
            finished += u64::from(decode_state(value).is_none_or(CommandState::is_final));
            true
        })?;
        let next = self.index.get_with(NEXT_ID_KEY, decode_u64)?;
        Ok(StoredCommands {
            open,
            finished,
            next: next.unwrap_or(1),
        })
    }

    pub(super) fn get(&self, id: CommandId) -> Result<Option<Command>, StoreError> {
        let found = self
            .commands
            .get_with(&id.0.to_be_bytes(), Command::decode)?;
        Ok(found.flatten())
    }

    /// Writes a new command that is open. `next`: the number of the next command, if this node has given the number.
    pub(super) fn put_new(&self, command: &Command, next: Option<u64>) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        self.write(&mut batch, command)?;
        batch.put(&self.index, &open_key(command.id), b"")?;
        if let Some(next) = next {
            batch.put(&self.index, NEXT_ID_KEY, &next.to_be_bytes())?;
        }
        batch.commit(Durability::Buffered)
    }

    /// Writes a changed command.
    pub(super) fn put(&self, command: &Command) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        self.write(&mut batch, command)?;
        if command.state.is_final() {
            batch.remove(&self.index, &open_key(command.id))?;
        }
        batch.commit(Durability::Buffered)
    }

    fn write(&self, batch: &mut TableBatch, command: &Command) -> Result<(), StoreError> {
        let id = command.id;
        batch.put(&self.commands, &id.0.to_be_bytes(), &command.encode())?;
        let state = [command.state as u8];
        batch.put(&self.index, &device_key(command.device_no, id), &state)?;
        batch.put(&self.index, &time_key(id), &state)
    }

    /// Removes a command.
    pub(super) fn remove_one(&self, command: &Command) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        self.remove(&mut batch, command)?;
        batch.commit(Durability::Buffered)
    }

    fn remove(&self, batch: &mut TableBatch, command: &Command) -> Result<(), StoreError> {
        let id = command.id;
        batch.remove(&self.commands, &id.0.to_be_bytes())?;
        batch.remove(&self.index, &device_key(command.device_no, id))?;
        batch.remove(&self.index, &time_key(id))?;
        batch.remove(&self.index, &open_key(id))
    }

    /// Returns up to `limit` commands older than `before`, the newest first.
    pub(super) fn list(
        &self,
        filter: &CommandFilter,
        before: Option<CommandId>,
        limit: usize,
    ) -> Result<CommandPage, StoreError> {
        let prefix = match filter.device {
            Some(device) => [b"d", &device.0.to_be_bytes()[..]].concat(),
            None => b"t".to_vec(),
        };
        let from = before.map(|id| [&prefix[..], &descending_key(id)].concat());
        let from = from.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (mut ids, mut looked_at, mut next) = (Vec::new(), 0, None);
        let reads_all = filter.namespaces != NamespaceSelection::All || filter.batch.is_some();
        let is_selected = |command: &Command| {
            filter.namespaces.contains(&command.namespace)
                && (filter.batch.is_none() || command.batch == filter.batch)
        };
        let mut failed = None;
        self.index.scan(&prefix, from, &mut |key, value| {
            looked_at += 1;
            let id = CommandId(!decode_u64(&key[prefix.len()..]));
            let is_wanted = decode_state(value)
                .is_some_and(|state| filter.states.is_empty() || filter.states.contains(&state));
            if is_wanted && reads_all {
                match self.get(id) {
                    Ok(Some(command)) if is_selected(&command) => ids.push(id),
                    Ok(_) => {}
                    Err(error) => {
                        failed = Some(error);
                        return false;
                    }
                }
            } else if is_wanted {
                ids.push(id);
            }
            if ids.len() == limit || looked_at == MAX_SCANNED {
                next = Some(id);
            }
            next.is_none()
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        let mut commands = Vec::with_capacity(ids.len());
        for id in ids {
            // The command may have been removed in the meantime.
            commands.extend(self.get(id)?);
        }
        Ok(CommandPage { commands, next })
    }

    /// Removes a batch of finished commands: those that ended before the given time and, while there are `above` too
    /// many, the oldest ones. Returns the number of removed commands.
    pub(super) fn purge(&self, ended_before_ms: u64, mut above: u64) -> Result<u64, StoreError> {
        let mut old = Vec::new();
        let mut looked_at = 0;
        self.commands.scan(b"", Bound::Unbounded, &mut |_, bytes| {
            looked_at += 1;
            if let Some(command) = Command::decode(bytes)
                && let Some(finished_ms) = command.finished_at_ms
                && (above > 0 || finished_ms < ended_before_ms)
            {
                above = above.saturating_sub(1);
                old.push(command);
            }
            looked_at < MAX_SCANNED && old.len() < PURGE_BATCH
        })?;
        if old.is_empty() {
            return Ok(0);
        }
        let mut batch = self.tables.batch()?;
        for command in &old {
            self.remove(&mut batch, command)?;
        }
        batch.commit(Durability::Buffered)?;
        Ok(old.len() as u64)
    }
}

fn decode_u64(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn decode_state(value: &[u8]) -> Option<CommandState> {
    CommandState::ALL.get(usize::from(*value.first()?)).copied()
}

fn descending_key(id: CommandId) -> [u8; 8] {
    (!id.0).to_be_bytes()
}

fn open_key(id: CommandId) -> Vec<u8> {
    [b"o", &id.0.to_be_bytes()[..]].concat()
}

fn device_key(device: DeviceNo, id: CommandId) -> Vec<u8> {
    [b"d", &device.0.to_be_bytes()[..], &descending_key(id)].concat()
}

fn time_key(id: CommandId) -> Vec<u8> {
    [b"t", &descending_key(id)[..]].concat()
}
