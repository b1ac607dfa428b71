//! Compares the subscription tree with a naive matcher, over random subscriptions that are added and removed.

use mqtt::{QoS, SubscriptionOptions};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use crate::core::match_set::LocalTargets;
use crate::core::subscriber_list::Subscriber;
use crate::core::subscription_tree::SubscriptionTree;
use crate::core::tables::{SessionIx, TableIx};

/// Shards besides the tree's own.
const SHARDS: u16 = 3;

#[derive(Debug, Clone)]
enum SubscriptionChange {
    Subscribe {
        session: SessionIx,
        filter: String,
        options: SubscriptionOptions,
        identifier: u32,
    },
    Unsubscribe {
        which: usize,
    },
    AddGroup {
        filter: String,
        name: &'static str,
    },
    RemoveGroup {
        which: usize,
    },
    SetRemote {
        filter: String,
        shard: u16,
        is_wanted: bool,
    },
    Match {
        topic: String,
    },
}

/// Everything that routing a message on a topic depends on.
#[derive(Debug, Default, PartialEq)]
struct TopicMatches {
    /// Per session: merged options and all subscription identifiers.
    sessions: BTreeMap<SessionIx, (SubscriptionOptions, Vec<u32>)>,
    groups: BTreeSet<(String, String)>,
    remote: u64,
}

#[derive(Default)]
struct SubscriptionModel {
    subscriptions: BTreeMap<(SessionIx, String), (SubscriptionOptions, u32)>,
    groups: BTreeSet<(String, &'static str)>,
    remote: BTreeSet<(String, u16)>,
}

impl SubscriptionModel {
    fn matches(&self, topic: &str) -> TopicMatches {
        let mut matches = TopicMatches::default();
        for ((session, filter), &(options, identifier)) in &self.subscriptions {
            if !mqtt::filter_matches(filter, topic) {
                continue;
            }
            let merged = matches.sessions.entry(*session);
            let (merged, identifiers) = merged.or_insert((options, Vec::new()));
            // [MQTT-3.3.4-2]; no local and retain as published are those of the most permissive subscription.
            merged.qos = merged.qos.max(options.qos);
            merged.no_local &= options.no_local;
            merged.retain_as_published |= options.retain_as_published;
            identifiers.extend((identifier != 0).then_some(identifier));
            identifiers.sort_unstable();
        }
        for (filter, name) in &self.groups {
            if mqtt::filter_matches(filter, topic) {
                matches.groups.insert((filter.clone(), (*name).to_owned()));
            }
        }
        for (filter, shard) in &self.remote {
            if mqtt::filter_matches(filter, topic) {
                matches.remote |= 1 << shard;
            }
        }
        matches
    }

    fn filters(&self) -> BTreeSet<&str> {
        let subscriptions = self.subscriptions.keys().map(|(_, filter)| filter.as_str());
        let groups = self.groups.iter().map(|(filter, _)| filter.as_str());
        let remote = self.remote.iter().map(|(filter, _)| filter.as_str());
        subscriptions.chain(groups).chain(remote).collect()
    }
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

fn options() -> impl Strategy<Value = SubscriptionOptions> {
    (0..3_u8, any::<bool>(), any::<bool>()).prop_map(|(qos, no_local, retain_as_published)| {
        SubscriptionOptions {
            qos: QoS::try_from(qos).expect("a QoS"),
            no_local,
            retain_as_published,
            ..SubscriptionOptions::default()
        }
    })
}

fn change() -> impl Strategy<Value = SubscriptionChange> {
    prop_oneof![
        3 => ((0..8_usize).prop_map(SessionIx::from_position), filter(), options(), 0..4_u32).prop_map(|(session, filter, options, identifier)| {
            SubscriptionChange::Subscribe { session, filter, options, identifier }
        }),
        2 => (0..64_usize).prop_map(|which| SubscriptionChange::Unsubscribe { which }),
        1 => (filter(), prop_oneof![Just("g1"), Just("g2")])
            .prop_map(|(filter, name)| SubscriptionChange::AddGroup { filter, name }),
        1 => (0..16_usize).prop_map(|which| SubscriptionChange::RemoveGroup { which }),
        1 => (filter(), 0..SHARDS, any::<bool>())
            .prop_map(|(filter, shard, is_wanted)| SubscriptionChange::SetRemote { filter, shard, is_wanted }),
        5 => topic().prop_map(|topic| SubscriptionChange::Match { topic }),
    ]
}

fn matches(tree: &mut SubscriptionTree, topic: &str) -> TopicMatches {
    let (set, filters) = tree.match_topic(topic);
    let mut matches = TopicMatches {
        remote: set.remote_shards,
        ..TopicMatches::default()
    };
    let mut add = |subscriber: &Subscriber, more: &[u32]| {
        let first = (subscriber.identifier != 0).then_some(subscriber.identifier);
        let mut identifiers: Vec<u32> = first.into_iter().chain(more.iter().copied()).collect();
        identifiers.sort_unstable();
        let of_session = (subscriber.options, identifiers);
        let twice = matches.sessions.insert(subscriber.session, of_session);
        assert!(twice.is_none(), "a session is a target once");
    };
    match &set.local_targets {
        LocalTargets::None => {}
        LocalTargets::SingleFilter(filter) => {
            let subscribers = filters[*filter].subscribers.iter();
            subscribers.for_each(|subscriber| add(subscriber, &[]));
        }
        LocalTargets::Merged(targets) => {
            for target in targets {
                add(
                    &target.subscriber,
                    target.more_identifiers.as_deref().unwrap_or(&[]),
                );
            }
        }
    }
    let groups: Vec<_> = set.groups.to_vec();
    for group in groups {
        let group = tree.group(group);
        let filter = tree.filter(group.filter).text.to_string();
        assert!(matches.groups.insert((filter, group.name.to_string())));
    }
    matches
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_tree_matches_what_a_scan_of_all_subscriptions_matches(
        changes in prop::collection::vec(change(), 1..150),
    ) {
        let mut tree = SubscriptionTree::default();
        let mut model = SubscriptionModel::default();
        for change in changes {
            match change {
                SubscriptionChange::Subscribe { session, filter, options, identifier } => {
                    let id = tree.find_or_insert(&filter);
                    let is_new = tree.subscribe(id, Subscriber { session, identifier, options });
                    let replaced = model.subscriptions.insert((session, filter), (options, identifier));
                    prop_assert_eq!(is_new, replaced.is_none());
                }
                SubscriptionChange::Unsubscribe { which } => {
                    let nth = model.subscriptions.keys().nth(which).cloned();
                    let Some((session, filter)) = nth else { continue };
                    let id = tree.find(&filter).expect("it was subscribed to");
                    prop_assert!(tree.unsubscribe(id, session));
                    tree.remove_if_unused(id);
                    model.subscriptions.remove(&(session, filter));
                }
                SubscriptionChange::AddGroup { filter, name } => {
                    let id = tree.find_or_insert(&filter);
                    tree.find_or_insert_group(id, name);
                    model.groups.insert((filter, name));
                }
                SubscriptionChange::RemoveGroup { which } => {
                    let Some((filter, name)) = model.groups.iter().nth(which).cloned() else { continue };
                    let id = tree.find(&filter).expect("it has a group");
                    let group = tree.find_group(id, name).expect("the group was added");
                    tree.remove_group_if_unused(group);
                    model.groups.remove(&(filter, name));
                }
                SubscriptionChange::SetRemote { filter, shard, is_wanted } => {
                    let id = tree.find_or_insert(&filter);
                    tree.set_remote(id, shard, is_wanted);
                    tree.remove_if_unused(id);
                    match is_wanted {
                        true => model.remote.insert((filter, shard)),
                        false => model.remote.remove(&(filter, shard)),
                    };
                }
                SubscriptionChange::Match { topic } => {
                    let expected = model.matches(&topic);
                    // Three times: the first is computed, the second is cached, the third is read from the cache.
                    for _ in 0..3 {
                        prop_assert_eq!(&matches(&mut tree, &topic), &expected, "topic {}", topic);
                    }
                }
            }
        }
        prop_assert_eq!(tree.filters.len(), model.filters().len(), "unused filters are removed");
    }
}

#[test]
fn a_change_of_a_wildcard_filter_leaves_results_of_other_topics_in_the_cache() {
    let mut tree = SubscriptionTree::default();
    let subscriber = |session| Subscriber {
        session,
        identifier: 0,
        options: SubscriptionOptions::default(),
    };
    let a = tree.find_or_insert("a/+");
    tree.subscribe(a, subscriber(SessionIx::from_position(1)));
    for _ in 0..3 {
        matches(&mut tree, "a/1");
    }
    let computed = tree.computed;
    for session in (0..1_000).map(SessionIx::from_position) {
        let b = tree.find_or_insert("b/#");
        tree.subscribe(b, subscriber(session));
        assert_eq!(matches(&mut tree, "a/1").sessions.len(), 1);
        tree.unsubscribe(b, session);
        tree.remove_if_unused(b);
    }
    assert_eq!(tree.computed, computed);
}
