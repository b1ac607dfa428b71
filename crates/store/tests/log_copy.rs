//! A copy of a store on another node: the log is read while the store runs, and notifications wait for the copy.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::script::{Random, StoreModel};
use common::{StoreFixture, check_opened, small, wait_until};
use store::{LogTail, StateKind, Store, StoreBatch, StoreConfig, StoreError};

/// Reads everything that is in the log now, in chunks of about this size.
fn read_all(tail: &mut LogTail, max_bytes: usize) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut out = Vec::new();
    while let Some(chunk) = tail.read(max_bytes, &mut out).unwrap() {
        let read = common::frames_of(&out);
        assert_eq!(read.len(), chunk.frames as usize);
        assert!(out.len() <= max_bytes || chunk.frames == 1);
        assert_eq!(chunk.last_lsn, tail.position());
        frames.extend(read);
        out.clear();
    }
    frames
}

/// Writes the keyed state of a store to its copy, as it is now.
fn copy_keyed_state(from: &Store, to: &mut StoreFixture) {
    for space in StateKind::ALL {
        from.scan(space, &mut |key, value| {
            to.submit(|batch| batch.put(space, key, value));
        })
        .unwrap();
    }
}

fn first_segment(dir: &Path) -> PathBuf {
    dir.join("log/0000000001.log")
}

fn queue_done(bench: &mut StoreFixture, seqs: std::ops::RangeInclusive<u64>) {
    for seq in seqs {
        bench.submit(|batch| {
            batch.begin_message(&[&[7; 1000]]);
            batch.add_entry(1, seq, 0, b"");
            batch.complete_entry(1, seq);
        });
    }
    bench.observer.wait_logged(0, bench.number);
}

fn assert_same_queues(one: &Store, other: &Store) {
    let read = |store: &Store, session| {
        let mut entries = Vec::new();
        let mut each = |entry| entries.push(entry);
        store.read_queue(session, &mut each).unwrap();
        entries
    };
    assert_eq!(one.queued_sessions(), other.queued_sessions());
    for session in one.queued_sessions() {
        assert_eq!(one.queue(session), other.queue(session));
        let entries = read(one, session);
        assert_eq!(
            entries.len() as u64,
            one.queue(session).unwrap().messages,
            "all of them are read"
        );
        assert_eq!(entries, read(other, session));
    }
}

#[test]
fn a_copy_has_the_same_content_while_segments_are_reclaimed() {
    for seed in 1..=4 {
        eprintln!("seed {seed}");
        let (dir, copy_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut random = Random::new(seed);
        let mut model = StoreModel::default();
        let mut bench = StoreFixture::open(dir.path(), small());
        for _ in 0..1500 {
            bench.submit(|batch| model.step(seed, batch));
        }
        if random.one_in(2) {
            bench.store.compact();
        }
        bench.observer.wait_logged(0, model.number);
        let mut copy = StoreFixture::open(copy_dir.path(), small());
        let mut tail = bench.store.tail_log(None).unwrap();
        copy_keyed_state(&bench.store, &mut copy);
        for _ in 0..12 {
            for _ in 0..random.below(400) {
                bench.submit(|batch| model.step(seed, batch));
            }
            if random.one_in(3) {
                bench.store.compact();
            }
            // Sometimes it falls behind.
            if random.one_in(2) {
                copy.apply(read_all(&mut tail, 1 + random.below(100_000) as usize));
            }
        }
        bench.observer.wait_logged(0, model.number);
        bench.store.compact();
        wait_until("it is compact", || !bench.store.is_compacting());
        copy.apply(read_all(&mut tail, 10_000));
        assert_eq!(tail.position(), bench.store.logged_lsn());
        assert!(bench.store.stats().copied_bytes > 0, "nothing was copied");
        drop((bench, copy));

        let (store, _) = Store::open(dir.path(), small()).unwrap();
        let (copy, _) = Store::open(copy_dir.path(), small()).unwrap();
        assert_same_queues(&store, &copy);
        check_opened(copy, &model);
    }
}

#[test]
fn reading_continues_after_a_number_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = StoreModel::default();
    let mut bench = StoreFixture::open(dir.path(), small());
    assert!(read_all(&mut bench.store.tail_log(None).unwrap(), 100).is_empty());
    for _ in 0..300 {
        bench.submit(|batch| model.step(1, batch));
    }
    bench.observer.wait_logged(0, model.number);
    let all = read_all(&mut bench.store.tail_log(None).unwrap(), 1 << 20);
    let after = |store: &Store, lsn| read_all(&mut store.tail_log(Some(lsn)).unwrap(), 5000);
    for at in [0, 1, 150, all.len() - 1] {
        assert_eq!(after(&bench.store, all[at].0), all[at + 1..]);
    }
    let last_lsn = bench.store.logged_lsn();
    assert_eq!(last_lsn, all.last().unwrap().0);
    let error = bench.store.tail_log(Some(last_lsn + 1)).err().unwrap();
    assert!(matches!(error, StoreError::LogPositionGone { lsn } if lsn == last_lsn + 1));
    drop(bench);

    let (store, _) = Store::open(dir.path(), small()).unwrap();
    assert_eq!(store.logged_lsn(), last_lsn);
    assert_eq!(after(&store, all[9].0), all[10..]);
    let mut tail = store.tail_log(Some(last_lsn)).unwrap();
    let mut bench = StoreFixture::start(store);
    bench.number = model.number;
    assert!(read_all(&mut tail, 1000).is_empty());
    bench.write(|batch| model.step(1, batch));
    let frames = read_all(&mut tail, 1);
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].0, last_lsn + 1);
}

#[test]
fn removed_segments_stay_readable_up_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    let mut tail = bench.store.tail_log(None).unwrap();
    queue_done(&mut bench, 1..=1000);
    wait_until("the first segment goes", || {
        !first_segment(dir.path()).exists()
    });
    let lsns: Vec<u64> = read_all(&mut tail, 3000).iter().map(|at| at.0).collect();
    assert_eq!(lsns, (1..=1000).collect::<Vec<u64>>());
    drop(bench);

    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        // An eighth of it is less than a segment.
        max_log_bytes: 256 << 10,
        ..small()
    };
    let mut bench = StoreFixture::open(dir.path(), config);
    let mut tail = bench.store.tail_log(None).unwrap();
    queue_done(&mut bench, 1..=100);
    let mut out = Vec::new();
    let chunk = tail.read(1, &mut out).unwrap().unwrap();
    assert_eq!((chunk.last_lsn, chunk.frames), (1, 1));
    queue_done(&mut bench, 101..=1000);
    wait_until("the first segment goes", || {
        !first_segment(dir.path()).exists()
    });
    for _ in 0..2 {
        let error = tail.read(1000, &mut out).unwrap_err();
        assert!(
            matches!(error, StoreError::LogPositionGone { lsn: 1 }),
            "{error}"
        );
    }
    let error = bench.store.tail_log(Some(1)).err().unwrap();
    assert!(error.to_string().contains("no longer has"), "{error}");
    let mut tail = bench.store.tail_log(None).unwrap();
    read_all(&mut tail, 1000);
    assert_eq!(tail.position(), 1000);
}

#[test]
fn the_watcher_is_called_after_each_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    bench.store.watch_log(Box::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    for number in 1..=10 {
        bench.write(|batch| batch.complete_entry(1, number));
        assert_eq!(calls.load(Ordering::Relaxed), number);
    }
    bench.store.watch_log(Box::new(|| {}));
    bench.write(|batch| batch.complete_entry(1, 1));
    assert_eq!(calls.load(Ordering::Relaxed), 10);
    bench.store.close();
    assert_eq!(Arc::strong_count(&calls), 1, "it is dropped");
}

#[test]
fn held_notifications_wait_for_their_confirmation() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    bench.write(|batch| batch.complete_entry(1, 1));
    bench.store.hold_notifications();
    let from_lsn = bench.store.logged_lsn();
    for seq in 1..=20 {
        bench.submit(|batch| batch.complete_entry(1, seq));
        wait_until("it is written", || {
            bench.store.logged_lsn() == from_lsn + seq
        });
    }
    wait_until("all are held", || {
        bench.store.stats().held_notifications == 20
    });
    assert_eq!(bench.observer.last(0), 1);
    // That they are in the log is reported nevertheless.
    wait_until("the last one is reported", || {
        bench.observer.last_written(0) == from_lsn + 20
    });
    // Each group has one batch, whose number is that of its frame.
    for lsn in [from_lsn + 1, from_lsn + 7, from_lsn + 8] {
        bench.store.confirm_replicated(lsn);
        bench.observer.wait_logged(0, lsn);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(bench.observer.last(0), lsn);
    }
    bench.store.confirm_replicated(2);
    assert_eq!(bench.store.stats().held_notifications, 12);
    // A confirmation does not count for frames that come later.
    bench.store.confirm_replicated(u64::MAX);
    bench.observer.wait_logged(0, 21);
    let held = bench.submit(|batch| batch.complete_entry(1, 1));
    wait_until("it is held", || bench.store.stats().held_notifications == 1);
    assert_eq!(bench.observer.last(0), held - 1);
    // What is held is released, although holding begins again at once.
    bench.store.release_notifications();
    bench.store.hold_notifications();
    bench.observer.wait_logged(0, held);
    assert_eq!(bench.store.stats().held_notifications, 0);
    bench.store.release_notifications();
    bench.write(|batch| batch.complete_entry(1, 1));
    // What is held when the store is closed is not delivered.
    bench.store.hold_notifications();
    let last = bench.submit(|batch| batch.complete_entry(1, 1));
    bench.store.close();
    assert_eq!(bench.store.logged_lsn(), last);
    assert_eq!(bench.observer.last(0), last - 1);
}

#[test]
fn every_batch_after_the_hold_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    for _ in 0..300 {
        for _ in 0..5 {
            bench.submit(|batch| batch.complete_entry(1, 1));
        }
        bench.store.hold_notifications();
        let lsn = bench.store.logged_lsn();
        let last = bench.submit(|batch| batch.complete_entry(1, 1));
        wait_until("it is written", || bench.store.logged_lsn() == last);
        // The numbers of batches are those of their frames here.
        assert!(bench.observer.last(0) <= lsn);
        bench.store.release_notifications();
    }
    bench.observer.wait_logged(0, bench.number);
}

#[test]
fn records_of_a_batch_are_checked() {
    assert!(StoreBatch::from_records(7, &[]).unwrap().is_empty());
    let refused = |records: &[u8]| StoreBatch::from_records(1, records).unwrap_err();
    // A tag that does not exist, after a valid record (done, session 1, number 2).
    assert_eq!(refused(&[6, 1, 2, 99]).offset, 3);
    assert_eq!(refused(&[6, 1]).offset, 0);
    // An entry without a message, with one, and a released one that needs none.
    assert_eq!(refused(&[6, 1, 2, 2, 1, 1, 0]).offset, 3);
    assert!(StoreBatch::from_records(1, &[1, 0, 2, 1, 1, 0]).is_ok());
    assert!(StoreBatch::from_records(1, &[12, 1, 1, 0, 5, 0]).is_ok());
    // A value of a kind that does not exist, and an empty key.
    assert_eq!(refused(&[10, 5, 1, 1, 0, 0]).offset, 0);
    assert_eq!(refused(&[11, 0, 0]).offset, 0);

    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    let mut model = StoreModel::default();
    for _ in 0..100 {
        bench.write(|batch| model.step(3, batch));
    }
    let frames = read_all(&mut bench.store.tail_log(None).unwrap(), 1 << 20);
    let mut random = Random::new(3);
    for (_, records) in &frames {
        let whole = StoreBatch::from_records(9, records).unwrap();
        assert_eq!((whole.number, whole.size()), (9, records.len()));
        for _ in 0..50 {
            let mut bytes = records.clone();
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            for _ in 0..random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.next() as u8;
                }
            }
            if let Err(error) = StoreBatch::from_records(1, &bytes) {
                assert!(error.offset < bytes.len(), "{error}");
            }
        }
    }
}

#[test]
fn queues_are_read_before_the_start_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    bench.write(|batch| {
        batch.begin_message(&[b"body"]);
        batch.add_entry(1, 1, 0, b"attributes");
        batch.add_entry(1, 5, 3, b"");
    });
    let refused = bench.store.read_queue(1, &mut |_| ()).unwrap_err();
    assert!(matches!(refused, StoreError::QueueUnavailable), "{refused}");
    drop(bench);
    let (store, _) = Store::open(dir.path(), small()).unwrap();
    let mut entries = Vec::new();
    store
        .read_queue(1, &mut |entry| entries.push(entry))
        .unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(
        (entries[0].seq, &entries[0].attributes[..]),
        (1, &b"attributes"[..])
    );
    assert_eq!(
        (entries[1].packet_id, &entries[1].body[..]),
        (3, &b"body"[..])
    );
    store.read_queue(2, &mut |_| panic!("it is empty")).unwrap();
    // The file ends before the body.
    let segment = first_segment(dir.path());
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(segment)
        .unwrap();
    file.set_len(96).unwrap();
    let error = store.read_queue(1, &mut |_| ()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}
