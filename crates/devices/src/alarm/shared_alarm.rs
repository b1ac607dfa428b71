//! An alarm as a record that all nodes of a cluster have: its id, its content, and what becomes of changes of two nodes.

use serde::{Deserialize, Serialize};

use super::record::{Alarm, AlarmComment, AlarmId, MAX_COMMENTS};

/// The parts of the id of a record, with NUL between them. None of them ever changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AlarmName<'a> {
    pub(super) device: &'a str,
    pub(super) id: AlarmId,
    raised_at_ms: u64,
    /// The node that has raised it.
    node: &'a str,
}

impl<'a> AlarmName<'a> {
    /// `None`: the alarm is not shared.
    pub(super) fn of(alarm: &'a Alarm) -> Option<Self> {
        match alarm.is_of_node() {
            true => None,
            false => Some(Self {
                device: &alarm.device,
                id: alarm.id,
                raised_at_ms: alarm.raised_at_ms,
                node: alarm.node.as_deref()?,
            }),
        }
    }

    pub(super) fn record_id(self) -> String {
        let Self {
            device,
            id,
            raised_at_ms,
            node,
        } = self;
        format!("{device}\0{}\0{raised_at_ms}\0{node}", id.0)
    }

    pub(super) fn parse(record_id: &'a str) -> Option<Self> {
        let mut parts = record_id.split('\0');
        let name = Self {
            device: parts.next()?,
            id: AlarmId(parts.next()?.parse().ok()?),
            raised_at_ms: parts.next()?.parse().ok()?,
            node: parts.next().filter(|node| !node.is_empty())?,
        };
        parts.next().is_none().then_some(name)
    }
}

/// The beginning of the ids of all records about a device.
pub(super) fn ids_of_device(device: &str) -> String {
    format!("{device}\0")
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AlarmContent {
    /// When the device was created: a later one with the same id is another device.
    pub(super) created_ms: u64,
    /// Ids of the gateways that the alarm is propagated to. Numbers of devices are those of one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gateways: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    severity_changes: u32,
    pub(super) alarm: Alarm,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl AlarmContent {
    pub(super) fn new(alarm: Alarm, created_ms: u64, gateways: Vec<String>) -> Self {
        Self {
            created_ms,
            gateways,
            severity_changes: alarm.severity_changes,
            alarm,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an alarm has string keys only")
    }

    /// The content of the record with this name, without numbers of devices. `None`: it is damaged, or of a later version.
    pub(super) fn decode(name: AlarmName<'_>, content: &[u8]) -> Option<Self> {
        let mut content: Self = serde_json::from_slice(content).ok()?;
        content.alarm.severity_changes = content.severity_changes;
        content.alarm.refresh_state();
        let is_its = AlarmName::of(&content.alarm) == Some(name);
        is_its.then_some(content)
    }
}

/// What two nodes know about an alarm. Acknowledgements, comments and the end of the alarm are never lost; of two severities,
/// that with more changes before it remains, and of as many, that of the later record.
pub(super) fn merged(own: &Alarm, other: &Alarm, is_other_later: bool) -> Alarm {
    let mut alarm = own.clone();
    let is_other_newer = other.severity_changes > own.severity_changes
        || (other.severity_changes == own.severity_changes && is_other_later);
    if is_other_newer {
        alarm.severity = other.severity;
        alarm.severity_changes = other.severity_changes;
        alarm.changed_at_ms = other.changed_at_ms;
        alarm.details.clone_from(&other.details);
        alarm.values.clone_from(&other.values);
    }
    (alarm.acknowledged_at_ms, alarm.acknowledged_by) = first_of(
        (own.acknowledged_at_ms, &own.acknowledged_by),
        (other.acknowledged_at_ms, &other.acknowledged_by),
    );
    (alarm.cleared_at_ms, alarm.cleared_by) = first_of(
        (own.cleared_at_ms, &own.cleared_by),
        (other.cleared_at_ms, &other.cleared_by),
    );
    alarm.comments = merged_comments(&own.comments, &other.comments);
    alarm.refresh_state();
    alarm
}

/// The first one of two actions that happen once.
fn first_of(
    own: (Option<u64>, &Option<String>),
    other: (Option<u64>, &Option<String>),
) -> (Option<u64>, Option<String>) {
    let (at_ms, by) = match (own.0, other.0) {
        (None, Some(_)) => other,
        (Some(_), None) | (None, None) => own,
        (Some(_), Some(_)) => own.min(other),
    };
    (at_ms, by.clone())
}

/// Comments of both, the oldest first.
fn merged_comments(own: &[AlarmComment], other: &[AlarmComment]) -> Vec<AlarmComment> {
    if own == other {
        return own.to_vec();
    }
    let mut comments: Vec<_> = own.iter().chain(other).cloned().collect();
    let rank = |comment: &AlarmComment| (comment.at_ms, comment.by.clone(), comment.text.clone());
    comments.sort_by_cached_key(rank);
    comments.dedup();
    comments.truncate(MAX_COMMENTS);
    comments
}

/// When the alarm changed last, as far as is known.
pub(super) fn last_change_ms(alarm: &Alarm) -> u64 {
    let comments = alarm.comments.iter().map(|comment| comment.at_ms);
    let times = [
        Some(alarm.raised_at_ms),
        Some(alarm.changed_at_ms),
        alarm.cleared_at_ms,
        alarm.acknowledged_at_ms,
    ];
    times
        .into_iter()
        .flatten()
        .chain(comments)
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, json};
    use series::DeviceNo;

    use super::*;
    use crate::alarm::definition::Severity;
    use crate::alarm::record::{AlarmState, DeviceNumbers};

    fn alarm() -> Alarm {
        Alarm {
            id: AlarmId(7),
            kind: "hot".to_owned(),
            severity: Severity::Major,
            state: AlarmState::ActiveUnack,
            device: "pump".to_owned(),
            product: "p".to_owned(),
            namespace: "default".to_owned(),
            details: "Too hot".to_owned(),
            values: Map::new(),
            rule: String::new(),
            notify: Vec::new(),
            raised_at_ms: 10,
            changed_at_ms: 10,
            cleared_at_ms: None,
            cleared_by: None,
            acknowledged_at_ms: None,
            acknowledged_by: None,
            comments: Vec::new(),
            node: Some("node-1".to_owned()),
            severity_changes: 0,
            device_no: DeviceNumbers(vec![DeviceNo(3)]),
        }
    }

    fn comment(at_ms: u64) -> AlarmComment {
        AlarmComment {
            at_ms,
            by: "ann".to_owned(),
            text: at_ms.to_string(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_is_written() {
        let mut alarm = alarm();
        alarm.severity_changes = 4;
        alarm.values = json!({"t": 1.5}).as_object().unwrap().clone();
        let id = AlarmName::of(&alarm).unwrap().record_id();
        let name = AlarmName::parse(&id).unwrap();
        assert_eq!((name.device, name.id), ("pump", AlarmId(7)));
        assert!(id.starts_with(&ids_of_device("pump")));
        let content = AlarmContent::new(alarm.clone(), 5, vec!["gateway".to_owned()]);
        let read = AlarmContent::decode(name, &content.encode()).unwrap();
        alarm.device_no = DeviceNumbers::default();
        assert_eq!(read, AlarmContent { alarm, ..content });
        for invalid in [
            "",
            "pump",
            "pump\x007",
            "pump\x007\x001\x00",
            "pump\0x\x001\0n",
            "pump\x007\x001\0n\0",
        ] {
            assert_eq!(AlarmName::parse(invalid), None, "{invalid:?}");
        }
        let other = AlarmName {
            raised_at_ms: 11,
            ..name
        };
        assert_eq!(AlarmContent::decode(other, &read.encode()), None);
        assert_eq!(AlarmContent::decode(name, b"{}"), None);
        let of_node = Alarm {
            device_no: DeviceNumbers(vec![super::super::node_subject::NODE_NO]),
            ..read.alarm
        };
        assert_eq!(AlarmName::of(&of_node), None);
    }

    #[test]
    fn an_acknowledgement_survives_an_update_of_another_node() {
        let (mut acknowledged, mut updated) = (alarm(), alarm());
        acknowledged.acknowledged_at_ms = Some(20);
        acknowledged.acknowledged_by = Some("ann".to_owned());
        acknowledged.comments = vec![comment(21)];
        updated.severity = Severity::Critical;
        updated.severity_changes = 1;
        updated.cleared_at_ms = Some(30);
        updated.comments = vec![comment(5)];
        for is_later in [false, true] {
            let merged = merged(&acknowledged, &updated, is_later);
            assert_eq!(merged.state, AlarmState::ClearedAck);
            assert_eq!(merged.severity, Severity::Critical);
            assert_eq!(merged.acknowledged_by.as_deref(), Some("ann"));
            assert_eq!(merged.comments, [comment(5), comment(21)]);
        }
    }

    #[test]
    fn of_two_changes_of_the_severity_the_later_one_remains() {
        let (mut one, mut other) = (alarm(), alarm());
        (one.severity, one.severity_changes) = (Severity::Minor, 2);
        (other.severity, other.severity_changes) = (Severity::Critical, 2);
        assert_eq!(merged(&one, &other, true).severity, Severity::Critical);
        assert_eq!(merged(&one, &other, false).severity, Severity::Minor);
        // The clock of a node may be wrong, but not the number of changes that it has seen.
        other.severity_changes = 1;
        assert_eq!(merged(&one, &other, true).severity, Severity::Minor);
    }

    #[test]
    fn comments_are_bounded() {
        let (mut one, mut other) = (alarm(), alarm());
        one.comments = (0..40).map(comment).collect();
        other.comments = (20..60).map(comment).collect();
        let merged = merged(&one, &other, true);
        assert_eq!(merged.comments, (0..50).map(comment).collect::<Vec<_>>());
    }

    prop_compose! {
        fn changed()(
            changes in 0..3u32, acknowledged in prop::option::of(0..4u64), cleared in prop::option::of(0..4u64),
            comments in prop::collection::btree_set(0..4u64, 0..3),
        ) -> Alarm {
            let mut alarm = alarm();
            alarm.severity_changes = changes;
            alarm.details = changes.to_string();
            alarm.acknowledged_at_ms = acknowledged;
            alarm.acknowledged_by = acknowledged.map(|at| format!("u{}", at % 2));
            alarm.cleared_at_ms = cleared;
            alarm.comments = comments.into_iter().map(comment).collect();
            alarm.refresh_state();
            alarm
        }
    }

    proptest! {
        #[test]
        fn the_order_of_merging_does_not_matter(a in changed(), b in changed(), c in changed()) {
            prop_assert_eq!(merged(&a, &a, true), a.clone());
            prop_assert_eq!(merged(&a, &b, true), merged(&b, &a, false));
            let left = merged(&merged(&a, &b, true), &c, true);
            prop_assert_eq!(left, merged(&a, &merged(&b, &c, true), true));
        }
    }
}
