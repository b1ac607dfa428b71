//! Tests of the pipeline with a store in memory.

mod durability;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bumpalo::Bump;
use series::{DeviceNo, KeyId, Point, PointValue};

use super::*;
use crate::chain::Chain;
use crate::protocol::{ControlMessage, DeviceProtocol, DeviceProtocols, RawValue};
use crate::{DeviceId, ProductId};

/// Stores rows as text, in order of arrival.
#[derive(Default)]
struct MemoryStorage {
    keys: Mutex<Vec<String>>,
    /// Number of keys that are not only reserved.
    committed_keys: AtomicUsize,
    commits: AtomicUsize,
    rows: Mutex<BTreeMap<u32, Vec<String>>>,
    is_full: AtomicBool,
}

impl TelemetryStorage for MemoryStorage {
    fn reserve_key(
        &self,
        name: &str,
        admit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<KeyId>, StorageError> {
        let mut keys = self.keys.lock().unwrap();
        if name == "impossible" {
            return Err(StorageError {
                reason: "there can be no such key".into(),
                kind: StorageErrorKind::Invalid,
            });
        }
        if let Some(at) = keys.iter().position(|key| key == name) {
            return Ok(Some(KeyId(at as u32)));
        }
        if !admit(10_000 - keys.len() as u32) {
            return Ok(None);
        }
        keys.push(name.to_owned());
        Ok(Some(KeyId(keys.len() as u32 - 1)))
    }

    fn commit_keys(&self) -> Result<(), StorageError> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(StorageError {
                reason: "the disk is full".into(),
                kind: StorageErrorKind::NoRoom,
            });
        }
        let count = self.keys.lock().unwrap().len();
        self.committed_keys.store(count, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn has_key(&self, key: KeyId) -> bool {
        (key.0 as usize) < self.committed_keys.load(Ordering::Relaxed)
    }

    fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), StorageError> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(StorageError {
                reason: "the disk is full".into(),
                kind: StorageErrorKind::NoRoom,
            });
        }
        assert!(points.iter().all(|point| self.has_key(point.key)));
        let keys = self.keys.lock().unwrap();
        let points = points
            .iter()
            .map(|point| format!("{}={:?}", keys[point.key.0 as usize], point.value));
        let row = format!("{ts_ms}: {}", points.collect::<Vec<_>>().join(" "));
        let mut rows = self.rows.lock().unwrap();
        rows.entry(device.0).or_default().push(row);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }
}

impl MemoryStorage {
    fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    fn rows(&self, device: u32) -> Vec<String> {
        let rows = self.rows.lock().unwrap();
        rows.get(&device).cloned().unwrap_or_default()
    }
}

/// Knows devices 0 to 99, named `d0` and so on; devices from 50 on are behind gateways.
#[derive(Default)]
struct RecordingOutputs {
    published: Mutex<Vec<String>>,
}

fn device_handle(no: u32) -> DeviceHandle {
    DeviceHandle {
        no: DeviceNo(no),
        product: ProductNo(no % 2),
        id: DeviceId::new(&format!("d{no}")).unwrap(),
    }
}

impl DeviceResolver for RecordingOutputs {
    fn resolve_child(&self, _: DeviceRef<'_>, name: &str) -> Option<Arc<DeviceHandle>> {
        let no = name.strip_prefix('d')?.parse().ok()?;
        (50..100).contains(&no).then(|| Arc::new(device_handle(no)))
    }

    fn resolve_device(&self, device: DeviceNo) -> Option<Arc<DeviceHandle>> {
        (device.0 < 100).then(|| Arc::new(device_handle(device.0)))
    }
}

impl PipelineOutputs for RecordingOutputs {
    fn wants_rows(&self) -> bool {
        true
    }

    fn publish_row(
        &self,
        device: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let (product, count) = (&profile.product, points.len());
        let published = format!("{} of {product} stored {count} at {ts_ms}", device.id);
        self.published.lock().unwrap().push(published);
    }

    fn handle_control_message(
        &self,
        by: DeviceRef<'_>,
        about: DeviceRef<'_>,
        _: DeviceProtocol,
        message: &ControlMessage<'_>,
        _: i64,
    ) {
        let published = format!("{} of {}: {message:?}", by.id, about.id);
        self.published.lock().unwrap().push(published);
    }

    fn defer_message(&self, message: &DeviceMessage<'_>) -> bool {
        let published = format!("{} is put off: {}", message.sender.id, message.topic);
        self.published.lock().unwrap().push(published);
        true
    }
}

/// A thing model with two properties.
struct Thermometer;

impl TelemetryModel for Thermometer {
    fn key_rule(&self, name: &str) -> KeyRule {
        match name {
            "temperature" => KeyRule::Property(0),
            "label" | "impossible" => KeyRule::Open,
            _ => KeyRule::Unknown,
        }
    }

    fn convert<'a>(
        &self,
        _: u32,
        value: RawValue<'a>,
        _: &'a Bump,
    ) -> Result<PointValue<'a>, Box<str>> {
        match value {
            RawValue::Int(666) => panic!("the model has a bug"),
            RawValue::Int(value) if value.abs() < 100 => Ok(PointValue::Float(value as f64)),
            RawValue::Float(value) => Ok(PointValue::Float(value)),
            value => Err(format!("{value:?} is no temperature").into()),
        }
    }
}

struct Setup {
    memory: Arc<MemoryStorage>,
    world: Arc<RecordingOutputs>,
    pipeline: Arc<Pipeline>,
}

/// Product 0 accepts every key; product 1 has a thing model.
fn setup_with(config: &PipelineConfig, mode: PipelineMode, memory: Arc<MemoryStorage>) -> Setup {
    let world = Arc::new(RecordingOutputs::default());
    let open = ProductProfile {
        mode,
        ..ProductProfile::permissive(ProductId::new("open").unwrap())
    };
    let modelled = ProductProfile {
        product: ProductId::new("thermometer").unwrap(),
        model: Arc::new(Thermometer),
        ..open.clone()
    };
    let profiles = vec![(ProductNo(0), open), (ProductNo(1), modelled)];
    let pipeline = Pipeline::open(
        config,
        profiles,
        memory.clone(),
        world.clone(),
        world.clone(),
    )
    .unwrap();
    Setup {
        memory,
        world,
        pipeline,
    }
}

fn setup(mode: PipelineMode) -> Setup {
    let config = PipelineConfig {
        mailboxes: 2,
        mailbox_bytes: 8 << 10,
        max_mailbox_batch_messages: 7,
        ..PipelineConfig::default()
    };
    setup_with(&config, mode, Arc::default())
}

fn send(
    setup: &Setup,
    processor: &mut TelemetryProcessor,
    no: u32,
    topic: &str,
    payload: &str,
    received_ms: i64,
) -> SubmitOutcome {
    let device_handle = device_handle(no);
    let message = DeviceMessage {
        sender: device_handle.as_device_ref(),
        topic,
        payload: payload.as_bytes(),
        received_ms,
    };
    setup.pipeline.submit(processor, &message)
}

const TELEMETRY: &str = "v1/devices/me/telemetry";

#[test]
fn rows_are_stored_and_published_in_both_modes() {
    for mode in [PipelineMode::Sync, PipelineMode::Actor] {
        let setup = setup(mode);
        let mut processor = setup.pipeline.processor();
        let _ = send(
            &setup,
            &mut processor,
            0,
            TELEMETRY,
            r#"{"a":1,"b":"x\n"}"#,
            10,
        );
        let _ = send(
            &setup,
            &mut processor,
            0,
            TELEMETRY,
            r#"[{"ts":5,"values":{"a":2}},{"b":null}]"#,
            20,
        );
        let _ = send(
            &setup,
            &mut processor,
            2,
            "/p/d2/properties/report",
            r#"{"properties":{"a":true}}"#,
            30,
        );
        let _ = send(
            &setup,
            &mut processor,
            2,
            "/p/d2/event/e",
            r#"{"data":1}"#,
            40,
        );
        setup.pipeline.flush();
        assert_eq!(
            setup.memory.rows(0),
            [r#"10: a=Int(1) b=Text("x\n")"#, "5: a=Int(2)"]
        );
        assert_eq!(setup.memory.rows(2), ["30: a=Bool(true)"]);
        let published = setup.world.published.lock().unwrap().join("\n");
        assert!(
            published.contains("d2 of open stored 1 at 30"),
            "{published}"
        );
        assert!(
            published.contains(r#"d2 of d2: Event { id: "e""#),
            "{published}"
        );
        let counts = setup.pipeline.snapshot();
        assert_eq!((counts.messages, counts.rows, counts.points), (4, 3, 4));
        assert_eq!(counts.malformed + counts.rejected + counts.unstored, 0);
    }
}

#[test]
fn new_keys_of_a_message_are_created_together_before_its_rows() {
    let setup = setup(PipelineMode::Sync);
    let mut processor = setup.pipeline.processor();
    let of_many = |first: usize| {
        let values = (first..first + 1000).map(|key| format!("\"k{key}\":{key}"));
        format!("{{{}}}", values.collect::<Vec<_>>().join(","))
    };
    let commits = || setup.memory.commits.load(Ordering::Relaxed);
    let _ = send(&setup, &mut processor, 0, TELEMETRY, &of_many(0), 10);
    assert_eq!((setup.memory.rows(0).len(), commits()), (1, 1));
    let _ = send(&setup, &mut processor, 0, TELEMETRY, &of_many(0), 20);
    assert_eq!((setup.memory.rows(0).len(), commits()), (2, 1));
    // Keys that cannot be written reject their rows for now only.
    setup.memory.set_full(true);
    let outcome = send(&setup, &mut processor, 0, TELEMETRY, &of_many(500), 30);
    assert_eq!(outcome, SubmitOutcome::StorageFull);
    assert_eq!(
        &*setup.pipeline.rejections_of(DeviceNo(0)).last[0].reason,
        "the disk is full"
    );
    setup.memory.set_full(false);
    let _ = send(&setup, &mut processor, 0, TELEMETRY, &of_many(500), 40);
    assert_eq!((setup.memory.rows(0).len(), commits()), (3, 2));
    assert_eq!(setup.pipeline.snapshot().rejected, 0);
}

#[test]
fn a_product_does_not_use_up_the_keys_of_the_node() {
    let config = PipelineConfig {
        mailboxes: 1,
        max_keys_per_product: 100,
        ..PipelineConfig::default()
    };
    let setup = setup_with(&config, PipelineMode::Sync, Arc::default());
    // Together over all threads.
    for part in 0..3 {
        let mut processor = setup.pipeline.processor();
        for key in 0..60 {
            let payload = format!("{{\"p{part}k{key}\":1}}");
            let _ = send(&setup, &mut processor, 0, TELEMETRY, &payload, 10);
        }
    }
    assert_eq!(setup.memory.rows(0).len(), 100);
    assert_eq!(setup.memory.keys.lock().unwrap().len(), 100);
    let snapshot = setup.pipeline.snapshot();
    assert_eq!((snapshot.rejected, snapshot.rejected_keys), (80, 80));
    let rejections = setup.pipeline.rejections_of(DeviceNo(0));
    let reason = &rejections.last[0].reason;
    assert!(
        reason.contains("the maximum is 100 (telemetry.max_keys_per_product)"),
        "{reason}"
    );
    let mut processor = setup.pipeline.processor();
    let _ = send(
        &setup,
        &mut processor,
        1,
        TELEMETRY,
        r#"{"temperature":20}"#,
        30,
    );
    assert_eq!(setup.memory.rows(1), ["30: temperature=Float(20.0)"]);
}

#[test]
fn invalid_values_are_counted_and_recorded_for_the_device() {
    let setup = setup(PipelineMode::Sync);
    let mut processor = setup.pipeline.processor();
    let wrong = r#"{"temperature":"hot","other":1,"label":"x","impossible":2}"#;
    let _ = send(&setup, &mut processor, 1, TELEMETRY, wrong, 10);
    let _ = send(&setup, &mut processor, 1, TELEMETRY, wrong, 20);
    let _ = send(
        &setup,
        &mut processor,
        1,
        TELEMETRY,
        r#"{"temperature":20}"#,
        30,
    );
    let _ = send(
        &setup,
        &mut processor,
        1,
        TELEMETRY,
        r#"[{"temperature":21},7]"#,
        40,
    );
    assert_eq!(
        setup.memory.rows(1),
        [
            r#"10: label=Text("x")"#,
            r#"20: label=Text("x")"#,
            "30: temperature=Float(20.0)"
        ]
    );
    let rejections = setup.pipeline.rejections_of(DeviceNo(1));
    assert_eq!(rejections.count, 7);
    let reasons: Vec<_> = rejections
        .last
        .iter()
        .map(|last| format!("{}x {}: {}", last.count, last.subject, last.reason))
        .collect();
    assert_eq!(
        reasons,
        [
            "2x temperature: Text(\"hot\") is no temperature",
            "2x other: the thing model has no such property",
            "2x impossible: there can be no such key",
            "1x v1/devices/me/telemetry: invalid payload at byte 20: expected an object of keys and values, or an array of them",
        ]
    );
    let registered = setup.memory.keys.lock().unwrap().clone();
    assert!(!registered.contains(&"other".to_owned()), "{registered:?}");
    let counts = setup.pipeline.snapshot();
    assert_eq!((counts.rejected, counts.malformed), (6, 1));
    setup.memory.set_full(true);
    let _ = send(&setup, &mut processor, 0, TELEMETRY, r#"{"a":1}"#, 50);
    assert_eq!(setup.pipeline.snapshot().unstored, 1);
    assert_eq!(
        &*setup.pipeline.rejections_of(DeviceNo(0)).last[0].reason,
        "the disk is full"
    );
}

#[test]
fn a_gateway_sends_rows_of_its_child_devices() {
    let setup = setup(PipelineMode::Sync);
    let mut processor = setup.pipeline.processor();
    let telemetry =
        r#"{"d51":[{"ts":1,"values":{"temperature":5}}],"x":[{"a":1}],"d52":[{"a":1}]}"#;
    let _ = send(
        &setup,
        &mut processor,
        0,
        "v1/gateway/telemetry",
        telemetry,
        10,
    );
    let _ = send(&setup, &mut processor, 0, "/p/d0/child/d51/offline", "", 20);
    let _ = send(
        &setup,
        &mut processor,
        0,
        "tg/d52/up/telemetry",
        r#"{"b":2}"#,
        30,
    );
    let _ = send(
        &setup,
        &mut processor,
        0,
        "tg/d1/up/telemetry",
        r#"{"b":2}"#,
        40,
    );
    assert_eq!(setup.memory.rows(51), ["1: temperature=Float(5.0)"]);
    assert_eq!(setup.memory.rows(52), ["10: a=Int(1)", "30: b=Int(2)"]);
    assert!(setup.memory.rows(1).is_empty(), "it is not behind this one");
    let gateway = device_handle(0);
    let message = DeviceMessage {
        sender: gateway.as_device_ref(),
        topic: "tg/d1/up/telemetry",
        payload: b"{\"b\":2}",
        received_ms: 40,
    };
    setup
        .pipeline
        .process(&mut setup.pipeline.retry_processor(), &message);
    assert_eq!(setup.pipeline.snapshot().unknown, 1);
    let rejections = setup.pipeline.rejections_of(DeviceNo(0));
    assert_eq!(&*rejections.last[0].subject, "d1");
    let published = setup.world.published.lock().unwrap().join("\n");
    for expected in [
        "d0 is put off: v1/gateway/telemetry",
        "d0 is put off: tg/d1/up/telemetry",
        "d0 of d51: Offline",
    ] {
        assert!(published.contains(expected), "{published}");
    }
}

#[test]
fn product_changes_and_removals_apply_at_once() {
    let setup = setup(PipelineMode::Sync);
    let mut processor = setup.pipeline.processor();
    let _ = send(
        &setup,
        &mut processor,
        0,
        TELEMETRY,
        r#"{"temperature":"x"}"#,
        10,
    );
    let mut profile = ProductProfile::permissive(ProductId::new("open").unwrap());
    profile.model = Arc::new(Thermometer);
    setup
        .pipeline
        .set_profile(ProductNo(0), Some(profile.clone()));
    let _ = send(
        &setup,
        &mut processor,
        0,
        TELEMETRY,
        r#"{"temperature":"x"}"#,
        20,
    );
    profile.protocols = DeviceProtocols::NONE.with(DeviceProtocol::JetLinks);
    setup.pipeline.set_profile(ProductNo(0), Some(profile));
    let _ = send(
        &setup,
        &mut processor,
        0,
        TELEMETRY,
        r#"{"temperature":1}"#,
        30,
    );
    setup.pipeline.set_profile(ProductNo(0), None);
    let _ = send(
        &setup,
        &mut processor,
        0,
        TELEMETRY,
        r#"{"temperature":1}"#,
        40,
    );
    assert_eq!(setup.memory.rows(0), [r#"10: temperature=Text("x")"#]);
    let counts = setup.pipeline.snapshot();
    assert_eq!(
        (counts.rejected, counts.malformed, counts.unknown),
        (1, 1, 1)
    );
}

#[test]
fn rows_pass_the_chain_before_the_store() {
    let setup = setup(PipelineMode::Sync);
    let definition = serde_json::json!({
        "nodes": [
            {"id": "f", "type": "filter", "condition": "a > 20"},
            {"id": "t", "type": "transform", "select": "a * 2 AS double, b"},
            {"id": "s", "type": "save_telemetry"},
        ],
        "relations": [
            {"from": "f", "on": "true", "to": "t"},
            {"from": "t", "to": "s"},
        ],
    });
    let definition = serde_json::from_value(definition).unwrap();
    let profile = ProductProfile {
        chain: Arc::new(Chain::compile(&definition).unwrap()),
        ..ProductProfile::permissive(ProductId::new("open").unwrap())
    };
    setup.pipeline.set_profile(ProductNo(0), Some(profile));
    let mut processor = setup.pipeline.processor();
    let _ = send(
        &setup,
        &mut processor,
        0,
        TELEMETRY,
        r#"[{"a":20},{"a":21,"b":"x"},{"a":22}]"#,
        10,
    );
    assert_eq!(
        setup.memory.rows(0),
        [r#"10: double=Int(42) b=Text("x")"#, "10: double=Int(44)"]
    );
    assert_eq!(setup.pipeline.snapshot().filtered, 1);
}

#[test]
fn actor_mode_keeps_the_order_of_each_device_and_loses_nothing() {
    let setup = setup(PipelineMode::Actor);
    let large = "x".repeat(6 << 10);
    std::thread::scope(|scope| {
        for sender in 0..4u32 {
            let (setup, large) = (&setup, &large);
            scope.spawn(move || {
                let mut processor = setup.pipeline.processor();
                for at in 0..500 {
                    for device in [0, 2, 4] {
                        let no = device + sender * 6;
                        let payload = match at % 50 {
                            // Larger than its mailbox can hold.
                            49 => format!(r#"{{"a":{at},"b":"{large}"}}"#),
                            _ => format!(r#"{{"a":{at}}}"#),
                        };
                        let _ = send(setup, &mut processor, no, TELEMETRY, &payload, at);
                    }
                }
            });
        }
    });
    setup.pipeline.flush();
    for sender in 0..4 {
        for device in [0, 2, 4] {
            let rows = setup.memory.rows(device + sender * 6);
            assert_eq!(rows.len(), 500);
            for (at, row) in rows.iter().enumerate() {
                assert!(row.starts_with(&format!("{at}: a=Int({at})")), "{row}");
            }
        }
    }
    let counts = setup.pipeline.snapshot();
    assert_eq!((counts.messages, counts.rows), (6000, 6000));
    assert!(counts.batches > 0 && counts.waiting.count > 0);
    assert_eq!((counts.queued, counts.queued_bytes), (0, 0));
}

#[test]
fn mailbox_messages_survive_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mailbox-0a");
    let no = device_handle(0);
    let message = |received_ms, payload: &'static str| DeviceMessage {
        sender: no.as_device_ref(),
        topic: TELEMETRY,
        payload: payload.as_bytes(),
        received_ms,
    };
    let mut left = mailbox_segment::MailboxSegment::open(&path, 4 << 10, None, None)
        .unwrap()
        .0;
    assert!(left.push(&message(1, r#"{"a":1}"#), 5));
    assert!(left.push(&message(2, r#"{"a":2}"#), 6));
    // Simulates a killed process.
    drop(left);
    let config = PipelineConfig {
        directory: Some(directory.path().to_owned()),
        mailboxes: 1,
        mailbox_bytes: 8 << 10,
        ..PipelineConfig::default()
    };
    let memory = Arc::<MemoryStorage>::default();
    let setup = setup_with(&config, PipelineMode::Actor, memory.clone());
    assert_eq!(memory.rows(0), ["1: a=Int(1)", "2: a=Int(2)"]);
    let mut processor = setup.pipeline.processor();
    let _ = send(&setup, &mut processor, 0, TELEMETRY, r#"{"a":3}"#, 3);
    setup.pipeline.stop();
    drop(setup);
    drop(processor);
    let setup = setup_with(&config, PipelineMode::Actor, memory.clone());
    assert_eq!(memory.rows(0).len(), 3, "nothing twice");
    drop(setup);
    // A file with a foreign format is recreated.
    std::fs::write(&path, [7; 100]).unwrap();
    setup_with(&config, PipelineMode::Actor, memory);
}

#[test]
fn a_full_store_rejects_telemetry_and_keeps_accepted_messages() {
    for mode in [PipelineMode::Sync, PipelineMode::Actor] {
        let setup = setup(mode);
        let mut processor = setup.pipeline.processor();
        setup.memory.set_full(true);
        // Actor mode may accept some messages until its worker finds that the store is full.
        let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(6 << 10));
        for (payload, at) in [(r#"{"a":1}"#, 1), (&*large, 2)] {
            let admission = send(&setup, &mut processor, 0, TELEMETRY, payload, at);
            assert_eq!(admission, SubmitOutcome::StorageFull, "{mode:?}");
        }
        let outcome = send(
            &setup,
            &mut processor,
            0,
            "/p/d0/event/e",
            r#"{"data":1}"#,
            3,
        );
        assert_eq!(
            outcome,
            SubmitOutcome::Accepted,
            "{mode:?}: it is not for the store"
        );
        assert!(!setup.pipeline.is_saturated(), "nobody waits for room");
        assert_eq!(setup.pipeline.snapshot().unstored, 2, "{mode:?}");
        setup.memory.set_full(false);
        let admission = send(&setup, &mut processor, 0, TELEMETRY, r#"{"a":4}"#, 4);
        assert_eq!(admission, SubmitOutcome::Accepted);
        setup.pipeline.flush();
        assert_eq!(setup.memory.rows(0), ["4: a=Int(4)"], "{mode:?}");
    }
}

#[test]
fn a_namespace_over_its_quota_stores_no_telemetry() {
    for mode in [PipelineMode::Sync, PipelineMode::Actor] {
        let setup = setup(mode);
        let directory = tempfile::tempdir().unwrap();
        let store = store::Store::open(directory.path(), store::StoreConfig::default());
        let (store, _) = store.unwrap();
        let declared = [(
            "acme".to_owned(),
            serde_json::json!({"quotas": {"telemetry_megabytes": 1}}),
        )];
        let namespaces = namespaces::Namespaces::open(store.objects(), &declared).unwrap();
        let usage = namespaces.usage("acme").unwrap();
        let product = |id: &str, is_stored| ProductProfile {
            mode,
            is_stored,
            namespace: Some(usage.clone()),
            ..ProductProfile::permissive(ProductId::new(id).unwrap())
        };
        let pipeline = &setup.pipeline;
        pipeline.set_profile(ProductNo(0), Some(product("stored", true)));
        pipeline.set_profile(ProductNo(1), Some(product("forwarded", false)));
        let mut processor = pipeline.processor();
        let mut send = |no, topic, at| send(&setup, &mut processor, no, topic, r#"{"a":1}"#, at);
        let _ = send(0, TELEMETRY, 1);
        usage.set_telemetry_bytes(1_000_000);
        assert_eq!(send(0, TELEMETRY, 2), SubmitOutcome::QuotaReached);
        // What is not stored is not limited, except that a gateway may have children whose telemetry is.
        assert_eq!(send(1, TELEMETRY, 3), SubmitOutcome::Accepted);
        let children = send(1, "v1/gateway/telemetry", 4);
        assert_eq!(children, SubmitOutcome::QuotaReached);
        let event = send(0, "/p/d0/event/e", 5);
        assert_eq!(event, SubmitOutcome::Accepted, "{mode:?}");
        let rejected = pipeline.rejections_of(DeviceNo(0));
        let reason = "the quota telemetry_megabytes of the namespace is reached";
        assert_eq!(&*rejected.last[0].reason, reason);
        let sender = device_handle(0);
        let reported = DeviceMessage {
            sender: sender.as_device_ref(),
            topic: "tg/d0/up/telemetry",
            payload: br#"{"ts":6,"values":{"a":6}}"#,
            received_ms: 6,
        };
        pipeline.process(&mut pipeline.report_processor(), &reported);
        assert_eq!(pipeline.snapshot().unstored, 3, "{mode:?}");
        usage.set_telemetry_bytes(999_999);
        assert_eq!(send(0, TELEMETRY, 7), SubmitOutcome::Accepted);
        pipeline.flush();
        assert_eq!(setup.memory.rows(0), ["1: a=Int(1)", "7: a=Int(1)"]);
    }
}

/// Accepted messages stay in a mailbox while there is no room for them. This holds while the pipeline runs,
/// when it stops, and when it starts.
#[test]
fn mailbox_messages_wait_for_room() {
    let directory = tempfile::tempdir().unwrap();
    let config = PipelineConfig {
        directory: Some(directory.path().to_owned()),
        mailboxes: 1,
        mailbox_bytes: 8 << 10,
        ..PipelineConfig::default()
    };
    let memory = Arc::<MemoryStorage>::default();
    let no = device_handle(0);
    let left = DeviceMessage {
        sender: no.as_device_ref(),
        topic: TELEMETRY,
        payload: br#"{"a":1}"#,
        received_ms: 1,
    };
    let path = directory.path().join("mailbox-0a");
    let mut half = mailbox_segment::MailboxSegment::open(&path, 4 << 10, None, None)
        .unwrap()
        .0;
    assert!(half.push(&left, 5));
    drop(half);
    memory.set_full(true);
    for _ in 0..2 {
        let setup = setup_with(&config, PipelineMode::Actor, memory.clone());
        let mut processor = setup.pipeline.processor();
        let rejected = send(&setup, &mut processor, 0, TELEMETRY, r#"{"a":2}"#, 2);
        assert_eq!(rejected, SubmitOutcome::StorageFull);
        setup.pipeline.stop();
        assert!(memory.rows(0).is_empty());
    }
    let setup = setup_with(&config, PipelineMode::Actor, memory.clone());
    memory.set_full(false);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while memory.rows(0).is_empty() {
        assert!(std::time::Instant::now() < deadline, "it is never stored");
        std::thread::yield_now();
    }
    setup.pipeline.stop();
    drop(setup);
    setup_with(&config, PipelineMode::Actor, memory.clone());
    assert_eq!(memory.rows(0), ["1: a=Int(1)"], "once");
}

/// Fills the first half of a mailbox and leaves it like a killed process does.
fn fill_mailbox(directory: &std::path::Path, messages: i64) {
    let no = device_handle(0);
    let (guard, _) = marks::MarkFile::open(directory, 1).unwrap();
    for (half, name) in ["mailbox-0a", "mailbox-0b"].iter().enumerate() {
        let (path, mark) = (directory.join(name), Some(guard.mark(half)));
        let (mut half, problem) =
            mailbox_segment::MailboxSegment::open(&path, 64 << 10, None, mark).unwrap();
        assert_eq!(problem, None);
        half.clear(1);
        for received_ms in 0..messages {
            let payload = format!("{{\"a\":{received_ms}}}");
            let message = DeviceMessage {
                sender: no.as_device_ref(),
                topic: TELEMETRY,
                payload: payload.as_bytes(),
                received_ms,
            };
            assert!(half.push(&message, 5));
        }
    }
}

#[test]
fn mailbox_damage_is_reported_and_loses_only_damaged_messages() {
    const MESSAGES: i64 = 100;
    let origin = tempfile::tempdir().unwrap();
    fill_mailbox(origin.path(), MESSAGES);
    let checked = check_mailboxes(origin.path()).unwrap();
    assert_eq!(checked, (2 * MESSAGES as u64, Vec::new()));
    for name in ["mailbox-0a", "mailbox-0b", "marks"] {
        let bytes = std::fs::read(origin.path().join(name)).unwrap();
        let used = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        let mut damages = vec![
            ("deleted".to_owned(), None),
            ("emptied".to_owned(), Some(Vec::new())),
            ("cut in half".to_owned(), Some(bytes[..used / 2].to_vec())),
            ("cut by 9".to_owned(), Some(bytes[..used - 9].to_vec())),
        ];
        for at in [0, 10, 70, used / 3, used / 2, used - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            damages.push((format!("flipped at {at}"), Some(flipped)));
            let mut zeroed = bytes.clone();
            zeroed[at..used.min(at + 512)].fill(0);
            damages.push((format!("zeroed at {at}"), Some(zeroed)));
        }
        damages.retain(|(_, damaged)| damaged.as_ref() != Some(&bytes));
        for (damage, damaged) in damages {
            let what = format!("{name} {damage}");
            let directory = tempfile::tempdir().unwrap();
            for name in ["mailbox-0a", "mailbox-0b", "marks"] {
                std::fs::copy(origin.path().join(name), directory.path().join(name)).unwrap();
            }
            match damaged {
                Some(bytes) => std::fs::write(directory.path().join(name), bytes).unwrap(),
                None => std::fs::remove_file(directory.path().join(name)).unwrap(),
            }
            let (left, problems) = check_mailboxes(directory.path()).unwrap();
            assert_eq!(problems.len(), 1, "{what}: {problems:?}");
            assert!(problems[0].contains(name), "{what}: {problems:?}");
            let least = match name {
                "marks" => 2 * MESSAGES,
                _ if damage.starts_with("flipped") => 2 * MESSAGES - 1,
                _ => MESSAGES,
            };
            assert!(
                (least..=2 * MESSAGES).contains(&(left as i64)),
                "{what}: {left}"
            );
            let config = PipelineConfig {
                directory: Some(directory.path().to_owned()),
                mailboxes: 1,
                mailbox_bytes: 128 << 10,
                ..PipelineConfig::default()
            };
            let memory = Arc::<MemoryStorage>::default();
            let setup = setup_with(&config, PipelineMode::Actor, memory.clone());
            assert_eq!(memory.rows(0).len(), left as usize, "{what}");
            drop(setup);
            let checked = check_mailboxes(directory.path()).unwrap();
            assert_eq!(checked, (0, Vec::new()), "{what}");
            let copy = directory.path().join(format!("{name}.damaged"));
            assert!(
                copy.exists() || damage == "deleted" || name == "marks",
                "{what}"
            );
        }
    }
}

#[test]
fn a_message_that_panics_is_skipped_in_both_modes() {
    for mode in [PipelineMode::Sync, PipelineMode::Actor] {
        let setup = setup(mode);
        let mut processor = setup.pipeline.processor();
        for (at, value) in [(1, 20), (2, 666), (3, 21)] {
            let payload = format!(r#"{{"temperature":{value}}}"#);
            let _ = send(&setup, &mut processor, 1, TELEMETRY, &payload, at);
        }
        setup.pipeline.flush();
        let rows = setup.memory.rows(1);
        let expected = ["1: temperature=Float(20.0)", "3: temperature=Float(21.0)"];
        assert!(
            expected.iter().all(|row| rows.iter().any(|had| had == row)),
            "{rows:?}"
        );
        assert!(!rows.iter().any(|row| row.starts_with('2')), "{rows:?}");
        assert!(setup.pipeline.snapshot().malformed > 0, "{mode:?}");
    }
}
