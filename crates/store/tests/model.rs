//! Random batches against a naive model, with restarts and compaction at random moments. A failing seed is printed; set
//! `TIDEGATE_STORE_SEED` to run it alone.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use common::script::{Random, StoreModel};
use common::{StoreFixture, check_messages, check_opened, small};
use store::{Fsync, Store, StoreConfig};

fn run(seed: u64) {
    eprintln!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new(seed);
    let config = StoreConfig {
        fsync: [Fsync::Always, Fsync::default(), Fsync::Never][random.below(3) as usize],
        ..small()
    };
    let mut model = StoreModel::default();
    let mut bench = StoreFixture::open(dir.path(), config.clone());
    for _ in 0..12 {
        for _ in 0..random.below(600) {
            bench.submit(|batch| model.step(seed, batch));
        }
        match random.below(4) {
            0 => bench.store.compact(),
            1 => {
                bench.observer.wait_logged(0, model.number);
                check_messages(&bench, &model);
            }
            _ => {
                drop(bench);
                let (store, report) = Store::open(dir.path(), config.clone()).unwrap();
                assert_eq!(report.truncation, None);
                assert_eq!(report.queued_messages, model.messages());
                bench = check_opened(store, &model);
            }
        }
    }
}

#[test]
fn a_store_matches_the_model() {
    match std::env::var("TIDEGATE_STORE_SEED") {
        Ok(seed) => run(seed.parse().unwrap()),
        Err(_) => (1..=12).for_each(run),
    }
}
