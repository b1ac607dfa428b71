//! What becomes of a command: in the store, in memory, and told.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::super::life::{Happened, step};
use super::super::open::Open;
use super::super::record::{Command, CommandId};
use super::{Inner, lock};

impl Inner {
    pub(super) fn read(&self) -> Result<(), store::Error> {
        let found = self.book.read()?;
        let mut open = Open::default();
        (open.next, open.finished) = (found.next, found.finished);
        found.open.iter().for_each(|command| open.take(command));
        self.open_count.store(open.count(), Relaxed);
        *lock(&self.open) = open;
        Ok(())
    }

    pub(super) fn get(&self, id: CommandId) -> Result<Option<Command>, store::Error> {
        if let Some(command) = lock(&self.open).unwritten(id) {
            return Ok(Some(command.clone()));
        }
        self.book.get(id)
    }

    /// Lets something happen to a command. `None`: there is none, or it stays as it is.
    pub(super) fn change(
        &self,
        id: CommandId,
        happened: Happened,
    ) -> Result<Option<Command>, store::Error> {
        let _telling = lock(&self.telling);
        let Some(mut command) = self.get(id)? else {
            lock(&self.open).forget(id);
            return Ok(None);
        };
        let was_sent = matches!(happened, Happened::Sent { .. });
        if !step(&mut command, happened, self.now_ms()) {
            return Ok(None);
        }
        let written = self.book.put(&command, None);
        {
            let mut open = lock(&self.open);
            open.take(&command);
            self.open_count.store(open.count(), Relaxed);
            open.finished += u64::from(command.state.is_final());
            match &written {
                Ok(()) => open.written(id),
                Err(_) => open.keep_unwritten(command.clone()),
            }
        }
        if let Err(error) = written {
            self.write_errors.fetch_add(1, Relaxed);
            let id = id.0;
            tracing::error!(id, %error, "what became of a command cannot be written; it is tried again");
        }
        self.sent.fetch_add(u64::from(was_sent), Relaxed);
        if command.state.is_final() {
            self.ended[command.state as usize].fetch_add(1, Relaxed);
        }
        self.tell(&command);
        Ok(Some(command))
    }

    pub(super) fn tell(&self, command: &Command) {
        if command.state.is_final() {
            self.tell_end(command);
        }
        let listeners = self.listeners.read();
        for listener in &*listeners.unwrap_or_else(PoisonError::into_inner) {
            listener(command);
        }
    }
}
