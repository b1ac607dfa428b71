//! Tests the node's own alarms with a simulated clock.

use std::sync::mpsc;
use std::time::Duration;

use series::Series;
use store::{Store, StoreConfig};

use super::super::{AlarmChange, AlarmConfig, AlarmEvent, Severity};
use super::*;
use crate::{Registry, RegistryConfig};

struct Node {
    _dir: tempfile::TempDir,
    _store: Store,
    node_alarms: NodeAlarms,
    events: mpsc::Receiver<AlarmEvent>,
    now_ms: u64,
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("store"), StoreConfig::default()).unwrap();
    let (series, _) =
        Series::open(&dir.path().join("series"), series::SeriesConfig::default()).unwrap();
    let registry = Registry::open(store.objects(), RegistryConfig::default()).unwrap();
    let tables = store.objects().tables();
    let alarms = Alarms::open(tables, registry, series, AlarmConfig::default()).unwrap();
    let (sender, events) = mpsc::channel();
    alarms.add_observer(Box::new(move |event| {
        let _ = sender.send(event.clone());
    }));
    Node {
        _dir: dir,
        _store: store,
        node_alarms: NodeAlarms::new(alarms, &node_alarm_rules()).unwrap(),
        events,
        now_ms: 1_800_000_000_000,
    }
}

impl Node {
    fn samples(&mut self, count: u32, sample: NodeSample) {
        for _ in 0..count {
            self.now_ms += 10_000;
            self.node_alarms.observe(self.now_ms, &sample);
        }
    }

    fn next(&self) -> (AlarmChange, String, Severity) {
        let event = self
            .events
            .recv_timeout(Duration::from_secs(20))
            .expect("an alarm");
        (event.change, event.alarm.kind.clone(), event.alarm.severity)
    }
}

fn with_rate(messages_per_s: f64) -> NodeSample {
    NodeSample {
        messages_per_s,
        ..NodeSample::default()
    }
}

#[test]
fn a_metric_raises_after_three_bad_samples_and_clears_after_a_good_minute() {
    let mut node = node();
    let slow = |latency_p95_ms| NodeSample {
        latency_p95_ms: Some(latency_p95_ms),
        ..NodeSample::default()
    };
    node.samples(2, slow(2000.0));
    node.samples(1, slow(10.0));
    node.samples(3, slow(900.0));
    let expected = (
        AlarmChange::Raised,
        "latency_p95".to_owned(),
        Severity::Warning,
    );
    assert_eq!(node.next(), expected);
    node.samples(3, slow(1600.0));
    let expected = (
        AlarmChange::SeverityChanged,
        "latency_p95".to_owned(),
        Severity::Critical,
    );
    assert_eq!(node.next(), expected);
    node.samples(5, slow(10.0));
    node.samples(1, slow(900.0));
    node.samples(7, slow(10.0));
    assert_eq!(node.next().0, AlarmChange::Cleared);
}

#[test]
fn throughput_is_compared_with_the_usual_rate() {
    let mut node = node();
    node.samples(20, with_rate(10_000.0));
    node.samples(3, with_rate(4_000.0));
    let expected = (
        AlarmChange::Raised,
        "throughput_down".to_owned(),
        Severity::Critical,
    );
    assert_eq!(node.next(), expected);
    node.samples(7, with_rate(10_000.0));
    // Falls from critical to at most a warning, then stays good for a minute.
    assert_eq!(node.next().0, AlarmChange::Cleared);
}

#[test]
fn a_quiet_node_raises_nothing() {
    let mut node = node();
    node.samples(20, with_rate(50.0));
    node.samples(20, with_rate(0.0));
    assert!(node.events.try_recv().is_err());
}

#[test]
fn rules_with_unknown_metrics_are_rejected() {
    let rules = json!([{"id": "x", "raise": [{"severity": "MINOR", "when": {"key": "t", "is": ">", "value": 1}}]}]);
    let alarms = node().node_alarms.alarms.clone();
    let rejected = NodeAlarms::new(alarms, &rules).err().expect("rejected");
    assert!(
        rejected
            .to_string()
            .contains("\"t\" is not a metric of the node"),
        "{rejected}"
    );
}

#[test]
fn alarms_of_removed_rules_are_cleared() {
    let mut node = node();
    node.samples(
        3,
        NodeSample {
            memory_mb: Some(600.0),
            ..NodeSample::default()
        },
    );
    assert_eq!(node.next().0, AlarmChange::Raised);
    let alarms = node.node_alarms.alarms.clone();
    let rules = json!([{"id": "other", "raise": [
        {"severity": "MINOR", "when": {"key": "memory_mb", "is": ">", "value": 1}}]}]);
    check_node_alarm_rules(&rules).unwrap();
    node.node_alarms = NodeAlarms::new(alarms, &rules).unwrap();
    let cleared = node.next();
    assert_eq!(
        (cleared.0, cleared.1.as_str()),
        (AlarmChange::Cleared, "memory")
    );
    let unknown = json!([{"id": "other", "raise": [
        {"severity": "MINOR", "when": {"key": "temperature", "is": ">", "value": 1}}]}]);
    let error = check_node_alarm_rules(&unknown).unwrap_err();
    assert!(error.detail.contains("not a metric of the node"), "{error}");
}
