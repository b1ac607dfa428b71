//! Tests of the platform with a registry and a store in memory.

use std::sync::{Arc, Mutex};

use hooks::{Client, PeerAddress};
use mqtt::Version;
use serde_json::{Value, json};
use series::{DeviceNo, Point, Series};
use store::{Store, StoreConfig};

use super::*;
use crate::authenticator::DeviceAuthenticator;
use crate::chain::Chains;
use crate::command::EncodedDownlink;
use crate::ingest::{NoOutputs, PipelineConfig, SubmitOutcome, TelemetryProcessor};
use crate::presence::DeviceStates;
use crate::registry::Registry;
use crate::{AttributeScope, RegistryConfig};

/// Messages sent to clients.
#[derive(Default)]
struct SentMessages(Mutex<Vec<String>>);

impl ClientMessenger for SentMessages {
    fn send(&self, client_id: &str, letter: EncodedDownlink) {
        let sent = format!("{client_id} < {} {}", letter.topic, letter.payload);
        self.0.lock().unwrap().push(sent);
    }

    fn disconnect(&self, client_ids: &[Box<str>]) {
        let goes = client_ids.iter().map(|id| format!("{id} goes"));
        self.0.lock().unwrap().extend(goes);
    }
}

struct StoreProductFactory(store::Objects);

impl ProductFactory for StoreProductFactory {
    fn create(&self, id: &str, product: &Value) -> bool {
        let put = (self.0).put(
            crate::PRODUCT_KIND,
            id,
            product.clone(),
            store::ExpectedVersion::Absent,
        );
        put.is_ok()
    }
}

impl RegistrationLog for SentMessages {
    fn record(&self, registration: &Registration<'_>) {
        let Registration {
            device,
            was_created,
            peer_address: from,
        } = registration;
        let sent = format!(
            "registered {} created={was_created} from={from:?}",
            device.id
        );
        self.0.lock().unwrap().push(sent);
    }
}

struct Setup {
    platform: Platform,
    pipeline: Arc<Pipeline>,
    registry: Registry,
    states: DeviceStates,
    series: Series,
    sent: Arc<SentMessages>,
    processor: TelemetryProcessor,
    store: Store,
    _directory: tempfile::TempDir,
}

fn setup() -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&directory.path().join("store"), StoreConfig::default()).unwrap();
    let registry = Registry::open(store.objects(), RegistryConfig::default()).unwrap();
    let (series, _) = Series::open(
        &directory.path().join("series"),
        series::SeriesConfig::default(),
    )
    .unwrap();
    let (sent, states) = (
        Arc::<SentMessages>::default(),
        DeviceStates::new(registry.clone()),
    );
    let platform = Platform::start(PlatformParts {
        directory: Arc::new(DeviceAuthenticator::new(registry.clone()).unwrap()),
        registry: registry.clone(),
        states: states.clone(),
        live: Arc::default(),
        chains: Chains::default(),
        outputs: Arc::new(NoOutputs),
        messenger: sent.clone(),
        may_gateways_register: true,
        product_factory: Arc::new(StoreProductFactory(store.objects().clone())),
        max_gateway_products: 2,
        registration_log: sent.clone(),
    })
    .unwrap();
    let pipeline = Pipeline::open(
        &PipelineConfig::default(),
        platform.profiles(),
        Arc::new(series.clone()),
        Arc::new(platform.clone()),
        Arc::new(platform.clone()),
    )
    .unwrap();
    platform.attach_pipeline(pipeline.clone());
    Setup {
        processor: pipeline.processor(),
        platform,
        pipeline,
        registry,
        states,
        series,
        sent,
        store,
        _directory: directory,
    }
}

impl Setup {
    fn product(&self, id: &str, value: Value) {
        let objects = self.store.objects();
        objects
            .put(crate::PRODUCT_KIND, id, value, store::ExpectedVersion::Any)
            .unwrap();
        self.platform.refresh_product(id);
    }

    /// Registers a device and connects it; its client id is `client-` and its id.
    fn device(&self, device: Value) -> Arc<DeviceHandle> {
        let device = serde_json::from_value(device).unwrap();
        let device = self
            .registry
            .put(device, crate::WritePrecondition::Any)
            .unwrap()
            .device;
        self.admit(&device);
        self.connect(&device).unwrap()
    }

    /// Admits a device that is about to connect.
    fn admit(&self, device: &Arc<Device>) {
        let shown = crate::PresentedCredentials {
            client_id: &format!("client-{}", device.id),
            username: Some("token"),
            password: None,
            common_name: None,
            now_ms: now_ms(),
        };
        let directory = &self.platform.inner.parts.directory;
        directory.add_admission(
            None,
            &shown,
            DeviceAdmission::new(Arc::clone(device), crate::CredentialKind::Token),
        );
    }

    fn connect(&self, device: &Device) -> Option<Arc<DeviceHandle>> {
        self.connect_as(device, Some("token"))
    }

    fn connect_as(&self, device: &Device, username: Option<&str>) -> Option<Arc<DeviceHandle>> {
        let client_id = format!("client-{}", device.id);
        let connected = self.platform.device_for(&Client {
            client_id: &client_id,
            username,
            peer: Some(PeerAddress::Unix),
            last_address: None,
            local_address: None,
            version: Version::V311,
            connection: Default::default(),
        });
        connected.map(|(handle, _)| handle)
    }

    fn send(&mut self, by: &DeviceHandle, topic: &str, payload: Value) {
        let payload = payload.to_string();
        let message = DeviceMessage {
            sender: by.as_device_ref(),
            topic,
            payload: payload.as_bytes(),
            received_ms: now_ms() as i64,
        };
        let _ = self.pipeline.submit(&mut self.processor, &message);
        self.pipeline.flush();
        self.platform.wait_idle();
    }

    fn latest(&self, device: DeviceNo) -> Vec<String> {
        let mut found = Vec::new();
        let each = &mut |_, point: Point<'_>| {
            let name = self.series.key_name(point.key).unwrap_or_default();
            found.push(format!("{name}={:?}", point.value));
        };
        self.series.latest(device, None, each).unwrap();
        found.sort();
        found
    }
}

#[test]
fn a_product_decides_what_is_stored_of_its_devices() {
    let mut setup = setup();
    setup.product(
        "meter",
        json!({
            "mode": "sync", "unknown_keys": "reject", "storage": {"keys": ["t", "on"]},
            "model": {"properties": [
                {"id": "t", "name": "t", "valueType": {"type": "double", "max": 100}},
                {"id": "on", "name": "on", "valueType": {"type": "boolean"}},
                {"id": "n", "name": "n", "valueType": {"type": "int"}},
            ]},
        }),
    );
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let payload = json!({"t": 21, "on": true, "n": 5, "other": 1});
    setup.send(&device, "v1/devices/me/telemetry", payload);
    assert_eq!(setup.latest(device.no), ["on=Bool(true)", "t=Float(21.0)"]);
    setup.send(&device, "v1/devices/me/telemetry", json!({"t": 101}));
    let rejections = setup.pipeline.rejections_of(device.no);
    let subjects: Vec<_> = rejections.last.iter().map(|last| &*last.subject).collect();
    assert_eq!(subjects, ["other", "t"]);
    setup.product("meter", json!({"mode": "actor", "protocols": ["jetlinks"]}));
    setup.send(&device, "v1/devices/me/telemetry", json!({"t": 5}));
    setup.send(
        &device,
        "/meter/d/properties/report",
        json!({"properties": {"t": 6}}),
    );
    assert!(setup.latest(device.no).contains(&"t=Int(6)".to_owned()));
    setup.platform.stop();
}

#[test]
fn a_device_writes_and_reads_attributes_and_calls_the_platform() {
    let mut setup = setup();
    setup.product("meter", json!({}));
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    setup.send(
        &device,
        "v1/devices/me/attributes",
        json!({"model": "x", "n": 1}),
    );
    let known = setup.registry.by_no(device.no).unwrap().unwrap();
    let shared = vec![("rate".to_owned(), json!(5))];
    setup
        .registry
        .set_attributes(&known, AttributeScope::Shared, shared)
        .unwrap();
    let request = json!({"clientKeys": "model,missing", "sharedKeys": "rate"});
    setup.send(&device, "v1/devices/me/attributes/request/7", request);
    let call = json!({"method": "getSessionLimits", "params": {}});
    setup.send(&device, "v1/devices/me/rpc/request/8", call);
    assert_eq!(
        *setup.sent.0.lock().unwrap(),
        [
            r#"client-d < v1/devices/me/attributes/response/7 {"client":{"model":"x"},"shared":{"rate":5}}"#,
            r#"client-d < v1/devices/me/rpc/response/8 {"maxPayloadSize":65536,"maxInflightMessages":100,"rateLimits":{}}"#,
        ]
    );
    setup.platform.stop();
}

#[test]
fn a_gateway_registers_its_own_devices_only() {
    let mut setup = setup();
    setup.product("hub", json!({"gateway": true}));
    setup.product("thermometer", json!({}));
    let gateway = setup.device(json!({"id": "g", "product": "hub"}));
    let stranger = setup.device(json!({"id": "s", "product": "hub"}));
    let connect = json!({"device": "t1", "type": "thermometer"});
    setup.send(&gateway, "v1/gateway/connect", connect);
    let child = setup
        .registry
        .device("t1")
        .unwrap()
        .expect("it was registered");
    assert_eq!(child.product.id().as_str(), "thermometer");
    assert!(setup.states.is_online(child.no));
    let telemetry = json!({"t1": [{"a": 1}], "t2": [{"ts": now_ms(), "values": {"b": 2}}]});
    setup.send(&gateway, "v1/gateway/telemetry", telemetry.clone());
    let second = setup
        .registry
        .device("t2")
        .unwrap()
        .expect("it was registered");
    assert_eq!(setup.latest(child.no), ["a=Int(1)"]);
    assert_eq!(setup.latest(second.no), ["b=Int(2)"]);
    setup.send(&stranger, "v1/gateway/telemetry", json!({"t1": [{"c": 1}]}));
    assert_eq!(
        setup.latest(child.no),
        ["a=Int(1)"],
        "it is behind another gateway"
    );
    setup.send(&gateway, "v1/gateway/attributes", json!({"t1": {"x": 1}}));
    let request = json!({"id": 3, "device": "t1", "client": true, "key": "x"});
    setup.send(&gateway, "v1/gateway/attributes/request", request);
    assert_eq!(
        *setup.sent.0.lock().unwrap(),
        [r#"client-g < v1/gateway/attributes/response {"id":3,"device":"t1","value":1}"#]
    );
    setup.send(&gateway, "v1/gateway/disconnect", json!({"device": "t1"}));
    assert!(!setup.states.is_online(child.no));
    setup.platform.stop();
}

#[test]
fn devices_changed_or_removed_while_connecting_are_disconnected() {
    let setup = setup();
    setup.product("meter", json!({}));
    let put = |device: Value| {
        let device = serde_json::from_value(device).unwrap();
        let written = setup
            .registry
            .put(device, crate::WritePrecondition::Any)
            .unwrap();
        written.device
    };
    let with_token = |id: &str, token: &str| {
        put(
            json!({"id": id, "product": "meter", "credentials": [{"type": "token", "token": token}]}),
        )
    };
    let same = with_token("same", "s1");
    let renamed = with_token("renamed", "r1");
    let changed = with_token("changed", "c1");
    let disabled = with_token("disabled", "d1");
    let removed = with_token("removed", "x1");
    for device in [&same, &renamed, &changed, &disabled, &removed] {
        setup.admit(device);
    }
    put(json!({"id": "renamed", "product": "meter", "name": "Other"}));
    with_token("changed", "c2");
    put(json!({"id": "disabled", "product": "meter", "enabled": false}));
    assert!(
        setup
            .registry
            .remove("removed", crate::WritePrecondition::Any)
            .unwrap()
    );
    for device in [&same, &renamed, &changed, &disabled, &removed] {
        assert!(setup.connect(device).is_some(), "{}", device.id);
    }
    setup.platform.wait_idle();
    assert_eq!(
        *setup.sent.0.lock().unwrap(),
        [
            "client-changed goes",
            "client-disabled goes",
            "client-removed goes"
        ]
    );
    setup.platform.stop();
}

#[test]
fn an_admission_is_valid_for_its_client_only() {
    let setup = setup();
    setup.product("meter", json!({}));
    let device = serde_json::from_value(json!({"id": "d", "product": "meter"})).unwrap();
    let device = setup
        .registry
        .put(device, crate::WritePrecondition::Any)
        .unwrap();
    let device = device.device;
    let directory = &setup.platform.inner.parts.directory;
    setup.admit(&device);
    assert!(
        setup.connect_as(&device, None).is_none(),
        "it shows nothing"
    );
    assert!(setup.connect(&device).is_none(), "it was taken");
    setup.admit(&device);
    directory.remove_admission(None, "client-d");
    assert!(
        setup.connect(&device).is_none(),
        "another came in its place"
    );
    setup.admit(&device);
    assert!(setup.connect(&device).is_some());
    setup.platform.stop();
}

/// The connections that end when the first of two devices, or its product, is changed.
fn ended(change: impl FnOnce(&Setup)) -> Vec<String> {
    let setup = setup();
    setup.product("meter", json!({}));
    let devices = [
        json!({"id": "d", "product": "meter",
            "credentials": [{"type": "token", "token": "T1"}, {"type": "password", "password": "pw"}]}),
        json!({"id": "e", "product": "meter"}),
    ];
    for device in devices {
        setup.device(device);
    }
    let (platform, ended) = (setup.platform.clone(), Arc::<Mutex<Vec<String>>>::default());
    let sent = ended.clone();
    setup.registry.add_device_observer(Box::new(move |change| {
        let ids = platform
            .connections_to_close(change)
            .into_iter()
            .map(String::from);
        sent.lock().unwrap().extend(ids);
    }));
    change(&setup);
    let product = ProductId::new("meter").unwrap();
    let ids = setup.platform.connections_to_close_for_product(&product);
    let mut ended = ended.lock().unwrap().clone();
    ended.extend(ids.into_iter().map(String::from));
    ended.sort();
    setup.platform.stop();
    ended
}

#[test]
fn connections_end_when_their_device_or_credential_is_gone() {
    let put = |setup: &Setup, mut fields: Value| {
        fields["id"] = "d".into();
        fields["product"] = "meter".into();
        let device = serde_json::from_value(fields).unwrap();
        setup
            .registry
            .put(device, crate::WritePrecondition::Any)
            .unwrap();
    };
    let token = json!({"type": "token", "token": "T1"});
    let none: [&str; 0] = [];
    assert_eq!(ended(|setup| put(setup, json!({"name": "other"}))), none);
    assert_eq!(
        ended(|setup| put(setup, json!({"credentials": [token]}))),
        none
    );
    let other = json!({"type": "token", "token": "T2"});
    for fields in [
        json!({"credentials": [other]}),
        json!({"credentials": []}),
        json!({"enabled": false}),
    ] {
        assert_eq!(
            ended(|setup| put(setup, fields.clone())),
            ["client-d"],
            "{fields}"
        );
    }
    let remove = |setup: &Setup| {
        setup
            .registry
            .remove("d", crate::WritePrecondition::Any)
            .unwrap();
    };
    assert_eq!(ended(remove), ["client-d"]);
    let both = ["client-d", "client-e"];
    for (product, expected) in [
        (json!({"enabled": false}), &both[..]),
        (json!({"credentials": ["password"]}), &both[..]),
        (json!({"credentials": ["token"]}), &[][..]),
        (json!({"name": "Meters"}), &[][..]),
    ] {
        let change = |setup: &Setup| setup.product("meter", product.clone());
        assert_eq!(ended(change), expected, "{product}");
    }
}

#[test]
fn devices_count_as_active_when_they_report() {
    let mut setup = setup();
    setup.product("meter", json!({"gateway": true, "mode": "sync"}));
    let gateway = setup.device(json!({"id": "gw", "product": "meter"}));
    let child = json!({"id": "c", "product": "meter", "parent": "gw"});
    let child = serde_json::from_value(child).unwrap();
    let child = setup
        .registry
        .put(child, crate::WritePrecondition::Any)
        .unwrap();
    let no = child.device.no;
    let state = |setup: &Setup, no| setup.states.presence(no).unwrap();
    assert_eq!(state(&setup, no).state, crate::DeviceState::NotActive);
    let telemetry = json!({"c": [{"ts": now_ms(), "values": {"t": 1}}]});
    setup.send(&gateway, "v1/gateway/telemetry", telemetry);
    assert_eq!(state(&setup, no).state, crate::DeviceState::Online);
    let before_ms = state(&setup, gateway.no).last_seen_ms.unwrap();
    setup.platform.record_activity(&gateway, before_ms + 60_000);
    let after_ms = state(&setup, gateway.no).last_seen_ms.unwrap();
    assert_eq!(after_ms, before_ms + 60_000);
    setup.states.flush().unwrap();
    let after_a_start = DeviceStates::new(setup.registry.clone());
    assert_eq!(
        after_a_start.presence(gateway.no).unwrap().last_seen_ms,
        Some(after_ms)
    );
    // Messages of a disabled device are ignored.
    let mut disabled = setup.registry.to_new_device(&child.device).unwrap();
    disabled.enabled = false;
    setup
        .registry
        .put(disabled, crate::WritePrecondition::Any)
        .unwrap();
    let telemetry = json!({"c": [{"ts": now_ms() + 1, "values": {"t": 2}}]});
    setup.send(&gateway, "v1/gateway/telemetry", telemetry);
    assert_eq!(setup.latest(no), ["t=Int(1)"]);
    setup.platform.stop();
}

#[test]
fn devices_behind_a_gateway_keep_their_names_and_kinds() {
    let mut setup = setup();
    setup.product("hub", json!({"gateway": true, "mode": "sync"}));
    let gateway = setup.device(json!({"id": "gw", "product": "hub"}));
    let connect = "v1/gateway/connect";
    for (device, kind) in [
        ("Device A", "Thermo Meter"),
        ("b", "valve"),
        ("c", "third"),
        ("d", "default"),
    ] {
        setup.send(&gateway, connect, json!({"device": device, "type": kind}));
    }
    let id = id_for_name("Device A");
    let device = setup.registry.device(&id).unwrap().unwrap();
    assert_eq!(
        (device.name(), device.name_at_gateway()),
        ("Device A", "Device A")
    );
    assert_eq!(device.product.get().name(), "Thermo Meter");
    let product = |id: &str| {
        let device = setup.registry.device(id).unwrap().unwrap();
        device.product.id().to_string()
    };
    // Gateways may create two products at most.
    assert_eq!(["b", "c", "d"].map(product), ["valve", "hub", "hub"]);
    let no = device.no;
    // The node does the same when it learns of the new product.
    setup.platform.refresh_product(device.product.id().as_str());
    setup.send(
        &gateway,
        "v1/gateway/telemetry",
        json!({"Device A": [{"t": 1}]}),
    );
    assert_eq!(setup.latest(no), ["t=Int(1)"]);
    let request = json!({"id": 1, "device": "Device A", "client": false, "key": "rate"});
    setup.send(&gateway, "v1/gateway/attributes/request", request);
    let sent = setup.sent.0.lock().unwrap().join("\n");
    assert!(sent.contains("\"device\":\"Device A\""), "{sent}");
    setup.platform.stop();
}

#[test]
fn a_device_of_jetlinks_asks_for_the_time_and_what_is_ignored_is_counted() {
    let mut setup = setup();
    setup.product("meter", json!({"mode": "sync"}));
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let before_ms = now_ms();
    setup.send(&device, "/meter/d/time-sync", json!({"messageId": "7"}));
    let sent = setup.sent.0.lock().unwrap().pop().unwrap();
    let (topic, payload) = sent.split_once(" {").unwrap();
    assert_eq!(topic, "client-d < /meter/d/time-sync/reply");
    let reply: Value = serde_json::from_str(&format!("{{{payload}")).unwrap();
    assert_eq!(reply["messageId"], "7");
    assert!(reply["timestamp"].as_u64().unwrap() >= before_ms);
    setup.send(&device, "/meter/d/log", json!({"log": "x"}));
    setup.send(&device, "/meter/d/direct", json!("anything"));
    let report = json!({"properties": {"t": 1}, "propertySourceTimes": {"t": 5}});
    setup.send(&device, "/meter/d/properties/report", report);
    assert_eq!(setup.latest(device.no), ["t=Int(1)"]);
    assert_eq!(setup.pipeline.snapshot().ignored, 3);
    let subjects = setup.pipeline.rejections_of(device.no).last;
    let subjects: Vec<_> = subjects.iter().map(|last| &*last.subject).collect();
    assert_eq!(subjects, ["log", "direct"]);
    setup.platform.stop();
}

#[test]
fn numeric_texts_become_numbers_if_the_product_permits() {
    let mut setup = setup();
    setup.product("meter", json!({"mode": "sync", "parse_numeric_text": true}));
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let payload =
        json!({"a": "21.5", "b": "-7", "c": "007", "d": "1e3", "e": "x1", "f": "", "g": 5});
    setup.send(&device, "v1/devices/me/telemetry", payload);
    assert_eq!(
        setup.latest(device.no),
        [
            "a=Float(21.5)",
            "b=Int(-7)",
            "c=Text(\"007\")",
            "d=Float(1000.0)",
            "e=Text(\"x1\")",
            "f=Text(\"\")",
            "g=Int(5)",
        ]
    );
    setup.platform.stop();
}

#[test]
fn the_last_events_of_a_device_are_kept() {
    let mut setup = setup();
    setup.product("meter", json!({"mode": "sync"}));
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let other = setup.device(json!({"id": "e", "product": "meter"}));
    for n in 0..1005_i64 {
        let fire = json!({"timestamp": n + 1, "data": {"n": n}});
        let topic = if n % 2 == 0 { "fire" } else { "flood" };
        setup.send(&device, &format!("/meter/d/event/{topic}"), fire);
    }
    setup.send(&other, "tg/e/up/event/hello", json!("text"));
    let events = |no, query: crate::DeviceEventFilter| setup.registry.events(no, &query).unwrap();
    let all = crate::DeviceEventFilter {
        limit: 10_000,
        ..Default::default()
    };
    let stored = events(device.no, all.clone());
    assert_eq!(
        (stored.len(), stored[0].number, stored[0].ts_ms),
        (1000, 1005, 1005)
    );
    assert_eq!(stored[0].data, json!({"n": 1004}));
    let floods = crate::DeviceEventFilter {
        event: Some("flood".to_owned()),
        to_ms: Some(1000),
        limit: 2,
        ..Default::default()
    };
    let times: Vec<_> = events(device.no, floods.clone())
        .iter()
        .map(|e| e.ts_ms)
        .collect();
    assert_eq!(times, [998, 996]);
    let next = crate::DeviceEventFilter {
        before: Some(996),
        ..floods
    };
    assert_eq!(events(device.no, next)[0].ts_ms, 994);
    assert_eq!(events(other.no, all.clone())[0].data, json!("text"));
    setup
        .registry
        .remove("d", crate::WritePrecondition::Any)
        .unwrap();
    assert!(events(device.no, all).is_empty());
    setup.platform.stop();
}

fn endpoint_device<'a>(endpoint: &'a str, device: &'a str) -> EndpointDevice<'a> {
    EndpointDevice {
        endpoint,
        namespace: "default",
        product: None,
        device,
        name: None,
    }
}

#[test]
fn devices_of_endpoints_are_registered_connected_and_stored() {
    let setup = setup();
    let platform = &setup.platform;
    let device = platform
        .endpoint_device(&endpoint_device("room", "pump-1"))
        .unwrap();
    setup.platform.refresh_product("relay-room");
    assert_eq!(
        (device.id.as_str(), device.name(), device.tag("endpoint")),
        ("room:pump-1", "Device pump", Some("room"))
    );
    let other = platform
        .endpoint_device(&EndpointDevice {
            name: Some("Pump"),
            ..endpoint_device("hall", "pump-1")
        })
        .unwrap();
    assert_eq!((other.id.as_str(), other.name()), ("hall:pump-1", "Pump"));
    let again = platform
        .endpoint_device(&EndpointDevice {
            name: Some("Renamed"),
            ..endpoint_device("hall", "pump-1")
        })
        .unwrap();
    assert_eq!(again.name(), "Pump", "the name counts the first time only");

    assert!(platform.attach_endpoint_client(&device, "$relay/room/a", "pump-1"));
    assert!(platform.attach_endpoint_client(&device, "$relay/room/b", "pump-1"));
    assert!(setup.states.is_online(device.no));
    assert_eq!(
        platform.client_of(device.no).as_deref(),
        Some("$relay/room/b")
    );
    assert_eq!(platform.alias_of(device.no).as_deref(), Some("pump-1"));

    let mut ingress = platform.ingress().unwrap();
    let topic = crate::protocol::relay_data_topic("room");
    let data = br#"{"type":"data","data":{"t":21.5,"on":true}}"#;
    let outcome = ingress.pass(&device, &topic, data, now_ms());
    assert_eq!(outcome, SubmitOutcome::Accepted);
    setup.pipeline.flush();
    assert_eq!(setup.latest(device.no), ["on=Bool(true)", "t=Float(21.5)"]);

    platform.detach_endpoint_client(&device, "$relay/room/b", "normal");
    assert!(setup.states.is_online(device.no));
    platform.detach_endpoint_client(&device, "$relay/room/a", "normal");
    assert!(!setup.states.is_online(device.no));
    platform.detach_endpoint_client(&device, "$relay/room/a", "normal");
    assert!(!setup.states.is_online(device.no));
    platform.stop();
}

#[test]
fn endpoint_devices_need_an_admitting_product_and_no_gateway() {
    let setup = setup();
    let platform = &setup.platform;
    let of_product = |product| {
        platform.endpoint_device(&EndpointDevice {
            product: Some(product),
            ..endpoint_device("room", "d")
        })
    };
    assert!(matches!(
        of_product("meter"),
        Err(EndpointDeviceError::NoProduct(_))
    ));
    setup.product("other", json!({"namespace": "other"}));
    assert!(matches!(
        of_product("other"),
        Err(EndpointDeviceError::OtherNamespace)
    ));
    setup.product("meter", json!({"gateway": true}));
    let device = of_product("meter").unwrap();
    let from_other = platform.endpoint_device(&EndpointDevice {
        namespace: "other",
        ..endpoint_device("room", "d")
    });
    assert!(matches!(
        from_other,
        Err(EndpointDeviceError::OtherNamespace)
    ));
    assert_eq!(device.product.id().as_str(), "meter");
    assert!(platform.attach_endpoint_client(&device, "$relay/room/a", "d"));
    let id = ProductId::new("meter").unwrap();
    assert!(platform.connections_to_close_for_product(&id).is_empty());

    let property = json!({"id": "t", "name": "t", "valueType": {"type": "double", "unit": "K"}});
    let model = json!({"properties": [property]});
    setup.product("meter", json!({"model": model, "gateway": true}));
    let product = device.product.get();
    let units = ["t", "n"].map(|key| product.unit_of(key));
    assert_eq!(units, [Some("K"), None]);
    drop(product);
    setup.product("meter", json!({"protocols": ["native"], "gateway": true}));
    assert_eq!(
        platform.connections_to_close_for_product(&id),
        [Box::<str>::from("$relay/room/a")]
    );
    assert!(matches!(
        of_product("meter"),
        Err(EndpointDeviceError::ProtocolNotAllowed)
    ));
    assert!(!platform.attach_endpoint_client(&device, "$relay/room/b", "d"));
    setup.product("meter", json!({"enabled": false}));
    assert!(matches!(
        of_product("meter"),
        Err(EndpointDeviceError::Disabled)
    ));

    setup.product("meter", json!({"gateway": true}));
    setup.device(json!({"id": "gateway", "product": "meter"}));
    let child = json!({"id": "room:child", "product": "meter", "parent": "gateway"});
    let child = serde_json::from_value(child).unwrap();
    setup
        .registry
        .put(child, crate::WritePrecondition::Any)
        .unwrap();
    assert!(matches!(
        platform.endpoint_device(&endpoint_device("room", "child")),
        Err(EndpointDeviceError::BehindGateway)
    ));
    platform.stop();
}
