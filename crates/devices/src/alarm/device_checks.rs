//! Which node of a cluster evaluates what happens to a device without a message.
//!
//! A node remembers the values and durations of the devices that it has received messages of. When such a device goes offline here,
//! or a duration is over while it has no connection here, it may have moved to another node, which evaluates it now. The node therefore
//! finds out where the device is before it evaluates it, and forgets what it remembers if the device is elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use series::DeviceNo;

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
    pub(super) places: Arc<dyn DevicePlaces>,
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
    pub(super) device: DeviceNo,
    /// As of a device that has gone offline here.
    pub(super) offline: Option<(Arc<Device>, u64)>,
    pub(super) is_elsewhere: bool,
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

    pub(super) fn add(&self, device: DeviceNo, offline: Option<(Arc<Device>, u64)>) {
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

    /// The devices of the next question; `None`: there are none, or a question is under way until
    /// [`end_question`](Self::end_question).
    pub(super) fn begin_question(&self) -> Option<Vec<UnconfirmedInput>> {
        if self.is_asking.swap(true, Ordering::AcqRel) {
            return None;
        }
        let due = self.take_due();
        if due.is_empty() {
            self.end_question();
            return None;
        }
        Some(due)
    }

    pub(super) fn end_question(&self) {
        self.is_asking.store(false, Ordering::Release);
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
