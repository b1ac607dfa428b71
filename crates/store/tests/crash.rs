//! Kills a writing process at random moments. Everything reported as logged must be stored, and every batch must be complete or
//! absent. `TIDEGATE_STORE_ROUNDS` sets the number of rounds, `TIDEGATE_STORE_SEED` the seed.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::script::{Random, StoreModel};
use common::{StateKind, check_opened, small};
use store::{Fsync, QueuePage, Store, StoreConfig, StoreObserver};

const CHILD_DIR: &str = "TIDEGATE_STORE_CHILD_DIR";
const CHILD_SEED: &str = "TIDEGATE_STORE_CHILD_SEED";

fn config(seed: u64) -> StoreConfig {
    StoreConfig {
        fsync: [Fsync::Always, Fsync::default(), Fsync::Never][(seed % 3) as usize],
        ..small()
    }
}

/// Reports logged batches to the parent process.
struct LogReporter;

impl StoreObserver for LogReporter {
    fn on_logged(&self, _shard: u16, batch: u64) {
        let mut out = std::io::stdout().lock();
        writeln!(out, "logged {batch}").unwrap();
        out.flush().unwrap();
    }

    fn on_fetched(&self, _shard: u16, _page: QueuePage) {}
}

/// Number of the last batch according to the keyed state.
fn last_batch(store: &Store) -> u64 {
    let mut last = 0;
    store
        .scan(StateKind::Delayed, &mut |key, value| {
            if key == b"last" {
                last = u64::from_le_bytes(value.try_into().unwrap());
            }
        })
        .unwrap();
    last
}

fn replay(seed: u64, batches: u64) -> StoreModel {
    let mut model = StoreModel::default();
    for _ in 0..batches {
        model.step(seed, &mut store::StoreBatch::default());
    }
    model
}

#[test]
#[ignore = "the child process that another test kills"]
fn child() {
    let dir = std::env::var(CHILD_DIR).expect("started by run_and_kill");
    let seed: u64 = std::env::var(CHILD_SEED).unwrap().parse().unwrap();
    let (store, _) = Store::open(Path::new(&dir), config(seed)).unwrap();
    let mut model = replay(seed, last_batch(&store));
    store.start(Arc::new(LogReporter)).unwrap();
    println!("started");
    loop {
        if store.pending_bytes() > 1 << 20 {
            std::thread::yield_now();
            continue;
        }
        if model.number.is_multiple_of(997) {
            store.compact();
        }
        let mut batch = store.recycled_batch();
        model.step(seed, &mut batch);
        store.submit(0, batch);
    }
}

/// Runs the child for a while and kills it; returns the last batch reported as logged.
fn run_and_kill(dir: &Path, seed: u64, random: &mut Random) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    // Some are killed while they open the store.
    let kill_after = Duration::from_micros(random.below(60_000));
    let waits_for_start = !random.one_in(4);
    let mut line = String::new();
    while waits_for_start && line != "started\n" {
        line.clear();
        assert!(
            out.read_line(&mut line).unwrap() > 0,
            "the child did not start"
        );
    }
    std::thread::sleep(kill_after);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut logged = 0;
    for line in out.lines() {
        let line = line.unwrap_or_default();
        let number = line
            .strip_prefix("logged ")
            .and_then(|text| text.parse().ok());
        logged = number.unwrap_or(logged);
    }
    logged
}

#[test]
fn what_was_logged_survives_kill_9() {
    let from_environment = |name| {
        std::env::var(name)
            .ok()
            .map(|text: String| text.parse().unwrap())
    };
    let rounds: u64 = from_environment("TIDEGATE_STORE_ROUNDS").unwrap_or(24);
    let first_seed: u64 = from_environment("TIDEGATE_STORE_SEED").unwrap_or(1);
    let mut batches = 0;
    for round in 0..rounds.div_ceil(8) {
        let seed = first_seed + round;
        eprintln!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let mut last = 0;
        for _ in 0..8 {
            let logged = run_and_kill(dir.path(), seed, &mut random);
            let (store, _) = Store::open(dir.path(), config(seed)).unwrap();
            let found = last_batch(&store);
            assert!(found >= logged.max(last), "{found} found, {logged} logged");
            last = found;
            drop(check_opened(store, &replay(seed, found)));
        }
        batches += last;
    }
    eprintln!("{rounds} kills, {batches} batches");
}
