//! The alarms thread: processes submitted jobs in order and evaluates due devices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json};

use super::super::alarm_store::PURGE_BATCH;
use super::super::details_template::TemplateRenderer;
use super::super::device_alarms::{AlarmTransition, AlarmTransitionKind};
use super::super::watched_devices::DeviceTransitions;
use super::alarms_inner::{AlarmJob, AlarmsInner};
use super::changes::AlarmUpdate;

/// Resolution of times that pass without a message.
const TICK: Duration = Duration::from_millis(200);
const PURGE_EVERY: Duration = Duration::from_secs(60);
/// Pause after a purge that has not removed all.
const PURGE_AGAIN_AFTER: Duration = Duration::from_secs(1);
const FORGET_EVERY: Duration = Duration::from_secs(24 * 3600);
const RETRY_AFTER: Duration = Duration::from_secs(1);
const MAX_DETAILS_BYTES: usize = 4096;
const DAY_MS: u64 = 24 * 3600 * 1000;

impl AlarmsInner {
    /// Processes one job; it is repeated if the store fails.
    fn run_job(
        &self,
        writer: &mut TemplateRenderer,
        work: &AlarmJob,
    ) -> Result<(), store::StoreError> {
        match work {
            AlarmJob::Transitions(turned) => {
                let mut transitions = turned.transitions.iter();
                transitions.try_for_each(|turn| self.apply_transition(writer, turned, *turn))?;
                self.watched_devices.mark_applied(turned.subject.no());
                Ok(())
            }
            AlarmJob::SqlRule(subject, named) => self.apply_update(&AlarmUpdate {
                subject,
                kind: &named.kind,
                transition: match named.is_cleared {
                    true => AlarmTransitionKind::Cleared,
                    false => AlarmTransitionKind::Raised(named.severity),
                },
                at_ms: named.at_ms,
                details: truncated_details(named.details.clone()),
                values: Map::new(),
                rule: &named.rule,
                notify: &[],
                propagate: false,
                tag: named.tag,
            }),
            AlarmJob::RemoveDevice(device) => self.remove_alarms_of(device),
            AlarmJob::AddDevice(device) => {
                self.add_device(device);
                Ok(())
            }
            AlarmJob::Synchronize(device, attempts) => self.synchronize(*device, *attempts),
            AlarmJob::Evaluate(inputs) => {
                self.evaluate_confirmed(inputs);
                Ok(())
            }
        }
    }

    fn apply_transition(
        &self,
        writer: &mut TemplateRenderer,
        turned: &DeviceTransitions,
        turn: AlarmTransition,
    ) -> Result<(), store::StoreError> {
        let subject = &turned.subject;
        let (kind, meta) = (
            turned.compiled.set.rule_id(turn.rule),
            &turned.compiled.rules[turn.rule],
        );
        let values = turned.values.iter();
        let values: Map<_, _> = values
            .map(|(name, value)| (name.to_string(), value.to_json()))
            .collect();
        let severity = match turn.kind {
            AlarmTransitionKind::Raised(severity)
            | AlarmTransitionKind::SeverityChanged { to: severity, .. } => severity.as_str(),
            AlarmTransitionKind::Cleared => "",
        };
        let details = meta.details.as_ref().map_or_else(String::new, |text| {
            let about = [
                ("deviceId", subject.id()),
                ("deviceName", subject.name()),
                ("productId", subject.product()),
                ("type", kind),
                ("severity", severity),
            ]
            .map(|(name, value)| (name, Json::from(value)));
            let values = values.iter().map(|(name, value)| (name.as_str(), value));
            let about = about.iter().map(|(name, value)| (*name, value));
            writer.render(text, turn.at_ms, &values.chain(about).collect::<Vec<_>>())
        });
        self.apply_update(&AlarmUpdate {
            subject,
            kind,
            transition: turn.kind,
            at_ms: turn.at_ms,
            details: truncated_details(details),
            values,
            rule: "",
            notify: &meta.notify,
            propagate: meta.propagate,
            tag: 0,
        })
    }

    /// Runs a step of the thread. A panic is counted, and skips the step.
    fn catch_panic<R>(&self, step: &str, work: impl FnOnce() -> R) -> Option<R> {
        let result = catch_unwind(AssertUnwindSafe(work));
        if result.is_err() {
            self.panics.fetch_add(1, Relaxed);
            tracing::error!(
                step,
                "the alarms thread panicked; the step is skipped; this is a bug"
            );
        }
        result.ok()
    }

    fn settle_notifications(&self) {
        if let Err(error) = self.store.pending_notifications.settle() {
            tracing::warn!(%error, "updating pending alarm notifications failed; they may be sent again");
        }
    }

    fn tick(self: &Arc<Self>) {
        let unconfirmed = self
            .watched_devices
            .tick(&**self, wall_clock::now_ms(), &mut |turned| {
                self.enqueue(AlarmJob::Transitions(turned));
            });
        if let Some(sharing) = self.store.sharing.get() {
            sharing.announce_due();
        }
        self.check_devices(unconfirmed);
    }

    /// Alarms that were cleared before this time are removed.
    pub(super) fn cleared_before_ms(&self) -> u64 {
        let retention_ms = u64::from(self.config.cleared_retention_days) * DAY_MS;
        wall_clock::now_ms().saturating_sub(retention_ms)
    }

    /// Removes old alarms; returns whether there may be more.
    fn purge(&self) -> bool {
        let purged = self
            .store
            .purge(self.cleared_before_ms(), self.config.max_alarms);
        match purged {
            Ok(count) => count == PURGE_BATCH,
            Err(error) => {
                tracing::warn!(%error, "removing old alarms failed; retrying");
                false
            }
        }
    }

    fn forget_removed(&self) {
        if let Err(error) = self.store.forget_removed() {
            tracing::warn!(%error, "removed alarms could not be forgotten; tried again in a day");
        }
    }
}

/// Runs the thread.
pub(super) fn run(inner: &Weak<AlarmsInner>) {
    let mut writer = TemplateRenderer::new();
    let mut ticked_at = Instant::now();
    let mut purged_at = Instant::now();
    let mut purge_after = PURGE_EVERY;
    let mut forgotten_at = Instant::now();
    let mut has_failed = false;
    loop {
        let Some(inner) = inner.upgrade() else {
            return;
        };
        inner.queue.wait(TICK.saturating_sub(ticked_at.elapsed()));
        let work = inner.queue.pop();
        let is_idle = work.is_none();
        let result = work.as_ref().map(|work| {
            let done =
                inner.catch_panic("processing an alarm", || inner.run_job(&mut writer, work));
            done.unwrap_or(Ok(()))
        });
        if let (Some(work), Some(Err(error))) = (work, &result) {
            inner.write_errors.fetch_add(1, Relaxed);
            if !std::mem::replace(&mut has_failed, true) {
                tracing::error!(%error, "writing alarms failed; retrying until the store recovers");
            }
            inner.progress.abandon_waiters();
            if inner.queue.is_stopping() {
                return;
            }
            inner.queue.put_back(work);
            std::thread::sleep(RETRY_AFTER);
            continue;
        }
        has_failed = false;
        if !is_idle {
            inner.progress.complete();
        }
        if ticked_at.elapsed() >= TICK {
            ticked_at = Instant::now();
            inner.catch_panic("updating pending alarm notifications", || {
                inner.settle_notifications()
            });
            // A device whose evaluation panics is not due any more; the others are evaluated at the next tick.
            inner.catch_panic("evaluating due alarm conditions", || inner.tick());
        }
        if purged_at.elapsed() >= purge_after {
            let has_more = inner.catch_panic("removing old alarms", || inner.purge());
            purge_after = match has_more {
                Some(true) => PURGE_AGAIN_AFTER,
                _ => PURGE_EVERY,
            };
            purged_at = Instant::now();
        }
        if forgotten_at.elapsed() >= FORGET_EVERY {
            inner.catch_panic("forgetting removed alarms", || inner.forget_removed());
            forgotten_at = Instant::now();
        }
        if is_idle && inner.queue.is_done() {
            return;
        }
    }
}

fn truncated_details(mut text: String) -> String {
    if text.len() > MAX_DETAILS_BYTES {
        text.truncate(text.floor_char_boundary(MAX_DETAILS_BYTES));
    }
    text
}
