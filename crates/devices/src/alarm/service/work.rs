//! The thread of alarms: writes what has come, in its order, and looks at what is due.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json};
use series::DeviceNo;

use super::super::details::Writer;
use super::super::event::NamedAlarm;
use super::super::machine::{Happened, Turn};
use super::super::watch::{Subject, Turned};
use super::Inner;
use super::change::Wanted;

/// How exact times are that pass without a message.
const TICK: Duration = Duration::from_millis(200);
const PURGE_EVERY: Duration = Duration::from_secs(60);
const RETRY_AFTER: Duration = Duration::from_secs(1);
const MAX_DETAILS_BYTES: usize = 4096;
const DAY_MS: u64 = 24 * 3600 * 1000;

pub(super) enum Work {
    Turned(Turned),
    Named(Subject, NamedAlarm),
    Forget(DeviceNo),
}

impl Inner {
    /// Does one piece of work; it is to be done again if the store fails.
    fn work(&self, writer: &mut Writer, work: &Work) -> Result<(), store::Error> {
        match work {
            Work::Turned(turned) => turned
                .turns
                .iter()
                .try_for_each(|turn| self.turn(writer, turned, *turn)),
            Work::Named(subject, named) => self.become_(&Wanted {
                subject,
                kind: &named.kind,
                happened: match named.is_cleared {
                    true => Happened::Cleared,
                    false => Happened::Raised(named.severity),
                },
                at_ms: named.at_ms,
                details: shortened(named.details.clone()),
                values: Map::new(),
                rule: &named.rule,
                notify: &[],
                propagate: false,
                tag: named.tag,
            }),
            Work::Forget(device) => self.forget(*device),
        }
    }

    fn turn(&self, writer: &mut Writer, turned: &Turned, turn: Turn) -> Result<(), store::Error> {
        let subject = &turned.subject;
        let (kind, meta) = (
            turned.compiled.set.rule_id(turn.rule),
            &turned.compiled.rules[turn.rule],
        );
        let values = turned.values.iter();
        let values: Map<_, _> = values
            .map(|(name, value)| (name.to_string(), value.to_json()))
            .collect();
        let severity = match turn.happened {
            Happened::Raised(severity) | Happened::Changed { to: severity, .. } => {
                severity.as_str()
            }
            Happened::Cleared => "",
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
            writer.write(text, turn.at_ms, &values.chain(about).collect::<Vec<_>>())
        });
        self.become_(&Wanted {
            subject,
            kind,
            happened: turn.happened,
            at_ms: turn.at_ms,
            details: shortened(details),
            values,
            rule: "",
            notify: &meta.notify,
            propagate: meta.propagate,
            tag: 0,
        })
    }

    fn purge(&self) {
        let retention_ms = u64::from(self.config.cleared_retention_d) * DAY_MS;
        let before_ms = crate::now_ms().saturating_sub(retention_ms);
        if let Err(error) = self.book.purge(before_ms, self.config.max_alarms) {
            tracing::warn!(%error, "old alarms cannot be removed; it is tried again");
        }
    }
}

/// The thread: writes what has come, and looks at what is due.
pub(super) fn run(inner: &Weak<Inner>) {
    let mut writer = Writer::new();
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
            let work = AssertUnwindSafe(|| inner.work(&mut writer, work));
            catch_unwind(work).unwrap_or_else(|_| {
                tracing::error!("an alarm caused a panic and is left out; this is a bug");
                Ok(())
            })
        });
        if let (Some(work), Some(Err(error))) = (work, &result) {
            inner.write_errors.fetch_add(1, Relaxed);
            if !std::mem::replace(&mut has_failed, true) {
                tracing::error!(%error, "alarms cannot be written; it is tried again until they can");
            }
            inner.progress.give_up();
            if inner.queue.is_stopping() {
                return;
            }
            inner.queue.put_back(work);
            std::thread::sleep(RETRY_AFTER);
            continue;
        }
        has_failed = false;
        if !is_idle {
            inner.progress.done();
        }
        if ticked_at.elapsed() >= TICK {
            ticked_at = Instant::now();
            if let Err(error) = inner.book.untold.settle() {
                tracing::warn!(%error, "what was told of alarms cannot be written; it may be told again");
            }
            let now_ms = crate::now_ms();
            inner.watches.tick(&*inner, now_ms, &mut |turned| {
                inner.push(Work::Turned(turned))
            });
        }
        if purged_at.elapsed() >= PURGE_EVERY {
            purged_at = Instant::now();
            inner.purge();
        }
        if is_idle && inner.queue.is_done() {
            return;
        }
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_DETAILS_BYTES {
        text.truncate(text.floor_char_boundary(MAX_DETAILS_BYTES));
    }
    text
}
