//! Ends a server that a killed run of the node has left behind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};
use tracing::warn;

const TERMINATE_LIMIT: Duration = Duration::from_secs(10);
const KILL_LIMIT: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Ends the process in a pid file if it runs with this configuration file; false: it still runs. Without `/proc`, nothing is
/// known of it, and the new server reports that its port is in use.
pub(super) async fn end(pid_path: &Path, config_path: &Path) -> bool {
    let Some(pid) = fs::read_to_string(pid_path)
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok())
        .and_then(Pid::from_raw)
    else {
        return true;
    };
    if !is_running(pid, config_path) {
        return true;
    }
    warn!(
        pid = pid.as_raw_nonzero().get(),
        "a NATS server of an earlier run of this node is still running; ending it"
    );
    let _ = kill_process(pid, Signal::TERM);
    if has_ended(pid, config_path, TERMINATE_LIMIT).await {
        return true;
    }
    let _ = kill_process(pid, Signal::KILL);
    has_ended(pid, config_path, KILL_LIMIT).await
}

async fn has_ended(pid: Pid, config_path: &Path, limit: Duration) -> bool {
    let began = Instant::now();
    while is_running(pid, config_path) {
        if began.elapsed() > limit {
            return false;
        }
        sleep(LOOK_INTERVAL).await;
    }
    true
}

fn is_running(pid: Pid, config_path: &Path) -> bool {
    let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    let Ok(arguments) = fs::read(path) else {
        return false;
    };
    let expected = config_path.as_os_str().as_encoded_bytes();
    arguments
        .split(|byte| *byte == 0)
        .any(|argument| argument == expected)
}
