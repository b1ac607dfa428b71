//! Packages and assignments through the public interface: verification, precedence, and the files of packages.

#![allow(clippy::unwrap_used)]

use std::fs;

use devices::{NewDevice, PRODUCT_KIND, Registry, RegistryConfig, WritePrecondition, group};
use firmware::{
    ASSIGNMENT_KIND, AssignmentTarget, CampaignAction, CampaignDefinition, ChunkTransport,
    FirmwareService, FirmwareSettings, FirmwareType, KIND, TrustSettings,
};
use hooks::MetricValue;
use serde_json::{Value, json};
use store::{ExpectedVersion, Objects, Store, StoreConfig};
use tempfile::TempDir;
use transfer::{FileOwner, FileService, FileTarget, TransferRequest, TransferSettings};

const MINISIGN_KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
/// Of the four bytes `test`, from the documentation of minisign-verify.
const MINISIGN_OF_TEST: &str = "untrusted comment: signature from minisign secret key\n\
    RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
    trusted comment: timestamp:1633700835\tfile:test\tprehashed\n\
    wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==";

fn settings_of(trust: &TrustSettings) -> FirmwareSettings {
    FirmwareSettings {
        trust: trust.clone(),
        ..FirmwareSettings::default()
    }
}

struct Node {
    directory: TempDir,
    _store: Store,
    objects: Objects,
    registry: Registry,
    files: FileService,
    firmware: FirmwareService,
}

impl Node {
    fn new(trust: &TrustSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) =
            Store::open(&directory.path().join("store"), StoreConfig::default()).unwrap();
        let objects = store.objects().clone();
        for product in ["pump", "meter"] {
            let put = objects.put(PRODUCT_KIND, product, json!({}), ExpectedVersion::Absent);
            put.unwrap();
        }
        let registry = Registry::open(&objects, RegistryConfig::default()).unwrap();
        for (id, product, floor) in [
            ("p1", "pump", "1"),
            ("p2", "pump", "2"),
            ("m1", "meter", "1"),
        ] {
            let device = json!({"id": id, "product": product, "tags": {"floor": floor}});
            let device: NewDevice = serde_json::from_value(device).unwrap();
            registry.put(device, WritePrecondition::Absent).unwrap();
        }
        let settings = TransferSettings {
            min_free_bytes: 0,
            ..TransferSettings::default()
        };
        let files = FileService::open(&directory.path().join("files"), settings).unwrap();
        let opened = FirmwareService::open(
            &objects,
            registry.clone(),
            files.clone(),
            &settings_of(trust),
            &[],
        );
        Self {
            directory,
            _store: store,
            objects,
            registry,
            files,
            firmware: opened.unwrap(),
        }
    }

    /// Uploads a file; returns its id.
    fn upload(&self, name: &str, content: &[u8]) -> String {
        let owner = FileOwner::client("c");
        let begun = self.files.begin(TransferRequest::new(owner, name, name));
        let id = begun.unwrap().info().id.clone();
        let target = FileTarget::Id(&id);
        let written = self.files.write(target, 0, content, None).unwrap();
        self.files.commit(&written).unwrap();
        self.files.finish(target, None, None).unwrap();
        id
    }

    fn prepare(&self, package: &Value) -> Result<Value, String> {
        let prepared = self.firmware.prepare_package(package, None);
        let prepared = prepared.map_err(|error| error.to_string())?;
        Ok(serde_json::to_value(prepared).unwrap())
    }

    /// As the API does: prepares and stores.
    fn put_package(&self, id: &str, package: &Value) {
        let stored = self.prepare(package).unwrap();
        self.objects
            .put(KIND, id, stored, ExpectedVersion::Any)
            .unwrap();
    }

    fn assign(&self, id: &str, assignment: Value) -> Result<(), String> {
        let prepared = self.firmware.prepare_assignment(&assignment);
        let stored = serde_json::to_value(prepared.map_err(|error| error.to_string())?).unwrap();
        let unique = self.firmware.check_assignment_is_unique(id, &stored);
        unique.map_err(|error| error.to_string())?;
        let put = self
            .objects
            .put(ASSIGNMENT_KIND, id, stored, ExpectedVersion::Any);
        put.unwrap();
        Ok(())
    }

    /// The number of a metric; `label` is the value of its label, if it has one.
    fn metric(&self, name: &str, label: Option<&str>) -> f64 {
        let families = self.firmware.metric_families();
        let family = families.iter().find(|family| family.name == name).unwrap();
        let mut samples = family.samples.iter();
        let sample = samples.find(|sample| {
            let labels = sample.labels.first();
            labels.map(|(_, value)| value.as_str()) == label
        });
        match sample.map(|sample| &sample.value) {
            Some(MetricValue::Number(number)) => *number,
            other => panic!("{name} {label:?}: {other:?}"),
        }
    }

    fn assigned(&self, device: &str) -> Option<(String, AssignmentTarget)> {
        let device = self.registry.device(device).unwrap().unwrap();
        let found = self.firmware.assigned(&device, FirmwareType::Firmware)?;
        Some((found.package.id.clone(), found.target))
    }
}

fn package(version: &str, file: &str) -> Value {
    json!({"title": "pump", "firmware_version": version, "product": "pump", "file": file})
}

#[test]
fn an_image_is_described_and_verified() {
    let node = Node::new(&TrustSettings::default());
    let file = node.upload("image", b"test");
    let stored = node.prepare(&package("1", &file)).unwrap();
    let sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    assert_eq!(
        (&stored["size"], &stored["sha256"]),
        (&json!(4), &json!(sha256))
    );
    assert_eq!(stored["digest"], sha256);
    assert_eq!(
        node.prepare(&stored),
        Ok(stored.clone()),
        "what is read can be written"
    );
    let with = |fields: Value| {
        let mut package = package("1", &file);
        for (name, value) in fields.as_object().unwrap() {
            package[name] = value.clone();
        }
        node.prepare(&package)
    };
    let crc = with(json!({"digest_algorithm": "crc32", "digest": "0C7E7FD8"})).unwrap();
    assert_eq!(crc["digest"], "0c7e7fd8");
    for (fields, expected) in [
        (json!({"size": 5}), "size: "),
        (json!({"sha256": "00".repeat(32)}), "sha256: "),
        (json!({"digest": "00"}), "digest: "),
        (json!({"file": "none"}), "file: "),
        (json!({"namespace": "acme"}), "file: "),
        (json!({"title": ""}), "title: "),
        (json!({"type": "hardware"}), "type: "),
        (
            json!({"signature": {"scheme": "minisign", "value": "x"}}),
            "signature.scheme: ",
        ),
    ] {
        let rejected = with(fields).unwrap_err();
        assert!(rejected.starts_with(expected), "{rejected}");
    }
    let empty = node.upload("empty", b"");
    assert!(
        node.prepare(&package("1", &empty))
            .unwrap_err()
            .starts_with("file: ")
    );
    let other = node.upload("other", b"other");
    let changed = package("1", &other);
    let rejected = node.firmware.prepare_package(&changed, Some(&stored));
    assert_eq!(rejected.unwrap_err().field, "file");
}

#[test]
fn signatures_of_minisign_are_verified() {
    let node = Node::new(&TrustSettings {
        minisign_keys: format!("{MINISIGN_KEY},"),
        require_signature: true,
        ..TrustSettings::default()
    });
    let signed = |file: &str, value: &str| {
        let mut package = package("1", file);
        package["signature"] = json!({"scheme": "minisign", "value": value});
        node.prepare(&package)
    };
    let file = node.upload("image", b"test");
    let stored = signed(&file, MINISIGN_OF_TEST).unwrap();
    assert_eq!(stored["signed_by"], format!("minisign {MINISIGN_KEY}"));
    let rejected = node.prepare(&package("1", &file)).unwrap_err();
    assert!(rejected.starts_with("signature: "), "{rejected}");
    let other = node.upload("other", b"tEst");
    for (file, value) in [(&other, MINISIGN_OF_TEST), (&file, "nothing")] {
        let rejected = signed(file, value).unwrap_err();
        assert!(rejected.starts_with("signature.value: "), "{rejected}");
    }
    let foreign = Node::new(&TrustSettings {
        minisign_keys: "RWSGOq2NVecA2UPNdBUZykf1CCb147pkmdtYxgb3Ti+JO/wCYvhbAb/U".to_owned(),
        ..TrustSettings::default()
    });
    let mut unsigned = package("1", &foreign.upload("image", b"test"));
    unsigned["signature"] = json!({"scheme": "minisign", "value": MINISIGN_OF_TEST});
    let rejected = foreign.prepare(&unsigned).unwrap_err();
    assert!(rejected.contains("does not trust"), "{rejected}");
}

#[test]
fn signatures_by_certificates_are_verified() {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SigningKey as _,
    };
    let issuer = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (trusted, other) = (issuer("trusted"), issuer("other"));
    let key = KeyPair::generate().unwrap();
    let certificate = |by: &CertifiedIssuer<'_, KeyPair>| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "release");
        params.signed_by(&key, by).unwrap().pem()
    };
    let directory = tempfile::tempdir().unwrap();
    let ca_file = directory.path().join("ca.pem");
    fs::write(&ca_file, trusted.pem()).unwrap();
    let node = Node::new(&TrustSettings {
        ca_file: Some(ca_file),
        ..TrustSettings::default()
    });
    let signature = data_encoding::BASE64.encode(&key.sign(b"test").unwrap());
    let signed = |content: &[u8], value: &str, certificates: &str| {
        let mut package = package("1", &node.upload("image", content));
        package["signature"] =
            json!({"scheme": "x509", "value": value, "certificates": certificates});
        node.prepare(&package)
    };
    let stored = signed(b"test", &signature, &certificate(&trusted)).unwrap();
    assert!(
        stored["signed_by"].as_str().unwrap().contains("CN=release"),
        "{stored}"
    );
    for (content, value, certificates, expected) in [
        (
            b"tEst",
            signature.as_str(),
            certificate(&trusted),
            "signature.value: ",
        ),
        (b"test", "AAAA", certificate(&trusted), "signature.value: "),
        (b"test", "?", certificate(&trusted), "signature.value: "),
        (
            b"test",
            &signature,
            certificate(&other),
            "signature.certificates: ",
        ),
        (
            b"test",
            &signature,
            String::new(),
            "signature.certificates: ",
        ),
    ] {
        let rejected = signed(content, value, &certificates).unwrap_err();
        assert!(rejected.starts_with(expected), "{rejected}");
    }
}

#[test]
fn invalid_trust_settings_are_named() {
    let setting = |trust: &TrustSettings| {
        let node = Node::new(&TrustSettings::default());
        let opened = FirmwareService::open(
            &node.objects,
            node.registry.clone(),
            node.files.clone(),
            &settings_of(trust),
            &[],
        );
        opened.err().unwrap().to_string()
    };
    let keys = setting(&TrustSettings {
        minisign_keys: "abc".to_owned(),
        ..TrustSettings::default()
    });
    assert!(
        keys.starts_with("firmware.minisign_keys: \"abc\""),
        "{keys}"
    );
    let file = setting(&TrustSettings {
        ca_file: Some("/nowhere/ca.pem".into()),
        ..TrustSettings::default()
    });
    assert!(
        file.starts_with("firmware.ca_file: /nowhere/ca.pem"),
        "{file}"
    );
}

#[test]
fn a_device_overrides_its_groups_and_these_its_product() {
    let node = Node::new(&TrustSettings::default());
    let file = node.upload("image", b"test");
    for id in ["v1", "v2", "v3"] {
        node.put_package(id, &package(id, &file));
    }
    for (id, floor) in [("floor-1", "1"), ("floor-2", "2")] {
        let group = json!({"tags": {"floor": floor}});
        let put = node
            .objects
            .put(group::KIND, id, group, ExpectedVersion::Absent);
        put.unwrap();
    }
    assert_eq!(node.assigned("p1"), None);
    node.assign("a", json!({"package": "v1", "product": "pump"}))
        .unwrap();
    node.assign("b", json!({"package": "v2", "group": "floor-1"}))
        .unwrap();
    let of = |package: &str, target| Some((package.to_owned(), target));
    let product = || AssignmentTarget::Product("pump".to_owned());
    let group = || AssignmentTarget::Group("floor-1".to_owned());
    assert_eq!(node.assigned("p1"), of("v2", group()));
    assert_eq!(node.assigned("p2"), of("v1", product()));
    assert_eq!(node.assigned("m1"), None, "another product");
    node.assign("c", json!({"package": "v3", "device": "p1"}))
        .unwrap();
    assert_eq!(
        node.assigned("p1"),
        of("v3", AssignmentTarget::Device("p1".to_owned()))
    );
    for (assignment, field) in [
        (
            json!({"package": "v2", "device": "p1"}),
            "package: the device \"p1\" has the assignment \"c\"",
        ),
        (
            json!({"package": "none", "device": "p1"}),
            "package: there is no",
        ),
        (
            json!({"package": "v1", "device": "m1"}),
            "device: the package",
        ),
        (
            json!({"package": "v1", "device": "none"}),
            "device: there is no",
        ),
        (
            json!({"package": "v1", "product": "meter"}),
            "product: the package",
        ),
        (
            json!({"package": "v1", "product": "pump", "device": "p1"}),
            ": expected exactly one",
        ),
        (json!({"package": "v1"}), ": expected exactly one"),
    ] {
        let rejected = node.assign("d", assignment).unwrap_err();
        assert!(rejected.starts_with(field), "{rejected}");
    }
    node.objects
        .delete(ASSIGNMENT_KIND, "c", ExpectedVersion::Any)
        .unwrap();
    assert_eq!(node.assigned("p1"), of("v2", group()));
    let moved = json!({"tags": {"floor": "3"}});
    node.objects
        .put(group::KIND, "floor-1", moved, ExpectedVersion::Any)
        .unwrap();
    assert_eq!(node.assigned("p1"), of("v1", product()), "a changed group");
}

#[test]
fn the_file_of_a_package_is_kept_while_the_package_exists() {
    let node = Node::new(&TrustSettings::default());
    let file = node.upload("image", b"one");
    node.put_package("v1", &package("1", &file));
    assert!(node.files.delete(&file).is_err());
    let newer = node.upload("image", b"two");
    assert_eq!(
        node.files.info(FileTarget::Id(&file)).unwrap().size,
        Some(3)
    );
    let reopened = FileService::open(
        &node.directory.path().join("files"),
        node.files.settings().clone(),
    );
    assert!(reopened.unwrap().info(FileTarget::Id(&file)).is_some());
    node.objects
        .delete(KIND, "v1", ExpectedVersion::Any)
        .unwrap();
    assert!(
        node.files.info(FileTarget::Id(&file)).is_none(),
        "the newer file replaces it"
    );
    node.files.delete(&newer).unwrap();
}

#[test]
fn chunks_and_campaigns_are_counted() {
    let node = Node::new(&TrustSettings::default());
    let file = node.upload("image", b"an image");
    node.put_package("v1", &package("v1", &file));
    let package = node.firmware.package("v1").unwrap();
    for (transport, len) in [
        (ChunkTransport::Mqtt, 4),
        (ChunkTransport::Http, 4),
        (ChunkTransport::Http, 4),
        (ChunkTransport::Link, 8),
    ] {
        let chunk = node.firmware.read_chunk(&package, 0, len, transport);
        assert_eq!(chunk.unwrap(), b"an image"[..len as usize]);
    }
    for (transport, chunks, bytes) in [("mqtt", 1.0, 4.0), ("http", 2.0, 8.0), ("link", 1.0, 8.0)] {
        let transport = Some(transport);
        assert_eq!(node.metric("firmware_chunks_total", transport), chunks);
        assert_eq!(node.metric("firmware_chunk_bytes_total", transport), bytes);
    }
    // The first of each size was read.
    assert_eq!(node.metric("firmware_chunk_reads_total", None), 2.0);
    assert_eq!(node.metric("firmware_chunk_cache_hits_total", None), 2.0);
    assert_eq!(node.metric("firmware_chunk_cache_bytes", None), 12.0);

    let definition = CampaignDefinition::read(&json!({"package": "v1"})).unwrap();
    let ids = [0, 1].map(|_| {
        node.firmware
            .create_campaign(definition.clone())
            .unwrap()
            .id
    });
    let campaigns = |status| node.metric("firmware_campaigns", Some(status));
    let devices = |state| node.metric("firmware_campaign_devices", Some(state));
    assert_eq!((campaigns("running"), devices("waiting")), (2.0, 4.0));
    let paused = node.firmware.act_on_campaign(ids[0], CampaignAction::Pause);
    paused.unwrap();
    let cancelled = node
        .firmware
        .act_on_campaign(ids[1], CampaignAction::Cancel);
    cancelled.unwrap();
    assert_eq!(
        [
            campaigns("running"),
            campaigns("paused"),
            campaigns("cancelled")
        ],
        [0.0, 1.0, 1.0]
    );
    // The devices of the one that has ended do not count.
    assert_eq!((devices("waiting"), devices("cancelled")), (2.0, 0.0));
}
