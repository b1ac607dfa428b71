//! The processes of a local cluster: starts them, shows what they log, and ends them in order.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::local_cluster::LocalProcess;
use crate::serve::program_name;

/// How often the files of starting nodes are read.
const START_POLL: Duration = Duration::from_millis(50);
/// A node ends its sessions, files and NATS server within this time; then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// The same for a node that is to end at once, and how often it is told so.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(10);
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(300);

pub(super) enum ClusterEnd {
    /// By a signal.
    Requested,
    AllNodesEnded,
}

struct NodeProcess<'a> {
    node: &'a LocalProcess,
    pid: u32,
    is_running: bool,
    is_ready: bool,
}

/// The nodes, which are killed when this is dropped.
pub(super) struct NodeProcesses<'a> {
    nodes: Vec<NodeProcess<'a>>,
    /// Index of the node that ended, and how.
    ends: mpsc::UnboundedReceiver<(usize, std::io::Result<ExitStatus>)>,
    /// They own the child processes.
    _tasks: tokio::task::JoinSet<()>,
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl<'a> NodeProcesses<'a> {
    pub(super) fn start(nodes: Vec<&'a LocalProcess>, sets: &[String]) -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        // Before the first node: from now on a signal does not leave nodes behind.
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        let program = std::env::current_exe().context("cannot find this program")?;
        // One message per node.
        let (sender, ends) = mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        let mut processes = Vec::new();
        for (index, node) in nodes.into_iter().enumerate() {
            let mut child = spawn(&program, node, sets)
                .with_context(|| format!("cannot start {}", node.name))?;
            let pid = child.id().context("the node has ended at once")?;
            let (sender, name) = (sender.clone(), node.name.clone());
            tasks.spawn(async move {
                if let Some(log) = child.stderr.take() {
                    copy_lines(&name, log).await;
                }
                // The receiver is gone only at the end.
                let _ = sender.send((index, child.wait().await));
            });
            processes.push(NodeProcess {
                node,
                pid,
                is_running: true,
                is_ready: false,
            });
        }
        Ok(Self {
            nodes: processes,
            ends,
            _tasks: tasks,
            interrupt,
            terminate,
        })
    }

    /// Waits until all nodes accept clients, calls `ready`, and returns when a signal has ended all nodes or none runs.
    ///
    /// # Errors
    /// If a node ends before all were ready.
    pub(super) async fn run(&mut self, ready: impl FnOnce()) -> anyhow::Result<ClusterEnd> {
        let mut ready = Some(ready);
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return self.stop("SIGINT").await,
                _ = self.terminate.recv() => return self.stop("SIGTERM").await,
                end = self.ends.recv() => {
                    let Some((index, status)) = end else {
                        return Ok(ClusterEnd::AllNodesEnded);
                    };
                    self.nodes[index].is_running = false;
                    let node = self.nodes[index].node;
                    let how = describe_end(status);
                    if ready.is_some() {
                        self.stop_nodes().await;
                        bail!("{} {how} before it accepted clients; its log is above", node.name);
                    }
                    let remaining = self.nodes.iter();
                    let remaining = remaining.filter(|process| process.is_running && process.node.has_clients);
                    let remaining = remaining.count();
                    eprintln!("{} {how} unexpectedly. {}", node.name, what_follows(node, remaining));
                    if remaining == 0 {
                        // A witness is of no use alone.
                        self.stop_nodes().await;
                        return Ok(ClusterEnd::AllNodesEnded);
                    }
                }
                () = tokio::time::sleep(START_POLL), if ready.is_some() => {
                    for process in self.nodes.iter_mut().filter(|process| !process.is_ready) {
                        process.is_ready = is_ready(process.node, process.pid);
                    }
                    if self.nodes.iter().all(|process| process.is_ready)
                        && let Some(ready) = ready.take()
                    {
                        ready();
                    }
                }
            }
        }
    }

    async fn stop(&mut self, signal: &str) -> anyhow::Result<ClusterEnd> {
        eprintln!("{signal}: ending the nodes; another Ctrl-C ends them at once");
        self.stop_nodes().await;
        Ok(ClusterEnd::Requested)
    }

    /// Ends the nodes one after the other, the last one first, so that each can tell the others.
    async fn stop_nodes(&mut self) {
        for index in (0..self.nodes.len()).rev() {
            if !self.nodes[index].is_running {
                continue;
            }
            send_signal(self.nodes[index].pid, Signal::TERM);
            let deadline = tokio::time::Instant::now() + STOP_LIMIT;
            while self.nodes[index].is_running {
                tokio::select! {
                    end = self.ends.recv() => match end {
                        Some((ended, _)) => self.nodes[ended].is_running = false,
                        None => return,
                    },
                    _ = self.interrupt.recv() => return self.interrupt_nodes().await,
                    () = tokio::time::sleep_until(deadline) => {
                        eprintln!("{} does not end within {STOP_LIMIT:?}; it is killed", self.nodes[index].node.name);
                        send_signal(self.nodes[index].pid, Signal::KILL);
                        self.nodes[index].is_running = false;
                    }
                }
            }
        }
    }

    /// A second SIGINT ends a node at once, and its NATS server too, which would survive SIGKILL.
    async fn interrupt_nodes(&mut self) {
        let deadline = tokio::time::Instant::now() + INTERRUPT_LIMIT;
        while tokio::time::Instant::now() < deadline {
            for process in self.nodes.iter().filter(|process| process.is_running) {
                send_signal(process.pid, Signal::INT);
            }
            if self.nodes.iter().all(|process| !process.is_running) {
                return;
            }
            if let Ok(Some((ended, _))) =
                tokio::time::timeout(INTERRUPT_INTERVAL, self.ends.recv()).await
            {
                self.nodes[ended].is_running = false;
            }
        }
    }
}

fn spawn(program: &Path, node: &LocalProcess, sets: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command.args(node.command);
    command.arg("--config").arg(&node.config_file);
    for set in sets {
        command.arg("--set").arg(set);
    }
    // The nodes differ by their files only; a variable such as TIDEGATE_LISTENER_MQTT_BIND would apply to all.
    let variables = std::env::vars_os().map(|(name, _)| name);
    for name in variables.filter(|name| name.to_string_lossy().starts_with("TIDEGATE_")) {
        command.env_remove(name);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Ctrl-C is for this process, which ends the nodes in order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Shows the log of a node with its name before each line.
async fn copy_lines(name: &str, log: impl AsyncRead + Unpin) {
    let mut lines = BufReader::new(log).lines();
    // Ends with the node, or at a line that is no UTF-8; nodes write UTF-8.
    while let Ok(Some(line)) = lines.next_line().await {
        eprintln!("{name} | {line}");
    }
}

/// Whether `node.json` says that this process accepts clients. Nobody waits for a process without clients.
fn is_ready(node: &LocalProcess, pid: u32) -> bool {
    if !node.has_clients {
        return true;
    }
    let text = std::fs::read(node.data_dir.join("node.json")).unwrap_or_default();
    let node: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    node["pid"] == pid
}

fn describe_end(status: std::io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match status {
        Ok(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was ended by signal {signal}"),
            (None, code) => format!("ended with status {}", code.unwrap_or_default()),
        },
        Err(error) => format!("cannot be observed ({error})"),
    }
}

fn what_follows(node: &LocalProcess, remaining: usize) -> String {
    let (name, command) = (&node.name, restart_command(node));
    match remaining {
        0 => "No node runs any more.".to_owned(),
        1 => format!("One node continues. To start {name} again: {command}"),
        count => format!("{count} nodes continue. To start {name} again: {command}"),
    }
}

fn send_signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended in the meantime.
        let _ = kill_process(pid, signal);
    }
}

/// How a person starts one node again.
fn restart_command(node: &LocalProcess) -> String {
    format!(
        "{} {} --config {}",
        program_name(),
        node.command.join(" "),
        node.config_file.display()
    )
}
