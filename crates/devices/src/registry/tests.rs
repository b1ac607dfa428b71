use ::namespaces::NamespaceSelection;
use serde_json::{Value, json};
use store::{Store, StoreConfig};

use super::*;
use crate::{
    DeviceAuthenticator, DeviceId, DeviceLookup, DeviceState, DeviceStates, IssuedCredential,
    NewCredential, PresentedCredentials, ProvisionRequest,
};

struct Fixture {
    store: Store,
    registry: Registry,
    dir: tempfile::TempDir,
}

fn open(dir: &tempfile::TempDir, config: RegistryConfig) -> (Store, Registry) {
    let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
    let registry = Registry::open(store.objects(), config).unwrap();
    (store, registry)
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let (store, registry) = open(&dir, RegistryConfig::default());
    let fixture = Fixture {
        store,
        registry,
        dir,
    };
    fixture.product("meter", json!({}));
    fixture
}

impl Fixture {
    fn product(&self, id: &str, value: Value) {
        let objects = self.store.objects();
        objects
            .put(crate::PRODUCT_KIND, id, value, store::ExpectedVersion::Any)
            .unwrap();
    }

    fn put(&self, device: Value) -> Result<DeviceWriteOutcome, RegistryError> {
        let device = serde_json::from_value(device).unwrap();
        self.registry.put(device, WritePrecondition::Any)
    }

    /// Opens the store again, as after a restart.
    fn reopened(self, config: RegistryConfig) -> Fixture {
        let Self {
            store,
            registry,
            dir,
        } = self;
        store.close();
        drop((store, registry));
        let (store, registry) = open(&dir, config);
        Self {
            store,
            registry,
            dir,
        }
    }
}

fn ids(page: &DeviceListPage) -> Vec<&str> {
    page.devices
        .iter()
        .map(|device| device.id.as_str())
        .collect()
}

fn shown<'a>(
    client_id: &'a str,
    username: &'a str,
    password: Option<&'a str>,
) -> PresentedCredentials<'a> {
    PresentedCredentials {
        client_id,
        username: Some(username),
        password: password.map(str::as_bytes),
        common_name: None,
        now_ms: 1_700_000_000_000,
    }
}

#[test]
fn a_device_is_found_by_all_its_names_in_memory_and_on_disk() {
    let fixture = fixture();
    let written = fixture
        .put(json!({"id": "d1", "product": "meter", "name": "Kitchen", "tags": {"floor": "2"}, "credentials": [
            {"type": "token", "token": "T1"}, {"type": "password", "username": "u1"},
            {"type": "certificate", "common_name": "cn1"}, {"type": "secure"}]}))
        .unwrap();
    assert!(written.was_created);
    assert!(matches!(
        &written.issued[..],
        [
            IssuedCredential::Password { .. },
            IssuedCredential::Secure { .. }
        ]
    ));
    let fixture = fixture.reopened(RegistryConfig::default());
    let registry = &fixture.registry;
    assert!(registry.cached("d1").is_none() && registry.cached_by_token("T1").is_none());
    let device = registry.device("d1").unwrap().unwrap();
    assert_eq!(
        (device.name(), device.tag("floor"), device.revision),
        ("Kitchen", Some("2"), 1)
    );
    assert!(registry.cached("d1").is_some() && registry.cached_by_token("T1").is_some());
    assert_eq!(registry.by_token("T1").unwrap().unwrap().no, device.no);
    assert!(registry.by_token("T2").unwrap().is_none());
    assert!(registry.device("d2").unwrap().is_none());
    assert_eq!(
        (registry.count(), registry.count_of("meter").unwrap()),
        (1, 1)
    );
}

#[test]
fn names_are_unique_and_reusable_and_numbers_are_not_reused() {
    let fixture = fixture();
    let token = |id: &str, token: &str| {
        fixture.put(json!({"id": id, "product": "meter", "credentials": [{"type": "token", "token": token}]}))
    };
    let first = token("d1", "T").unwrap().device;
    assert!(matches!(
        token("d2", "T"),
        Err(RegistryError::NameTaken { field: "token", .. })
    ));
    assert!(fixture.registry.device("d2").unwrap().is_none());
    let again = token("d1", "U").unwrap();
    assert_eq!(
        (again.device.no, again.device.revision, again.was_created),
        (first.no, 2, false)
    );
    assert!(fixture.registry.by_token("T").unwrap().is_none());
    let second = token("d2", "T").unwrap().device;
    assert!(
        fixture
            .registry
            .remove("d2", WritePrecondition::Revision(7))
            .is_err()
    );
    assert!(
        fixture
            .registry
            .remove("d2", WritePrecondition::Revision(1))
            .unwrap()
    );
    assert!(
        !fixture
            .registry
            .remove("d2", WritePrecondition::Any)
            .unwrap()
    );
    assert!(fixture.registry.cached_by_no(second.no).is_none());
    let fixture = fixture.reopened(RegistryConfig::default());
    let third = fixture
        .put(json!({"id": "d2", "product": "meter"}))
        .unwrap()
        .device;
    assert!(third.no > second.no);
    assert_eq!(fixture.registry.count(), 2);
    let rejected = fixture
        .put(json!({"id": "a/b", "product": "meter"}))
        .unwrap_err();
    assert!(rejected.to_string().starts_with("id: "), "{rejected}");
    let rejected = fixture
        .put(json!({"id": "a", "product": "none"}))
        .unwrap_err();
    assert_eq!(rejected.to_string(), "there is no product \"none\"");
}

#[test]
fn lists_filter_by_common_properties() {
    let fixture = fixture();
    fixture.product("gate", json!({"gateway": true}));
    fixture.put(json!({"id": "g", "product": "gate"})).unwrap();
    for number in 0..25 {
        let mut device = json!({"id": format!("d{number:02}"), "product": "meter", "tags": {"odd": (number % 2).to_string()}});
        if number < 3 {
            device["parent"] = "g".into();
            device["group"] = "home".into();
        }
        fixture.put(device).unwrap();
    }
    let registry = &fixture.registry;
    let list = |filter: DeviceFilter<'_>, from: u32, limit: usize| {
        registry
            .list(&filter, DeviceNo(from), limit, &mut |_| true)
            .unwrap()
    };
    let page = list(
        DeviceFilter {
            product: Some("meter"),
            ..DeviceFilter::default()
        },
        0,
        20,
    );
    assert_eq!((page.devices.len(), ids(&page)[0]), (20, "d00"));
    let rest = list(
        DeviceFilter {
            product: Some("meter"),
            ..DeviceFilter::default()
        },
        page.next.unwrap().0,
        20,
    );
    assert_eq!((rest.devices.len(), rest.next), (5, None));
    assert_eq!(list(DeviceFilter::default(), 0, 100).devices.len(), 26);
    let odd = DeviceFilter {
        tag: Some(("odd", "1")),
        text: Some("D1"),
        ..DeviceFilter::default()
    };
    assert_eq!(ids(&list(odd, 0, 100)), ["d11", "d13", "d15", "d17", "d19"]);
    let home = DeviceFilter {
        group: Some("home"),
        ..DeviceFilter::default()
    };
    assert_eq!(ids(&list(home, 0, 100)), ["d00", "d01", "d02"]);
    let gateway = registry.device("g").unwrap().unwrap();
    assert_eq!(
        ids(&registry.children(gateway.no, 10).unwrap()),
        ["d00", "d01", "d02"]
    );
    assert!(
        registry
            .remove("g", WritePrecondition::Any)
            .unwrap_err()
            .to_string()
            .contains("has child devices")
    );
    let rejected = fixture.put(json!({"id": "x", "product": "meter", "parent": "d00"}));
    assert_eq!(
        rejected.unwrap_err().to_string(),
        "parent: \"d00\" is not a gateway"
    );
}

#[test]
fn a_small_cache_evicts_and_stays_correct() {
    let fixture = fixture().reopened(RegistryConfig {
        max_cached_devices: 16,
        ..RegistryConfig::default()
    });
    for number in 0..200 {
        let id = format!("d{number}");
        fixture.put(json!({"id": id, "product": "meter", "credentials": [{"type": "token", "token": format!("t{number}")}]})).unwrap();
    }
    for round in 0..2 {
        for number in 0..200 {
            let token = format!("t{number}");
            let device = fixture.registry.by_token(&token).unwrap().unwrap();
            assert_eq!(device.id.as_str(), format!("d{number}"), "round {round}");
            let hot = fixture
                .registry
                .cached_by_token(&token)
                .expect("it was just read");
            assert_eq!(hot.no, device.no);
        }
    }
    assert!(fixture.registry.cache_counts().0 <= 16);
}

#[test]
fn each_credential_type_admits_its_device() {
    let fixture = fixture();
    fixture.product(
        "jet",
        json!({"secure": {"secure_id": "shared", "secure_key": "shared-key"}}),
    );
    fixture
        .put(
            json!({"id": "d1", "product": "meter", "credentials": [{"type": "token", "token": "T1"},
        {"type": "password", "username": "u1", "password": "short"},
        {"type": "secure", "secure_id": "sid", "secure_key": "skey"},
        {"type": "jwt", "algorithm": "HS256", "key": "0123456789abcdef"},
        {"type": "certificate", "common_name": "cn1"}]}),
        )
        .unwrap();
    fixture.put(json!({"id": "d2", "product": "jet"})).unwrap();
    let long = fixture
        .put(json!({"id": "d3", "product": "meter", "credentials": [{"type": "password"}]}))
        .unwrap();
    let IssuedCredential::Password { password: made, .. } = &long.issued[0] else {
        panic!("a password")
    };
    let directory = DeviceAuthenticator::new(fixture.registry.clone()).unwrap();
    let cold = |shown: &PresentedCredentials<'_>| match directory.find_blocking(shown).unwrap() {
        DeviceLookup::Device(admission) => {
            let kind = admission.kind.expect("a credential");
            format!("{} by {kind}", admission.device.id)
        }
        other => format!("{other:?}"),
    };
    assert!(matches!(
        directory.find_in_memory(&shown("x", "T1", None)),
        DeviceLookup::WouldBlock
    ));
    assert_eq!(cold(&shown("x", "T1", None)), "d1 by token");
    assert!(matches!(
        directory.find_in_memory(&shown("x", "T1", None)),
        DeviceLookup::Device(_)
    ));
    assert_eq!(cold(&shown("x", "T2", None)), "NotADevice");
    assert_eq!(cold(&shown("x", "u1", Some("wrong"))), "Rejected");
    assert!(matches!(
        directory.find_in_memory(&shown("x", "u1", Some("short"))),
        DeviceLookup::WouldBlock
    ));
    assert_eq!(cold(&shown("x", "u1", Some("short"))), "d1 by password");
    assert!(matches!(
        directory.find_in_memory(&shown("x", "u1", Some("short"))),
        DeviceLookup::Device(_)
    ));
    assert!(matches!(
        directory.find_in_memory(&shown("x", "u1", Some("wrong"))),
        DeviceLookup::WouldBlock
    ));
    assert_eq!(cold(&shown("x", "d3", Some(made))), "d3 by password");
    // md5 of "sid|1700000000000|skey" and of "shared|1700000000000|shared-key".
    assert_eq!(
        cold(&shown(
            "d1",
            "sid|1700000000000",
            Some(&md5("sid|1700000000000|skey"))
        )),
        "d1 by secure"
    );
    let late = md5("sid|1699999000000|skey");
    assert_eq!(
        cold(&shown("d1", "sid|1699999000000", Some(&late))),
        "Rejected"
    );
    assert_eq!(
        cold(&shown(
            "d2",
            "shared|1700000000000",
            Some(&md5("shared|1700000000000|shared-key"))
        )),
        "d2 by secure"
    );
    assert_eq!(
        cold(&shown("d2", "shared|1700000000000", Some(&md5("other")))),
        "Rejected"
    );
    let by_certificate = PresentedCredentials {
        username: None,
        common_name: Some("cn1"),
        ..shown("x", "", None)
    };
    assert_eq!(cold(&by_certificate), "d1 by certificate");
    let token = |exp: u64, sub: &str| jwt(&json!({"exp": exp, "sub": sub}), b"0123456789abcdef");
    assert_eq!(
        cold(&shown("d1", "jwt", Some(&token(1_700_000_100, "d1")))),
        "d1 by jwt"
    );
    assert_eq!(
        cold(&shown("d1", "jwt", Some(&token(1_600_000_000, "d1")))),
        "Rejected"
    );
    assert_eq!(
        cold(&shown("d1", "jwt", Some(&token(1_700_000_100, "d2")))),
        "Rejected"
    );
    fixture
        .put(json!({"id": "d1", "product": "meter", "enabled": false}))
        .unwrap();
    assert_eq!(cold(&shown("x", "T1", None)), "Rejected");
    fixture.product("meter", json!({"credentials": ["password"]}));
    assert_eq!(cold(&shown("x", "d3", Some(made))), "d3 by password");
    assert_eq!(cold(&by_certificate), "Rejected");
}

fn md5(text: &str) -> String {
    use md5::Digest as _;
    let digest: [u8; 16] = md5::Md5::digest(text).into();
    data_encoding::HEXLOWER.encode(&digest)
}

fn jwt(claims: &Value, key: &[u8]) -> String {
    let encode = |bytes: &[u8]| {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let number = chunk
                .iter()
                .fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            for at in 0..=chunk.len() {
                text.push(char::from(LETTERS[(number >> (18 - 6 * at)) as usize & 63]));
            }
        }
        text
    };
    let signed = format!(
        "{}.{}",
        encode(b"{\"alg\":\"HS256\"}"),
        encode(claims.to_string().as_bytes())
    );
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
    let signature = ring::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", encode(signature.as_ref()))
}

#[test]
fn a_device_may_use_its_own_topics_and_no_others() {
    let fixture = fixture();
    fixture.product(
        "gate",
        json!({"gateway": true, "protocols": ["thingsboard"]}),
    );
    let device = fixture
        .put(json!({"id": "d1", "product": "meter"}))
        .unwrap()
        .device;
    let gate = fixture
        .put(json!({"id": "g1", "product": "gate"}))
        .unwrap()
        .device;
    for topic in [
        "v1/devices/me/telemetry",
        "v1/devices/me/attributes/request/1",
        "/meter/d1/properties/report",
        "/meter/d1/child/c/event/x",
        "tg/d1/up/telemetry",
    ] {
        assert!(device.may_publish(topic), "{topic}");
    }
    for topic in [
        "/meter/d2/properties/report",
        "/meter/d12/online",
        "/other/d1/online",
        "tg/d2/up/telemetry",
        "v1/gateway/telemetry",
        "plant/x",
        "tg/d1",
        "v1/devices/me/telemetry/x",
    ] {
        assert!(!device.may_publish(topic), "{topic}");
    }
    for filter in [
        "v1/devices/me/rpc/request/+",
        "v1/devices/me/attributes",
        "/meter/d1/#",
        "tg/d1/down/#",
    ] {
        assert!(device.may_subscribe(filter), "{filter}");
    }
    for filter in [
        "v1/devices/me/#",
        "v1/devices/me/telemetry",
        "/meter/+/properties/report",
        "#",
        "tg/+/down/#",
        "$share/a/tg/d1/#",
    ] {
        assert!(!device.may_subscribe(filter), "{filter}");
    }
    assert!(gate.may_publish("v1/gateway/telemetry") && gate.may_subscribe("v1/gateway/rpc"));
    assert!(!gate.may_publish("/gate/g1/online"));
}

#[test]
fn states_are_right_after_takeover_gateways_silence_and_restart() {
    let fixture = fixture();
    fixture.product("gate", json!({"gateway": true, "inactivity_timeout_s": 10}));
    let gate = fixture
        .put(json!({"id": "g", "product": "gate"}))
        .unwrap()
        .device;
    let child = fixture
        .put(json!({"id": "c", "product": "meter", "parent": "g"}))
        .unwrap()
        .device;
    let quiet = fixture
        .put(json!({"id": "q", "product": "meter"}))
        .unwrap()
        .device;
    let states = DeviceStates::new(fixture.registry.clone());
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let recorder = recorded.clone();
    states.add_observer(Box::new(move |change| {
        let word = if change.is_online {
            "online"
        } else {
            change.reason
        };
        recorder
            .lock()
            .unwrap()
            .push(format!("{} {word}", change.device.id));
    }));
    let take = || std::mem::take(&mut *recorded.lock().unwrap());
    let state = |states: &DeviceStates, device: &Device| states.presence(device.no).unwrap().state;
    assert_eq!(state(&states, &gate), DeviceState::NotActive);
    states.connect(&gate, 1_000);
    states.connect_child(&child, gate.no, 1_000);
    assert_eq!(
        (
            state(&states, &gate),
            state(&states, &child),
            states.online_count()
        ),
        (DeviceState::Online, DeviceState::Online, 2)
    );
    // Taken over, with either order of the calls.
    states.connect(&gate, 2_000);
    states.disconnect(&gate, "taken_over", 2_000);
    states.disconnect(&gate, "taken_over", 3_000);
    states.connect(&gate, 3_000);
    states.expire_inactive(60_000);
    assert_eq!(take(), ["g online", "c online"]);
    states.disconnect(&gate, "keep_alive_timeout", 61_000);
    assert_eq!(take(), ["g keep_alive_timeout", "c gateway"]);
    // Activity over HTTP.
    states.mark_active(&gate, 70_000);
    states.expire_inactive(75_000);
    assert!(states.is_online(gate.no));
    states.expire_inactive(80_000);
    assert_eq!(take(), ["g online", "g inactive"]);
    // A takeover that did not complete.
    states.connect(&gate, 90_000);
    states.disconnect(&gate, "taken_over", 91_000);
    states.expire_inactive(96_000);
    assert_eq!(take(), ["g online", "g inactive"]);
    states.connect(&gate, 100_000);
    assert_eq!(states.flush().unwrap(), 2);
    assert_eq!(states.flush().unwrap(), 0);
    drop(states);
    let fixture = fixture.reopened(RegistryConfig::default());
    let states = DeviceStates::new(fixture.registry.clone());
    assert_eq!(state(&states, &gate), DeviceState::Offline);
    let presence = states.presence(gate.no).unwrap();
    assert_eq!(
        (presence.activated_ms, presence.last_seen_ms),
        (Some(100_000), Some(100_000))
    );
    assert_eq!(state(&states, &quiet), DeviceState::NotActive);
    assert_eq!(states.online_count(), 0);
}

#[test]
fn attributes_are_observed_and_removed_with_their_device() {
    let fixture = fixture();
    let device = fixture
        .put(json!({"id": "d", "product": "meter"}))
        .unwrap()
        .device;
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let recorder = recorded.clone();
    fixture
        .registry
        .add_attribute_observer(Box::new(move |change| {
            recorder.lock().unwrap().push(format!(
                "{:?} {:?} {:?}",
                change.scope, change.changed, change.removed
            ));
        }));
    let registry = &fixture.registry;
    let set = |scope, values: Vec<(&str, Value)>| {
        let values = values
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        registry.set_attributes(&device, scope, values)
    };
    set(
        AttributeScope::Shared,
        vec![("b", json!(1)), ("a", json!({"x": true}))],
    )
    .unwrap();
    set(AttributeScope::Server, vec![("a", json!("s"))]).unwrap();
    set(AttributeScope::Shared, vec![("b", Value::Null)]).unwrap();
    assert!(set(AttributeScope::Shared, vec![("", json!(1))]).is_err());
    let keys: Vec<_> = registry
        .attributes(&device, AttributeScope::Shared)
        .unwrap()
        .into_iter()
        .map(|a| (a.key, a.value))
        .collect();
    assert_eq!(keys, [("a".to_owned(), json!({"x": true}))]);
    assert_eq!(
        registry
            .attribute(&device, AttributeScope::Server, "a")
            .unwrap()
            .unwrap()
            .value,
        json!("s")
    );
    assert_eq!(recorded.lock().unwrap().len(), 3);
    registry.remove("d", WritePrecondition::Any).unwrap();
    assert!(
        registry
            .attributes(&device, AttributeScope::Server)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn devices_register_themselves_and_are_claimed() {
    let fixture = fixture();
    fixture.product(
        "new",
        json!({"provisioning": {"mode": "allow_new", "key": "key-new-1", "secret": "secret-1"}}),
    );
    fixture.product("old", json!({"provisioning": {"mode": "check_existing", "key": "key-old-1", "secret": "secret-2"}}));
    fixture
        .put(json!({"id": "known", "product": "old"}))
        .unwrap();
    let registry = &fixture.registry;
    let states = DeviceStates::new(registry.clone());
    let provision = |key, secret, device| {
        let wanted = ProvisionRequest {
            key,
            secret,
            device: Some(device),
            credential: None,
            is_gateway: false,
        };
        registry.provision(wanted, &|no| states.was_seen(no))
    };
    let made = provision("key-new-1", "secret-1", "n1").unwrap();
    let Some(IssuedCredential::Token { token }) = made.issued else {
        panic!("a token")
    };
    assert_eq!(
        registry.by_token(&token).unwrap().unwrap().id,
        DeviceId::new("n1").unwrap()
    );
    assert!(provision("key-new-1", "secret-1", "n1").is_err());
    assert!(provision("key-new-1", "secret-2", "n2").is_err());
    assert!(provision("key-old-1", "secret-2", "unknown").is_err());
    assert!(
        !provision("key-old-1", "secret-2", "known")
            .unwrap()
            .was_created
    );
    // The device has connected: its credentials must not be replaced, whether or not this was already stored.
    let known = registry.device("known").unwrap().unwrap();
    states.connect(&known, 1_000_000);
    assert!(provision("key-old-1", "secret-2", "known").is_err());
    states.flush().unwrap();
    let states_after_a_start = DeviceStates::new(registry.clone());
    assert!(states_after_a_start.was_seen(known.no).unwrap());
    assert!(registry.has_provisioning());
    let directory = DeviceAuthenticator::new(registry.clone()).unwrap();
    assert!(matches!(
        directory
            .find_blocking(&shown("x", "provision", None))
            .unwrap(),
        DeviceLookup::Provisioning
    ));

    let device = registry.device("n1").unwrap().unwrap();
    registry
        .offer_claim(device.no, "mine", 1_000, 10_000)
        .unwrap();
    assert!(registry.claim("n1", "mine", "home", 11_001).is_err());
    assert!(registry.claim("n1", "other", "home", 10_500).is_err());
    let claimed = registry.claim("n1", "mine", "home", 10_500).unwrap();
    assert_eq!(claimed.group.as_deref(), Some("home"));
    assert!(registry.claim("n1", "mine", "other", 10_500).is_err());
}

#[test]
fn rejected_lines_are_reported_and_do_not_stop_the_import() {
    let fixture = fixture();
    let lines = "{\"id\":\"a\",\"product\":\"meter\",\"credentials\":[{\"type\":\"token\",\"token\":\"ta\"}]}\n\
                 {\"id\":\"b\",\"product\":\"none\"}\n\n{\"id\":\"c\"\n\
                 {\"id\":\"d\",\"product\":\"meter\",\"credentials\":[{\"type\":\"token\",\"token\":\"ta\"}]}\n\
                 {\"id\":\"e\",\"product\":\"meter\",\"name\":\"E, \\\"the\\\" last\",\"tags\":{\"k\":\"v\"}}";
    let registry = &fixture.registry;
    let imported = registry
        .import(lines, ImportFormat::Jsonl, ImportMode::Replace, 101)
        .unwrap();
    assert_eq!(
        (imported.created, imported.rejected, imported.next_line),
        (2, 3, 107)
    );
    insta::assert_snapshot!(
        imported
            .rejections
            .iter()
            .map(|r| format!("{} {}: {}", r.line, r.field, r.reason))
            .collect::<Vec<_>>()
            .join("\n")
    );
    let again = registry
        .import(lines, ImportFormat::Jsonl, ImportMode::Replace, 101)
        .unwrap();
    assert_eq!((again.created, again.updated, registry.count()), (0, 2, 2));
    assert!(registry.by_token("ta").unwrap().is_some());
    // Export as CSV and import into another registry.
    let mut csv = export_header(ImportFormat::Csv).unwrap();
    for device in registry
        .list(&DeviceFilter::default(), DeviceNo(0), 10, &mut |_| true)
        .unwrap()
        .devices
    {
        registry
            .export_line(&device, ImportFormat::Csv, &mut csv)
            .unwrap();
    }
    let other = self::fixture();
    let imported = other
        .registry
        .import(&csv, ImportFormat::Csv, ImportMode::Create, 1)
        .unwrap();
    assert_eq!(
        (imported.created, imported.rejected),
        (2, 0),
        "{csv}{imported:?}"
    );
    let device = other.registry.device("e").unwrap().unwrap();
    assert_eq!(
        (device.name(), device.tag("k")),
        ("E, \"the\" last", Some("v"))
    );
    let rejected = other
        .registry
        .import("id,colour\n", ImportFormat::Csv, ImportMode::Create, 1);
    assert!(
        rejected
            .unwrap_err()
            .to_string()
            .contains("unknown column \"colour\"")
    );
    let csv = "id,product,token,enabled\nx,meter,tx,no\ny,meter\n";
    let imported = other
        .registry
        .import(csv, ImportFormat::Csv, ImportMode::Create, 1)
        .unwrap();
    assert_eq!((imported.created, imported.rejections[0].line), (1, 3));
    assert!(!other.registry.by_token("tx").unwrap().unwrap().is_enabled);
}

#[test]
fn each_rejected_line_is_reported_with_a_reason() {
    let fixture = fixture();
    let lines: String = (0..252)
        .map(|n| format!("{{\"id\":\"a b{n}\",\"product\":\"meter\"}}\n"))
        .collect();
    let imported = fixture
        .registry
        .import(&lines, ImportFormat::Jsonl, ImportMode::Create, 1)
        .unwrap();
    assert_eq!((imported.rejected, imported.rejections.len()), (252, 252));
    assert!(
        imported
            .rejections
            .iter()
            .all(|rejected| !rejected.reason.is_empty())
    );
}

#[test]
fn many_devices_survive_a_backup() {
    let fixture = fixture();
    let lines: String = (0..5_000).map(|n| format!("{{\"id\":\"d{n}\",\"product\":\"meter\",\"credentials\":[{{\"type\":\"token\",\"token\":\"t{n}\"}}]}}\n")).collect();
    fixture
        .registry
        .import(&lines, ImportFormat::Jsonl, ImportMode::Create, 1)
        .unwrap();
    let mut file = Vec::new();
    fixture.store.objects().export_to(&mut file).unwrap();
    let other = self::fixture();
    other
        .put(json!({"id": "other", "product": "meter"}))
        .unwrap();
    other.registry.device("other").unwrap();
    other
        .store
        .objects()
        .import_from(&mut &file[..], store::ImportMode::Replace)
        .unwrap();
    assert_eq!(other.registry.count(), 5_000);
    assert!(other.registry.device("other").unwrap().is_none());
    assert_eq!(
        other.registry.by_token("t77").unwrap().unwrap().id.as_str(),
        "d77"
    );
    let unused = NewCredential::Token { token: None };
    assert_eq!(format!("{unused:?}"), "token");
}

#[test]
fn an_observer_of_a_removal_may_change_devices() {
    let fixture = fixture();
    fixture.put(json!({"id": "a", "product": "meter"})).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let registry = fixture.registry.clone();
    fixture
        .registry
        .add_device_observer(Box::new(move |change| {
            if let DeviceChange::Removed(_) = change {
                // On a thread of its own, so that a lock held by the removal fails the test instead of blocking it.
                let registry = registry.clone();
                let writer = std::thread::spawn(move || {
                    let device = json!({"id": "b", "product": "meter"});
                    let device = serde_json::from_value(device).unwrap();
                    registry.put(device, WritePrecondition::Any).is_ok()
                });
                let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
                while !writer.is_finished() && std::time::Instant::now() < deadline {
                    std::thread::yield_now();
                }
                sender.send(writer.is_finished()).unwrap();
            }
        }));
    assert!(
        fixture
            .registry
            .remove("a", WritePrecondition::Any)
            .unwrap()
    );
    assert!(receiver.recv().unwrap(), "the removal held a lock");
    assert!(fixture.registry.device("b").unwrap().is_some());
}

#[test]
fn devices_stay_in_the_namespace_of_their_product_and_within_its_quota() {
    let fixture = fixture();
    let objects = fixture.store.objects();
    let put_namespace = |value: Value| {
        let put = objects.put(
            ::namespaces::KIND,
            "acme",
            value,
            store::ExpectedVersion::Any,
        );
        put.unwrap();
    };
    put_namespace(json!({"quotas": {"devices": 2}}));
    let namespaces = ::namespaces::Namespaces::open(objects, &[]).unwrap();
    fixture.registry.set_namespaces(namespaces);
    for product in ["pump", "valve"] {
        fixture.product(product, json!({"namespace": "acme", "gateway": true}));
    }
    let device = |id: &str, product: &str| json!({"id": id, "product": product});
    let rejected = |device: Value| fixture.put(device).unwrap_err().to_string();
    fixture.put(device("m1", "meter")).unwrap();
    fixture.put(device("p1", "pump")).unwrap();
    let imported = fixture.registry.import(
        "{\"id\": \"v1\", \"product\": \"valve\"}\n{\"id\": \"v2\", \"product\": \"valve\"}\n",
        ImportFormat::Jsonl,
        ImportMode::Create,
        1,
    );
    let imported = imported.unwrap();
    assert_eq!((imported.created, imported.rejected), (1, 1));
    let reason = &imported.rejections[0].reason;
    assert!(
        reason.contains("quota devices") && reason.contains("2 are in use"),
        "{reason}"
    );
    assert_eq!(fixture.registry.count_in_namespace("acme").unwrap(), 2);
    assert!(rejected(device("p2", "pump")).contains("quota devices"));
    // A change needs no further room, also to another product of the namespace.
    fixture.put(device("p1", "valve")).unwrap();
    fixture.put(device("m2", "meter")).unwrap();

    assert!(rejected(device("m1", "pump")).contains("namespace of a device cannot change"));
    let foreign = json!({"id": "m3", "product": "meter", "parent": "v1"});
    let absent = json!({"id": "m3", "product": "meter", "parent": "v9"});
    let (foreign, absent) = (rejected(foreign), rejected(absent));
    assert_eq!(
        foreign.replace("v1", "v9"),
        absent,
        "answered like an absent one"
    );

    let only = NamespaceSelection::All.within("acme");
    let filter = DeviceFilter {
        namespaces: only,
        ..DeviceFilter::default()
    };
    let page = fixture
        .registry
        .list(&filter, DeviceNo(0), 10, &mut |_| true)
        .unwrap();
    assert_eq!(ids(&page), ["p1", "v1"]);

    let is_admitted = |id: &str| fixture.registry.device(id).unwrap().unwrap().is_admitted();
    assert!(is_admitted("v1"));
    put_namespace(json!({"state": "disabled", "reason": "unpaid"}));
    assert!(!is_admitted("v1") && is_admitted("m1"));
    // A product that appears later, as in a restored backup, is disabled too.
    fixture.product("late", json!({"namespace": "acme"}));
    assert!(!fixture.registry.product("late").unwrap().admits_devices());
    put_namespace(json!({}));
    assert!(is_admitted("v1") && fixture.registry.product("late").unwrap().admits_devices());
}
