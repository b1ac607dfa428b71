//! The subscription tree against the obvious matcher, over random subscriptions that come and go.

use mqtt::SubscriptionOptions;
use proptest::prelude::*;
use std::collections::BTreeSet;

use crate::core::sublist::Subscriber;
use crate::core::tree::{Locals, SubscriptionTree};

#[derive(Debug, Clone)]
enum Change {
    Subscribe { session: u32, filter: String },
    Unsubscribe { which: usize },
    Match { topic: String },
}

fn level() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c"), Just(""), Just("$SYS")]
}

fn topic() -> impl Strategy<Value = String> {
    prop::collection::vec(level(), 1..5)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("a topic has a character", |topic| !topic.is_empty())
}

fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![3 => level(), 2 => Just("+")];
    (prop::collection::vec(level, 0..5), any::<bool>())
        .prop_map(|(mut levels, hash)| {
            if hash || levels.is_empty() {
                levels.push("#");
            }
            levels.join("/")
        })
        .prop_filter("a filter has a character", |filter| !filter.is_empty())
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..8_u32, filter()).prop_map(|(session, filter)| Change::Subscribe { session, filter }),
        2 => (0..64_usize).prop_map(|which| Change::Unsubscribe { which }),
        4 => topic().prop_map(|topic| Change::Match { topic }),
    ]
}

fn matched(tree: &mut SubscriptionTree, topic: &str) -> Vec<u32> {
    let (set, filters) = tree.matches(topic);
    let mut sessions: Vec<u32> = match &set.locals {
        Locals::None => Vec::new(),
        Locals::One(filter) => filters[*filter as usize]
            .subscribers
            .iter()
            .map(|s| s.session)
            .collect(),
        Locals::Merged(targets) => targets.iter().map(|t| t.subscriber.session).collect(),
    };
    sessions.sort_unstable();
    sessions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_tree_says_what_the_obvious_matcher_says(changes in prop::collection::vec(change(), 1..120)) {
        let mut tree = SubscriptionTree::default();
        let mut model: BTreeSet<(u32, String)> = BTreeSet::new();
        for change in changes {
            match change {
                Change::Subscribe { session, filter } => {
                    let id = tree.find_or_insert(&filter);
                    let options = SubscriptionOptions::default();
                    let is_new = tree.subscribe(id, Subscriber { session, identifier: 0, options });
                    prop_assert_eq!(is_new, model.insert((session, filter)));
                }
                Change::Unsubscribe { which } => {
                    let Some((session, filter)) = model.iter().nth(which).cloned() else { continue };
                    let id = tree.find(&filter).expect("it was subscribed to");
                    prop_assert!(tree.unsubscribe(id, session));
                    tree.remove_if_unused(id);
                    model.remove(&(session, filter));
                }
                Change::Match { topic } => {
                    let expected: BTreeSet<u32> = model
                        .iter()
                        .filter(|(_, filter)| mqtt::filter_matches(filter, &topic))
                        .map(|(session, _)| *session)
                        .collect();
                    let expected: Vec<u32> = expected.into_iter().collect();
                    // Three times: the first is computed, the second kept, the third read from what was kept.
                    for _ in 0..3 {
                        prop_assert_eq!(&matched(&mut tree, &topic), &expected, "topic {}", topic);
                    }
                }
            }
        }
        let left: BTreeSet<String> = model.into_iter().map(|(_, filter)| filter).collect();
        prop_assert_eq!(tree.filters.len(), left.len(), "filters nobody needs are gone");
    }
}
