//! The thread that tells devices their targets, and records what they report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use devices::{AttributeScope, Device, DeviceFilter, DeviceNo, RegistryError};
use serde_json::Value;
use store::StoreError;
use wall_clock::now_ms;

use crate::device_state::{InstallRecord, InstallReport, InstallState};
use crate::package::{FirmwarePackage, FirmwareType};
use crate::service::FirmwareService;
use crate::thingsboard;

/// Devices of a product that are examined between two other jobs.
const PAGE_DEVICES: usize = 256;

/// Work that waits. It is bounded by the number of devices and products, because jobs about the same are merged.
#[derive(Default)]
pub(crate) struct TargetQueue {
    state: Mutex<TargetQueueState>,
    has_work: Condvar,
}

#[derive(Default)]
struct TargetQueueState {
    devices: BTreeSet<DeviceNo>,
    removed: BTreeSet<DeviceNo>,
    /// Products, and the device from which they are to be examined.
    products: BTreeMap<String, DeviceNo>,
    reports: HashMap<(DeviceNo, FirmwareType), InstallReport>,
    is_stopping: bool,
}

enum TargetJob {
    Device(DeviceNo),
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

    /// The target of a device may have changed, or it can be told now.
    pub(crate) fn push_device(&self, device: DeviceNo) {
        self.change(|state| _ = state.devices.insert(device));
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
    fn next(&self) -> Option<TargetJob> {
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
            if let Some(device) = state.devices.pop_first() {
                return Some(TargetJob::Device(device));
            }
            if let Some((product, from)) = state.products.pop_first() {
                return Some(TargetJob::Product(product, from));
            }
            let woken = self.has_work.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Continues with a product, unless it has to begin again.
    fn continue_product(&self, product: String, from: DeviceNo) {
        self.change(|state| _ = state.products.entry(product).or_insert(from));
    }
}

/// Why a target could not be recorded.
#[derive(Debug, thiserror::Error)]
enum TargetError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Works until the node stops.
pub(crate) fn run(service: &FirmwareService) {
    while let Some(job) = service.target_queue().next() {
        if let Err(error) = run_job(service, job) {
            tracing::error!(%error, "recording the firmware of a device failed; it is repeated when the device connects");
        }
    }
}

fn run_job(service: &FirmwareService, job: TargetJob) -> Result<(), TargetError> {
    match job {
        TargetJob::Device(no) => {
            if let Some(device) = service.registry().by_no(no)? {
                examine(service, &device)?;
            }
        }
        TargetJob::Removed(no) => service.installs().remove(no)?,
        TargetJob::Report(no, kind, report) => {
            service.installs().update(no, kind, |record| {
                let mut record = record?;
                record.apply(&report, now_ms()).then_some(record)
            })?;
        }
        TargetJob::Product(product, from) => {
            let filter = DeviceFilter {
                product: Some(&product),
                ..DeviceFilter::default()
            };
            let page = service
                .registry()
                .list(&filter, from, PAGE_DEVICES, &mut |_| true)?;
            for device in &page.devices {
                examine(service, device)?;
            }
            if let Some(next) = page.next {
                service.target_queue().continue_product(product, next);
            }
        }
    }
    Ok(())
}

/// Tells a device its targets if they have changed.
fn examine(service: &FirmwareService, device: &Device) -> Result<(), TargetError> {
    for kind in FirmwareType::ALL {
        let before = service.installs().get(device.no, kind)?;
        let known = before.as_ref();
        let known = known.filter(|record| record.package.is_some());
        match (service.assigned(device, kind), known) {
            (None, None) => {}
            (None, Some(_)) => withdraw(service, device, kind)?,
            (Some(assigned), known) => {
                let package = &assigned.package;
                let is_known = known.is_some_and(|record| {
                    record.package.as_deref() == Some(&package.id)
                        && record.digest == package.digest
                        && record.state != InstallState::Queued
                });
                if !is_known {
                    announce(service, device, package)?;
                }
            }
        }
    }
    Ok(())
}

fn announce(
    service: &FirmwareService,
    device: &Device,
    package: &FirmwarePackage,
) -> Result<(), TargetError> {
    let installs = service.installs();
    installs.update(device.no, package.kind, |before| {
        Some(InstallRecord::new(package, before.as_ref(), now_ms()))
    })?;
    // Pushes them to the device if it is online.
    let attributes = thingsboard::attributes(package);
    (service.registry()).set_attributes(device, AttributeScope::Shared, attributes)?;
    installs.update(device.no, package.kind, |record| {
        let mut record = record?;
        (record.state == InstallState::Queued).then(|| {
            record.state = InstallState::Initiated;
            record.updated_ms = now_ms();
            record
        })
    })?;
    Ok(())
}

fn withdraw(
    service: &FirmwareService,
    device: &Device,
    kind: FirmwareType,
) -> Result<(), TargetError> {
    let keys = thingsboard::attribute_keys(kind).into_iter();
    let removed = keys.map(|key| (key, Value::Null)).collect();
    (service.registry()).set_attributes(device, AttributeScope::Shared, removed)?;
    service.installs().update(device.no, kind, |record| {
        let mut record = record?;
        record.package = None;
        record.updated_ms = now_ms();
        Some(record)
    })?;
    Ok(())
}
