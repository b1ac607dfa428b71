//! Two processes with journals, each killed at random moments: every message is processed once.
//!
//! `TIDEGATE_TEST_KILLS` sets the number of kills.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use content::RangeSet;
use link::config::LinkConfig;
use link::durable::FileJournal;
use link::error_code::ErrorCode;
use link::net::{ConnectOptions, Link, LinkDecision, LinkListener, connect_with_journal};
use link::priority::Priority;
use link::wire::handshake::LinkId;
use tokio::net::{UnixListener, UnixStream};

use crate::support::{RandomChoices, content};

const MESSAGES: u64 = 1200;
const WAIT: Duration = Duration::from_secs(120);
const DIR_VARIABLE: &str = "LINK_TEST_DIR";
const ROLE_VARIABLE: &str = "LINK_TEST_ROLE";

/// What receives messages: those of the class huge come as streams, beside the others.
const READERS: [&str; 2] = ["messages", "streams"];

/// The number of a message, and content of a size between those of all classes.
fn message(number: u64) -> Bytes {
    let len = match number % 100 {
        0 => 200_000,
        50 => 2_500_000,
        1 | 2 => 20_000,
        rest => rest as usize * 7,
    };
    [&number.to_le_bytes()[..], &content(len, number)[..]]
        .concat()
        .into()
}

struct LinkProcesses {
    dir: PathBuf,
    sender: Child,
    receiver: Child,
}

impl LinkProcesses {
    fn start(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            sender: start(dir, "sender"),
            receiver: start(dir, "receiver"),
        }
    }

    /// Kills one of them, and starts it again.
    fn kill(&mut self, is_sender: bool) {
        let (child, role) = match is_sender {
            true => (&mut self.sender, "sender"),
            false => (&mut self.receiver, "receiver"),
        };
        child.kill().expect("the process can be killed");
        child.wait().expect("it ends");
        *child = start(&self.dir, role);
    }
}

impl Drop for LinkProcesses {
    fn drop(&mut self) {
        for child in [&mut self.sender, &mut self.receiver] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(dir: &Path, role: &str) -> Child {
    Command::new(std::env::current_exe().expect("the test is a program"))
        .args(["kills::process", "--exact", "--ignored", "--nocapture"])
        .env(DIR_VARIABLE, dir)
        .env(ROLE_VARIABLE, role)
        .stdout(Stdio::null())
        .spawn()
        .expect("the process starts")
}

/// The numbers of the messages that were processed.
fn processed(dir: &Path) -> Vec<u64> {
    let readers = READERS.iter();
    readers
        .flat_map(|reader| processed_by(dir, reader))
        .collect()
}

fn processed_by(dir: &Path, reader: &str) -> Vec<u64> {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(dir.join(reader)) {
        file.read_to_end(&mut bytes).expect("the file can be read");
    }
    let numbers = bytes.as_chunks::<8>().0.iter();
    numbers.map(|number| u64::from_le_bytes(*number)).collect()
}

#[test]
fn kills_of_two_processes_lose_and_repeat_nothing() {
    let kills = std::env::var("TIDEGATE_TEST_KILLS").map_or(8, |text| text.parse().unwrap());
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    eprintln!("seed {seed}");
    let mut choices = RandomChoices(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut processes = LinkProcesses::start(dir.path());
    let deadline = Instant::now() + WAIT + Duration::from_secs(kills);
    let wait_for = |count: u64| {
        while (processed(dir.path()).len() as u64) < count {
            assert!(Instant::now() < deadline, "the processes make no progress");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for kill in 0..kills {
        let before = processed(dir.path()).len() as u64;
        let part = MESSAGES * 3 / 4 * (kill + 1) / kills;
        wait_for(part.max(before + choices.below(3)).min(MESSAGES));
        processes.kill(choices.below(2) == 0);
    }
    wait_for(MESSAGES);
    let mut numbers = processed(dir.path());
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=MESSAGES), "{numbers:?}");
    let status = processes.sender.wait().unwrap();
    assert!(status.success(), "{status}");
    // A link that is shut down leaves nothing.
    let journals = dir.path().join("receiver");
    while fs::read_dir(&journals).unwrap().next().is_some() {
        assert!(Instant::now() < deadline, "the journal remains");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!dir.path().join("sender/journal").exists());
}

/// What the test starts as processes of their own.
#[test]
#[ignore = "the other test runs it"]
fn process() {
    let (Ok(dir), Ok(role)) = (std::env::var(DIR_VARIABLE), std::env::var(ROLE_VARIABLE)) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match role.as_str() {
        "sender" => runtime.block_on(send(Path::new(&dir))),
        _ => runtime.block_on(receive(Path::new(&dir))),
    }
}

async fn send(dir: &Path) {
    let journals = dir.join("sender");
    let is_flushed = dir.join("flushed").exists();
    if is_flushed && !journals.join("journal").exists() {
        return;
    }
    fs::create_dir_all(&journals).unwrap();
    let journal = FileJournal::open(&journals, LinkId([5; 16])).unwrap();
    let socket = dir.join("socket");
    let link = connect_with_journal(journal, ConnectOptions::default(), move || {
        UnixStream::connect(socket.clone())
    });
    if !is_flushed {
        for number in link.last_sent(Priority::Normal) + 1..=MESSAGES {
            link.send(Priority::Normal, message(number)).await.unwrap();
        }
        link.flush().await.unwrap();
        File::create(dir.join("flushed")).unwrap();
    }
    link.shut_down(ErrorCode::NONE, "").await;
}

async fn receive(dir: &Path) {
    let socket = dir.join("socket");
    let _ = fs::remove_file(&socket);
    let expiry = Duration::from_secs(600);
    let (config, journals) = (LinkConfig::default(), dir.join("receiver"));
    let (listener, mut links) = LinkListener::with_journals(config, 1, expiry, journals).unwrap();
    let dir = dir.to_owned();
    tokio::spawn(async move {
        while let Some(accepted) = links.recv().await {
            tokio::spawn(process_streams(dir.clone(), accepted.link.clone()));
            tokio::spawn(process_messages(dir.clone(), accepted.link));
        }
    });
    let sockets = UnixListener::bind(&socket).unwrap();
    loop {
        let (carrier, _) = sockets.accept().await.unwrap();
        let listener = listener.clone();
        tokio::spawn(async move {
            let principal = "sender".to_owned();
            let _ = listener
                .serve(carrier, |_| LinkDecision::Accept { principal })
                .await;
        });
    }
}

/// The effect of messages: their numbers in a file.
struct ProcessedNumbers {
    file: File,
    /// The last number when the process started.
    last: Option<u64>,
}

impl ProcessedNumbers {
    fn open(dir: &Path, reader: &str) -> Self {
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(dir.join(reader));
        Self {
            file: file.unwrap(),
            last: processed_by(dir, reader).last().copied(),
        }
    }

    fn add(&mut self, number: u64, payload: &[u8]) {
        assert!(payload == message(number), "{number}");
        // The process may have been killed between the effect of a message and its confirmation.
        if self.last.take() != Some(number) {
            self.file.write_all(&number.to_le_bytes()).unwrap();
        }
    }
}

async fn process_messages(dir: PathBuf, link: Link) {
    let mut processed = ProcessedNumbers::open(&dir, READERS[0]);
    while let Ok(received) = link.receive().await {
        processed.add(received.id.number, &received.payload.into_bytes());
        link.acknowledge(received.id);
    }
}

async fn process_streams(dir: PathBuf, link: Link) {
    let mut processed = ProcessedNumbers::open(&dir, READERS[1]);
    while let Ok(mut stream) = link.receive_stream().await {
        stream.accept(&RangeSet::new());
        let mut payload = Vec::new();
        while let Ok(chunk) = stream.read().await.unwrap() {
            assert_eq!(chunk.offset, payload.len() as u64);
            payload.extend_from_slice(&chunk.bytes);
            // A kill loses what is in memory, as with `read_to_end`.
            stream.acknowledge(chunk.range());
        }
        processed.add(stream.info().id.number, &payload);
        stream.complete();
    }
}
