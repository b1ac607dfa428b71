//! Telemetry and alarms that SQL rules write for devices. Rules never block, but a device may have
//! to be read from the disk. Therefore a dedicated thread executes the writes in order, as if the
//! device had sent them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use devices::alarm::{Alarms, Severity, SqlRuleAlarm};
use devices::platform::Reporter;
use devices::{QueueProgress, Registry};
use engine::{DeviceAlarm, DevicePort, DevicePortOutcome, DeviceTelemetry};
use hooks::DurableCallback;

/// Queue length above which publishers are paused.
const SOFT_MAX_WRITES: usize = 10_000;
const SOFT_MAX_BYTES: usize = 16 << 20;
/// Maximum queue length. It exceeds the soft limit because publishers may have been read further.
const MAX_WRITES: usize = 200_000;
const MAX_BYTES: usize = 64 << 20;

thread_local! {
    /// Tag of the write in progress on this thread. Resulting events carry it, so that loops of
    /// rules end.
    static CURRENT_TAG: Cell<u64> = const { Cell::new(0) };
}

/// The tag of the write in progress on this thread.
pub(super) fn current_tag() -> u64 {
    CURRENT_TAG.get()
}

/// The components that must exist before writes are executed.
pub(super) struct RuleDevicePortParts {
    pub(super) registry: Registry,
    pub(super) reporter: Reporter,
    pub(super) alarms: Alarms,
}

enum DeviceWrite {
    Telemetry {
        device: Box<str>,
        at_ms: u64,
        /// JSON object.
        values: String,
        tag: u64,
    },
    Alarm {
        device: Box<str>,
        alarm: SqlRuleAlarm,
    },
}

impl DeviceWrite {
    /// Approximate size in memory.
    fn size_bytes(&self) -> usize {
        match self {
            Self::Telemetry { device, values, .. } => device.len() + values.len(),
            Self::Alarm { device, alarm } => device.len() + alarm.kind.len() + alarm.details.len(),
        }
    }
}

#[derive(Default)]
struct DeviceWriteQueue {
    writes: VecDeque<DeviceWrite>,
    bytes: usize,
}

impl DeviceWriteQueue {
    fn is_above_soft_limit(&self) -> bool {
        self.writes.len() >= SOFT_MAX_WRITES || self.bytes >= SOFT_MAX_BYTES
    }

    fn is_full(&self) -> bool {
        self.writes.len() >= MAX_WRITES || self.bytes >= MAX_BYTES
    }
}

/// Accepts writes of rules. Clones share the queue.
#[derive(Clone, Default)]
pub(super) struct RuleDevicePort {
    inner: Arc<RuleDevicePortInner>,
}

#[derive(Default)]
struct RuleDevicePortInner {
    queue: Mutex<DeviceWriteQueue>,
    has_work: Condvar,
    is_many: AtomicBool,
    is_stopping: AtomicBool,
    /// Number of writes for unknown devices.
    unknown: AtomicU64,
    thread: OnceLock<Mutex<Option<JoinHandle<()>>>>,
    /// Progress of the queue.
    progress: QueueProgress,
    /// Makes the results of writes durable.
    settle: OnceLock<Box<dyn Fn(DurableCallback) + Send + Sync>>,
}

impl RuleDevicePort {
    /// Starts the thread that executes the writes.
    pub(super) fn start(&self, parts: RuleDevicePortParts) -> std::io::Result<()> {
        // `start` is called once.
        let _ = self
            .inner
            .settle
            .set(Box::new(parts.reporter.settle_function()));
        let inner = Arc::clone(&self.inner);
        let builder = std::thread::Builder::new().name("rule-devices".into());
        let thread = builder.spawn(move || inner.run_worker(&parts))?;
        // `start` is called once.
        let _ = self.inner.thread.set(Mutex::new(Some(thread)));
        Ok(())
    }

    /// Stops the thread after all writes are executed. May block.
    pub(super) fn stop(&self) {
        // The thread checks the flag while it holds this lock.
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
            tracing::error!("thread for device writes of rules panicked; this is a bug");
        }
    }

    /// The number of writes for unknown devices.
    pub(super) fn unknown_devices(&self) -> u64 {
        self.inner.unknown.load(Relaxed)
    }

    fn push(&self, write: DeviceWrite) -> DevicePortOutcome {
        let mut queue = self.inner.lock();
        if queue.is_full() || self.inner.is_stopping.load(Relaxed) {
            return DevicePortOutcome::Rejected("the queue of device writes is full".into());
        }
        queue.bytes += write.size_bytes();
        self.inner.progress.add();
        queue.writes.push_back(write);
        let is_many = queue.is_above_soft_limit();
        self.inner.is_many.store(is_many, Relaxed);
        drop(queue);
        self.inner.has_work.notify_one();
        match is_many {
            true => DevicePortOutcome::Full,
            false => DevicePortOutcome::Accepted,
        }
    }
}

impl DevicePort for RuleDevicePort {
    fn write_telemetry(
        &self,
        _producer: u16,
        telemetry: &DeviceTelemetry<'_>,
    ) -> DevicePortOutcome {
        let mut values = Vec::new();
        rules::json::write(&rules::Value::Map(telemetry.values), &mut values);
        self.push(DeviceWrite::Telemetry {
            device: telemetry.device_id.into(),
            at_ms: telemetry.timestamp_ms,
            values: String::from_utf8(values).unwrap_or_default(),
            tag: telemetry.tag,
        })
    }

    fn write_alarm(&self, _producer: u16, alarm: &DeviceAlarm<'_>) -> DevicePortOutcome {
        self.push(DeviceWrite::Alarm {
            device: alarm.device_id.into(),
            alarm: SqlRuleAlarm {
                kind: alarm.name.to_owned(),
                severity: to_severity(alarm.severity),
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

    fn notify_when_durable(&self, done: DurableCallback) {
        let inner = Arc::clone(&self.inner);
        let then = move || match inner.settle.get() {
            Some(settle) => settle(done),
            None => done(),
        };
        self.inner.progress.settle(Box::new(then));
    }
}

fn to_severity(severity: engine::Severity) -> Severity {
    match severity {
        engine::Severity::Critical => Severity::Critical,
        engine::Severity::Major => Severity::Major,
        engine::Severity::Minor => Severity::Minor,
        engine::Severity::Warning => Severity::Warning,
        engine::Severity::Indeterminate => Severity::Indeterminate,
    }
}

impl RuleDevicePortInner {
    fn lock(&self) -> MutexGuard<'_, DeviceWriteQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_next(&self) -> Option<DeviceWrite> {
        let mut queue = self.lock();
        loop {
            if let Some(write) = queue.writes.pop_front() {
                queue.bytes -= write.size_bytes();
                self.is_many.store(queue.is_above_soft_limit(), Relaxed);
                return Some(write);
            }
            if self.is_stopping.load(Relaxed) {
                return None;
            }
            let waited = self.has_work.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run_worker(&self, parts: &RuleDevicePortParts) {
        while let Some(write) = self.wait_next() {
            let work = AssertUnwindSafe(|| self.apply_write(parts, write));
            if catch_unwind(work).is_err() {
                CURRENT_TAG.set(0);
                tracing::error!("device write of a rule panicked and was skipped; this is a bug");
            }
            self.progress.complete();
        }
    }

    fn apply_write(&self, parts: &RuleDevicePortParts, write: DeviceWrite) {
        {
            let (DeviceWrite::Telemetry { device, .. } | DeviceWrite::Alarm { device, .. }) =
                &write;
            let found = match parts.registry.device(device) {
                Ok(found) => found,
                Err(error) => {
                    tracing::error!(%error, device = &**device, "reading a device for a rule failed; write skipped");
                    return;
                }
            };
            let Some(device) = found else {
                self.unknown.fetch_add(1, Relaxed);
                tracing::debug!(
                    device = &**device,
                    "device write of a rule names an unknown device; skipped"
                );
                return;
            };
            match write {
                DeviceWrite::Alarm { alarm, .. } => {
                    parts.alarms.submit_sql_rule_alarm(&device, alarm)
                }
                DeviceWrite::Telemetry {
                    at_ms, values, tag, ..
                } => {
                    CURRENT_TAG.set(tag);
                    parts.reporter.append_row(&device, at_ms, &values);
                    CURRENT_TAG.set(0);
                }
            }
        }
    }
}

/// The port without a running node: rules are checked, and nothing is written.
pub(crate) struct NoopDevicePort;

impl DevicePort for NoopDevicePort {
    fn write_telemetry(&self, _: u16, _: &DeviceTelemetry<'_>) -> DevicePortOutcome {
        DevicePortOutcome::Rejected("there is no running node".into())
    }

    fn write_alarm(&self, _: u16, _: &DeviceAlarm<'_>) -> DevicePortOutcome {
        DevicePortOutcome::Rejected("there is no running node".into())
    }

    fn is_full(&self) -> bool {
        false
    }
}
