//! The alarms of a node: rows of telemetry go in on shards, alarms come out on a thread of their own.

mod changes;
mod observe;
mod worker;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use broker::hooks::DurableCallback;
use foldhash::fast::RandomState;
use series::{DeviceNo, Point, Series};
use store::Tables;

use self::worker::AlarmJob;
use super::alarm_store::{AlarmFilter, AlarmPage, AlarmStore};
use super::definition::Severity;
use super::event::{AlarmChange, AlarmEvent, SqlRuleAlarm};
use super::pending_notifications::AlarmNotifier;
use super::product_rules::ProductAlarmRules;
use super::record::{Alarm, AlarmId, AlarmState};
use super::watched_devices::{
    AlarmContext, AlarmSubject, DeviceInput, DeviceTransitions, NODE_NO, WatchedDevices,
};
use crate::device::Device;
use crate::job_queue::JobQueue;
use crate::queue_progress::QueueProgress;
use crate::registry::Registry;

/// Bounds of alarms.
#[derive(Debug, Clone)]
pub struct AlarmConfig {
    /// Alarms that are kept; over it, the oldest that are cleared go.
    pub max_alarms: u64,
    /// How long alarms are kept after they were cleared.
    pub cleared_retention_d: u32,
    /// What may wait to be written before devices are made to wait.
    pub max_queued: usize,
    /// Devices whose conditions are watched at a time.
    pub max_devices: usize,
}

impl Default for AlarmConfig {
    fn default() -> Self {
        Self {
            max_alarms: 1_000_000,
            cleared_retention_d: 90,
            max_queued: 10_000,
            max_devices: 2_000_000,
        }
    }
}

/// What has been counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AlarmStats {
    pub raised: u64,
    pub cleared: u64,
    pub queued: u64,
    pub watched_devices: u64,
    /// Messages of devices that were not watched because of `max_devices`.
    pub unwatched: u64,
    pub write_errors: u64,
}

/// An alarm cannot be changed so.
#[derive(Debug, thiserror::Error)]
pub enum AlarmError {
    #[error("there is no alarm {}", .0.0)]
    NotFound(AlarmId),
    #[error("it is {0} already")]
    AlreadyInState(&'static str),
    #[error(transparent)]
    Store(#[from] store::StoreError),
}

type AlarmObserver = Box<dyn Fn(&AlarmEvent) + Send + Sync>;

/// The alarms of a node. Clones are the same.
#[derive(Clone)]
pub struct Alarms {
    inner: Arc<AlarmsInner>,
}

struct AlarmsInner {
    config: AlarmConfig,
    registry: Registry,
    series: Series,
    store: AlarmStore,
    watched_devices: WatchedDevices,
    products: RwLock<HashMap<Box<str>, Arc<ProductAlarmRules>, RandomState>>,
    queue: JobQueue<AlarmJob>,
    /// Of the queue.
    progress: QueueProgress,
    is_in_use: AtomicBool,
    /// Held while alarms are changed and told, so that they are told in the order of their changes.
    notify_lock: Mutex<()>,
    observers: RwLock<Vec<AlarmObserver>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    raised: AtomicU64,
    cleared: AtomicU64,
    write_errors: AtomicU64,
}

impl AlarmsInner {
    fn enqueue(&self, work: AlarmJob) {
        self.progress.add();
        self.queue.push(work);
    }
}

impl Alarms {
    /// Reads what is not cleared, and starts the thread.
    pub fn open(
        tables: &Tables,
        registry: Registry,
        series: Series,
        config: AlarmConfig,
    ) -> Result<Self, store::StoreError> {
        let inner = Arc::new(AlarmsInner {
            watched_devices: WatchedDevices::new(config.max_devices),
            queue: JobQueue::new(config.max_queued),
            progress: QueueProgress::default(),
            config,
            registry,
            series,
            store: AlarmStore::open(tables)?,
            products: RwLock::default(),
            is_in_use: AtomicBool::new(false),
            notify_lock: Mutex::default(),
            observers: RwLock::default(),
            thread: Mutex::default(),
            raised: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&inner);
        tables.observe_restores(Box::new(move || {
            if let Some(inner) = weak.upgrade() {
                inner.watched_devices.clear();
                let read = inner.store.load_open();
                if let Err(error) = read.and_then(|()| inner.store.pending_notifications.clear()) {
                    tracing::error!(%error, "the restored alarms cannot be read");
                }
            }
        }));
        let running = Arc::downgrade(&inner);
        let thread = std::thread::Builder::new()
            .name("alarms".into())
            .spawn(move || worker::run(&running))
            .expect("a thread at start");
        *lock(&inner.thread) = Some(thread);
        let alarms = Self { inner };
        alarms.refresh_products();
        Ok(alarms)
    }

    /// Takes a row of a device's telemetry. Does not wait.
    pub fn observe(&self, device: &Arc<Device>, now_ms: u64, ts_ms: i64, points: &[Point<'_>]) {
        let find = || Some(Arc::clone(device));
        let news = DeviceInput::Row { ts_ms, points };
        self.inner.observe(device.no, &find, now_ms, news);
    }

    /// The same of a device that only its number is known of. It is read from the disk if it is neither watched nor in memory.
    pub fn observe_row(&self, device: DeviceNo, now_ms: u64, ts_ms: i64, points: &[Point<'_>]) {
        let find = || {
            let found = self.inner.registry.by_no(device);
            found.unwrap_or_else(|error| {
                tracing::error!(%error, "a device cannot be read, and its alarms do not see a message of it");
                None
            })
        };
        let news = DeviceInput::Row { ts_ms, points };
        self.inner.observe(device, &find, now_ms, news);
    }

    /// Whether any product has alarm rules, as [`Alarms::refresh_products`] found it.
    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.inner.is_in_use.load(Relaxed)
    }

    /// A product was made, has changed or is gone.
    pub fn refresh_products(&self) {
        let products = self.inner.registry.products();
        let has_rules = products
            .iter()
            .any(|product| !product.get().definition.alarms.is_empty());
        self.inner.is_in_use.store(has_rules, Relaxed);
    }

    /// A device has come or gone. Does not wait.
    pub fn observe_presence(&self, device: &Arc<Device>, now_ms: u64, is_online: bool) {
        if device.product.get().definition.alarms.is_empty() {
            return;
        }
        let find = || Some(Arc::clone(device));
        let news = DeviceInput::Online(is_online);
        self.inner.observe(device.no, &find, now_ms, news);
    }

    /// Takes an alarm of an SQL rule. Does not wait.
    pub fn submit_sql_rule_alarm(&self, device: &Arc<Device>, alarm: SqlRuleAlarm) {
        let subject = AlarmSubject::Device(Arc::clone(device));
        self.inner.enqueue(AlarmJob::SqlRule(subject, alarm));
    }

    /// Takes what became of the node's own alarms.
    pub(super) fn submit_transitions(&self, turned: DeviceTransitions) {
        self.inner.enqueue(AlarmJob::Transitions(turned));
    }

    /// The node's own alarms that are not cleared, by their types.
    pub(super) fn open_node_alarms(&self) -> Vec<(Box<str>, Severity)> {
        AlarmContext::open_alarms(&*self.inner, NODE_NO)
    }

    /// Clears an alarm of the node whose rule is gone.
    pub(super) fn clear_node_alarm(&self, kind: &str) {
        let cleared = SqlRuleAlarm {
            kind: kind.to_owned(),
            severity: Severity::Indeterminate,
            is_cleared: true,
            at_ms: crate::now_ms(),
            details: String::new(),
            rule: String::new(),
            tag: 0,
        };
        self.inner
            .enqueue(AlarmJob::SqlRule(AlarmSubject::Node, cleared));
    }

    /// Attributes of the server have changed.
    pub fn invalidate_attributes(&self, device: DeviceNo) {
        self.inner.watched_devices.invalidate_attributes(device);
    }

    /// Something of a device has changed, such as its parent.
    pub fn update_device(&self, device: &Arc<Device>) {
        self.inner.watched_devices.replace(device);
    }

    /// A device is gone, and its alarms with it.
    pub fn remove_device(&self, device: DeviceNo) {
        self.inner.enqueue(AlarmJob::RemoveDevice(device));
    }

    /// Whether something was taken that is not written yet.
    #[inline]
    pub fn is_unsettled(&self) -> bool {
        self.inner.progress.is_pending()
    }

    /// Calls `done`, from any thread, when everything that was taken until now is written. A store that does not write is not waited
    /// for.
    pub fn settle(&self, done: DurableCallback) {
        self.inner.progress.settle(done);
    }

    /// Whether devices are to wait: too much waits to be written.
    pub fn is_full(&self) -> bool {
        self.inner.queue.is_full()
    }

    /// Calls `listener` with everything that becomes of alarms, in its order. It shall not wait long.
    pub fn add_observer(&self, listener: AlarmObserver) {
        let mut listeners = self
            .inner
            .observers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.push(listener);
    }

    /// Who tells others of what becomes of alarms: it is told at least once, whenever the node ends, first of what it may not have
    /// been told before the start. Once, before anything becomes of an alarm.
    pub fn set_notifier(&self, to: Arc<dyn AlarmNotifier>) -> Result<(), store::StoreError> {
        let _telling = lock(&self.inner.notify_lock);
        self.inner.store.pending_notifications.set_notifier(to)
    }

    /// The newest first, of those older than `before`.
    pub fn list(
        &self,
        filter: &AlarmFilter,
        before: Option<AlarmId>,
        limit: usize,
    ) -> Result<AlarmPage, store::StoreError> {
        self.inner.store.list(filter, before, limit)
    }

    pub fn get(&self, id: AlarmId) -> Result<Option<Alarm>, store::StoreError> {
        self.inner.store.get(id)
    }

    /// How many alarms there are, by state and severity.
    pub fn counts(&self) -> Vec<(AlarmState, Severity, u64)> {
        self.inner.store.lock().counts().collect()
    }

    /// Says that `who` has seen it.
    pub fn acknowledge(&self, id: AlarmId, who: &str) -> Result<Alarm, AlarmError> {
        self.inner.change(id, AlarmChange::Acknowledged, |alarm| {
            if alarm.is_acknowledged() {
                return Err(AlarmError::AlreadyInState("acknowledged"));
            }
            alarm.acknowledged_ms = Some(crate::now_ms());
            alarm.acknowledged_by = Some(who.to_owned());
            Ok(())
        })
    }

    /// Clears it, whatever its conditions say; the next message may raise another one.
    pub fn clear(&self, id: AlarmId, who: &str) -> Result<Alarm, AlarmError> {
        let cleared = self.inner.change(id, AlarmChange::Cleared, |alarm| {
            if alarm.is_cleared() {
                return Err(AlarmError::AlreadyInState("cleared"));
            }
            alarm.cleared_ms = Some(crate::now_ms());
            alarm.cleared_by = Some(who.to_owned());
            Ok(())
        })?;
        self.inner.cleared.fetch_add(1, Relaxed);
        Ok(cleared)
    }

    /// Removes it from the list; one that is not cleared is as if it had been.
    pub fn remove(&self, id: AlarmId) -> Result<(), AlarmError> {
        let _telling = lock(&self.inner.notify_lock);
        let (alarm, no) = {
            let mut state = self.inner.store.lock();
            let alarm = self.inner.store.get(id)?.ok_or(AlarmError::NotFound(id))?;
            let no = self.inner.store.remove_one(&mut state, &alarm)?;
            (alarm, no)
        };
        self.inner.unwatch(&alarm);
        self.inner
            .notify_observers(AlarmChange::Removed, alarm, 0, no);
        Ok(())
    }

    pub fn stats(&self) -> AlarmStats {
        let inner = &self.inner;
        AlarmStats {
            raised: inner.raised.load(Relaxed),
            cleared: inner.cleared.load(Relaxed),
            queued: inner.queue.len() as u64,
            watched_devices: inner.watched_devices.len() as u64,
            unwatched: inner.watched_devices.unwatched.load(Relaxed),
            write_errors: inner.write_errors.load(Relaxed),
        }
    }

    /// Ends the thread when everything that was taken is written.
    pub fn close(&self) {
        self.inner.queue.stop();
        let thread = lock(&self.inner.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the alarms ended by a panic; this is a bug");
        }
        self.inner.store.pending_notifications.finish();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
