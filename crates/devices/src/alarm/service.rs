//! The alarm service of a node: shards submit rows of telemetry, and the `alarms` thread writes and emits alarm
//! changes.

mod alarms_inner;
mod changes;
mod device_places;
mod observe;
mod shared_alarms;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use cluster::NodeName;
use hooks::DurableCallback;
use series::{DeviceNo, Point, Series};
use store::Tables;

pub use self::alarms_inner::{AlarmConfig, AlarmError};
use self::alarms_inner::{AlarmJob, AlarmObserver, AlarmsInner, lock};
pub use self::shared_alarms::{AlarmChanges, SharedAlarms};
use super::alarm_index::AlarmPosition;
use super::alarm_store::{AlarmFilter, AlarmPage, AlarmStore};
use super::definition::Severity;
use super::device_checks::{DeviceChecks, DevicePlaces};
use super::event::{AlarmChange, SqlRuleAlarm};
use super::node_subject::NODE_NO;
use super::pending_notifications::AlarmNotifier;
use super::record::{Alarm, AlarmComment, AlarmId, AlarmState, MAX_COMMENTS};
use super::store_sharing::AlarmSharingError;
use super::watched_devices::{
    AlarmContext, AlarmSubject, DeviceInput, DeviceTransitions, WatchedDevices,
};
use crate::device::Device;
use crate::job_queue::JobQueue;
use crate::queue_progress::QueueProgress;
use crate::registry::Registry;

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AlarmStats {
    pub raised: u64,
    pub cleared: u64,
    pub queued: u64,
    pub watched_devices: u64,
    /// Messages of devices that were not evaluated because of `max_watched_devices`.
    pub unwatched: u64,
    pub write_errors: u64,
    /// Panics of the thread: bugs, each of which skipped one job.
    pub panics: u64,
}

/// The alarms of a node. Clones share one service.
#[derive(Clone)]
pub struct Alarms {
    inner: Arc<AlarmsInner>,
}

impl Alarms {
    /// Loads the alarms that are not cleared and starts the thread.
    pub fn open(
        tables: &Tables,
        registry: Registry,
        series: Series,
        config: AlarmConfig,
    ) -> Result<Self, store::StoreError> {
        let inner = Arc::new(AlarmsInner {
            watched_devices: WatchedDevices::new(config.max_watched_devices),
            queue: JobQueue::new(config.max_queued_changes),
            progress: QueueProgress::default(),
            config,
            registry,
            series,
            store: AlarmStore::open(tables)?,
            products: RwLock::default(),
            is_in_use: AtomicBool::new(false),
            notify_lock: Mutex::default(),
            places: OnceLock::new(),
            observers: RwLock::default(),
            thread: Mutex::default(),
            raised: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&inner);
        tables.observe_restores(Box::new(move || {
            if let Some(inner) = weak.upgrade() {
                inner.watched_devices.clear();
                let read = inner.store.load_open();
                if let Err(error) = read.and_then(|()| inner.store.pending_notifications.clear()) {
                    tracing::error!(%error, "reading the restored alarms failed; restart the node");
                }
            }
        }));
        let running = Arc::downgrade(&inner);
        let thread = std::thread::Builder::new()
            .name("alarms".into())
            .spawn(move || worker::run(&running))
            .expect("starting a thread at startup");
        *lock(&inner.thread) = Some(thread);
        let alarms = Self { inner };
        alarms.refresh_products();
        Ok(alarms)
    }

    /// Shares the alarms of devices with the other nodes of a cluster from now on. To be called once, after
    /// [`number_from`](Self::number_from). Reads all alarms.
    ///
    /// # Errors
    /// If the store fails.
    pub fn share(&self, node: &NodeName) -> Result<AlarmChanges, AlarmSharingError> {
        SharedAlarms::begin(&self.inner, node)
    }

    /// Evaluates devices without messages only if no other node of the cluster has them. To be called once, before devices connect.
    pub fn set_places(&self, places: Arc<dyn DevicePlaces>) {
        // Set once.
        let _ = self.inner.places.set(DeviceChecks::new(places));
    }

    /// Gives this number or larger ones to new alarms.
    pub fn number_from(&self, first: u64) {
        self.inner.store.lock().number_from(first);
    }

    /// Evaluates a row of a device's telemetry. Does not block.
    pub fn observe(&self, device: &Arc<Device>, now_ms: u64, ts_ms: i64, points: &[Point<'_>]) {
        let find = || Some(Arc::clone(device));
        let input = DeviceInput::Row { ts_ms, points };
        self.inner.observe(device.no, &find, now_ms, input);
    }

    /// Evaluates a row of a device given by number. The device is read from disk if it is neither watched nor in
    /// memory.
    pub fn observe_row(&self, device: DeviceNo, now_ms: u64, ts_ms: i64, points: &[Point<'_>]) {
        let find = || {
            let found = self.inner.registry.by_no(device);
            found.unwrap_or_else(|error| {
                tracing::error!(%error, "reading a device failed; its alarm rules are not evaluated for this row");
                None
            })
        };
        let input = DeviceInput::Row { ts_ms, points };
        self.inner.observe(device, &find, now_ms, input);
    }

    /// Whether any product has alarm rules, as of the last [`Alarms::refresh_products`].
    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.inner.is_in_use.load(Relaxed)
    }

    /// Updates the state after a product was created, changed or removed.
    pub fn refresh_products(&self) {
        let products = self.inner.registry.products();
        let has_rules = products
            .iter()
            .any(|product| !product.get().definition.alarms.is_empty());
        self.inner.is_in_use.store(has_rules, Relaxed);
    }

    /// Evaluates a change of a device's connection state. Does not block.
    pub fn observe_presence(&self, device: &Arc<Device>, now_ms: u64, is_online: bool) {
        if device.product.get().definition.alarms.is_empty() {
            return;
        }
        if !is_online && self.inner.check_offline(device, now_ms) {
            return;
        }
        self.inner.observe_presence(device, now_ms, is_online);
    }

    /// Submits an alarm of an SQL rule. Does not block.
    pub fn submit_sql_rule_alarm(&self, device: &Arc<Device>, alarm: SqlRuleAlarm) {
        let subject = AlarmSubject::Device(Arc::clone(device));
        self.inner.enqueue(AlarmJob::SqlRule(subject, alarm));
    }

    /// Submits transitions of the node's own alarms.
    pub(super) fn submit_transitions(&self, turned: DeviceTransitions) {
        self.inner.enqueue(AlarmJob::Transitions(turned));
    }

    /// The node's own alarms that are not cleared, by type.
    pub(super) fn open_node_alarms(&self) -> Vec<(Box<str>, Severity)> {
        AlarmContext::open_alarms(&*self.inner, NODE_NO)
    }

    /// Clears an alarm of the node whose rule no longer exists.
    pub(super) fn clear_node_alarm(&self, kind: &str) {
        let cleared = SqlRuleAlarm {
            kind: kind.to_owned(),
            severity: Severity::Indeterminate,
            is_cleared: true,
            at_ms: wall_clock::now_ms(),
            details: String::new(),
            rule: String::new(),
            tag: 0,
        };
        self.inner
            .enqueue(AlarmJob::SqlRule(AlarmSubject::Node, cleared));
    }

    /// Marks the server attributes of a device as changed.
    pub fn invalidate_attributes(&self, device: DeviceNo) {
        self.inner.watched_devices.invalidate_attributes(device);
    }

    /// Applies a changed property of a device, such as its parent.
    pub fn update_device(&self, device: &Arc<Device>) {
        self.inner.watched_devices.replace(device);
        self.add_device(device);
    }

    /// Stores the alarms that other nodes of a cluster have sent before this device was known.
    pub fn add_device(&self, device: &Arc<Device>) {
        let sharing = self.inner.store.sharing.get();
        if sharing.is_some_and(|sharing| sharing.versions.may_await()) {
            self.inner.enqueue(AlarmJob::AddDevice(Arc::clone(device)));
        }
    }

    /// Removes the alarms of a removed device.
    pub fn remove_device(&self, device: &Arc<Device>) {
        self.inner
            .enqueue(AlarmJob::RemoveDevice(Arc::clone(device)));
    }

    /// Whether there are submitted jobs that are not written yet.
    #[inline]
    pub fn is_unsettled(&self) -> bool {
        self.inner.progress.is_pending()
    }

    /// Calls `done`, from any thread, once everything submitted so far is written. If the store fails, `done` is
    /// called without waiting.
    pub fn settle(&self, done: DurableCallback) {
        self.inner.progress.settle(done);
    }

    /// Whether devices should slow down, because too many jobs are queued.
    pub fn is_full(&self) -> bool {
        self.inner.queue.is_full()
    }

    /// Registers an observer of alarm events, which are emitted in order. The observer must not block for long.
    pub fn add_observer(&self, observer: AlarmObserver) {
        let mut observers = self
            .inner
            .observers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        observers.push(observer);
    }

    /// Sets the notifier, which receives each change at least once, even across a crash. It first receives the
    /// changes that may not have been sent before the start. Call it once, before any alarm changes.
    pub fn set_notifier(&self, to: Arc<dyn AlarmNotifier>) -> Result<(), store::StoreError> {
        let _notify_guard = lock(&self.inner.notify_lock);
        self.inner.store.pending_notifications.set_notifier(to)
    }

    /// Returns alarms behind `before`, the newest first.
    pub fn list(
        &self,
        filter: &AlarmFilter,
        before: Option<AlarmPosition>,
        limit: usize,
    ) -> Result<AlarmPage, store::StoreError> {
        self.inner.store.list(filter, before, limit)
    }

    pub fn get(&self, id: AlarmId) -> Result<Option<Alarm>, store::StoreError> {
        self.inner.store.get(id)
    }

    /// Number of alarms by state and severity.
    pub fn counts(&self) -> Vec<(AlarmState, Severity, u64)> {
        self.inner.store.lock().counts(false).collect()
    }

    /// The same of alarms of the node about itself.
    pub fn counts_of_node(&self) -> Vec<(AlarmState, Severity, u64)> {
        self.inner.store.lock().counts(true).collect()
    }

    /// Acknowledges an alarm on behalf of `who`.
    pub fn acknowledge(&self, id: AlarmId, who: &str) -> Result<Alarm, AlarmError> {
        let acknowledged = self.inner.change(id, AlarmChange::Acknowledged, |alarm| {
            if alarm.is_acknowledged() {
                return Err(AlarmError::AlreadyInState("acknowledged"));
            }
            alarm.acknowledged_at_ms = Some(wall_clock::now_ms());
            alarm.acknowledged_by = Some(who.to_owned());
            Ok(())
        })?;
        self.inner.wait_until_shared();
        Ok(acknowledged)
    }

    /// Clears an alarm, whatever its conditions; the next message may raise a new one.
    pub fn clear(&self, id: AlarmId, who: &str) -> Result<Alarm, AlarmError> {
        let cleared = self.inner.change(id, AlarmChange::Cleared, |alarm| {
            if alarm.is_cleared() {
                return Err(AlarmError::AlreadyInState("cleared"));
            }
            alarm.cleared_at_ms = Some(wall_clock::now_ms());
            alarm.cleared_by = Some(who.to_owned());
            Ok(())
        })?;
        self.inner.cleared.fetch_add(1, Relaxed);
        self.inner.wait_until_shared();
        Ok(cleared)
    }

    /// Adds a comment of `who`, without notifications.
    pub fn comment(&self, id: AlarmId, who: &str, text: &str) -> Result<Alarm, AlarmError> {
        let mut state = self.inner.store.lock();
        let mut alarm = self.inner.store.get(id)?.ok_or(AlarmError::NotFound(id))?;
        if alarm.comments.len() >= MAX_COMMENTS {
            return Err(AlarmError::TooManyComments);
        }
        alarm.comments.push(AlarmComment {
            at_ms: wall_clock::now_ms(),
            by: who.to_owned(),
            text: text.to_owned(),
        });
        self.inner.store.put_comments(&mut state, &alarm)?;
        drop(state);
        self.inner.wait_until_shared();
        Ok(alarm)
    }

    /// Removes an alarm from the list; one that is not cleared counts as cleared.
    pub fn remove(&self, id: AlarmId) -> Result<(), AlarmError> {
        let notify_guard = lock(&self.inner.notify_lock);
        let (alarm, no) = {
            let mut state = self.inner.store.lock();
            let alarm = self.inner.store.get(id)?.ok_or(AlarmError::NotFound(id))?;
            let no = self.inner.store.remove_one(&mut state, &alarm)?;
            (alarm, no)
        };
        self.inner.unwatch(&alarm);
        self.inner
            .notify_observers(AlarmChange::Removed, alarm, 0, no);
        drop(notify_guard);
        self.inner.wait_until_shared();
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
            panics: inner.panics.load(Relaxed),
        }
    }

    /// Ends the thread once everything submitted is written.
    pub fn close(&self) {
        self.inner.queue.stop();
        let thread = lock(&self.inner.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the alarms thread panicked; this is a bug");
        }
        self.inner.store.pending_notifications.finish();
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "sharing_tests.rs"]
mod sharing_tests;

#[cfg(test)]
#[path = "device_checks_tests.rs"]
mod device_checks_tests;
