//! Submitted messages are stored in order and exactly once.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{StoreFixture, small, wait_until};
use store::{Fsync, StateKind, Store, StoreConfig, StoreHealth};

fn seqs(stored: &[store::QueueEntry]) -> Vec<u64> {
    stored.iter().map(|stored| stored.seq).collect()
}

#[test]
fn messages_are_fetched_as_they_were_queued() {
    for fsync in [Fsync::Always, Fsync::default(), Fsync::Never] {
        let dir = tempfile::tempdir().unwrap();
        let mut bench = StoreFixture::open(
            dir.path(),
            StoreConfig {
                fsync,
                ..StoreConfig::default()
            },
        );
        bench.write(|batch| {
            batch.begin_message(&[b"top", b"ic", b"payload"]);
            batch.add_entry(1, 1, 0, b"one");
            batch.add_entry(2, 77, 5, b"");
            batch.begin_message(&[]);
            batch.add_entry(1, 4, 0, &[9; 300]);
        });
        let found = bench.fetch_all(1, 1);
        assert_eq!(seqs(&found), [1, 4]);
        assert_eq!(found[0].body, &b"topicpayload"[..]);
        assert_eq!(found[0].attributes, &b"one"[..]);
        assert_eq!((found[1].body.len(), found[1].attributes.len()), (0, 300));
        let found = bench.fetch_all(2, 10);
        assert_eq!((found[0].seq, found[0].packet_id), (77, 5));
        assert_eq!(found[0].body, &b"topicpayload"[..]);
        assert!(bench.fetch_all(3, 10).is_empty());
    }
}

#[test]
fn states_of_a_message_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    bench.write(|batch| {
        for seq in 1..=5 {
            batch.begin_message(&[b"body", &[seq as u8]]);
            batch.add_entry(9, seq, 0, b"a");
        }
        batch.mark_sent(9, 1, 11);
        batch.mark_sent(9, 2, 12);
        batch.mark_released(9, 2);
        batch.complete_entry(9, 3);
        batch.mark_sent(9, 4, 14);
        batch.mark_sent(9, 4, 0);
        batch.add_received_id(9, 700);
        batch.add_received_id(9, 3);
        batch.add_received_id(9, 5);
        batch.remove_received_id(9, 700);
        batch.begin_message(&[b"gone"]);
        batch.add_entry(10, 1, 0, b"");
        batch.end_session(10);
        batch.put(StateKind::Sessions, b"nine", b"9");
        batch.put(StateKind::Retained, b"t", b"old");
        batch.put(StateKind::Retained, b"u", b"old");
    });
    bench.write(|batch| {
        batch.put(StateKind::Retained, b"t", b"new");
        batch.delete(StateKind::Retained, b"u");
    });
    let check = |bench: &StoreFixture| {
        let found = bench.fetch_all(9, 100);
        assert_eq!(seqs(&found), [1, 2, 4, 5]);
        let ids: Vec<u16> = found.iter().map(|stored| stored.packet_id).collect();
        assert_eq!(ids, [11, 12, 0, 0]);
        assert!(found[1].released && found[1].body.is_empty());
        assert_eq!(found[1].attributes, &b"a"[..]);
        assert_eq!(found[2].body, &b"body\x04"[..]);
    };
    check(&bench);
    drop(bench);

    let (store, report) = Store::open(dir.path(), small()).unwrap();
    assert_eq!((report.queued_messages, report.truncation), (4, None));
    assert_eq!(store.queued_sessions(), [9]);
    let summary = store.queue(9).unwrap();
    assert_eq!((summary.messages, summary.bytes), (4, 15));
    assert_eq!((summary.first_seq, summary.last_seq), (1, 5));
    assert_eq!(summary.received, [3, 5]);
    assert_eq!(store.queue(10), None);
    let mut retained = Vec::new();
    store
        .scan(StateKind::Retained, &mut |key, value| {
            retained.push((key.to_vec(), value.to_vec()));
        })
        .unwrap();
    assert_eq!(retained, [(b"t".to_vec(), b"new".to_vec())]);
    check(&StoreFixture::start(store));
}

#[test]
fn pruning_leaves_what_is_put_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    let keys: Vec<Vec<u8>> = (0..50_u8).map(|key| vec![key]).collect();
    let read = |bench: &StoreFixture| {
        let mut found = Vec::new();
        let mut each = |key: &[u8], value: &[u8]| found.push((key.to_vec(), value.to_vec()));
        bench.store.scan(StateKind::Retained, &mut each).unwrap();
        found
    };
    let store = bench.store.clone();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pruner = scope.spawn(|| {
            let (mut pruned, started) = (0, Instant::now());
            while !is_done.load(Ordering::Relaxed) && started.elapsed() < Duration::from_secs(120) {
                let keys = &mut keys.iter().map(Vec::as_slice);
                let is_old = &mut |value: &[u8]| value == b"old";
                pruned += store.prune(StateKind::Retained, keys, is_old).unwrap();
            }
            pruned
        });
        for _ in 0..20 {
            for value in [b"old", b"new"] {
                for key in &keys {
                    bench.write(|batch| batch.put(StateKind::Retained, key, value));
                }
            }
            let expected: Vec<_> = keys.iter().map(|k| (k.clone(), b"new".to_vec())).collect();
            wait_until("everything new is there", || read(&bench) == expected);
        }
        // An unchanged value is found.
        bench.write(|batch| batch.put(StateKind::Retained, &keys[0], b"old"));
        wait_until("the old one is pruned", || read(&bench).len() < keys.len());
        is_done.store(true, Ordering::Relaxed);
        assert!(pruner.join().unwrap() > 0);
    });
}

#[test]
fn segments_are_given_back_when_what_was_in_them_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    // One session keeps its message in the very first segment; all other messages are removed again.
    bench.write(|batch| {
        batch.begin_message(&[b"old"]);
        batch.add_entry(1, 1, 0, b"x");
        batch.add_entry(2, 1, 7, b"");
        batch.mark_released(2, 1);
        batch.add_received_id(1, 40);
        batch.put(StateKind::Sessions, b"one", b"1");
    });
    for seq in 1..=20_000 {
        bench.submit(|batch| {
            batch.begin_message(&[&[7; 100]]);
            batch.add_entry(3, seq, 0, b"");
            batch.complete_entry(3, seq);
        });
    }
    bench.write(|batch| batch.complete_entry(3, 1));
    wait_until("segments go", || bench.store.stats().segments < 10);
    let stats = bench.store.stats();
    assert_eq!((stats.live_messages, stats.queued_sessions), (2, 2));
    assert!(stats.written_bytes > 20 * stats.log_bytes / 10);
    for session in [1, 2] {
        assert_eq!(seqs(&bench.fetch_all(session, 10)), [1]);
    }
    drop(bench);

    let (store, report) = Store::open(dir.path(), small()).unwrap();
    assert_eq!(report.queued_messages, 2);
    assert_eq!(store.queue(1).unwrap().received, [40]);
    let bench = StoreFixture::start(store);
    assert_eq!(bench.fetch_all(1, 10)[0].body, &b"old"[..]);
    let found = bench.fetch_all(2, 10);
    assert!(found[0].released && found[0].packet_id == 7);
}

#[test]
fn compaction_leaves_less_than_twice_what_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    for seq in 1..=10_000 {
        bench.submit(|batch| {
            batch.begin_message(&[&[7; 64]]);
            batch.add_entry(seq % 100, seq, 0, b"");
        });
    }
    bench.write(|batch| {
        (1..=10_000).for_each(|seq| {
            if seq % 4 != 0 {
                batch.complete_entry(seq % 100, seq);
            }
        })
    });
    bench.store.compact();
    wait_until("it is compact", || !bench.store.is_compacting());
    let store = bench.store.clone();
    store.close();
    let stats = store.stats();
    assert_eq!(stats.live_messages, 2500);
    let files = std::fs::read_dir(dir.path().join("log")).unwrap();
    let bytes: u64 = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(bytes < 2 * 64 * 2500, "{bytes} bytes");
    drop((store, bench));
    let bench = StoreFixture::open(dir.path(), small());
    let expected: Vec<u64> = (1..=10_000).filter(|seq| seq % 100 == 20).collect();
    assert_eq!(seqs(&bench.fetch_all(20, 7)), expected);
    assert!(bench.fetch_all(21, 7).is_empty());
}

#[test]
fn a_batch_larger_than_a_segment_has_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    let large = vec![3; 300 << 10];
    for seq in 1..=3 {
        bench.write(|batch| {
            batch.begin_message(&[&large]);
            batch.add_entry(1, seq * 2, 0, b"");
        });
        bench.write(|batch| {
            batch.begin_message(&[b"small"]);
            batch.add_entry(1, seq * 2 + 1, 0, b"");
        });
    }
    drop(bench);
    let bench = StoreFixture::open(dir.path(), small());
    let found = bench.fetch_all(1, 100);
    assert_eq!(seqs(&found), [2, 3, 4, 5, 6, 7]);
    assert!(found[4].body == large);
}

#[test]
fn a_log_at_its_bound_is_full_until_messages_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        max_log_bytes: 1 << 20,
        ..small()
    };
    let mut bench = StoreFixture::open(dir.path(), config);
    let mut seq = 0;
    wait_until("it is full", || {
        seq += 1;
        bench.write(|batch| {
            batch.begin_message(&[&[7; 1000]]);
            batch.add_entry(1, seq, 0, b"");
        });
        bench.store.health() == StoreHealth::Full
    });
    bench.write(|batch| (1..=seq).for_each(|seq| batch.complete_entry(1, seq)));
    wait_until("it has healed", || bench.store.health() == StoreHealth::Ok);
}

#[test]
fn shards_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let bench = StoreFixture::open(dir.path(), small());
    std::thread::scope(|scope| {
        for shard in 0..8_u16 {
            let bench = &bench;
            scope.spawn(move || {
                for number in 1..=500 {
                    let mut batch = bench.store.recycled_batch();
                    batch.number = number;
                    batch.begin_message(&[&number.to_le_bytes()]);
                    batch.add_entry(u64::from(shard), number, 0, b"");
                    bench.store.submit(shard, batch);
                }
                bench.observer.wait_logged(shard, 500);
            });
        }
    });
    assert_eq!(bench.store.pending_bytes(), 0);
    for shard in 0..8 {
        let found = bench.fetch_all(shard, 64);
        assert_eq!(seqs(&found), (1..=500).collect::<Vec<u64>>());
        assert!(
            found
                .iter()
                .all(|stored| stored.body == stored.seq.to_le_bytes()[..])
        );
    }
}
