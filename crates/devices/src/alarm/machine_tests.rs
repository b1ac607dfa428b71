//! Tests the alarms of one device with a simulated clock.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::super::definition::rules_from_json;
use super::*;

const START_MS: u64 = 1_800_000_000_000;

/// One device with alarm rules.
struct Device {
    set: AlarmSet,
    alarms: DeviceAlarms,
    now_ms: u64,
}

impl Device {
    fn new(rules: Json) -> Self {
        let set = compile(rules).expect("rules");
        let alarms = DeviceAlarms::new(&set);
        Self {
            set,
            alarms,
            now_ms: START_MS,
        }
    }

    fn key(&self, name: &str) -> KeyId {
        key_of(name)
    }

    /// The device sends a value that was measured `age_s` seconds ago.
    fn says_of(
        &mut self,
        age_s: u64,
        key: &str,
        value: PointValue<'_>,
    ) -> Vec<AlarmTransitionKind> {
        let points = [Point {
            key: self.key(key),
            value,
        }];
        let ts_ms = (self.now_ms - age_s * 1000).cast_signed();
        let mut out = Vec::new();
        self.alarms
            .observe(&self.set, self.now_ms, ts_ms, &points, &|_| None, &mut out);
        out.iter().map(|turn| turn.kind).collect()
    }

    fn says(&mut self, value: i64) -> Vec<AlarmTransitionKind> {
        self.says_of(0, "t", PointValue::Int(value))
    }

    /// Advances the clock and evaluates the device at each due time.
    fn waits(&mut self, seconds: u64) -> Vec<AlarmTransitionKind> {
        let end_ms = self.now_ms + seconds * 1000;
        let mut out = Vec::new();
        while let Some(due_ms) = self.alarms.due_ms(&self.set, self.now_ms) {
            if due_ms > end_ms {
                break;
            }
            assert!(
                due_ms > self.now_ms,
                "due in the past: it would be evaluated for ever"
            );
            self.now_ms = due_ms;
            self.alarms.tick(&self.set, due_ms, &|_| None, &mut out);
        }
        self.now_ms = end_ms;
        out.iter().map(|turn| turn.kind).collect()
    }
}

fn key_of(name: &str) -> KeyId {
    KeyId(name.bytes().map(u32::from).sum())
}

fn compile(rules: Json) -> Result<AlarmSet, String> {
    let rules = rules_from_json(&rules).map_err(|problem| problem.to_string())?;
    AlarmSet::compile(&rules, &mut |name| Ok(key_of(name))).map_err(|problem| problem.to_string())
}

fn above(limit: i64) -> Json {
    json!({"key": "t", "is": ">", "value": limit})
}

use AlarmTransitionKind::{Cleared, Raised, SeverityChanged};
use Severity::{Critical, Minor, Warning};

#[test]
fn an_alarm_is_raised_once_changes_its_severity_and_is_cleared() {
    let mut device = Device::new(json!([{
        "id": "hot",
        "raise": [
            {"severity": "WARNING", "when": above(30)},
            {"severity": "CRITICAL", "when": above(50)},
        ],
        "clear": {"when": {"key": "t", "is": "<", "value": 25}},
    }]));
    assert_eq!(device.says(20), []);
    assert_eq!(device.says(31), [Raised(Warning)]);
    assert_eq!(device.says(32), []);
    let changed = |from, to| vec![SeverityChanged { from, to }];
    assert_eq!(device.says(51), changed(Warning, Critical));
    assert_eq!(device.says(40), changed(Critical, Warning));
    assert_eq!(device.says(28), []);
    assert_eq!(device.says(24), [Cleared]);
    assert_eq!(device.says(23), []);
    assert_eq!(device.says(60), [Raised(Critical)]);
}

#[test]
fn without_a_clear_condition_an_operator_has_to_clear_the_alarm() {
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30)}]}
    ]));
    assert_eq!(device.says(31), [Raised(Minor)]);
    assert_eq!(device.says(0), []);
    device.alarms.mark_cleared(0);
    assert_eq!(device.says(0), []);
    assert_eq!(device.says(31), [Raised(Minor)]);
}

#[test]
fn a_duration_elapses_without_further_messages() {
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30), "for_s": 60}]}
    ]));
    assert_eq!(device.says(31), []);
    assert_eq!(device.waits(59), []);
    assert_eq!(device.waits(1), [Raised(Minor)]);
    assert_eq!(device.waits(1000), []);
}

#[test]
fn a_duration_restarts_after_an_interruption() {
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30), "for_s": 60}]}
    ]));
    assert_eq!(device.says(31), []);
    assert_eq!(device.waits(50), []);
    assert_eq!(device.says(30), []);
    assert_eq!(device.waits(5), []);
    assert_eq!(device.says(31), []);
    assert_eq!(device.waits(59), []);
    assert_eq!(device.waits(1), [Raised(Minor)]);
}

#[test]
fn late_data_is_evaluated_at_its_own_time() {
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30), "for_s": 60}]}
    ]));
    assert_eq!(device.says_of(600, "t", PointValue::Int(31)), []);
    assert_eq!(device.says_of(570, "t", PointValue::Int(32)), []);
    assert_eq!(
        device.says_of(540, "t", PointValue::Int(33)),
        [Raised(Minor)]
    );
    // Values older than the latest one are ignored.
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30)}]}
    ]));
    assert_eq!(device.says(20), []);
    assert_eq!(device.says_of(1, "t", PointValue::Int(31)), []);
}

#[test]
fn a_clock_in_the_future_does_not_run_ahead() {
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30), "for_s": 60}]}
    ]));
    device.now_ms -= 3_600_000;
    let ts_ms = START_MS.cast_signed();
    let point = |value| {
        [Point {
            key: key_of("t"),
            value: PointValue::Int(value),
        }]
    };
    let mut out = Vec::new();
    for ahead_ms in [0, 120_000] {
        let (now_ms, ts_ms) = (device.now_ms, ts_ms + ahead_ms);
        let points = point(31);
        device
            .alarms
            .observe(&device.set, now_ms, ts_ms, &points, &|_| None, &mut out);
    }
    assert_eq!(out, []);
    assert_eq!(device.waits(60), [Raised(Minor)]);
}

#[test]
fn repeating_counts_messages_within_a_time() {
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30), "times": 3, "within_s": 60}]}
    ]));
    assert_eq!(device.says(31), []);
    device.waits(40);
    assert_eq!(device.says(31), []);
    device.waits(40);
    assert_eq!(device.says(20), []);
    // The first match is outside of the window.
    assert_eq!(device.says(31), []);
    device.waits(10);
    assert_eq!(device.says(31), [Raised(Minor)]);
}

#[test]
fn repeating_without_a_time_counts_one_after_the_other() {
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30), "times": 3}]}
    ]));
    for value in [31, 31, 20, 31, 31] {
        assert_eq!(device.says(value), []);
        // A message with another key is not a repetition.
        assert_eq!(device.says_of(0, "u", PointValue::Int(31)), []);
    }
    device.waits(100_000);
    assert_eq!(device.says(31), [Raised(Minor)]);
}

#[test]
fn silence_is_an_alarm_until_a_message_arrives() {
    let silent = |value| json!({"key": "t", "is": "silent_for", "value": value});
    let mut device = Device::new(json!([{
        "id": "silent",
        "raise": [{"severity": "WARNING", "when": silent(300)}],
        "clear": {"when": {"key": "t", "is": ">", "value": -1000}},
    }]));
    assert_eq!(device.waits(1000), []);
    assert_eq!(device.says(1), []);
    assert_eq!(device.waits(299), []);
    assert_eq!(device.says(1), []);
    assert_eq!(device.waits(299), []);
    assert_eq!(device.waits(1), [Raised(Warning)]);
    assert_eq!(device.says(1), [Cleared]);
}

#[test]
fn the_connection_state_is_a_key() {
    let online = |value| json!({"key": "$online", "is": "=", "value": value});
    let mut device = Device::new(json!([{
        "id": "away",
        "raise": [{"severity": "CRITICAL", "when": online(false), "for_s": 10}],
        "clear": {"when": online(true)},
    }]));
    let goes = |device: &mut Device, is_online| {
        let mut out = Vec::new();
        device
            .alarms
            .observe_online(&device.set, device.now_ms, is_online, &|_| None, &mut out);
        out.iter().map(|turn| turn.kind).collect::<Vec<_>>()
    };
    assert_eq!(goes(&mut device, false), []);
    assert_eq!(device.waits(5), []);
    assert_eq!(goes(&mut device, true), []);
    assert_eq!(device.waits(100), []);
    assert_eq!(goes(&mut device, false), []);
    assert_eq!(device.waits(10), [Raised(Critical)]);
    assert_eq!(goes(&mut device, true), [Cleared]);
}

#[test]
fn a_backlog_is_evaluated_at_its_own_time_after_a_reconnect() {
    let online = |value| json!({"key": "$online", "is": "=", "value": value});
    let mut device = Device::new(json!([
        {"id": "hot", "raise": [{"severity": "MINOR", "when": above(30), "for_s": 60}],
         "clear": {"when": {"key": "t", "is": "<=", "value": 30}}},
        {"id": "away", "raise": [{"severity": "CRITICAL", "when": online(false), "for_s": 10}],
         "clear": {"when": online(true)}},
    ]));
    let goes = |device: &mut Device, is_online| {
        let mut out = Vec::new();
        device
            .alarms
            .observe_online(&device.set, device.now_ms, is_online, &|_| None, &mut out);
        out.iter().map(|turn| turn.kind).collect::<Vec<_>>()
    };
    assert_eq!(goes(&mut device, true), []);
    assert_eq!(device.says(20), []);
    assert_eq!(goes(&mut device, false), []);
    assert_eq!(device.waits(3600), [Raised(Critical)]);
    assert_eq!(goes(&mut device, true), [Cleared]);
    // Too hot for 90 s, one hour ago, and cool again since then.
    assert_eq!(device.says_of(3500, "t", PointValue::Int(40)), []);
    assert_eq!(device.says_of(3450, "t", PointValue::Int(41)), []);
    assert_eq!(
        device.says_of(3410, "t", PointValue::Int(41)),
        [Raised(Minor)]
    );
    assert_eq!(device.says_of(3400, "t", PointValue::Int(20)), [Cleared]);
    // Absence is measured with the clock of the node, whatever is reported late.
    assert_eq!(goes(&mut device, false), []);
    assert_eq!(device.waits(9), []);
    assert_eq!(device.waits(1), [Raised(Critical)]);
}

#[test]
fn a_restored_alarm_continues() {
    let mut device = Device::new(json!([{
        "id": "hot",
        "raise": [{"severity": "WARNING", "when": above(30)}],
        "clear": {"when": {"key": "t", "is": "<", "value": 25}},
    }]));
    device.alarms.restore(0, Warning);
    assert_eq!(device.says(31), []);
    assert_eq!(device.says(20), [Cleared]);
}

#[test]
fn invalid_rules_are_rejected_with_their_path() {
    let rule = |raise: Json| json!([{"id": "hot", "raise": [raise]}]);
    let with = |fields: Json| {
        let mut raise = json!({"severity": "MINOR", "when": above(30)});
        let fields = fields.as_object().expect("fields").clone();
        raise.as_object_mut().expect("a raise").extend(fields);
        rule(raise)
    };
    let hot = json!({"id": "hot", "raise": [{"severity": "MINOR", "when": above(1)}]});
    let rejected = [
        json!([{"id": "a/b", "raise": []}]),
        json!([{"id": "hot", "raise": []}]),
        json!([hot, hot]),
        with(json!({"for_s": 0})),
        with(json!({"times": 0})),
        with(json!({"within_s": 5})),
        with(json!({"for_s": 5, "times": 5})),
        with(json!({"severity": "BAD"})),
        with(json!({"when": {"key": "t", "is": ">"}})),
        with(json!({"when": {"key": "t"}})),
        with(json!({"when": {"all": [{"any": [{"kez": "t"}]}]}})),
        with(json!({"for": 5})),
    ];
    let said: Vec<_> = rejected
        .into_iter()
        .map(|rules| compile(rules).expect_err("rejected"))
        .collect();
    insta::assert_snapshot!(said.join("\n"));
}

/// Reference model: whether a condition has held for `for_s`, computed from all values.
fn has_lasted(said: &[(u64, i64)], now_s: u64, for_s: u64) -> bool {
    let since = said
        .iter()
        .rev()
        .take_while(|(_, value)| *value > 30)
        .last();
    since.is_some_and(|(at_s, _)| now_s - at_s >= for_s)
}

proptest! {
    #[test]
    fn durations_match_the_reference_model(
        steps in prop::collection::vec((0..40_u64, prop::option::of(25..36_i64)), 1..60),
    ) {
        let mut device = Device::new(json!([{
            "id": "hot",
            "raise": [{"severity": "MINOR", "when": above(30), "for_s": 60}],
            "clear": {"when": {"key": "t", "is": "<=", "value": 30}},
        }]));
        let mut said = Vec::new();
        let mut is_active = false;
        let follow = |is_active: &mut bool, transitions: Vec<AlarmTransitionKind>| {
            for one in transitions {
                *is_active = matches!(one, Raised(_));
            }
        };
        for (wait_s, value) in steps {
            let transitions = device.waits(wait_s);
            follow(&mut is_active, transitions);
            let now_s = (device.now_ms - START_MS) / 1000;
            prop_assert_eq!(is_active, has_lasted(&said, now_s, 60));
            if let Some(value) = value {
                let transitions = device.says(value);
                follow(&mut is_active, transitions);
                said.push((now_s, value));
                prop_assert_eq!(is_active, has_lasted(&said, now_s, 60));
            }
        }
    }

    #[test]
    fn repetitions_match_the_reference_model(
        steps in prop::collection::vec((0..40_u64, 25..36_i64), 1..60),
    ) {
        let mut device = Device::new(json!([{
            "id": "hot",
            "raise": [{"severity": "MINOR", "when": above(30), "times": 3, "within_s": 60}],
        }]));
        let mut hits: Vec<u64> = Vec::new();
        for (wait_s, value) in steps {
            device.waits(wait_s);
            let now_s = (device.now_ms - START_MS) / 1000;
            if value > 30 {
                hits.push(now_s);
            }
            let recent = hits.iter().filter(|at_s| **at_s + 60 >= now_s).count();
            let expected = value > 30 && recent >= 3;
            let transitions = device.says(value);
            prop_assert_eq!(!transitions.is_empty(), expected);
            if expected {
                device.alarms.mark_cleared(0);
                hits.clear();
            }
        }
    }
}
