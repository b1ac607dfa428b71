//! Tests the alarms of registered devices with a real store.

use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};
use series::PointValue;
use store::{Store, StoreConfig};

use super::super::{
    AlarmEvent, AlarmNotifier, DurableCallback, NOTIFICATION_KIND, NotificationChannel,
    NotificationTransport, Notifications, endpoint_alert,
};
use super::*;
use crate::{AttributeScope, RegistryConfig, WritePrecondition};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Fixture {
    dir: tempfile::TempDir,
    pub(super) store: Store,
    series: Series,
    pub(super) registry: Registry,
    pub(super) alarms: Alarms,
    pub(super) events: mpsc::Receiver<AlarmEvent>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::open(tempfile::tempdir().unwrap())
    }

    fn open(dir: tempfile::TempDir) -> Self {
        let (store, _) = Store::open(&dir.path().join("store"), StoreConfig::default()).unwrap();
        let (series, _) =
            Series::open(&dir.path().join("series"), series::SeriesConfig::default()).unwrap();
        let registry = Registry::open(store.objects(), RegistryConfig::default()).unwrap();
        let alarms = Alarms::open(
            store.objects().tables(),
            registry.clone(),
            series.clone(),
            AlarmConfig::default(),
        )
        .unwrap();
        let (sender, events) = mpsc::channel();
        alarms.add_observer(Box::new(move |event| {
            let _ = sender.send(event.clone());
        }));
        Self {
            dir,
            store,
            series,
            registry,
            alarms,
            events,
        }
    }

    pub(super) fn reopened(self) -> Self {
        self.alarms.close();
        self.series.close();
        self.store.close();
        let Self {
            dir,
            store,
            series,
            registry,
            alarms,
            events,
        } = self;
        drop((store, series, registry, alarms, events));
        Self::open(dir)
    }

    pub(super) fn product(&self, alarms: Json) {
        let product = json!({"alarms": alarms});
        let objects = self.store.objects();
        objects
            .put(
                crate::PRODUCT_KIND,
                "meter",
                product,
                store::ExpectedVersion::Any,
            )
            .unwrap();
    }

    pub(super) fn device(&self, device: Json) -> Arc<Device> {
        let device = serde_json::from_value(device).unwrap();
        self.registry
            .put(device, WritePrecondition::Any)
            .unwrap()
            .device
    }

    pub(super) fn says(&self, device: &Arc<Device>, key: &str, value: PointValue<'_>) {
        let points = [Point {
            key: self.series.get_or_create_key(key).unwrap(),
            value,
        }];
        let now_ms = wall_clock::now_ms();
        self.alarms
            .observe(device, now_ms, now_ms.cast_signed(), &points);
    }

    pub(super) fn next(&self) -> AlarmEvent {
        self.events.recv_timeout(PATIENCE).expect("an alarm event")
    }

    /// Asserts that no alarm has changed: submitted jobs complete before a later marker alarm.
    fn nothing_happened(&self, device: &Arc<Device>) {
        let marker = SqlRuleAlarm {
            kind: "marker".into(),
            severity: Severity::Indeterminate,
            is_cleared: false,
            at_ms: 1,
            details: String::new(),
            rule: "test".into(),
            tag: 0,
        };
        self.alarms.submit_sql_rule_alarm(device, marker);
        let event = self.next();
        assert_eq!(event.alarm.kind, "marker");
        self.alarms.remove(event.alarm.id).unwrap();
        assert_eq!(self.next().change, AlarmChange::Removed);
    }

    pub(super) fn kinds(&self, filter: &AlarmFilter) -> Vec<(String, AlarmState)> {
        let page = self.alarms.list(filter, None, 100).unwrap();
        let kinds = page.alarms.into_iter();
        kinds.map(|alarm| (alarm.kind, alarm.state)).collect()
    }
}

pub(super) fn hot() -> Json {
    json!({
        "id": "hot",
        "raise": [
            {"severity": "WARNING", "when": {"key": "t", "is": ">", "value": 30}},
            {"severity": "CRITICAL", "when": {"key": "t", "is": ">", "value": 50}},
        ],
        "clear": {"when": {"key": "t", "is": "<", "value": 25}},
        "details": "${t} °C at ${deviceId}",
        "propagate": true,
    })
}

#[test]
fn an_alarm_is_listed_from_raise_to_clear() {
    let node = Fixture::new();
    node.product(json!([hot()]));
    let device = node.device(json!({"id": "d1", "product": "meter"}));
    node.says(&device, "t", PointValue::Float(31.5));
    let event = node.next();
    assert_eq!(event.change, AlarmChange::Raised);
    assert_eq!(event.alarm.details, "31.5 °C at d1");
    assert_eq!(event.alarm.values["t"], json!(31.5));
    assert_eq!(event.alarm.state, AlarmState::ActiveUnack);

    node.says(&device, "t", PointValue::Int(60));
    let event = node.next();
    let outcome = (event.change, event.alarm.severity);
    assert_eq!(outcome, (AlarmChange::SeverityChanged, Severity::Critical));
    assert_eq!(event.alarm.details, "60 °C at d1");

    let id = event.alarm.id;
    let alarm = node.alarms.acknowledge(id, "ann").unwrap();
    assert_eq!(alarm.state, AlarmState::ActiveAck);
    assert_eq!(alarm.acknowledged_by.as_deref(), Some("ann"));
    assert!(matches!(
        node.alarms.acknowledge(id, "bob"),
        Err(AlarmError::AlreadyInState(_))
    ));
    assert_eq!(node.next().change, AlarmChange::Acknowledged);
    let alarm = node.alarms.comment(id, "ann", "pump 7 again").unwrap();
    assert_eq!(alarm.comments.len(), 1);

    let active = AlarmFilter {
        states: vec![AlarmState::ActiveAck, AlarmState::ActiveUnack],
        ..AlarmFilter::default()
    };
    assert_eq!(
        node.kinds(&active),
        [("hot".to_owned(), AlarmState::ActiveAck)]
    );

    node.says(&device, "t", PointValue::Int(20));
    let event = node.next();
    assert_eq!(
        (event.change, event.alarm.state),
        (AlarmChange::Cleared, AlarmState::ClearedAck)
    );
    assert_eq!(node.kinds(&active), []);
    let of_device = AlarmFilter {
        device: Some(device.no),
        ..AlarmFilter::default()
    };
    assert_eq!(node.kinds(&of_device).len(), 1);
    let counts = node.alarms.counts();
    let cleared = (AlarmState::ClearedAck, Severity::Critical, 1);
    assert!(counts.contains(&cleared), "{counts:?}");
    assert_eq!(counts.iter().map(|(_, _, n)| n).sum::<u64>(), 1);
}

#[test]
fn an_alarm_counts_for_the_gateways_above() {
    let node = Fixture::new();
    node.product(json!([hot()]));
    let gateway = node.device(json!({"id": "g", "product": "meter", "gateway": true}));
    let device = node.device(json!({"id": "d", "product": "meter", "parent": "g"}));
    node.says(&device, "t", PointValue::Int(31));
    node.next();
    let of_gateway = AlarmFilter {
        device: Some(gateway.no),
        ..AlarmFilter::default()
    };
    assert_eq!(
        node.kinds(&of_gateway),
        [("hot".to_owned(), AlarmState::ActiveUnack)]
    );
}

#[test]
fn rows_are_assigned_by_device_number_across_changes() {
    let node = Fixture::new();
    assert!(!node.alarms.is_in_use());
    node.product(json!([hot()]));
    node.alarms.refresh_products();
    assert!(node.alarms.is_in_use());
    let first = node.device(json!({"id": "g", "product": "meter", "gateway": true}));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    let says = |value: i64| {
        let points = [Point {
            key: node.series.get_or_create_key("t").unwrap(),
            value: PointValue::Int(value),
        }];
        let now_ms = wall_clock::now_ms();
        let row = now_ms.cast_signed();
        node.alarms.observe_row(device.no, now_ms, row, &points);
    };
    says(31);
    assert_eq!(node.next().alarm.devices(), [device.no]);
    // The state of the device remains, and its next alarm is propagated to the gateway.
    let changed = node.device(json!({"id": "d", "product": "meter", "parent": "g"}));
    node.alarms.update_device(&changed);
    says(20);
    assert_eq!(node.next().change, AlarmChange::Cleared);
    says(31);
    assert_eq!(node.next().alarm.devices(), [device.no, first.no]);
    // Another product has other rules.
    let objects = node.store.objects();
    let other = json!({"alarms": []});
    objects
        .put(
            crate::PRODUCT_KIND,
            "other",
            other,
            store::ExpectedVersion::Any,
        )
        .unwrap();
    let changed = node.device(json!({"id": "d", "product": "other"}));
    node.alarms.update_device(&changed);
    says(20);
    node.nothing_happened(&changed);
    // No device has this number.
    node.alarms.observe_row(DeviceNo(77), 1, 1, &[]);
}

#[test]
fn an_alarm_survives_a_restart_and_is_not_raised_twice() {
    let node = Fixture::new();
    node.product(json!([hot()]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    node.says(&device, "t", PointValue::Int(31));
    let id = node.next().alarm.id;
    let node = node.reopened();
    let device = node.registry.device("d").unwrap().unwrap();
    node.says(&device, "t", PointValue::Int(32));
    node.nothing_happened(&device);
    node.says(&device, "t", PointValue::Int(20));
    let event = node.next();
    assert_eq!((event.change, event.alarm.id), (AlarmChange::Cleared, id));
}

#[test]
fn an_alarm_cleared_by_an_operator_is_raised_by_the_next_message() {
    let node = Fixture::new();
    node.product(json!([hot()]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    node.says(&device, "t", PointValue::Int(31));
    let first = node.next().alarm.id;
    let alarm = node.alarms.clear(first, "ann").unwrap();
    assert_eq!(alarm.cleared_by.as_deref(), Some("ann"));
    assert_eq!(node.next().change, AlarmChange::Cleared);
    node.says(&device, "t", PointValue::Int(32));
    let event = node.next();
    assert_eq!(event.change, AlarmChange::Raised);
    assert!(event.alarm.id > first);
}

#[test]
fn changed_rules_apply_from_the_next_message() {
    let node = Fixture::new();
    node.product(json!([hot()]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    node.says(&device, "t", PointValue::Int(20));
    let mut other = hot();
    other["raise"][0]["when"]["value"] = json!(10);
    node.product(json!([other]));
    node.says(&device, "t", PointValue::Int(20));
    assert_eq!(node.next().change, AlarmChange::Raised);
}

#[test]
fn a_lasting_condition_needs_no_second_message() {
    let node = Fixture::new();
    node.product(json!([{
        "id": "hot",
        "raise": [{"severity": "MINOR", "when": {"key": "t", "is": ">", "value": 30}, "for_s": 1}],
    }]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    node.says(&device, "t", PointValue::Int(31));
    let event = node.next();
    assert_eq!(event.change, AlarmChange::Raised);
}

#[test]
fn an_attribute_is_used_as_operand() {
    let node = Fixture::new();
    let above = json!({"key": "t", "is": ">", "attribute": "limit"});
    node.product(json!([{"id": "hot", "raise": [{"severity": "MINOR", "when": above}]}]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    let set = |limit: i64| {
        let values = vec![("limit".to_owned(), json!(limit))];
        node.registry
            .set_attributes(&device, AttributeScope::Server, values)
            .unwrap();
        node.alarms.invalidate_attributes(device.no);
    };
    set(40);
    node.says(&device, "t", PointValue::Int(31));
    node.nothing_happened(&device);
    set(30);
    node.says(&device, "t", PointValue::Int(31));
    assert_eq!(node.next().change, AlarmChange::Raised);
}

#[test]
fn a_removed_device_takes_its_alarms_with_it() {
    let node = Fixture::new();
    node.product(json!([hot()]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    let other = node.device(json!({"id": "e", "product": "meter"}));
    node.says(&device, "t", PointValue::Int(31));
    node.next();
    node.alarms.remove_device(&device);
    node.nothing_happened(&other);
    assert_eq!(node.kinds(&AlarmFilter::default()), []);
}

#[test]
fn a_long_list_comes_in_pages_the_newest_first() {
    let node = Fixture::new();
    node.product(json!([]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    for at in 0..25 {
        let alarm = SqlRuleAlarm {
            kind: format!("k{at}"),
            severity: Severity::ALL[at % 5],
            is_cleared: false,
            at_ms: at as u64,
            details: String::new(),
            rule: "r".into(),
            tag: 0,
        };
        node.alarms.submit_sql_rule_alarm(&device, alarm);
        node.next();
    }
    let filter = AlarmFilter {
        severities: vec![Severity::Critical, Severity::Minor],
        ..AlarmFilter::default()
    };
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = node.alarms.list(&filter, before, 4).unwrap();
        found.extend(page.alarms.into_iter().map(|alarm| alarm.raised_at_ms));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(found, [22, 20, 17, 15, 12, 10, 7, 5, 2, 0]);
}

#[derive(Default)]
struct RecordingTransport(Mutex<Vec<(String, Json)>>);

impl NotificationTransport for RecordingTransport {
    fn write_to_sink(&self, name: &str, row: &Map<String, Json>) -> Result<(), String> {
        let row = Json::Object(row.clone());
        self.0.lock().unwrap().push((name.to_owned(), row));
        Ok(())
    }

    fn publish(&self, topic: &str, payload: Vec<u8>, _: u8, _: bool) -> Result<(), String> {
        let payload = serde_json::from_slice(&payload).unwrap();
        self.0.lock().unwrap().push((topic.to_owned(), payload));
        Ok(())
    }

    fn send_to_endpoint(&self, endpoint: &str, event: &AlarmEvent) -> Result<(), String> {
        let alert = endpoint_alert(endpoint, event, None);
        self.0.lock().unwrap().push((endpoint.to_owned(), alert));
        Ok(())
    }

    fn settle(&self, done: DurableCallback) {
        done();
    }
}

/// Wants all changes except acknowledgements, and reports durability or not.
#[derive(Default)]
struct RecordingNotifier {
    received: Mutex<Vec<(u64, AlarmChange)>>,
    is_safe: bool,
}

impl AlarmNotifier for RecordingNotifier {
    fn wants(&self, change: AlarmChange, _: &Alarm) -> bool {
        change != AlarmChange::Acknowledged
    }

    fn notify(&self, event: &AlarmEvent, _: u64) {
        self.received
            .lock()
            .unwrap()
            .push((event.change_no, event.change));
    }

    fn settle(&self, done: DurableCallback) {
        if self.is_safe {
            done();
        }
    }
}

#[test]
fn notifications_that_are_not_durable_are_repeated_with_the_same_number() {
    let hand_over = |node: &Fixture, is_safe: bool| {
        let notifier = Arc::new(RecordingNotifier {
            is_safe,
            ..RecordingNotifier::default()
        });
        node.alarms.set_notifier(notifier.clone()).unwrap();
        notifier
    };
    let take_received =
        |notifier: &RecordingNotifier| std::mem::take(&mut *notifier.received.lock().unwrap());
    let node = Fixture::new();
    node.product(json!([hot()]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    let notifier = hand_over(&node, false);
    node.says(&device, "t", PointValue::Int(31));
    let raised = node.next();
    node.alarms.acknowledge(raised.alarm.id, "ann").unwrap();
    assert_eq!(node.next().change_no, 0);
    node.says(&device, "t", PointValue::Int(60));
    node.next();
    let both = [(1, AlarmChange::Raised), (2, AlarmChange::SeverityChanged)];
    assert_eq!(take_received(&notifier), both);

    // The node stops without durable notifications, twice.
    let node = node.reopened();
    assert_eq!(take_received(&hand_over(&node, false)), both);
    let node = node.reopened();
    let notifier = hand_over(&node, true);
    assert_eq!(take_received(&notifier), both);
    node.alarms.remove(raised.alarm.id).unwrap();
    assert_eq!(take_received(&notifier), [(3, AlarmChange::Removed)]);

    // Everything is durable now, and numbers continue.
    let node = node.reopened();
    let notifier = hand_over(&node, true);
    assert_eq!(take_received(&notifier), []);
    let device = node.registry.device("d").unwrap().unwrap();
    node.says(&device, "t", PointValue::Int(31));
    node.next();
    assert_eq!(take_received(&notifier), [(4, AlarmChange::Raised)]);
}

#[test]
fn notifications_follow_their_filter_and_rate_limit() {
    let node = Fixture::new();
    let mut rule = hot();
    rule["notify"] = json!(["named"]);
    node.product(json!([rule]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    let notifications = Arc::new(Notifications::default());
    let transport = Arc::new(RecordingTransport::default());
    notifications.set_transport(transport.clone());
    let objects = node.store.objects();
    let put = |name: &str, value: Json| {
        let read = super::super::check_notification(&value).unwrap();
        let value = serde_json::to_value(read).unwrap();
        objects
            .put(NOTIFICATION_KIND, name, value, store::ExpectedVersion::Any)
            .unwrap();
    };
    put(
        "critical",
        json!({
            "severities": ["CRITICAL"],
            "to": {"mqtt": {"topic": "alarms/${deviceId}"}},
            "min_interval_s": 3600,
        }),
    );
    notifications.watch_objects(objects).unwrap();
    // Later changes of notifications are applied.
    put(
        "named",
        json!({"all": false, "on": ["raised"], "to": {"sink": "hook"}, "text": "${details}!"}),
    );
    put("unnamed", json!({"all": false, "to": {"sink": "hook"}}));
    for value in [31, 60, 40, 60, 20] {
        node.says(&device, "t", PointValue::Int(value));
        notifications.notify(&node.next(), wall_clock::now_ms());
    }
    let notified = std::mem::take(&mut *transport.0.lock().unwrap());
    let notified: Vec<_> = notified
        .iter()
        .map(|(to, row)| {
            (
                to.as_str(),
                row["change"].as_str().unwrap(),
                row["text"].as_str().unwrap(),
            )
        })
        .collect();
    let text = |change: &str| format!("CRITICAL hot of d: {change} 60 °C at d");
    assert_eq!(
        notified,
        [
            ("hook", "raised", "31 °C at d!"),
            ("alarms/d", "severity_changed", &text("severity_changed")),
            ("alarms/d", "cleared", &text("cleared")),
        ]
    );
    let counts = notifications.counts();
    let critical = counts
        .iter()
        .find(|(name, _)| name == "critical")
        .unwrap()
        .1;
    assert_eq!((critical.sent, critical.suppressed), (2, 1));
    // A test is sent whatever the filter.
    assert_eq!(notifications.send_test("critical", 1), Some(Ok(())));
    assert_eq!(notifications.send_test("nosuch", 1), None);
    let notified = std::mem::take(&mut *transport.0.lock().unwrap());
    assert_eq!(notified[0].0, "alarms/$node");
    assert_eq!(notified[0].1["type"], "test");
}

#[test]
fn an_invalid_notification_is_rejected() {
    let check = |value: Json| {
        let checked = super::super::check_notification(&value);
        checked.map(|read| read.to)
    };
    let rejected = [
        json!({"to": {"mqtt": {"topic": "a", "qos": 3}}}),
        json!({"to": {"mqtt": {"topic": "${"}}}),
        json!({"to": {"mqtt": {"topic": ""}}}),
        json!({"to": {"mqtt": {"topic": "a/#"}}}),
        json!({"to": {"sink": "hook"}, "min_interval_s": 604_801}),
        json!({"to": {"sink": "hook"}, "description": "x".repeat(1001)}),
        json!({"to": {"smoke": {}}}),
        json!({"to": {"sink": "hook"}, "on": ["sometimes"]}),
        json!({}),
    ];
    let messages: Vec<_> = rejected
        .into_iter()
        .map(|value| check(value).expect_err("rejected").to_string())
        .collect();
    insta::assert_snapshot!(messages.join("\n"));
    assert_eq!(
        check(json!({"to": {"sink": "hook"}})),
        Ok(NotificationChannel::Sink("hook".into()))
    );
}

/// Panics on one kind of alarm, and when notifications shall become durable for the first time.
#[derive(Default)]
struct PanickingNotifier {
    has_settled: AtomicBool,
}

impl AlarmNotifier for PanickingNotifier {
    fn wants(&self, _: AlarmChange, alarm: &Alarm) -> bool {
        assert_ne!(alarm.kind, "broken", "a bug");
        true
    }

    fn notify(&self, _: &AlarmEvent, _: u64) {}

    fn settle(&self, done: DurableCallback) {
        assert!(self.has_settled.swap(true, Relaxed), "another bug");
        done();
    }
}

#[test]
fn a_panic_of_the_thread_skips_one_step_and_is_counted() {
    let node = Fixture::new();
    node.alarms
        .set_notifier(Arc::new(PanickingNotifier::default()))
        .unwrap();
    node.product(json!([hot()]));
    let device = node.device(json!({"id": "d", "product": "meter"}));
    let submit = |kind: &str| {
        let alarm = SqlRuleAlarm {
            kind: kind.into(),
            severity: Severity::Major,
            is_cleared: false,
            at_ms: 1,
            details: String::new(),
            rule: "test".into(),
            tag: 0,
        };
        node.alarms.submit_sql_rule_alarm(&device, alarm);
    };
    submit("broken");
    submit("fine");
    assert_eq!(node.next().alarm.kind, "fine");
    // One panic was that of the alarm, the other that of a tick.
    let deadline = std::time::Instant::now() + PATIENCE;
    while node.alarms.stats().panics < 2 {
        assert!(std::time::Instant::now() < deadline, "no tick panics");
        std::thread::sleep(Duration::from_millis(5));
    }
    submit("later");
    assert_eq!(node.next().alarm.kind, "later");
    node.alarms.close();
    let (done, closed) = mpsc::channel();
    node.alarms.settle(Box::new(move || done.send(()).unwrap()));
    closed.recv_timeout(PATIENCE).expect("nothing is left");
}
