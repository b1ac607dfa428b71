//! Registries of several nodes that exchange their devices.

use cluster::{NodeName, RECORD_BUCKETS, SharedRecords as _};
use serde_json::{Value, json};
use store::{ExpectedVersion, Store, StoreConfig};

use super::*;
use crate::{
    DeviceAuthenticator, DeviceLookup, DeviceStates, IssuedCredential, PresentedCredentials,
};

struct TestNode {
    name: &'static str,
    store: Store,
    registry: Registry,
    directory: tempfile::TempDir,
}

impl TestNode {
    /// A node with the products `meter` and `gateway`.
    fn new(name: &'static str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let node = Self::open(name, directory);
        node.product("meter", json!({}));
        node.product("gateway", json!({"gateway": true}));
        node
    }

    fn open(name: &'static str, directory: tempfile::TempDir) -> Self {
        let (store, _) = Store::open(directory.path(), StoreConfig::default()).unwrap();
        let registry = Registry::open(store.objects(), RegistryConfig::default()).unwrap();
        Self {
            name,
            store,
            registry,
            directory,
        }
    }

    fn sharing(name: &'static str) -> Self {
        let node = Self::new(name);
        node.share();
        node
    }

    fn share(&self) {
        let name = NodeName::new(self.name).unwrap();
        self.registry.share(&name).unwrap();
    }

    /// As after a restart, outside a cluster until [`share`](Self::share).
    fn reopened(self) -> Self {
        let Self {
            name,
            store,
            registry,
            directory,
        } = self;
        store.close();
        drop((store, registry));
        Self::open(name, directory)
    }

    fn product(&self, id: &str, value: Value) {
        let objects = self.store.objects();
        objects
            .put(crate::PRODUCT_KIND, id, value, ExpectedVersion::Any)
            .unwrap();
    }

    fn put(&self, device: Value) -> DeviceWriteOutcome {
        let device = serde_json::from_value(device).unwrap();
        self.registry.put(device, WritePrecondition::Any).unwrap()
    }

    fn remove(&self, id: &str) {
        assert!(self.registry.remove(id, WritePrecondition::Any).unwrap());
    }

    fn device(&self, id: &str) -> Option<Arc<Device>> {
        self.registry.device(id).unwrap()
    }

    /// The id of the gateway in front of a device.
    fn gateway_of(&self, id: &str) -> Option<String> {
        let device = self.device(id).unwrap();
        self.registry.to_new_device(&device).unwrap().parent
    }

    /// The device that authenticates with these credentials.
    fn login(&self, username: &str, password: &str) -> Option<String> {
        let authenticator = DeviceAuthenticator::new(self.registry.clone()).unwrap();
        let shown = PresentedCredentials {
            client_id: "client",
            username: Some(username),
            password: (!password.is_empty()).then_some(password.as_bytes()),
            common_name: None,
            now_ms: 0,
        };
        let memory = authenticator.find_in_memory(&shown);
        let found = authenticator.find_blocking(&shown).unwrap();
        match found {
            DeviceLookup::Device(admission) => {
                let id = admission.device.id.to_string();
                if let DeviceLookup::Device(memory) = memory {
                    assert_eq!(memory.device.id.as_str(), id);
                }
                Some(id)
            }
            _ => None,
        }
    }

    /// Takes everything that the other node has in a later version, as when they meet.
    fn pull(&self, other: &TestNode) {
        self.pull_selected(other, |_| true);
    }

    fn pull_selected(&self, other: &TestNode, selects: impl Fn(&str) -> bool) {
        let context = other.registry.context();
        self.registry.merge_context(&context).unwrap();
        let mut ids = Vec::new();
        for bucket in 0..RECORD_BUCKETS as u16 {
            let mut each = |id: &str, _| ids.push(id.to_owned());
            other.registry.versions(bucket, &mut each).unwrap();
        }
        ids.retain(|id| selects(id));
        let read = |id: &String| other.registry.read(id).unwrap();
        let records = ids.iter().filter_map(read).collect();
        self.registry.apply(records).unwrap();
    }
}

fn exchange(one: &TestNode, other: &TestNode) {
    // What a node changes because of the other one's changes arrives too.
    for _ in 0..2 {
        one.pull(other);
        other.pull(one);
    }
    assert_eq!(one.registry.root(), other.registry.root());
    assert_eq!(one.registry.count(), other.registry.count());
}

fn token_of(written: &DeviceWriteOutcome) -> String {
    match written.issued.first() {
        Some(IssuedCredential::Token { token }) => token.clone(),
        other => panic!("expected a token, found {other:?}"),
    }
}

#[test]
fn a_device_authenticates_at_the_other_node() {
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    // Its number differs from that at the first node.
    b.put(json!({"id": "other", "product": "meter"}));
    let written = a.put(json!({
        "id": "m1", "product": "meter", "name": "Meter 1", "group": "g", "tags": {"floor": "2"},
    }));
    let token = token_of(&written);
    a.put(json!({"id": "m2", "product": "meter", "credentials": [
        {"type": "password", "username": "short", "password": "argon2"},
        {"type": "secure", "secure_id": "s", "secure_key": "k"},
    ]}));
    a.put(json!({"id": "m3", "product": "meter", "credentials": [
        {"type": "password", "username": "long", "password": "a password of more than 20 bytes"},
    ]}));
    exchange(&a, &b);
    assert_eq!(b.login(&token, "").as_deref(), Some("m1"));
    assert_eq!(b.login("short", "argon2").as_deref(), Some("m2"));
    assert_eq!(b.login("short", "wrong"), None);
    let long = "a password of more than 20 bytes";
    assert_eq!(b.login("long", long).as_deref(), Some("m3"));
    let (here, there) = (a.device("m1").unwrap(), b.device("m1").unwrap());
    assert_ne!(here.no, there.no);
    assert_eq!((&here.name, &here.group), (&there.name, &there.group));
    assert_eq!(
        (here.tag("floor"), here.revision),
        (there.tag("floor"), there.revision)
    );
    // A change at the second node, with the revision of the first one as precondition.
    let mut changed = b.registry.to_new_device(&there).unwrap();
    changed.enabled = false;
    let expected = WritePrecondition::Revision(here.revision);
    b.registry.put(changed, expected).unwrap();
    exchange(&a, &b);
    assert!(!a.device("m1").unwrap().is_enabled);
    b.remove("m1");
    exchange(&a, &b);
    assert!(a.device("m1").is_none());
    assert_eq!(a.login(&token, ""), None);
    // After a restart, nothing differs.
    let root = b.registry.root();
    let b = b.reopened();
    b.share();
    assert_eq!(b.registry.root(), root);
    assert_eq!(b.login("short", "argon2").as_deref(), Some("m2"));
    assert_eq!(b.login("long", long).as_deref(), Some("m3"));
}

#[test]
fn a_claim_is_valid_at_all_nodes_once() {
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    a.put(json!({"id": "m", "product": "meter"}));
    let no = a.device("m").unwrap().no;
    a.registry.offer_claim(no, "secret", 60_000, 1000).unwrap();
    exchange(&a, &b);
    assert!(b.registry.claim("m", "wrong", "home", 2000).is_err());
    b.registry.claim("m", "secret", "home", 2000).unwrap();
    exchange(&a, &b);
    assert_eq!(a.device("m").unwrap().group.as_deref(), Some("home"));
    assert!(a.registry.claim("m", "secret", "other", 2000).is_err());
}

#[test]
fn of_two_changes_all_nodes_keep_the_same() {
    let (a, b, c) = (
        TestNode::sharing("a"),
        TestNode::sharing("b"),
        TestNode::sharing("c"),
    );
    a.put(json!({"id": "m", "product": "meter"}));
    exchange(&a, &b);
    a.put(json!({"id": "m", "product": "meter", "name": "of a"}));
    b.put(json!({"id": "m", "product": "meter", "name": "of b"}));
    c.pull(&b);
    c.pull(&a);
    exchange(&a, &b);
    let name = a.device("m").unwrap().name.clone();
    assert_eq!(b.device("m").unwrap().name, name);
    assert_eq!(c.device("m").unwrap().name, name);
    // Later changes win over earlier removals, and the other way round.
    a.remove("m");
    b.pull(&a);
    b.put(json!({"id": "m", "product": "meter", "name": "again"}));
    exchange(&a, &b);
    assert_eq!(&*a.device("m").unwrap().name, "again");
}

#[test]
fn a_device_may_arrive_before_its_gateway() {
    let (a, b, c) = (
        TestNode::sharing("a"),
        TestNode::sharing("b"),
        TestNode::sharing("c"),
    );
    a.put(json!({"id": "g", "product": "gateway"}));
    a.put(json!({"id": "child", "product": "meter", "parent": "g"}));
    b.pull_selected(&a, |id| id == "child");
    assert_eq!(b.registry.count(), 1);
    assert!(b.device("g").is_none());
    assert_eq!(b.gateway_of("child"), None);
    // The third node gets it from the second one, which does not know the gateway.
    c.pull(&b);
    exchange(&a, &b);
    exchange(&a, &c);
    for node in [&b, &c] {
        assert_eq!(node.gateway_of("child").as_deref(), Some("g"));
        let gateway = node.device("g").unwrap().no;
        let children = node.registry.children(gateway, 10).unwrap();
        assert_eq!(children.devices.len(), 1);
    }
    // The gateway is created at a node that knows only its id.
    let d = TestNode::sharing("d");
    d.pull_selected(&a, |id| id == "child");
    d.put(json!({"id": "g", "product": "gateway", "name": "of d"}));
    assert_eq!(d.gateway_of("child").as_deref(), Some("g"));
    exchange(&a, &d);
    assert_eq!(&*a.device("g").unwrap().name, "of d");
}

#[test]
fn devices_lose_a_gateway_that_another_node_has_removed() {
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    a.put(json!({"id": "g", "product": "gateway"}));
    exchange(&a, &b);
    b.put(json!({"id": "child", "product": "meter", "parent": "g"}));
    a.remove("g");
    exchange(&a, &b);
    for node in [&a, &b] {
        assert!(node.device("g").is_none());
        assert_eq!(node.gateway_of("child"), None);
        assert_eq!(node.device("child").unwrap().parent, None);
    }
}

#[test]
fn a_device_waits_for_its_product() {
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    a.product("new", json!({}));
    let token = token_of(&a.put(json!({"id": "n", "product": "new"})));
    b.pull(&a);
    assert!(b.device("n").is_none());
    // Nothing is missing, and others get it.
    assert_eq!(b.registry.root(), a.registry.root());
    let c = TestNode::sharing("c");
    c.product("new", json!({}));
    c.pull(&b);
    assert_eq!(c.login(&token, "").as_deref(), Some("n"));
    let b = b.reopened();
    b.share();
    assert!(b.device("n").is_none());
    b.product("new", json!({}));
    assert_eq!(b.login(&token, "").as_deref(), Some("n"));
    exchange(&a, &b);
    // A later change replaces a record that waits.
    a.product("newer", json!({}));
    a.put(json!({"id": "n", "product": "newer"}));
    b.pull(&a);
    a.put(json!({"id": "n", "product": "meter", "name": "back"}));
    b.pull(&a);
    assert_eq!(&*b.device("n").unwrap().name, "back");
    b.product("newer", json!({}));
    assert_eq!(b.device("n").unwrap().product.id().as_str(), "meter");
    exchange(&a, &b);
}

#[test]
fn a_name_of_two_devices_belongs_to_the_one_that_was_created_first() {
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    let with_user = |id: &str, password: &str| {
        json!({"id": id, "product": "meter", "credentials": [
            {"type": "password", "username": "u", "password": password},
        ]})
    };
    a.put(with_user("first", "the password of the first"));
    std::thread::sleep(std::time::Duration::from_millis(2));
    b.put(with_user("second", "the password of the second"));
    // The second device is in memory.
    assert!(b.login("u", "the password of the second").is_some());
    exchange(&a, &b);
    for node in [&a, &b] {
        assert_eq!(
            node.login("u", "the password of the first").as_deref(),
            Some("first")
        );
        assert_eq!(node.login("u", "the password of the second"), None);
    }
    // Other changes and restarts do not change that.
    let mut second = a
        .registry
        .to_new_device(&a.device("second").unwrap())
        .unwrap();
    second.name = "changed".to_owned();
    a.registry.put(second, WritePrecondition::Any).unwrap();
    exchange(&a, &b);
    let b = b.reopened();
    b.share();
    assert!(b.device("second").is_some());
    for node in [&a, &b] {
        assert_eq!(
            node.login("u", "the password of the first").as_deref(),
            Some("first")
        );
        assert_eq!(node.login("u", "the password of the second"), None);
    }
    // When the first device gives it up, the second one gets it.
    a.remove("first");
    exchange(&a, &b);
    for node in [&a, &b] {
        assert_eq!(
            node.login("u", "the password of the second").as_deref(),
            Some("second")
        );
    }
    b.remove("second");
    exchange(&a, &b);
    for node in [&a, &b] {
        assert_eq!(node.login("u", "the password of the second"), None);
        node.put(with_user("third", "the password of the third"));
        node.remove("third");
    }
}

#[test]
fn changes_outside_the_cluster_are_shared_later() {
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    for id in ["changed", "removed", "same"] {
        a.put(json!({"id": id, "product": "meter"}));
    }
    exchange(&a, &b);
    let a = a.reopened();
    a.put(json!({"id": "changed", "product": "meter", "name": "new"}));
    a.put(json!({"id": "created", "product": "meter"}));
    a.remove("removed");
    a.share();
    exchange(&a, &b);
    assert_eq!(&*b.device("changed").unwrap().name, "new");
    assert!(b.device("created").is_some());
    assert!(b.device("removed").is_none());
    assert!(b.device("same").is_some());
    // A node with devices joins.
    let c = TestNode::new("c");
    let token = token_of(&c.put(json!({"id": "of-c", "product": "meter"})));
    c.share();
    exchange(&a, &c);
    assert_eq!(a.login(&token, "").as_deref(), Some("of-c"));
    assert!(c.device("same").is_some());
}

#[test]
fn a_device_that_was_active_anywhere_cannot_register_again() {
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    let secret = "0123456789abcdef";
    for node in [&a, &b] {
        let provisioning =
            json!({"mode": "check_existing", "key": "product-key", "secret": secret});
        node.product("p", json!({"provisioning": provisioning}));
    }
    a.put(json!({"id": "d", "product": "p"}));
    exchange(&a, &b);
    let register = |node: &TestNode| {
        let request = ProvisionRequest {
            key: "product-key",
            secret,
            device: Some("d"),
            credential: None,
            is_gateway: false,
        };
        node.registry.provision(request, &|_| Ok(false))
    };
    register(&b).unwrap();
    exchange(&a, &b);
    let states = DeviceStates::new(a.registry.clone());
    states.connect(&a.device("d").unwrap(), wall_clock::now_ms());
    states.flush().unwrap();
    exchange(&a, &b);
    assert!(register(&b).is_err());
}

#[test]
fn observers_learn_of_changes_at_other_nodes() {
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    b.registry.add_device_observer(Box::new(move |change| {
        let text = match change {
            DeviceChange::Created(device) => format!("created {}", device.id),
            DeviceChange::Updated(device) => format!("updated {}", device.id),
            DeviceChange::Removed(device) => format!("removed {}", device.id),
        };
        noted.lock().unwrap().push(text);
    }));
    a.put(json!({"id": "d", "product": "meter"}));
    b.pull(&a);
    a.put(json!({"id": "d", "product": "meter", "name": "n"}));
    b.pull(&a);
    b.pull(&a);
    a.remove("d");
    b.pull(&a);
    assert_eq!(
        *seen.lock().unwrap(),
        ["created d", "updated d", "removed d"]
    );
}
