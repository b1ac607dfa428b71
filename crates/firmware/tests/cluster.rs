//! Firmware of two nodes of a cluster: services with real registries, stores and files, whose records are exchanged by hand.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{NodeName, RECORD_BUCKETS, SharedRecords};
use devices::protocol::DownlinkMessage;
use devices::{
    AttributeScope, Device, DeviceNo, NewDevice, PRODUCT_KIND, Registry, RegistryConfig,
    WritePrecondition,
};
use firmware::{
    CampaignAction, CampaignDefinition, CampaignStatus, ChunkRejection, ChunkSender,
    DeviceMessenger, FirmwareService, FirmwareSettings, FirmwareType, ImageState, InstallReport,
    InstallState, KIND, SharedFirmware,
};
use serde_json::{Value, json};
use store::{ExpectedVersion, Store, StoreConfig};
use transfer::{FileOwner, FileService, FileTarget, TransferRequest, TransferSettings};

const IMAGE: &[u8] = b"the image of a pump";
const FIRMWARE: FirmwareType = FirmwareType::Firmware;

/// Nobody is connected.
struct NoClients;

impl ChunkSender for NoClients {
    fn send(&self, _: &str, _: String, _: Bytes, _: ChunkRejection) {}
}

impl DeviceMessenger for NoClients {
    fn send(&self, _: &Device, _: &DownlinkMessage<'_>) {}
}

struct Node {
    store: Store,
    registry: Registry,
    files: FileService,
    firmware: FirmwareService,
    records: SharedFirmware,
    /// Whether the devices are connected to this node.
    has_devices: Arc<AtomicBool>,
    _directory: tempfile::TempDir,
}

impl Node {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (store, _) = Store::open(&path.join("store"), StoreConfig::default()).unwrap();
        let objects = store.objects();
        let put = objects.put(PRODUCT_KIND, "pump", json!({}), ExpectedVersion::Absent);
        put.unwrap();
        let registry = Registry::open(objects, RegistryConfig::default()).unwrap();
        let settings = TransferSettings {
            min_free_bytes: 0,
            ..TransferSettings::default()
        };
        let files = FileService::open(&path.join("files"), settings).unwrap();
        let node = NodeName::new(name).unwrap();
        let settings = FirmwareSettings {
            node: Some(node.clone()),
            ..FirmwareSettings::default()
        };
        let firmware =
            FirmwareService::open(objects, registry.clone(), files.clone(), &settings, &[]);
        let firmware = firmware.unwrap();
        registry.share(&node).unwrap();
        let has_devices = Arc::new(AtomicBool::new(false));
        let is_here = has_devices.clone();
        let shared = firmware.share(
            &node,
            objects.tables(),
            Box::new(move |_| is_here.load(Ordering::Relaxed)),
        );
        let shared = shared.unwrap();
        let clients = Arc::new(NoClients);
        firmware.start(clients.clone(), clients).unwrap();
        Self {
            store,
            registry,
            files,
            firmware,
            records: shared.records,
            has_devices,
            _directory: directory,
        }
    }

    fn create_device(&self, id: &str) {
        let device: NewDevice =
            serde_json::from_value(json!({"id": id, "product": "pump"})).unwrap();
        self.registry
            .put(device, WritePrecondition::Absent)
            .unwrap();
    }

    fn device(&self, id: &str) -> Option<Arc<Device>> {
        self.registry.device(id).unwrap()
    }

    fn no(&self, id: &str) -> DeviceNo {
        self.device(id).unwrap().no
    }

    /// Uploads the image, and returns the stored form of its package.
    fn package(&self, version: &str) -> Value {
        let request = TransferRequest::new(FileOwner::client("c"), "image", "image");
        let file = self.files.begin(request).unwrap().info().id.clone();
        let written = self.files.write(FileTarget::Id(&file), 0, IMAGE, None);
        self.files.commit(&written.unwrap()).unwrap();
        (self.files)
            .finish(FileTarget::Id(&file), None, None)
            .unwrap();
        let package =
            json!({"title": "pump", "firmware_version": version, "product": "pump", "file": file});
        let package = self.firmware.prepare_package(&package, None).unwrap();
        serde_json::to_value(package).unwrap()
    }

    fn put(&self, id: &str, package: &Value) {
        let objects = self.store.objects();
        (objects.put(KIND, id, package.clone(), ExpectedVersion::Any)).unwrap();
    }

    fn copy_image(&self, from: &Node) {
        for missing in self.firmware.missing_images() {
            let file = from.files.description(&missing.file).unwrap();
            self.files.begin_copy(&file).unwrap();
            let target = FileTarget::Id(&file.id);
            let written = self.files.write(target, 0, IMAGE, None).unwrap();
            self.files.commit(&written).unwrap();
            let checksum = missing.sha256;
            (self.files)
                .finish(target, Some(missing.size), checksum)
                .unwrap();
            self.firmware.image_arrived(&missing.file);
        }
    }

    fn state(&self, id: &str) -> Option<InstallState> {
        let record = self.firmware.install(self.no(id), FIRMWARE).unwrap();
        record.map(|record| record.state)
    }

    /// The version in the attributes of a device.
    fn version(&self, id: &str) -> Option<Value> {
        let device = self.device(id).unwrap();
        let found = self
            .registry
            .attribute(&device, AttributeScope::Shared, "fw_version");
        found.unwrap().map(|attribute| attribute.value)
    }

    fn report(&self, id: &str, state: &str) {
        let report = InstallReport {
            state: Some(state.to_owned()),
            ..InstallReport::default()
        };
        self.firmware.report(self.no(id), FIRMWARE, report);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.firmware.stop();
        self.store.close();
    }
}

/// Brings what one node has in a later version to the other one.
fn send(from: &dyn SharedRecords, to: &dyn SharedRecords) {
    for bucket in 0..RECORD_BUCKETS as u16 {
        let mut ids = Vec::new();
        from.versions(bucket, &mut |id, _| ids.push(id.to_owned()))
            .unwrap();
        let records = ids.iter().filter_map(|id| from.read(id).unwrap());
        to.apply(records.collect()).unwrap();
    }
}

fn exchange(a: &Node, b: &Node) {
    for (from, to) in [(a, b), (b, a)] {
        send(&from.registry, &to.registry);
        send(&from.records, &to.records);
    }
}

fn assert_same_records(a: &Node, b: &Node) {
    eventually((a, b), "the nodes have the same records", || {
        a.records.root() == b.records.root()
    });
}

/// Exchanges records until something holds.
fn eventually(nodes: (&Node, &Node), what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
        exchange(nodes.0, nodes.1);
    }
}

fn campaign(fields: Value) -> CampaignDefinition {
    CampaignDefinition::read(&fields).unwrap()
}

#[test]
fn a_campaign_of_one_node_installs_at_the_node_of_the_device() {
    let (a, b) = (Node::new("a"), Node::new("b"));
    let nodes = (&a, &b);
    b.has_devices.store(true, Ordering::Relaxed);
    a.create_device("p1");
    a.create_device("p2");
    let package = a.package("2");
    a.put("pump-2", &package);
    b.put("pump-2", &package);
    exchange(&a, &b);
    let status = b.firmware.image_status("pump-2").unwrap();
    assert_eq!(status.state, ImageState::Missing);
    let definition = json!({"package": "pump-2", "max_attempts": 2, "max_devices_per_minute": 0});
    let made = a.firmware.create_campaign(campaign(definition)).unwrap();
    assert_eq!(made.node.as_deref(), Some("a"));
    eventually(nodes, "the campaign is known", || {
        b.firmware.campaign_nodes(made.id) == ["a"]
    });
    assert_eq!(
        b.firmware.campaign_of_package("pump-2"),
        Some((made.id, Some("a".to_owned())))
    );
    // The devices are notified when their node has the image.
    eventually(nodes, "the target is known", || {
        let device = b.device("p1").unwrap();
        b.firmware.assigned(&device, FIRMWARE).is_some()
    });
    assert_eq!((b.state("p1"), b.version("p1")), (None, None));
    b.copy_image(&a);
    let status = b.firmware.image_status("pump-2").unwrap();
    assert_eq!(status.state, ImageState::Present);
    for id in ["p1", "p2"] {
        eventually(nodes, "it is notified", || {
            b.state(id) == Some(InstallState::Initiated)
        });
        assert_eq!(b.version(id), Some(json!("2")));
    }
    assert_eq!(a.version("p1"), None, "only the node of the device does so");
    eventually(nodes, "the other node knows", || {
        a.state("p1") == Some(InstallState::Initiated)
    });
    b.report("p1", "UPDATED");
    b.report("p2", "FAILED");
    let counts = |node: &Node| node.firmware.known_campaign(made.id).unwrap().counts;
    eventually(nodes, "one has succeeded", || counts(&a).succeeded == 1);
    // The campaign notifies the other one again, which its node records as a new attempt.
    eventually(nodes, "it is notified again", || {
        b.state("p2") == Some(InstallState::Initiated)
    });
    b.report("p2", "UPDATED");
    eventually(nodes, "both have succeeded", || counts(&a).succeeded == 2);
    eventually(nodes, "the campaign has ended", || {
        let known = b.firmware.known_campaign(made.id).unwrap();
        known.status == CampaignStatus::Completed && known.counts.succeeded == 2
    });
    a.firmware.delete_campaign(made.id).unwrap();
    eventually(nodes, "it is withdrawn", || b.version("p1").is_none());
    assert_eq!(b.firmware.known_campaign(made.id), None);
    assert_eq!(b.firmware.campaign_of_package("pump-2"), None);
    assert_same_records(&a, &b);
}

#[test]
fn a_device_that_moves_is_not_notified_again() {
    let (a, b) = (Node::new("a"), Node::new("b"));
    let nodes = (&a, &b);
    a.create_device("p1");
    a.has_devices.store(true, Ordering::Relaxed);
    let package = a.package("2");
    a.put("pump-2", &package);
    b.put("pump-2", &package);
    exchange(&a, &b);
    b.copy_image(&a);
    let definition = json!({"package": "pump-2", "max_devices_per_minute": 0});
    let made = b.firmware.create_campaign(campaign(definition)).unwrap();
    eventually(nodes, "it is notified", || {
        a.state("p1") == Some(InstallState::Initiated)
    });
    a.report("p1", "DOWNLOADED");
    eventually(nodes, "the other node knows", || {
        b.state("p1") == Some(InstallState::Downloaded)
    });
    a.has_devices.store(false, Ordering::Relaxed);
    b.has_devices.store(true, Ordering::Relaxed);
    b.firmware.device_reachable(b.no("p1"));
    b.report("p1", "UPDATED");
    eventually(nodes, "the campaign has ended", || {
        let known = a.firmware.known_campaign(made.id);
        known.is_some_and(|known| known.status == CampaignStatus::Completed)
    });
    assert_eq!(a.state("p1"), Some(InstallState::Updated));
    // Numbers of campaigns of different nodes differ.
    let definition = json!({"package": "pump-2", "max_devices_per_minute": 0});
    let other = a.firmware.create_campaign(campaign(definition)).unwrap();
    assert_ne!(other.id, made.id);
    a.firmware
        .act_on_campaign(other.id, CampaignAction::Cancel)
        .unwrap();
}

#[test]
fn records_are_removed_with_their_device() {
    let (a, b) = (Node::new("a"), Node::new("b"));
    let nodes = (&a, &b);
    a.create_device("p1");
    a.create_device("p2");
    let package = a.package("2");
    a.put("pump-2", &package);
    b.put("pump-2", &package);
    // The records arrive before the devices do.
    a.has_devices.store(true, Ordering::Relaxed);
    let definition = json!({"package": "pump-2", "max_devices_per_minute": 0});
    let made = a.firmware.create_campaign(campaign(definition)).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while a.state("p1") != Some(InstallState::Initiated) {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
    send(&a.records, &b.records);
    send(&a.registry, &b.registry);
    assert_eq!(b.state("p1"), Some(InstallState::Initiated));
    let device = b.device("p1").unwrap();
    let assigned = b.firmware.assigned(&device, FIRMWARE).unwrap();
    assert_eq!(assigned.package.id, "pump-2");
    // Removed at one node; the other one removes the records for itself, and both have the same versions.
    b.registry.remove("p1", WritePrecondition::Any).unwrap();
    eventually(nodes, "the device is gone", || a.device("p1").is_none());
    eventually(nodes, "the campaign notices it", || {
        let known = b.firmware.known_campaign(made.id).unwrap();
        known.counts.cancelled == 1
    });
    // Another device with the same id has nothing to install.
    b.create_device("p1");
    eventually(nodes, "the new device is known", || {
        a.device("p1").is_some()
    });
    for node in [&a, &b] {
        let device = node.device("p1").unwrap();
        assert!(node.firmware.assigned(&device, FIRMWARE).is_none());
    }
    assert_same_records(&a, &b);
}

#[test]
fn a_package_that_is_deleted_takes_its_copy_along() {
    let (a, b) = (Node::new("a"), Node::new("b"));
    let package = a.package("2");
    let file = package["file"].as_str().unwrap().to_owned();
    a.put("pump-2", &package);
    b.put("pump-2", &package);
    b.copy_image(&a);
    assert!(b.files.read(&file).is_ok());
    b.put("same", &package);
    assert_eq!(b.firmware.missing_images(), []);
    let delete = |node: &Node, id: &str| {
        let objects = node.store.objects();
        objects.delete(KIND, id, ExpectedVersion::Any).unwrap();
    };
    delete(&b, "same");
    assert!(b.files.read(&file).is_ok(), "the other package needs it");
    delete(&b, "pump-2");
    assert!(b.files.read(&file).is_err());
    delete(&a, "pump-2");
    assert!(a.files.read(&file).is_ok(), "the uploaded file stays");
    // An image that has not arrived is no longer missed.
    b.put("pump-2", &package);
    assert_eq!(b.firmware.missing_images().len(), 1);
    b.firmware.image_failed(&file, "no node has it");
    let status = b.firmware.image_status("pump-2").unwrap();
    assert_eq!(status.error.as_deref(), Some("no node has it"));
    delete(&b, "pump-2");
    assert_eq!(b.firmware.missing_images(), []);
}
