//! Registries of several nodes that exchange their devices and attributes.

use cluster::{NodeName, RECORD_BUCKETS, SharedRecords};
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
    attributes: OnceLock<SharedAttributes>,
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
            attributes: OnceLock::new(),
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
        let changes = self.registry.share(&name).unwrap();
        assert!(self.attributes.set(changes.shared_attributes).is_ok());
    }

    fn attributes(&self) -> &SharedAttributes {
        self.attributes.get().expect("the node is in a cluster")
    }

    /// As after a restart, outside a cluster until [`share`](Self::share).
    fn reopened(self) -> Self {
        let Self {
            name,
            store,
            registry,
            attributes,
            directory,
        } = self;
        store.close();
        drop((store, registry, attributes));
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
        self.pull_attributes(other);
    }

    /// Devices only.
    fn pull_selected(&self, other: &TestNode, selects: impl Fn(&str) -> bool) {
        pull_records(&self.registry, &other.registry, selects);
    }

    fn pull_attributes(&self, other: &TestNode) {
        pull_records(self.attributes(), other.attributes(), |_| true);
    }

    fn set(&self, device: &str, scope: AttributeScope, values: Value) {
        let device = self.device(device).unwrap();
        let Value::Object(values) = values else {
            panic!("expected an object, found {values}");
        };
        let values = values.into_iter().collect();
        self.registry
            .set_attributes(&device, scope, values)
            .unwrap();
    }

    fn values(&self, device: &str, scope: AttributeScope) -> Value {
        let device = self.device(device).unwrap();
        let found = self.registry.attributes(&device, scope).unwrap();
        let values = found.into_iter().map(|found| (found.key, found.value));
        Value::Object(values.collect())
    }
}

fn pull_records(
    here: &dyn SharedRecords,
    there: &dyn SharedRecords,
    selects: impl Fn(&str) -> bool,
) {
    here.merge_context(&there.context()).unwrap();
    let mut ids = Vec::new();
    for bucket in 0..RECORD_BUCKETS as u16 {
        let mut each = |id: &str, _| ids.push(id.to_owned());
        there.versions(bucket, &mut each).unwrap();
    }
    ids.retain(|id| selects(id));
    let read = |id: &String| there.read(id).unwrap();
    here.apply(ids.iter().filter_map(read).collect()).unwrap();
}

fn exchange(one: &TestNode, other: &TestNode) {
    // What a node changes because of the other one's changes arrives too.
    for _ in 0..2 {
        one.pull(other);
        other.pull(one);
    }
    assert_eq!(one.registry.root(), other.registry.root());
    assert_eq!(one.registry.count(), other.registry.count());
    assert_eq!(one.attributes().root(), other.attributes().root());
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

#[test]
fn attributes_of_a_device_are_at_all_nodes() {
    use AttributeScope::{Client, Server, Shared};
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    // Its number differs from that at the first node.
    b.put(json!({"id": "other", "product": "meter"}));
    a.put(json!({"id": "m", "product": "meter"}));
    a.set("m", Client, json!({"firmware": "1.2"}));
    a.set("m", Server, json!({"limit": 80, "hall": {"row": 7}}));
    a.set("m", Shared, json!({"interval_s": 10, "fw_title": "t"}));
    exchange(&a, &b);
    assert_eq!(b.values("m", Client), json!({"firmware": "1.2"}));
    assert_eq!(
        b.values("m", Server),
        json!({"limit": 80, "hall": {"row": 7}})
    );
    // Also what a firmware campaign sets.
    let shared = json!({"interval_s": 10, "fw_title": "t"});
    assert_eq!(b.values("m", Shared), shared);
    // A change at the other node, also of an attribute that the first one changes as well.
    a.set("m", Server, json!({"limit": 81}));
    b.set("m", Server, json!({"limit": 82, "floor": 2, "hall": null}));
    exchange(&a, &b);
    let (here, there) = (a.values("m", Server), b.values("m", Server));
    assert_eq!(here, there);
    assert!(here["limit"] == 81 || here["limit"] == 82, "{here}");
    assert_eq!((&here["floor"], here.get("hall")), (&json!(2), None));
    // After a restart, nothing differs.
    let root = b.attributes().root();
    let b = b.reopened();
    b.share();
    assert_eq!(b.attributes().root(), root);
    assert_eq!(b.values("m", Server), here);
}

#[test]
fn attributes_wait_for_their_device() {
    use AttributeScope::Server;
    let (a, b, c) = (
        TestNode::sharing("a"),
        TestNode::sharing("b"),
        TestNode::sharing("c"),
    );
    a.put(json!({"id": "m", "product": "meter"}));
    a.set("m", Server, json!({"limit": 80}));
    b.pull_attributes(&a);
    // The third node gets them from the second one, which does not know the device.
    c.pull_attributes(&b);
    let b = b.reopened();
    b.share();
    for node in [&b, &c] {
        node.pull_selected(&a, |_| true);
        assert_eq!(node.values("m", Server), json!({"limit": 80}));
    }
    exchange(&a, &b);
    exchange(&a, &c);
    // A change of an attribute that was waiting.
    c.set("m", Server, json!({"limit": 70}));
    exchange(&a, &c);
    assert_eq!(a.values("m", Server), json!({"limit": 70}));
}

#[test]
fn attributes_are_removed_with_their_device() {
    use AttributeScope::Server;
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    let empty = a.attributes().root();
    a.put(json!({"id": "m", "product": "meter"}));
    a.set("m", Server, json!({"limit": 80}));
    exchange(&a, &b);
    a.remove("m");
    // The other node does not know that yet, and its attributes do not come back.
    a.pull_attributes(&b);
    exchange(&a, &b);
    assert_eq!(b.attributes().root(), empty);
    // Nor do those of the earlier device belong to a later one with the same id.
    a.put(json!({"id": "m", "product": "meter"}));
    exchange(&a, &b);
    b.set("m", Server, json!({"limit": 1}));
    exchange(&a, &b);
    a.remove("m");
    std::thread::sleep(std::time::Duration::from_millis(2));
    a.put(json!({"id": "m", "product": "meter"}));
    a.set("m", Server, json!({"floor": 2}));
    a.pull_attributes(&b);
    assert_eq!(a.values("m", Server), json!({"floor": 2}));
    b.pull_attributes(&a);
    assert_eq!(b.values("m", Server), json!({"limit": 1}));
    exchange(&a, &b);
    assert_eq!(b.values("m", Server), json!({"floor": 2}));
}

#[test]
fn attributes_changed_outside_the_cluster_are_shared_later() {
    use AttributeScope::Server;
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    a.put(json!({"id": "m", "product": "meter"}));
    a.set("m", Server, json!({"same": 1, "changed": 1, "removed": 1}));
    exchange(&a, &b);
    let a = a.reopened();
    std::thread::sleep(std::time::Duration::from_millis(2));
    a.set(
        "m",
        Server,
        json!({"changed": 2, "removed": null, "created": 2}),
    );
    a.share();
    exchange(&a, &b);
    let expected = json!({"same": 1, "changed": 2, "created": 2});
    assert_eq!(b.values("m", Server), expected);
    assert_eq!(a.values("m", Server), expected);
}

#[test]
fn observers_learn_of_attributes_changed_at_other_nodes() {
    use AttributeScope::Shared;
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    a.put(json!({"id": "m", "product": "meter"}));
    exchange(&a, &b);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    b.registry.add_attribute_observer(Box::new(move |change| {
        assert!(change.is_of_other_node);
        let mut keys: Vec<_> = change.changed.iter().map(|(key, _)| key.clone()).collect();
        keys.sort();
        noted.lock().unwrap().push((keys, change.removed.to_vec()));
    }));
    a.set("m", Shared, json!({"x": 1, "y": 2}));
    b.pull(&a);
    a.set("m", Shared, json!({"x": null}));
    b.pull(&a);
    b.pull(&a);
    let expected = [
        (vec!["x".to_owned(), "y".to_owned()], vec![]),
        (vec![], vec!["x".to_owned()]),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn attributes_wait_for_the_product_of_their_device_across_a_restart() {
    use AttributeScope::Server;
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    a.product("declared", json!({}));
    a.put(json!({"id": "m", "product": "declared"}));
    a.set("m", Server, json!({"limit": 80}));
    b.pull(&a);
    assert!(b.device("m").is_none());
    // The product is there before the node takes part in the cluster again.
    let b = b.reopened();
    b.product("declared", json!({}));
    b.share();
    assert_eq!(b.values("m", Server), json!({"limit": 80}));
    exchange(&a, &b);
}

#[test]
fn attributes_belong_to_the_device_that_wins() {
    use AttributeScope::Server;
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    a.put(json!({"id": "m", "product": "meter"}));
    a.set("m", Server, json!({"limit": 1}));
    exchange(&a, &b);
    // One node creates the device anew; the other one changes the earlier device after that, which wins.
    std::thread::sleep(std::time::Duration::from_millis(2));
    a.remove("m");
    a.put(json!({"id": "m", "product": "meter"}));
    a.set("m", Server, json!({"limit": 2}));
    std::thread::sleep(std::time::Duration::from_millis(20));
    b.put(json!({"id": "m", "product": "meter", "name": "later"}));
    b.pull_attributes(&a);
    assert_eq!(b.values("m", Server), json!({"limit": 1}));
    exchange(&a, &b);
    assert_eq!(&*a.device("m").unwrap().name, "later");
    assert_eq!(a.values("m", Server), json!({"limit": 1}));
    assert_eq!(b.values("m", Server), json!({"limit": 1}));
}

#[test]
fn attributes_that_wait_are_forgotten_with_the_removal_of_their_device() {
    use AttributeScope::Server;
    let (a, b) = (TestNode::sharing("a"), TestNode::sharing("b"));
    let empty = b.attributes().root();
    a.put(json!({"id": "m", "product": "meter"}));
    a.set("m", Server, json!({"limit": 1}));
    b.pull_attributes(&a);
    assert_ne!(b.attributes().root(), empty);
    a.remove("m");
    exchange(&a, &b);
    assert_eq!(b.attributes().root(), empty);
    // Also if another device with the id is created here.
    a.put(json!({"id": "n", "product": "meter"}));
    a.set("n", Server, json!({"limit": 1}));
    b.pull_attributes(&a);
    std::thread::sleep(std::time::Duration::from_millis(2));
    b.put(json!({"id": "n", "product": "meter"}));
    assert_eq!(b.attributes().root(), empty);
    exchange(&a, &b);
    assert_eq!(a.values("n", Server), json!({}));
}

#[test]
fn attributes_of_a_removed_device_cannot_be_written() {
    let a = TestNode::sharing("a");
    a.put(json!({"id": "m", "product": "meter"}));
    let device = a.device("m").unwrap();
    a.remove("m");
    let values = vec![("limit".to_owned(), json!(1))];
    let written = a
        .registry
        .set_attributes(&device, AttributeScope::Server, values);
    assert!(matches!(written, Err(RegistryError::NotFound { .. })));
}
