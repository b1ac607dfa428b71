//! The state of the alarm service, and the jobs of its thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;

use foldhash::fast::RandomState;
use series::{DeviceNo, Series};

use super::super::alarm_store::AlarmStore;
use super::super::device_checks::{DeviceChecks, UnconfirmedInput};
use super::super::event::{AlarmEvent, SqlRuleAlarm};
use super::super::product_rules::ProductAlarmRules;
use super::super::record::AlarmId;
use super::super::watched_devices::{AlarmSubject, DeviceTransitions, WatchedDevices};
use crate::device::Device;
use crate::job_queue::JobQueue;
use crate::queue_progress::QueueProgress;
use crate::registry::Registry;

/// Limits of alarms.
#[derive(Debug, Clone)]
pub struct AlarmConfig {
    /// Maximum number of stored alarms, in a cluster those of all nodes; above it, those that were cleared first are removed.
    pub max_alarms: u64,
    /// Retention in days of cleared alarms.
    pub cleared_retention_days: u32,
    /// Number of queued jobs from which devices are slowed down.
    pub max_queued_changes: usize,
    /// Maximum number of devices whose conditions are evaluated.
    pub max_watched_devices: usize,
}

impl Default for AlarmConfig {
    fn default() -> Self {
        Self {
            max_alarms: 1_000_000,
            cleared_retention_days: 90,
            max_queued_changes: 10_000,
            max_watched_devices: 2_000_000,
        }
    }
}

/// Why an alarm cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum AlarmError {
    #[error("there is no alarm {}", .0.0)]
    NotFound(AlarmId),
    #[error("the alarm is already {0}")]
    AlreadyInState(&'static str),
    #[error("the alarm has as many comments as possible")]
    TooManyComments,
    #[error(transparent)]
    Store(#[from] store::StoreError),
}

pub(super) type AlarmObserver = Box<dyn Fn(&AlarmEvent) + Send + Sync>;

pub(super) enum AlarmJob {
    Transitions(DeviceTransitions),
    SqlRule(AlarmSubject, SqlRuleAlarm),
    RemoveDevice(Arc<Device>),
    /// Stores the alarms of other nodes that have waited for this device.
    AddDevice(Arc<Device>),
    /// Another node has changed alarms of this device; how often the job has waited for transitions.
    Synchronize(DeviceNo, u8),
    /// Evaluates devices that are not online here, nor at another node.
    Evaluate(Vec<UnconfirmedInput>),
}

/// What the threads of the service share.
pub(super) struct AlarmsInner {
    pub(super) config: AlarmConfig,
    pub(super) registry: Registry,
    pub(super) series: Series,
    pub(super) store: AlarmStore,
    pub(super) watched_devices: WatchedDevices,
    pub(super) products: RwLock<HashMap<Box<str>, Arc<ProductAlarmRules>, RandomState>>,
    pub(super) queue: JobQueue<AlarmJob>,
    /// Progress of the queue.
    pub(super) progress: QueueProgress,
    pub(super) is_in_use: AtomicBool,
    /// Held while alarms are changed and emitted, so that events keep the order of the changes.
    pub(super) notify_lock: Mutex<()>,
    /// Set once in a cluster.
    pub(super) places: OnceLock<DeviceChecks>,
    pub(super) observers: RwLock<Vec<AlarmObserver>>,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
    pub(super) raised: AtomicU64,
    pub(super) cleared: AtomicU64,
    pub(super) write_errors: AtomicU64,
    pub(super) panics: AtomicU64,
}

impl AlarmsInner {
    /// The name of this node in a cluster.
    pub(super) fn node_name(&self) -> Option<String> {
        let sharing = self.store.sharing.get()?;
        Some(sharing.node.as_str().to_owned())
    }

    pub(super) fn enqueue(&self, work: AlarmJob) {
        self.progress.add();
        self.queue.push(work);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
