//! Work for the thread that notifies devices of their targets.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use devices::DeviceNo;

use crate::device_state::InstallReport;
use crate::jetlinks::PullRequest;
use crate::package::FirmwareType;

/// Requests of devices for the description of their packages.
const MAX_WAITING_PULLS: usize = 16_384;

/// Work that waits. It is bounded by the number of devices and products, because jobs about the same are merged.
#[derive(Default)]
pub(crate) struct TargetQueue {
    state: Mutex<TargetQueueState>,
    has_work: Condvar,
}

#[derive(Default)]
struct TargetQueueState {
    /// Devices, and whether they can be sent a message now.
    devices: BTreeMap<DeviceNo, bool>,
    pulls: VecDeque<(DeviceNo, PullRequest)>,
    removed: BTreeSet<DeviceNo>,
    /// Products, and the device from which they are to be examined.
    products: BTreeMap<String, DeviceNo>,
    reports: HashMap<(DeviceNo, FirmwareType), InstallReport>,
    is_stopping: bool,
}

pub(crate) enum TargetJob {
    /// Whether the device can be sent a message now.
    Device(DeviceNo, bool),
    Pull(DeviceNo, PullRequest),
    Removed(DeviceNo),
    Product(String, DeviceNo),
    Report(DeviceNo, FirmwareType, InstallReport),
}

impl TargetQueue {
    fn lock(&self) -> MutexGuard<'_, TargetQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut TargetQueueState)) {
        change(&mut self.lock());
        self.has_work.notify_one();
    }

    /// The target of a device may have changed.
    pub(crate) fn push_device(&self, device: DeviceNo) {
        self.change(|state| _ = state.devices.entry(device).or_insert(false));
    }

    /// A device has connected or subscribed.
    pub(crate) fn push_reachable(&self, device: DeviceNo) {
        self.change(|state| _ = state.devices.insert(device, true));
    }

    /// A device repeats a request that is dropped.
    pub(crate) fn push_pull(&self, device: DeviceNo, request: PullRequest) {
        self.change(|state| {
            if state.pulls.len() < MAX_WAITING_PULLS {
                state.pulls.push_back((device, request));
            }
        });
    }

    pub(crate) fn push_removed(&self, device: DeviceNo) {
        self.change(|state| _ = state.removed.insert(device));
    }

    /// The targets of devices of a product may have changed.
    pub(crate) fn push_product(&self, product: &str) {
        self.change(|state| _ = state.products.insert(product.to_owned(), DeviceNo(0)));
    }

    pub(crate) fn push_report(&self, device: DeviceNo, kind: FirmwareType, report: InstallReport) {
        self.change(|state| {
            state
                .reports
                .entry((device, kind))
                .or_default()
                .merge(report)
        });
    }

    pub(crate) fn stop(&self) {
        self.change(|state| state.is_stopping = true);
    }

    /// The next job; `None`: the node stops. Reports that wait are recorded before.
    pub(crate) fn next(&self) -> Option<TargetJob> {
        let mut state = self.lock();
        loop {
            if let Some(key) = state.reports.keys().next().copied() {
                let report = state.reports.remove(&key).unwrap_or_default();
                return Some(TargetJob::Report(key.0, key.1, report));
            }
            if state.is_stopping {
                return None;
            }
            if let Some(device) = state.removed.pop_first() {
                return Some(TargetJob::Removed(device));
            }
            if let Some((device, request)) = state.pulls.pop_front() {
                return Some(TargetJob::Pull(device, request));
            }
            if let Some((device, is_reachable)) = state.devices.pop_first() {
                return Some(TargetJob::Device(device, is_reachable));
            }
            if let Some((product, from)) = state.products.pop_first() {
                return Some(TargetJob::Product(product, from));
            }
            let woken = self.has_work.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Continues with a product, unless it has to begin again.
    pub(crate) fn continue_product(&self, product: String, from: DeviceNo) {
        self.change(|state| _ = state.products.entry(product).or_insert(from));
    }
}
