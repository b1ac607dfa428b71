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

/// What a node of a benchmark is started with.
pub(crate) struct OwnNodeOptions<'a> {
    /// Part of the name of its directory.
    pub(crate) benchmark: &'a str,
    /// Where its directory is; `None`: among temporary files.
    pub(crate) parent: Option<&'a Path>,
    /// Further arguments of `serve`.
    pub(crate) arguments: &'a [&'a str],
    /// Text of its configuration file.
    pub(crate) configuration: &'a str,
    /// Keeps it on the first core that this process may use and, if there is another one, the calling thread there from
    /// now on.
    pub(crate) is_pinned: bool,
}

/// A running node. Dropping it stops it and removes its data.
pub(crate) struct OwnNode {
    child: Child,
    dir: PathBuf,
    /// The content of `node.json`.
    description: Value,
    /// Cores that the process could use before the first start.
    cores: Vec<usize>,
}

impl OwnNode {
    pub(crate) fn start(program: &Path, options: &OwnNodeOptions<'_>) -> anyhow::Result<Self> {
        let name = format!(
            "tidegate-bench-{}-{}",
            options.benchmark,
            std::process::id()
        );
        let parent = options
            .parent
            .map_or_else(std::env::temp_dir, Path::to_owned);
        let dir = parent.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Self::launch(program, options, dir, allowed_cores())
    }

    /// Stops the node and starts it again with its data. Its addresses are others.
    pub(crate) fn restart(
        mut self,
        program: &Path,
        options: &OwnNodeOptions<'_>,
    ) -> anyhow::Result<Self> {
        self.stop_process();
        // A node that was killed has left it.
        let _ = fs::remove_file(self.data_dir().join("node.json"));
        // What is dropped has no directory any more.
        let dir = std::mem::take(&mut self.dir);
        let cores = std::mem::take(&mut self.cores);
        Self::launch(program, options, dir, cores)
    }

    fn launch(
        program: &Path,
        options: &OwnNodeOptions<'_>,
        dir: PathBuf,
        cores: Vec<usize>,
    ) -> anyhow::Result<Self> {
        let log_path = dir.join("node.log");
        let log = fs::File::create(&log_path)
            .with_context(|| format!("cannot create {}", log_path.display()))?;
        let config = dir.join("tidegate.toml");
        fs::write(&config, options.configuration)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .args(options.arguments)
            .args(["--http", "127.0.0.1:0", "--config"])
            .arg(&config)
            .arg("--data-dir")
            .arg(dir.join("data"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot duplicate a file")?)
            .stderr(log);
        // A child inherits the core of the thread that starts it.
        if let ([first, second, ..], true) = (&cores[..], options.is_pinned) {
            pin_to_core(*first)?;
            let child = command.spawn();
            pin_to_core(*second)?;
            Self::wait_until_ready(child, program, dir, cores)
        } else {
            Self::wait_until_ready(command.spawn(), program, dir, cores)
        }
    }

    fn wait_until_ready(
        child: std::io::Result<Child>,
        program: &Path,
        dir: PathBuf,
        cores: Vec<usize>,
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
            description: Value::Null,
            cores,
        };
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Ok(text) = fs::read_to_string(node.data_dir().join("node.json")) {
                node.description = serde_json::from_str(&text).context("cannot read node.json")?;
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

    /// `HOST:PORT` of a listener.
    pub(crate) fn address(&self, name: &str) -> anyhow::Result<String> {
        let listeners = self.description["listeners"].as_array();
        let mut listeners = listeners.into_iter().flatten();
        let found = listeners.find(|listener| listener["name"] == name);
        let address = found.and_then(|listener| listener["address"].as_str());
        let address = address.with_context(|| format!("the node has no listener {name}"))?;
        Ok(address.to_owned())
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The file with a token for the API.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.data_dir().join("api.token")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn stop_process(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + STOP_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        self.stop_process();
        if !self.dir.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
