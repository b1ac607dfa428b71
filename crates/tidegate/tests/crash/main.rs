//! A node is killed (SIGKILL) under load, at random moments, many times, and started again on the same data. What it had
//! acknowledged is there afterwards: QoS 1 at least once, QoS 2 exactly once, in order; retained messages; subscriptions; rows
//! for sinks; segments of files.
//!
//! `TIDEGATE_TEST_KILLS` sets the number of kills (30 by default); `TIDEGATE_TEST_SEED` repeats the random choices of a run, but
//! not the scheduling of its threads. `TIDEGATE_TEST_SHARDS` is the number of shards, if not the default.

// The workspace allows unwrap in `#[test]` functions; this binary consists of tests and their support code.
#![allow(clippy::unwrap_used)]

#[path = "../wire/support/mod.rs"]
mod support;

mod derived;
mod devices;
mod files;
mod line;
mod publisher;
mod relay;
mod retained;
mod run_state;
mod sinks;
mod subscriber;
mod toggles;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use publisher::Publisher;
use retained::RetainedPublisher;
use run_state::{PublisherTotals, RunState};
use subscriber::{Presence, Subscriber};
use support::{Node, Random, external, temporary_directory};
use toggles::SubscriptionToggler;

/// Queues large enough for all messages of the test, and segments so small that many are begun and removed.
const CONFIG: &str = r#"
[limits]
max_queued_messages = 10_000_000
max_queued_bytes = "1GiB"
max_queued_bytes_per_shard = "1GiB"

[store]
segment_bytes = "1MiB"
"#;

#[test]
fn what_was_acknowledged_survives_kills() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    CrashRun::new(Random::seed(), CONFIG.to_owned()).run(kills(30));
}

/// The same with a rule that writes all messages to a sink with a disk queue: each has its row.
#[test]
fn rows_of_what_was_acknowledged_survive_kills() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let config = format!("{CONFIG}{}", sinks::CONFIG);
    CrashRun::new(Random::seed(), config).run(kills(12));
}

/// Segments of files that were acknowledged are there, and finished files are whole.
#[test]
fn acknowledged_segments_of_files_survive_kills() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    files::run(kills(20));
}

/// How often nodes are killed.
fn kills(default: usize) -> usize {
    std::env::var("TIDEGATE_TEST_KILLS").map_or(default, |text| text.parse().unwrap())
}

struct CrashRun {
    seed: u64,
    random: Random,
    arguments: Vec<String>,
    config: String,
    starting: Cell<Duration>,
    run_state: Arc<RunState>,
    retainer: RetainedPublisher,
}

impl CrashRun {
    fn new(seed: u64, config: String) -> CrashRun {
        let shards = std::env::var("TIDEGATE_TEST_SHARDS").ok();
        let arguments = shards.map_or_else(Vec::new, |shards| vec!["--shards".into(), shards]);
        CrashRun {
            arguments,
            config,
            starting: Cell::default(),
            seed,
            random: Random::new(seed),
            run_state: Arc::default(),
            retainer: RetainedPublisher::default(),
        }
    }

    fn run(mut self, kills: usize) {
        let mut node = self.start(temporary_directory());
        let (publishers, others) = self.start_clients(node.address("mqtt"));
        let started = Instant::now();
        for _ in 0..kills {
            self.load_for_a_while(&node);
            let mut dir = node.kill();
            self.run_state.clear_address();
            while self.random.below(5) == 0 {
                dir = self.kill_during_start(dir);
            }
            node = self.start(dir);
            if publishers.iter().any(JoinHandle::is_finished)
                || others.iter().any(JoinHandle::is_finished)
            {
                // It failed; joining it returns the reason.
                self.run_state.abort();
                break;
            }
        }
        self.load_for_a_while(&node);
        self.run_state.settle();
        let sent: Vec<PublisherTotals> = self.join(publishers);
        let messages: u32 = sent.iter().map(|sent| sent.messages).sum();
        if self.config.contains(sinks::CONFIG) {
            sinks::check(&node, &sent, self.seed);
        }
        self.run_state.all_sent(sent);
        self.join(others);
        self.retainer.check(node.address("mqtt"));
        println!(
            "{messages} messages through {kills} kills in {:.1} s ({:.1} s of them starting), seed {}",
            started.elapsed().as_secs_f64(),
            self.starting.get().as_secs_f64(),
            self.seed
        );
    }

    /// Until a random moment.
    fn load_for_a_while(&mut self, node: &Node) {
        self.retainer.check(node.address("mqtt"));
        std::thread::sleep(Duration::from_millis(20 + self.random.below(500) as u64));
    }

    /// Starts a node, and shares its address with the clients.
    fn start(&self, dir: PathBuf) -> Node {
        let started = Instant::now();
        let mut node = self.spawn(dir);
        if let Err(why) = node.wait_until_it_listens() {
            panic!("seed {}: {why}", self.seed);
        }
        self.starting.set(self.starting.get() + started.elapsed());
        self.run_state.set_address(node.address("mqtt"));
        node
    }

    fn spawn(&self, dir: PathBuf) -> Node {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Node::spawn(dir, &arguments, &self.config)
    }

    /// Kills a node while it starts, possibly during its recovery.
    fn kill_during_start(&mut self, dir: PathBuf) -> PathBuf {
        let node = self.spawn(dir);
        std::thread::sleep(Duration::from_millis(self.random.below(80) as u64));
        node.kill()
    }

    /// Starts the threads that put load on the node: publishers, and the others. Subscribers have subscribed before
    /// anything is published.
    fn start_clients(
        &mut self,
        address: &str,
    ) -> (Vec<JoinHandle<PublisherTotals>>, Vec<JoinHandle<()>>) {
        let mut random = || Random::new(self.random.next());
        let mut others = Vec::new();
        for (number, (version, qos, presence)) in [
            (5, 2, Presence::Always),
            (4, 2, Presence::Always),
            (5, 1, Presence::Always),
            (5, 2, Presence::Visits),
            (4, 2, Presence::Visits),
            (4, 1, Presence::Visits),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("subscriber{number}");
            let mut subscriber = Subscriber::new(name, version, qos, presence, random());
            subscriber.subscribe(address);
            let run_state = self.run_state.clone();
            others.push(thread(move || subscriber.run(&run_state)));
        }
        let mut publishers = Vec::new();
        for (number, (version, qos)) in [(5, 1), (5, 2), (4, 1), (4, 2)].into_iter().enumerate() {
            let publisher = Publisher::new(format!("publisher{number}"), version, qos, random());
            let run_state = self.run_state.clone();
            publishers.push(thread(move || publisher.run(&run_state)));
        }
        let (run_state, retainer, choices) =
            (self.run_state.clone(), self.retainer.clone(), random());
        others.push(thread(move || retainer.run(&run_state, choices)));
        let (run_state, toggler) = (self.run_state.clone(), SubscriptionToggler::new(random()));
        others.push(thread(move || toggler.run(&run_state)));
        (publishers, others)
    }

    /// The results of the threads; panics with the reasons of those that failed.
    fn join<T>(&self, threads: Vec<JoinHandle<T>>) -> Vec<T> {
        let (mut results, mut failures) = (Vec::new(), Vec::new());
        for thread in threads {
            match thread.join() {
                Ok(result) => results.push(result),
                Err(cause) => failures.push(match cause.downcast::<String>() {
                    Ok(text) => *text,
                    Err(_) => "a thread failed".to_owned(),
                }),
            }
        }
        let seed = self.seed;
        assert!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
        results
    }
}

fn thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(run)
}
