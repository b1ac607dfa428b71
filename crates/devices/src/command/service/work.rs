//! The thread of commands: works off what shards have said of them, and then what time alone brings.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use series::DeviceNo;

use super::super::life::Happened;
use super::super::reach::{Address, Handed};
use super::super::record::{CommandId, CommandState};
use super::answer::Answer;
use super::{CommandError, Inner, lock};

/// After what could not be done now.
pub(super) const RETRY_MS: u64 = 1000;
/// How often old commands are looked for.
const PURGE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 3600 * 1000;
/// Commands whose time is over that are worked off in one go.
const MAX_DUE: usize = 1000;

pub(super) enum Work {
    /// The device may hear now what waits for it.
    Arrived(DeviceNo),
    /// The same for all behind a gateway.
    ArrivedBehind(DeviceNo),
    Handed(DeviceNo, CommandId, Handed, Address),
    Acknowledged(CommandId),
    Answered(DeviceNo, Answer, u64),
    Forget(DeviceNo),
}

impl Inner {
    /// Does what is to be done now. How long nothing is.
    pub(in super::super) fn work_off(self: &Arc<Self>) -> Duration {
        while let Some(work) = self.queue.pop() {
            if let Err(error) = self.work(work) {
                self.write_errors.fetch_add(1, Relaxed);
                tracing::error!(%error, "something about a command cannot be read or written");
            }
        }
        let now_ms = self.now_ms();
        self.end_due(now_ms);
        let again: Vec<_> = {
            let mut again = lock(&self.again);
            let later = again.split_off(&(now_ms + 1, DeviceNo(0)));
            std::mem::replace(&mut *again, later).into_iter().collect()
        };
        for (_, device) in again {
            self.queue.push(Work::Arrived(device));
        }
        self.write_rest();
        self.purge(now_ms);
        let (next_ms, has_unwritten) = {
            let open = lock(&self.open);
            (open.next_due_ms(), open.has_unwritten())
        };
        let again_ms = lock(&self.again).first().map(|(at_ms, _)| *at_ms);
        let retry_ms = has_unwritten.then_some(now_ms + RETRY_MS);
        let times = [next_ms, again_ms, retry_ms, Some(now_ms + PURGE_MS)];
        let next_ms = times.into_iter().flatten().min().unwrap_or(now_ms);
        Duration::from_millis(next_ms.saturating_sub(now_ms))
    }

    fn work(self: &Arc<Self>, work: Work) -> Result<(), CommandError> {
        match work {
            Work::Arrived(device) => self.hand_next(device),
            Work::ArrivedBehind(gateway) => self.hand_next_behind(gateway),
            Work::Handed(device, id, handed, rest) => self.handed(device, id, handed, rest),
            Work::Acknowledged(id) => {
                self.change(id, Happened::Acknowledged)?;
                Ok(())
            }
            Work::Answered(device, answer, at_ms) => self.answered(device, answer, at_ms),
            Work::Forget(device) => {
                let ids = lock(&self.open).ids_of(device);
                for id in ids {
                    let why = "the device was removed".to_owned();
                    self.change(id, Happened::Cancelled(why))?;
                }
                Ok(())
            }
        }
    }

    fn end_due(self: &Arc<Self>, now_ms: u64) {
        let due = lock(&self.open).due(now_ms, MAX_DUE);
        for id in due {
            match self.change(id, Happened::Due) {
                Ok(Some(command)) if command.state == CommandState::Pending => {
                    self.wake_askers(command.device_no);
                    self.queue.push(Work::Arrived(command.device_no));
                }
                Ok(_) => {}
                Err(error) => {
                    self.write_errors.fetch_add(1, Relaxed);
                    tracing::error!(id = id.0, %error, "a command whose time is over cannot be read");
                    return;
                }
            }
        }
    }

    fn write_rest(&self) {
        let _telling = lock(&self.telling);
        let rest = lock(&self.open).all_unwritten();
        for command in rest {
            if self.book.put(&command, None).is_err() {
                return;
            }
            lock(&self.open).written(command.id);
        }
    }

    fn purge(&self, now_ms: u64) {
        let above = {
            let open = lock(&self.open);
            open.finished.saturating_sub(self.config.max_finished)
        };
        if above == 0 && now_ms.saturating_sub(self.purged_ms.load(Relaxed)) < PURGE_MS {
            return;
        }
        self.purged_ms.store(now_ms, Relaxed);
        let kept_ms = u64::from(self.config.finished_retention_d) * DAY_MS;
        match self.book.purge(now_ms.saturating_sub(kept_ms), above) {
            Ok(count) => {
                let mut open = lock(&self.open);
                open.finished = match count {
                    // It was not as many as that.
                    0 => open.finished.min(self.config.max_finished),
                    count => open.finished.saturating_sub(count),
                };
            }
            Err(error) => tracing::error!(%error, "old commands cannot be removed"),
        }
    }
}

pub(super) fn run(inner: &Weak<Inner>) {
    while let Some(inner) = inner.upgrade() {
        let wait = inner.work_off();
        if inner.queue.is_done() {
            return;
        }
        inner.queue.wait(wait);
    }
}
