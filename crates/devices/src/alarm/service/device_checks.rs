//! Which node of a cluster evaluates what happens to a device without a message.
//!
//! A node remembers the values and durations of the devices that it has received messages of. When such a device goes offline here,
//! or a duration is over while it has no connection here, it may have moved to another node, which evaluates it now. The node therefore
//! finds out where the device is before it evaluates it, and forgets what it remembers if the device is elsewhere.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use series::DeviceNo;

use super::super::watched_devices::DeviceInput;
use super::alarms_inner::{AlarmJob, AlarmsInner};
use crate::device::Device;

/// Time in which a device that moves arrives at its other node.
const MOVING_TIME: Duration = Duration::from_secs(1);
/// Devices of one question.
const MAX_ASKED: usize = 1000;

/// Called with those of the devices that are, or were last, at another node.
pub type FoundElsewhere = Box<dyn FnOnce(Vec<DeviceNo>) + Send>;

/// Where devices are, among the nodes of a cluster.
pub trait DevicePlaces: Send + Sync {
    /// Whether the device has a connection to this node, so that no other one is to be asked. Cheap.
    fn is_here(&self, device: DeviceNo) -> bool;
    /// Asks the other nodes for up to 1000 devices. Nodes that do not answer count as nodes without them. Does not block.
    fn find_elsewhere(&self, devices: Vec<DeviceNo>, found: FoundElsewhere);
}

/// Devices to be evaluated once it is known that no other node has them.
pub(super) struct DeviceChecks {
    places: Arc<dyn DevicePlaces>,
    waiting: Mutex<HashMap<DeviceNo, WaitingCheck, RandomState>>,
    is_asking: AtomicBool,
}

struct WaitingCheck {
    since: Instant,
    /// The device has gone offline here, at this time in milliseconds since 1970.
    offline: Option<(Arc<Device>, u64)>,
}

/// What is to be evaluated.
pub(super) struct UnconfirmedInput {
    device: DeviceNo,
    offline: Option<(Arc<Device>, u64)>,
    is_elsewhere: bool,
}

impl DeviceChecks {
    pub(super) fn new(places: Arc<dyn DevicePlaces>) -> Self {
        Self {
            places,
            waiting: Mutex::default(),
            is_asking: AtomicBool::new(false),
        }
    }

    pub(super) fn is_here(&self, device: DeviceNo) -> bool {
        self.places.is_here(device)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<DeviceNo, WaitingCheck, RandomState>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, device: DeviceNo, offline: Option<(Arc<Device>, u64)>) {
        let mut waiting = self.waiting();
        let check = waiting.entry(device).or_insert_with(|| WaitingCheck {
            since: Instant::now(),
            offline: None,
        });
        if offline.is_some() {
            check.since = Instant::now();
            check.offline = offline;
        }
    }

    fn take_due(&self) -> Vec<UnconfirmedInput> {
        let mut waiting = self.waiting();
        let is_due = |check: &WaitingCheck| check.since.elapsed() >= MOVING_TIME;
        let due = waiting.extract_if(|_, check| is_due(check)).take(MAX_ASKED);
        due.map(|(device, check)| UnconfirmedInput {
            device,
            offline: check.offline,
            is_elsewhere: false,
        })
        .collect()
    }
}

impl super::Alarms {
    /// Evaluates devices without messages only if no other node of the cluster has them. To be called once, before devices connect.
    pub fn set_places(&self, places: Arc<dyn DevicePlaces>) {
        // Set once.
        let _ = self.inner.places.set(DeviceChecks::new(places));
    }
}

impl AlarmsInner {
    pub(super) fn observe_presence(&self, device: &Arc<Device>, now_ms: u64, is_online: bool) {
        let find = || Some(Arc::clone(device));
        let input = DeviceInput::Online(is_online);
        self.observe(device.no, &find, now_ms, input);
    }

    /// Whether it is to be found out first where a device is that has gone offline here.
    pub(super) fn check_offline(&self, device: &Arc<Device>, now_ms: u64) -> bool {
        let Some(checks) = self.places.get() else {
            return false;
        };
        checks.add(device.no, Some((Arc::clone(device), now_ms)));
        true
    }

    /// Adds devices to be checked, and asks the other nodes for those that are due. At most one question is under way.
    pub(super) fn check_devices(self: &Arc<Self>, unconfirmed: Vec<DeviceNo>) {
        let Some(checks) = self.places.get() else {
            return;
        };
        for device in unconfirmed {
            checks.add(device, None);
        }
        if checks.is_asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut due = checks.take_due();
        if due.is_empty() {
            checks.is_asking.store(false, Ordering::Release);
            return;
        }
        let devices = due.iter().map(|input| input.device).collect();
        let asking = AskingGuard(Arc::clone(self));
        checks.places.find_elsewhere(
            devices,
            Box::new(move |elsewhere| {
                let elsewhere: HashSet<DeviceNo> = elsewhere.into_iter().collect();
                for input in &mut due {
                    input.is_elsewhere = elsewhere.contains(&input.device);
                }
                asking.0.enqueue(AlarmJob::Evaluate(due));
            }),
        );
    }

    /// Evaluates devices of which it is known where they are.
    pub(super) fn evaluate_confirmed(&self, inputs: &[UnconfirmedInput]) {
        for input in inputs {
            if self
                .places
                .get()
                .is_some_and(|checks| checks.is_here(input.device))
            {
                // It has come back, and is evaluated as any other device.
                self.evaluate_due(input.device);
            } else if input.is_elsewhere {
                self.watched_devices.remove(input.device);
            } else if let Some((device, at_ms)) = &input.offline {
                self.observe_presence(device, *at_ms, false);
                self.evaluate_due(input.device);
            } else {
                self.evaluate_due(input.device);
            }
        }
    }

    fn evaluate_due(&self, device: DeviceNo) {
        let now_ms = wall_clock::now_ms();
        let turned = self.watched_devices.evaluate_time(device, self, now_ms);
        if let Some(turned) = turned {
            self.enqueue(AlarmJob::Transitions(turned));
        }
    }
}

/// Allows the next question, also if the answer to this one was dropped.
struct AskingGuard(Arc<AlarmsInner>);

impl Drop for AskingGuard {
    fn drop(&mut self) {
        if let Some(checks) = self.0.places.get() {
            checks.is_asking.store(false, Ordering::Release);
        }
    }
}
