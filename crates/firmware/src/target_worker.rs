//! The thread that notifies devices of their targets, and records what they report.

use devices::protocol::DownlinkMessage;
use devices::{AttributeScope, Device, DeviceFilter, RegistryError};
use serde_json::Value;
use store::StoreError;
use wall_clock::now_ms;

use crate::catalog::AssignedPackage;
use crate::device_state::{InstallRecord, InstallReport, InstallState};
use crate::jetlinks::{self, PullRequest};
use crate::package::{FirmwarePackage, FirmwareType};
use crate::service::FirmwareService;
use crate::target_queue::TargetJob;
use crate::thingsboard;

/// Devices of a product that are examined between two other jobs.
const PAGE_DEVICES: usize = 256;
/// How long devices can download an image by the link that they were sent.
const LINK_LIFE_MS: u64 = 7 * 24 * 3600 * 1000;

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
        TargetJob::Device(no, is_reachable) => {
            if let Some(device) = service.registry().by_no(no)?
                && (is_reachable || service.is_here(no))
            {
                examine(service, &device)?;
                if is_reachable {
                    remind(service, &device)?;
                }
            }
        }
        TargetJob::Pull(no, request) => {
            if let Some(device) = service.registry().by_no(no)? {
                answer_pull(service, &device, &request)?;
            }
        }
        TargetJob::Removed(no) => service.installs().remove(no)?,
        TargetJob::Report(no, kind, report) => {
            let mut before = None;
            let changed = service.installs().update(no, kind, |record| {
                let mut record = record?;
                before = Some(record.state);
                record.apply(&report, now_ms()).then_some(record)
            })?;
            if let Some(record) = changed {
                // Reports of the progress leave the state.
                if before != Some(record.state) {
                    service.metrics().count_reported_state(record.state);
                }
                service.record_changed(no, kind, &record);
            }
        }
        TargetJob::Product(product, from) => {
            let filter = DeviceFilter {
                product: Some(&product),
                ..DeviceFilter::default()
            };
            let page = service
                .registry()
                .list(&filter, from, PAGE_DEVICES, &mut |_| true)?;
            let here = page.devices.iter();
            for device in here.filter(|device| service.is_here(device.no)) {
                examine(service, device)?;
            }
            if let Some(next) = page.next {
                service.target_queue().continue_product(product, next);
            }
        }
    }
    Ok(())
}

/// Notifies a device of its targets if they have changed.
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
                let is_new_attempt = |record: &InstallRecord| {
                    assigned.attempt.is_some() && assigned.attempt != record.attempt
                };
                let is_known = known.is_some_and(|record| {
                    record.package.as_deref() == Some(&package.id)
                        && record.digest == package.digest
                        && record.state != InstallState::Queued
                        && !is_new_attempt(record)
                });
                // Otherwise it is notified when the image has arrived from another node.
                let can_install = service.has_image(package) || package.url.is_some();
                if !is_known && can_install {
                    announce(service, device, &assigned)?;
                }
            }
        }
    }
    Ok(())
}

fn announce(
    service: &FirmwareService,
    device: &Device,
    assigned: &AssignedPackage,
) -> Result<(), TargetError> {
    let package = &*assigned.package;
    let installs = service.installs();
    let record = installs.update(device.no, package.kind, |before| {
        let (attempt, before) = (assigned.attempt.clone(), before.as_ref());
        Some(InstallRecord::new(package, attempt, before, now_ms()))
    })?;
    // It may run the package already.
    if let Some(record) = record {
        service.record_changed(device.no, package.kind, &record);
    }
    let registry = service.registry();
    let target = thingsboard::target_attributes(package, now_ms());
    registry.set_attributes(device, AttributeScope::Server, target)?;
    // Pushes them to the device if it is online. It learns of the removal of those only that it knows.
    let mut attributes = Vec::new();
    for (key, value) in thingsboard::attributes(package) {
        let is_removed = value.is_null();
        if !is_removed || (registry.attribute(device, AttributeScope::Shared, &key)?).is_some() {
            attributes.push((key, value));
        }
    }
    registry.set_attributes(device, AttributeScope::Shared, attributes)?;
    send_upgrade(service, device, package);
    installs.update(device.no, package.kind, |record| {
        let mut record = record?;
        (record.state == InstallState::Queued).then(|| {
            record.state = InstallState::Initiated;
            record.updated_at_ms = now_ms();
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
    for (scope, keys) in [
        (
            AttributeScope::Server,
            &thingsboard::target_attribute_keys(kind)[..],
        ),
        (
            AttributeScope::Shared,
            &thingsboard::shared_attribute_keys(kind)[..],
        ),
    ] {
        let known = service.registry().attributes(device, scope)?;
        let known = known.into_iter().map(|attribute| attribute.key);
        let removed = known.filter(|key| keys.contains(key));
        let removed: Vec<_> = removed.map(|key| (key, Value::Null)).collect();
        if !removed.is_empty() {
            service.registry().set_attributes(device, scope, removed)?;
        }
    }
    service.installs().update(device.no, kind, |record| {
        let mut record = record?;
        record.package = None;
        record.updated_at_ms = now_ms();
        Some(record)
    })?;
    Ok(())
}

/// The members of a message that describes a package, with a link to its image; `None`: the image is missing.
fn members(service: &FirmwareService, package: &FirmwarePackage) -> Option<String> {
    let url = match &package.url {
        Some(url) => Ok(url.clone()),
        None => service.signed_url(&package.file, now_ms() + LINK_LIFE_MS),
    };
    let url = url
        .inspect_err(|error| {
            tracing::error!(package = package.id, %error, "the image of a firmware package is missing");
        })
        .ok()?;
    let fields = jetlinks::package_fields(package, package.sha256, &url);
    let object = Value::Object(fields).to_string();
    Some(object[1..object.len() - 1].to_owned())
}

/// Sends the description of a package to a device, if it is online and uses JetLinks' protocol.
fn send_upgrade(service: &FirmwareService, device: &Device, package: &FirmwarePackage) {
    // The software of a device has no message there.
    if package.kind == FirmwareType::Firmware
        && let Some(members) = members(service, package)
    {
        let id = format!("firmware-{}", now_ms());
        let members = &members;
        service.send_downlink(
            device,
            &DownlinkMessage::FirmwareUpgrade { id: &id, members },
        );
    }
}

/// Sends again what a device that was not connected, or has restarted, may have missed; requests the version of one that
/// has not reported it.
fn remind(service: &FirmwareService, device: &Device) -> Result<(), TargetError> {
    let Some(record) = service.installs().get(device.no, FirmwareType::Firmware)? else {
        return Ok(());
    };
    let may_have_missed = matches!(
        record.state,
        InstallState::Initiated | InstallState::Downloading
    );
    if may_have_missed && let Some(assigned) = service.assigned(device, FirmwareType::Firmware) {
        send_upgrade(service, device, &assigned.package);
    }
    if record.current_version.is_none() {
        let id = format!("firmware-{}", now_ms());
        service.send_downlink(device, &DownlinkMessage::FirmwareRead { id: &id });
    }
    Ok(())
}

fn answer_pull(
    service: &FirmwareService,
    device: &Device,
    request: &PullRequest,
) -> Result<(), TargetError> {
    if let Some(version) = &request.current_version {
        let report = InstallReport {
            current_version: Some(version.clone()),
            ..InstallReport::default()
        };
        service.report(device.no, FirmwareType::Firmware, report);
    }
    let assigned = service.assigned(device, FirmwareType::Firmware);
    let wanted = assigned.filter(|assigned| {
        let wanted = request.requested_version.as_ref();
        wanted.is_none_or(|wanted| *wanted == assigned.package.version)
    });
    let described = wanted.and_then(|assigned| members(service, &assigned.package));
    let members = described.map_or_else(
        || r#""success":false,"message":"no such firmware is assigned to this device""#.to_owned(),
        |members| format!(r#""success":true,"headers":{{"force":false,"latest":true}},{members}"#),
    );
    let id = &request.message_id;
    let members = &members;
    service.send_downlink(device, &DownlinkMessage::FirmwarePullReply { id, members });
    Ok(())
}
