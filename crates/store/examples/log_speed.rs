//! Measures speed and memory of the message log, compared with the same messages written to fjall directly.
//!
//! `cargo run --release -p tidegate-store --example log_speed [-- MESSAGES [DIRECTORY]]`, by default 5,000,000 messages of
//! 64 bytes for 10,000 sessions in a temporary directory. With `ONLY_ROUTE` in the environment, only messages that are
//! acknowledged immediately are measured.

#![allow(clippy::unwrap_used, reason = "a measurement that fails may panic")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use store::{QueueFetch, QueuePage, StateKind, Store, StoreConfig, StoreObserver};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SESSIONS: u64 = 10_000;
const PAYLOAD: [u8; 64] = [b'x'; 64];
/// Messages in a turn of a shard.
const TURN: u64 = 256;
const RECORDS: u64 = 1_000_000;

#[derive(Default)]
struct CountingObserver {
    logged: AtomicU64,
    fetched: Mutex<u64>,
    pages: Mutex<Vec<QueuePage>>,
    called: Condvar,
}

impl StoreObserver for CountingObserver {
    fn on_logged(&self, _shard: u16, batch: u64) {
        self.logged.store(batch, Ordering::Release);
    }

    fn on_fetched(&self, _shard: u16, page: QueuePage) {
        *self.fetched.lock().unwrap() += page.entries.len() as u64;
        self.pages.lock().unwrap().push(page);
        self.called.notify_one();
    }
}

/// A phase: wall clock and processor time of the whole process.
struct MeasuredPhase {
    started: Instant,
    cpu: Duration,
}

impl MeasuredPhase {
    fn begin() -> Self {
        Self {
            started: Instant::now(),
            cpu: cpu_time(),
        }
    }

    fn end(self, what: &str, count: u64) {
        let wall = self.started.elapsed().as_secs_f64();
        let cpu = (cpu_time() - self.cpu).as_nanos() as f64;
        println!(
            "{what:<44} {:>10.0}/s {:>8.1} ns CPU each",
            count as f64 / wall,
            cpu / count as f64
        );
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: u64 = line
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kib >> 10
}

fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let bytes = entries.map(|entry| {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            disk_bytes(&entry.path())
        } else {
            metadata.blocks() * 512
        }
    });
    bytes.sum()
}

/// One shard: writes a batch per turn, and waits while too many batches are not logged.
struct Shard<'a> {
    store: &'a Store,
    owner: &'a CountingObserver,
    number: u64,
}

impl Shard<'_> {
    fn turn(&mut self, write: impl FnOnce(&mut store::StoreBatch)) {
        while self.store.pending_bytes() > 8 << 20 {
            std::thread::sleep(Duration::from_micros(50));
        }
        let mut batch = self.store.recycled_batch();
        self.number += 1;
        batch.number = self.number;
        write(&mut batch);
        self.store.submit(0, batch);
    }

    fn finish(&self) {
        while self.owner.logged.load(Ordering::Acquire) < self.number {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn session_and_seq(nth: u64) -> (u64, u64) {
    (nth % SESSIONS + 1, nth / SESSIONS + 1)
}

fn queue(shard: &mut Shard<'_>, messages: u64) {
    let phase = MeasuredPhase::begin();
    for turn in 0..messages.div_ceil(TURN) {
        shard.turn(|batch| {
            for nth in turn * TURN..((turn + 1) * TURN).min(messages) {
                let (session, seq) = session_and_seq(nth);
                batch.begin_message(&[&PAYLOAD]);
                batch.add_entry(session, seq, 0, &[1]);
            }
        });
    }
    shard.finish();
    phase.end("queued for 10,000 sessions", messages);
}

/// Messages acknowledged one turn later.
fn route(shard: &mut Shard<'_>, messages: u64) {
    let first_seq = 1 << 32;
    let phase = MeasuredPhase::begin();
    for turn in 0..messages / TURN {
        shard.turn(|batch| {
            for nth in turn * TURN..(turn + 1) * TURN {
                let (session, seq) = session_and_seq(nth);
                batch.begin_message(&[&PAYLOAD]);
                batch.add_entry(SESSIONS + session, first_seq + seq, 7, &[1]);
            }
            for nth in turn.saturating_sub(1) * TURN..turn * TURN {
                let (session, seq) = session_and_seq(nth);
                batch.complete_entry(SESSIONS + session, first_seq + seq);
            }
        });
    }
    shard.finish();
    phase.end("message, entry and done", messages);
}

fn fetch(store: &Store, owner: &CountingObserver, messages: u64) {
    let phase = MeasuredPhase::begin();
    let ask = |session, from_seq| {
        let fetch = QueueFetch {
            session,
            from_seq,
            max_messages: 100,
            max_bytes: 64 << 10,
        };
        store.fetch(0, fetch);
    };
    let mut sessions = 1..=SESSIONS;
    sessions
        .by_ref()
        .take(64)
        .for_each(|session| ask(session, 0));
    while *owner.fetched.lock().unwrap() < messages {
        let pages = {
            let pages = owner.pages.lock().unwrap();
            let mut pages = owner
                .called
                .wait_while(pages, |pages| pages.is_empty())
                .unwrap();
            std::mem::take(&mut *pages)
        };
        for page in pages {
            assert!(page.entries.iter().all(|stored| stored.body == PAYLOAD[..]));
            match page.entries.last() {
                Some(last) if !page.is_last => ask(page.session, last.seq + 1),
                _ => {
                    if let Some(session) = sessions.next() {
                        ask(session, 0);
                    }
                }
            }
        }
    }
    phase.end("fetched in pages of 100", messages);
}

fn records(shard: &mut Shard<'_>) {
    let phase = MeasuredPhase::begin();
    for turn in 0..RECORDS / 100 {
        shard.turn(|batch| {
            for nth in turn * 100..(turn + 1) * 100 {
                let key = format!("device-{nth:08}");
                batch.put(StateKind::Sessions, key.as_bytes(), &[7; 100]);
                batch.put(
                    StateKind::Subscriptions,
                    key.as_bytes(),
                    b"fleet/+/commands",
                );
            }
        });
    }
    shard.finish();
    phase.end("session records with a subscription each", RECORDS);
}

/// Opens the store in a separate process, to measure the memory that opening needs.
fn open(dir: &Path) {
    let started = Instant::now();
    let (store, report) = Store::open(dir, StoreConfig::default()).unwrap();
    let (opened, opened_cpu) = (started.elapsed(), cpu_time());
    let mut count = 0;
    for space in [StateKind::Sessions, StateKind::Subscriptions] {
        store.scan(space, &mut |_, _| count += 1).unwrap();
    }
    let mut summaries = 0;
    for session in store.queued_sessions() {
        summaries += store.queue(session).unwrap().messages;
    }
    println!(
        "open: {:.2} s ({:.2} s CPU) for {} messages, {:.2} s more for {count} records; {} MiB resident, {} bytes a message",
        opened.as_secs_f64(),
        opened_cpu.as_secs_f64(),
        report.queued_messages,
        (started.elapsed() - opened).as_secs_f64(),
        resident_mib(),
        (resident_mib() << 20) / summaries.max(1),
    );
}

fn compact(shard: &mut Shard<'_>, dir: &Path, messages: u64) {
    for seq in 1..=messages / SESSIONS {
        if seq % 4 != 0 {
            shard.turn(|batch| {
                (1..=SESSIONS).for_each(|session| batch.complete_entry(session, seq))
            });
        }
    }
    shard.finish();
    let left = messages / SESSIONS / 4 * SESSIONS;
    let started = Instant::now();
    shard.store.compact();
    while shard.store.is_compacting() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = started.elapsed();
    shard.store.close();
    println!(
        "compaction to a quarter took {:.2} s: {:.2} bytes on disk per byte of payload",
        took.as_secs_f64(),
        disk_bytes(&dir.join("log")) as f64 / (left * PAYLOAD.len() as u64) as f64
    );
}

/// Writes the same messages as keys and values, and then removes them.
fn fjall_alone(dir: &Path, messages: u64) {
    let database = fjall::Database::builder(dir)
        .worker_threads(1)
        .open()
        .unwrap();
    let queue = database
        .keyspace("queue", fjall::KeyspaceCreateOptions::default)
        .unwrap();
    let key = |nth| {
        let (session, seq): (u64, u64) = session_and_seq(nth);
        [session.to_be_bytes(), seq.to_be_bytes()].concat()
    };
    let mut last_sync = Instant::now();
    let mut in_turns = |what, each: &mut dyn FnMut(&mut fjall::OwnedWriteBatch, u64)| {
        let phase = MeasuredPhase::begin();
        for turn in 0..messages / TURN {
            let mut batch = database.batch();
            (turn * TURN..(turn + 1) * TURN).for_each(|nth| each(&mut batch, nth));
            batch.commit().unwrap();
            if last_sync.elapsed() > Duration::from_millis(100) {
                database.persist(fjall::PersistMode::SyncData).unwrap();
                last_sync = Instant::now();
            }
        }
        phase.end(what, messages);
    };
    in_turns("fjall alone: put", &mut |batch, nth| {
        batch.insert(&queue, key(nth), &PAYLOAD[..]);
    });
    println!("fjall alone: {} MiB on disk", disk_bytes(dir) >> 20);
    in_turns("fjall alone: remove", &mut |batch, nth| {
        batch.remove(&queue, key(nth))
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, dir] = &arguments[..]
        && what == "open"
    {
        return open(Path::new(dir));
    }
    let messages = arguments
        .first()
        .map_or(5_000_000, |text| text.parse().unwrap());
    let temporary = match arguments.get(1) {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let dir = temporary.path().join("store");
    let run = |what: &dyn Fn(&Store, &CountingObserver, &mut Shard<'_>)| {
        let (store, _) = Store::open(&dir, StoreConfig::default()).unwrap();
        let owner = Arc::new(CountingObserver::default());
        store
            .start(Arc::clone(&owner) as Arc<dyn StoreObserver>)
            .unwrap();
        let mut shard = Shard {
            store: &store,
            owner: &owner,
            number: 0,
        };
        what(&store, &owner, &mut shard);
    };
    if std::env::var_os("ONLY_ROUTE").is_some() {
        return run(&|_, _, shard| route(shard, messages));
    }
    run(&|store, owner, shard| {
        queue(shard, messages);
        println!(
            "log: {:.2} bytes per byte of payload as written",
            store.stats().written_bytes as f64 / (messages * PAYLOAD.len() as u64) as f64
        );
        fetch(store, owner, messages);
        route(shard, messages);
        records(shard);
    });
    let this = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(this);
    assert!(child.arg("open").arg(&dir).status().unwrap().success());
    run(&|_, _, shard| compact(shard, &dir, messages));
    fjall_alone(&temporary.path().join("fjall"), messages);
}
