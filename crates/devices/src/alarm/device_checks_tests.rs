//! Rules of devices that may be at another node of the cluster.

use std::time::Instant;

use serde_json::json;
use series::PointValue;

use super::super::{DevicePlaces, FoundElsewhere};
use super::sharing_tests::ClusterNode;
use super::tests::PATIENCE;
use super::*;

/// The devices are at this node, or at another one.
#[derive(Default)]
struct TestPlaces {
    is_here: AtomicBool,
    is_elsewhere: AtomicBool,
    asked: AtomicU64,
}

impl DevicePlaces for TestPlaces {
    fn is_here(&self, _: DeviceNo) -> bool {
        self.is_here.load(Relaxed)
    }

    fn find_elsewhere(&self, devices: Vec<DeviceNo>, found: FoundElsewhere) {
        self.asked.fetch_add(devices.len() as u64, Relaxed);
        found(match self.is_elsewhere.load(Relaxed) {
            true => devices,
            false => Vec::new(),
        });
    }
}

impl ClusterNode {
    fn with_places(name: &str, rule: serde_json::Value) -> (Self, Arc<TestPlaces>, Arc<Device>) {
        let node = Self::new(name);
        node.product(json!([rule]));
        let device = node.device(json!({"id": "d", "product": "meter"}));
        let places = Arc::<TestPlaces>::default();
        node.alarms.set_places(places.clone());
        (node, places, device)
    }
}

fn wait_until(what: &str, is_reached: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_reached() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn silence_is_noticed_by_the_node_of_the_device() {
    let silent = json!({
        "id": "silent",
        "raise": [{"severity": "MAJOR", "when": {"key": "t", "is": "silent_for", "value": 1}}],
    });
    let (node, places, device) = ClusterNode::with_places("a", silent);
    // The device has moved.
    places.is_elsewhere.store(true, Relaxed);
    node.says(&device, "t", PointValue::Int(1));
    wait_until("the node asks", || places.asked.load(Relaxed) > 0);
    wait_until("the device is forgotten", || {
        node.alarms.stats().watched_devices == 0
    });
    node.no_events();
    // It was here last.
    places.is_elsewhere.store(false, Relaxed);
    node.says(&device, "t", PointValue::Int(1));
    assert_eq!(node.next().alarm.kind, "silent");
    // It is here: nobody is asked.
    node.alarms.clear(node.alarm().id, "ann").unwrap();
    node.next();
    let asked = places.asked.load(Relaxed);
    places.is_here.store(true, Relaxed);
    node.says(&device, "t", PointValue::Int(1));
    assert_eq!(node.next().alarm.kind, "silent");
    assert_eq!(places.asked.load(Relaxed), asked);
}

#[test]
fn a_device_that_moves_is_not_offline() {
    let offline = json!({
        "id": "offline",
        "raise": [{"severity": "MAJOR", "when": {"key": "$online", "is": "=", "value": false}}],
        "clear": {"when": {"key": "$online", "is": "=", "value": true}},
    });
    let (node, places, device) = ClusterNode::with_places("a", offline);
    places.is_elsewhere.store(true, Relaxed);
    node.alarms.observe_presence(&device, 1, false);
    wait_until("the node asks", || places.asked.load(Relaxed) == 1);
    node.no_events();
    places.is_elsewhere.store(false, Relaxed);
    node.alarms.observe_presence(&device, 2, false);
    let raised = node.next();
    assert_eq!(
        (raised.change, raised.alarm.raised_at_ms),
        (AlarmChange::Raised, 2)
    );
    node.alarms.observe_presence(&device, 3, true);
    assert_eq!(node.next().change, AlarmChange::Cleared);
    // It comes back before the answer.
    node.alarms.observe_presence(&device, 4, false);
    places.is_here.store(true, Relaxed);
    node.alarms.observe_presence(&device, 5, true);
    wait_until("the node asks", || places.asked.load(Relaxed) == 3);
    node.no_events();
}
