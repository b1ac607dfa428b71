//! Starts the real program for a test and ends it, whatever happens to the test.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

pub use testkit::processes::temporary_directory;
use testkit::{NetworkGuard, NetworkMachine, processes};

const START_DEADLINE: Duration = Duration::from_secs(30);

/// Segments of the message log are allocated ahead, so the default of 64 MiB would be used by each of many nodes. A quarter of
/// this is the largest packet that a node accepts by default.
const SEGMENT_BYTES: &str = "4MiB";

/// The broker named by `TIDEGATE_TEST_BROKER`, if the tests are to run against another one.
pub fn external() -> Option<String> {
    std::env::var("TIDEGATE_TEST_BROKER").ok()
}

/// A running node. Dropping it kills the process and removes its data.
pub struct Node {
    process: Option<Process>,
    listeners: BTreeMap<String, String>,
}

struct Process {
    child: Mutex<Child>,
    pid: u32,
    /// What the node was started with, its data directory and configuration included.
    arguments: Vec<String>,
    data_dir: PathBuf,
    /// Where its standard error goes.
    log: PathBuf,
    /// Where it runs, if not on this machine.
    machine: Option<NetworkMachine>,
}

impl Node {
    /// A node of its own for one test, with further arguments after
    /// `serve --data-dir TMP --mqtt 127.0.0.1:0 --ws 127.0.0.1:0 --http 127.0.0.1:0`.
    pub fn start(arguments: &[&str]) -> Node {
        Self::start_with_config(arguments, "")
    }

    /// As [`Node::start`], with the text of a `tidegate.toml`.
    pub fn start_with_config(arguments: &[&str], config: &str) -> Node {
        Self::try_start(arguments, config).unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`Node::start_with_config`]; if the node does not come up, what it wrote and how it ended.
    pub fn try_start(arguments: &[&str], config: &str) -> Result<Node, String> {
        if let Some(address) = external() {
            return Ok(Self::running_elsewhere(address));
        }
        let mut node = Self::spawn(temporary_directory(), arguments, config);
        node.wait_until_it_listens()?;
        Ok(node)
    }

    /// As [`Node::start_with_config`] with data in this folder, perhaps those of an earlier node. It may not listen yet:
    /// see [`Node::wait_until_it_listens`]. Take the folder back with [`Node::kill`].
    pub fn spawn(data_dir: PathBuf, arguments: &[&str], config: &str) -> Node {
        Self::spawn_on(None, data_dir, arguments, config)
    }

    /// As [`Node::spawn`], on this machine of a network. Its listeners are at the loopback address of the machine.
    pub fn spawn_on(
        machine: Option<&NetworkMachine>,
        data_dir: PathBuf,
        arguments: &[&str],
        config: &str,
    ) -> Node {
        let mut all = vec![
            "serve".to_owned(),
            "--data-dir".to_owned(),
            data_dir.display().to_string(),
        ];
        // Tests of the API's access start nodes that set it otherwise.
        all.extend(["--set", "http.anonymous_role=admin"].map(str::to_owned));
        let sets_segments = |text: &str| text.contains("segment_bytes");
        if !sets_segments(config) && !arguments.iter().any(|argument| sets_segments(argument)) {
            all.extend([
                "--set".to_owned(),
                format!("store.segment_bytes={SEGMENT_BYTES}"),
            ]);
        }
        let listeners = ["--mqtt", "--ws", "--http"];
        all.extend(
            listeners
                .iter()
                .flat_map(|l| [(*l).to_owned(), "127.0.0.1:0".to_owned()]),
        );
        if !config.is_empty() {
            let path = data_dir.join("tidegate.toml");
            fs::write(&path, config).unwrap();
            all.extend(["--config".to_owned(), path.display().to_string()]);
        }
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let process = Process::spawn(machine.cloned(), data_dir, all);
        Node {
            process: Some(process),
            listeners: BTreeMap::new(),
        }
    }

    /// If the node does not come up, what it wrote and how it ended.
    pub fn wait_until_it_listens(&mut self) -> Result<(), String> {
        self.listeners = self.process().wait_until_it_listens()?;
        Ok(())
    }

    /// Kills the node with SIGKILL and gives its data back.
    pub fn kill(mut self) -> PathBuf {
        self.signal(libc::SIGKILL);
        assert!(self.wait(Duration::from_secs(10)).is_some());
        let process = self.process.as_mut().expect("a node of its own");
        std::mem::take(&mut process.data_dir)
    }

    /// The node with the default configuration that the tests of this binary share.
    pub fn shared() -> &'static Node {
        Self::shared_with(&[])
    }

    /// The shared node with these further arguments, started when the first test asks for it.
    pub fn shared_with(arguments: &[&str]) -> &'static Node {
        Self::shared_with_config(arguments, "")
    }

    /// The shared node with these further arguments and this configuration text.
    pub fn shared_with_config(arguments: &[&str], config: &str) -> &'static Node {
        type SharedNodes = HashMap<String, &'static OnceLock<Result<Node, String>>>;
        static NODES: Mutex<Option<SharedNodes>> = Mutex::new(None);
        let key = format!("{arguments:?} {config}");
        let slot: &'static OnceLock<Result<Node, String>> = {
            let mut nodes = NODES
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            nodes
                .get_or_insert_default()
                .entry(key)
                .or_insert_with(|| Box::leak(Box::default()))
        };
        slot.get_or_init(|| Self::try_start(arguments, config))
            .as_ref()
            .unwrap_or_else(|why| panic!("{why}"))
    }

    fn running_elsewhere(mqtt: String) -> Node {
        let mut listeners = BTreeMap::from([("mqtt".to_owned(), mqtt)]);
        if let Ok(ws) = std::env::var("TIDEGATE_TEST_BROKER_WS") {
            listeners.insert("ws".to_owned(), ws);
        }
        Node {
            process: None,
            listeners,
        }
    }

    /// `host:port` (or the path) of the listener of this name.
    pub fn address(&self, listener: &str) -> &str {
        match self.listeners.get(listener) {
            Some(address) => address,
            None => panic!("no listener {listener:?}; there are {:?}", self.listeners),
        }
    }

    /// The current thread is where the node runs until the result is dropped; `None`: on this machine.
    pub fn enter_network(&self) -> Option<NetworkGuard> {
        let machine = self.process.as_ref()?.machine.as_ref()?;
        Some(machine.enter())
    }

    pub fn has_listener(&self, listener: &str) -> bool {
        self.listeners.contains_key(listener)
    }

    pub fn pid(&self) -> u32 {
        self.process().pid
    }

    pub fn data_dir(&self) -> &Path {
        &self.process().data_dir
    }

    /// What the node has written to its standard error so far.
    pub fn log(&self) -> String {
        self.process
            .as_ref()
            .map(Process::read_log)
            .unwrap_or_default()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the node has ended");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .expect("Linux has VmRSS");
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1024
    }

    pub fn is_running(&self) -> bool {
        self.process
            .as_ref()
            .is_none_or(|p| p.child.lock().unwrap().try_wait().unwrap().is_none())
    }

    /// Sends a signal such as `libc::SIGTERM`.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill has no memory effects; the pid is that of our child, which has not been waited for.
        let result = unsafe { libc::kill(self.pid() as i32, signal) };
        assert_eq!(result, 0, "the node has ended already");
    }

    /// Waits for the process to end by itself.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        self.process().wait(limit)
    }

    /// Kills the node with SIGKILL and starts another on its data, at other addresses.
    pub fn crash(&mut self) {
        self.signal(libc::SIGKILL);
        assert!(self.wait(Duration::from_secs(10)).is_some());
        self.start_again();
    }

    /// Stops the node gracefully and starts another on its data, at other addresses.
    pub fn restart(&mut self) {
        self.terminate(Duration::from_secs(15));
        self.start_again();
    }

    pub fn start_again(&mut self) {
        let process = self.process.as_mut().expect("a node of its own");
        processes::unregister(process.pid);
        let data_dir = std::mem::take(&mut process.data_dir);
        let (machine, arguments) = (process.machine.clone(), process.arguments.clone());
        let process = Process::spawn(machine, data_dir, arguments);
        self.listeners = process
            .wait_until_it_listens()
            .unwrap_or_else(|why| panic!("{why}"));
        self.process = Some(process);
    }

    /// SIGTERM, then waits for the end; panics if it takes longer than `limit`.
    pub fn terminate(&self, limit: Duration) -> ExitStatus {
        self.signal(libc::SIGTERM);
        match self.wait(limit) {
            Some(status) => status,
            None => panic!(
                "SIGTERM did not end the node within {limit:?}; it wrote:\n{}",
                self.log()
            ),
        }
    }

    fn process(&self) -> &Process {
        self.process
            .as_ref()
            .expect("this test needs a node of its own, not TIDEGATE_TEST_BROKER")
    }
}

impl Process {
    fn spawn(
        machine: Option<NetworkMachine>,
        data_dir: PathBuf,
        arguments: Vec<String>,
    ) -> Process {
        let log = data_dir.join("stderr.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(&arguments);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let to_log = fs::File::options().create(true).append(true).open(&log);
        command.stderr(to_log.unwrap());
        if let Some(machine) = &machine {
            machine.place(&mut command);
        }
        let child = processes::spawn(command);
        let pid = child.id();
        processes::register(processes::SupervisedChild {
            pid,
            log: log.clone(),
            signal: libc::SIGKILL,
        });
        Process {
            child: Mutex::new(child),
            pid,
            arguments,
            data_dir,
            log,
            machine,
        }
    }

    fn wait_until_it_listens(&self) -> Result<BTreeMap<String, String>, String> {
        let path = self.data_dir.join("node.json");
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if let Some(listeners) = fs::read(&path)
                .ok()
                .and_then(|text| read_node_file(&text, self.pid))
            {
                return Ok(listeners);
            }
            if let Some(status) = self.child.lock().unwrap().try_wait().unwrap() {
                return Err(format!(
                    "the node ended ({status}) instead of listening; it wrote:\n{}",
                    self.read_log()
                ));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "no {} with pid {} after {START_DEADLINE:?}; the node wrote:\n{}",
                    path.display(),
                    self.pid,
                    self.read_log()
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.lock().unwrap().try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn read_log(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = fs::File::open(&self.log) {
            let _ = file.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self
            .child
            .get_mut()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        processes::unregister(self.pid);
        let _ = child.kill();
        let _ = child.wait();
        // Another process may have taken the data over.
        if !self.data_dir.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.data_dir);
        }
    }
}

/// The listeners by name, if this is a whole node.json of the process `pid`.
fn read_node_file(text: &[u8], pid: u32) -> Option<BTreeMap<String, String>> {
    let node: serde_json::Value = serde_json::from_slice(text).ok()?;
    if node["pid"].as_u64()? != u64::from(pid) {
        return None;
    }
    let pairs = node["listeners"].as_array()?.iter().map(|listener| {
        Some((
            listener["name"].as_str()?.to_owned(),
            listener["address"].as_str()?.to_owned(),
        ))
    });
    pairs.collect()
}
