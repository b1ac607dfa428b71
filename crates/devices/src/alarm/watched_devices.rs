//! The devices whose alarms are evaluated: their state machines in locked partitions, and the times at which each is
//! due without a message.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use series::{DeviceNo, Point};

use super::condition::Scalar;
use super::definition::Severity;
use super::device_alarms::{AlarmTransition, DeviceAlarms};
use super::node_subject::{NODE_NO, NODE_PRODUCT};
use super::product_rules::ProductAlarmRules;
use crate::device::Device;

const PARTITIONS: usize = 32;

/// All watched devices.
pub(super) struct WatchedDevices {
    partitions: [Mutex<WatchPartition>; PARTITIONS],
    max_per_partition: usize,
    /// Messages of devices that were not watched because of the limit.
    pub(super) unwatched: AtomicU64,
}

#[derive(Default)]
struct WatchPartition {
    devices: HashMap<DeviceNo, WatchedDevice, RandomState>,
    due: BinaryHeap<Reverse<(u64, DeviceNo)>>,
}

struct WatchedDevice {
    device: Arc<Device>,
    compiled: Arc<ProductAlarmRules>,
    alarms: DeviceAlarms,
    /// Server attributes used by conditions; `None`: not loaded.
    attributes: Option<Vec<(Box<str>, Scalar)>>,
    /// The valid entry of `due`; nothing is due earlier.
    due_ms: Option<u64>,
    /// Groups of transitions that are not applied to the stored alarms yet.
    pending: u32,
}

/// Data that a newly watched device needs.
pub(super) trait AlarmContext {
    fn attributes(&self, device: &Device) -> Vec<(Box<str>, Scalar)>;
    /// Alarms that are not cleared, one of each type.
    fn open_alarms(&self, device: DeviceNo) -> Vec<(Box<str>, Severity)>;
    /// Whether another node of the cluster may have the device, which then evaluates what happens without a message.
    fn needs_check(&self, device: DeviceNo) -> bool;
}

/// New input of a device.
#[derive(Clone, Copy)]
pub(super) enum DeviceInput<'a> {
    Row { ts_ms: i64, points: &'a [Point<'a>] },
    Online(bool),
    Time,
}

/// The subject of alarms.
#[derive(Clone)]
pub(super) enum AlarmSubject {
    Device(Arc<Device>),
    /// The node itself.
    Node,
}

/// Transitions of a device with the values that caused them.
pub(super) struct DeviceTransitions {
    pub(super) subject: AlarmSubject,
    pub(super) compiled: Arc<ProductAlarmRules>,
    pub(super) transitions: Vec<AlarmTransition>,
    pub(super) values: Vec<(Box<str>, Scalar)>,
}

impl AlarmSubject {
    pub(super) fn no(&self) -> DeviceNo {
        match self {
            Self::Device(device) => device.no,
            Self::Node => NODE_NO,
        }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Device(device) => device.id.as_str(),
            Self::Node => "$node",
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Device(device) => device.name(),
            Self::Node => "this node",
        }
    }

    pub(super) fn product(&self) -> &str {
        match self {
            Self::Device(device) => device.product.id().as_str(),
            Self::Node => NODE_PRODUCT,
        }
    }

    pub(super) fn namespace(&self) -> String {
        match self {
            Self::Device(device) => device.product.get().namespace().to_owned(),
            Self::Node => namespaces::default_id(),
        }
    }

    pub(super) fn parent(&self) -> Option<DeviceNo> {
        match self {
            Self::Device(device) => device.parent,
            Self::Node => None,
        }
    }
}

impl WatchedDevices {
    pub(super) fn new(max_devices: usize) -> Self {
        Self {
            partitions: std::array::from_fn(|_| Mutex::default()),
            max_per_partition: max_devices.div_ceil(PARTITIONS),
            unwatched: AtomicU64::new(0),
        }
    }

    fn partition(&self, device: DeviceNo) -> MutexGuard<'_, WatchPartition> {
        let partition = &self.partitions[device.spread() as usize % PARTITIONS];
        partition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evaluates the input of a device. If it is not watched with current rules, `find` looks up the device and
    /// `compiled` its rules.
    pub(super) fn observe(
        &self,
        no: DeviceNo,
        find: &dyn Fn() -> Option<Arc<Device>>,
        compiled: &dyn Fn(&Device) -> Option<Arc<ProductAlarmRules>>,
        around: &dyn AlarmContext,
        now_ms: u64,
        input: DeviceInput<'_>,
    ) -> Option<DeviceTransitions> {
        let mut partition = self.partition(no);
        let known = partition.devices.get(&no);
        if !known.is_some_and(WatchedDevice::is_current) {
            // The lookup may read from disk.
            drop(partition);
            let device = find()?;
            let compiled = compiled(&device);
            partition = self.partition(no);
            partition.devices.remove(&no);
            let compiled = compiled?;
            if !partition.make_room(self.max_per_partition) {
                self.unwatched.fetch_add(1, Relaxed);
                return None;
            }
            let watched = WatchedDevice::new(&device, compiled, around);
            partition.devices.insert(no, watched);
        }
        partition.evaluate(no, around, now_ms, input)
    }

    /// Replaces a changed device. The state of its conditions remains unless it has another product.
    pub(super) fn replace(&self, device: &Arc<Device>) {
        let mut partition = self.partition(device.no);
        if let Some(watched) = partition.devices.get_mut(&device.no) {
            match watched.device.product.id() == device.product.id() {
                true => watched.device = Arc::clone(device),
                false => drop(partition.devices.remove(&device.no)),
            }
        }
    }

    /// Evaluates all due devices, except those that another node may have, which it returns.
    pub(super) fn tick(
        &self,
        around: &dyn AlarmContext,
        now_ms: u64,
        each: &mut dyn FnMut(DeviceTransitions),
    ) -> Vec<DeviceNo> {
        let mut unconfirmed = Vec::new();
        for partition in &self.partitions {
            let mut partition = partition.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(&Reverse((due_ms, no))) = partition.due.peek() {
                if due_ms > now_ms {
                    break;
                }
                partition.due.pop();
                let is_due = |watched: &mut WatchedDevice| {
                    watched.due_ms.take_if(|at_ms| *at_ms == due_ms).is_some()
                };
                if !partition.devices.get_mut(&no).is_some_and(is_due) {
                    continue;
                }
                if around.needs_check(no) {
                    unconfirmed.push(no);
                } else if let Some(turned) =
                    partition.evaluate(no, around, now_ms, DeviceInput::Time)
                {
                    each(turned);
                }
            }
        }
        unconfirmed
    }

    /// Evaluates a device that is due, if it is still watched.
    pub(super) fn evaluate_time(
        &self,
        no: DeviceNo,
        around: &dyn AlarmContext,
        now_ms: u64,
    ) -> Option<DeviceTransitions> {
        let mut partition = self.partition(no);
        partition.evaluate(no, around, now_ms, DeviceInput::Time)
    }

    /// A group of transitions of a device was applied to the stored alarms.
    pub(super) fn mark_applied(&self, device: DeviceNo) {
        if let Some(watched) = self.partition(device).devices.get_mut(&device) {
            watched.pending = watched.pending.saturating_sub(1);
        }
    }

    /// Makes the rules of a device agree with the stored alarms, which another node has changed. Returns `false` if transitions
    /// of the device are to be applied before, unless `is_last`.
    pub(super) fn synchronize(
        &self,
        device: DeviceNo,
        around: &dyn AlarmContext,
        is_last: bool,
    ) -> bool {
        let mut partition = self.partition(device);
        let Some(watched) = partition.devices.get_mut(&device) else {
            return true;
        };
        if watched.pending > 0 && !is_last {
            return false;
        }
        watched.pending = 0;
        let open = around.open_alarms(device);
        let set = &watched.compiled.set;
        watched.alarms.synchronize(set, &|kind| {
            let found = open.iter().find(|(known, _)| **known == *kind);
            found.map(|(_, severity)| *severity)
        });
        true
    }

    /// Resets the rule of an alarm that an operator has cleared.
    pub(super) fn mark_cleared(&self, device: DeviceNo, kind: &str) {
        if let Some(watched) = self.partition(device).devices.get_mut(&device)
            && let Some(rule) = watched.compiled.set.rule(kind)
        {
            watched.alarms.mark_cleared(rule);
        }
    }

    /// Makes the next evaluation reload the attributes of the device.
    pub(super) fn invalidate_attributes(&self, device: DeviceNo) {
        if let Some(watched) = self.partition(device).devices.get_mut(&device) {
            watched.attributes = None;
        }
    }

    pub(super) fn has(&self, device: DeviceNo) -> bool {
        self.partition(device).devices.contains_key(&device)
    }

    pub(super) fn remove(&self, device: DeviceNo) {
        self.partition(device).devices.remove(&device);
    }

    pub(super) fn clear(&self) {
        for partition in &self.partitions {
            let mut partition = partition.lock().unwrap_or_else(PoisonError::into_inner);
            *partition = WatchPartition::default();
        }
    }

    pub(super) fn len(&self) -> usize {
        let lens = self.partitions.iter().map(|partition| {
            let partition = partition.lock().unwrap_or_else(PoisonError::into_inner);
            partition.devices.len()
        });
        lens.sum()
    }
}

impl WatchPartition {
    /// Drops devices without pending times and active alarms if there are too many.
    fn make_room(&mut self, max: usize) -> bool {
        if self.devices.len() >= max {
            self.devices
                .retain(|_, watched| watched.due_ms.is_some() || watched.alarms.has_active());
        }
        self.devices.len() < max
    }

    fn evaluate(
        &mut self,
        no: DeviceNo,
        around: &dyn AlarmContext,
        now_ms: u64,
        input: DeviceInput<'_>,
    ) -> Option<DeviceTransitions> {
        let watched = self.devices.get_mut(&no)?;
        let (device, set) = (&watched.device, &watched.compiled.set);
        let attributes = watched
            .attributes
            .get_or_insert_with(|| around.attributes(device));
        let attribute = |name: &str| {
            let found = attributes.iter().find(|(known, _)| **known == *name);
            found.map(|(_, value)| value.clone())
        };
        let mut turns = Vec::new();
        let alarms = &mut watched.alarms;
        match input {
            DeviceInput::Row { ts_ms, points } => {
                if !alarms.observe(set, now_ms, ts_ms, points, &attribute, &mut turns) {
                    return None;
                }
            }
            DeviceInput::Online(is_online) => {
                alarms.observe_online(set, now_ms, is_online, &attribute, &mut turns);
            }
            DeviceInput::Time => alarms.tick(set, now_ms, &attribute, &mut turns),
        }
        // A later due time is found when the earlier entry fires. Otherwise each message would leave an entry here.
        if let Some(due_ms) = alarms.due_ms(set, now_ms)
            && watched.due_ms.is_none_or(|planned_ms| due_ms < planned_ms)
        {
            watched.due_ms = Some(due_ms);
            self.due.push(Reverse((due_ms, no)));
        }
        if turns.is_empty() {
            return None;
        }
        watched.pending = watched.pending.saturating_add(1);
        let values = watched.alarms.values(set);
        Some(DeviceTransitions {
            subject: AlarmSubject::Device(Arc::clone(&watched.device)),
            compiled: Arc::clone(&watched.compiled),
            transitions: turns,
            values: values
                .map(|(name, value)| (name.into(), value.clone()))
                .collect(),
        })
    }
}

impl WatchedDevice {
    /// Whether the rules are those of the product's current version.
    fn is_current(&self) -> bool {
        self.compiled.version == self.device.product.get().version
    }

    fn new(
        device: &Arc<Device>,
        compiled: Arc<ProductAlarmRules>,
        around: &dyn AlarmContext,
    ) -> Self {
        let mut alarms = DeviceAlarms::new(&compiled.set);
        for (kind, severity) in around.open_alarms(device.no) {
            if let Some(rule) = compiled.set.rule(&kind) {
                alarms.restore(rule, severity);
            }
        }
        Self {
            device: Arc::clone(device),
            compiled,
            alarms,
            attributes: None,
            due_ms: None,
            pending: 0,
        }
    }
}
