//! Keeps the process of a NATS server running.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::old_process;
use super::server_log::{self, SharedFindings};
use super::status::{ManagedNatsState, ManagedNatsStatus};

const MIN_RESTART_DELAY: Duration = Duration::from_millis(100);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(5);
/// A server that has run for this long is started again at once.
const STABLE_AFTER: Duration = Duration::from_secs(30);
const STARTING_LOOK_INTERVAL: Duration = Duration::from_millis(50);
const RUNNING_LOOK_INTERVAL: Duration = Duration::from_secs(5);
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// A server that greeted connections and does not any more is ended after this time.
const UNRESPONSIVE_LIMIT: Duration = Duration::from_secs(30);
/// How long a server runs on that stores nothing any more, so that a full disk is no loop of restarts.
const DISABLED_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// An error in the log is the reason of an end only if it is not older.
const RECENT: Duration = Duration::from_secs(10);
/// For the rest of the log of a server that has ended.
const LOG_LIMIT: Duration = Duration::from_secs(1);

/// Starts the server, and starts it again whenever it ends, until `stop` is true.
pub(super) struct Supervisor {
    pub(super) program: PathBuf,
    pub(super) config_path: PathBuf,
    pub(super) pid_path: PathBuf,
    pub(super) memory_limit_bytes: u64,
    pub(super) client_port: u16,
    pub(super) status: Arc<Mutex<ManagedNatsStatus>>,
    pub(super) stop: watch::Receiver<bool>,
}

/// Why a run of the server has ended.
enum RunEnd {
    Stopped,
    Failed(String),
}

impl Supervisor {
    pub(super) async fn run(mut self) {
        let mut delay = MIN_RESTART_DELAY;
        loop {
            let began = Instant::now();
            let reason = match self.run_once().await {
                RunEnd::Stopped => break,
                RunEnd::Failed(reason) => reason,
            };
            if began.elapsed() > STABLE_AFTER {
                delay = MIN_RESTART_DELAY;
            }
            warn!(
                reason,
                next_in_ms = delay.as_millis(),
                "the NATS server has ended; starting it again"
            );
            {
                let mut status = self.status();
                set_state(&mut status, ManagedNatsState::Restarting);
                status.pid = None;
                status.restarts += 1;
                status.last_error = Some(reason);
            }
            tokio::select! {
                () = sleep(delay) => {}
                () = stop_requested(&mut self.stop) => break,
            }
            delay = (2 * delay).min(MAX_RESTART_DELAY);
        }
        let mut status = self.status();
        set_state(&mut status, ManagedNatsState::Stopped);
        status.pid = None;
    }

    fn status(&self) -> MutexGuard<'_, ManagedNatsStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run_once(&mut self) -> RunEnd {
        old_process::end(&self.pid_path, &self.config_path).await;
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => {
                return RunEnd::Failed(format!("{}: {error}", self.program.display()));
            }
        };
        {
            let mut status = self.status();
            set_state(&mut status, ManagedNatsState::Starting);
            status.pid = child.id();
        }
        let findings = SharedFindings::default();
        let log = child.stderr.take().map(|log| {
            let forward = server_log::forward(log, Arc::clone(&findings));
            tokio::spawn(forward)
        });
        let end = self.follow(&mut child, &findings).await;
        if let Some(mut log) = log {
            read_rest(&mut log).await;
        }
        match end {
            RunEnd::Stopped => RunEnd::Stopped,
            RunEnd::Failed(reason) => RunEnd::Failed(match last_error(&findings) {
                Some(error) => format!("{reason}: {error}"),
                None => reason,
            }),
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(&self.config_path)
            .env("GOMEMLIMIT", format!("{}B", self.memory_limit_bytes))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal is for the node, which ends the server after its own work.
            .process_group(0)
            .kill_on_drop(true);
        command.spawn()
    }

    async fn follow(&mut self, child: &mut Child, findings: &SharedFindings) -> RunEnd {
        let mut look_at = Instant::now();
        let mut answered: Option<Instant> = None;
        loop {
            tokio::select! {
                status = child.wait() => return RunEnd::Failed(describe_end(status)),
                () = stop_requested(&mut self.stop) => {
                    stop(child).await;
                    return RunEnd::Stopped;
                }
                () = tokio::time::sleep_until(look_at) => {}
            }
            let is_answering = greets(self.client_port).await;
            let now = Instant::now();
            if is_answering {
                if answered.is_none() {
                    self.report_running(child.id());
                }
                answered = Some(now);
            }
            look_at = now
                + match answered {
                    Some(_) => RUNNING_LOOK_INTERVAL,
                    None => STARTING_LOOK_INTERVAL,
                };
            let failure = if answered.is_some_and(|at| at.elapsed() > UNRESPONSIVE_LIMIT) {
                format!("it did not answer for {} s", UNRESPONSIVE_LIMIT.as_secs())
            } else if is_disabled(findings) {
                "it has stopped to store anything".to_owned()
            } else {
                continue;
            };
            stop(child).await;
            return RunEnd::Failed(failure);
        }
    }

    fn report_running(&self, pid: Option<u32>) {
        let mut status = self.status();
        set_state(&mut status, ManagedNatsState::Running);
        status.last_error = None;
        info!(
            pid,
            version = status.version,
            client_port = self.client_port,
            "the NATS server of this node is running"
        );
    }
}

async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
}

fn set_state(status: &mut ManagedNatsStatus, state: ManagedNatsState) {
    if status.state != state {
        status.state = state;
        status.since_ms = wall_clock::now_ms();
    }
}

fn last_error(findings: &SharedFindings) -> Option<String> {
    let findings = findings.lock().unwrap_or_else(PoisonError::into_inner);
    let (at, error) = findings.last_error.as_ref()?;
    (at.elapsed() < RECENT).then(|| error.clone())
}

fn is_disabled(findings: &SharedFindings) -> bool {
    let findings = findings.lock().unwrap_or_else(PoisonError::into_inner);
    findings
        .jetstream_disabled
        .is_some_and(|at| at.elapsed() > DISABLED_LIMIT)
}

async fn read_rest(log: &mut JoinHandle<()>) {
    if timeout(LOG_LIMIT, &mut *log).await.is_err() {
        log.abort();
    }
}

/// Whether the server greets a connection.
async fn greets(port: u16) -> bool {
    let greeting = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let mut begin = [0; 5];
        stream.read_exact(&mut begin).await?;
        io::Result::Ok(&begin == b"INFO ")
    };
    matches!(timeout(LOOK_LIMIT, greeting).await, Ok(Ok(true)))
}

fn describe_end(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => format!("its end cannot be waited for: {error}"),
    }
}

/// Ends the server, so that it writes its state, or kills it.
async fn stop(child: &mut Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if timeout(STOP_LIMIT, child.wait()).await.is_err() {
        warn!("the NATS server does not end within {STOP_LIMIT:?}; killing it");
        let _ = child.kill().await;
    }
}
