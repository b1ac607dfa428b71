//! Applies changes of commands to the store and the memory, then notifies observers.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::super::lifecycle::{CommandTransition, apply};
use super::super::open_commands::OpenCommands;
use super::super::record::{Command, CommandId};
use super::commands_inner::{CommandError, CommandJob, CommandsInner, lock};

impl CommandsInner {
    pub(super) fn load(&self) -> Result<(), store::StoreError> {
        let found = self.store.load()?;
        let mut open = OpenCommands::default();
        (open.next, open.finished) = (found.next, found.finished);
        let all = found.open.iter();
        all.for_each(|command| open.insert_by_time(command));
        self.open_count.store(open.count(), Relaxed);
        *lock(&self.open) = open;
        Ok(())
    }

    pub(super) fn get(&self, id: CommandId) -> Result<Option<Command>, store::StoreError> {
        if let Some(command) = lock(&self.open).unwritten(id) {
            return Ok(Some(command.clone()));
        }
        self.store.get(id)
    }

    /// Applies a transition to a command. `None`: the command does not exist or does not change.
    pub(super) fn change(
        &self,
        id: CommandId,
        transition: CommandTransition,
    ) -> Result<Option<Command>, store::StoreError> {
        let _notify_guard = lock(&self.notify_lock);
        self.change_with_lock_held(id, transition)
    }

    /// The same, unless another node may have taken the command over.
    pub(super) fn change_unless_offered(
        &self,
        id: CommandId,
        transition: CommandTransition,
    ) -> Result<Option<Command>, CommandError> {
        let _notify_guard = lock(&self.notify_lock);
        let command = self.get(id)?;
        if command.is_some_and(|command| lock(&self.open).is_held(command.device_no, id)) {
            return Err(CommandError::HandedOver);
        }
        Ok(self.change_with_lock_held(id, transition)?)
    }

    /// The caller holds `notify_lock`.
    fn change_with_lock_held(
        &self,
        id: CommandId,
        transition: CommandTransition,
    ) -> Result<Option<Command>, store::StoreError> {
        let Some(mut command) = self.get(id)? else {
            lock(&self.open).remove_lost(id);
            return Ok(None);
        };
        let was_sent = matches!(transition, CommandTransition::Sent { .. });
        if !apply(&mut command, transition, self.now_ms()) {
            return Ok(None);
        }
        let written = self.store.put(&command);
        let is_awaited;
        {
            let mut open = lock(&self.open);
            open.update(&command);
            self.open_count.store(open.count(), Relaxed);
            open.finished += u64::from(command.state.is_final());
            match &written {
                Ok(()) => open.mark_written(id),
                Err(_) => open.keep_unwritten(command.clone()),
            }
            is_awaited = command.state.is_final() && open.has_pending_with_same_number(&command);
        }
        if is_awaited {
            self.wake_pollers(command.device_no);
            self.queue.push(CommandJob::ResumeDevice(command.device_no));
        }
        if let Err(error) = written {
            self.write_errors.fetch_add(1, Relaxed);
            let id = id.0;
            tracing::error!(id, %error, "writing a changed command failed; retrying");
        }
        self.sent.fetch_add(u64::from(was_sent), Relaxed);
        if command.state.is_final() {
            self.ended[command.state as usize].fetch_add(1, Relaxed);
        }
        self.notify_observers(&command);
        Ok(Some(command))
    }

    pub(super) fn notify_observers(&self, command: &Command) {
        if command.state.is_final() {
            self.notify_waiters(command);
        }
        let observers = self.observers.read();
        for observer in &*observers.unwrap_or_else(PoisonError::into_inner) {
            observer(command);
        }
    }
}
