//! Tests of device events and device actions with recording ports.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use hooks::{
    BrokerPort, Hooks, MessageOrigin, MessageView, OutgoingMessages, PublishTicket, PublishVerdict,
};
use mqtt::ReasonCode;
use serde_json::json;

use super::*;
use crate::ports::{DeviceAlarm, DevicePort, DevicePortOutcome, DeviceTelemetry};
use crate::{RuleCounter, RuleEngineSettings};

/// Records what it receives.
#[derive(Default)]
struct RecordingDevices {
    lines: Mutex<Vec<String>>,
    /// Name, time and tag of each alarm.
    alarms: Mutex<Vec<(String, u64, u64)>>,
    full_for: AtomicU32,
}

/// Records topics and payloads of published messages.
#[derive(Default)]
struct RecordingBroker {
    messages: Mutex<Vec<(String, String)>>,
}

impl BrokerPort for RecordingBroker {
    fn publish_outgoing(
        &self,
        _order_key: u64,
        outgoing: OutgoingMessages,
        done: Box<dyn FnOnce() + Send>,
    ) {
        let messages = (outgoing.iter()).map(|message| {
            let payload = String::from_utf8_lossy(message.payload).into_owned();
            (message.topic.to_owned(), payload)
        });
        self.messages.lock().unwrap().extend(messages);
        done();
    }

    fn acknowledge(&self, _: PublishTicket, _: ReasonCode) {}

    fn refresh_hook_interest(&self) {}
}

impl DevicePort for RecordingDevices {
    fn write_telemetry(&self, producer: u16, telemetry: &DeviceTelemetry<'_>) -> DevicePortOutcome {
        let mut values = Vec::new();
        Value::Map(telemetry.values).write_json(&mut values);
        let values = String::from_utf8(values).unwrap();
        let (device, at) = (telemetry.device_id, telemetry.timestamp_ms);
        let line = format!("{producer} {device} {at} {values}");
        self.lines.lock().unwrap().push(line);
        match device {
            "stranger" => DevicePortOutcome::Rejected("there is no device \"stranger\"".into()),
            "busy" => {
                self.full_for.store(1, Relaxed);
                DevicePortOutcome::Full
            }
            _ => DevicePortOutcome::Accepted,
        }
    }

    fn write_alarm(&self, _producer: u16, alarm: &DeviceAlarm<'_>) -> DevicePortOutcome {
        let DeviceAlarm {
            device_id, name, ..
        } = *alarm;
        let severity = alarm.severity.name();
        let line = format!("{device_id} {name} {severity} {}", alarm.is_cleared);
        self.lines.lock().unwrap().push(line);
        let raised = (name.to_owned(), alarm.timestamp_ms, alarm.tag);
        self.alarms.lock().unwrap().push(raised);
        DevicePortOutcome::Accepted
    }

    fn is_full(&self) -> bool {
        let left = self.full_for.load(Relaxed);
        self.full_for.store(left.saturating_sub(1), Relaxed);
        left > 0
    }
}

fn engine() -> (Engine, Arc<RecordingDevices>) {
    let engine = Engine::new(RuleEngineSettings::default(), 2);
    let devices = Arc::new(RecordingDevices::default());
    engine.set_device_port(devices.clone());
    (engine, devices)
}

fn hot(device_id: &str) -> DeviceEvent<'_> {
    DeviceEvent {
        product_id: "sensor",
        key: Some("t"),
        value: Value::Float(31.5),
        properties: Value::Json(r#"{"t": 31.5, "h": 40}"#),
        client_id: "gateway",
        topic: Some("a/b"),
        ..DeviceEvent::new(DeviceEventKind::Property, device_id, 1_000)
    }
}

#[tokio::test]
async fn a_rule_reads_the_fields_of_a_device_in_both_spellings_and_its_messages_are_published() {
    let (engine, _) = engine();
    let broker = Arc::new(RecordingBroker::default());
    assert!(engine.shared.ports.broker.set(broker.clone()).is_ok());
    assert!(!engine.wants_device_events());
    engine.handle_device_event(hot("d1")).await;
    let sql = "SELECT deviceId, product_id AS product, kind, key, value, properties.h AS h, clientid, topic, timestamp \
               FROM \"$EVENT.DEVICE\" WHERE kind = 'property' AND device_id = 'd1' AND value > 30";
    let rule = json!({"sql": sql, "actions": [{"kind": "republish", "topic": "hot/${deviceId}"}]});
    engine.put_rule("r", Some(&rule));
    assert!(engine.wants_device_events());
    engine.handle_device_event(hot("d2")).await;
    assert!(broker.messages.lock().unwrap().is_empty());
    engine.handle_device_event(hot("d1")).await;
    let expected = r#"{"deviceId":"d1","product":"sensor","kind":"property","key":"t","value":31.5,"h":40,"clientid":"gateway","topic":"a/b","timestamp":1000}"#;
    let messages = std::mem::take(&mut *broker.messages.lock().unwrap());
    assert_eq!(messages, [("hot/d1".to_owned(), expected.to_owned())]);
    engine.put_rule("r", None);
    assert!(!engine.wants_device_events());
}

#[test]
fn telemetry_and_alarms_need_a_device_port() {
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    let rule = json!({"sql": "SELECT * FROM \"t\"", "actions": [{"kind": "telemetry"}]});
    let rejected = engine
        .prepare_rule("r", &rule)
        .expect_err("there is no device port");
    assert_eq!(rejected.field, "actions[0].kind");
    assert!(
        rejected.detail.contains("no devices"),
        "{}",
        rejected.detail
    );
    assert!(!engine.schemas().0.to_string().contains("telemetry"));
    let (engine, _) = self::engine();
    assert!(engine.prepare_rule("r", &rule).is_ok());
    assert!(engine.schemas().0.to_string().contains("telemetry"));
    for (alarm, field) in [
        (json!({"kind": "alarm"}), "actions[0].name"),
        (
            json!({"kind": "alarm", "name": "x", "severity": "bad"}),
            "actions[0].severity",
        ),
        (
            json!({"kind": "alarm", "name": "x", "clear": 1}),
            "actions[0].clear",
        ),
    ] {
        let rule = json!({"sql": "SELECT * FROM \"t\"", "actions": [alarm]});
        let rejected = engine.prepare_rule("r", &rule).expect_err("it is not good");
        assert_eq!(rejected.field, field);
    }
}

#[test]
fn device_writes_arrive_and_a_full_device_port_makes_publishers_wait() {
    let (engine, devices) = engine();
    let rule = json!({
        "sql": "SELECT 31.5 AS t2 FROM \"t\"",
        "actions": [{"kind": "telemetry", "timestamp": "${timestamp + 1}"}],
    });
    engine.put_rule("r", Some(&rule));
    let mut hooks = engine.hooks_factory().hooks_for(0);
    let publish = |hooks: &mut dyn Hooks, device: &str| {
        let message = MessageView::from_client(device, "t", b"", 1_000);
        hooks.publish(&message, &MessageOrigin::default())
    };
    for (device, verdict) in [
        ("d1", PublishVerdict::ContinueAndCollect),
        ("stranger", PublishVerdict::Continue),
    ] {
        // Acknowledgements wait for what is accepted.
        assert_eq!(publish(&mut *hooks, device), verdict);
        assert_eq!(hooks.has_unsettled_work(), device == "d1");
        assert!(hooks.take_backpressure().is_none());
    }
    let verdict = publish(&mut *hooks, "busy");
    assert_eq!(verdict, PublishVerdict::ContinueAndCollect);
    assert!(hooks.take_outgoing().is_none());
    let waits = hooks.take_backpressure().expect("the devices are full");
    assert!(waits() && !waits() && hooks.take_backpressure().is_none());
    let lines = std::mem::take(&mut *devices.lines.lock().unwrap());
    let expected = ["d1", "stranger", "busy"].map(|id| format!("0 {id} 1001 {{\"t2\":31.5}}"));
    assert_eq!(lines, expected);
    let totals = engine.status("r").unwrap().totals;
    assert_eq!(totals.get(RuleCounter::ActionsSucceeded), 2);
    assert_eq!(totals.get(RuleCounter::ActionsFailed), 1);
}

#[tokio::test]
async fn alarms_of_rules_are_evaluated_as_events_and_loops_end() {
    let (engine, devices) = engine();
    let alarm = |name: &str| json!({"kind": "alarm", "name": name, "severity": "critical"});
    let rule = |sql: &str, name: &str| json!({"sql": sql, "actions": [alarm(name)]});
    // Each rule reacts to the alarm of the other rule and not to its own.
    let sql = "SELECT * FROM \"$EVENT.DEVICE\" WHERE key != 'b'";
    engine.put_rule("a", Some(&rule(sql, "a")));
    let sql = "SELECT * FROM \"$EVENT.DEVICE\" WHERE key = 'a'";
    engine.put_rule("b", Some(&rule(sql, "b")));
    engine.handle_device_event(hot("d1")).await;
    loop {
        let alarms = std::mem::take(&mut *devices.alarms.lock().unwrap());
        if alarms.is_empty() {
            break;
        }
        for (name, timestamp_ms, tag) in alarms {
            let event = DeviceEvent {
                key: Some(&name),
                tag,
                ..DeviceEvent::new(DeviceEventKind::Alarm, "d1", timestamp_ms)
            };
            engine.handle_device_event(event).await;
        }
    }
    let lines = devices.lines.lock().unwrap();
    assert_eq!(*lines, ["d1 a CRITICAL false", "d1 b CRITICAL false"]);
}

#[tokio::test]
async fn an_event_outside_the_shards_is_awaited() {
    let (engine, devices) = engine();
    let rule = json!({"sql": "SELECT value AS v FROM \"$EVENT.DEVICE\"", "actions": [{"kind": "telemetry"}]});
    engine.put_rule("r", Some(&rule));
    engine.handle_device_event(hot("busy")).await;
    assert_eq!(*devices.lines.lock().unwrap(), ["3 busy 1000 {\"v\":31.5}"]);
    assert_eq!(devices.full_for.load(Relaxed), 0, "it was waited for");
}
