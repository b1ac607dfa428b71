//! Starts the program and ends it, whatever happens to the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far longer than anything here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The program with these arguments and no setting of ours in its environment.
pub(crate) fn tidegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
        command.env_remove(name);
    }
    // It names itself as it would be called, which depends on the PATH.
    let folder = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folder.map(Path::to_owned).into_iter();
    let folders = folders.chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders).unwrap());
    command
}

/// Runs a command that ends by itself.
pub(crate) fn run(arguments: &[&str]) -> ProgramResult {
    ProgramResult::of(tidegate(arguments).stdin(Stdio::null()).output().unwrap())
}

/// Runs a command with this text on its standard input.
pub(crate) fn run_with_input(arguments: &[&str], input: &str) -> ProgramResult {
    let mut command = tidegate(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    ProgramResult::of(child.wait_with_output().unwrap())
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct ProgramResult {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl ProgramResult {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Its standard output, if it ended well.
    pub(crate) fn succeeded(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Its standard error, if it ended with this status.
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.stderr
    }
}

/// A process that runs beside the test; killed when dropped.
pub(crate) struct RunningProgram {
    child: Child,
    /// Lines of its standard error as they come.
    stderr: mpsc::Receiver<String>,
}

impl RunningProgram {
    pub(crate) fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, stderr) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, stderr }
    }

    /// Waits for a line of standard error that contains this, and returns it.
    pub(crate) fn expect_output(&mut self, part: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        let mut seen_lines = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stderr.recv_timeout(left) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen_lines.push(line),
                Err(_) => panic!("{part:?} was not written, but {seen_lines:#?}"),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    /// Whether the process ends within this time.
    pub(crate) fn ends_within(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> ProgramResult {
        let mut stdout = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut stdout)
            .unwrap();
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        ProgramResult {
            code: status.code(),
            stdout,
            stderr: self.stderr.iter().collect::<Vec<_>>().join("\n"),
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node with a data directory of its own.
pub(crate) struct Node {
    pub(crate) process: RunningProgram,
    pub(crate) folder: tempfile::TempDir,
    listeners: Value,
}

impl Node {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    /// The data are in `data` within the folder.
    pub(crate) fn start_in(folder: tempfile::TempDir, arguments: &[&str]) -> Self {
        let data_dir = folder.path().join("data");
        let mut command = tidegate(&["serve", "--data-dir"]);
        command.arg(&data_dir);
        for flag in ["--mqtt", "--ws", "--http"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        command.args(arguments);
        let mut process = RunningProgram::start(command);
        let path = data_dir.join("node.json");
        let deadline = Instant::now() + DEADLINE;
        loop {
            let node: Option<Value> = std::fs::read(&path)
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok());
            if let Some(node) = node.filter(|node| node["pid"] == process.child.id()) {
                let listeners = node["listeners"].clone();
                return Self {
                    process,
                    folder,
                    listeners,
                };
            }
            if process.child.try_wait().unwrap().is_some() || Instant::now() > deadline {
                panic!("the node does not start: {:?}", process.end());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What `node.json` says about the listener of this name.
    pub(crate) fn address(&self, listener: &str) -> String {
        let mut listeners = self.listeners.as_array().unwrap().iter();
        let found = listeners.find(|found| found["name"] == listener).unwrap();
        found["address"].as_str().unwrap().to_owned()
    }

    pub(crate) fn port(&self, listener: &str) -> String {
        let address: SocketAddr = self.address(listener).parse().unwrap();
        address.port().to_string()
    }

    /// Runs `tidegate pub` on the plain listener.
    pub(crate) fn publish(&self, arguments: &[&str]) -> ProgramResult {
        let port = self.port("mqtt");
        run(&[&["pub", "-h", "127.0.0.1", "-p", &port], arguments].concat())
    }

    /// Runs `tidegate sub` on the plain listener to its end.
    pub(crate) fn subscribe(&self, arguments: &[&str]) -> ProgramResult {
        let port = self.port("mqtt");
        run(&[&["sub", "-h", "127.0.0.1", "-p", &port], arguments].concat())
    }

    /// Starts `tidegate sub` on the plain listener and waits until it is subscribed.
    pub(crate) fn subscriber(&self, arguments: &[&str]) -> RunningProgram {
        let port = self.port("mqtt");
        subscriber(&[&["-h", "127.0.0.1", "-p", &port], arguments].concat())
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// SIGTERM; how the node ended, and its folder.
    pub(crate) fn stop(self) -> (ProgramResult, tempfile::TempDir) {
        self.process.signal(Signal::TERM);
        (self.process.end(), self.folder)
    }
}

/// Starts `tidegate sub` and waits until it is subscribed.
pub(crate) fn subscriber(arguments: &[&str]) -> RunningProgram {
    let mut running = RunningProgram::start(tidegate(&[&["sub", "-d"], arguments].concat()));
    running.expect_output("subscribed to");
    running
}

/// A certificate for localhost and 127.0.0.1 that is its own authority, as PEM files `NAME.pem`, `NAME.key`.
pub(crate) fn certificate(folder: &Path, name: &str, common_name: &str) -> (String, String) {
    certificate_with(folder, name, common_name, |_| ())
}

/// The same with something changed.
pub(crate) fn certificate_with(
    folder: &Path,
    name: &str,
    common_name: &str,
    change: impl FnOnce(&mut rcgen::CertificateParams),
) -> (String, String) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut parameters = rcgen::CertificateParams::new(names).unwrap();
    parameters
        .distinguished_name
        .push(rcgen::DnType::CommonName, common_name);
    change(&mut parameters);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    let write = |ending: &str, text: String| {
        let path = folder.join(format!("{name}.{ending}"));
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (
        write("pem", certificate.pem()),
        write("key", key.serialize_pem()),
    )
}
