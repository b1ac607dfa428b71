//! The index finds the same rules as a linear scan.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::index_keys::TopicKey;

#[derive(Debug, Clone)]
struct TestRule {
    sources: Vec<RuleSource>,
    keys: IndexKeys,
}

impl TestRule {
    /// Whether the index may return this rule.
    fn can_match(&self, query: &IndexQuery<'_>) -> bool {
        let filter_matches = |filter: &str| {
            query
                .topic
                .is_some_and(|topic| mqtt::filter_matches(filter, topic))
        };
        let here = |source: &RuleSource| match source {
            RuleSource::Event(kind) => *kind == query.kind,
            RuleSource::Topic(filter) => query.kind == EventKind::Publish && filter_matches(filter),
            RuleSource::Rule(_) | RuleSource::Bridge(_) => false,
        };
        let is_topic = |key: &TopicKey| match key {
            TopicKey::Exact(topic) => query.topic == Some(&**topic),
            TopicKey::Filter(filter) => filter_matches(filter),
        };
        let topics = self.keys.topics.as_deref();
        let client_ids = self.keys.client_ids.as_deref();
        let has_qos = |bits: u8| query.qos.is_some_and(|qos| bits & 1 << qos != 0);
        self.sources.iter().any(here)
            && topics.is_none_or(|keys| keys.iter().any(is_topic))
            && client_ids.is_none_or(|client_ids| {
                let mut client_ids = client_ids.iter();
                client_ids.any(|client_id| query.client_id == Some(&**client_id))
            })
            && self.keys.qos.is_none_or(has_qos)
    }
}

const FILTERS: [&str; 13] = [
    "a",
    "a/b",
    "a/b/c",
    "a/+",
    "+/b",
    "a/#",
    "#",
    "+",
    "a/+/c",
    "$SYS/#",
    "+/+/+",
    "a/b/#",
    "sensors/rooms/1",
];
const TOPICS: [&str; 9] = [
    "a",
    "a/b",
    "a/b/c",
    "b",
    "b/b",
    "$SYS/x",
    "a/x/c",
    "sensors/rooms/1",
    "sensors/rooms/2",
];
const CLIENTS: [&str; 3] = ["one", "two", "three"];

fn keys() -> impl Strategy<Value = IndexKeys> {
    let topic = prop_oneof![
        select(&TOPICS[..]).prop_map(|topic| TopicKey::Exact(topic.into())),
        select(&FILTERS[..]).prop_map(|filter| TopicKey::Filter(filter.into())),
    ];
    let topics = prop::collection::vec(topic, 0..4).prop_map(Vec::into_boxed_slice);
    let owned = |ids: Vec<&str>| ids.into_iter().map(Into::into).collect();
    let client_ids = subsequence(&CLIENTS[..], 0..=2).prop_map(owned);
    let qos = prop::option::of(1..8_u8);
    (prop::option::of(topics), prop::option::of(client_ids), qos).prop_map(
        |(topics, client_ids, qos)| IndexKeys {
            topics,
            client_ids,
            qos,
        },
    )
}

fn wanted() -> impl Strategy<Value = TestRule> {
    let source = prop_oneof![
        1 => Just(RuleSource::Event(EventKind::Publish)),
        1 => Just(RuleSource::Event(EventKind::Dropped)),
        6 => select(&FILTERS[..]).prop_map(|filter| RuleSource::Topic(filter.into())),
    ];
    (prop::collection::vec(source, 1..4), keys())
        .prop_map(|(sources, keys)| TestRule { sources, keys })
}

fn looks() -> Vec<IndexQuery<'static>> {
    let mut looks = Vec::new();
    for kind in [EventKind::Publish, EventKind::Dropped] {
        for topic in TOPICS.into_iter().map(Some).chain([None]) {
            for client_id in CLIENTS.into_iter().map(Some).chain([None]) {
                for qos in [Some(0), Some(1), Some(2), None] {
                    looks.push(IndexQuery {
                        kind,
                        topic,
                        client_id,
                        qos,
                    });
                }
            }
        }
    }
    looks
}

fn check(index: &RuleIndex<usize>, rules: &[TestRule], gone: &[usize]) {
    for query in looks() {
        let mut found = Vec::new();
        index.matches(&query, |&rule| found.push(rule));
        found.sort_unstable();
        let can = |n: &usize| !gone.contains(n) && rules[*n].can_match(&query);
        let expected: Vec<usize> = (0..rules.len()).filter(can).collect();
        assert_eq!(found, expected, "{query:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn it_finds_each_rule_that_can_match_once_and_forgets_those_taken_away(
        rules in prop::collection::vec(wanted(), 0..24),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut index = RuleIndex::default();
        for (n, rule) in rules.iter().enumerate() {
            index.add(&rule.sources, &rule.keys, &n);
        }
        let before = index.clone();
        check(&index, &rules, &[]);
        let mut gone = Vec::new();
        for n in removed {
            if rules.is_empty() {
                break;
            }
            let n = n.index(rules.len());
            if !gone.contains(&n) {
                gone.push(n);
                index.remove(&rules[n].sources, &rules[n].keys, |&rule| rule == n);
            }
        }
        check(&index, &rules, &gone);
        // A copy of the old index is unchanged.
        check(&before, &rules, &[]);
        for (n, rule) in rules.iter().enumerate() {
            if !gone.contains(&n) {
                index.remove(&rule.sources, &rule.keys, |&rule| rule == n);
            }
        }
        prop_assert!(!index.has_rules_for(EventKind::Publish) && !index.has_rules_for(EventKind::Dropped));
    }
}

#[test]
fn rules_take_from_rules_and_bridges_by_name() {
    let mut index = RuleIndex::default();
    let keys = IndexKeys::default();
    let (rule, bridge) = (RuleSource::Rule("a".into()), RuleSource::Bridge("a".into()));
    index.add(&[rule.clone(), bridge.clone()], &keys, &1);
    index.add(&[rule.clone(), rule.clone()], &keys, &2);
    assert_eq!(
        (index.rules_chained_to("a"), index.rules_for_bridge("a")),
        (&[1, 2][..], &[1][..])
    );
    index.remove(&[rule.clone(), bridge], &keys, |&value| value == 1);
    assert_eq!(
        (index.rules_chained_to("a"), index.rules_for_bridge("a")),
        (&[2][..], &[][..])
    );
    index.remove(&[rule], &keys, |&value| value == 2);
    assert_eq!(index.rules_chained_to("a"), &[] as &[i32]);
}

#[test]
fn a_subscription_can_be_matched_by_its_filter() {
    let mut index = RuleIndex::default();
    let keys = IndexKeys {
        topics: Some(Box::new([TopicKey::Exact("a/+".into())])),
        ..IndexKeys::default()
    };
    index.add(&[RuleSource::Event(EventKind::Subscribed)], &keys, &1);
    let mut found = 0;
    let query = IndexQuery {
        kind: EventKind::Subscribed,
        topic: Some("a/+"),
        client_id: None,
        qos: None,
    };
    index.matches(&query, |_| found += 1);
    assert_eq!(found, 1);
}
