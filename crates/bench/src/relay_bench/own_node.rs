//! A node of the benchmark's own: this program as a child process, with a temporary data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::host::{allowed_cores, pin_to_core};

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running node. Dropping it stops it and removes its data.
pub(super) struct OwnNode {
    child: Child,
    dir: PathBuf,
    /// `HOST:PORT` of the listener `ws`, and of the HTTP API.
    pub(super) ws: String,
    pub(super) http: String,
}

impl OwnNode {
    /// Starts `program` on the first core that this process may use. If there is another one, the calling thread is kept
    /// there from now on.
    pub(super) fn start(program: &Path) -> anyhow::Result<Self> {
        let name = format!("tidegate-bench-relay-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let log_path = dir.join("node.log");
        let log = fs::File::create(&log_path)
            .with_context(|| format!("cannot create {}", log_path.display()))?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--mqtt", "off", "--ws", "127.0.0.1:0"])
            .args(["--http", "127.0.0.1:0", "--data-dir"])
            .arg(dir.join("data"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot duplicate a file")?)
            .stderr(log);
        let cores = allowed_cores();
        // A child inherits the core of the thread that starts it.
        if let [first, second, ..] = cores[..] {
            pin_to_core(first)?;
            let child = command.spawn();
            pin_to_core(second)?;
            Self::wait_until_ready(child, program, dir)
        } else {
            Self::wait_until_ready(command.spawn(), program, dir)
        }
    }

    fn wait_until_ready(
        child: std::io::Result<Child>,
        program: &Path,
        dir: PathBuf,
    ) -> anyhow::Result<Self> {
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                let _ = fs::remove_dir_all(&dir);
                return Err(error).with_context(|| format!("cannot start {}", program.display()));
            }
        };
        let mut node = Self {
            child,
            dir,
            ws: String::new(),
            http: String::new(),
        };
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Ok(text) = fs::read_to_string(node.data_dir().join("node.json")) {
                let value: Value = serde_json::from_str(&text).context("cannot read node.json")?;
                node.ws = address(&value, "ws")?;
                node.http = address(&value, "http")?;
                return Ok(node);
            }
            let has_ended = node.child.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || Instant::now() > deadline {
                let log = fs::read_to_string(node.dir.join("node.log")).unwrap_or_default();
                bail!("the node did not start:\n{log}");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The file with a token for the API.
    pub(super) fn token_file(&self) -> PathBuf {
        self.data_dir().join("api.token")
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// The address of a listener in `node.json`.
fn address(node: &Value, name: &str) -> anyhow::Result<String> {
    let listeners = node["listeners"].as_array().into_iter().flatten();
    let mut found = listeners.filter(|listener| listener["name"] == name);
    let address = found
        .next()
        .and_then(|listener| listener["address"].as_str());
    Ok(address
        .with_context(|| format!("the node has no listener {name}"))?
        .to_owned())
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + STOP_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
