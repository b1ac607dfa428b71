//! The alarms thread: processes submitted jobs in order and evaluates due devices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json};

use super::super::details_template::TemplateRenderer;
use super::super::device_alarms::{AlarmTransition, AlarmTransitionKind};
use super::super::watched_devices::DeviceTransitions;
use super::alarms_inner::{AlarmJob, AlarmsInner};
use super::changes::AlarmUpdate;

/// Resolution of times that pass without a message.
const TICK: Duration = Duration::from_millis(200);
const PURGE_EVERY: Duration = Duration::from_secs(60);
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
            AlarmJob::Transitions(turned) => turned
                .transitions
                .iter()
                .try_for_each(|turn| self.apply_transition(writer, turned, *turn)),
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
            AlarmJob::RemoveDevice(device) => self.remove_alarms_of(*device),
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

    fn tick(&self) {
        self.watched_devices
            .tick(self, wall_clock::now_ms(), &mut |turned| {
                self.enqueue(AlarmJob::Transitions(turned));
            });
    }

    fn purge(&self) {
        let retention_ms = u64::from(self.config.cleared_retention_days) * DAY_MS;
        let before_ms = wall_clock::now_ms().saturating_sub(retention_ms);
        if let Err(error) = self.store.purge(before_ms, self.config.max_alarms) {
            tracing::warn!(%error, "removing old alarms failed; retrying");
        }
    }
}

/// Runs the thread.
pub(super) fn run(inner: &Weak<AlarmsInner>) {
    let mut writer = TemplateRenderer::new();
    let mut ticked_at = Instant::now();
    let mut purged_at = Instant::now();
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
        if purged_at.elapsed() >= PURGE_EVERY {
            purged_at = Instant::now();
            inner.catch_panic("removing old alarms", || inner.purge());
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
