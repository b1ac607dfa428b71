//! Alarms of two nodes of a cluster, whose records are exchanged by hand.

use std::ops::Bound;
use std::sync::mpsc;

use cluster::{NUMBER_BITS, NodeName, RECORD_BUCKETS, SharedRecords};
use serde_json::json;
use series::PointValue;
use store::Durability;

use super::super::AlarmEvent;
use super::super::definition::Severity;
use super::super::store_sharing::AlarmSharingError;
use super::tests::{Fixture, PATIENCE, hot};
use super::*;
use crate::{DeviceChange, WritePrecondition};

pub(super) struct ClusterNode {
    fixture: Fixture,
    records: SharedAlarms,
}

impl std::ops::Deref for ClusterNode {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl ClusterNode {
    pub(super) fn new(name: &str) -> Self {
        let fixture = Fixture::new();
        fixture.product(json!([hot()]));
        Self::join(fixture, name).unwrap()
    }

    fn join(fixture: Fixture, name: &str) -> Result<Self, AlarmSharingError> {
        let name = NodeName::new(name).unwrap();
        fixture.registry.share(&name).unwrap();
        fixture.alarms.number_from(name.first_number());
        let records = fixture.alarms.share(&name)?.records;
        // The alarms have the registry.
        let alarms = Arc::downgrade(&fixture.alarms.inner);
        let observer = move |change: &DeviceChange<'_>| {
            let Some(inner) = alarms.upgrade() else {
                return;
            };
            let alarms = Alarms { inner };
            match change {
                DeviceChange::Created(device) => alarms.add_device(device),
                DeviceChange::Updated(device) => alarms.update_device(device),
                DeviceChange::Removed(device) => alarms.remove_device(device),
            }
        };
        fixture.registry.add_device_observer(Box::new(observer));
        Ok(Self { fixture, records })
    }

    /// As after a restart outside the cluster.
    fn reopened(self) -> Fixture {
        drop(self.records);
        self.fixture.reopened()
    }

    /// Waits until everything submitted is applied.
    fn settle(&self) {
        // Jobs may add others.
        for _ in 0..3 {
            let (done, settled) = mpsc::channel();
            let done = move || {
                let _ = done.send(());
            };
            self.alarms.settle(Box::new(done));
            settled.recv_timeout(PATIENCE).unwrap();
        }
    }

    /// Takes everything that the other node has, as when they meet.
    fn pull(&self, other: &Self) {
        pull_devices(&self.registry, &other.registry);
        self.settle();
        self.pull_alarms(other);
    }

    /// The same of alarms only.
    fn pull_alarms(&self, other: &Self) {
        self.pull_some(other, || true);
    }

    fn pull_some(&self, other: &Self, mut is_pulled: impl FnMut() -> bool) {
        other.settle();
        let mut ids = Vec::new();
        let sharing = other.alarms.inner.store.sharing.get().unwrap();
        // Much faster than bucket by bucket, as the exchange does it.
        let scanned = sharing.versions.scan(None, &mut |id, _| {
            if is_pulled() {
                ids.push(id.to_owned());
            }
            true
        });
        scanned.unwrap();
        let read = |id: &String| other.records.read(id).unwrap();
        let records = ids.iter().filter_map(read).collect();
        self.records.apply(records).unwrap();
        self.settle();
    }

    fn device_of(&self, id: &str) -> Arc<Device> {
        self.registry.device(id).unwrap().expect("the device")
    }

    fn all(&self) -> Vec<Alarm> {
        let page = self.alarms.list(&AlarmFilter::default(), None, 100);
        page.unwrap().alarms
    }

    /// The only alarm.
    pub(super) fn alarm(&self) -> Alarm {
        let mut all = self.all();
        assert_eq!(all.len(), 1, "{all:?}");
        all.pop().unwrap()
    }

    /// The id of the record of the only alarm.
    fn record_id(&self) -> String {
        let alarm = self.alarm();
        let name = super::super::shared_alarm::AlarmName::of(&alarm);
        name.expect("a shared alarm").record_id()
    }

    pub(super) fn no_events(&self) {
        self.settle();
        let event = self.events.try_recv();
        assert!(event.is_err(), "{event:?}");
    }
}

fn pull_devices(here: &Registry, there: &Registry) {
    let mut ids = Vec::new();
    for bucket in 0..RECORD_BUCKETS as u16 {
        let mut each = |id: &str, _| ids.push(id.to_owned());
        there.versions(bucket, &mut each).unwrap();
    }
    let read = |id: &String| there.read(id).unwrap();
    here.apply(ids.iter().filter_map(read).collect()).unwrap();
}

fn exchange(one: &ClusterNode, other: &ClusterNode) {
    pull_devices(&one.registry, &other.registry);
    pull_devices(&other.registry, &one.registry);
    exchange_alarms(one, other);
}

fn exchange_alarms(one: &ClusterNode, other: &ClusterNode) {
    // What a node changes because of the other one's changes arrives too.
    for _ in 0..3 {
        one.pull_alarms(other);
        other.pull_alarms(one);
    }
    let without_numbers = |node: &ClusterNode| {
        let all = node.all().into_iter();
        all.map(|alarm| json!(alarm)).collect::<Vec<_>>()
    };
    assert_eq!(without_numbers(one), without_numbers(other));
    assert_eq!(one.alarms.counts(), other.alarms.counts());
    assert_eq!(one.records.root(), other.records.root());
}

/// Two nodes with the device `d`, which has another number at the second one.
fn nodes() -> (ClusterNode, ClusterNode) {
    let (a, b) = (ClusterNode::new("a"), ClusterNode::new("b"));
    b.device(json!({"id": "other", "product": "meter"}));
    a.device(json!({"id": "d", "product": "meter"}));
    exchange(&a, &b);
    (a, b)
}

fn raise_at(node: &Fixture, device: &Arc<Device>, kind: &str, at_ms: u64) -> AlarmEvent {
    let alarm = SqlRuleAlarm {
        kind: kind.to_owned(),
        severity: Severity::Minor,
        is_cleared: false,
        at_ms,
        details: String::new(),
        rule: "r".into(),
        tag: 0,
    };
    node.alarms.submit_sql_rule_alarm(device, alarm);
    node.next()
}

#[test]
fn an_alarm_follows_its_device_to_another_node() {
    let (a, b) = nodes();
    a.says(&a.device_of("d"), "t", PointValue::Int(31));
    let raised = a.next().alarm;
    assert_eq!(raised.node.as_deref(), Some("a"));
    exchange(&a, &b);
    assert_eq!(b.alarm().id, raised.id);
    // The same condition does not raise a second one; a higher severity changes the first one.
    let device = b.device_of("d");
    assert_ne!(device.no, a.device_of("d").no);
    b.says(&device, "t", PointValue::Int(32));
    b.says(&device, "t", PointValue::Int(60));
    let event = b.next();
    assert_eq!(
        (event.change, event.alarm.id, event.alarm.severity),
        (AlarmChange::SeverityChanged, raised.id, Severity::Critical)
    );
    exchange(&a, &b);
    assert_eq!(a.alarm().severity, Severity::Critical);
    b.says(&device, "t", PointValue::Int(20));
    assert_eq!(b.next().change, AlarmChange::Cleared);
    exchange(&a, &b);
    assert_eq!(a.alarm().state, AlarmState::ClearedUnack);
    // Only the node that makes a change tells about it.
    a.no_events();
    b.no_events();
    // When the device comes back, it raises the next alarm at the first node, which has learnt that the first one ended.
    a.says(&a.device_of("d"), "t", PointValue::Int(33));
    let event = a.next();
    assert_eq!(event.change, AlarmChange::Raised);
    assert_ne!(event.alarm.id, raised.id);
}

#[test]
fn an_acknowledgement_survives_an_update_at_another_node() {
    let (a, b) = nodes();
    a.says(&a.device_of("d"), "t", PointValue::Int(31));
    let id = a.next().alarm.id;
    exchange(&a, &b);
    // At the same time, in both orders of the versions.
    a.alarms.acknowledge(id, "ann").unwrap();
    b.says(&b.device_of("d"), "t", PointValue::Int(60));
    b.next();
    b.alarms.comment(id, "bob", "on my way").unwrap();
    exchange(&a, &b);
    let alarm = a.alarm();
    assert_eq!(
        (alarm.state, alarm.severity),
        (AlarmState::ActiveAck, Severity::Critical)
    );
    assert_eq!(alarm.acknowledged_by.as_deref(), Some("ann"));
    assert_eq!(alarm.comments.len(), 1);
    b.says(&b.device_of("d"), "t", PointValue::Int(20));
    b.next();
    a.alarms.comment(id, "ann", "thanks").unwrap();
    exchange(&b, &a);
    assert_eq!(a.alarm().state, AlarmState::ClearedAck);
    assert_eq!(a.alarm().comments.len(), 2);
}

#[test]
fn what_was_pushed_survives_the_loss_of_its_node() {
    let (a, b) = nodes();
    a.says(&a.device_of("d"), "t", PointValue::Int(31));
    let id = a.next().alarm.id;
    exchange(&a, &b);
    b.says(&b.device_of("d"), "t", PointValue::Int(60));
    b.next();
    // Has an earlier version than what the second node knows if its clock is behind.
    a.alarms.acknowledge(id, "ann").unwrap();
    let mut record = a.records.read(&a.record_id()).unwrap().unwrap();
    record.version.time_ms = 1;
    b.records.apply(vec![record]).unwrap();
    let alarm = b.alarm();
    assert_eq!(
        (alarm.state, alarm.severity),
        (AlarmState::ActiveAck, Severity::Critical)
    );
}

#[test]
fn of_alarms_that_separated_nodes_have_raised_the_first_one_remains() {
    let (a, b) = nodes();
    let first = raise_at(&a, &a.device_of("d"), "leak", 10).alarm.id;
    let second = raise_at(&b, &b.device_of("d"), "leak", 20).alarm.id;
    exchange(&a, &b);
    let event = b.next();
    assert_eq!(
        (event.change, event.alarm.id),
        (AlarmChange::Cleared, second)
    );
    let open = AlarmFilter {
        states: vec![AlarmState::ActiveUnack],
        ..AlarmFilter::default()
    };
    let listed = a.alarms.list(&open, None, 10).unwrap().alarms;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].id, first);
    a.no_events();
    b.no_events();
}

#[test]
fn a_record_waits_for_its_device_and_goes_with_it() {
    let (a, b) = nodes();
    let gateway = a.device(json!({"id": "g", "product": "meter", "gateway": true}));
    let child = a.device(json!({"id": "c", "product": "meter", "parent": "g"}));
    a.says(&child, "t", PointValue::Int(31));
    a.next();
    b.pull_alarms(&a);
    assert_eq!(b.all(), []);
    assert_eq!(a.records.root(), b.records.root());
    // Those that wait are exchanged as well.
    let c = ClusterNode::new("c");
    c.pull_alarms(&b);
    exchange(&a, &b);
    exchange(&b, &c);
    for node in [&b, &c] {
        let of_gateway = AlarmFilter {
            device: Some(node.device_of("g").no),
            ..AlarmFilter::default()
        };
        assert_eq!(node.kinds(&of_gateway).len(), 1);
    }
    let late = b.records.read(&b.record_id()).unwrap().unwrap();
    assert!(a.registry.remove("c", WritePrecondition::Any).unwrap());
    a.settle();
    b.alarms.acknowledge(b.alarm().id, "ann").unwrap();
    exchange(&a, &b);
    exchange(&b, &c);
    for node in [&a, &b, &c] {
        assert_eq!(node.all(), []);
    }
    // A late record does not bring the alarm back, whether it is later or earlier.
    let mut later = late.clone();
    later.version.time_ms += 1_000_000;
    b.records.apply(vec![late, later]).unwrap();
    assert_eq!(b.all(), []);
    exchange(&a, &b);
    assert_eq!(gateway.id.as_str(), "g");
}

#[test]
fn a_deleted_alarm_does_not_return() {
    let (a, b) = nodes();
    a.says(&a.device_of("d"), "t", PointValue::Int(31));
    let id = a.next().alarm.id;
    exchange(&a, &b);
    a.alarms.remove(id).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2));
    b.alarms.acknowledge(id, "ann").unwrap();
    exchange(&a, &b);
    assert_eq!(a.all(), []);
    assert_eq!(b.all(), []);
    // Its condition still holds where the device is.
    a.next();
    a.says(&a.device_of("d"), "t", PointValue::Int(32));
    assert_eq!(a.next().change, AlarmChange::Raised);
}

#[test]
fn expired_alarms_do_not_travel() {
    let (a, b) = nodes();
    let old = raise_at(&a, &a.device_of("d"), "leak", 10).alarm;
    exchange(&a, &b);
    let cleared = SqlRuleAlarm {
        kind: "leak".into(),
        severity: Severity::Minor,
        is_cleared: true,
        at_ms: 20,
        details: String::new(),
        rule: "r".into(),
        tag: 0,
    };
    a.alarms.submit_sql_rule_alarm(&a.device_of("d"), cleared);
    a.next();
    // Cleared long ago, according to the device; the nodes remove it at different times.
    b.pull(&a);
    assert_eq!(b.all(), []);
    exchange(&a, &b);
    assert_eq!(a.all(), []);
    assert_eq!(old.kind, "leak");
}

#[test]
fn lists_of_all_nodes_begin_with_the_newest() {
    let (a, b) = nodes();
    for at_ms in 0..20 {
        let node = if at_ms % 3 == 0 { &a } else { &b };
        raise_at(node, &node.device_of("d"), &format!("k{at_ms}"), at_ms);
    }
    exchange(&a, &b);
    let (mut times, mut before) = (Vec::new(), None);
    // Page by page, at alternating nodes.
    for node in [&a, &b].into_iter().cycle() {
        let page = node
            .alarms
            .list(&AlarmFilter::default(), before, 7)
            .unwrap();
        times.extend(page.alarms.iter().map(|alarm| alarm.raised_at_ms));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(times, (0..20).rev().collect::<Vec<_>>());
    let between = AlarmFilter {
        from_ms: Some(5),
        to_ms: Some(8),
        ..AlarmFilter::default()
    };
    let page = a.alarms.list(&between, None, 10).unwrap();
    let times: Vec<_> = page.alarms.iter().map(|alarm| alarm.raised_at_ms).collect();
    assert_eq!((times, page.next), (vec![7, 6, 5], None));
}

#[test]
fn alarms_from_before_the_cluster_are_shared() {
    let fixtures = [Fixture::new(), Fixture::new()];
    for (fixture, id) in fixtures.iter().zip(["d", "e"]) {
        fixture.product(json!([hot()]));
        let device = fixture.device(json!({"id": id, "product": "meter"}));
        fixture.says(&device, "t", PointValue::Int(31));
        // Both have given the same number.
        assert_eq!(fixture.next().alarm.id, AlarmId(1));
    }
    // The index of the former version.
    let [former, other] = fixtures;
    {
        let tables = former.store.objects().tables().clone();
        let index = tables.table("alarm_index");
        let mut batch = tables.batch().unwrap();
        let mut keys = Vec::new();
        index
            .scan(b"", Bound::Unbounded, &mut |key, _| {
                keys.push(key.to_vec());
                true
            })
            .unwrap();
        for key in keys.iter().filter(|key| **key != b"n") {
            batch.remove(&index, key).unwrap();
        }
        for key in [&b"a\0\0\0\x01hot"[..], b"d\0\0\0\x01x", b"s\0x"] {
            batch.put(&index, key, &[0; 9]).unwrap();
        }
        batch.commit(Durability::Buffered).unwrap();
    }
    let former = former.reopened();
    let counts = former.alarms.counts();
    assert_eq!(counts.iter().map(|(_, _, count)| count).sum::<u64>(), 1);
    for letter in [b"a", b"d", b"s"] {
        let index = former.store.objects().tables().table("alarm_index");
        let mut is_empty = true;
        let mut each = |_: &[u8], _: &[u8]| {
            is_empty = false;
            false
        };
        index.scan(letter, Bound::Unbounded, &mut each).unwrap();
        assert!(is_empty);
    }
    let (a, b) = (
        ClusterNode::join(former, "a").unwrap(),
        ClusterNode::join(other, "b").unwrap(),
    );
    exchange(&a, &b);
    let all = a.all();
    assert_eq!(all.len(), 2);
    assert!(
        all.iter().all(|alarm| alarm.id.0 >> NUMBER_BITS > 0),
        "{all:?}"
    );
    let mut nodes: Vec<_> = all.iter().filter_map(|alarm| alarm.node.clone()).collect();
    nodes.sort();
    assert_eq!(nodes, ["a", "b"]);
    // The alarm is the same one as before.
    a.says(&a.device_of("d"), "t", PointValue::Int(20));
    assert_eq!(a.next().change, AlarmChange::Cleared);
    exchange(&a, &b);
    // A start changes nothing.
    let root = a.records.root();
    let a = ClusterNode::join(a.reopened(), "a").unwrap();
    assert_eq!(a.records.root(), root);
}

#[test]
fn what_was_changed_outside_the_cluster_is_known_to_the_others_afterwards() {
    let (a, b) = nodes();
    let ids: Vec<_> = ["one", "two", "three"]
        .iter()
        .map(|kind| raise_at(&a, &a.device_of("d"), kind, 10).alarm.id)
        .collect();
    exchange(&a, &b);
    let outside = a.reopened();
    outside.alarms.acknowledge(ids[0], "ann").unwrap();
    outside.alarms.remove(ids[1]).unwrap();
    b.alarms.clear(ids[2], "bob").unwrap();
    let a = ClusterNode::join(outside, "a").unwrap();
    exchange(&a, &b);
    let mut states: Vec<_> = b
        .all()
        .into_iter()
        .map(|alarm| (alarm.id, alarm.state))
        .collect();
    states.sort();
    assert_eq!(
        states,
        [
            (ids[0], AlarmState::ActiveAck),
            (ids[2], AlarmState::ClearedUnack)
        ]
    );
}

#[test]
fn a_lost_node_does_not_give_numbers_twice() {
    let (a, b) = nodes();
    let first = raise_at(&a, &a.device_of("d"), "leak", 10).alarm.id;
    exchange(&a, &b);
    drop(a);
    let a = ClusterNode::new("a");
    a.pull(&b);
    let second = raise_at(&a, &a.device_of("d"), "smoke", 20).alarm.id;
    assert!(second > first);
    exchange(&a, &b);
    assert_eq!(b.all().len(), 2);
}

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn nodes_agree_whatever_they_do_and_learn_in_any_order() {
    for seed in 0..8 {
        let nodes = ["a", "b", "c"].map(ClusterNode::new);
        nodes[0].device(json!({"id": "d", "product": "meter"}));
        exchange(&nodes[0], &nodes[1]);
        exchange(&nodes[1], &nodes[2]);
        let mut random = Random(seed);
        let (mut acknowledged, mut deleted) = (Vec::new(), Vec::new());
        for step in 0..120 {
            let node = &nodes[random.below(3)];
            let known = node.all();
            let alarm = (!known.is_empty()).then(|| known[random.below(known.len())].id);
            match (random.below(8), alarm) {
                (0..=2, _) => {
                    let alarm = SqlRuleAlarm {
                        kind: format!("k{}", random.below(2)),
                        severity: Severity::ALL[random.below(3)],
                        is_cleared: random.below(4) == 0,
                        at_ms: wall_clock::now_ms(),
                        details: step.to_string(),
                        rule: "r".into(),
                        tag: 0,
                    };
                    node.alarms
                        .submit_sql_rule_alarm(&node.device_of("d"), alarm);
                    node.settle();
                }
                (3, Some(id)) => {
                    if node.alarms.acknowledge(id, "ann").is_ok() {
                        acknowledged.push(id);
                    }
                }
                (4, Some(id)) => drop(node.alarms.comment(id, "bob", &step.to_string())),
                (5, Some(id)) if random.below(3) == 0 => {
                    node.alarms.remove(id).unwrap();
                    deleted.push(id);
                }
                _ => {
                    // Some records arrive at another node.
                    let other = &nodes[random.below(3)];
                    other.pull_some(node, || random.below(2) == 0);
                }
            }
        }
        for _ in 0..2 {
            exchange_alarms(&nodes[0], &nodes[1]);
            exchange_alarms(&nodes[1], &nodes[2]);
            exchange_alarms(&nodes[2], &nodes[0]);
        }
        let all = nodes[0].all();
        assert!(all.len() > 1, "seed {seed}");
        for kind in ["k0", "k1"] {
            let open = all
                .iter()
                .filter(|alarm| alarm.kind == kind && !alarm.is_cleared());
            assert!(open.count() <= 1, "seed {seed}: {all:?}");
        }
        for alarm in &all {
            assert!(!deleted.contains(&alarm.id), "seed {seed}");
            if acknowledged.contains(&alarm.id) {
                assert!(alarm.is_acknowledged(), "seed {seed}");
            }
        }
    }
}
