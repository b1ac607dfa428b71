//! The index finds what looking at every rule finds.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

#[derive(Debug, Clone)]
struct Wanted {
    places: Vec<(usize, Option<&'static str>)>,
    keys: Keys,
}

impl Wanted {
    fn places(&self) -> Vec<Place<'_>> {
        let place = |&(kind, filter): &(usize, Option<&'static str>)| match filter {
            Some(filter) => Place::Topic(kind, filter),
            None => Place::Event(kind),
        };
        self.places.iter().map(place).collect()
    }

    /// What the index may find it by. A name with wildcards is left to WHERE.
    fn can_match(&self, looked: &Looked<'_>) -> bool {
        let filter_matches = |filter: &str| {
            looked
                .topic
                .is_some_and(|topic| mqtt::filter_matches(filter, topic))
        };
        let here = |&(kind, filter): &(usize, Option<&'static str>)| {
            kind == looked.kind && filter.is_none_or(filter_matches)
        };
        let topics = self.keys.topics.iter().all(|key| match key {
            TopicKey::Is(topic) => looked.topic == Some(&**topic),
            TopicKey::Matches(filter) => filter_matches(filter),
        });
        let client_id = self.keys.client_id.as_deref();
        self.places.iter().any(here)
            && topics
            && client_id.is_none_or(|client_id| looked.client_id == Some(client_id))
            && self.keys.qos.is_none_or(|qos| looked.qos == Some(qos))
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

fn keys() -> impl Strategy<Value = Keys> {
    let topic = prop_oneof![
        select(&TOPICS[..]).prop_map(|topic| TopicKey::Is(topic.into())),
        select(&FILTERS[..]).prop_map(|filter| TopicKey::Matches(filter.into())),
    ];
    let topics = prop::collection::vec(topic, 0..3);
    let client_id = prop::option::of(select(&CLIENTS[..]).prop_map(Into::into));
    (topics, client_id, prop::option::of(0..3_u8)).prop_map(|(topics, client_id, qos)| Keys {
        topics,
        client_id,
        qos,
    })
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let place = (
        0..2_usize,
        prop::option::weighted(0.8, select(&FILTERS[..])),
    );
    (prop::collection::vec(place, 1..4), keys()).prop_map(|(places, keys)| Wanted { places, keys })
}

fn looks() -> Vec<Looked<'static>> {
    let mut looks = Vec::new();
    for kind in 0..2 {
        for topic in TOPICS.into_iter().map(Some).chain([None]) {
            for client_id in CLIENTS.into_iter().map(Some).chain([None]) {
                for qos in [Some(0), Some(1), Some(2), None] {
                    looks.push(Looked {
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

fn check(index: &Index<usize>, rules: &[Wanted], gone: &[usize]) {
    for looked in looks() {
        let mut found = Vec::new();
        index.matches(&looked, |&rule| found.push(rule));
        found.sort_unstable();
        let can = |n: &usize| !gone.contains(n) && rules[*n].can_match(&looked);
        let expected: Vec<usize> = (0..rules.len()).filter(can).collect();
        assert_eq!(found, expected, "{looked:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn it_finds_each_rule_that_can_match_once_and_forgets_those_taken_away(
        rules in prop::collection::vec(wanted(), 0..24),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut index = Index::default();
        for (n, rule) in rules.iter().enumerate() {
            index.add(&rule.places(), &rule.keys, &n);
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
                index.remove(&rules[n].places(), &rules[n].keys, |&rule| rule == n);
            }
        }
        check(&index, &rules, &gone);
        // Who still has the old one sees nothing of it.
        check(&before, &rules, &[]);
        for (n, rule) in rules.iter().enumerate() {
            if !gone.contains(&n) {
                index.remove(&rule.places(), &rule.keys, |&rule| rule == n);
            }
        }
        prop_assert!(!index.wants(0) && !index.wants(1));
    }
}

#[test]
fn a_name_has_its_rules() {
    let mut index = Index::default();
    let keys = Keys::default();
    index.add(&[Place::Named("$rule/a"), Place::Event(0)], &keys, &1);
    index.add(
        &[Place::Named("$rule/a"), Place::Named("$rule/a")],
        &keys,
        &2,
    );
    assert_eq!(index.named("$rule/a"), [1, 2]);
    index.remove(&[Place::Named("$rule/a")], &keys, |&rule| rule == 1);
    assert_eq!(index.named("$rule/a"), [2]);
    index.remove(&[Place::Named("$rule/a")], &keys, |&rule| rule == 2);
    let mut names = 0;
    index.for_each_named(|_, _| names += 1);
    assert_eq!((index.named("$rule/a"), names), (&[][..], 0));
}

#[test]
fn a_subscription_to_a_filter_can_be_asked_for_by_name() {
    let mut index = Index::default();
    let keys = Keys {
        topics: vec![TopicKey::Is("a/+".into())],
        ..Keys::default()
    };
    index.add(&[Place::Event(0)], &keys, &1);
    let mut found = 0;
    let looked = Looked {
        kind: 0,
        topic: Some("a/+"),
        client_id: None,
        qos: None,
    };
    index.matches(&looked, |_| found += 1);
    assert_eq!(found, 1);
}
