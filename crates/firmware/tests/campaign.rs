//! A campaign over 1,000 simulated devices, a third of which fails: the service with a real registry and store.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use devices::protocol::DownlinkMessage;
use devices::{
    Device, DeviceNo, NewDevice, PRODUCT_KIND, Registry, RegistryConfig, WritePrecondition,
};
use firmware::{
    CampaignAction, CampaignDefinition, CampaignDeviceState, CampaignStatus, ChunkRejection,
    ChunkSender, DeviceMessenger, FirmwareService, FirmwareSettings, FirmwareType, InstallReport,
    InstallState, KIND,
};
use serde_json::json;
use store::{ExpectedVersion, Store, StoreConfig};
use transfer::{FileOwner, FileService, FileTarget, TransferRequest, TransferSettings};

const DEVICES: u32 = 1000;

/// Nobody is connected.
struct NoClients;

impl ChunkSender for NoClients {
    fn send(&self, _: &str, _: String, _: Bytes, _: ChunkRejection) {}
}

impl DeviceMessenger for NoClients {
    fn send(&self, _: &Device, _: &DownlinkMessage<'_>) {}
}

#[test]
fn a_campaign_of_1000_devices_of_which_a_third_fails_halts_and_stays_halted() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&directory.path().join("store"), StoreConfig::default()).unwrap();
    let objects = store.objects();
    let put = objects.put(PRODUCT_KIND, "pump", json!({}), ExpectedVersion::Absent);
    put.unwrap();
    let registry = Registry::open(objects, RegistryConfig::default()).unwrap();
    for number in 0..DEVICES {
        let device = json!({"id": format!("p{number}"), "product": "pump"});
        let device: NewDevice = serde_json::from_value(device).unwrap();
        registry.put(device, WritePrecondition::Absent).unwrap();
    }
    let settings = TransferSettings {
        min_free_bytes: 0,
        ..TransferSettings::default()
    };
    let files = FileService::open(&directory.path().join("files"), settings).unwrap();
    let begun = files.begin(TransferRequest::new(
        FileOwner::client("c"),
        "image",
        "image",
    ));
    let file = begun.unwrap().info().id.clone();
    let written = files
        .write(FileTarget::Id(&file), 0, b"image", None)
        .unwrap();
    files.commit(&written).unwrap();
    files.finish(FileTarget::Id(&file), None, None).unwrap();
    let open = || {
        let settings = FirmwareSettings::default();
        FirmwareService::open(objects, registry.clone(), files.clone(), &settings, &[]).unwrap()
    };
    let firmware = open();
    let package =
        json!({"title": "pump", "firmware_version": "2", "product": "pump", "file": file});
    let package = firmware.prepare_package(&package, None).unwrap();
    let stored = serde_json::to_value(package).unwrap();
    objects
        .put(KIND, "pump-2", stored, ExpectedVersion::Absent)
        .unwrap();
    firmware
        .start(Arc::new(NoClients), Arc::new(NoClients))
        .unwrap();
    // 500 a second, so that the campaign has notified only a part when the results arrive.
    let definition = json!({
        "package": "pump-2", "max_devices_per_minute": 30_000, "min_success_percent": 80,
        "min_ended": 100, "max_attempts": 1,
    });
    let definition = CampaignDefinition::read(&definition).unwrap();
    let id = firmware.create_campaign(definition).unwrap().id;
    let mut reported = vec![false; DEVICES as usize];
    let end = Instant::now() + Duration::from_secs(60);
    while firmware.campaign(id).unwrap().status == CampaignStatus::Running {
        assert!(Instant::now() < end, "{:?}", firmware.campaign(id));
        let (rows, _) = firmware
            .campaign_devices(id, DeviceNo(0), DEVICES as usize)
            .unwrap();
        for row in rows {
            let number: u32 = row.device[1..].parse().unwrap();
            if row.state == CampaignDeviceState::Started && !reported[number as usize] {
                let device = registry.device(&row.device).unwrap().unwrap();
                // A device reports nothing before it was notified.
                let view = firmware.install(device.no, FirmwareType::Firmware).unwrap();
                if view.is_none_or(|view| view.state != InstallState::Initiated) {
                    continue;
                }
                reported[number as usize] = true;
                let (state, version) = match number % 3 {
                    0 => ("FAILED", None),
                    _ => ("UPDATED", Some("2".to_owned())),
                };
                let report = InstallReport {
                    state: Some(state.to_owned()),
                    current_version: version,
                    ..InstallReport::default()
                };
                firmware.report(device.no, FirmwareType::Firmware, report);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let halted = firmware.campaign(id).unwrap();
    assert_eq!(halted.status, CampaignStatus::Halted);
    let reason = halted.reason.clone().unwrap();
    assert!(reason.contains("less than 80 %"), "{reason}");
    assert!(
        halted.counts.waiting > 0 && halted.counts.failed >= 30,
        "{:?}",
        halted.counts
    );
    firmware.stop();
    let view = firmware.campaign(id).unwrap();
    drop(firmware);
    let again = open();
    let reopened = again.campaign(id).unwrap();
    assert_eq!(
        (reopened.status, reopened.counts.waiting),
        (CampaignStatus::Halted, view.counts.waiting)
    );
    assert_eq!(reopened.reason, view.reason);
    // The number of a deleted campaign is not given again, also after a restart.
    again
        .start(Arc::new(NoClients), Arc::new(NoClients))
        .unwrap();
    again.act_on_campaign(id, CampaignAction::Cancel).unwrap();
    again.delete_campaign(id).unwrap();
    again.stop();
    drop(again);
    let again = open();
    again
        .start(Arc::new(NoClients), Arc::new(NoClients))
        .unwrap();
    let definition = CampaignDefinition::read(&json!({"package": "pump-2"})).unwrap();
    assert_eq!(again.create_campaign(definition).unwrap().id, id + 1);
    again.stop();
}
