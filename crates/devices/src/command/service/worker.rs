//! The commands thread: processes queued jobs, then due times.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use series::DeviceNo;

use super::super::lifecycle::CommandTransition;
use super::super::record::CommandState;
use super::commands_inner::{CommandError, CommandJob, CommandsInner, lock};

/// Delay after a failure before the next attempt.
pub(super) const RETRY_MS: u64 = 1000;
/// Interval of removing old commands.
const PURGE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 3600 * 1000;
/// Maximum number of due commands processed at a time.
const MAX_DUE: usize = 1000;

impl CommandsInner {
    /// Processes everything that is due now and returns the time until the next due work.
    pub(in super::super) fn process_jobs(self: &Arc<Self>) -> Duration {
        while let Some(work) = self.queue.pop() {
            let is_answer = matches!(work, CommandJob::Answered(..));
            match catch_unwind(AssertUnwindSafe(|| self.run_job(work))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    self.write_errors.fetch_add(1, Relaxed);
                    tracing::error!(%error, "reading or writing a command failed");
                }
                Err(_) => {
                    tracing::error!(
                        "processing a command panicked; the change is skipped; this is a bug"
                    );
                }
            }
            if is_answer {
                self.replies.complete();
            }
        }
        let now_ms = self.now_ms();
        self.expire_due(now_ms);
        let again: Vec<_> = {
            let mut again = lock(&self.rechecks);
            let later = again.split_off(&(now_ms + 1, DeviceNo(0)));
            std::mem::replace(&mut *again, later).into_iter().collect()
        };
        for (_, device) in again {
            self.queue.push(CommandJob::ResumeDevice(device));
        }
        self.end_holds(now_ms);
        self.retry_unwritten();
        self.purge(now_ms);
        let (next_ms, has_unwritten) = {
            let open = lock(&self.open);
            (open.next_due_ms(), open.has_unwritten())
        };
        let again_ms = lock(&self.rechecks).first().map(|(at_ms, _)| *at_ms);
        let held_ms = lock(&self.holds).first().map(|(at_ms, _)| *at_ms);
        let retry_ms = has_unwritten.then_some(now_ms + RETRY_MS);
        let times = [
            next_ms,
            again_ms,
            held_ms,
            retry_ms,
            Some(now_ms + PURGE_MS),
        ];
        let next_ms = times.into_iter().flatten().min().unwrap_or(now_ms);
        Duration::from_millis(next_ms.saturating_sub(now_ms))
    }

    fn run_job(self: &Arc<Self>, work: CommandJob) -> Result<(), CommandError> {
        match work {
            CommandJob::ResumeDevice(device) => self.send_next(device),
            CommandJob::ResumeChildren(gateway) => self.send_next_to_children(gateway),
            CommandJob::SendOutcome(device, id, outcome, rest) => {
                self.handle_outcome(device, id, outcome, rest)
            }
            CommandJob::Acknowledged(device, id) => {
                self.mark_sent(device, id, true)?;
                self.change(id, CommandTransition::Acknowledged)?;
                Ok(())
            }
            CommandJob::Answered(device, answer, at_ms) => self.apply_answer(device, answer, at_ms),
            CommandJob::RemoveDevice(device) => {
                let ids = lock(&self.open).ids_of(device);
                for id in ids {
                    let why = "the device was removed".to_owned();
                    self.change(id, CommandTransition::Cancelled(why))?;
                }
                Ok(())
            }
        }
    }

    fn expire_due(self: &Arc<Self>, now_ms: u64) {
        let due = lock(&self.open).due(now_ms, MAX_DUE);
        for id in due {
            match self.change(id, CommandTransition::DeadlineReached) {
                Ok(Some(command)) if command.state == CommandState::Pending => {
                    self.wake_pollers(command.device_no);
                    self.queue.push(CommandJob::ResumeDevice(command.device_no));
                }
                Ok(_) => {}
                Err(error) => {
                    self.write_errors.fetch_add(1, Relaxed);
                    tracing::error!(id = id.0, %error, "reading a due command failed");
                    return;
                }
            }
        }
    }

    fn retry_unwritten(&self) {
        let _notify_guard = lock(&self.notify_lock);
        let rest = lock(&self.open).all_unwritten();
        for command in rest {
            if self.store.put(&command).is_err() {
                return;
            }
            lock(&self.open).mark_written(command.id);
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
        let kept_ms = u64::from(self.config.finished_retention_days) * DAY_MS;
        match self.store.purge(now_ms.saturating_sub(kept_ms), above) {
            Ok(count) => {
                let mut open = lock(&self.open);
                open.finished = match count {
                    // Nothing was left to remove, so the counter was too high.
                    0 => open.finished.min(self.config.max_finished),
                    count => open.finished.saturating_sub(count),
                };
            }
            Err(error) => tracing::error!(%error, "removing old commands failed"),
        }
    }
}

pub(super) fn run(inner: &Weak<CommandsInner>) {
    while let Some(inner) = inner.upgrade() {
        let wait = inner.process_jobs();
        if inner.queue.is_done() {
            return;
        }
        inner.queue.wait(wait);
    }
}
