//! Tests with failing disks and power failures.

use std::sync::Arc;
use std::time::Duration;

use super::common::script::{Random, StoreModel};
use super::common::{StoreFixture, check_messages, check_opened, small, wait_until};
use super::faults::Faults;
use crate::{Fsync, Store, StoreBatch, StoreConfig, StoreHealth};

const POLICIES: [Fsync; 3] = [
    Fsync::Always,
    Fsync::Every(Duration::from_millis(3)),
    Fsync::Never,
];

fn config(fsync: Fsync) -> StoreConfig {
    StoreConfig { fsync, ..small() }
}

fn replay(seed: u64, batches: u64) -> StoreModel {
    let mut model = StoreModel::default();
    for _ in 0..batches {
        model.step(seed, &mut StoreBatch::default());
    }
    model
}

#[test]
fn nothing_is_lost_when_writing_fails_and_heals() {
    for seed in 1..=9 {
        eprintln!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let (faults, mut random) = (Faults::new(seed), Random::new(seed));
        let config = config(POLICIES[seed as usize % 3]);
        let files = Arc::new(faults.clone());
        let (store, _) = Store::open_with(dir.path(), config.clone(), files).unwrap();
        let mut bench = StoreFixture::start(store);
        let mut model = StoreModel::default();
        for _ in 0..10 {
            for _ in 0..random.below(300) {
                bench.submit(|batch| model.step(seed, batch));
            }
            if random.one_in(2) {
                bench.store.compact();
            }
            faults.fail_next(&mut random);
            if random.one_in(3) {
                bench.observer.wait_logged(0, model.number);
                check_messages(&bench, &model);
            }
        }
        bench.observer.wait_logged(0, model.number);
        wait_until("it heals", || bench.store.health() == StoreHealth::Ok);
        check_messages(&bench, &model);
        drop(bench);
        let (store, report) = Store::open(dir.path(), config).unwrap();
        assert_eq!(report.truncation, None);
        check_opened(store, &model);
    }
}

#[test]
fn a_power_failure_takes_an_end_and_nothing_else() {
    for seed in 1..=18 {
        eprintln!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let (faults, mut random) = (Faults::new(seed), Random::new(seed));
        let fsync = POLICIES[seed as usize % 3];
        let config = StoreConfig {
            // The power stays off during the stop.
            max_stopping: Duration::from_millis(500),
            ..config(fsync)
        };
        let files = Arc::new(faults.clone());
        let (store, _) = Store::open_with(dir.path(), config.clone(), files).unwrap();
        let mut bench = StoreFixture::start(store);
        let mut model = StoreModel::default();
        let mut on_disk = 0;
        for _ in 0..1 + random.below(6) {
            for _ in 0..random.below(300) {
                bench.submit(|batch| model.step(seed, batch));
            }
            match random.below(4) {
                0 => faults.with(|state| state.failing_syncs = 1),
                1 => bench.store.compact(),
                _ => {}
            }
            if fsync != Fsync::Never && random.one_in(2) {
                bench.observer.wait_logged(0, model.number);
                wait_until("it is on disk", || bench.store.is_all_synced());
                on_disk = model.number;
            }
        }
        if fsync == Fsync::Always {
            on_disk = bench.observer.last(0);
        }
        faults.power_off(&dir.path().join(crate::log::log_mark::FILE));
        drop(bench);
        faults.lose();

        let (store, _) = Store::open(dir.path(), config.clone()).unwrap();
        let found = store.queue(0).map_or(0, |summary| summary.last_seq);
        assert!(found >= on_disk, "{found} found, {on_disk} were on disk");
        let mut model = replay(seed, found);
        let mut bench = StoreFixture::start(store);
        bench.number = found;
        check_messages(&bench, &model);
        // Writing continues from there, although the keyed state may know later frames.
        for _ in 0..20 {
            bench.write(|batch| model.step(seed, batch));
        }
        drop(bench);
        let (store, report) = Store::open(dir.path(), config).unwrap();
        assert_eq!(report.truncation, None);
        check_messages(&StoreFixture::start(store), &model);
    }
}

#[test]
fn the_keyed_state_is_opened_again_after_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = StoreFixture::open(dir.path(), small());
    let mut model = StoreModel::default();
    for _ in 0..5 {
        for _ in 0..200 {
            bench.submit(|batch| model.step(1, batch));
        }
        bench.store.fail_keyed_state();
        for _ in 0..200 {
            bench.submit(|batch| model.step(1, batch));
        }
        bench.observer.wait_logged(0, model.number);
    }
    wait_until("it heals", || {
        bench
            .store
            .objects()
            .put("k", "i", 1.into(), crate::ExpectedVersion::Any)
            .is_ok()
            && bench.store.health() == StoreHealth::Ok
    });
    drop(bench);
    check_opened(Store::open(dir.path(), small()).unwrap().0, &model);
}
