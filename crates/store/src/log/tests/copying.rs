//! Reading the log for a copy while writes and syncs fail.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use super::common::script::{Random, StoreModel};
use super::common::{StoreFixture, check_opened, frames_of, small, wait_until};
use super::faults::Faults;
use crate::{Fsync, LogTail, Store, StoreConfig, StoreError, StoreHealth};

/// Passes everything that is in the log now to the copy.
fn copy_all(tail: &mut LogTail, copy: &mut StoreFixture) {
    let mut out = Vec::new();
    while let Some(chunk) = tail.read(20_000, &mut out).unwrap() {
        let frames = frames_of(&out);
        assert_eq!(frames.len(), chunk.frames as usize);
        copy.apply(frames);
        out.clear();
    }
}

#[test]
fn a_copy_is_complete_when_writing_fails_and_heals() {
    for seed in 1..=6 {
        eprintln!("seed {seed}");
        let (dir, copy_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (faults, mut random) = (Faults::new(seed), Random::new(seed));
        let fsync = [
            Fsync::Always,
            Fsync::Every(Duration::from_millis(3)),
            Fsync::Never,
        ];
        let config = StoreConfig {
            fsync: fsync[seed as usize % 3],
            ..small()
        };
        let files = Arc::new(faults.clone());
        let (store, _) = Store::open_with(dir.path(), config, files).unwrap();
        let mut bench = StoreFixture::start(store);
        let mut copy = StoreFixture::open(copy_dir.path(), small());
        let mut model = StoreModel::default();
        let mut tail = bench.store.tail_log(None).unwrap();
        for _ in 0..12 {
            for _ in 0..random.below(300) {
                bench.submit(|batch| model.step(seed, batch));
            }
            if random.one_in(2) {
                bench.store.compact();
            }
            faults.fail_next(&mut random);
            if random.one_in(2) {
                copy_all(&mut tail, &mut copy);
                // A new reader continues in the same place.
                let lsn = tail.position();
                tail = bench.store.tail_log(Some(lsn)).unwrap();
            }
        }
        bench.observer.wait_logged(0, model.number);
        wait_until("it heals", || bench.store.health() == StoreHealth::Ok);
        copy_all(&mut tail, &mut copy);
        assert_eq!(tail.position(), bench.store.logged_lsn());
        drop((bench, copy));
        check_opened(Store::open(copy_dir.path(), small()).unwrap().0, &model);
    }
}

/// Writes 100 frames and reads half of them.
fn half_read(bench: &mut StoreFixture) -> LogTail {
    for seq in 1..=100 {
        bench.submit(|batch| {
            batch.begin_message(&[&[7; 100]]);
            batch.add_entry(1, seq, 0, b"");
        });
    }
    bench.observer.wait_logged(0, 100);
    let mut tail = bench.store.tail_log(None).unwrap();
    let mut out = Vec::new();
    while tail.position() < 50 {
        tail.read(1, &mut out).unwrap();
    }
    tail
}

#[test]
fn a_damaged_frame_is_not_returned() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    let mut tail = half_read(&mut bench);
    let segment = dir.path().join("log/0000000001.log");
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(segment)
        .unwrap();
    let mut byte = [0];
    let at = 64 + 80 * 140;
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
    let mut out = Vec::new();
    let chunk = tail.read(1 << 20, &mut out).unwrap().unwrap();
    assert!((60..95).contains(&chunk.last_lsn), "{chunk:?}");
    for _ in 0..2 {
        let error = tail.read(1 << 20, &mut out).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
    file.write_all_at(&byte, at).unwrap();
    tail.read(1 << 20, &mut out).unwrap().unwrap();
    let lsns: Vec<u64> = frames_of(&out).iter().map(|frame| frame.0).collect();
    assert_eq!(lsns, (51..=100).collect::<Vec<u64>>());
}

#[test]
fn reading_continues_where_frames_were_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::new(1);
    let config = StoreConfig {
        fsync: Fsync::Every(Duration::from_secs(1)),
        ..small()
    };
    let (store, _) = Store::open_with(dir.path(), config, Arc::new(faults.clone())).unwrap();
    let mut bench = StoreFixture::start(store);
    let mut tail = half_read(&mut bench);
    let segment = dir.path().join("log/0000000001.log");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(segment)
        .unwrap();
    faults.with(|state| state.failing_syncs = 2);
    wait_until("frames are repeated", || {
        bench.store.stats().write_errors >= 2 && bench.store.is_all_synced()
    });
    // The original frames are lost after the repetition. Their segment has been removed from the log, but the reader needs it.
    file.write_all_at(&[0; 5000], 64 + 60 * 140).unwrap();
    let mut out = Vec::new();
    while tail.position() < 100 {
        tail.read(1000, &mut out).unwrap().unwrap();
    }
    let lsns: Vec<u64> = frames_of(&out).iter().map(|frame| frame.0).collect();
    assert_eq!(lsns, (51..=100).collect::<Vec<u64>>());
    bench.submit(|batch| batch.complete_entry(1, 1));
    wait_until("the next frame comes", || {
        tail.read(1000, &mut out).unwrap().is_some()
    });
    assert_eq!(tail.position(), 101);
}
