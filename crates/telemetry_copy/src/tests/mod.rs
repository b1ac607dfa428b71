//! Copies between nodes without sockets: lost messages, restarts, overflow, deletions, and changes of the standby.

mod nodes;

use std::sync::atomic::Ordering;

use series::{DeviceNo, Point, PointValue};

use crate::lock::lock;
use crate::sender::STANDBY_PATIENCE;
use crate::status::CopyState;
use nodes::{CLOCK_S, COPIED, DAY, Origin, Pair, Standby, pair};

#[test]
fn rows_and_deletions_are_copied_in_order() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    // Before anything was sent, and afterwards.
    origin.append("a", 10 * DAY, &[("t", 1), ("u", 2)]);
    origin.append("x", 10 * DAY, &[("t", 1)]);
    origin.settle();
    assert!(standby.is_complete());
    for ts in 0..500 {
        origin.append("a", 11 * DAY + ts, &[("t", ts)]);
        origin.append("b", 12 * DAY + ts, &[("v", ts)]);
    }
    origin.delete("a", None, 11 * DAY, 11 * DAY + 400);
    // Later than the deletion, and a later value of a time.
    origin.append("a", 11 * DAY + 7, &[("t", -7)]);
    origin.append("a", 11 * DAY + 450, &[("t", -450)]);
    origin.delete("b", Some(&["v"]), 12 * DAY + 10, 12 * DAY + 500);
    origin.settle();
    assert_eq!(standby.rows("a"), origin.rows("a"));
    assert_eq!(standby.rows("a").len(), 102);
    assert_eq!(standby.rows("b"), origin.rows("b"));
    assert_eq!(standby.rows("b").len(), 10);
    assert_eq!(standby.rows("x"), []);
    let status = origin.sender.status();
    assert_eq!(status.standby.as_deref(), Some("standby"));
    assert!(status.sent_rows >= 1003, "{status:?}");
}

#[test]
fn lost_messages_and_restarts_of_both_nodes_lose_nothing() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    origin.peers.is_lossy.store(true, Ordering::Relaxed);
    for round in 0..12_i64 {
        for ts in 0..50 {
            let ts = (10 + round) * DAY + ts;
            origin.append("a", ts, &[("t", ts)]);
            origin.append("b", 3 * DAY + round * 100 + ts % DAY, &[("v", ts)]);
        }
        if round % 3 == 2 {
            origin.delete("a", None, (9 + round) * DAY + 10, (10 + round) * DAY + 40);
            origin.append("a", (10 + round) * DAY + 20, &[("t", round)]);
        }
        origin.steps(3 + round as usize % 4);
        match round % 4 {
            0 => {
                standby.kill();
                origin.steps(2);
                standby.start();
            }
            1 => origin = origin.restart(),
            2 => {
                standby.kill();
                origin = origin.restart();
                standby.start();
            }
            _ => origin.settle(),
        }
    }
    origin.settle();
    assert!(origin.rows("a").len() > 250);
    for device in ["a", "b"] {
        assert_eq!(standby.rows(device), origin.rows(device));
    }
    assert!(standby.is_complete());
}

#[test]
fn a_queue_that_overflows_is_completed_from_the_time_series() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    origin.append("a", DAY, &[("t", 0)]);
    origin.settle();
    lock(&origin.peers.unreachable).insert("standby".to_owned());
    origin.steps(2);
    assert_eq!(origin.state(), CopyState::Interrupted);
    // More than the queue has room for.
    for ts in 0..20_000 {
        let name = if ts % 2 == 0 { "a" } else { "b" };
        origin.append(name, 20 * DAY + ts, &[("t", ts), ("u", i64::MAX - ts)]);
    }
    assert!(origin.series.queue_load().has_overflowed);
    origin.delete("a", None, 0, 2 * DAY);
    origin.delete("b", None, 20 * DAY, 20 * DAY + 100);
    origin.append("b", 20 * DAY + 50, &[("t", 50)]);
    lock(&origin.peers.unreachable).clear();
    origin.settle();
    for device in ["a", "b"] {
        assert_eq!(standby.rows(device), origin.rows(device));
    }
    assert_eq!(standby.rows("b").len(), 9951);
}

#[test]
fn a_standby_that_stays_away_is_replaced() {
    let Pair {
        _directory,
        mut origin,
        standby,
    } = pair();
    for ts in 0..3000 {
        origin.append("a", 5 * DAY + ts, &[("t", ts)]);
    }
    origin.settle();
    let other = Standby::new(_directory.path().join("other"));
    other.devices.add("a", 3, COPIED);
    lock(&origin.peers.nodes).insert("other".to_owned(), other.clone());
    origin.settle();
    // It has no reason to change.
    assert_eq!(other.rows("a"), []);
    lock(&origin.peers.unreachable).insert("standby".to_owned());
    origin.delete("a", None, 5 * DAY, 5 * DAY + 1000);
    origin.steps(2);
    assert_eq!(origin.state(), CopyState::Interrupted);
    CLOCK_S.fetch_add(STANDBY_PATIENCE.as_secs() / 2, Ordering::Relaxed);
    origin.steps(2);
    assert_eq!(origin.state(), CopyState::Interrupted);
    CLOCK_S.fetch_add(STANDBY_PATIENCE.as_secs(), Ordering::Relaxed);
    origin.settle();
    assert_eq!(other.rows("a"), origin.rows("a"));
    assert_eq!(other.rows("a").len(), 2000);
    // The former one removes its copy when it hears of the new one.
    assert_eq!(standby.rows("a").len(), 3000);
    let own = origin.sender.own_copy().unwrap();
    assert!(own.is_complete);
    let follow = |standby: &Standby| {
        let keeper = lock(&standby.keeper);
        let keeper = keeper.as_ref().unwrap();
        keeper.follow_announcement("origin", &own);
        keeper.copies().len()
    };
    assert_eq!((follow(&standby), follow(&other)), (0, 1));
}

#[test]
fn devices_that_the_standby_does_not_know_yet_are_copied_later() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    origin.settle();
    origin.devices.add("new", 44, COPIED);
    for ts in 0..10 {
        origin.append("new", DAY + ts, &[("t", ts)]);
    }
    origin.append("a", DAY, &[("t", 5)]);
    origin.steps(5);
    assert_eq!(standby.rows("a"), origin.rows("a"));
    assert!(!standby.is_complete());
    assert_eq!(origin.state(), CopyState::Completing);
    // A restart does not forget them.
    origin = origin.restart();
    origin.steps(5);
    assert!(!standby.is_complete());
    standby.devices.add("new", 12, COPIED);
    origin.settle();
    assert_eq!(standby.rows("new"), origin.rows("new"));
    assert!(standby.is_complete());
}

#[test]
fn products_are_added_and_removed() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    for ts in 0..100 {
        origin.append("a", DAY + ts, &[("t", ts)]);
        origin.append("x", DAY + ts, &[("t", ts)]);
    }
    origin.settle();
    assert_eq!((standby.rows("a").len(), standby.rows("x").len()), (100, 0));
    origin.devices.set_products(&[COPIED, "other"]);
    let covers = |product: &str| {
        let keeper = lock(&standby.keeper);
        keeper.as_ref().unwrap().copies()[0].covers(product)
    };
    assert!(covers(COPIED) && !covers("other"));
    for _ in 0..3 {
        CLOCK_S.fetch_add(3, Ordering::Relaxed);
        origin.settle();
    }
    assert_eq!(standby.rows("x"), origin.rows("x"));
    assert!(covers("other"));
    origin.devices.set_products(&["other"]);
    for _ in 0..3 {
        CLOCK_S.fetch_add(3, Ordering::Relaxed);
        origin.settle();
    }
    assert_eq!((standby.rows("a").len(), standby.rows("x").len()), (0, 100));
    assert!(!covers(COPIED));
    // A device that moves to a copied product takes its rows along with its next one.
    origin.devices.add("a", 0, "other");
    origin.append("a", DAY + 200, &[("t", 1)]);
    origin.settle();
    assert_eq!(standby.rows("a"), origin.rows("a"));
    // Nothing is to be copied any more.
    origin.devices.set_products(&[]);
    for _ in 0..8 {
        CLOCK_S.fetch_add(3, Ordering::Relaxed);
        origin.steps(1);
    }
    assert_eq!(origin.state(), CopyState::NotWanted);
    let own = origin.sender.own_copy().unwrap();
    let keeper = lock(&standby.keeper);
    let keeper = keeper.as_ref().unwrap();
    keeper.follow_announcement("origin", &own);
    assert!(keeper.copies().is_empty());
}

#[test]
fn the_copy_of_lost_time_series_stays() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    for ts in 0..100 {
        origin.append("a", DAY + ts, &[("t", ts)]);
    }
    origin.settle();
    let Origin {
        directory,
        devices,
        peers,
        series,
        sender,
    } = origin;
    drop((series, sender));
    std::fs::remove_dir_all(directory.join("telemetry")).unwrap();
    let mut origin = Origin::open(&directory, devices, peers);
    origin.append("a", 2 * DAY, &[("t", 1)]);
    origin.settle();
    let places = {
        let keeper = lock(&standby.keeper);
        keeper.as_ref().unwrap().places()
    };
    let orphans: Vec<_> = places.iter().map(|place| place.is_orphan).collect();
    assert_eq!(orphans.iter().filter(|is_orphan| **is_orphan).count(), 1);
    assert_eq!(places.len(), 2);
    assert_eq!(standby.rows("a").len(), 101);
}

#[test]
fn rows_that_are_stored_together_are_copied_without_those_that_are_rejected() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    origin.settle();
    let key = origin.series.series().get_or_create_key("t").unwrap();
    let values: Vec<[Point<'_>; 1]> = (0..30)
        .map(|number| {
            let value = PointValue::Int(number);
            [Point { key, value }]
        })
        .collect();
    // Of `a`, `b` and `x` in turn; the third row of `a` is empty, and `x` is not copied.
    let row = |at: usize| {
        let points = if at == 6 { &[][..] } else { &values[at][..] };
        (DeviceNo(at as u32 % 3), DAY + at as i64 / 6, points)
    };
    let mut rejected = Vec::new();
    origin
        .series
        .submit_row_refs(values.len(), row, |at| at % 3 != 2, &mut |at, _| {
            rejected.push(at);
        });
    assert_eq!(rejected, [6]);
    origin.settle();
    for device in ["a", "b"] {
        assert_eq!(standby.rows(device), origin.rows(device));
        assert_eq!(standby.rows(device).len(), 5);
    }
    // Of two values of one time, the later one.
    assert_eq!(standby.rows("a")[4], (DAY + 4, vec![("t".to_owned(), 27)]));
    assert_eq!(standby.rows("x"), []);
}

#[test]
fn after_a_restart_only_days_with_new_rows_are_sent_again() {
    let Pair {
        mut origin,
        standby,
        _directory,
    } = pair();
    for day in 1..20 {
        for ts in 0..100 {
            origin.append("a", day * DAY + ts, &[("t", ts)]);
        }
    }
    origin.series.series().flush().unwrap();
    origin.settle();
    assert_eq!(origin.sender.status().sent_rows, 1900);
    origin = origin.restart();
    origin.settle();
    assert_eq!(origin.sender.status().sent_rows, 0);
    // Stored, and not sent when the node ends.
    origin.append("a", 7 * DAY + 500, &[("t", 1)]);
    origin.append("b", 30 * DAY, &[("t", 1)]);
    origin = origin.restart();
    origin.settle();
    let sent = origin.sender.status().sent_rows;
    assert!((2..=102).contains(&sent), "{sent}");
    for device in ["a", "b"] {
        assert_eq!(standby.rows(device), origin.rows(device));
    }
}
