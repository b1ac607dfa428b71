//! Telemetry and alarms that SQL rules make of devices. Rules never wait, and a device may have to be read from the disk: what they ask for
//! is done on a thread of its own, in its order, as if the device had said it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use broker::hooks::Settled;
use devices::alarm::{Alarms, NamedAlarm, Severity};
use devices::platform::Reporter;
use devices::{Progress, Registry};
use engine::{Alarm, DeviceOutlet, Given, Telemetry};

/// What may wait before publishers do.
const MANY_WAITING: usize = 10_000;
const MANY_BYTES: usize = 16 << 20;
/// What may wait at all: publishers may have been read further.
const MAX_WAITING: usize = 200_000;
const MAX_BYTES: usize = 64 << 20;

thread_local! {
    /// Of what this thread works off for a rule: goes with the events that come of it, so that loops of rules end.
    static TAG: Cell<u64> = const { Cell::new(0) };
}

/// The tag of what this thread does now.
pub(super) fn current_tag() -> u64 {
    TAG.get()
}

/// What has to be there before anything is done.
pub(super) struct Parts {
    pub(super) registry: Registry,
    pub(super) reporter: Reporter,
    pub(super) alarms: Alarms,
}

enum Asked {
    Telemetry {
        device: Box<str>,
        at_ms: u64,
        /// A JSON object.
        values: String,
        tag: u64,
    },
    Alarm {
        device: Box<str>,
        alarm: NamedAlarm,
    },
}

impl Asked {
    /// About what it holds.
    fn bytes(&self) -> usize {
        match self {
            Self::Telemetry { device, values, .. } => device.len() + values.len(),
            Self::Alarm { device, alarm } => device.len() + alarm.kind.len() + alarm.details.len(),
        }
    }
}

#[derive(Default)]
struct Queue {
    asked: VecDeque<Asked>,
    bytes: usize,
}

impl Queue {
    fn is_many(&self) -> bool {
        self.asked.len() >= MANY_WAITING || self.bytes >= MANY_BYTES
    }

    fn is_full(&self) -> bool {
        self.asked.len() >= MAX_WAITING || self.bytes >= MAX_BYTES
    }
}

/// Takes what rules ask for. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct RuleDevices {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    queue: Mutex<Queue>,
    has_work: Condvar,
    is_many: AtomicBool,
    is_stopping: AtomicBool,
    /// Asked for devices that nobody knows.
    unknown: AtomicU64,
    thread: OnceLock<Mutex<Option<JoinHandle<()>>>>,
    /// Of the queue.
    progress: Progress,
    /// Makes safe what has come of it.
    settle: OnceLock<Box<dyn Fn(Settled) + Send + Sync>>,
}

impl RuleDevices {
    /// From now on what is asked for is done.
    pub(super) fn start(&self, parts: Parts) -> std::io::Result<()> {
        // Started once.
        let _ = self.inner.settle.set(Box::new(parts.reporter.settler()));
        let inner = Arc::clone(&self.inner);
        let builder = std::thread::Builder::new().name("rule-devices".into());
        let thread = builder.spawn(move || inner.work(&parts))?;
        // Started once.
        let _ = self.inner.thread.set(Mutex::new(Some(thread)));
        Ok(())
    }

    /// Ends the thread when everything is done. May wait.
    pub(super) fn stop(&self) {
        // The thread looks at it with this held.
        let queue = self.inner.lock();
        self.inner.is_stopping.store(true, Relaxed);
        drop(queue);
        self.inner.has_work.notify_all();
        let thread = self.inner.thread.get();
        let thread = thread.and_then(|thread| {
            let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
            thread.take()
        });
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("what rules make of devices ended by a panic; this is a bug");
        }
    }

    /// What was asked for devices that nobody knows.
    pub(super) fn unknown(&self) -> u64 {
        self.inner.unknown.load(Relaxed)
    }

    fn push(&self, asked: Asked) -> Given {
        let mut queue = self.inner.lock();
        if queue.is_full() || self.inner.is_stopping.load(Relaxed) {
            return Given::Refused("too much waits for devices already".into());
        }
        queue.bytes += asked.bytes();
        self.inner.progress.came();
        queue.asked.push_back(asked);
        let is_many = queue.is_many();
        self.inner.is_many.store(is_many, Relaxed);
        drop(queue);
        self.inner.has_work.notify_one();
        match is_many {
            true => Given::Full,
            false => Given::Taken,
        }
    }
}

impl DeviceOutlet for RuleDevices {
    fn telemetry(&self, _lane: u16, telemetry: &Telemetry<'_>) -> Given {
        let mut values = Vec::new();
        rules::json::write(&rules::Value::Map(telemetry.values), &mut values);
        self.push(Asked::Telemetry {
            device: telemetry.device_id.into(),
            at_ms: telemetry.timestamp_ms,
            values: String::from_utf8(values).unwrap_or_default(),
            tag: telemetry.tag,
        })
    }

    fn alarm(&self, _lane: u16, alarm: &Alarm<'_>) -> Given {
        self.push(Asked::Alarm {
            device: alarm.device_id.into(),
            alarm: NamedAlarm {
                kind: alarm.name.to_owned(),
                severity: severity_of(alarm.severity),
                is_cleared: alarm.is_cleared,
                at_ms: alarm.timestamp_ms,
                details: alarm.details.to_owned(),
                rule: alarm.rule.to_owned(),
                tag: alarm.tag,
            },
        })
    }

    fn is_full(&self) -> bool {
        self.inner.is_many.load(Relaxed)
    }

    fn settle(&self, done: Settled) {
        let inner = Arc::clone(&self.inner);
        let then = move || match inner.settle.get() {
            Some(settle) => settle(done),
            None => done(),
        };
        self.inner.progress.settle(Box::new(then));
    }
}

fn severity_of(severity: engine::Severity) -> Severity {
    match severity {
        engine::Severity::Critical => Severity::Critical,
        engine::Severity::Major => Severity::Major,
        engine::Severity::Minor => Severity::Minor,
        engine::Severity::Warning => Severity::Warning,
        engine::Severity::Indeterminate => Severity::Indeterminate,
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Asked> {
        let mut queue = self.lock();
        loop {
            if let Some(asked) = queue.asked.pop_front() {
                queue.bytes -= asked.bytes();
                self.is_many.store(queue.is_many(), Relaxed);
                return Some(asked);
            }
            if self.is_stopping.load(Relaxed) {
                return None;
            }
            let waited = self.has_work.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, parts: &Parts) {
        while let Some(asked) = self.next() {
            let work = AssertUnwindSafe(|| self.work_one(parts, asked));
            if catch_unwind(work).is_err() {
                TAG.set(0);
                tracing::error!("what a rule makes of a device caused a panic; this is a bug");
            }
            self.progress.done();
        }
    }

    fn work_one(&self, parts: &Parts, asked: Asked) {
        {
            let (Asked::Telemetry { device, .. } | Asked::Alarm { device, .. }) = &asked;
            let found = match parts.registry.device(device) {
                Ok(found) => found,
                Err(error) => {
                    tracing::error!(%error, device = &**device, "a device that a rule speaks of cannot be read");
                    return;
                }
            };
            let Some(device) = found else {
                self.unknown.fetch_add(1, Relaxed);
                tracing::debug!(device = &**device, "a rule speaks of a device that is none");
                return;
            };
            match asked {
                Asked::Alarm { alarm, .. } => parts.alarms.take_named(&device, alarm),
                Asked::Telemetry {
                    at_ms, values, tag, ..
                } => {
                    TAG.set(tag);
                    parts.reporter.say(&device, at_ms, &values);
                    TAG.set(0);
                }
            }
        }
    }
}

/// Devices of a node that does not run: rules that speak of them are checked, and nothing is done.
pub(crate) struct NoDevices;

impl DeviceOutlet for NoDevices {
    fn telemetry(&self, _: u16, _: &Telemetry<'_>) -> Given {
        Given::Refused("there is no node here".into())
    }

    fn alarm(&self, _: u16, _: &Alarm<'_>) -> Given {
        Given::Refused("there is no node here".into())
    }

    fn is_full(&self) -> bool {
        false
    }
}
