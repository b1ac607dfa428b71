//! Lists of a shard's objects: any page size gives the same rows, and objects removed meanwhile do not hide others.

use mqtt::QoS;

use super::sim::Sim;
use crate::config::BrokerLimits;
use crate::core::inspection::{OldestQueuedScan, ScanStep, SessionRowScan, ShardScan, TopicScan};
use crate::core::shard::Shard;
use crate::info::{ClientInfo, ListQuery, SubscriptionInfo};

fn answer<W: ShardScan>(shard: &mut Shard, mut scan: W) -> W::ScanResult {
    loop {
        match scan.step(shard) {
            ScanStep::Continue(further) => scan = further,
            ScanStep::Done(answer) => return answer,
        }
    }
}

fn page(after: Option<String>, limit: usize) -> ListQuery {
    ListQuery {
        after,
        limit,
        ..ListQuery::default()
    }
}

/// More sessions than one step examines, some with several subscriptions, every third with none.
fn crowd() -> (Sim, Vec<(String, String)>) {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let mut subscriptions = Vec::new();
    for n in 0..5_000_u32 {
        // Scattered, so that the order of arrival differs from that of ids.
        let id = format!("c{:05}", n.wrapping_mul(2_654_435_761) >> 12);
        let mut conn = sim.connect(0, &id, true);
        if n % 3 == 0 {
            continue;
        }
        for filter in ["z/+", "a/b", "$share/g/a/#"]
            .into_iter()
            .take(1 + n as usize % 3)
        {
            sim.subscribe(&mut conn, filter, QoS::AtMostOnce);
            subscriptions.push((id.clone(), filter.to_owned()));
        }
    }
    subscriptions.sort();
    (sim, subscriptions)
}

fn pairs(rows: Vec<SubscriptionInfo>) -> Vec<(String, String)> {
    let pair = |row: SubscriptionInfo| (row.client_id, row.topic_filter);
    rows.into_iter().map(pair).collect()
}

#[test]
fn a_page_of_subscriptions_is_the_beginning_of_all_of_them() {
    let (mut sim, expected) = crowd();
    let shard = &mut sim.shards[0];
    for limit in [
        0,
        1,
        2,
        1000,
        expected.len() - 1,
        expected.len(),
        usize::MAX,
    ] {
        let rows = answer(
            shard,
            SessionRowScan::<SubscriptionInfo>::new(page(None, limit)),
        );
        assert_eq!(pairs(rows), expected[..limit.min(expected.len())]);
    }
    // After a client: from the next client on.
    let behind = expected[1000].0.clone();
    let rest = expected.iter().position(|(id, _)| *id > behind).unwrap();
    let rows = answer(
        shard,
        SessionRowScan::<SubscriptionInfo>::new(page(Some(behind), 10)),
    );
    assert_eq!(pairs(rows), expected[rest..rest + 10]);
}

#[test]
fn conditions_on_filters_choose_subscriptions() {
    let (mut sim, all) = crowd();
    let shard = &mut sim.shards[0];
    let of = |query: ListQuery, shard: &mut Shard| {
        pairs(answer(
            shard,
            SessionRowScan::<SubscriptionInfo>::new(query),
        ))
    };
    let all = |wanted: &[&str]| -> Vec<(String, String)> {
        let wanted = all
            .iter()
            .filter(|(_, filter)| wanted.contains(&filter.as_str()));
        wanted.cloned().collect()
    };
    for (filter, expected) in [
        ("$share/g/a/#", all(&["$share/g/a/#"])),
        ("a/b", all(&["a/b"])),
        ("a/#", Vec::new()),
        ("$share//a", Vec::new()),
    ] {
        let query = ListQuery {
            topic_filter: Some(filter.to_owned()),
            ..page(None, usize::MAX)
        };
        assert_eq!(of(query, shard), expected, "{filter}");
    }
    for (topic, expected) in [
        ("a/b", all(&["a/b", "$share/g/a/#"])),
        ("z/1", all(&["z/+"])),
        ("$SYS/x", Vec::new()),
    ] {
        let query = ListQuery {
            matches_topic: Some(topic.to_owned()),
            ..page(None, usize::MAX)
        };
        assert_eq!(of(query, shard), expected, "{topic}");
    }
}

#[test]
fn a_page_is_full_although_sessions_end_while_it_is_made() {
    let (mut sim, _) = crowd();
    let shard = &mut sim.shards[0];
    let all = answer(
        shard,
        SessionRowScan::<ClientInfo>::new(page(None, usize::MAX)),
    );
    let ids: Vec<String> = all.into_iter().map(|row| row.client_id).collect();
    assert_eq!(ids.len(), 5_000);
    let mut scan = SessionRowScan::<ClientInfo>::new(page(None, 300));
    let mut steps = 0;
    let rows = loop {
        match scan.step(shard) {
            ScanStep::Continue(further) => scan = further,
            ScanStep::Done(rows) => break rows,
        }
        steps += 1;
        if steps == 2 {
            // All were examined, none were listed.
            ids[..250]
                .iter()
                .for_each(|id| assert!(shard.terminate_client(id)));
        }
    };
    let got: Vec<String> = rows.into_iter().map(|row| row.client_id).collect();
    assert_eq!(got, ids[250..550]);
}

#[test]
fn topics_are_the_first_by_text_of_those_with_subscribers_here() {
    let mut sim = Sim::new(2, BrokerLimits::default(), 1);
    let mut here = sim.connect(0, "here", true);
    let mut there = sim.connect(1, "there", true);
    let mut expected = Vec::new();
    for n in 0..5_000_u32 {
        let filter = match n % 3 {
            0 => format!("$share/g/{}", n.wrapping_mul(2_654_435_761)),
            _ => format!("{}", n.wrapping_mul(2_654_435_761)),
        };
        let conn = if n % 5 == 0 { &mut there } else { &mut here };
        sim.subscribe(conn, &filter, QoS::AtMostOnce);
        sim.settle();
        if n % 5 != 0 {
            expected.push(filter);
        }
    }
    expected.sort();
    let texts = |query: ListQuery, shard: &mut Shard| -> Vec<String> {
        let rows = answer(shard, TopicScan::new(query));
        rows.into_iter().map(|row| row.topic_filter).collect()
    };
    let shard = &mut sim.shards[0];
    for limit in [0, 1, 100, usize::MAX] {
        let got = texts(page(None, limit), shard);
        assert_eq!(got, expected[..limit.min(expected.len())]);
    }
    let after = Some(expected[2000].clone());
    assert_eq!(texts(page(after, 10), shard), expected[2001..2011]);
}

#[test]
fn the_oldest_queued_message_is_found_on_any_shard() {
    let (mut sim, _) = crowd();
    let mut away = sim.connect(0, "away", false);
    sim.subscribe(&mut away, "q", QoS::AtLeastOnce);
    sim.drop_connection(away);
    let mut publisher = sim.connect(0, "publisher", true);
    assert_eq!(answer(&mut sim.shards[0], OldestQueuedScan::default()), 0);
    sim.publish(&mut publisher, "q", b"x", QoS::AtLeastOnce, 1);
    sim.pass(2_000);
    assert_eq!(
        answer(&mut sim.shards[0], OldestQueuedScan::default()),
        2_000
    );
}

#[test]
fn a_session_without_a_connection_shows_why_the_last_one_ended() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let of = |shard: &mut Shard| {
        let rows = answer(
            shard,
            SessionRowScan::<ClientInfo>::new(page(None, usize::MAX)),
        );
        let reason = rows[0].disconnect_reason.as_deref().map(str::to_owned);
        (rows[0].connected, reason)
    };
    let connection = sim.connect(0, "pump", false);
    assert_eq!(of(&mut sim.shards[0]), (true, None));
    sim.drop_connection(connection);
    assert_eq!(of(&mut sim.shards[0]), (false, Some("test".to_owned())));
    sim.connect(0, "pump", false);
    assert_eq!(of(&mut sim.shards[0]), (true, None));
}
