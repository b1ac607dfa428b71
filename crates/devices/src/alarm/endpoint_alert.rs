//! Alarms as `alert` messages to the connections of a relay endpoint.

use serde_json::{Value, json};

use super::definition::{AlarmCondition, AlarmRule, ConditionTest, Severity, TestOperator};
use super::event::AlarmEvent;
use super::record::Alarm;
use crate::device::Device;

/// The `alert` message for a change of an alarm. `device`: the device of the alarm, if it is registered.
#[must_use]
pub fn endpoint_alert(endpoint: &str, event: &AlarmEvent, device: Option<&Device>) -> Value {
    let alarm = &*event.alarm;
    let test = device.and_then(|device| raising_test(device, alarm));
    let key = match &test {
        Some(test) => Some(test.key.as_str()),
        None => alarm.values.keys().next().map(String::as_str),
    };
    // Devices of the endpoint are known there by their own ids.
    let own_id = (alarm.device.strip_prefix(endpoint)).and_then(|rest| rest.strip_prefix(':'));
    json!({
        "type": "alert",
        "alertId": alarm.id,
        "ruleId": alarm.kind,
        "ruleName": alarm.kind,
        "deviceId": own_id.unwrap_or(&alarm.device),
        "dbDeviceId": alarm.device,
        "deviceName": device.map_or(alarm.device.as_str(), Device::name),
        "dataKey": key,
        "triggeredValue": key.and_then(|key| alarm.values.get(key)),
        "threshold": test.as_ref().and_then(|test| test.value.as_ref()),
        "operator": test.as_ref().map(|test| operator_text(test.is)),
        "alertLevel": level(alarm.severity),
        "triggeredAt": alarm.changed_at_ms,
        "change": event.change,
        "details": alarm.details,
    })
}

/// The test that has raised the alarm, if its condition is a single one.
fn raising_test(device: &Device, alarm: &Alarm) -> Option<ConditionTest> {
    if !alarm.rule.is_empty() {
        return None;
    }
    let product = device.product.get();
    let mut rules = product.definition.alarms.iter();
    let rule = rules.find(|rule| rule["id"] == alarm.kind.as_str())?;
    let rule: AlarmRule = serde_json::from_value(rule.clone()).ok()?;
    let trigger = (rule.raise.into_iter()).find(|trigger| trigger.severity == alarm.severity)?;
    match trigger.when.when {
        AlarmCondition::Test(test) => Some(test),
        AlarmCondition::All(_) | AlarmCondition::Any(_) => None,
    }
}

fn operator_text(operator: TestOperator) -> &'static str {
    match operator {
        TestOperator::Equal => "==",
        TestOperator::NotEqual => "!=",
        TestOperator::Greater => ">",
        TestOperator::GreaterOrEqual => ">=",
        TestOperator::Less => "<",
        TestOperator::LessOrEqual => "<=",
        TestOperator::Contains => "contains",
        TestOperator::Between => "between",
        TestOperator::SilentFor => "silent_for",
    }
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "critical",
        Severity::Major | Severity::Minor | Severity::Warning => "warning",
        Severity::Indeterminate => "info",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Map;
    use store::{ExpectedVersion, Store, StoreConfig};

    use super::*;
    use crate::alarm::record::DeviceNumbers;
    use crate::alarm::{AlarmChange, AlarmId, AlarmState};
    use crate::{PRODUCT_KIND, Registry, RegistryConfig, WritePrecondition};

    fn event(values: Value) -> AlarmEvent {
        let alarm = Alarm {
            id: AlarmId(7),
            kind: "hot".to_owned(),
            severity: Severity::Major,
            state: AlarmState::ActiveUnack,
            device: "room:pump".to_owned(),
            product: "p".to_owned(),
            namespace: "default".to_owned(),
            details: "Too hot".to_owned(),
            values: values.as_object().cloned().unwrap_or_else(Map::new),
            rule: String::new(),
            notify: Vec::new(),
            raised_at_ms: 1,
            changed_at_ms: 2,
            cleared_at_ms: None,
            cleared_by: None,
            acknowledged_at_ms: None,
            acknowledged_by: None,
            comments: Vec::new(),
            node: None,
            severity_changes: 0,
            device_no: DeviceNumbers::default(),
        };
        AlarmEvent {
            change: AlarmChange::Raised,
            alarm: Arc::new(alarm),
            tag: 0,
            change_no: 0,
        }
    }

    #[test]
    fn an_alert_names_the_test_that_has_raised_the_alarm() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(directory.path(), StoreConfig::default()).unwrap();
        let registry = Registry::open(store.objects(), RegistryConfig::default()).unwrap();
        let raise = |severity: &str, value: u32| json!({"severity": severity, "when": {"key": "t", "is": ">=", "value": value}});
        let raise = [raise("CRITICAL", 90), raise("MAJOR", 80)];
        let product = json!({"alarms": [{"id": "hot", "raise": raise}]});
        let objects = store.objects();
        objects
            .put(PRODUCT_KIND, "p", product, ExpectedVersion::Any)
            .unwrap();
        let device = json!({"id": "room:pump", "product": "p", "name": "Pump"});
        let device = serde_json::from_value(device).unwrap();
        let device = registry
            .put(device, WritePrecondition::Absent)
            .unwrap()
            .device;
        let event = event(json!({"other": 1, "t": 81}));
        assert_eq!(
            endpoint_alert("room", &event, Some(&device)),
            json!({
                "type": "alert", "alertId": 7, "ruleId": "hot", "ruleName": "hot",
                "deviceId": "pump", "dbDeviceId": "room:pump", "deviceName": "Pump",
                "dataKey": "t", "triggeredValue": 81, "threshold": 80, "operator": ">=",
                "alertLevel": "warning", "triggeredAt": 2, "change": "raised", "details": "Too hot",
            })
        );
    }

    #[test]
    fn an_alert_of_another_device_has_no_test() {
        let alert = endpoint_alert("other", &event(json!({"t": 81})), None);
        assert_eq!(alert["deviceId"], "room:pump");
        assert_eq!(
            (&alert["dataKey"], &alert["triggeredValue"]),
            (&json!("t"), &json!(81))
        );
        assert_eq!(
            (&alert["threshold"], &alert["operator"]),
            (&Value::Null, &Value::Null)
        );
    }
}
