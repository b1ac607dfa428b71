//! The strategies by which a shared subscription picks the member that gets a message, over two shards.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const STRATEGIES: [&str; 6] = [
    "round_robin",
    "random",
    "sticky",
    "hash_client_id",
    "hash_topic",
    "local",
];

fn node_for(strategy: &str) -> Option<&'static Node> {
    node_with(&[&format!("limits.shared_subscription_strategy={strategy}")])
}

fn join(members: &mut [Raw], filter: &str, qos: u8) {
    for member in members {
        member.subscribe(&format!("$share/group/{filter}"), qos);
    }
}

fn members(node: &Node, count: usize, filter: &str, qos: u8) -> Vec<Raw> {
    let mut members: Vec<Raw> = (0..count).map(|_| client(node)).collect();
    join(&mut members, filter, qos);
    members
}

#[test]
fn every_strategy_delivers_each_message_to_one_member() {
    for strategy in STRATEGIES {
        let Some(node) = node_for(strategy) else {
            return;
        };
        let topic = unique("shared/");
        let mut members = members(node, 5, &format!("{topic}/#"), 2);
        let mut publishers = [client(node), client(node), client(node)];
        for number in 0..60 {
            let publisher = &mut publishers[number % 3];
            let topic = format!("{topic}/{}", number % 7);
            match number % 2 {
                0 => publisher.publish_qos1(&topic, number.to_string(), 1),
                _ => publisher.publish_qos2(&topic, number.to_string(), 1),
            }
        }
        let mut received = collect(&mut members, 60).concat();
        received.sort_unstable();
        assert_eq!(received, (0..60).collect::<Vec<_>>(), "{strategy}");
        for member in &mut members {
            assert_eq!(drain(member), [] as [u32; 0], "{strategy}");
        }
    }
}

#[test]
fn every_strategy_keeps_the_order_within_a_member() {
    for strategy in STRATEGIES {
        let Some(node) = node_for(strategy) else {
            return;
        };
        let topic = unique("shared/");
        let mut members = members(node, 3, &topic, 1);
        let mut publisher = client(node);
        publish_all(&mut publisher, &topic, 0..60);
        for received in collect(&mut members, 60) {
            assert!(received.is_sorted(), "{strategy}: {received:?}");
        }
    }
}

#[test]
fn round_robin_gives_every_member_the_same_number() {
    let Some(node) = node_for("round_robin") else {
        return;
    };
    let topic = unique("shared/");
    let mut members: Vec<Raw> = clients_on_both_shards(node, 2)
        .into_iter()
        .flatten()
        .collect();
    join(&mut members, &topic, 1);
    let mut publisher = client(node);
    publish_all(&mut publisher, &topic, 0..40);
    for received in collect(&mut members, 40) {
        assert_eq!(received.len(), 10, "{received:?}");
    }
}

#[test]
fn random_reaches_every_member() {
    let Some(node) = node_for("random") else {
        return;
    };
    let topic = unique("shared/");
    let mut members: Vec<Raw> = clients_on_both_shards(node, 2)
        .into_iter()
        .flatten()
        .collect();
    join(&mut members, &topic, 1);
    let mut publisher = client(node);
    publish_all(&mut publisher, &topic, 0..400);
    for received in collect(&mut members, 400) {
        // 100 are expected with a deviation of 8.7.
        assert!((40..=160).contains(&received.len()), "{}", received.len());
    }
}

#[test]
fn sticky_stays_with_one_member_until_it_leaves() {
    let Some(node) = node_for("sticky") else {
        return;
    };
    let topic = unique("shared/");
    let mut members: Vec<Raw> = clients_on_both_shards(node, 2)
        .into_iter()
        .flatten()
        .collect();
    join(&mut members, &topic, 1);
    let mut publisher = client(node);
    while members.len() > 1 {
        publish_all(&mut publisher, &topic, 0..20);
        let received = collect(&mut members, 20);
        let chosen: Vec<usize> = (0..members.len())
            .filter(|index| !received[*index].is_empty())
            .collect();
        assert_eq!(chosen.len(), 1, "{received:?}");
        let mut member = members.remove(chosen[0]);
        member.unsubscribe(&format!("$share/group/{topic}"));
    }
}

#[test]
fn hash_client_id_sends_a_publishers_messages_to_one_member() {
    let Some(node) = node_for("hash_client_id") else {
        return;
    };
    let topic = unique("shared/");
    let mut members: Vec<Raw> = clients_on_both_shards(node, 2)
        .into_iter()
        .flatten()
        .collect();
    join(&mut members, &format!("{topic}/#"), 1);
    let mut publishers: Vec<Raw> = (0..16).map(|_| client(node)).collect();
    for round in 0..4 {
        for (index, publisher) in publishers.iter_mut().enumerate() {
            let topic = format!("{topic}/{round}");
            publisher.publish_qos1(&topic, index.to_string(), 1);
        }
    }
    expect_one_member_each(&mut members, 16, 4);
}

#[test]
fn hash_topic_sends_a_topics_messages_to_one_member() {
    let Some(node) = node_for("hash_topic") else {
        return;
    };
    let topic = unique("shared/");
    let mut members: Vec<Raw> = clients_on_both_shards(node, 2)
        .into_iter()
        .flatten()
        .collect();
    join(&mut members, &format!("{topic}/#"), 1);
    // Whoever publishes them, on either shard.
    let mut publishers: Vec<Raw> = clients_on_both_shards(node, 2)
        .into_iter()
        .flatten()
        .collect();
    for publisher in &mut publishers {
        for number in 0..16 {
            publisher.publish_qos1(&format!("{topic}/{number}"), number.to_string(), 1);
        }
    }
    expect_one_member_each(&mut members, 16, 4);
}

/// Each of `kinds` numbers came `times` times, always to the same member, and not all to one.
fn expect_one_member_each(members: &mut [Raw], kinds: usize, times: usize) {
    let received = collect(members, kinds * times);
    let mut members_of: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for (index, numbers) in received.iter().enumerate() {
        for number in numbers {
            members_of.entry(*number).or_default().insert(index);
            *counts.entry(*number).or_default() += 1;
        }
    }
    assert_eq!(counts.len(), kinds);
    assert!(counts.values().all(|count| *count == times), "{counts:?}");
    assert!(
        members_of.values().all(|members| members.len() == 1),
        "{members_of:?}"
    );
    let used: BTreeSet<usize> = members_of.into_values().flatten().collect();
    assert!(used.len() > 1, "every hash leads to one member");
}

#[test]
fn local_prefers_members_on_the_publishers_shard() {
    let Some(node) = node_for("local") else {
        return;
    };
    let topic = unique("shared/");
    let mut members = clients_on_both_shards(node, 2);
    for members in &mut members {
        join(members, &topic, 1);
    }
    let publishers = clients_on_both_shards(node, 1);
    for (shard, publisher) in publishers.into_iter().flatten().enumerate() {
        let mut publisher = publisher;
        publish_all(&mut publisher, &topic, 0..20);
        let mut received = collect(&mut members[shard], 20).concat();
        received.sort_unstable();
        assert_eq!(received, (0..20).collect::<Vec<_>>());
    }
}

#[test]
fn local_takes_a_member_elsewhere_if_there_is_none() {
    let Some(node) = node_for("local") else {
        return;
    };
    let topic = unique("shared/");
    let [mut first, mut second] = clients_on_both_shards(node, 2);
    join(&mut first, &topic, 1);
    publish_all(&mut second[0], &topic, 0..20);
    let received = collect(&mut first, 20);
    assert_eq!(received.concat().len(), 20);
    assert!(received.iter().all(|numbers| !numbers.is_empty()));
}

#[test]
fn members_that_are_away_are_passed_over() {
    for strategy in STRATEGIES {
        let Some(node) = node_for(strategy) else {
            return;
        };
        let topic = unique("shared/");
        let filter = format!("$share/group/{topic}");
        let ids: Vec<String> = (0..3).map(|_| unique("c")).collect();
        for id in &ids {
            let mut away = Raw::connect(node, &session(id, 60));
            away.subscribe(&filter, 1);
            away.disconnect();
        }
        let mut present = [client(node)];
        join(&mut present, &topic, 1);
        let mut publisher = client(node);
        publish_all(&mut publisher, &topic, 0..20);
        assert_eq!(
            collect(&mut present, 20)[0],
            (0..20).collect::<Vec<_>>(),
            "{strategy}"
        );
        for id in &ids {
            expect_silence(&mut Raw::connect(node, &session(id, 0)));
        }
    }
}

#[test]
fn with_every_member_away_messages_wait_for_one_of_them() {
    for strategy in STRATEGIES {
        let Some(node) = node_for(strategy) else {
            return;
        };
        let topic = unique("shared/");
        let filter = format!("$share/group/{topic}");
        let ids: Vec<String> = (0..3).map(|_| unique("c")).collect();
        for id in &ids {
            let mut away = Raw::connect(node, &session(id, 60));
            away.subscribe(&filter, 2);
            away.disconnect();
        }
        let mut publisher = client(node);
        publish_all(&mut publisher, &topic, 0..20);
        let mut members: Vec<Raw> = ids
            .iter()
            .map(|id| Raw::connect(node, &session(id, 0)))
            .collect();
        let mut received = collect(&mut members, 20).concat();
        received.sort_unstable();
        assert_eq!(received, (0..20).collect::<Vec<_>>(), "{strategy}");
    }
}

#[test]
fn members_may_join_and_leave_at_any_time() {
    let Some(node) = node_for("round_robin") else {
        return;
    };
    let topic = unique("shared/");
    let mut steady = members(node, 2, &topic, 1);
    let mut publisher = client(node);
    let mut received = Vec::new();
    for round in 0..10 {
        let mut passing = [client(node)];
        join(&mut passing, &topic, 1);
        publish_all(&mut publisher, &topic, round * 10..round * 10 + 10);
        // Everything of this round is at someone before the member leaves.
        let mut all = Vec::new();
        all.append(&mut steady);
        all.extend(passing);
        received.extend(collect(&mut all, 10).concat());
        let mut passing = all.pop().unwrap();
        steady = all;
        match round % 2 {
            0 => passing.unsubscribe(&format!("$share/group/{topic}")),
            _ => passing.cut(),
        }
    }
    received.sort_unstable();
    assert_eq!(received, (0..100).collect::<Vec<_>>());
}

#[test]
fn an_empty_first_level_is_part_of_the_filter() {
    let Some(node) = node_for("round_robin") else {
        return;
    };
    let topic = unique("/shared/");
    let mut members = members(node, 2, &topic, 0);
    let mut publisher = client(node);
    publish_all(&mut publisher, &topic, 0..4);
    assert_eq!(collect(&mut members, 4).concat().len(), 4);
}
